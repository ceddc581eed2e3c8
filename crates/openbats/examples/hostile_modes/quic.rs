//! Packets of a peer for a server of the mode QUIC.

use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{Event, Input, Mode, Received, Timestamp};
use openbats::bindings::{Key, Step};

use crate::quic_client::{
    Client, INITIAL_PAYLOAD, Id, ack, frame, initial, initial_keys, long_header, seal, stream,
};
use crate::tcp_client::{frame as session_frame, hello};
use crate::{
    Bindings, Outcome, measured, measured_unreachable_port, measured_with_answers, server,
};

pub(crate) const NAMES: &[&str] = &[
    "quic-pings",
    "quic-empty-stream-frames",
    "quic-one-byte-stream-frames",
    "quic-ascending-gaps",
    "quic-descending-gaps",
    "quic-repeated-stream-frames",
    "quic-empty-messages",
    "quic-session-pings",
    "quic-limits",
    "quic-blocked",
    "quic-retired-ids",
    "quic-new-ids",
    "quic-path-challenges",
    "quic-scattered-crypto",
    "quic-forged-packets",
    "quic-forged-key-updates",
    "quic-key-updates",
    "quic-acks-many-ranges",
    "quic-acks-64-ranges",
    "quic-replayed-packets",
    "quic-new-addresses",
    "quic-empty-datagrams",
    "quic-port-unreachable",
    "quic-handshake-scattered-crypto",
    "quic-handshake-pings",
    "quic-handshake-garbage",
    "quic-handshake-early-data",
    "quic-handshake-unknown-ids",
];

const PACKETS: u64 = 600;
/// Clients whose first flights are measured.
const CLIENTS: u32 = 60;
/// Connections to the address of forged ICMP errors.
const AT_ONE_ADDRESS: u32 = 200;
/// Bytes of frames in a packet: QUIC begins with datagrams of 1,200 bytes, and finds that more fit.
const FRAMES: usize = 1_150;
/// Packets of the server that a client acknowledges before the measurement.
const ACKNOWLEDGED: usize = 1_300;
/// Bytes of a message of the server, which fits the first congestion window.
const MESSAGE: usize = 12_000;
/// Milliseconds in which it goes out.
const PACED: usize = 4;

/// The honest packets that a case is compared with.
pub(crate) fn honest_name(case: &str) -> &'static str {
    match case {
        "quic-empty-messages" => "quic-empty",
        "quic-empty-datagrams" => "quic-empty-datagrams",
        "quic-acks-many-ranges" => "quic-acks",
        "quic-handshake-scattered-crypto" | "quic-handshake-pings" | "quic-handshake-garbage" => {
            "quic-first-flights"
        }
        _ => "quic",
    }
}

pub(crate) fn address(number: u32) -> SocketAddr {
    SocketAddr::from(((0x0a00_0000 | number).to_be_bytes(), 4_433))
}

pub(crate) struct World {
    pub(crate) server: Bindings,
    pub(crate) now: Timestamp,
    pub(crate) buffer: Vec<u8>,
    pub(crate) key: Option<Key>,
    pub(crate) remote: SocketAddr,
    pub(crate) packets: u64,
    pub(crate) is_closed: bool,
}

impl World {
    pub(crate) fn new(has_datagrams: bool) -> Result<Self, Box<dyn Error>> {
        let server = server(Mode::Quic, has_datagrams)?;
        Ok(Self {
            now: server.start(),
            server,
            buffer: Vec::with_capacity(65_536),
            key: None,
            remote: address(1),
            packets: 0,
            is_closed: false,
        })
    }

    /// Delivers a datagram, not counted; returns what the server sends.
    pub(crate) fn deliver(&mut self, mut datagram: Vec<u8>) -> Vec<Vec<u8>> {
        self.now += Duration::from_micros(100);
        let (remote, payload) = (self.remote, &mut datagram[..]);
        let received = Received { remote, local_ip: None, ecn: 0, payload };
        self.server.handle(self.now, Input::Datagram(received));
        self.settle()
    }

    pub(crate) fn settle(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        loop {
            match self.server.poll(self.now, &mut self.buffer) {
                Step::Event(key, Event::Accepted) => self.key = Some(key),
                Step::Event(_, Event::Closed(_)) => self.is_closed = true,
                Step::Transmit(transmit) => {
                    let datagrams = self.buffer[..transmit.len].chunks(transmit.segment_size);
                    sent.extend(datagrams.map(<[u8]>::to_vec));
                }
                Step::Timeout(_) => break,
                Step::Event(..) => {}
            }
        }
        self.take();
        sent
    }

