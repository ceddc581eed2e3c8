//! Segments of a peer for a server of the mode TCP, over loopback sockets.

use std::error::Error;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bats_proto::{Event, Input, Mode, Timestamp};
use openbats::bindings::{Key, Step};
use rustls::ClientConnection;
use socket2::{Domain, Protocol, Socket, Type};

use crate::tcp_client::{
    APPLICATION_DATA, Sealer, connected, drain, frame, hello, shake_hands, tls,
};
use crate::{Bindings, Outcome, PACKET, measured_sockets, server};

pub(crate) const NAMES: &[&str] = &[
    "tcp-one-byte-segments",
    "tcp-one-byte-records",
    "tcp-empty-records",
    "tcp-padded-records",
    "tcp-key-updates",
    "tcp-one-byte-parts",
    "tcp-empty-messages",
    "tcp-pings",
    "tcp-receipts",
    "tcp-unknown-frames",
    "tcp-handshake-scattered-hello",
    "tcp-handshake-garbage",
    "tcp-handshake-abandoned",
];

/// Segments that are measured.
const SEGMENTS: usize = 600;
/// Connections that are measured.
const CONNECTIONS: u32 = 60;
/// Connections of one network that wait for a handshake of it to end.
const WAITING: u32 = 1_500;

/// The honest packets that a case is compared with.
pub(crate) fn honest_name(case: &str) -> &'static str {
    match case {
        "tcp-empty-messages" => "tcp-empty",
        "tcp-one-byte-records" => "tcp-one-byte-messages",
        "tcp-handshake-scattered-hello" | "tcp-handshake-garbage" => "tcp-first-flights",
        "tcp-handshake-abandoned" => "tcp-handshakes",
        _ => "tcp",
    }
}

pub(crate) struct World {
    pub(crate) server: Bindings,
    pub(crate) to: SocketAddr,
    pub(crate) now: Timestamp,
    pub(crate) buffer: Vec<u8>,
    pub(crate) key: Option<Key>,
    pub(crate) segments: u64,
    pub(crate) is_closed: bool,
}

impl World {
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let server = server(Mode::Tcp, false)?;
        Ok(Self {
            to: server.tcp_address().ok_or("no address")?,
            now: server.start(),
            server,
            buffer: Vec::with_capacity(65_536),
            key: None,
            segments: 0,
            is_closed: false,
        })
    }

    /// Lets the server work, not counted.
    pub(crate) fn serve(&mut self) {
        self.now += Duration::from_micros(100);
        self.server.handle(self.now, Input::Timeout);
        loop {
            match self.server.poll(self.now, &mut self.buffer) {
                Step::Event(key, Event::Accepted) => self.key = Some(key),
                Step::Timeout(_) => break,
                _ => {}
            }
        }
        self.take();
    }

    pub(crate) fn take(&mut self) {
        if let Some(key) = self.key {
            while self.server.recv(self.now, key).is_some() {}
        }
    }

    /// Counts what the server does for what has arrived.
    pub(crate) fn measure(&mut self) {
        self.now += Duration::from_micros(100);
        self.is_closed |= measured_sockets(&mut self.server, self.now, &mut self.buffer);
        self.segments += 1;
        self.take();
    }

    /// Sends a segment, which is counted unless the server has closed the connection.
    pub(crate) fn push(
        &mut self,
        socket: &mut TcpStream,
        bytes: &[u8],
    ) -> Result<(), Box<dyn Error>> {
        if !self.is_closed {
            socket.write_all(bytes)?;
            self.measure();
            drain(socket);
        }
        Ok(())
    }

    /// A connection after its handshake.
    pub(crate) fn established(&mut self) -> Result<(TcpStream, ClientConnection), Box<dyn Error>> {
        let (mut socket, mut tls) = (connected(self.to)?, tls()?);
        shake_hands(&mut socket, &mut tls, || self.serve())?;
        tls.writer().write_all(&hello())?;
        let mut out = Vec::new();
        tls.write_tls(&mut out)?;
        socket.write_all(&out)?;
        self.serve();
        drain(&mut socket);
        if self.key.is_none() {
            return Err("not accepted".into());
        }
        Ok((socket, tls))
    }

    /// Sends a stream in segments of this length.
    pub(crate) fn stream(&mut self, socket: &mut TcpStream, bytes: &[u8], len: usize) -> Outcome {
        for segment in bytes.chunks(len) {
            self.push(socket, segment)?;
        }
        Ok((self.segments, self.is_closed))
    }
}

/// Messages of this length as frames, at least so many bytes.
pub(crate) fn messages(len: usize, bytes: usize) -> Vec<u8> {
    let message = frame(2, &vec![7; len]);
    message.repeat(bytes.div_ceil(message.len()))
}

/// Records of `content`, one after the other, that fill the segments.
fn records(mut record: impl FnMut() -> Vec<u8>) -> Vec<u8> {
    let mut stream = Vec::new();
    while stream.len() < SEGMENTS * PACKET {
        stream.extend(record());
    }
    stream.truncate(SEGMENTS * PACKET);
    stream
}

