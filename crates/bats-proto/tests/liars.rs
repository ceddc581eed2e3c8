//! A peer that lies gains nothing: scenarios, in virtual time. The stand-in for TLS lets a test
//! seal whatever it likes.

mod stage;

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::fuzzing::{LyingClient, open_short};
use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::frame::{self, Frame};
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::rank::{RankEntry, RankFeedback};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Reader;
use bats_proto::{
    CongestionAlgorithm, Endpoint, Event, Input, Output, Received, Timestamp, TransportConfig,
};
use bytes::Bytes;
use stage::{MS, Stage, server, transport};

#[test]
fn acknowledging_what_was_not_sent_yet_closes() {
    let mut stage = Stage::established(transport());
    stage.send(10_000);
    let next = stage.liar.largest_seen.unwrap() + 1;
    stage.say_ack(stage.now, &[(next, next)]);
    assert!(stage.misbehaved().contains("not sent yet"), "{:?}", stage.closed);
}

#[test]
fn acknowledging_everything_unseen_closes_before_long() {
    let mut stage = Stage::established(transport());
    for _ in 0..100 {
        stage.send(3_000);
        let largest = stage.liar.largest_seen.unwrap();
        stage.say_ack(stage.now, &[(0, largest)]);
        stage.pass(MS);
        if stage.closed.is_some() {
            break;
        }
    }
    assert!(stage.misbehaved().contains("never sent"), "{:?}", stage.closed);
    assert!(stage.liar.largest_seen.unwrap() < 250, "a few hundred packets at most");
}

/// Acknowledgements in the wrong order, with times of arrival that run backwards or leap.
#[test]
fn absurd_clocks_and_orders_of_acknowledgements_do_no_harm() {
    for congestion in [CongestionAlgorithm::Bbr, CongestionAlgorithm::None] {
        let mut stage = Stage::established(TransportConfig { congestion, ..transport() });
        stage.send(100_000);
        stage.pass(MS * 5);
        let sent: Vec<u64> = stage.packets().iter().map(|packet| packet.0).collect();
        let leaps = [0, 5, 1 << 61, 3, (1 << 62) - 1_000, 7, 1_000_000_000, 2_000_000_000];
        let steps = (1..9_u64).map(|step| step * 900_000);
        let times: Vec<u64> = steps.chain(leaps).collect();
        for (pn, nanos) in sent.iter().rev().zip(times) {
            stage.say_ack(Timestamp::from_nanos(nanos), &[(*pn, *pn)]);
            stage.pass(MS);
        }
        assert_eq!(stage.closed, None);
    }
}

fn report(decoded_below: u64, seen_end: u64, entries: Vec<RankEntry>) -> Frame<'static> {
    let repair_seen = Some((1 << 62) - 2);
    Frame::Rank(RankFeedback { decoded_below, seen_end, repair_seen, coded: 9, wasted: 0, entries })
}

#[test]
fn feedback_about_what_was_not_sent_closes() {
    let mut stage = Stage::established(transport());
    stage.send(10_000);
    stage.say_frame(&report(0, 1_000, Vec::new()));
    assert!(stage.misbehaved().contains("not sent"), "{:?}", stage.closed);
    // Any entry, not just the last one.
    for huge in [0, 1] {
        let mut stage = Stage::established(transport());
        stage.send(10_000);
        let mut entries = vec![RankEntry { first: 0, span: 1, missing: 1 }; 2];
        entries[huge] = RankEntry { first: 0, span: 1_000, missing: 1 };
        stage.say_frame(&report(0, 1, entries));
        assert!(stage.misbehaved().contains("not sent"), "{:?}", stage.closed);
    }
}

#[test]
fn sums_of_huge_claims_do_not_overflow() {
    let mut stage = Stage::established(transport());
    stage.send(10_000);
    let huge = RankEntry { first: 0, span: (1 << 62) - 2, missing: (1 << 62) - 3 };
    let mut entries = vec![huge; 20];
    entries.push(RankEntry { first: 0, span: 1, missing: 1 });
    stage.say_frame(&report(0, 1, entries));
    assert!(stage.closed.is_some());
}

impl Stage {
    /// The newest credit among the packets heard since the last look.
    fn credit(&mut self) -> Option<u64> {
        let packets: Vec<_> = self.heard.drain(..).collect();
        let mut credit = None;
        for packet in packets {
            let Some((header, payload)) = open_short(false, 0, &packet) else { continue };
            if header.kind != PacketKind::Control {
                continue;
            }
            let mut reader = Reader::new(&payload);
            while let Ok(Some(frame)) = frame::decode(&mut reader, &mut Vec::new()) {
                if let Frame::Credit(symbols) = frame {
                    credit = credit.max(Some(symbols));
                }
            }
        }
        credit
    }