    pub(crate) fn take(&mut self) {
        if let Some(key) = self.key {
            while self.server.recv(self.now, key).is_some() {}
        }
    }

    /// Delivers a datagram, which is counted unless the server has closed the connection.
    pub(crate) fn push(&mut self, mut datagram: Vec<u8>) {
        if self.is_closed {
            return;
        }
        self.now += Duration::from_micros(100);
        let (now, remote) = (self.now, self.remote);
        self.is_closed |= measured(&mut self.server, now, remote, &mut datagram, &mut self.buffer);
        self.packets += 1;
        self.take();
    }

    /// As [`Self::push`]; returns what the server sends.
    pub(crate) fn push_and_answer(&mut self, mut datagram: Vec<u8>) -> Vec<Vec<u8>> {
        if self.is_closed {
            return Vec::new();
        }
        self.now += Duration::from_micros(100);
        let (server, buffer) = (&mut self.server, &mut self.buffer);
        let (sent, is_closed) =
            measured_with_answers(server, self.now, self.remote, &mut datagram, buffer);
        self.is_closed |= is_closed;
        self.packets += 1;
        sent
    }

    /// A connection after its handshake.
    pub(crate) fn established(&mut self, number: u32) -> Result<Client, Box<dyn Error>> {
        let mut client = Client::new(number)?;
        self.remote = address(number);
        let mut to_server = vec![client.first_flight()];
        while let Some(datagram) = to_server.pop() {
            for datagram in self.deliver(datagram) {
                to_server.extend(client.learn(&datagram)?);
            }
        }
        // An acknowledgement of all packets of the server, and the first frame of the session.
        let frames = [ack(client.seen.last().copied().into_iter()), stream(0, &hello())];
        let datagram = client.packet(&frames.concat());
        for datagram in self.deliver(datagram) {
            client.learn(&datagram)?;
        }
        if self.key.is_none() {
            return Err("not accepted".into());
        }
        Ok(client)
    }

    pub(crate) fn outcome(&self) -> Outcome {
        Ok((self.packets, self.is_closed))
    }
}

/// Frames that fill a packet; each has the next number.
pub(crate) fn full(next: &mut u64, frame: impl Fn(u64) -> Vec<u8>) -> Vec<u8> {
    let mut frames = Vec::new();
    loop {
        let more = frame(*next);
        if frames.len() + more.len() > FRAMES {
            return frames;
        }
        frames.extend(more);
        *next += 1;
    }
}

/// A byte of a message of parts of 64 KiB that does not end.
pub(crate) fn content(at: u64) -> u8 {
    *[1, 1, 0, 0].get((at % 65_540) as usize).unwrap_or(&7)
}

/// The offset of the session's stream after its first frame.
pub(crate) fn begin() -> u64 {
    hello().len() as u64
}