pub(crate) fn run(case: &str, is_hostile: bool) -> Outcome {
    let mut world = World::new()?;
    if case.starts_with("tcp-handshake") {
        return match (case, is_hostile) {
            ("tcp-handshake-abandoned", _) => handshakes(&mut world, is_hostile),
            (_, false) => first_flights(&mut world),
            ("tcp-handshake-garbage", _) => garbage(&mut world),
            _ => scattered_hello(&mut world),
        };
    }
    let (mut socket, tls) = world.established()?;
    if case == "tcp-key-updates" && is_hostile {
        return key_updates(&mut world, &mut socket, tls);
    }
    let mut sealer = Sealer::new(tls)?;
    let bytes = SEGMENTS * PACKET;
    if !is_hostile {
        let stream = match honest_name(case) {
            // An application that sends a message when the one before is sent: each has a record.
            "tcp-one-byte-messages" => {
                records(|| sealer.record(APPLICATION_DATA, &frame(2, &[7]), 0))
            }
            "tcp-empty" => sealer.data(&messages(0, bytes)),
            _ => sealer.data(&messages(14_000, bytes)),
        };
        return world.stream(&mut socket, &stream[..bytes.min(stream.len())], PACKET);
    }
    if case == "tcp-one-byte-segments" {
        let stream = sealer.data(&messages(14_000, 14_000));
        return world.stream(&mut socket, &stream[..4_000], 1);
    }
    let mut content = messages(14_000, bytes).into_iter();
    let receipt = frame(3, &[&[0; 16][..], &(1u64 << 30).to_be_bytes()].concat());
    let stream = match case {
        "tcp-one-byte-records" => records(|| {
            let byte = content.next().unwrap_or(0);
            sealer.record(APPLICATION_DATA, &[byte], 0)
        }),
        "tcp-empty-records" => records(|| sealer.record(APPLICATION_DATA, &[], 0)),
        "tcp-padded-records" => records(|| {
            let byte = content.next().unwrap_or(0);
            sealer.record(APPLICATION_DATA, &[byte], 16_300)
        }),
        "tcp-one-byte-parts" => sealer.data(&frame(1, &[7]).repeat(bytes / 5)),
        "tcp-empty-messages" => sealer.data(&messages(0, bytes)),
        "tcp-pings" => sealer.data(&frame(6, &[]).repeat(bytes / 4)),
        "tcp-receipts" => sealer.data(&receipt.repeat(bytes / receipt.len())),
        _ => sealer.data(&frame(0x40, &[]).repeat(bytes / 4)),
    };
    world.stream(&mut socket, &stream[..bytes.min(stream.len())], PACKET)
}

/// Key updates that ask for one of the server, each followed by a byte of data, because TLS limits those without.
fn key_updates(world: &mut World, socket: &mut TcpStream, mut tls: ClientConnection) -> Outcome {
    // A message that never ends.
    let stream = records(|| {
        let mut out = Vec::new();
        let sent = tls.refresh_traffic_keys().is_ok()
            && tls.writer().write_all(&frame(1, &[7])).is_ok()
            && tls.write_tls(&mut out).is_ok();
        assert!(sent, "sent");
        out
    });
    world.stream(socket, &stream, PACKET)
}

/// The first flights of clients, each counted when it has arrived.
fn first_flights(world: &mut World) -> Outcome {
    let mut sockets = Vec::new();
    for _ in 0..CONNECTIONS {
        let (mut socket, mut tls) = (connected(world.to)?, tls()?);
        world.serve();
        let mut out = Vec::new();
        tls.write_tls(&mut out)?;
        world.push(&mut socket, &out)?;
        sockets.push(socket);
    }
    Ok((world.segments, world.is_closed))
}

/// Half-open connections to which bytes arrive that are no TLS.
fn garbage(world: &mut World) -> Outcome {
    let mut closed = 0;
    for _ in 0..CONNECTIONS {
        let mut socket = connected(world.to)?;
        world.serve();
        world.is_closed = false;
        world.push(&mut socket, &[0xc5; PACKET])?;
        closed += u64::from(world.is_closed);
    }
    Ok((world.segments, closed == world.segments))
}

/// A half-open connection whose ClientHello arrives in records of one byte, and does not end.
fn scattered_hello(world: &mut World) -> Outcome {
    let mut socket = connected(world.to)?;
    world.serve();
    // The header of a handshake message of 60,000 bytes, and its content.
    let content = [1, 0, 0xea, 0x60].into_iter().chain(std::iter::repeat_n(3, 60_000));
    let stream: Vec<u8> = content.flat_map(|byte| [22, 3, 1, 0, 1, byte]).collect();
    world.stream(&mut socket, &stream[..stream.len().min(SEGMENTS * PACKET)], PACKET)
}

/// A connection from this host of the loopback network.
pub(crate) fn connected_from(to: SocketAddr, host: [u8; 4]) -> Result<TcpStream, Box<dyn Error>> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::from((host, 0)).into())?;
    socket.connect(&to.into())?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Whole connections, counted from the first segment on, while many of a network wait for their handshakes.
/// Hostile: connections of that network that are closed at once, so that the next one may begin.
fn handshakes(world: &mut World, is_hostile: bool) -> Outcome {
    let mut waiting = Vec::new();
    for number in 0..WAITING {
        let [_, _, _, host] = (number % 250 + 1).to_be_bytes();
        waiting.push(connected_from(world.to, [127, 9, 9, host])?);
        world.serve();
    }
    // They stay open.
    let mut sockets = Vec::new();
    for number in 0..CONNECTIONS {
        world.is_closed = false;
        if is_hostile {
            drop(waiting.remove(0));
            world.measure();
            continue;
        }
        let [_, _, _, host] = (number % 250 + 1).to_be_bytes();
        let mut socket = connected_from(world.to, [127, 8, 8, host])?;
        let mut tls = tls()?;
        shake_hands(&mut socket, &mut tls, || {
            world.is_closed |= measured_sockets(&mut world.server, world.now, &mut world.buffer);
        })?;
        tls.writer().write_all(&hello())?;
        let mut out = Vec::new();
        tls.write_tls(&mut out)?;
        socket.write_all(&out)?;
        world.measure();
        if world.is_closed {
            return Err("closed".into());
        }
        sockets.push(socket);
    }
    Ok((world.segments, false))
}
