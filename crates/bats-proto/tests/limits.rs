//! Every resource that a peer can consume has a limit: at the limit everything works, and beyond it
//! the peer gets no more and is counted. `docs/limits.md` lists all limits, and the tests of those
//! that do not need a peer.

mod harness;

use std::net::SocketAddr;
use std::sync::Arc;

use bats_proto::config::Security;
use bats_proto::fuzzing::{MisbehavingClient, open_short};
use bats_proto::wire::batch_rank::{BatchRank, Space};
use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::flow::{FlowKey, NodeId};
use bats_proto::wire::frame::{
    self, Frame, FrameCount, MAX_ACK_RANGES, MAX_CLOSE_TEXT, MAX_FRAMES, MAX_OTHER_FRAMES,
};
use bats_proto::wire::long_header;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::rank::{MAX_RANK_ENTRIES, RankFeedback};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::{Reader, Writer};
use bats_proto::{
    ClientConfig, CloseReason, ConnectError, Endpoint, EndpointConfig, EndpointStats, Event,
    Identity, Input, Mode, Output, PeerTrust, Received, ServerConfig, Timestamp, TransportConfig,
};
use harness::{Harness, MS, server, transport, written};

/// The time of tests in which the clock does not advance.
const NOW: Timestamp = Timestamp::from_millis(1_000);
/// Half-open handshakes of a network prefix: from the first limit on, its addresses must be
/// validated; beyond the second, all are refused.
const RETRY_PER_PREFIX: u32 = 32;
const MAX_PER_PREFIX: u32 = 2_048;
/// The number of a client of another network.
const ELSEWHERE: u32 = 1 << 20;

/// Address of a client; all but [`ELSEWHERE`] are in one /24.
fn address(number: u32) -> SocketAddr {
    let mut address =
        MisbehavingClient::address(if number == ELSEWHERE { 256 } else { number % 256 });
    address.set_port(address.port() + (number / 256 % 1_024) as u16);
    address
}

/// Sends a client's first flight and returns the answers.
fn start_handshake(server: &mut Endpoint, number: u32, token: &[u8]) -> Vec<Vec<u8>> {
    let client = MisbehavingClient::new(number);
    let parameters = TransportParameters { connection_id: client.cid(), ..Default::default() };
    deliver(server, number, client.first_flight(&parameters.encode(0), token));
    answers(server)
}

fn deliver(server: &mut Endpoint, number: u32, datagram: Vec<u8>) {
    deliver_at(server, NOW, number, datagram);
}

fn deliver_at(server: &mut Endpoint, now: Timestamp, number: u32, mut datagram: Vec<u8>) {
    let remote = address(number);
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut datagram };
    server.handle(now, Input::Datagram(received));
}

fn answers(server: &mut Endpoint) -> Vec<Vec<u8>> {
    let (mut buffer, mut answers) = (Vec::with_capacity(65_536), Vec::new());
    loop {
        match server.poll(NOW, &mut buffer) {
            Output::Transmit(transmit) => {
                answers.extend(buffer.chunks(transmit.segment_size).map(<[u8]>::to_vec));
            }
            Output::Event(..) => {}
            Output::Timeout(_) => return answers,
        }
    }
}

#[test]
fn half_open_handshakes_of_a_prefix_get_retry_then_nothing() {
    let mut server = server(transport(), usize::MAX, 10_000);
    for number in 0..RETRY_PER_PREFIX {
        assert!(!start_handshake(&mut server, number, &[]).is_empty());
    }
    let stats = |server: &Endpoint| server.endpoint_stats();
    let begun = stats(&server);
    assert_eq!((begun.handshakes_started, begun.retries_sent), (RETRY_PER_PREFIX.into(), 0));
    // A sender of spoofed addresses does not receive the tokens.
    for number in RETRY_PER_PREFIX..MAX_PER_PREFIX {
        let retry = start_handshake(&mut server, number, &[]);
        let token = long_header::decode(&retry[0]).expect("a retry").token.to_vec();
        assert!(!token.is_empty());
        assert!(
            !start_handshake(&mut server, number, &token).is_empty(),
            "a valid token is accepted"
        );
    }
    let full = stats(&server);
    assert_eq!(u64::from(MAX_PER_PREFIX), full.handshakes_started);
    assert_eq!(u64::from(MAX_PER_PREFIX - RETRY_PER_PREFIX), full.retries_sent);
    assert_eq!(full.half_open_refused, 0, "at the limit");
    const MORE: u32 = 136;
    for number in MAX_PER_PREFIX..MAX_PER_PREFIX + MORE {
        assert!(start_handshake(&mut server, number, &[]).is_empty(), "no answer");
    }
    let beyond = stats(&server);
    assert_eq!(beyond.half_open_refused, u64::from(MORE));
    let before = EndpointStats {
        half_open_refused: beyond.half_open_refused,
        datagrams_received: beyond.datagrams_received,
        ..full
    };
    assert_eq!(beyond, before, "no other counter changed");
    // Another network prefix is not affected.
    assert!(!start_handshake(&mut server, ELSEWHERE, &[]).is_empty());
    assert_eq!(server.endpoint_stats().handshakes_started, u64::from(MAX_PER_PREFIX) + 1);
}

