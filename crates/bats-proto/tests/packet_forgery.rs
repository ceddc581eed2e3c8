//! An attacker sees every packet of a connection and has none of its keys. None of a million forged
//! packets is accepted, and the connection continues undisturbed. Real TLS.

#[allow(dead_code, unused_imports, reason = "shared by several tests, each needs a part")]
#[path = "resumption/world.rs"]
mod world;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::fuzzing::seal_initial;
use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::long_header;
use bats_proto::wire::short_header::{PacketKind, SHORT_HEADER_LEN, ShortHeader};
use bats_proto::wire::varint::Writer;
use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, ConnectionStats, EndpointStats, Event, Mode,
    Output, PeerTrust, Timestamp,
};
use bytes::Bytes;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use world::{CLIENT, Connections, SERVER, World, address, identity, new_world, server, transport};

const FORGERIES: u64 = 1_000_000;
/// Size of a message in bytes: several symbols.
const SIZE: usize = 3_000;
/// Forged Initials to an end at a time.
const INITIALS: u32 = 500;
/// Number of observed packets that forgeries are made from.
const SEEN: usize = 64;

/// An attacker that forges packets from observed packets of the client.
struct Attacker {
    rng: ChaCha8Rng,
    seen: Vec<Vec<u8>>,
}

impl Attacker {
    fn below(&mut self, end: usize) -> usize {
        self.rng.next_u32() as usize % end
    }

    /// A header as the client writes it, unprotected or as observed, and a payload that looks
    /// coded.
    fn forge(&mut self) -> Vec<u8> {
        let index = self.below(self.seen.len());
        let mut packet = self.seen[index].clone();
        match self.rng.next_u32() % 4 {
            // The same packet with another content.
            0 => {
                let at = SHORT_HEADER_LEN + self.below(packet.len() - SHORT_HEADER_LEN);
                packet[at] ^= 1 << self.below(8);
            }
            // The same content with another header.
            1 => {
                let at = [0, 5, 6, 7, 8][self.below(5)];
                packet[at] ^= 1 << self.below(if at == 0 { 7 } else { 8 });
            }
            // The tag of one packet on another one, or a truncated packet.
            2 => {
                let other = self.below(self.seen.len());
                let tail = self.seen[other].len().min(packet.len()) - 16;
                let cut = SHORT_HEADER_LEN + 16 + self.below(tail - SHORT_HEADER_LEN - 15);
                packet.truncate(cut);
                let seal = self.seen[other].len() - 16;
                packet.extend_from_slice(&self.seen[other][seal..]);
                // If the bytes are unchanged by that, change another one.
                packet[SHORT_HEADER_LEN] ^= 1;
            }
            // A coded packet with valid fields and without any protection.
            _ => {
                let destination = packet[1..5].try_into().expect("an ID");
                let number = self.rng.next_u32() % 100_000;
                let is_repair = self.rng.next_u32().is_multiple_of(2);
                let header = ShortHeader {
                    kind: if is_repair { PacketKind::Repair } else { PacketKind::Source },
                    relayed: false,
                    key_phase: false,
                    destination,
                    packet_number: number,
                };
                let mut bytes = vec![0; 1_460];
                let mut short = [0; SHORT_HEADER_LEN];
                header.encode(0, &mut short);
                bytes[..SHORT_HEADER_LEN].copy_from_slice(&short);
                let mut writer = Writer::new(&mut bytes[SHORT_HEADER_LEN..]);
                let written = if is_repair {
                    RepairHeader { batch: number, column: 0, first: number, count: 64 }
                        .encode(&mut writer)
                } else {
                    SourceHeader::new(u64::from(number)).encode(&mut writer)
                };
                written.expect("room");
                packet = bytes;
            }
        }
        packet
    }
}

/// Initials that an observer of the first flight can seal with valid keys: with CRYPTO data beyond
/// the hello, in its place, with a session ticket, with a CLOSE, or without a known frame.
struct InitialForger {
    original: [u8; 8],
    client: [u8; 4],
    server: [u8; 4],
}

impl InitialForger {
    fn new(world: &World) -> Self {
        let ids = |peer: usize| {
            world.links.sent.iter().filter(move |sent| sent.from == peer).find_map(|sent| {
                let header = long_header::decode(&sent.bytes)?;
                Some((header.destination.to_vec(), header.source.to_vec()))
            })
        };
        let (original, client) = ids(CLIENT).expect("the client's first flight");
        let (_, server) = ids(SERVER).expect("the server's answer");
        Self {
            original: original.try_into().expect("8 bytes"),
            client: client.try_into().expect("4 bytes"),
            server: server.try_into().expect("4 bytes"),
        }
    }

    /// Whether a packet is as long as a first flight. From elsewhere, such a packet to the ID of the first
    /// flight would begin a connection of its own.
    fn is_long(number: u32) -> bool {
        number.is_multiple_of(7) && !(number.is_multiple_of(3) && number % 2 == 1)
    }

