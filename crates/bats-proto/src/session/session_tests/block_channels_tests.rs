//! Channels of mode BRCTP, over a link and over the links of relays.

use super::*;
use crate::flow::{RatelessSender, RatelessSenderParameters};
use crate::session::channel::ChannelId;
use crate::wire::channel::{self, ChannelFrame};
use crate::wire::varint::Writer;

const TRANSPORTS: [Over; 4] = [Over::Link, Over::Relays(1), Over::Relays(2), Over::Direct];
type Packets = Vec<(PacketKind, Vec<u8>)>;

fn pair_over(over: Over) -> Pair {
    let config =
        TransportConfig { mode: Mode::Brctp, channels: Some(8), ..TransportConfig::default() };
    Pair::new(config, over)
}

fn open(pair: &mut Pair, end: usize) -> ChannelId {
    pair.ends[end].channels().and_then(Channels::open_channel).expect("there are eight")
}

fn write(pair: &mut Pair, end: usize, id: ChannelId, data: &[u8]) {
    let written = pair.ends[end].channels().and_then(|channels| channels.write(id, data));
    assert_eq!(written, Ok(data.len()));
    pair.ends[end].on_channel_used();
}

/// What can be read, and how reading ends.
fn read(
    pair: &mut Pair,
    end: usize,
    id: ChannelId,
) -> (Vec<u8>, Result<Option<usize>, ChannelError>) {
    let (mut data, mut out) = (Vec::new(), vec![0; 9_000]);
    loop {
        match pair.ends[end].channels().and_then(|channels| channels.read(id, &mut out)) {
            Ok(Some(len)) => data.extend_from_slice(&out[..len]),
            last => return (data, last),
        }
    }
}

fn packets(pair: &mut Pair, from: usize) -> Packets {
    core::iter::from_fn(|| pair.next(from)).collect()
}

fn deliver(pair: &mut Pair, to: usize, packets: &Packets) {
    for (kind, payload) in packets {
        pair.hand_over(to, *kind, payload).expect("an honest peer");
    }
}

fn content(len: usize, factor: usize) -> Vec<u8> {
    (0..len).map(|i| (i * factor % 251) as u8).collect()
}

#[test]
fn bytes_ends_and_resets_of_channels_arrive_with_messages_despite_loss() {
    for over in TRANSPORTS {
        let mut pair = pair_over(over);
        pair.lost = 9;
        let data = [content(50_000, 1), content(30_000, 3)];
        let ids = [open(&mut pair, 0), open(&mut pair, 1)];
        let [reset, stopped] = [(); 2].map(|()| open(&mut pair, 0));
        for (from, id) in ids.into_iter().enumerate() {
            write(&mut pair, from, id, &data[from]);
            pair.ends[from]
                .channels()
                .and_then(|channels| channels.finish(id))
                .expect("it is open");
        }
        write(&mut pair, 0, reset, b"before");
        write(&mut pair, 0, stopped, &content(20_000, 5));
        pair.send(0, b"a message");
        assert!(pair.ends[0].has_data() && !pair.ends[0].is_all_acknowledged());
        let mut found: [(Vec<u8>, bool); 2] = Default::default();
        for step in 0..200 {
            pair.step();
            if step == 20 {
                pair.ends[0].channels().expect("there are some").reset(reset, 7);
                pair.ends[1].channels().expect("there are some").stop(stopped, 8);
            }
            for (from, id) in ids.into_iter().enumerate().filter(|_| step > 5) {
                let (part, last) = read(&mut pair, 1 - from, id);
                found[from].0.extend(part);
                found[from].1 |= last == Ok(None);
            }
        }
        for (from, (found, is_ended)) in found.into_iter().enumerate() {
            assert!(found == data[from] && is_ended, "{over:?}: {} bytes", found.len());
        }
        let (_, last) = read(&mut pair, 1, reset);
        assert_eq!(last, Err(ChannelError::Reset { code: 7 }), "{over:?}");
        let refused = pair.ends[0].channels().and_then(|channels| channels.write(stopped, b"x"));
        assert_eq!(refused, Err(ChannelError::Stopped { code: 8 }), "{over:?}");
        assert_eq!(pair.read(1), [b"a message".to_vec()]);
        assert!(pair.ends[0].is_all_acknowledged() && !pair.ends[0].has_data(), "{over:?}");
        let events = pair.events(1);
        assert!(events.contains(&Event::ChannelIncoming), "{over:?}: {events:?}");
        assert_eq!(pair.stats(0).buffers.send_bytes, 0, "{over:?}");
    }
}

