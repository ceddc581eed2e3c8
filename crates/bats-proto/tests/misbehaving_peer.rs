//! Attacks of a peer with valid keys, in virtual time. The plain-text TLS stand-in lets a test seal
//! any packet.

mod harness;

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::fuzzing::{MisbehavingClient, open_short};
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
use harness::{Harness, MS, server, transport};

#[test]
fn ack_of_unsent_packet_closes() {
    let mut harness = Harness::established(transport());
    harness.send_from_server(10_000);
    let next = harness.client.largest_seen.unwrap() + 1;
    harness.send_ack(harness.now, &[(next, next)]);
    assert!(harness.violation().contains("not sent yet"), "{:?}", harness.closed);
}

#[test]
fn optimistic_acks_close_within_a_few_hundred_packets() {
    let mut harness = Harness::established(transport());
    for _ in 0..100 {
        harness.send_from_server(3_000);
        let largest = harness.client.largest_seen.unwrap();
        harness.send_ack(harness.now, &[(0, largest)]);
        harness.advance(MS);
        if harness.closed.is_some() {
            break;
        }
    }
    assert!(harness.violation().contains("never sent"), "{:?}", harness.closed);
    println!("closed after {} packets", harness.client.largest_seen.unwrap());
    assert!(harness.client.largest_seen.unwrap() < 250, "at most a few hundred packets");
}

/// Acknowledgements in the wrong order, with arrival times that run backwards or jump.
#[test]
fn extreme_ack_times_and_orders_are_tolerated() {
    for congestion in [CongestionAlgorithm::Ltcc, CongestionAlgorithm::None] {
        let mut harness = Harness::established(TransportConfig { congestion, ..transport() });
        harness.send_from_server(100_000);
        harness.advance(MS * 5);
        let sent: Vec<u64> = harness.take_packets().iter().map(|packet| packet.0).collect();
        let leaps = [0, 5, 1 << 61, 3, (1 << 62) - 1_000, 7, 1_000_000_000, 2_000_000_000];
        let steps = (1..9_u64).map(|step| step * 900_000);
        let times: Vec<u64> = steps.chain(leaps).collect();
        for (pn, nanos) in sent.iter().rev().zip(times) {
            harness.send_ack(Timestamp::from_nanos(nanos), &[(*pn, *pn)]);
            harness.advance(MS);
        }
        assert_eq!(harness.closed, None);
    }
}

fn report(decoded_below: u64, seen_end: u64, entries: Vec<RankEntry>) -> Frame<'static> {
    let repair_seen = Some((1 << 62) - 2);
    Frame::Rank(RankFeedback { decoded_below, seen_end, repair_seen, coded: 9, wasted: 0, entries })
}

#[test]
fn feedback_about_unsent_symbols_closes() {
    let mut harness = Harness::established(transport());
    harness.send_from_server(10_000);
    harness.send_frame(&report(0, 1_000, Vec::new()));
    assert!(harness.violation().contains("not sent"), "{:?}", harness.closed);
    // An invalid entry is found anywhere, not only at the end.
    for huge in [0, 1] {
        let mut harness = Harness::established(transport());
        harness.send_from_server(10_000);
        let mut entries = vec![RankEntry { first: 0, span: 1, missing: 1 }; 2];
        entries[huge] = RankEntry { first: 0, span: 1_000, missing: 1 };
        harness.send_frame(&report(0, 1, entries));
        assert!(harness.violation().contains("not sent"), "{:?}", harness.closed);
    }
}

#[test]
fn sums_of_huge_feedback_entries_do_not_overflow() {
    let mut harness = Harness::established(transport());
    harness.send_from_server(10_000);
    let huge = RankEntry { first: 0, span: (1 << 62) - 2, missing: (1 << 62) - 3 };
    let mut entries = vec![huge; 20];
    entries.push(RankEntry { first: 0, span: 1, missing: 1 });
    harness.send_frame(&report(0, 1, entries));
    assert!(harness.closed.is_some());
}