    /// A packet to `victim`.
    fn forge(&self, rng: &mut ChaCha8Rng, victim: usize, number: u32) -> Vec<u8> {
        let mut payload = vec![0; 200];
        let mut writer = Writer::new(&mut payload);
        let offset = [0, 300, 4_000, 8_100, u64::from(rng.next_u32())][number as usize % 5];
        let written = match number % 4 {
            0 | 1 => writer.u8(1).and_then(|()| {
                // A ticket, by its type, or random bytes.
                let kind = if number.is_multiple_of(2) { 4 } else { rng.next_u32() as u8 };
                writer.varint(offset)?;
                writer.varint(100)?;
                writer.bytes(&[&[kind, 0, 0, 96][..], &[7; 96]].concat())
            }),
            2 => writer.bytes(&[7, 0, 0, 0]),
            _ => writer.bytes(&rng.next_u64().to_be_bytes()),
        };
        written.expect("room");
        let ids = match victim {
            SERVER if number.is_multiple_of(3) => (&self.original[..], &self.client),
            SERVER => (&self.server[..], &self.client),
            _ => (&self.client[..], &self.server),
        };
        let from_client = victim == SERVER;
        let mut packet = seal_initial(&self.original, ids, from_client, 1_000 + number, &payload);
        assert!(!packet.is_empty());
        if Self::is_long(number) {
            packet.resize(1_200, 0);
        }
        packet
    }
}

/// All that can be seen of an endpoint with its connection at an instant.
#[derive(Debug, PartialEq)]
struct Seen {
    connection: ConnectionStats,
    endpoint: EndpointStats,
    events: usize,
    sent: usize,
    next_timeout: Option<Timestamp>,
}

impl Seen {
    fn of(world: &mut World, peer: usize, handle: ConnectionHandle) -> Self {
        world.run(Duration::ZERO);
        let output = world.nodes[peer].poll(world.now, &mut Vec::with_capacity(65_536));
        let Output::Timeout(next_timeout) = output else { panic!("it has something to do") };
        Self {
            connection: world.stats(peer, handle),
            endpoint: world.nodes[peer].endpoint_stats(),
            events: world.events.len(),
            sent: world.links.sent.len(),
            next_timeout,
        }
    }
}

/// Forges [`INITIALS`] Initials to an end of the connection. Only the endpoint's counts of datagrams
/// change: each is refused, without an answer, an event or another timer.
fn forge_initials(
    world: &mut World,
    forger: &InitialForger,
    rng: &mut ChaCha8Rng,
    (victim, handle): (usize, ConnectionHandle),
    first: u32,
) -> u64 {
    let elsewhere: SocketAddr = "192.0.2.9:4433".parse().expect("an address");
    let mut expected = Seen::of(world, victim, handle);
    for number in first..first + INITIALS {
        let packet = forger.forge(rng, victim, number);
        let from = if number % 2 == 0 { address(1 - victim) } else { elsewhere };
        world.inject(victim, from, packet);
    }
    let seen = Seen::of(world, victim, handle);
    // Those to the ID of the first flight that are too short for one. The connection refuses the others.
    let dropped = seen.endpoint.datagrams_dropped - expected.endpoint.datagrams_dropped;
    let is_short = |&n: &u32| n.is_multiple_of(3) && !InitialForger::is_long(n);
    let short = (first..first + INITIALS).filter(is_short).count();
    assert_eq!(dropped, if victim == SERVER { short as u64 } else { 0 });
    expected.endpoint.datagrams_dropped += dropped;
    expected.endpoint.datagrams_received += u64::from(INITIALS);
    assert_eq!(seen, expected, "forged Initials change nothing");
    dropped
}

/// Sends message `number` of the client.
fn send_message(world: &mut World, client: ConnectionHandle, number: u64) {
    let mut message = vec![number as u8; SIZE];
    message[..8].copy_from_slice(&number.to_le_bytes());
    world.nodes[CLIENT].send(world.now, client, Bytes::from(message)).expect("room");
}

/// A client and a server whose handshake is complete: the connection at each end, and the forger of its Initials.
fn connected() -> (World, ConnectionHandle, ConnectionHandle, InitialForger) {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, false));
    let trust = PeerTrust::Fingerprints(vec![print]);
    let transport = Arc::new(transport(Mode::Brtp));
    let client = world.connect(ClientConfig { trust, identity: None, transport });
    world.run(Duration::from_millis(200));
    let initials = InitialForger::new(&world);
    let accepted = world.all(SERVER, &Event::Accepted)[0];
    (world, client, accepted, initials)
}