    /// Sends symbols of this content, as many as the server's credit allows, at most `max`.
    fn flood(&mut self, symbol: &[u8], max: u64) -> u64 {
        // What every receiver grants at first with this budget; the handshake says so.
        let mut credit = 500;
        let mut number = 0;
        while number < max && number < credit {
            self.say(PacketKind::Source, |writer| {
                SourceHeader::new(number).encode(writer)?;
                writer.bytes(symbol)
            });
            number += 1;
            if number % 50 == 0 {
                self.pass(MS * 5);
                credit = credit.max(self.credit().unwrap_or(0));
            }
        }
        number
    }
}

/// Three bytes on the wire make an empty message, which takes many more in memory.
#[test]
fn a_flood_of_empty_messages_ends_with_the_budget() {
    let budget = 4 << 20;
    let mut stage = Stage::established(TransportConfig { receive_budget: budget, ..transport() });
    let flooded = stage.flood(&[1, 0, 0].repeat(450), 10_000);
    let stats = stage.stats();
    assert_eq!(stage.closed, None);
    assert!(flooded < 10_000, "credit ends");
    let held = stats.messages_received as usize * size_of::<Bytes>();
    assert!(held <= budget, "{held} bytes in {} messages", stats.messages_received);
    assert!(stats.receive_buffer_bytes <= 2 * budget as u64, "{stats:?}");

    // Nothing is lost to the application.
    let mut taken = 0;
    while stage.server.recv(stage.now, stage.handle.unwrap()).is_some() {
        taken += 1;
    }
    assert_eq!(taken, flooded * 450);
}

/// The liar says every millisecond that everything is missing and that no repair is under way.
fn claim_losses(stage: &mut Stage, time: Duration) {
    let end = stage.now + time;
    while stage.now < end {
        let sent = stage.stats().source_packets_sent;
        let claims = (0..sent / 200 + 1).map(|i| i * 200).filter(|&first| first < sent);
        let entries = claims.map(|first| {
            let span = (sent - first).min(200);
            RankEntry { first, span, missing: span }
        });
        let entries: Vec<RankEntry> = entries.take(60).collect();
        stage.say_frame(&report(0, sent, entries));
        stage.pass(MS);
    }
}

#[test]
fn claimed_losses_get_no_more_than_the_rate() {
    let bits_per_second = 8_000_000;
    let congestion = CongestionAlgorithm::FixedRate { bits_per_second };
    let mut stage = Stage::established(TransportConfig { congestion, ..transport() });
    stage.send(500_000);
    let before = stage.stats().bytes_sent;
    claim_losses(&mut stage, MS * 2_000);
    let stats = stage.stats();
    assert!(stats.top_up_packets_sent > 100, "the claims were believed: {stats:?}");
    let limit = bits_per_second / 8 * 2;
    let coded = stats.bytes_sent - before;
    // Acknowledgements and reports of the server are not paced: they answer each packet at most.
    assert!(coded <= limit + limit / 10 + 2_000 * 60, "{coded} bytes, {limit} allowed");
    assert!(stats.send_buffer_bytes <= 3 << 20, "{stats:?}");
}

#[test]
fn claimed_losses_without_acknowledgements_end_at_the_window() {
    let congestion = CongestionAlgorithm::Bbr;
    let mut stage = Stage::established(TransportConfig { congestion, ..transport() });
    stage.send(2_000_000);
    claim_losses(&mut stage, MS * 50);
    let stats = stage.stats();
    assert!(stats.in_flight_bytes <= stats.cwnd_bytes + 2 * 1_472, "{stats:?}");
    assert!(stats.bytes_sent <= stats.cwnd_bytes + 20 * 1_472, "{stats:?}");
}

#[test]
fn source_symbols_end_with_the_credit_and_absurd_credit_costs_no_memory() {
    let budget = 2 << 20;
    let transport = TransportConfig { send_budget: budget, ..transport() };
    let mut stage = Stage::with_credit(transport.clone(), 5);
    stage.send(100_000);
    claim_losses(&mut stage, MS * 100);
    assert_eq!(stage.stats().source_packets_sent, 5);

    let mut stage = Stage::established(transport);
    stage.say_frame(&Frame::Credit((1 << 62) - 1));
    let message = Bytes::from(vec![7; 10_000]);
    let handle = stage.handle.unwrap();
    for _ in 0..1_000 {
        let _full = stage.server.send(stage.now, handle, message.clone());
        stage.settle();
    }
    assert_eq!(stage.closed, None);
    assert!(stage.stats().send_buffer_bytes <= budget as u64 + (1 << 16));
}

#[test]
fn a_sender_without_credit_is_quiet() {
    for (credit, bytes) in [(0, 10_000), (5, 10_000), (5, 100_000)] {
        let packets = packets_without_credit(credit, bytes);
        assert!(packets < 50, "{packets} packets in ten seconds with nothing to say");
    }
}