impl Harness {
    /// The newest credit in the packets received since the last call.
    fn credit(&mut self) -> Option<u64> {
        let packets: Vec<_> = self.received.drain(..).collect();
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

    /// Sends symbols with this content, as many as the server's credit allows, at most `max`.
    fn flood(&mut self, symbol: &[u8], max: u64) -> u64 {
        // Initial credit of every receiver with this budget, as announced in the handshake.
        let mut credit = 500;
        let mut number = 0;
        while number < max && number < credit {
            self.send_packet(PacketKind::Source, |writer| {
                SourceHeader::new(number).encode(writer)?;
                writer.bytes(symbol)
            });
            number += 1;
            if number % 50 == 0 {
                self.advance(MS * 5);
                credit = credit.max(self.credit().unwrap_or(0));
            }
        }
        number
    }
}

/// An empty message takes three bytes on the wire and many more in memory.
#[test]
fn a_flood_of_empty_messages_is_limited_by_the_budget() {
    let budget = 4 << 20;
    let mut harness =
        Harness::established(TransportConfig { receive_budget: budget, ..transport() });
    let flooded = harness.flood(&[1, 0, 0].repeat(450), 10_000);
    let stats = harness.stats();
    assert_eq!(harness.closed, None);
    assert!(flooded < 10_000, "the credit is exhausted");
    // Symbols that came later wait. Empty messages take half of what is counted: the memory is within
    // the budget (`hostile_memory.rs`).
    assert!(stats.buffers.receive_bytes <= budget as u64 * 3 / 2, "{stats:?}");

    // No message is lost.
    let mut taken = 0;
    while harness.server.recv(harness.now, harness.handle.unwrap()).is_some() {
        taken += 1;
    }
    assert_eq!(taken, flooded * 450);
}

/// The client reports every millisecond that everything is missing and that no repair is in flight.
fn report_losses(harness: &mut Harness, time: Duration) {
    let end = harness.now + time;
    while harness.now < end {
        let sent = harness.stats().coding.source_packets_sent;
        let firsts = (0..sent / 200 + 1).map(|i| i * 200).filter(|&first| first < sent);
        let entries = firsts.map(|first| {
            let span = (sent - first).min(200);
            RankEntry { first, span, missing: span }
        });
        let entries: Vec<RankEntry> = entries.take(60).collect();
        harness.send_frame(&report(0, sent, entries));
        harness.advance(MS);
    }
}

#[test]
fn claimed_losses_do_not_exceed_the_send_rate() {
    let bits_per_second = 8_000_000;
    let congestion = CongestionAlgorithm::FixedRate { bits_per_second };
    let mut harness = Harness::established(TransportConfig { congestion, ..transport() });
    harness.send_from_server(500_000);
    let before = harness.stats().packets.bytes_sent;
    report_losses(&mut harness, MS * 2_000);
    let stats = harness.stats();
    assert!(stats.coding.top_up_packets_sent > 100, "the reports caused repairs: {stats:?}");
    let limit = bits_per_second / 8 * 2;
    let coded = stats.packets.bytes_sent - before;
    // The server's acknowledgements and reports are not paced; there is at most one for each
    // packet.
    assert!(coded <= limit + limit / 10 + 2_000 * 60, "{coded} bytes, {limit} allowed");
    assert!(stats.buffers.send_bytes <= 3 << 20, "{stats:?}");
}

#[test]
fn claimed_losses_without_acks_stop_at_the_congestion_window() {
    let congestion = CongestionAlgorithm::Ltcc;
    let mut harness = Harness::established(TransportConfig { congestion, ..transport() });
    harness.send_from_server(2_000_000);
    report_losses(&mut harness, MS * 50);
    let stats = harness.stats();
    assert!(
        stats.congestion.in_flight_bytes <= stats.congestion.cwnd_bytes + 2 * 1_472,
        "{stats:?}"
    );
    assert!(stats.packets.bytes_sent <= stats.congestion.cwnd_bytes + 20 * 1_472, "{stats:?}");
}

#[test]
fn source_symbols_stop_at_the_credit_and_huge_credit_takes_no_memory() {
    let budget = 2 << 20;
    let transport = TransportConfig { send_budget: budget, ..transport() };
    let mut harness = Harness::with_credit(transport.clone(), 5);
    harness.send_from_server(100_000);
    report_losses(&mut harness, MS * 100);
    assert_eq!(harness.stats().coding.source_packets_sent, 5);

    let mut harness = Harness::established(transport);
    harness.send_frame(&Frame::Credit((1 << 62) - 1));
    let message = Bytes::from(vec![7; 10_000]);
    let handle = harness.handle.unwrap();
    for _ in 0..1_000 {
        let _full = harness.server.send(harness.now, handle, message.clone());
        harness.settle();
    }
    assert_eq!(harness.closed, None);
    assert!(harness.stats().buffers.send_bytes <= budget as u64 + (1 << 16));
}

/// The peer reports all symbols as decoded but acknowledges no packet.
#[test]
fn messages_wait_while_the_record_of_sent_packets_takes_the_budget() {
    let budget = 256 << 10;
    let transport = TransportConfig { send_budget: budget, ..transport() };
    let mut harness = Harness::established(transport);
    harness.send_frame(&Frame::Credit(1 << 40));
    let handle = harness.handle.unwrap();
    let (mut taken, mut refused, mut last) = (0, 0, 0);
    for _ in 0..10_000 {
        match harness.server.send(harness.now, handle, Bytes::from_static(b"x")) {
            Ok(()) => taken += 1,
            Err(_) => refused += 1,
        }
        harness.advance(MS);
        last = harness.take_packets().iter().map(|&(pn, _)| pn).fold(last, u64::max);
        let sent = harness.stats().coding.source_packets_sent;
        harness.send_frame(&report(sent, sent, Vec::new()));
    }
    assert_eq!(harness.closed, None);
    assert!(
        taken > 1_000 && refused > 1_000,
        "{taken} taken, {refused} refused: {:?}",
        harness.stats()
    );
    let stats = harness.stats();
    assert!(stats.buffers.sent_record_bytes <= 2 * budget as u64 + 4_096, "{stats:?}");
    // Acknowledgements let it continue.
    harness.send_ack(harness.now, &[(last, last)]);
    harness.advance(MS * 400);
    assert!(harness.server.send(harness.now, handle, Bytes::from_static(b"x")).is_ok());
}

#[test]
fn a_sender_without_credit_sends_few_packets() {
    for (credit, bytes) in [(0, 10_000), (5, 10_000), (5, 100_000)] {
        let packets = packets_without_credit(credit, bytes);
        assert!(packets < 50, "{packets} packets in ten seconds without anything to send");
    }
}

fn packets_without_credit(credit: u64, bytes: usize) -> usize {
    let mut harness = Harness::with_credit(transport(), credit);
    harness.send_from_server(bytes);
    harness.advance(MS * 20);
    harness.send_frame(&report(credit, credit, Vec::new()));
    let mut packets = 0;
    for _ in 0..1_000 {
        let received = harness.take_packets();
        packets += received.len();
        for (pn, _) in received {
            harness.send_ack(harness.now, &[(pn, pn)]);
        }
        harness.advance(MS * 10);
    }
    assert_eq!(harness.closed, None);
    packets
}

fn message_symbol(text: &[u8]) -> Vec<u8> {
    [&[1, text.len() as u8, text.len() as u8], text].concat()
}

#[test]
fn forged_and_replayed_packets_are_counted_and_not_delivered() {
    let mut harness = Harness::established(transport());
    let symbol = message_symbol(b"first message");
    let payload = [&[0, 0, 0, 0], &symbol[..]].concat();
    let honest = harness.client.packet(PacketKind::Source, &payload).unwrap();
    for at in 5..honest.len() {
        let mut forged = honest.clone();
        forged[at] ^= 1 << (at % 8);
        harness.deliver(forged);
    }
    assert_eq!(harness.stats().packets.forged, honest.len() as u64 - 5);
    let handle = harness.handle.unwrap();
    assert_eq!(harness.server.recv(harness.now, handle), None);
    assert_eq!(harness.stats().messages.bytes_received, 0);
    for _ in 0..10 {
        harness.deliver(honest.clone());
    }
    let stats = harness.stats();
    assert_eq!((stats.packets.replayed, stats.messages.received), (9, 0));
    assert_eq!(
        harness.server.recv(harness.now, handle),
        Some(Bytes::from_static(b"first message"))
    );
    assert_eq!(harness.server.recv(harness.now, handle), None);
    assert_eq!(harness.stats().messages.received, 1);

    // A wrong connection ID belongs to no connection.
    let mut unknown_id = honest;
    unknown_id[1] ^= 1;
    let before = harness.server.endpoint_stats().datagrams_dropped;
    harness.deliver(unknown_id);
    assert_eq!(harness.server.endpoint_stats().datagrams_dropped, before + 1);
    assert_eq!(harness.closed, None);
}

#[test]
fn symbols_beyond_the_credit_close() {
    let mut harness = Harness::established(transport());
    harness.send_packet(PacketKind::Source, |writer| SourceHeader::new(100_000_000).encode(writer));
    assert!(harness.violation().contains("beyond the credit"), "{:?}", harness.closed);
    let mut harness = Harness::established(transport());
    let header = RepairHeader { batch: 0, column: 0, first: 100_000_000, count: 256 };
    harness.send_packet(PacketKind::Repair, |writer| header.encode(writer));
    assert!(harness.violation().contains("beyond the credit"), "{:?}", harness.closed);
}

/// Sends first flights from as many addresses. Returns the end time and the largest number of
/// connections. Checks the amplification limit for each address.
fn flood_of_first_flights(server: &mut Endpoint, flights: u32) -> (Timestamp, usize) {
    let mut now = Timestamp::from_millis(1_000);
    let mut most = 0;
    let mut got = std::collections::BTreeMap::<SocketAddr, usize>::new();
    let mut buffer = Vec::with_capacity(65_536);
    for number in 0..flights + 12_000 {
        if number < flights {
            let client = MisbehavingClient::new(number);
            let parameters = TransportParameters::default().encode(0);
            let mut flight = client.first_flight(&parameters, &[]);
            assert_eq!(flight.len(), 1_200);
            let remote = MisbehavingClient::address(number);
            let received = Received { remote, local_ip: None, ecn: 0, payload: &mut flight };
            server.handle(now, Input::Datagram(received));
        } else {
            // Ten seconds in which no client sends anything.
            now += MS;
        }
        server.handle(now, Input::Timeout);
        loop {
            match server.poll(now, &mut buffer) {
                Output::Transmit(t) => *got.entry(t.remote).or_default() += t.len,
                Output::Event(_, Event::Accepted) => panic!("no handshake was completed"),
                Output::Event(..) => {}
                Output::Timeout(_) => break,
            }
        }
        most = most.max(server.connection_count());
    }
    let largest = got.values().max().copied().unwrap_or_default() as f64 / 1_200.0;
    println!("at most {largest:.3} times the bytes of a flight");
    for (remote, bytes) in got {
        assert!(bytes <= 3 * 1_200, "{remote} got {bytes} bytes for 1200");
    }
    (now, most)
}

#[test]
fn a_flood_of_first_flights_gets_stateless_retries() {
    let mut server = server(transport(), 16, 1_000);
    let (_, most) = flood_of_first_flights(&mut server, 5_000);
    assert_eq!(most, 16, "half-open connections");
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.retries_sent), (16, 5_000 - 16));
    assert_eq!(server.connection_count(), 0, "half-open connections end");
}