#[test]
fn a_million_forged_packets_are_rejected_during_a_transfer() {
    let (mut world, client, accepted, initials) = connected();
    let mut attacker = Attacker { rng: ChaCha8Rng::seed_from_u64(5), seen: Vec::new() };
    let elsewhere: SocketAddr = "192.0.2.9:4433".parse().expect("an address");
    let (mut forged, mut sent, mut got) = (0, 0, 0);
    let (mut initials_each, mut initials_dropped) = (0, 0);
    while forged + 2 * u64::from(initials_each) < FORGERIES {
        world.links.sent.clear();
        for _ in 0..8 {
            send_message(&mut world, client, sent);
            sent += 1;
        }
        // Forged packets arrive before the client's packets that are in flight.
        world.run(Duration::from_micros(2_500));
        let own = world.links.sent.iter().filter(|sent| sent.from == CLIENT);
        attacker.seen.extend(own.map(|sent| sent.bytes.clone()).filter(|o| o.len() > 100));
        let old = attacker.seen.len().saturating_sub(SEEN);
        attacker.seen.drain(..old);
        for (victim, handle) in [(CLIENT, client), (SERVER, accepted)] {
            let rng = &mut attacker.rng;
            let to = (victim, handle);
            initials_dropped += forge_initials(&mut world, &initials, rng, to, initials_each);
        }
        initials_each += INITIALS;
        for _ in 0..9_000 {
            let packet = attacker.forge();
            let from = if forged % 2 == 0 { address(CLIENT) } else { elsewhere };
            world.inject(SERVER, from, packet);
            forged += 1;
        }
        world.run(Duration::from_millis(20));
        while let Some(message) = world.nodes[SERVER].recv(world.now, accepted) {
            let number = u64::from_le_bytes(*message.first_chunk().expect("8 bytes"));
            let is_right = message[8..].iter().all(|&byte| byte == number as u8);
            assert!(number == got && message.len() == SIZE && is_right, "message {got}");
            got += 1;
        }
    }
    world.run(Duration::from_secs(1));
    let [client_stats, server_stats] =
        [(CLIENT, client), (SERVER, accepted)].map(|(peer, h)| world.stats(peer, h));
    let dropped = world.nodes[SERVER].endpoint_stats().datagrams_dropped;
    let others = server_stats.packets.forged + dropped - initials_dropped;
    assert_eq!(others, forged, "each is counted");
    let without_connection = dropped - initials_dropped;
    assert!(without_connection < forged / 100, "{dropped} did not reach the connection");
    assert!(initials_each >= 50_000, "{initials_each} forged Initials to each end");
    let stuck = [CLIENT, SERVER].map(|end| world.nodes[end].endpoint_stats().timers_stuck);
    assert_eq!(stuck, [0, 0], "no forged Initial leaves a timer due");
    assert_eq!(world.nodes[SERVER].connection_count(), 1, "no connection is begun");
    assert!(server_stats.packets.received <= client_stats.packets.sent, "no more than were sent");
    assert_eq!((got, server_stats.messages.received), (sent, sent), "all arrived");
    assert_eq!(
        (server_stats.path.changes, server_stats.packets.malformed, server_stats.packets.replayed),
        (0, 0, 0)
    );
    assert!(world.events.iter().all(|(_, _, event)| !matches!(event, Event::Closed(_))));
}

/// The forged Initials have valid keys: until the server's answer arrives, one with data that TLS does
/// not expect ends the handshake, which no protocol can prevent whose first keys are public.
#[test]
fn a_forged_initial_is_taken_before_the_answer_of_the_server() {
    let (identity, print) = identity();
    let mut world = new_world(server(&identity, false));
    let trust = PeerTrust::Fingerprints(vec![print]);
    let transport = Arc::new(transport(Mode::Brtp));
    world.connect(ClientConfig { trust, identity: None, transport });
    world.run(Duration::from_millis(1));
    let flight =
        long_header::decode(&world.links.sent[0].bytes).expect("the client's first flight");
    let initials = InitialForger {
        original: flight.destination.try_into().expect("8 bytes"),
        client: flight.source.try_into().expect("4 bytes"),
        server: [9; 4],
    };
    let packet = initials.forge(&mut ChaCha8Rng::seed_from_u64(7), CLIENT, 0);
    world.inject(CLIENT, address(SERVER), packet);
    world.run(Duration::from_millis(1));
    let closed = |(peer, _, event): &(usize, _, Event)| {
        *peer == CLIENT && matches!(event, Event::Closed(CloseReason::Handshake(_)))
    };
    assert!(world.events.iter().any(closed), "{:?}", world.events);
}

/// A closed connection repeats its CLOSE for late packets of its peer, but not for packets of the
/// handshake, which is over.
#[test]
fn forged_initials_do_not_make_a_closed_connection_answer() {
    let (mut world, client, accepted, initials) = connected();
    send_message(&mut world, client, 0);
    world.run(Duration::ZERO);
    let late = world.links.sent.iter().rev().find(|sent| sent.from == CLIENT);
    let late = late.expect("it has sent").bytes.clone();
    world.nodes[SERVER].close(world.now, accepted, 0, "");
    world.nodes[CLIENT].close(world.now, client, 0, "");
    world.run_with(Duration::ZERO, |_, _| true);
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for victim in [CLIENT, SERVER] {
        let before = world.links.sent.len();
        for number in 0..INITIALS {
            let packet = initials.forge(&mut rng, victim, number);
            world.inject(victim, address(1 - victim), packet);
            world.run_with(Duration::ZERO, |_, _| true);
        }
        assert_eq!(world.links.sent.len(), before, "an answer to a forged Initial");
    }
    let before = world.links.sent.len();
    world.inject(SERVER, address(CLIENT), late);
    world.run_with(Duration::ZERO, |_, _| true);
    assert_eq!(world.links.sent.len(), before + 1, "it answers data");
}