#[test]
fn answers_to_unauthenticated_peers_are_limited() {
    const MAX_ANSWERS: u32 = 64;
    for (flights, dropped) in [(MAX_ANSWERS, 0), (MAX_ANSWERS + 1, 1)] {
        let mut server = server(transport(), 0, 10_000);
        for number in 0..flights {
            let client = MisbehavingClient::new(number);
            let flight = client.first_flight(&TransportParameters::default().encode(0), &[]);
            deliver(&mut server, number, flight);
        }
        assert_eq!(answers(&mut server).len(), MAX_ANSWERS as usize);
        assert_eq!(server.endpoint_stats().answers_dropped, dropped);
    }
}

/// Minimum memory of a connection: four windows of 512 symbols of 1,408 bytes.
const MIN_MEMORY: u64 = 4 * 512 * 1_408;

/// Memory charged to a connection at its start.
const BASE_MEMORY: u64 = 256 << 10;

fn server_with_memory(memory_budget: u64, receive_budget: usize) -> Endpoint {
    let identity = Identity { certificate_chain: Vec::new(), private_key: Vec::new() };
    let idle_timeout = MS * 50_000;
    let transport = Arc::new(TransportConfig { receive_budget, idle_timeout, ..transport() });
    let (retry_threshold, max_connections) = (usize::MAX, 1_000);
    let server =
        ServerConfig { identity, client_trust: None, transport, retry_threshold, max_connections };
    let security = Security::DangerousPlain;
    let config = EndpointConfig { security, server: Some(server), memory_budget, instance: 0 };
    Endpoint::new(config, [2; 32]).unwrap()
}

/// A client of a server that also serves others.
struct TestClient {
    client: MisbehavingClient,
    number: u32,
}

impl TestClient {
    /// Completes a handshake; `None` if the server does not answer.
    fn new(server: &mut Endpoint, number: u32) -> Option<Self> {
        let mut client = MisbehavingClient::new(number);
        let parameters = TransportParameters {
            connection_id: client.cid(),
            idle_timeout: MS * 50_000,
            ..Default::default()
        };
        deliver(server, number, client.first_flight(&parameters.encode(0), &[]));
        for answer in answers(server) {
            client.learn(&answer);
        }
        let finished = client.finished()?;
        deliver(server, number, finished);
        answers(server);
        Some(Self { client, number })
    }

    fn send_packet(
        &mut self,
        server: &mut Endpoint,
        kind: PacketKind,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) {
        let datagram = written(&mut self.client, kind, write);
        deliver(server, self.number, datagram);
        answers(server);
    }
}