pub(crate) fn run(case: &str, is_hostile: bool) -> Outcome {
    let mut world = World::new(case.contains("datagrams"))?;
    if case.starts_with("quic-handshake") && (is_hostile || honest_name(case) != "quic") {
        return match (case, is_hostile) {
            (_, false) => first_flights(&mut world),
            ("quic-handshake-early-data", _) => early_data(&mut world),
            ("quic-handshake-garbage", _) => initials(&mut world, None),
            ("quic-handshake-pings", _) => initials(&mut world, Some(vec![1; 1_100])),
            ("quic-handshake-scattered-crypto", _) => {
                initials(&mut world, Some(scattered_crypto()))
            }
            _ => unknown_ids(&mut world),
        };
    }
    if case == "quic-port-unreachable" && is_hostile {
        return unreachable_port(&mut world);
    }
    let mut client = world.established(1)?;
    match (case, is_hostile) {
        ("quic-acks-many-ranges", false) => return acknowledgements(&mut world, &mut client, 1),
        ("quic-acks-many-ranges", true) => {
            // As many as fit.
            return acknowledgements(&mut world, &mut client, FRAMES / 2 - 10);
        }
        // As many as a correct receiver sends after losses.
        ("quic-acks-64-ranges", true) => return acknowledgements(&mut world, &mut client, 64),
        _ => {}
    }
    if !is_hostile {
        return honest(&mut world, &mut client, honest_name(case));
    }
    match case {
        "quic-retired-ids" => return retired_ids(&mut world, &mut client),
        "quic-key-updates" => return key_updates(&mut world, &mut client),
        "quic-replayed-packets" => {
            let datagram = client.packet(&stream(begin(), &session_frame(1, &[7; 1_000])));
            world.deliver(datagram.clone());
            (0..PACKETS).for_each(|_| world.push(datagram.clone()));
            return world.outcome();
        }
        _ => {}
    }
    let mut next = 0;
    let id = client.id();
    for count in 0..PACKETS {
        let frames = match case {
            "quic-pings" => full(&mut next, |_| vec![1]),
            "quic-empty-stream-frames" => full(&mut next, |_| stream(begin(), &[])),
            "quic-one-byte-stream-frames" => {
                full(&mut next, |n| stream(begin() + n, &[content(n)]))
            }
            "quic-ascending-gaps" => full(&mut next, |n| stream(begin() + 1 + 2 * n, &[7])),
            "quic-descending-gaps" => full(&mut next, |n| stream(begin() + 500_000 - 2 * n, &[7])),
            "quic-repeated-stream-frames" => full(&mut next, |_| stream(begin() + 100, &[7])),
            "quic-empty-messages" => stream(begin() + 1_120 * count, &[2, 0, 0, 0].repeat(280)),
            "quic-session-pings" => stream(begin() + 1_120 * count, &[6, 0, 0, 0].repeat(280)),
            "quic-limits" => full(&mut next, |n| {
                let limit = (1 << 30) + n;
                [frame(0x10, &[limit], &[]), frame(0x11, &[0, limit], &[])].concat()
            }),
            "quic-blocked" => {
                full(&mut next, |_| [frame(0x14, &[9], &[]), frame(0x15, &[0, 9], &[])].concat())
            }
            "quic-new-ids" => full(&mut next, |n| {
                let id = [&[8][..], &n.to_be_bytes(), &[9; 16]].concat();
                frame(0x18, &[n + 1, n + 1], &id)
            }),
            "quic-path-challenges" => full(&mut next, |n| frame(0x1a, &[], &n.to_be_bytes())),
            "quic-scattered-crypto" => {
                full(&mut next, |n| frame(0x06, &[1 + 2 * n % 16_000, 1], &[7]))
            }
            "quic-empty-datagrams" => full(&mut next, |_| vec![0x31, 0]),
            "quic-new-addresses" => vec![1; 10],
            _ => full(&mut next, |_| vec![0]),
        };
        let mut datagram = match case {
            "quic-forged-key-updates" => client.packet_to(id, &frames, 4),
            _ => client.packet(&frames),
        };
        if case == "quic-forged-packets" {
            let last = datagram.len() - 1;
            datagram[last] ^= 1;
        }
        if case == "quic-new-addresses" {
            world.remote = address(1_000 + count as u32);
        }
        world.push(datagram);
    }
    world.outcome()
}

fn honest(world: &mut World, client: &mut Client, name: &str) -> Outcome {
    let mut offset = begin();
    let message: Vec<u8> = match name {
        "quic-empty" => session_frame(2, &[]),
        _ => session_frame(2, &[7; 14_000]),
    };
    let mut content = message.iter().copied().cycle();
    for _ in 0..PACKETS {
        let frames = if name == "quic-empty-datagrams" {
            full(&mut 0, |_| vec![0x31, 0])
        } else {
            let bytes: Vec<u8> = content.by_ref().take(FRAMES - 20).collect();
            offset += bytes.len() as u64;
            stream(offset - bytes.len() as u64, &bytes)
        };
        let datagram = client.packet(&frames);
        world.push(datagram);
    }
    world.outcome()
}

/// Retires all connection IDs that the server has issued, again and again: it issues others.
fn retired_ids(world: &mut World, client: &mut Client) -> Outcome {
    let mut to = client.id();
    for _ in 0..PACKETS {
        let Some((last, next)) = client.issued.last().copied() else { return world.outcome() };
        let retired: Vec<u8> = std::mem::take(&mut client.issued)
            .iter()
            .filter(|(sequence, _)| *sequence != last)
            .flat_map(|(sequence, _)| frame(0x19, &[*sequence], &[]))
            .collect();
        client.issued.push((last, next));
        let datagram = client.packet_to(to, &retired, 0);
        to = next;
        for datagram in world.push_and_answer(datagram) {
            client.learn(&datagram)?;
        }
    }
    world.outcome()
}

/// Packets with new keys each: the server may take them as soon as its packets with the keys before are
/// acknowledged. It answers at once.
fn key_updates(world: &mut World, client: &mut Client) -> Outcome {
    for count in 0..PACKETS {
        client.update_keys();
        let newest = ack(client.seen.last().copied().into_iter());
        let datagram = client.packet(&[newest, frame(0x1a, &[], &count.to_be_bytes())].concat());
        for datagram in world.push_and_answer(datagram) {
            client.learn(&datagram)?;
        }
    }
    world.outcome()
}

