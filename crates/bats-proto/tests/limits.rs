//! Everything that a peer can make grow has a limit: at the limit all is well, beyond it the peer
//! gets no more, and it is counted. `docs/limits.md` lists them all, and where those are tested
//! that no peer is needed for.

mod stage;

use std::sync::Arc;

use bats_proto::config::Security;
use bats_proto::fuzzing::{LyingClient, open_short};
use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::frame::{self, Frame, MAX_ACK_RANGES, MAX_CLOSE_TEXT};
use bats_proto::wire::long_header;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::rank::{MAX_RANK_ENTRIES, RankFeedback};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::{Reader, Writer};
use bats_proto::{
    ClientConfig, ConnectError, Endpoint, EndpointConfig, EndpointStats, Event, Identity, Input,
    Mode, Output, PeerTrust, Received, ServerConfig, Timestamp, TransportConfig,
};
use stage::{MS, Stage, server, transport, written};

/// The time of tests in which none passes.
const NOW: Timestamp = Timestamp::from_millis(1_000);
/// Half-open handshakes of a network: from the first on it must prove its addresses, from the second
/// on nothing helps.
const RETRY_PER_PREFIX: u32 = 32;
const MAX_PER_PREFIX: u32 = 64;

/// A client's first flight, and the answers to it.
fn knock(server: &mut Endpoint, number: u32, token: &[u8]) -> Vec<Vec<u8>> {
    let liar = LyingClient::new(number);
    let parameters = TransportParameters { connection_id: liar.cid(), ..Default::default() };
    hear(server, number, liar.first_flight(&parameters.encode(0), token));
    answers(server)
}

fn hear(server: &mut Endpoint, number: u32, mut datagram: Vec<u8>) {
    let remote = LyingClient::address(number);
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut datagram };
    server.handle(NOW, Input::Datagram(received));
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
fn a_network_gets_so_many_half_open_handshakes_then_a_retry_then_nothing() {
    let mut server = server(transport(), usize::MAX, 10_000);
    for number in 0..RETRY_PER_PREFIX {
        assert!(!knock(&mut server, number, &[]).is_empty());
    }
    let stats = |server: &Endpoint| server.endpoint_stats();
    let begun = stats(&server);
    assert_eq!((begun.handshakes_started, begun.retries_sent), (RETRY_PER_PREFIX.into(), 0));
    // Those who made up their addresses do not hear the tokens.
    for number in RETRY_PER_PREFIX..MAX_PER_PREFIX {
        let retry = knock(&mut server, number, &[]);
        let token = long_header::decode(&retry[0]).expect("a retry").token.to_vec();
        assert!(!token.is_empty());
        assert!(!knock(&mut server, number, &token).is_empty(), "a proof is believed");
    }
    let full = stats(&server);
    assert_eq!(u64::from(MAX_PER_PREFIX), full.handshakes_started);
    assert_eq!(u64::from(MAX_PER_PREFIX - RETRY_PER_PREFIX), full.retries_sent);
    assert_eq!(full.half_open_refused, 0, "at the limit");
    for number in MAX_PER_PREFIX..200 {
        assert!(knock(&mut server, number, &[]).is_empty(), "not a word");
    }
    let beyond = stats(&server);
    assert_eq!(beyond.half_open_refused, u64::from(200 - MAX_PER_PREFIX));
    let before = EndpointStats {
        half_open_refused: beyond.half_open_refused,
        datagrams_received: beyond.datagrams_received,
        ..full
    };
    assert_eq!(beyond, before, "nothing else happened");
    // The network next door does not feel it.
    assert!(!knock(&mut server, 256, &[]).is_empty());
    assert_eq!(server.endpoint_stats().handshakes_started, u64::from(MAX_PER_PREFIX) + 1);
}

#[test]
fn answers_to_strangers_wait_in_a_short_queue() {
    const MAX_ANSWERS: u32 = 64;
    for (flights, dropped) in [(MAX_ANSWERS, 0), (MAX_ANSWERS + 1, 1)] {
        let mut server = server(transport(), 0, 10_000);
        for number in 0..flights {
            let liar = LyingClient::new(number);
            let flight = liar.first_flight(&TransportParameters::default().encode(0), &[]);
            hear(&mut server, number, flight);
        }
        assert_eq!(answers(&mut server).len(), MAX_ANSWERS as usize);
        assert_eq!(server.endpoint_stats().answers_dropped, dropped);
    }
}