#[test]
fn promised_memory_stays_within_the_endpoint_budget() {
    const BUDGET: u64 = 12 * MIN_MEMORY;
    let mut server = server_with_memory(BUDGET, 16 << 20);
    let mut clients = Vec::new();
    let mut number = 0;
    while let Some(test_client) = TestClient::new(&mut server, number) {
        clients.push(test_client);
        number += 1;
        let stats = server.endpoint_stats();
        assert!(stats.memory_promised <= BUDGET, "{stats:?}");
        assert_eq!(stats.memory_refusals, 0);
    }
    // As long as one more connection could have the minimum.
    let accepted = (BUDGET - MIN_MEMORY) / BASE_MEMORY + 1;
    let stats = server.endpoint_stats();
    assert_eq!((number as u64, stats.memory_promised), (accepted, accepted * BASE_MEMORY));
    assert_eq!((stats.memory_refusals, stats.budgets_reduced), (1, accepted));

    // Twice as many as have room send as much as they may, and the application receives nothing.
    let mut server = server_with_memory(BUDGET, 16 << 20);
    let mut clients: Vec<_> =
        (0..24).map(|number| TestClient::new(&mut server, number).unwrap()).collect();
    let symbols = MIN_MEMORY / 2 / 1_408;
    for test_client in &mut clients {
        // Without the first symbol the others cannot be delivered.
        for number in (1..symbols).rev() {
            test_client.send_packet(&mut server, PacketKind::Source, |writer| {
                SourceHeader::new(number).encode(writer)?;
                writer.bytes(&[0; 1_408])
            });
        }
        let promised = server.endpoint_stats().memory_promised;
        assert!(promised <= BUDGET, "{promised} of {BUDGET}");
    }
    let handles: Vec<_> = (0..24).map(bats_proto::ConnectionHandle).collect();
    let held = |server: &Endpoint| -> u64 {
        handles.iter().filter_map(|&h| server.stats(NOW, h)).map(|s| s.buffers.receive_bytes).sum()
    };
    assert!(held(&server) > BUDGET / 4, "the memory is usable: {} bytes", held(&server));
    assert!(held(&server) <= BUDGET, "{} bytes", held(&server));
    let stats = server.endpoint_stats();
    assert!(stats.memory_shortages >= 8, "{stats:?}");
    assert_eq!((stats.peers_misbehaved, server.connection_count()), (0, 24));

    // The memory of closed connections is available again.
    advance_a_minute(&mut server);
    assert_eq!(server.endpoint_stats().memory_promised, 0);
    assert!(TestClient::new(&mut server, 500).is_some());
}

/// The first clients take all memory and do not go on. What others send is treated as lost; after
/// 30 s they are closed, or they get memory when the first clients end.
#[test]
fn packets_without_memory_are_refused_until_there_is_some() {
    for others_end in [false, true] {
        let mut server = server_with_memory(4 * MIN_MEMORY, 16 << 20);
        let mut clients: Vec<_> =
            (0..12).map(|number| TestClient::new(&mut server, number).unwrap()).collect();
        let fill = |server: &mut Endpoint, client: &mut TestClient, at: Timestamp| {
            for number in 1..MIN_MEMORY / 2 / 1_408 {
                let datagram = written(&mut client.client, PacketKind::Source, |writer| {
                    SourceHeader::new(number).encode(writer)?;
                    writer.bytes(&[0; 1_408])
                });
                deliver_at(server, at, client.number, datagram);
            }
        };
        for client in &mut clients {
            fill(&mut server, client, NOW);
        }
        let last = bats_proto::ConnectionHandle(11);
        let refused = |server: &Endpoint| server.stats(NOW, last).unwrap().packets.refused;
        let before = refused(&server);
        assert!(before > 100, "{before}");
        if others_end {
            (0..8).for_each(|n| server.close(NOW, bats_proto::ConnectionHandle(n), 0, ""));
        }
        let mut closed = Vec::new();
        for second in 1..40 {
            let now = NOW + MS * 1_000 * second;
            server.handle(now, Input::Timeout);
            closed.extend(closed_at(&mut server, now).into_iter().map(|reason| (second, reason)));
            fill(&mut server, &mut clients[11], now);
            closed.extend(closed_at(&mut server, now).into_iter().map(|reason| (second, reason)));
        }
        let of_memory =
            |(_, reason): &&(u32, (_, CloseReason))| matches!(reason, (_, CloseReason::Memory(_)));
        let of_memory: Vec<_> = closed.iter().filter(of_memory).collect();
        if others_end {
            assert!(of_memory.is_empty(), "{of_memory:?}");
            assert!(server.stats(NOW, last).unwrap().buffers.receive_bytes > MIN_MEMORY / 4);
        } else {
            assert_eq!(of_memory.len(), 1, "{closed:?}");
            assert_eq!((of_memory[0].0, of_memory[0].1.0), (30, last));
        }
    }
}