fn packets_without_credit(credit: u64, bytes: usize) -> usize {
    let mut stage = Stage::with_credit(transport(), credit);
    stage.send(bytes);
    stage.pass(MS * 20);
    stage.say_frame(&report(credit, credit, Vec::new()));
    let mut packets = 0;
    for _ in 0..1_000 {
        let heard = stage.packets();
        packets += heard.len();
        for (pn, _) in heard {
            stage.say_ack(stage.now, &[(pn, pn)]);
        }
        stage.pass(MS * 10);
    }
    assert_eq!(stage.closed, None);
    packets
}

fn message_symbol(text: &[u8]) -> Vec<u8> {
    [&[1, text.len() as u8, text.len() as u8], text].concat()
}

#[test]
fn forged_and_repeated_packets_are_counted_and_deliver_nothing() {
    let mut stage = Stage::established(transport());
    let symbol = message_symbol(b"what was said");
    let payload = [&[0, 0, 0, 0], &symbol[..]].concat();
    let honest = stage.liar.packet(PacketKind::Source, &payload).unwrap();
    for at in 5..honest.len() {
        let mut forged = honest.clone();
        forged[at] ^= 1 << (at % 8);
        stage.hear(forged);
    }
    assert_eq!(stage.stats().packets_forged, honest.len() as u64 - 5);
    assert_eq!(stage.stats().messages_received, 0);
    for _ in 0..10 {
        stage.hear(honest.clone());
    }
    let stats = stage.stats();
    assert_eq!((stats.packets_replayed, stats.messages_received), (9, 1));
    let handle = stage.handle.unwrap();
    assert_eq!(stage.server.recv(stage.now, handle), Some(Bytes::from_static(b"what was said")));
    assert_eq!(stage.server.recv(stage.now, handle), None);

    // A wrong connection ID belongs to nobody.
    let mut strange = honest;
    strange[1] ^= 1;
    let before = stage.server.endpoint_stats().datagrams_dropped;
    stage.hear(strange);
    assert_eq!(stage.server.endpoint_stats().datagrams_dropped, before + 1);
    assert_eq!(stage.closed, None);
}

#[test]
fn symbols_beyond_the_credit_close() {
    let mut stage = Stage::established(transport());
    stage.say(PacketKind::Source, |writer| SourceHeader::new(100_000_000).encode(writer));
    assert!(stage.misbehaved().contains("beyond the credit"), "{:?}", stage.closed);
    let mut stage = Stage::established(transport());
    let header = RepairHeader { batch: 0, column: 0, first: 100_000_000, count: 256 };
    stage.say(PacketKind::Repair, |writer| header.encode(writer));
    assert!(stage.misbehaved().contains("beyond the credit"), "{:?}", stage.closed);
}

/// First flights from as many addresses, and what each address got and gave.
fn flood_of_first_flights(server: &mut Endpoint, flights: u32) -> (Timestamp, usize) {
    let mut now = Timestamp::from_millis(1_000);
    let mut most = 0;
    let mut got = std::collections::BTreeMap::<SocketAddr, usize>::new();
    let mut buffer = Vec::with_capacity(65_536);
    for number in 0..flights + 12_000 {
        if number < flights {
            let liar = LyingClient::new(number);
            let parameters = TransportParameters::default().encode(0);
            let mut flight = liar.first_flight(&parameters, &[]);
            assert_eq!(flight.len(), 1_200);
            let remote = LyingClient::address(number);
            let received = Received { remote, local_ip: None, ecn: 0, payload: &mut flight };
            server.handle(now, Input::Datagram(received));
        } else {
            // Ten seconds in which nobody says more.
            now += MS;
        }
        server.handle(now, Input::Timeout);
        loop {
            match server.poll(now, &mut buffer) {
                Output::Transmit(t) => *got.entry(t.remote).or_default() += t.len,
                Output::Event(_, Event::Accepted) => panic!("nobody finished a handshake"),
                Output::Event(..) => {}
                Output::Timeout(_) => break,
            }
        }
        most = most.max(server.connection_count());
    }
    for (remote, bytes) in got {
        assert!(bytes <= 3 * 1_200, "{remote} got {bytes} bytes for 1200");
    }
    (now, most)
}

#[test]
fn a_flood_of_first_flights_is_answered_without_state() {
    let mut server = server(transport(), 16, 1_000);
    let (_, most) = flood_of_first_flights(&mut server, 5_000);
    assert_eq!(most, 16, "half-open connections");
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.retries_sent), (16, 5_000 - 16));
    assert_eq!(server.connection_count(), 0, "half-open connections end");
}