/// What a connection cannot do without: four windows of 512 symbols of 1,408 bytes.
const LEAST: u64 = 4 * 512 * 1_408;

fn frugal(memory_budget: u64, receive_budget: usize) -> Endpoint {
    let identity = Identity { certificate_chain: Vec::new(), private_key: Vec::new() };
    let transport = Arc::new(TransportConfig { receive_budget, ..transport() });
    let (retry_threshold, max_connections) = (usize::MAX, 1_000);
    let server = ServerConfig { identity, transport, retry_threshold, max_connections };
    let security = Security::DangerousPlain;
    let config = EndpointConfig { security, server: Some(server), memory_budget };
    Endpoint::new(config, [2; 32]).unwrap()
}

/// A client of a server that others talk to as well: its handle there.
struct Guest {
    liar: LyingClient,
    number: u32,
}

impl Guest {
    /// Shakes hands; `None` if the server says nothing.
    fn new(server: &mut Endpoint, number: u32) -> Option<Self> {
        let mut liar = LyingClient::new(number);
        let parameters = TransportParameters { connection_id: liar.cid(), ..Default::default() };
        hear(server, number, liar.first_flight(&parameters.encode(0), &[]));
        for answer in answers(server) {
            liar.learn(&answer);
        }
        let finished = liar.finished()?;
        hear(server, number, finished);
        answers(server);
        Some(Self { liar, number })
    }

    fn say(
        &mut self,
        server: &mut Endpoint,
        kind: PacketKind,
        write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
    ) {
        let datagram = written(&mut self.liar, kind, write);
        hear(server, self.number, datagram);
        answers(server);
    }
}

#[test]
fn all_connections_together_promise_no_more_than_the_endpoints_memory() {
    const BUDGET: u64 = 12 * LEAST;
    let mut server = frugal(BUDGET, 16 << 20);
    let mut guests = Vec::new();
    let mut number = 0;
    while let Some(guest) = Guest::new(&mut server, number) {
        guests.push(guest);
        number += 1;
        let stats = server.endpoint_stats();
        assert!(stats.memory_promised <= BUDGET, "{stats:?}");
        assert_eq!(stats.memory_refusals, 0);
    }
    let stats = server.endpoint_stats();
    assert_eq!((guests.len(), stats.memory_promised), (12, BUDGET), "all of it, in least parts");
    assert_eq!((stats.memory_refusals, stats.budgets_reduced), (1, 12));

    // Everyone sends whatever it may and more, and the application takes nothing.
    let symbols = BUDGET / 12 / 2 / 1_408;
    for guest in &mut guests {
        // Without the first one nothing can be done with the others.
        for number in (1..symbols).rev() {
            guest.say(&mut server, PacketKind::Source, |writer| {
                SourceHeader::new(number).encode(writer)?;
                writer.bytes(&[0; 1_408])
            });
        }
    }
    let handles: Vec<_> = (0..12).map(bats_proto::ConnectionHandle).collect();
    let held = |server: &Endpoint| -> u64 {
        handles.iter().filter_map(|&h| server.stats(NOW, h)).map(|s| s.receive_buffer_bytes).sum()
    };
    assert!(held(&server) > BUDGET / 4, "the promises were kept: {} bytes", held(&server));
    assert!(held(&server) <= BUDGET, "{} bytes", held(&server));
    for guest in &mut guests {
        guest.say(&mut server, PacketKind::Source, |writer| {
            SourceHeader::new(4 * symbols).encode(writer)
        });
    }
    assert_eq!(server.endpoint_stats().peers_misbehaved, 12, "beyond the promise");

    // What they had is free again for others.
    pass_a_minute(&mut server);
    assert_eq!(server.endpoint_stats().memory_promised, 0);
    assert!(Guest::new(&mut server, 500).is_some());
}

fn pass_a_minute(endpoint: &mut Endpoint) {
    let mut buffer = Vec::with_capacity(65_536);
    for second in 1..60 {
        let now = NOW + MS * 1_000 * second;
        endpoint.handle(now, Input::Timeout);
        while !matches!(endpoint.poll(now, &mut buffer), Output::Timeout(_)) {}
    }
}