fn closed_at(
    server: &mut Endpoint,
    now: Timestamp,
) -> Vec<(bats_proto::ConnectionHandle, CloseReason)> {
    let mut buffer = Vec::with_capacity(65_536);
    let mut closed = Vec::new();
    loop {
        match server.poll(now, &mut buffer) {
            Output::Event(handle, Event::Closed(reason)) => closed.push((handle, reason)),
            Output::Timeout(_) => return closed,
            _ => {}
        }
    }
}

fn advance_a_minute(endpoint: &mut Endpoint) {
    let mut buffer = Vec::with_capacity(65_536);
    for second in 1..60 {
        let now = NOW + MS * 1_000 * second;
        endpoint.handle(now, Input::Timeout);
        while !matches!(endpoint.poll(now, &mut buffer), Output::Timeout(_)) {}
    }
}

/// Each connection gets memory for a message of half its limit as long as the minimum remains for
/// all others.
#[test]
fn connections_share_the_remaining_endpoint_budget() {
    const MESSAGE: u64 = 8 << 20;
    const BUDGET: u64 = 400 << 20;
    let mut server = server_with_memory(BUDGET, 192 << 20);
    let promised = |server: &Endpoint| server.endpoint_stats().memory_promised;
    let mut clients: Vec<_> =
        (0..30).map(|number| TestClient::new(&mut server, number).unwrap()).collect();
    assert_eq!(promised(&server), 30 * BASE_MEMORY);
    let mut last = u64::MAX;
    for client in &mut clients {
        let before = promised(&server);
        client.send_packet(&mut server, PacketKind::Source, |writer| {
            SourceHeader::new(0).encode(writer)?;
            [1, MESSAGE, 100].into_iter().try_for_each(|value| writer.varint(value))?;
            writer.bytes(&[0; 100])
        });
        let charged = promised(&server) - before + BASE_MEMORY;
        assert!((MIN_MEMORY..=2 * MESSAGE).contains(&charged) && charged <= last, "{charged}");
        assert!(promised(&server) <= BUDGET);
        last = charged;
    }
    assert!(promised(&server) > BUDGET / 3);
    assert_eq!(server.endpoint_stats().peers_misbehaved, 0);
    // An idle connection that ends gives its memory back.
    advance_a_minute(&mut server);
    assert_eq!(promised(&server), 0);
}

#[test]
fn client_connections_are_limited_by_the_budget() {
    let security = Security::DangerousPlain;
    let memory_budget = 3 * MIN_MEMORY;
    let config = EndpointConfig { security, memory_budget, ..EndpointConfig::default() };
    let mut client = Endpoint::new(config, [1; 32]).unwrap();
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport()),
    };
    let address = MisbehavingClient::address(7);
    let mut connect = || client.connect(NOW, address, "server", config.clone());
    let allowed = (memory_budget - MIN_MEMORY) / BASE_MEMORY + 1;
    let handles: Vec<_> = (0..allowed).map(|_| connect().unwrap()).collect();
    assert_eq!(connect(), Err(ConnectError::Memory));
    assert_eq!(client.endpoint_stats().memory_promised, allowed * BASE_MEMORY);
    client.close(NOW, handles[0], 0, "");
    advance_a_minute(&mut client);
    assert_eq!(client.connect(NOW, address, "server", config).err(), None);
}

fn ack_of(ranges: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16_384];
    let mut writer = Writer::new(&mut bytes);
    let mut write = |value| writer.varint(value).unwrap();
    // Type, largest, delay, time, ECN count, number of further ranges, and ranges of one packet
    // each.
    for value in [2, 4 * ranges, 0, 0, 0, ranges - 1, 0] {
        write(value);
    }
    for _ in 1..ranges {
        write(0);
        write(0);
    }
    let len = writer.written();
    bytes.truncate(len);
    bytes
}

#[test]
fn ack_ranges_are_limited() {
    let mut ranges = Vec::new();
    let bytes = ack_of(MAX_ACK_RANGES);
    assert!(frame::decode(&mut Reader::new(&bytes), &mut ranges).is_ok());
    assert_eq!(ranges.len() as u64, MAX_ACK_RANGES);
    let bytes = ack_of(MAX_ACK_RANGES + 1);
    assert!(frame::decode(&mut Reader::new(&bytes), &mut ranges).is_err());
    assert!(ranges.len() as u64 <= MAX_ACK_RANGES);
}

