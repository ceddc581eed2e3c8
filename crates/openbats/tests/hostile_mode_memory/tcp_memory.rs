//! Attacks on the memory of a server of the mode TCP. What the kernel holds in its buffers of the sockets is not
//! the server's, and not counted: its own limits bound it (`tcp_rmem`, `tcp_wmem`, `tcp_mem`).

use std::error::Error;
use std::io::Write;
use std::net::TcpStream;

use socket2::SockRef;

use crate::tcp::{World, connected_from};
use crate::tcp_client::Sealer;
use crate::{Attacked, credit, longest_message, message};

/// Bytes of the stream in a segment.
const SEGMENT: usize = 64_000;
/// Half-open connections of a network; networks that use up all of them, and one less.
const PER_NETWORK: u32 = 64;
const ALL_NETWORKS: u32 = 4;
const NETWORKS: u32 = 3;
/// Connections of a network: together more than may wait for a handshake.
const SILENT: u32 = 800;
const WAITING: u64 = 2_048;

pub(crate) const NAMES: &[&str] = &[
    "tcp-unread-empty-messages",
    "tcp-unread-one-byte-messages",
    "tcp-unread-messages",
    "tcp-unread-messages-of-two-frames",
    "tcp-unread-and-unfinished-messages",
    "tcp-announced-messages",
    "tcp-unread-answers",
    "tcp-read-messages-of-all-sizes",
    "tcp-long-certificate-chain",
    "tcp-many-connections-unread",
    "tcp-handshake-long-hellos",
    "tcp-handshake-silent",
];

pub(crate) fn run(case: &str) -> Attacked {
    let mut world = World::new()?;
    match case {
        "tcp-unread-empty-messages" => unread(&mut world, &[0]),
        "tcp-unread-one-byte-messages" => unread(&mut world, &[1]),
        "tcp-unread-messages" => unread(&mut world, &[14_000]),
        "tcp-unread-messages-of-two-frames" => unread(&mut world, &[65_537]),
        "tcp-unread-and-unfinished-messages" => unfinished(&mut world),
        "tcp-announced-messages" => announced(&mut world),
        "tcp-unread-answers" => unread_answers(&mut world),
        "tcp-read-messages-of-all-sizes" => unread(&mut world, &[0, 1, 5_000, 70_000, 1_000_000]),
        "tcp-long-certificate-chain" => unread(&mut world, &[1_000]),
        "tcp-many-connections-unread" => many_connections(&mut world),
        "tcp-handshake-long-hellos" => long_hellos(&mut world),
        _ => silent(&mut world),
    }
}

struct Peer {
    socket: TcpStream,
    sealer: Sealer,
}

impl Peer {
    fn new(world: &mut World) -> Result<Self, Box<dyn Error>> {
        let (socket, tls) = world.established()?;
        Ok(Self { socket, sealer: Sealer::new(tls)? })
    }

    /// Sends these frames.
    fn send(&mut self, world: &mut World, frames: &[u8]) -> Result<(), Box<dyn Error>> {
        let stream = self.sealer.data(frames);
        for segment in stream.chunks(SEGMENT) {
            world.push(&mut self.socket, segment)?;
        }
        Ok(())
    }

    /// Messages of these lengths in turn, as long as the credit allows them.
    fn fill(
        &mut self,
        world: &mut World,
        lengths: &[usize],
        credit: usize,
    ) -> Result<(), Box<dyn Error>> {
        let mut frames = Vec::new();
        let mut used = 0;
        for &len in lengths.iter().cycle() {
            used += len + 64;
            if used > credit {
                break;
            }
            frames.extend(message(len));
            if frames.len() > 1 << 20 {
                self.send(world, &std::mem::take(&mut frames))?;
            }
        }
        self.send(world, &frames)
    }
}

fn outcome(world: &World) -> Attacked {
    Ok((world.segments, world.is_closed))
}

fn unread(world: &mut World, lengths: &[usize]) -> Attacked {
    Peer::new(world)?.fill(world, lengths, credit())?;
    outcome(world)
}

/// Messages, and then the longest one without its last byte.
fn unfinished(world: &mut World) -> Attacked {
    let longest = longest_message();
    let mut peer = Peer::new(world)?;
    peer.fill(world, &[10_000], credit() - longest - 64)?;
    let mut frames = message(longest);
    let last = frames.pop();
    peer.send(world, &frames)?;
    let held = world.server.held();
    assert!(held > longest as i64, "{held} bytes without the end of a message of {longest}");
    peer.send(world, last.as_slice())?;
    outcome(world)
}

/// Headers of long frames, of which one byte arrives.
fn announced(world: &mut World) -> Attacked {
    let mut peer = Peer::new(world)?;
    let frames = [&[1, 1, 0, 0][..], &[7; 65_535], &[1, 1, 0, 0, 7]].concat();
    peer.send(world, &frames)?;
    outcome(world)
}

/// The client reads none of the messages that the application sends.
fn unread_answers(world: &mut World) -> Attacked {
    let peer = Peer::new(world)?;
    SockRef::from(&peer.socket).set_recv_buffer_size(4_096)?;
    crate::send_all(&mut world.server, world.now, world.key)?;
    outcome(world)
}

fn many_connections(world: &mut World) -> Attacked {
    let mut peers = Vec::new();
    for _ in 0..crate::CONNECTIONS {
        let mut peer = Peer::new(world)?;
        peer.fill(world, &[14_000], credit())?;
        peers.push(peer);
    }
    outcome(world)
}

/// As many half-open connections as may be, all of which have sent the longest ClientHello but its last byte.
fn long_hellos(world: &mut World) -> Attacked {
    let content: Vec<u8> =
        [1, 0, 0xfe, 0].into_iter().chain(std::iter::repeat_n(3, 0xfdff)).collect();
    let hello: Vec<u8> = content
        .chunks(16_000)
        .flat_map(|part| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
        .collect();
    let mut sockets = Vec::new();
    for number in 0..ALL_NETWORKS * PER_NETWORK {
        let mut socket = connected_from(world.to, host(number, ALL_NETWORKS))?;
        world.measure();
        socket.write_all(&hello)?;
        world.measure();
        sockets.push(socket);
    }
    let started = world.server.endpoint_stats().handshakes_started;
    assert_eq!(started, u64::from(ALL_NETWORKS * PER_NETWORK), "half-open connections");
    outcome(world)
}

/// Connections that say nothing: some are half-open, some wait for those of their network, and others are refused.
fn silent(world: &mut World) -> Attacked {
    let mut sockets = Vec::new();
    for number in 0..NETWORKS * SILENT {
        sockets.push(connected_from(world.to, host(number, NETWORKS))?);
        world.measure();
    }
    let counts = world.server.endpoint_stats();
    assert_eq!(
        counts.handshakes_started,
        u64::from(NETWORKS * PER_NETWORK),
        "half-open connections"
    );
    assert_eq!(counts.connections_refused, u64::from(NETWORKS * (SILENT - PER_NETWORK)) - WAITING);
    outcome(world)
}

/// A host of one of the networks.
fn host(number: u32, networks: u32) -> [u8; 4] {
    [127, 7, (number % networks) as u8, (number / networks % 250 + 1) as u8]
}
