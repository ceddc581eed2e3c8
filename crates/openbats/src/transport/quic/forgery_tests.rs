//! Packets that an attacker forges, changes, replays or redirects, at both ends of a connection.
//!
//! An attacker who has seen the first packet can make the keys of Initial packets (RFC 9001 section 5.2), but no others.

use bats_proto::{CloseReason, Event};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{DirectionalKeys, Version};

use super::*;

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// Bytes of the longest datagram.
const EXCESS: u16 = 1_472;
const MS: Duration = Duration::from_millis(1);
/// More calls than an endpoint needs until it waits for a timer or a datagram.
const MOST_CALLS: usize = 20_000;

fn address(end: usize) -> SocketAddr {
    ([10, 0, 0, 1 + end as u8], 4_000).into()
}

fn transport() -> Arc<TransportConfig> {
    Arc::new(TransportConfig { mode: Mode::Quic, ..TransportConfig::default() })
}

fn server(clock: &Clock, has_datagrams: bool) -> Quic {
    let config = ServerConfig {
        identity: bats_proto::crypto::generate_identity(&["server".to_owned()]).unwrap(),
        client_trust: None,
        transport: transport(),
        retry_threshold: usize::MAX,
        max_connections: 100,
    };
    Quic::new(clock.clone(), [8; 32], Some(&config), has_datagrams, None).unwrap()
}

/// A datagram and where it goes.
type Datagram = (SocketAddr, Vec<u8>);

/// An endpoint with one connection that is looked at.
struct End {
    quic: Quic,
    id: Option<u64>,
    /// Events of all connections.
    events: Vec<(u64, Event)>,
    received: Vec<Bytes>,
}

impl End {
    fn new(quic: Quic, id: Option<u64>) -> Self {
        Self { quic, id, events: Vec::new(), received: Vec::new() }
    }

    /// What it sends until it waits. Takes the messages that have arrived.
    fn poll(&mut self, now: Timestamp) -> Vec<Datagram> {
        let (mut sent, mut buffer) = (Vec::new(), Vec::with_capacity(65_536));
        for _ in 0..MOST_CALLS {
            match self.quic.poll(now, &mut buffer) {
                Output::Transmit(transmit) => {
                    let parts = buffer[..transmit.len].chunks(transmit.segment_size);
                    sent.extend(parts.map(|part| (transmit.remote, part.to_vec())));
                }
                Output::Event(id, event) => {
                    if event == Event::Accepted {
                        self.id = Some(id);
                    }
                    self.events.push((id, event));
                    while let Some(message) = self.id.and_then(|id| self.quic.recv(now, id)) {
                        self.received.push(message);
                    }
                }
                Output::Timeout(Some(due)) if due <= now => self.quic.handle_timeout(now),
                Output::Timeout(_) => return sent,
            }
        }
        panic!("it spins");
    }

    fn receive(&mut self, now: Timestamp, remote: SocketAddr, datagram: &[u8]) {
        let payload = &mut datagram.to_vec()[..];
        // As the endpoint does.
        if self.quic.wants(remote, payload) {
            let received = Received { remote, local_ip: None, ecn: 0, payload };
            self.quic.handle_datagram(now, &received);
        }
    }

    fn connection(&mut self) -> &mut Connection {
        let id = self.id.expect("a connection");
        self.quic.connections.get_mut(&id).expect("it exists")
    }

    /// The statistics but for the datagrams that arrived, and the timers.
    fn state(&self, now: Timestamp) -> (ConnectionStats, BTreeSet<(Timestamp, u64)>, usize) {
        let mut stats = self.id.and_then(|id| self.quic.stats(now, id)).expect("it exists");
        (stats.packets.bytes_received, stats.packets.received) = (0, 0);
        (stats, self.quic.timers.clone(), self.quic.connection_count())
    }

    fn is_established(&self) -> bool {
        self.events.iter().any(|(id, event)| {
            Some(*id) == self.id && matches!(event, Event::Connected | Event::Accepted)
        })
    }