#[test]
fn rank_feedback_entries_are_limited() {
    for (count, is_taken) in [(MAX_RANK_ENTRIES, true), (MAX_RANK_ENTRIES + 1, false)] {
        let mut bytes = vec![0; 4_096];
        let mut writer = Writer::new(&mut bytes);
        for value in [3, 0, count as u64, 0, 1, 0, count as u64] {
            writer.varint(value).unwrap();
        }
        (0..count).for_each(|_| [0, 1, 1].into_iter().for_each(|v| writer.varint(v).unwrap()));
        let len = writer.written();
        let decoded = frame::decode(&mut Reader::new(&bytes[..len]), &mut Vec::new());
        let taken = |frame: &Frame<'_>| matches!(frame, Frame::Rank(RankFeedback { entries, .. }) if entries.len() == count);
        assert_eq!(decoded.ok().flatten().is_some_and(|frame| taken(&frame)), is_taken, "{count}");
    }
}

#[test]
fn close_text_length_is_limited() {
    for (len, is_taken) in [(MAX_CLOSE_TEXT, true), (MAX_CLOSE_TEXT + 1, false)] {
        let mut bytes = vec![b'x'; 1_000];
        let mut writer = Writer::new(&mut bytes);
        [7, 0, 5, len as u64].into_iter().for_each(|value| writer.varint(value).unwrap());
        let head = writer.written();
        let decoded = frame::decode(&mut Reader::new(&bytes[..head + len]), &mut Vec::new());
        assert_eq!(matches!(decoded, Ok(Some(Frame::Close { .. }))), is_taken, "{len} bytes");
    }
}

#[test]
fn the_first_malformed_frame_closes_the_connection() {
    for (kind, payload) in [
        (PacketKind::Control, &[0x7f][..]),
        (PacketKind::Control, &ack_of(MAX_ACK_RANGES)[..40]),
        (PacketKind::Source, &[0, 0]),
        (PacketKind::Repair, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    ] {
        let mut harness = Harness::established(transport());
        assert_eq!(harness.stats().packets.malformed, 0);
        harness.send_packet(kind, |writer| writer.bytes(payload));
        assert!(!harness.violation().is_empty());
        assert_eq!(harness.stats().packets.malformed, 1, "{payload:?}");
        assert_eq!(harness.server.endpoint_stats().peers_misbehaved, 1);
    }
}

#[test]
fn a_symbol_beyond_the_credit_closes() {
    let budget = 16 << 20;
    let transport = TransportConfig { receive_budget: budget, ..transport() };
    let credit = budget as u64 / 2 / 1_408;
    for (number, is_taken) in [(credit - 1, true), (credit, false)] {
        let mut harness = Harness::established(transport.clone());
        harness.send_packet(PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&[0; 100])
        });
        let stats = harness.stats();
        assert_eq!(
            (harness.closed.is_none(), stats.coding.coded_packets_received == 1),
            (is_taken, is_taken)
        );
        assert!(
            is_taken || harness.violation().contains("beyond the credit"),
            "{:?}",
            harness.closed
        );
    }
}

/// Repairs of symbols that never arrive are stored as equations. The minimum budget allows 512,
/// half of them only for windows that cover the first missing symbol.
#[test]
fn equations_above_the_limit_are_refused_and_counted() {
    const EQUATIONS: u64 = 256;
    const RANGE: u16 = 4;
    let mut harness = Harness::established(TransportConfig { receive_budget: 0, ..transport() });
    for number in 0..EQUATIONS + 60 {
        // Three of the four packets that a range needs.
        let (range, column) = (number / 3, number % 3);
        let first = range as u32 * u32::from(RANGE);
        let header =
            RepairHeader { batch: range as u32, column: column as u8, first, count: RANGE };
        harness.send_packet(PacketKind::Repair, |writer| {
            header.encode(writer)?;
            writer.bytes(&[number as u8 | 1; 1_408])
        });
        let beyond = (number + 1).saturating_sub(EQUATIONS);
        assert_eq!(harness.stats().packets.refused, beyond, "{number}");
    }
    let stats = harness.stats();
    assert_eq!(harness.closed, None);
    assert!(stats.buffers.receive_bytes <= MIN_MEMORY, "{stats:?}");
}

