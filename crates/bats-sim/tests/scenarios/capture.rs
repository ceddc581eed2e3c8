//! A capture of a run can be read back and agrees with the link counters.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::time::Duration;

use bats_sim::capture::Capture;
use bats_sim::matrix::Cell;
use bats_sim::network::Host;
use bats_sim::recorder::Recorder;
use bats_sim::transfer::Outcome;
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};

struct Packet {
    interface: u32,
    time: Duration,
    frame: Vec<u8>,
    dropped: bool,
}

/// Runs for 1 s over 10 Mbit/s with 10 % loss and reads the capture of at most `limit` datagrams.
fn captured(name: &str, limit: u64) -> (Outcome, u64, Vec<Packet>) {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = BufWriter::new(File::create(&path).expect("a file"));
    let capture = Capture::new(Box::new(file), limit).expect("writable");
    let mut recorder = Recorder { capture: Some(capture), ..Recorder::default() };
    let cell = Cell { seed: 4, ..Cell::over(10, 10, 0.1, 1) };
    let (_, outcome) = cell.run_recorded(&mut recorder);
    let written = recorder.capture.expect("the recorder has a capture").finish().expect("written");

    let mut reader = PcapNgReader::new(File::open(&path).expect("there")).expect("a header");
    let (mut packets, mut interfaces) = (Vec::new(), 0);
    while let Some(block) = reader.next_block() {
        match block.expect("well-formed") {
            Block::InterfaceDescription(_) => interfaces += 1,
            Block::EnhancedPacket(packet) => {
                assert_eq!(packet.original_len as usize, packet.data.len());
                packets.push(Packet {
                    interface: packet.interface_id,
                    time: packet.timestamp,
                    frame: packet.data.to_vec(),
                    dropped: packet
                        .options
                        .iter()
                        .any(|option| matches!(option, EnhancedPacketOption::Comment(_))),
                });
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(interfaces, 2);
    std::fs::remove_file(path).expect("removed");
    (outcome, written, packets)
}

#[test]
fn the_capture_contains_all_datagrams_in_order_with_their_addresses() {
    let (outcome, written, packets) = captured("all.pcapng", u64::MAX);
    assert_eq!(packets.len() as u64, written);
    assert!(packets.is_sorted_by_key(|packet| packet.time));
    // Virtual time starts at 1 ms. The run takes 1 s and the handshake.
    assert_eq!(packets[0].time, Duration::from_millis(1));
    assert!(packets.last().expect("some").time < Duration::from_secs(2));

    for packet in &packets {
        let hosts = [Host::Client, Host::Server];
        let ends = if packet.interface == 0 { hosts } else { [hosts[1], hosts[0]] };
        let ip = &packet.frame[14..];
        for (end, bytes, port) in
            [(ends[0], &ip[12..16], &ip[20..22]), (ends[1], &ip[16..20], &ip[22..24])]
        {
            assert_eq!(
                end.address().ip().to_string(),
                format!("{}.{}.{}.{}", bytes[0], bytes[1], bytes[2], bytes[3])
            );
            assert_eq!(end.address().port(), u16::from_be_bytes([port[0], port[1]]));
        }
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
    }

    // The last sample is at most 10 ms older than the end of the run.
    let link = outcome.samples.last().expect("samples").link;
    let up = |dropped: bool| {
        packets.iter().filter(|p| p.interface == 0 && p.dropped == dropped).count() as u64
    };
    let dropped = link.dropped_loss + link.dropped_queue;
    assert!((link.offered..link.offered + 20).contains(&(up(true) + up(false))), "{link:?}");
    assert!((dropped..dropped + 20).contains(&up(true)), "{link:?}");
    assert!(up(true) > 50);
}

#[test]
fn the_capture_ends_at_its_datagram_limit() {
    let (_, written, packets) = captured("hundred.pcapng", 100);
    assert_eq!((written, packets.len()), (100, 100));
    assert!(packets.iter().any(|packet| packet.interface == 1));
}