/// Row 10 of the goals, without any retry: as many handshakes as there are places are answered, copies
/// of flights included, none with more than three times what it brought; the others get nothing.
#[test]
fn a_storm_from_a_hundred_thousand_addresses_is_answered_threefold_at_most() {
    const FLIGHTS: u32 = 100_000;
    let mut server = server(transport(), usize::MAX, 10_000);
    let (_, most) = flood_of_first_flights(&mut server, FLIGHTS);
    assert!(most <= 4_096, "{most} half-open connections");
    let stats = server.endpoint_stats();
    let begun = stats.handshakes_started;
    assert_eq!(begun, most as u64);
    let refused = stats.half_open_refused + stats.memory_refusals + stats.connections_refused;
    assert_eq!(begun + stats.retries_sent + refused, u64::from(FLIGHTS), "{stats:?}");
    assert!(begun == 4_096 && stats.retries_sent > 10_000, "{stats:?}");
    assert_eq!((server.connection_count(), stats.memory_promised), (0, 0));
}

/// Row 2 of the goals: a first flight that was damaged on its way leaves nothing behind.
#[test]
fn a_damaged_first_flight_leaves_no_state() {
    let mut server = server(transport(), usize::MAX, 1_000);
    let liar = LyingClient::new(1);
    let parameters = TransportParameters { connection_id: liar.cid(), ..Default::default() };
    let first = liar.first_flight(&parameters.encode(0), &[]);
    // What is behind the packet is padding, which nothing seals.
    let sealed = first.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let mut buffer = Vec::with_capacity(65_536);
    for at in 0..sealed {
        let mut damaged = first.clone();
        damaged[at] ^= 1 << (at % 8);
        let remote = Stage::address();
        let received = Received { remote, local_ip: None, ecn: 0, payload: &mut damaged };
        server.handle(Timestamp::from_millis(1_000), Input::Datagram(received));
        while let Output::Transmit(transmit) =
            server.poll(Timestamp::from_millis(1_000), &mut buffer)
        {
            assert!(transmit.len < 100, "byte {at}: more than which versions there are");
        }
        assert_eq!(server.connection_count(), 0, "byte {at}");
    }
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.memory_promised), (0, 0));
    // The same without the damage.
    let mut whole = first;
    let remote = Stage::address();
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut whole };
    server.handle(Timestamp::from_millis(1_000), Input::Datagram(received));
    assert_eq!(server.connection_count(), 1);
}

#[test]
fn a_full_server_refuses_and_counts() {
    let mut server = server(transport(), 1_000_000, 20);
    let (_, most) = flood_of_first_flights(&mut server, 1_000);
    assert_eq!(most, 20);
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.connections_refused), (20, 980));
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn withheld_acknowledgements_do_not_keep_a_closed_connection() {
    let mut stage = Stage::established(transport());
    stage.send(1_000);
    let first = stage.liar.largest_seen.unwrap();
    stage.pass(MS * 14_000);
    stage.say_ack(stage.now, &[(first, first)]);
    assert!(stage.stats().smoothed_rtt > MS * 1_000, "{:?}", stage.stats());
    stage.server.close(stage.now, stage.handle.unwrap(), 0, "");
    stage.settle();
    stage.pass(MS * 10_100);
    assert_eq!(stage.server.connection_count(), 0);
}

/// Whoever knows the connection ID can address the connection, but is not answered.
#[test]
fn handshake_packets_without_a_seal_cause_nothing() {
    let mut stage = Stage::established(transport());
    stage.pass(MS * 500);
    stage.heard.clear();
    let mut first = stage.liar.finished().unwrap();
    let last = first.len() - 1;
    first[last] ^= 1;
    for _ in 0..100 {
        stage.hear(first.clone());
        // Version negotiation: eleven bytes.
        let to: [u8; 4] = first[6..10].try_into().unwrap();
        stage.hear([&[0xc0, 0, 0, 0, 0, 4], &to[..], &[0]].concat());
    }
    assert_eq!(stage.heard.len(), 0, "answers to nobody");
    // The true one is: its sender has not heard that it arrived.
    let finished = stage.liar.finished().unwrap();
    stage.hear(finished);
    assert!(!stage.heard.is_empty());
}

#[test]
fn a_closed_connection_says_so_less_and_less_often() {
    let mut stage = Stage::established(transport());
    let ping = stage.liar.packet(PacketKind::Control, &[1]).unwrap();
    stage.server.close(stage.now, stage.handle.unwrap(), 0, "a long text that makes it large");
    stage.settle();
    stage.heard.clear();
    stage.hear(ping.clone());
    assert_eq!(stage.heard.len(), 1, "the peer may not have heard");
    for _ in 0..1_000 {
        stage.hear(ping.clone());
    }
    assert!(stage.heard.len() <= 10, "{} answers", stage.heard.len());
}