/// Acknowledgements of two packets each with so many ranges, of which the others repeat earlier ones. The server has
/// nothing left to send then: what they would let out is not counted, neither for hostile nor for honest ones.
fn acknowledgements(world: &mut World, client: &mut Client, ranges: usize) -> Outcome {
    let key = world.key.ok_or("not accepted")?;
    let mut acknowledged = client.seen.len();
    while world.packets < PACKETS && !world.is_closed {
        world.server.send(world.now, key, vec![7; MESSAGE].into())?;
        let before = client.seen.len();
        for _ in 0..PACED {
            // Its pacing lets out more.
            world.now += Duration::from_millis(1);
            world.server.handle(world.now, Input::Timeout);
            for datagram in world.settle() {
                client.learn(&datagram)?;
            }
        }
        if client.seen.len() == before {
            return Err(format!("the server stops after {before} packets").into());
        }
        while client.seen.len() >= acknowledged + 2 {
            acknowledged += 2;
            let mut newest = client.seen[..acknowledged].iter().rev().copied();
            let new: Vec<u64> = newest.by_ref().take(2).collect();
            let others = newest.skip(1).step_by(2).take(ranges - 1);
            if acknowledged < ACKNOWLEDGED {
                let datagram = client.packet(&ack(new.into_iter()));
                for datagram in world.deliver(datagram) {
                    client.learn(&datagram)?;
                }
            } else {
                let datagram = client.packet(&ack(new.into_iter().chain(others)));
                world.push(datagram);
            }
        }
    }
    world.outcome()
}

/// Forged ICMP errors for an address from which many connections came. They guess what to quote.
fn unreachable_port(world: &mut World) -> Outcome {
    for number in 0..AT_ONE_ADDRESS {
        let flight = Client::new(100 + number)?.first_flight();
        world.deliver(flight);
    }
    assert!(world.server.connection_count() >= AT_ONE_ADDRESS as usize, "they are half-open");
    for number in 0..PACKETS {
        world.now += Duration::from_micros(100);
        let quoted = [&[0x40][..], &number.to_be_bytes(), &[7; 55]].concat();
        let (server, buffer) = (&mut world.server, &mut world.buffer);
        world.is_closed |=
            measured_unreachable_port(server, world.now, world.remote, &quoted, buffer);
        world.packets += 1;
    }
    world.outcome()
}

fn first_flights(world: &mut World) -> Outcome {
    for number in 0..CLIENTS {
        world.remote = address(100 + number);
        let flight = Client::new(100 + number)?.first_flight();
        world.push(flight);
    }
    world.outcome()
}

pub(crate) fn ids(number: u32) -> [Id; 2] {
    let id = |byte| {
        let mut id = [byte; 8];
        id[..4].copy_from_slice(&number.to_be_bytes());
        id
    };
    [id(0xaa), id(0xbb)]
}

/// Single bytes of a ClientHello, with gaps.
fn scattered_crypto() -> Vec<u8> {
    full(&mut 0, |n| frame(0x06, &[1_001 + 2 * n, 1], &[7]))
}

/// Initial packets of ever other clients with these frames; without them, the rest of the packet is noise.
fn initials(world: &mut World, frames: Option<Vec<u8>>) -> Outcome {
    for number in 0..PACKETS as u32 {
        world.remote = address(5_000 + number);
        let [to, from] = ids(number);
        let datagram = match &frames {
            Some(frames) => initial(&to, &to, &from, 0, frames),
            None => {
                let mut datagram = long_header(0, &to, &from, 0, INITIAL_PAYLOAD);
                datagram.extend(
                    (0..INITIAL_PAYLOAD as u32 + 16).map(|at| (at * 7 + number * 13) as u8),
                );
                datagram
            }
        };
        world.push(datagram);
    }
    world.outcome()
}

/// 0-RTT packets, which the server cannot read.
fn early_data(world: &mut World) -> Outcome {
    let mut client = Client::new(1)?;
    let flight = client.first_flight();
    world.deliver(flight);
    let [mut to, mut from] = ids(1);
    to[4..].fill(0xaa);
    from[4..].fill(0xbb);
    let keys = initial_keys(&to)?;
    for number in 0..PACKETS {
        let header = long_header(1, &to, &from, number, INITIAL_PAYLOAD);
        world.push(seal(&keys.local, number, &header, &[0; INITIAL_PAYLOAD]));
    }
    world.outcome()
}

/// Data packets for connections that do not exist, with IDs as the server makes them: a server with the same
/// secret has issued them.
fn unknown_ids(world: &mut World) -> Outcome {
    let mut other = World::new(false)?;
    other.established(1)?;
    let mut client = other.established(2)?;
    world.established(1)?;
    for _ in 0..PACKETS {
        let datagram = client.packet(&[0; FRAMES]);
        world.push(datagram);
    }
    world.outcome()
}