    fn closed(&self) -> Option<&CloseReason> {
        self.events.iter().find_map(|(id, event)| match event {
            Event::Closed(reason) if Some(*id) == self.id => Some(reason),
            _ => None,
        })
    }
}

fn client(clock: &Clock, now: Timestamp, seed: u8, has_datagrams: bool) -> End {
    let mut quic = Quic::new(clock.clone(), [seed; 32], None, has_datagrams, None).unwrap();
    let trust = bats_proto::PeerTrust::DangerousAcceptAny;
    let config = ClientConfig { trust, identity: None, transport: transport() };
    let id = quic.connect(now, address(SERVER), "server", &config, has_datagrams).unwrap();
    End::new(quic, Some(id))
}

/// A client and a server.
struct Pair {
    ends: [End; 2],
    now: Timestamp,
    /// The address from which packets of the client come.
    client: SocketAddr,
    /// The first and the last datagram of each end.
    first: [Vec<u8>; 2],
    last: [Vec<u8>; 2],
}

impl Pair {
    fn new(has_datagrams: bool) -> Self {
        let clock = Clock::new();
        let now = clock.now();
        let server = End::new(server(&clock, has_datagrams), None);
        let ends = [client(&clock, now, 7, has_datagrams), server];
        Self {
            ends,
            now,
            client: address(CLIENT),
            first: Default::default(),
            last: Default::default(),
        }
    }

    fn established(has_datagrams: bool) -> Self {
        let mut pair = Self::new(has_datagrams);
        pair.run(100, |_, _, _| {});
        assert!(pair.ends.iter().all(End::is_established));
        pair
    }

    fn source(&self, of: usize) -> SocketAddr {
        if of == CLIENT { self.client } else { address(SERVER) }
    }

    /// Each step takes a millisecond. `after` is called when a datagram has arrived at an end.
    fn run(&mut self, steps: usize, mut after: impl FnMut(&mut Self, usize, &[u8])) {
        for _ in 0..steps {
            for from in [CLIENT, SERVER] {
                for (to, datagram) in self.ends[from].poll(self.now) {
                    assert_eq!(to, self.source(1 - from));
                    if self.first[from].is_empty() {
                        self.first[from].clone_from(&datagram);
                    }
                    self.last[from].clone_from(&datagram);
                    let source = self.source(from);
                    self.ends[1 - from].receive(self.now, source, &datagram);
                    after(self, 1 - from, &datagram);
                }
            }
            self.now += MS;
        }
    }

    /// A message in each direction arrives.
    fn check(&mut self) {
        for from in [CLIENT, SERVER] {
            let message = Bytes::from(vec![from as u8; 700]);
            let id = self.ends[from].id.expect("a connection");
            self.ends[from].quic.send(self.now, id, message.clone(), None).expect("it is open");
            self.run(200, |_, _, _| {});
            assert_eq!(self.ends[1 - from].received.last(), Some(&message));
            assert_eq!(self.ends[from].closed(), None);
        }
    }

    fn attacker(&self) -> Attacker {
        let mut attacker = Attacker::new(&self.first[CLIENT]);
        // Packets of data show the connection IDs in use.
        for to in [CLIENT, SERVER] {
            let packet = &self.last[1 - to];
            assert_eq!(packet[0] & 0x80, 0);
            attacker.ids[to] = Some(packet[1..=ID_LEN].to_vec());
        }
        attacker
    }
}