#[test]
fn busy_connections_share_what_is_not_set_aside() {
    let mut server = frugal(1 << 30, 192 << 20);
    let mut last = 1 << 30;
    for number in 0..20 {
        let before = server.endpoint_stats().memory_promised;
        assert!(Guest::new(&mut server, number).is_some());
        let granted = server.endpoint_stats().memory_promised - before;
        assert!((LEAST..=64 << 20).contains(&granted) && granted <= last, "{granted}");
        last = granted;
    }
    assert!(last > 8 << 20, "{last}");
}

#[test]
fn a_client_has_a_budget_too() {
    let security = Security::DangerousPlain;
    let memory_budget = 3 * LEAST;
    let config = EndpointConfig { security, memory_budget, ..EndpointConfig::default() };
    let mut client = Endpoint::new(config, [1; 32]).unwrap();
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport()),
    };
    let address = LyingClient::address(7);
    let mut connect = || client.connect(NOW, address, "server", config.clone());
    let handles: Vec<_> = (0..3).map(|_| connect().unwrap()).collect();
    assert_eq!(connect(), Err(ConnectError::Memory));
    assert_eq!(client.endpoint_stats().memory_promised, memory_budget);
    client.close(NOW, handles[0], 0, "");
    pass_a_minute(&mut client);
    assert_eq!(client.connect(NOW, address, "server", config).err(), None);
}