/// Without Retry, handshakes are answered up to the limit, duplicate flights included, each with at
/// most three times the bytes received (RFC 9000 section 8.1). The others get no answer.
#[test]
fn first_flights_from_100000_addresses_get_at_most_three_times_their_bytes() {
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

/// A first flight that was corrupted in transit leaves no state.
#[test]
fn a_corrupted_first_flight_leaves_no_state() {
    let mut server = server(transport(), usize::MAX, 1_000);
    let client = MisbehavingClient::new(1);
    let parameters = TransportParameters { connection_id: client.cid(), ..Default::default() };
    let first = client.first_flight(&parameters.encode(0), &[]);
    // Padding follows the packet and is not authenticated.
    let sealed = first.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let mut buffer = Vec::with_capacity(65_536);
    for at in 0..sealed {
        let mut damaged = first.clone();
        damaged[at] ^= 1 << (at % 8);
        let remote = Harness::address();
        let received = Received { remote, local_ip: None, ecn: 0, payload: &mut damaged };
        server.handle(Timestamp::from_millis(1_000), Input::Datagram(received));
        while let Output::Transmit(transmit) =
            server.poll(Timestamp::from_millis(1_000), &mut buffer)
        {
            assert!(transmit.len < 100, "byte {at}: more than version negotiation");
        }
        assert_eq!(server.connection_count(), 0, "byte {at}");
    }
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.memory_promised), (0, 0));
    // The same flight without corruption.
    let mut whole = first;
    let remote = Harness::address();
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut whole };
    server.handle(Timestamp::from_millis(1_000), Input::Datagram(received));
    assert_eq!(server.connection_count(), 1);
}