fn varint(number: u64) -> Vec<u8> {
    match number {
        0..=0x3f => vec![number as u8],
        0x40..=0x3fff => (number as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..=0x3fff_ffff => (number as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (number | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

fn frame(kind: u8, fields: &[u64], bytes: &[u8]) -> Vec<u8> {
    let fields = fields.iter().flat_map(|&field| varint(field));
    [kind].into_iter().chain(fields).chain(bytes.iter().copied()).collect()
}

/// A frame CRYPTO with a message of TLS of this type and length.
fn crypto(offset: u64, kind: u8, len: u8) -> Vec<u8> {
    let message = [&[kind, 0, 0, len][..], &vec![kind; len.into()]].concat();
    frame(0x06, &[offset, message.len() as u64], &message)
}

/// Frames of forged packets.
fn attacks() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("an acknowledgement of everything", frame(0x02, &[1 << 20, 0, 0, 1 << 20], &[])),
        ("an acknowledgement of packet 0", frame(0x02, &[0, 0, 0, 0], &[])),
        ("a hello of a client", crypto(0, 1, 200)),
        ("a hello of a server", crypto(0, 2, 90)),
        ("a session ticket", crypto(0, 4, 60)),
        ("a key update of TLS", crypto(0, 24, 1)),
        ("data of TLS in the middle", crypto(100, 11, 60)),
        ("data of TLS far ahead", crypto(60_000, 20, 60)),
        ("data of TLS without end", crypto((1 << 62) - 1, 20, 60)),
        ("CONNECTION_CLOSE", frame(0x1c, &[2, 0, 4], b"text")),
        ("CONNECTION_CLOSE of the application", frame(0x1d, &[2, 4], b"text")),
        ("PING", vec![1]),
        ("HANDSHAKE_DONE", vec![0x1e]),
        ("NEW_TOKEN", frame(0x07, &[3], b"abc")),
        ("PATH_CHALLENGE", frame(0x1a, &[], &[7; 8])),
        ("data of a stream", frame(0x0e, &[0, 0, 3], b"abc")),
        ("an unknown frame", varint(0x3fff)),
        ("no frame", Vec::new()),
    ]
}

/// What the first packets show.
struct Attacker {
    /// The connection IDs to which each end got its first packets.
    first: [Vec<u8>; 2],
    /// Those that the ends use now, as far as known.
    ids: [Option<Vec<u8>>; 2],
    /// Keys of Initial packets of each end.
    keys: [DirectionalKeys; 2],
}

/// Destination and source of a packet with a long header.
fn ids_of(datagram: &[u8]) -> (Vec<u8>, Vec<u8>) {
    assert_eq!(datagram[0] & 0x80, 0x80);
    let (destination, rest) = datagram[6..].split_at(datagram[5].into());
    (destination.to_vec(), rest[1..1 + usize::from(rest[0])].to_vec())
}

impl Attacker {
    fn new(first: &[u8]) -> Self {
        let (original, client) = ids_of(first);
        let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite()).unwrap();
        let keys = [rustls::Side::Client, rustls::Side::Server]
            .map(|side| suite.keys(&original, side, Version::V1).local);
        Self { first: [client, original], ids: [None, None], keys }
    }

    /// An Initial (0) or Handshake (2) packet to this end, with the keys of Initial packets.
    fn forge(&self, to: usize, kind: u8, number: u32, frames: &[u8], to_first: bool) -> Vec<u8> {
        let from = 1 - to;
        let id_of = |end: usize| self.ids[end].as_ref().unwrap_or(&self.first[end]);
        let destination = if to_first { &self.first[to] } else { id_of(to) };
        let source = id_of(from);
        let mut payload = frames.to_vec();
        payload.resize(payload.len().max(1_150), 0);
        let mut packet = vec![0xc3 | kind << 4, 0, 0, 0, 1];
        for id in [destination, source] {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        if kind == 0 {
            packet.push(0);
        }
        packet.extend(varint(4 + payload.len() as u64 + 16));
        let at = packet.len();
        packet.extend_from_slice(&number.to_be_bytes());
        let keys = &self.keys[from];
        let tag = keys.packet.encrypt_in_place(number.into(), &packet, &mut payload).unwrap();
        packet.extend_from_slice(&payload);
        packet.extend_from_slice(tag.as_ref());
        let sample = packet[at + 4..][..keys.header.sample_len()].to_vec();
        let (head, rest) = packet.split_at_mut(at);
        keys.header.encrypt_in_place(&sample, &mut head[0], &mut rest[..4]).unwrap();
        packet
    }

    /// Version Negotiation to the client.
    fn negotiation(&self) -> Vec<u8> {
        let mut packet = vec![0x80, 0, 0, 0, 0];
        for id in &self.first {
            packet.push(id.len() as u8);
            packet.extend_from_slice(id);
        }
        packet.extend_from_slice(&[0x1a, 0x2a, 0x3a, 0x4a]);
        packet
    }
}

#[test]
fn forged_packets_change_nothing_of_an_established_connection() {
    for has_datagrams in [false, true] {
        let mut pair = Pair::established(has_datagrams);
        // Until nothing but the idle time-outs is due.
        pair.run(2_000, |_, _, _| {});
        let attacker = pair.attacker();
        let frames = attacks();
        let now = pair.now + MS * 10;
        for to in [CLIENT, SERVER] {
            let before = pair.ends[to].state(now);
            let (events, counters) = (pair.ends[to].events.len(), pair.ends[to].quic.counters);
            let counted = pair.ends[to].connection().counted;
            let mut answers = Vec::new();
            for number in 0..50_000_u32 {
                let (_, frames) = &frames[number as usize % frames.len()];
                let kind = if number % 5 == 4 { 2 } else { 0 };
                let packet_number = if number % 7 == 0 { number % 4 } else { number };
                let packet = match number % 100 {
                    99 if to == CLIENT => attacker.negotiation(),
                    _ => attacker.forge(to, kind, packet_number, frames, number % 3 == 0),
                };
                let mut from = pair.source(1 - to);
                if number % 4 == 0 {
                    from.set_port(1 + (number % 60_000) as u16);
                }
                pair.ends[to].receive(now, from, &packet);
                if number % 64 == 0 {
                    answers.extend(pair.ends[to].poll(now));
                }
            }
            answers.extend(pair.ends[to].poll(now));
            // The server has retired the first ID of the client: to that ID goes a stateless reset, of which there is
            // one in 20 ms, for an ID that no peer uses any more.
            assert!(answers.len() <= usize::from(to == CLIENT), "{} answers", answers.len());
            assert!(
                answers.iter().all(|(_, reset)| reset[0] & 0xc0 == 0x40 && reset.len() < 1_000)
            );
            assert_eq!(pair.ends[to].state(now), before, "at end {to}, datagrams {has_datagrams}");
            assert_eq!(pair.ends[to].events.len(), events);
            assert_eq!(pair.ends[to].connection().counted, counted);
            let after = pair.ends[to].quic.counters;
            assert_eq!(after.handshakes_started, counters.handshakes_started);
        }
        pair.now = now;
        pair.check();
    }
}

/// An attacker who sees the first packet can end a handshake (RFC 9000 section 21.2), but does not change
/// an established connection of the server, and leaves nothing behind.
#[test]
fn forged_packets_may_end_a_handshake_and_nothing_else() {
    let mut other = Pair::established(false);
    let (mut ended, mut completed) = (0, 0);
    for (index, (attack, frames)) in attacks().iter().enumerate() {
        for (to, moment) in
            [CLIENT, SERVER].into_iter().flat_map(|to| (1..5).map(move |at| (to, at)))
        {
            let context = format!("{attack} to end {to} at datagram {moment}");
            let clock = other.ends[SERVER].quic.clock.clone();
            let seed = 10 + (index * 8 + to * 4 + moment) as u8;
            let mut new = client(&clock, other.now, seed, false);
            let from = SocketAddr::from(([10, 0, 1, seed], 4_000));
            let known = other.ends[SERVER].id.take();
            let mut attacker: Option<Attacker> = None;
            let mut datagrams = 0;
            // Longer than the time-out of a handshake.
            for step in 0..400 {
                let from_client = new.poll(other.now).into_iter().map(|(_, d)| (SERVER, d));
                let answers = other.ends[SERVER].poll(other.now).into_iter();
                let answers: Vec<_> = answers.map(|(_, datagram)| (CLIENT, datagram)).collect();
                for (end, datagram) in from_client.chain(answers).collect::<Vec<_>>() {
                    match &mut attacker {
                        None => attacker = Some(Attacker::new(&datagram)),
                        Some(seen) if end == CLIENT && seen.ids[SERVER].is_none() => {
                            seen.ids[SERVER] =
                                (datagram[0] & 0x80 != 0).then(|| ids_of(&datagram).1);
                        }
                        Some(_) => {}
                    }
                    let receive = |other: &mut Pair, new: &mut End, to, datagram: &[u8]| match to {
                        CLIENT => new.receive(other.now, address(SERVER), datagram),
                        _ => other.ends[SERVER].receive(other.now, from, datagram),
                    };
                    datagrams += 1;
                    if datagrams == moment {
                        let attacker = attacker.as_ref().expect("it has seen a packet");
                        for number in 0..40 {
                            let kind = if number % 5 == 4 { 2 } else { 0 };
                            let packet = attacker.forge(to, kind, number, frames, number % 2 == 0);
                            receive(&mut other, &mut new, to, &packet);
                        }
                    }
                    receive(&mut other, &mut new, end, &datagram);
                }
                other.now += MS * if step < 100 { 1 } else { 100 };
            }
            assert!(datagrams >= moment, "{context}: no forged packet was sent");
            let is_established = new.is_established() && new.closed().is_none();
            if is_established {
                completed += 1;
                let id = new.id.expect("a connection");
                new.quic.close(other.now, id, 0, "enough");
                for (_, datagram) in new.poll(other.now) {
                    other.ends[SERVER].receive(other.now, from, &datagram);
                }
            } else {
                ended += 1;
                let reason = new.closed();
                assert!(
                    reason.is_some_and(|why| !why.to_string().is_empty()),
                    "{context}: {reason:?}"
                );
            }
            // The end of the server's connection, until its state is removed.
            for _ in 0..80 {
                other.ends[SERVER].poll(other.now);
                new.poll(other.now);
                other.now += MS * 500;
            }
            assert_eq!(new.quic.connection_count(), 0, "{context}");
            other.ends[SERVER].id = known;
        }
    }
    assert!(ended > 0 && completed > 0, "{ended} ended, {completed} completed");
    println!("{ended} handshakes ended, {completed} completed");
}

/// A linear congruential generator; its upper bits are random enough.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

/// Message `number` of an end, between 1 and 3,000 bytes.
fn message(from: usize, number: usize) -> Bytes {
    let len = 1 + (number * 977 + from * 501) % 3_000;
    (0..len).map(|at| (at * 7 + number * 13 + from) as u8).collect()
}

/// Sends messages of both ends until all have arrived. `after` is called when a datagram has arrived at an end.
fn transfer(pair: &mut Pair, count: usize, mut after: impl FnMut(&mut Pair, usize, &[u8])) {
    let mut queued = [0; 2];
    let before = [CLIENT, SERVER].map(|end| pair.ends[end].received.len());
    for _ in 0..60_000 {
        for (end, queued) in queued.iter_mut().enumerate() {
            let id = pair.ends[end].id.expect("a connection");
            while *queued < count
                && pair.ends[end].quic.send(pair.now, id, message(end, *queued), None).is_ok()
            {
                *queued += 1;
            }
        }
        pair.run(1, &mut after);
        if (0..2).all(|end| pair.ends[end].received.len() >= before[end] + count) {
            break;
        }
    }
    for end in [CLIENT, SERVER] {
        assert_eq!(pair.ends[end].closed(), None);
        let received = &pair.ends[end].received[before[end]..];
        assert_eq!(received.len(), count);
        for (number, received) in received.iter().enumerate() {
            assert_eq!(*received, message(1 - end, number), "message {number} to end {end}");
        }
    }
}

/// Bits are flipped, bytes cut off, whole datagrams replayed, half of them from other addresses.
#[test]
fn changed_packets_during_a_transfer_deliver_nothing_and_stop_nothing() {
    let mut pair = Pair::established(false);
    let mut random = Random(3);
    let (mut changed, mut flipped) = ([0; 2], 0);
    let mut earlier: [Vec<Vec<u8>>; 2] = Default::default();
    let packets =
        [CLIENT, SERVER].map(|end| pair.ends[end].connection().quic.stats().frame_rx.stream);
    transfer(&mut pair, 1_500, |pair, to, datagram| {
        for _ in 0..40 {
            let mut bytes = datagram.to_vec();
            match random.below(8) {
                0 => bytes.truncate(random.below(datagram.len())),
                1 => {}
                2 if !earlier[to].is_empty() => {
                    bytes.clone_from(&earlier[to][random.below(earlier[to].len())]);
                }
                // Mostly the first bytes, which decide what becomes of a packet.
                kind => {
                    let end = if kind < 5 { bytes.len().min(24) } else { bytes.len() };
                    for _ in 0..=random.below(3) {
                        bytes[random.below(end)] ^= 1 << random.below(8);
                    }
                    flipped += 1;
                }
            }
            let mut from = pair.source(1 - to);
            if random.below(2) == 0 {
                from = ([10, 0, random.below(4) as u8, 9], 1 + random.below(60_000) as u16).into();
            }
            let now = pair.now;
            pair.ends[to].receive(now, from, &bytes);
            changed[to] += 1;
        }
        if random.below(4) == 0 {
            earlier[to].push(datagram.to_vec());
        }
    });
    assert!(changed[CLIENT] + changed[SERVER] >= 100_000, "{changed:?}");
    assert!(
        changed.iter().all(|&count| count >= 20_000) && flipped > 50_000,
        "{changed:?} {flipped}"
    );
    for end in [CLIENT, SERVER] {
        let frames = pair.ends[end].connection().quic.stats().frame_rx.stream;
        assert!(frames > packets[end], "data went over the stream");
    }
    pair.check();
}

/// RFC 9001 section 6.6: packets that cannot be authenticated are counted over all keys.
#[test]
fn forged_packets_over_all_key_updates_close_the_connection_at_the_integrity_limit() {
    const LIMIT: u64 = 6;
    let mut pair = Pair::established(false);
    let id = pair.ends[SERVER].id.expect("a connection");
    let forge = |pair: &mut Pair| {
        let id = pair.ends[CLIENT].id.expect("a connection");
        pair.ends[CLIENT].quic.send(pair.now, id, message(0, 1), None).expect("it is open");
        let sent = pair.ends[CLIENT].poll(pair.now);
        let (now, from) = (pair.now, pair.source(CLIENT));
        let (_, mut packet) = sent.last().expect("a packet").clone();
        *packet.last_mut().expect("a tag") ^= 1;
        pair.ends[SERVER].receive(now, from, &packet);
        for (_, datagram) in sent {
            pair.ends[SERVER].receive(now, from, &datagram);
        }
        pair.run(50, |_, _, _| {});
    };
    // The keys of the first key update exist already.
    let limit = 1 << 52;
    pair.ends[SERVER].quic.watch.lower_integrity_limit(limit, LIMIT);
    for (update, forged) in (0..).zip([1, 2, 2]) {
        (0..forged).for_each(|_| forge(&mut pair));
        pair.ends[CLIENT].connection().quic.force_key_update();
        pair.run(50, |_, _, _| {});
        pair.check();
        let keys = pair.ends[SERVER].connection().counted.key_updates;
        assert_eq!(keys, 1 + update);
    }
    // The last one that is allowed.
    forge(&mut pair);
    assert_eq!(pair.ends[SERVER].closed(), None);
    forge(&mut pair);
    let reason = pair.ends[SERVER].closed().expect("it is closed").to_string();
    assert!(reason.contains("integrity limit"), "{reason}");
    // The server says nothing more (RFC 9001 section 6.6), and the client does not recognise its stateless reset.
    let id_of_client = pair.ends[CLIENT].id.expect("a connection");
    pair.ends[CLIENT].quic.send(pair.now, id_of_client, message(0, 1), None).expect("it is open");
    pair.run(40_000, |_, _, _| {});
    let reason = pair.ends[CLIENT].closed();
    assert!(matches!(reason, Some(CloseReason::IdleTimeout(_))), "{reason:?}");
    assert!(!pair.ends[SERVER].quic.connections.contains_key(&id));
}

/// RFC 9000 section 9.3.1. `quinn-proto` sends a whole datagram for the last byte that it may send. What is lost
/// meanwhile is repaired.
#[test]
fn new_port_gets_at_most_three_times_its_bytes_and_a_datagram_until_it_is_validated() {
    let mut pair = Pair::established(false);
    let (count, id) = (1_000, pair.ends[SERVER].id.expect("a connection"));
    let mut queued = 0;
    let mut fill = |pair: &mut Pair| {
        while queued < count
            && pair.ends[SERVER].quic.send(pair.now, id, message(SERVER, queued), None).is_ok()
        {
            queued += 1;
        }
    };
    fill(&mut pair);
    pair.run(30, |_, _, _| {});
    pair.client.set_port(5_000);
    let client = pair.ends[CLIENT].id.expect("a connection");
    let (mut from_port, mut to_port) = (0, 0);
    for step in 0..2_000 {
        // Now and then, so that there is always room for little.
        if step % 40 == 0 && step < 400 {
            pair.ends[CLIENT]
                .quic
                .send(pair.now, client, message(CLIENT, step / 40), None)
                .unwrap();
        }
        fill(&mut pair);
        let sent = pair.ends[CLIENT].poll(pair.now);
        for (_, datagram) in sent.into_iter().filter(|_| step < 400) {
            from_port += datagram.len();
            let (now, source) = (pair.now, pair.client);
            pair.ends[SERVER].receive(now, source, &datagram);
        }
        for (to, datagram) in pair.ends[SERVER].poll(pair.now) {
            to_port += if to == pair.client { datagram.len() } else { 0 };
        }
        let most = 3 * from_port + usize::from(EXCESS);
        assert!(to_port <= most, "{to_port} bytes for {from_port} at step {step}");
        pair.now += MS;
    }
    assert!(to_port > 0, "the server does not know the new port");
    println!("{to_port} bytes to the new port for {from_port}");
    for _ in 0..20_000 {
        fill(&mut pair);
        for from in [CLIENT, SERVER] {
            for (to, datagram) in pair.ends[from].poll(pair.now) {
                let source = pair.source(from);
                if to == pair.source(1 - from) {
                    pair.ends[1 - from].receive(pair.now, source, &datagram);
                }
            }
        }
        pair.now += MS;
        if pair.ends[CLIENT].received.len() == count && pair.ends[SERVER].received.len() == 10 {
            break;
        }
    }
    for (end, from) in [(CLIENT, SERVER), (SERVER, CLIENT)] {
        let expected = (0..pair.ends[end].received.len()).map(|number| message(from, number));
        assert!(pair.ends[end].received.iter().cloned().eq(expected));
    }
    let received = [CLIENT, SERVER].map(|end| pair.ends[end].received.len());
    assert_eq!(received, [count, 10]);
    pair.check();
}

/// ICMP errors are for the address that is in use.
#[test]
fn a_connection_is_found_by_the_address_to_which_its_client_migrated() {
    let mut pair = Pair::established(false);
    let (old, client) = (pair.client, pair.ends[CLIENT].id.expect("a connection"));
    let new = SocketAddr::new(old.ip(), 5_000);
    let found = |pair: &Pair| {
        let addresses = &pair.ends[SERVER].quic.addresses;
        [old, new].map(|remote| addresses.connections_to(remote).count())
    };
    assert_eq!(found(&pair), [1, 0]);
    for (number, (source, expected)) in [(new, [0, 1]), (old, [1, 0])].into_iter().enumerate() {
        let now = pair.now;
        pair.ends[CLIENT].quic.send(now, client, message(CLIENT, number), None).unwrap();
        for (_, datagram) in pair.ends[CLIENT].poll(now) {
            pair.ends[SERVER].receive(now, source, &datagram);
        }
        pair.ends[SERVER].poll(now);
        assert_eq!(found(&pair), expected);
        pair.now += MS;
    }
}