/// Only the channel that has bytes in the missing block waits, and messages.
#[test]
fn a_missing_block_delays_only_its_channels() {
    for over in TRANSPORTS {
        let mut pair = pair_over(over);
        let [first, other] = [(); 2].map(|()| open(&mut pair, 0));
        write(&mut pair, 0, first, b"first");
        let missing = packets(&mut pair, 0);
        write(&mut pair, 0, other, &content(3_000, 1));
        write(&mut pair, 0, first, b"second");
        pair.send(0, b"a message");
        let following = packets(&mut pair, 0);
        assert!(!missing.is_empty() && following.len() > 2, "{over:?}");
        deliver(&mut pair, 1, &following);
        let blocked = Err(ChannelError::Blocked);
        assert_eq!(read(&mut pair, 1, other), (content(3_000, 1), blocked), "{over:?}");
        assert_eq!(read(&mut pair, 1, first), (Vec::new(), blocked), "{over:?}");
        assert!(pair.read(1).is_empty());
        // A third block is not decoded, and the missing one arrives.
        write(&mut pair, 0, other, b"third");
        let third = packets(&mut pair, 0);
        deliver(&mut pair, 1, &missing);
        assert_eq!(read(&mut pair, 1, first), (b"firstsecond".to_vec(), blocked), "{over:?}");
        assert_eq!(pair.read(1), [b"a message".to_vec()]);
        deliver(&mut pair, 1, &third);
        assert_eq!(read(&mut pair, 1, other), (b"third".to_vec(), blocked), "{over:?}");
        // Nothing of it is processed again.
        for packets in [&following, &missing, &third] {
            deliver(&mut pair, 1, packets);
        }
        assert_eq!(read(&mut pair, 1, first), (Vec::new(), blocked));
        // Without the structures of batches, which are kept for the next blocks.
        pair.ends[1].trim();
        assert_eq!(pair.ends[1].receive_buffer_bytes(), 0, "{over:?}");
    }
}

/// Block 0 is missing and parts behind its gap take all memory for early parts. Those of another channel in the same block
/// are read as soon as the block before them is decoded.
#[test]
fn parts_without_memory_are_tried_again_when_their_gap_closes() {
    let config = TransportConfig {
        mode: Mode::Brctp,
        channels: Some(8),
        receive_budget: 3 << 20,
        ..TransportConfig::default()
    };
    let mut pair = Pair::new(config, Over::Link);
    let data = |id, offset, data| ChannelFrame::Data { id, offset, data, end: false };
    let mut last: Vec<_> = (0..5_000).map(|at| data(2, 1 + 2 * at, &b"a"[..])).collect();
    last.push(data(4, 5, b" second"));
    let packets = forged(&[&[data(2, 0, b"missing")], &[data(4, 0, b"first")], &last]);
    deliver(&mut pair, 1, &packets[2]);
    let blocked = Err(ChannelError::Blocked);
    let id = ChannelId::from(4);
    let has_arrived = pair.ends[1].channels().and_then(|channels| channels.stats(id));
    assert_eq!(has_arrived, Err(ChannelError::Closed), "the part has not been taken");
    deliver(&mut pair, 1, &packets[1]);
    assert_eq!(read(&mut pair, 1, id), (b"first second".to_vec(), blocked));
    assert_eq!(read(&mut pair, 1, ChannelId::from(2)), (Vec::new(), blocked));
}

/// A small write does not wait until it fills a block.
#[test]
fn few_bytes_of_several_channels_are_sent_at_once_in_a_short_block() {
    for over in TRANSPORTS {
        let mut pair = pair_over(over);
        let ids = [(); 3].map(|()| open(&mut pair, 0));
        for id in ids {
            write(&mut pair, 0, id, b"a few");
        }
        let sent = packets(&mut pair, 0);
        assert!((1..=3).contains(&sent.len()), "{over:?}: {} packets", sent.len());
        assert!(sent[0].1.len() < 120, "{over:?}: {} bytes", sent[0].1.len());
        deliver(&mut pair, 1, &sent[..1].to_vec());
        for id in ids {
            assert_eq!(read(&mut pair, 1, id).0, b"a few", "{over:?}");
        }
    }
}

