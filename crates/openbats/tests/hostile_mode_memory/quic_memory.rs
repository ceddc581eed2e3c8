//! Attacks on the memory of a server of the mode QUIC by peers with valid keys, and by half-open ones.

use std::error::Error;
use std::time::Duration;

use bats_proto::Input;

use crate::counted::SETTINGS;
use crate::quic::{World, address, begin, full, ids};
use crate::quic_client::{
    Client, Id, ack, frame, initial, initial_keys, long_header, seal, stream,
};
use crate::{Attacked, credit, longest_message, message};

/// Bytes of a stream in a packet.
const PART: usize = 1_130;
/// The longest datagram that a server accepts, and the longest of UDP.
const LONGEST: usize = 1_472;
const LONGEST_UDP: usize = 65_507;
/// The largest window of a stream.
const LARGEST_WINDOW: usize = 16 << 20;
/// Frames of a packet that are allowed for as long as a peer sends.
const FRAMES_PER_PACKET: u64 = 8;
/// Packets of attacks without an end.
const PACKETS: u64 = 20_000;
/// More than twice the packets that need not be acknowledged: each two get one.
const UNACKNOWLEDGED: u64 = 300_000;
/// Messages of 1 MiB of the server that are acknowledged before.
const ACKNOWLEDGED_MESSAGES: usize = 8;
/// Half-open handshakes of an attack.
const HALF_OPEN: u32 = 40;

pub(crate) const NAMES: &[&str] = &[
    "quic-unread-empty-messages",
    "quic-unread-one-byte-messages",
    "quic-unread-messages",
    "quic-unread-messages-of-two-frames",
    "quic-unread-and-unfinished-messages",
    "quic-read-messages-of-all-sizes",
    "quic-window-behind-a-gap",
    "quic-unread-messages-and-a-gap",
    "quic-few-descending-gaps",
    "quic-gaps-in-long-datagrams",
    "quic-gaps-in-longest-datagrams",
    "quic-many-pieces-in-long-datagrams",
    "quic-unread-answers",
    "quic-unacknowledged-pings",
    "quic-unacknowledged-ids",
    "quic-stopped-and-reset-streams",
    "quic-unread-datagrams",
    "quic-unread-one-byte-datagrams",
    "quic-messages-with-datagrams",
    "quic-many-connections-unread",
    "quic-handshake-long-hellos",
    "quic-handshake-gaps",
    "quic-handshake-gaps-in-long-datagrams",
];