#[test]
fn only_the_newest_path_challenge_is_answered() {
    let most = MAX_OTHER_FRAMES as u64;
    for (challenges, dropped) in [(1_u64, 0), (most, most - 1)] {
        let mut harness = Harness::established(transport());
        harness.advance(MS * 50);
        harness.received.clear();
        harness.send_packet(PacketKind::Control, |writer| {
            (0..challenges).try_for_each(|n| frame::encode(writer, &Frame::PathChallenge(n)))
        });
        let mut answered = Vec::new();
        for packet in harness.received.drain(..) {
            let Some((header, payload)) = open_short(false, 0, &packet) else { continue };
            let mut reader = Reader::new(&payload);
            while header.kind == PacketKind::Control
                && let Ok(Some(frame)) = frame::decode(&mut reader, &mut Vec::new())
            {
                if let Frame::PathResponse(response) = frame {
                    answered.push(response);
                }
            }
        }
        assert_eq!(answered, [challenges - 1]);
        assert_eq!(harness.stats().path.challenges_dropped, dropped);
    }
}

/// In a mode without full delivery, symbols too far ahead are refused. An accepted jump discards
/// symbols that are too far behind, so that memory stays bounded.
#[test]
fn symbol_number_jumps_in_timely_flows_are_limited() {
    const MAX_JUMP: u64 = 1 << 20;
    let transport = TransportConfig { mode: Mode::Btp, ..transport() };
    let mut harness = Harness::established(transport);
    let mut send_packet = |number: u64, refused: u64| {
        harness.send_packet(PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&[0; 1_000])
        });
        let stats = harness.stats();
        assert_eq!((stats.packets.refused, harness.closed.clone()), (refused, None), "{number}");
        assert!(stats.buffers.receive_bytes < 4 << 20, "{stats:?}");
    };
    send_packet(MAX_JUMP - 1, 0);
    send_packet(2 * MAX_JUMP - 1, 0);
    send_packet(3 * MAX_JUMP, 1);
    send_packet(MAX_JUMP, 2);
}

/// Packets that arrive before the handshake completes are buffered in a few places; the connection
/// counts the others.
#[test]
fn packets_buffered_before_handshake_completion_are_limited() {
    const PLACES: u64 = 48;
    for (packets, dropped) in [(PLACES, 0), (PLACES + 5, 5)] {
        let mut server = server(transport(), 1_000, 10);
        let mut client = MisbehavingClient::new(1);
        let parameters = TransportParameters { connection_id: client.cid(), ..Default::default() };
        deliver(&mut server, 1, client.first_flight(&parameters.encode(0), &[]));
        answers(&mut server).iter().for_each(|datagram| client.learn(datagram));
        for _ in 0..packets {
            let ping = client.packet(PacketKind::Control, &[1]).expect("the server has answered");
            deliver(&mut server, 1, ping);
        }
        let finished = client.finished().expect("the server has answered");
        deliver(&mut server, 1, finished);
        let mut buffer = Vec::with_capacity(65_536);
        let accepted = loop {
            match server.poll(NOW, &mut buffer) {
                Output::Event(handle, Event::Accepted) => break handle,
                Output::Timeout(_) => panic!("the handshake is complete"),
                _ => {}
            }
        };
        let stats = server.stats(NOW, accepted).expect("the connection exists");
        assert_eq!((stats.packets.early_dropped, stats.packets.received), (dropped, PLACES));
    }
}

#[test]
fn partial_fragmented_packets_are_limited() {
    const PLACES: u64 = 32;
    let mut harness = Harness::established(transport());
    for id in 0..PLACES + 3 {
        harness.send_frame(&Frame::Fragment {
            id,
            index: 0,
            kind: PacketKind::Source,
            relayed: false,
            last: false,
            data: &[0; 100],
        });
        let dropped = (id + 1).saturating_sub(PLACES);
        assert_eq!(
            (harness.stats().packets.fragments_dropped, harness.closed.clone()),
            (dropped, None)
        );
    }
}

/// Every other packet number arrives, so each packet is a range.
#[test]
fn acks_that_omit_ranges_are_counted() {
    let mut harness = Harness::established(transport());
    let send_packet = |harness: &mut Harness, packets: u64| {
        for _ in 0..packets {
            harness.client.skip(1);
            let ping = harness.client.packet(PacketKind::Control, &[1]).expect("established");
            harness.deliver(ping);
        }
        harness.advance(MS * 50);
    };
    send_packet(&mut harness, 100);
    send_packet(&mut harness, 150);
    assert_eq!(harness.stats().packets.acks_shortened, 0);
    send_packet(&mut harness, 400);
    assert_eq!(harness.stats().packets.acks_shortened, 1);
    assert_eq!(harness.closed, None);
}