/// The application reads neither messages nor one of the channels: decoding continues.
#[test]
fn what_is_not_read_stops_at_its_credit_and_decoding_continues() {
    for over in [Over::Link, Over::Relays(1)] {
        let config = TransportConfig {
            mode: Mode::Brctp,
            channels: Some(8),
            receive_budget: 8 << 20,
            send_budget: 32 << 20,
            ..TransportConfig::default()
        };
        let mut pair = Pair::new(config, over);
        let limit = pair.ends[1].memory_limit();
        let [stalled, other] = [(); 2].map(|()| open(&mut pair, 0));
        let mut progress = 0;
        let data = content(40_000, 1);
        for _ in 0..600 {
            for id in [stalled, other] {
                // It may have no credit.
                _ = pair.ends[0].channels().and_then(|channels| channels.write(id, &data));
            }
            let message = Bytes::copy_from_slice(&data);
            _ = pair.ends[0].send(pair.now, message, None, &CAPACITY);
            pair.step();
            progress += read(&mut pair, 1, other).0.len();
            let held = pair.ends[1].receive_buffer_bytes();
            assert!(held <= limit, "{over:?}: {held} bytes of {limit}");
        }
        assert!(progress > 4 << 20, "{over:?}: {progress} bytes of the channel that is read");
        let held = pair.ends[1].receive_buffer_bytes();
        assert!(held > 1 << 20, "{over:?}: messages and the stalled channel have {held} bytes");
    }
}

/// Packets of blocks that a forged sender fills with frames.
fn forged(blocks: &[&[ChannelFrame<'_>]]) -> Vec<Packets> {
    let mut sender = RatelessSender::new(RatelessSenderParameters {
        max_symbol_size: symbol_size_for(1_440),
        initial_credit: 1 << 20,
        goal: crate::config::Goal::Balanced,
        budget: 1 << 24,
        receivers: 1,
        over_relays: false,
    });
    let mut forged = Vec::new();
    for frames in blocks {
        let pushed = sender.push_block(symbol_size_for(1_440), &PATH, |bytes| {
            let mut writer = Writer::new(bytes);
            for frame in *frames {
                channel::encode(&mut writer, frame).expect("there is room");
            }
            (writer.written(), false)
        });
        assert!(pushed);
        let next = || {
            let mut out = Vec::new();
            Some((sender.poll(Timestamp::from_millis(1_000), &mut out)?, out))
        };
        forged.push(core::iter::from_fn(next).collect());
    }
    forged
}

#[test]
fn frames_that_break_a_rule_close_the_session_in_and_out_of_order() {
    let fine = [ChannelFrame::Data { id: 2, offset: 0, data: b"fine", end: false }];
    let beyond = 1 << 40;
    let long = content(100, 1);
    let data = |id, offset| ChannelFrame::Data { id, offset, data: &long, end: false };
    let cases: [(&[ChannelFrame<'_>], &str); 5] = [
        (&[ChannelFrame::Data { id: 2, offset: beyond, data: b"x", end: true }], "credit"),
        (&[ChannelFrame::Reset { id: 2, code: 1, size: beyond }], "credit"),
        (&[data(20, 0)], "channel 20"),
        (&[data(3, 0)], "channel 3"),
        (&[data(4, 50), data(4, 100)], "channel 4"),
    ];
    for (frames, expected) in cases {
        for is_early in [false, true] {
            let mut pair = pair_over(Over::Link);
            let packets = forged(&[&fine, frames]);
            if !is_early {
                deliver(&mut pair, 1, &packets[0]);
            }
            let results = packets[1]
                .iter()
                .map(|(kind, payload)| pair.ends[1].on_coded(pair.now, *kind, payload, RTT));
            let failures: Vec<_> = results.filter_map(Result::err).collect();
            let [SessionFailure::Violation(text)] = &failures[..1] else { panic!("{failures:?}") };
            assert!(text.contains(expected), "{text}");
        }
    }
    // Without channels there are no such frames.
    let mut pair = Pair::of_mode(Mode::Brctp, Over::Link);
    let (kind, payload) = &forged(&[&fine])[0][0];
    let refused = pair.ends[1].on_coded(pair.now, *kind, payload, RTT);
    assert!(matches!(refused, Err(SessionFailure::Violation(_))), "{refused:?}");
}