pub(crate) fn run(case: &str) -> Attacked {
    let mut world = World::new(case.ends_with("datagrams") && !case.contains("-in-"))?;
    match case {
        "quic-handshake-long-hellos" => {
            return half_open(&mut world, 60, |to, from, number| {
                // The longest ClientHello, without its last byte.
                let (at, header) = (1_100 * number, [1, 0, 0xfe, 0]);
                let mut bytes = if number == 0 { header.to_vec() } else { Vec::new() };
                bytes.resize(1_100.min(0xfe03 - at as usize), 3);
                let frames = frame(0x06, &[at, bytes.len() as u64], &bytes);
                initial(to, to, from, number, &frames)
            });
        }
        "quic-handshake-gaps" => {
            return half_open(&mut world, 60, |to, from, number| {
                // As many as are allowed.
                let frames = if number == 0 { 250 } else { FRAMES_PER_PACKET };
                let at = 1_000 + 2 * 250 * number;
                let frames = (0..frames).flat_map(|n| frame(0x06, &[at + 2 * n, 1], &[7]));
                initial(to, to, from, number, &frames.collect::<Vec<u8>>())
            });
        }
        "quic-handshake-gaps-in-long-datagrams" => {
            return half_open(&mut world, 60, |to, from, number| {
                let frames = frame(0x06, &[1_000 + 2 * number, 1], &[7]);
                if number == 0 {
                    return initial(to, to, from, 0, &frames);
                }
                let mut packet = short_initial(to, from, number, &frames);
                let mut datagram = padding(to, LONGEST - packet.len());
                datagram.append(&mut packet);
                datagram
            });
        }
        _ => {}
    }
    let mut peer = Peer { client: world.established(1)?, at: begin() };
    let budget = SETTINGS.get().budget;
    let window = budget.min(LARGEST_WINDOW);
    match case {
        "quic-unread-empty-messages" => peer.fill(&mut world, &[0], credit()),
        "quic-unread-one-byte-messages" => peer.fill(&mut world, &[1], credit()),
        "quic-unread-messages" => peer.fill(&mut world, &[14_000], credit()),
        "quic-unread-messages-of-two-frames" => peer.fill(&mut world, &[65_537], credit()),
        "quic-unread-and-unfinished-messages" => {
            let longest = longest_message();
            peer.fill(&mut world, &[10_000], credit() - longest - 64);
            let mut frames = message(longest);
            let last = frames.pop();
            peer.send(&mut world, &frames);
            let held = world.server.held();
            assert!(held > longest as i64, "{held} bytes without the end of a message");
            peer.send(&mut world, last.as_slice());
        }
        "quic-read-messages-of-all-sizes" => {
            peer.fill(&mut world, &[0, 1, 5_000, 70_000, 1_000_000], credit());
        }
        "quic-window-behind-a-gap" => peer.fill_window(&mut world, window),
        "quic-unread-messages-and-a-gap" => {
            peer.fill(&mut world, &[14_000], credit());
            peer.fill_window(&mut world, window * 7 / 8);
        }
        "quic-few-descending-gaps" => {
            let mut next = 0;
            while world.packets < PACKETS && !world.is_closed {
                let frames: Vec<u8> = (0..FRAMES_PER_PACKET)
                    .flat_map(|_| {
                        next += 1;
                        stream(begin() + 1_000_000 - 2 * next, &[7])
                    })
                    .collect();
                world.push(peer.client.packet(&frames));
            }
        }
        "quic-gaps-in-long-datagrams" => peer.pieces(&mut world, 1, LONGEST),
        "quic-gaps-in-longest-datagrams" => peer.pieces(&mut world, 1, LONGEST_UDP),
        "quic-many-pieces-in-long-datagrams" => peer.pieces(&mut world, 200, LONGEST),
        "quic-unread-answers" => {
            peer.send(&mut world, &message(14_000));
            crate::send_all(&mut world.server, world.now, world.key)?;
            world.push(peer.client.packet(&[1]));
        }
        "quic-unacknowledged-pings" => {
            // A large congestion window is full late.
            let key = world.key.ok_or("not accepted")?;
            for _ in 0..ACKNOWLEDGED_MESSAGES {
                world.server.send(world.now, key, vec![7; 1 << 20].into())?;
                peer.acknowledge_all(&mut world)?;
            }
            for number in 0..UNACKNOWLEDGED {
                world.push(peer.client.packet(&[1; 7]));
                // The session has a timeout of its own.
                if number % 1_000 == 0 {
                    peer.send(&mut world, &[6, 0, 0, 0]);
                }
            }
            assert!(world.is_closed, "{} packets", world.packets);
        }
        "quic-unacknowledged-ids" => {
            // The server issues another ID for each that is retired, and cannot send it without acknowledgements: their
            // sequence numbers are guessed. One is in use.
            let (used, to) = *peer.client.issued.first().ok_or("no IDs")?;
            let mut next = (0..).filter(|&sequence| sequence != used);
            for _ in 0..PACKETS {
                let retired = next.by_ref().take(peer.client.issued.len());
                let frames: Vec<u8> =
                    retired.flat_map(|sequence| frame(0x19, &[sequence], &[])).collect();
                world.push(peer.client.packet_to(to, &frames, 0));
            }
        }
        "quic-stopped-and-reset-streams" => {
            for number in 0..PACKETS {
                let id = 4 * (number / 2);
                let frames = [
                    frame(0x0e, &[id, begin(), 1], &[7]),
                    frame(0x04, &[id, 0, begin() + 1], &[]),
                    frame(0x05, &[id, 0], &[]),
                ];
                world.push(peer.client.packet(&frames.concat()));
            }
        }
        "quic-unread-datagrams" => peer.datagrams(&mut world, 1_100, budget),
        "quic-unread-one-byte-datagrams" => peer.datagrams(&mut world, 1, budget),
        "quic-messages-with-datagrams" => {
            peer.fill(&mut world, &[14_000], credit());
            assert!(world.is_closed, "messages go as datagrams only");
        }
        _ => {
            let mut peers = vec![peer];
            while peers.len() < crate::CONNECTIONS {
                let client = world.established(peers.len() as u32 + 1)?;
                peers.push(Peer { client, at: begin() });
            }
            for (number, peer) in peers.iter_mut().enumerate() {
                world.remote = address(number as u32 + 1);
                peer.fill(&mut world, &[14_000], credit());
            }
        }
    }
    outcome(&world)
}