fn ack_of(ranges: u64) -> Vec<u8> {
    let mut bytes = vec![0; 16_384];
    let mut writer = Writer::new(&mut bytes);
    let mut write = |value| writer.varint(value).unwrap();
    // Type, largest, delay, time, marks, further ranges, and each range of one packet.
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
fn an_acknowledgement_may_have_so_many_ranges() {
    let mut ranges = Vec::new();
    let bytes = ack_of(MAX_ACK_RANGES);
    assert!(frame::decode(&mut Reader::new(&bytes), &mut ranges).is_ok());
    assert_eq!(ranges.len() as u64, MAX_ACK_RANGES);
    let bytes = ack_of(MAX_ACK_RANGES + 1);
    assert!(frame::decode(&mut Reader::new(&bytes), &mut ranges).is_err());
    assert!(ranges.len() as u64 <= MAX_ACK_RANGES);
}

#[test]
fn a_report_may_have_so_many_entries() {
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
fn a_farewell_may_be_so_long() {
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
fn the_first_malformed_frame_closes_with_blame() {
    for (kind, payload) in [
        (PacketKind::Control, &[0x7f][..]),
        (PacketKind::Control, &ack_of(MAX_ACK_RANGES)[..40]),
        (PacketKind::Source, &[0, 0]),
        (PacketKind::Repair, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
    ] {
        let mut stage = Stage::established(transport());
        assert_eq!(stage.stats().packets_malformed, 0);
        stage.say(kind, |writer| writer.bytes(payload));
        assert!(!stage.misbehaved().is_empty());
        assert_eq!(stage.stats().packets_malformed, 1, "{payload:?}");
        assert_eq!(stage.server.endpoint_stats().peers_misbehaved, 1);
    }
}

#[test]
fn symbols_up_to_the_credit_are_taken_and_the_next_one_closes() {
    let budget = 16 << 20;
    let transport = TransportConfig { receive_budget: budget, ..transport() };
    let credit = budget as u64 / 2 / 1_408;
    for (number, is_taken) in [(credit - 1, true), (credit, false)] {
        let mut stage = Stage::established(transport.clone());
        stage.say(PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&[0; 100])
        });
        let stats = stage.stats();
        assert_eq!(
            (stage.closed.is_none(), stats.coded_packets_received == 1),
            (is_taken, is_taken)
        );
        assert!(is_taken || stage.misbehaved().contains("beyond the credit"), "{:?}", stage.closed);
    }
}

/// Repairs of symbols that never come are equations that wait. With the least budget 512 of them may,
/// half of which are for the window of the first missing symbol.
#[test]
fn equations_beyond_the_limit_are_refused_and_counted() {
    const EQUATIONS: u64 = 256;
    const CELL: u16 = 4;
    let mut stage = Stage::established(TransportConfig { receive_budget: 0, ..transport() });
    for number in 0..EQUATIONS + 60 {
        // Three of the four that a cell needs.
        let (cell, column) = (number / 3, number % 3);
        let first = cell as u32 * u32::from(CELL);
        let header = RepairHeader { batch: cell as u32, column: column as u8, first, count: CELL };
        stage.say(PacketKind::Repair, |writer| {
            header.encode(writer)?;
            writer.bytes(&[number as u8 | 1; 1_408])
        });
        let beyond = (number + 1).saturating_sub(EQUATIONS);
        assert_eq!(stage.stats().packets_refused, beyond, "{number}");
    }
    let stats = stage.stats();
    assert_eq!(stage.closed, None);
    assert!(stats.receive_buffer_bytes <= LEAST, "{stats:?}");
}

#[test]
fn the_newest_challenge_is_answered_and_no_other() {
    for (challenges, dropped) in [(1_u64, 0), (100, 99)] {
        let mut stage = Stage::established(transport());
        stage.pass(MS * 50);
        stage.heard.clear();
        stage.say(PacketKind::Control, |writer| {
            (0..challenges).try_for_each(|n| frame::encode(writer, &Frame::PathChallenge(n)))
        });
        let mut answered = Vec::new();
        for packet in stage.heard.drain(..) {
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
        assert_eq!(stage.stats().challenges_dropped, dropped);
    }
}

/// Symbols of a mode without delivery of all: what is too far ahead is not believed, and what is believed
/// pushes out what is too far behind, so that memory stays what it is.
#[test]
fn a_jump_in_a_timely_flow_has_a_limit() {
    const MAX_JUMP: u64 = 1 << 20;
    let transport = TransportConfig { mode: Mode::Btp, ..transport() };
    let mut stage = Stage::established(transport);
    let mut say = |number: u64, refused: u64| {
        stage.say(PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&[0; 1_000])
        });
        let stats = stage.stats();
        assert_eq!((stats.packets_refused, stage.closed.clone()), (refused, None), "{number}");
        assert!(stats.receive_buffer_bytes < 4 << 20, "{stats:?}");
    };
    say(MAX_JUMP - 1, 0);
    say(2 * MAX_JUMP - 1, 0);
    say(3 * MAX_JUMP, 1);
    say(MAX_JUMP, 2);
}

/// What a peer says before its handshake is done waits in a few places; the counter is that of the
/// connection.
#[test]
fn data_before_the_end_of_the_handshake_has_few_places() {
    const PLACES: u64 = 48;
    for (packets, dropped) in [(PLACES, 0), (PLACES + 5, 5)] {
        let mut server = server(transport(), 1_000, 10);
        let mut liar = LyingClient::new(1);
        let parameters = TransportParameters { connection_id: liar.cid(), ..Default::default() };
        hear(&mut server, 1, liar.first_flight(&parameters.encode(0), &[]));
        answers(&mut server).iter().for_each(|datagram| liar.learn(datagram));
        for _ in 0..packets {
            let ping = liar.packet(PacketKind::Control, &[1]).expect("the server has answered");
            hear(&mut server, 1, ping);
        }
        let finished = liar.finished().expect("the server has answered");
        hear(&mut server, 1, finished);
        let mut buffer = Vec::with_capacity(65_536);
        let accepted = loop {
            match server.poll(NOW, &mut buffer) {
                Output::Event(handle, Event::Accepted) => break handle,
                Output::Timeout(_) => panic!("the handshake is done"),
                _ => {}
            }
        };
        let stats = server.stats(NOW, accepted).expect("it is there");
        assert_eq!((stats.early_packets_dropped, stats.packets_received), (dropped, PLACES));
    }
}

#[test]
fn packets_in_parts_have_so_many_places() {
    const PLACES: u64 = 32;
    let mut stage = Stage::established(transport());
    for id in 0..PLACES + 3 {
        stage.say_frame(&Frame::Fragment {
            id,
            index: 0,
            kind: PacketKind::Source,
            carried: false,
            last: false,
            data: &[0; 100],
        });
        let dropped = (id + 1).saturating_sub(PLACES);
        assert_eq!((stage.stats().fragments_dropped, stage.closed.clone()), (dropped, None));
    }
}

/// Every other number arrives: a range each.
#[test]
fn an_acknowledgement_that_leaves_ranges_out_is_counted() {
    let mut stage = Stage::established(transport());
    let say = |stage: &mut Stage, packets: u64| {
        for _ in 0..packets {
            stage.liar.skip(1);
            let ping = stage.liar.packet(PacketKind::Control, &[1]).expect("established");
            stage.hear(ping);
        }
        stage.pass(MS * 50);
    };
    say(&mut stage, 100);
    say(&mut stage, 150);
    assert_eq!(stage.stats().acks_shortened, 0);
    say(&mut stage, 400);
    assert_eq!(stage.stats().acks_shortened, 1);
    assert_eq!(stage.closed, None);
}