#[test]
fn a_full_server_refuses_and_counts_connections() {
    let mut server = server(transport(), 1_000_000, 20);
    let (_, most) = flood_of_first_flights(&mut server, 1_000);
    assert_eq!(most, 20);
    let stats = server.endpoint_stats();
    assert_eq!((stats.handshakes_started, stats.connections_refused), (20, 980));
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn withheld_acknowledgements_do_not_keep_a_closed_connection() {
    let mut harness = Harness::established(transport());
    harness.send_from_server(1_000);
    let first = harness.client.largest_seen.unwrap();
    harness.advance(MS * 14_000);
    harness.send_ack(harness.now, &[(first, first)]);
    assert!(harness.stats().path.smoothed_rtt > MS * 1_000, "{:?}", harness.stats());
    harness.server.close(harness.now, harness.handle.unwrap(), 0, "");
    harness.settle();
    harness.advance(MS * 10_100);
    assert_eq!(harness.server.connection_count(), 0);
}

/// An attacker who knows the connection ID can address the connection, but gets no answer.
#[test]
fn unauthenticated_handshake_packets_get_no_answer() {
    let mut harness = Harness::established(transport());
    harness.advance(MS * 500);
    harness.received.clear();
    let mut first = harness.client.finished().unwrap();
    let last = first.len() - 1;
    first[last] ^= 1;
    for _ in 0..100 {
        harness.deliver(first.clone());
        // Version negotiation: eleven bytes.
        let to: [u8; 4] = first[6..10].try_into().unwrap();
        harness.deliver([&[0xc0, 0, 0, 0, 0, 4], &to[..], &[0]].concat());
    }
    assert_eq!(harness.received.len(), 0, "answers without authentication");
    // A valid packet is not answered either: the handshake is confirmed and its keys are discarded. The
    // server repeats HANDSHAKE_DONE until it is acknowledged.
    let finished = harness.client.finished().unwrap();
    harness.deliver(finished);
    assert_eq!(harness.received.len(), 0);
    harness.advance(MS * 1_000);
    assert!(!harness.received.is_empty());
}

#[test]
fn a_closed_connection_repeats_close_with_increasing_intervals() {
    let mut harness = Harness::established(transport());
    let ping = harness.client.packet(PacketKind::Control, &[1]).unwrap();
    harness.server.close(
        harness.now,
        harness.handle.unwrap(),
        0,
        "a long text that makes it large",
    );
    harness.settle();
    harness.received.clear();
    harness.deliver(ping.clone());
    assert_eq!(harness.received.len(), 1, "the peer may not know of the close");
    for _ in 0..1_000 {
        harness.deliver(ping.clone());
    }
    assert!(harness.received.len() <= 10, "{} answers", harness.received.len());
}

/// A process that is not scheduled for some milliseconds finds its timers expired before it could
/// send; it must still send the CLOSE frame.
#[test]
fn a_close_frame_is_sent_even_after_the_linger_time() {
    let mut harness = Harness::established(transport());
    harness.received.clear();
    harness.server.close(harness.now, harness.handle.unwrap(), 0, "bye");
    harness.now += MS * 60_000;
    harness.server.handle(harness.now, Input::Timeout);
    harness.settle();
    assert_eq!(harness.received.len(), 1, "the CLOSE frame");
    harness.advance(MS * 10_100);
    assert_eq!(harness.server.connection_count(), 0);
}