fn outcome(world: &World) -> Attacked {
    Ok((world.packets, world.is_closed))
}

struct Peer {
    client: Client,
    /// Offset of the next byte of the stream.
    at: u64,
}

impl Peer {
    /// Sends these frames of the session.
    fn send(&mut self, world: &mut World, frames: &[u8]) {
        for part in frames.chunks(PART) {
            let datagram = self.client.packet(&stream(self.at, part));
            self.at += part.len() as u64;
            world.push(datagram);
        }
    }

    /// Messages of these lengths in turn, as long as the credit allows them.
    fn fill(&mut self, world: &mut World, lengths: &[usize], credit: usize) {
        let mut frames = Vec::new();
        let mut used = 0;
        for &len in lengths.iter().cycle() {
            used += len + 64;
            if used > credit {
                break;
            }
            frames.extend(message(len));
            if frames.len() > 1 << 16 {
                self.send(world, &std::mem::take(&mut frames));
            }
        }
        self.send(world, &frames);
    }

    /// A missing byte, and so many bytes behind it.
    fn fill_window(&mut self, world: &mut World, bytes: usize) {
        self.at += 1;
        self.send(world, &vec![7; bytes - 20_000]);
    }

    /// Pieces of the stream with gaps of a byte between them, in datagrams of this length.
    fn pieces(&mut self, world: &mut World, len: usize, datagram: usize) {
        for _ in 0..PACKETS {
            self.at += 1;
            let mut packet = self.client.packet(&stream(self.at, &vec![7; len]));
            self.at += len as u64;
            let mut padded = padding(&self.client.id(), datagram - packet.len());
            padded.append(&mut packet);
            world.push(padded);
        }
    }

    /// Acknowledges what the server sends, until it has sent all.
    fn acknowledge_all(&mut self, world: &mut World) -> Result<(), Box<dyn Error>> {
        let mut acknowledged = self.client.seen.len();
        // Its pacing lets out more later.
        for _ in 0..200 {
            world.now += Duration::from_millis(1);
            world.server.handle(world.now, Input::Timeout);
            let mut datagrams = world.settle();
            while !datagrams.is_empty() {
                for datagram in &datagrams {
                    self.client.learn(datagram)?;
                }
                // Some numbers are left out on purpose.
                let new = self.client.seen.len() - acknowledged;
                let frames = ack(self.client.seen.iter().rev().take(new).copied());
                acknowledged += new;
                datagrams = world.deliver(self.client.packet(&frames));
            }
        }
        Ok(())
    }

    /// Datagrams of this length, as many as fit in each packet: some more than may be unread.
    fn datagrams(&mut self, world: &mut World, len: usize, bytes: usize) {
        let frames = full(&mut 0, |_| frame(0x31, &[len as u64], &vec![7; len]));
        let cost = frames.len() / frame(0x31, &[len as u64], &vec![7; len]).len() * (len + 64);
        for _ in 0..bytes / cost + 100 {
            world.push(self.client.packet(&frames));
        }
    }
}

/// An Initial packet of this length that no server can read.
fn padding(to: &Id, len: usize) -> Vec<u8> {
    // With the tag, and a longer length field.
    let others = long_header(0, to, &[9; 8], 0, len).len() + 16;
    let mut packet = long_header(0, to, &[9; 8], 0, len - others);
    packet.resize(len, 0xc5);
    packet
}

/// As [`initial`], without padding.
fn short_initial(to: &Id, from: &Id, number: u64, frames: &[u8]) -> Vec<u8> {
    let keys = initial_keys(to).expect("a cipher suite");
    let header = long_header(0, to, from, number, frames.len());
    seal(&keys.local, number, &header, frames)
}

/// Clients that send so many packets and do not end their handshakes.
fn half_open(
    world: &mut World,
    packets: u64,
    packet: impl Fn(&Id, &Id, u64) -> Vec<u8>,
) -> Attacked {
    for client in 0..HALF_OPEN {
        world.remote = address(5_000 + client);
        let [to, from] = ids(client);
        world.is_closed = false;
        (0..packets).for_each(|number| world.push(packet(&to, &from, number)));
    }
    outcome(world)
}