#[test]
fn frames_of_a_packet_are_limited() {
    let credits = |count: usize| [4, 1].repeat(count);
    let closes = |payload: &[u8]| {
        let mut harness = Harness::established(transport());
        harness.send_packet(PacketKind::Control, |writer| writer.bytes(payload));
        harness.closed.is_some().then(|| harness.violation().to_owned())
    };
    assert_eq!(closes(&credits(MAX_OTHER_FRAMES)), None, "at the limit");
    let beyond = closes(&credits(MAX_OTHER_FRAMES + 1)).expect("closed");
    assert!(beyond.contains("at most 16"), "{beyond}");
    assert_eq!(closes(&[0, 4, 1].repeat(MAX_OTHER_FRAMES)), None, "PADDING does not count");

    // Reports about relayed flows are more, because a packet may be full of them.
    let key = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };
    let (space, ranks) = (Space::Source, vec![1]);
    let report = Frame::BatchRank(BatchRank { key, space, mark: 0, room: 0, first: 0, ranks });
    let mut count = FrameCount::default();
    let reports = MAX_FRAMES - MAX_OTHER_FRAMES;
    assert!((0..reports).all(|_| count.add(&report).is_ok()));
    assert!((0..MAX_OTHER_FRAMES).all(|_| count.add(&Frame::Credit(1)).is_ok()));
    assert_eq!(count.add(&report).map_err(|error| error.0), Err("at most 64"));
    let mut count = FrameCount::default();
    assert!((0..MAX_FRAMES).all(|_| count.add(&report).is_ok()));
    assert!(count.add(&report).is_err());
}

#[test]
fn a_packet_has_one_acknowledgement_and_one_report() {
    for frames in [
        &[2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0][..],
        &[3, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0],
    ] {
        for (count, is_closed) in [(1, false), (2, true)] {
            let mut harness = Harness::established(transport());
            let payload = &frames[..7 * count];
            harness.send_packet(PacketKind::Control, |writer| writer.bytes(payload));
            assert_eq!(harness.closed.is_some(), is_closed, "{frames:?}, {count} of them");
        }
    }
}

/// They are one frame: the rest of the packet is read, and one acknowledgement follows.
#[test]
fn a_packet_full_of_pings_gets_one_acknowledgement() {
    let mut harness = Harness::established(transport());
    harness.advance(MS * 1_000);
    harness.received.clear();
    let mut payload = vec![1; 1_400];
    payload.extend([4, 1]);
    harness.send_packet(PacketKind::Control, |writer| writer.bytes(&payload));
    harness.advance(MS * 200);
    assert_eq!(harness.closed, None);
    let mut acknowledgements = 0;
    for packet in harness.received.drain(..) {
        let Some((header, payload)) = open_short(false, 0, &packet) else { continue };
        let mut reader = Reader::new(&payload);
        while header.kind == PacketKind::Control
            && let Ok(Some(frame)) = frame::decode(&mut reader, &mut Vec::new())
        {
            acknowledgements += usize::from(matches!(frame, Frame::Ack(_)));
        }
    }
    assert_eq!(acknowledgements, 1);
}

/// Two is what a sender needs: the end of one message and the beginning of another.
#[test]
fn parts_of_incomplete_messages_in_a_symbol_are_limited() {
    for mode in [Mode::Btp, Mode::Transparent] {
        for (parts, is_closed) in [(2, false), (3, true)] {
            let transport = TransportConfig { mode, ..transport() };
            let mut harness = Harness::established(transport);
            // DATAGRAM: number, length of the message, offset, length of the part; and whole ones.
            let mut symbol: Vec<u8> = (0..parts).flat_map(|id| [4, id, 9, 4, 1, 7]).collect();
            (50..60).for_each(|id| symbol.extend([4, id, 1, 0, 1, 7]));
            harness.send_packet(PacketKind::Source, |writer| {
                SourceHeader::new(0).encode(writer)?;
                writer.bytes(&symbol)
            });
            assert_eq!(harness.closed.is_some(), is_closed, "{mode:?}, {parts} parts");
        }
    }
}
