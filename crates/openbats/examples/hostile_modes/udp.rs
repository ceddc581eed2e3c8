//! Datagrams of known and unknown peers for a server of the mode UDP.

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{Event, Input, Mode, Received, Timestamp};
use openbats::bindings::{Key, Step};

use crate::{Bindings, Outcome, PACKET, measured, server};

pub(crate) const NAMES: &[&str] = &[
    "udp-empty-datagrams",
    "udp-not-taken",
    "udp-longest-datagrams",
    "udp-unknown-peers",
    "udp-unknown-peers-beyond-the-limit",
];

const PACKETS: u32 = 2_000;
/// Peers that a server has at most.
const PEERS: u32 = 4_096;

/// The honest packets that a case is compared with.
pub(crate) fn honest_name(case: &str) -> &'static str {
    match case {
        "udp-empty-datagrams" => "udp-empty",
        "udp-longest-datagrams" => "udp-longest",
        "udp-unknown-peers" => "udp-first-of-many-peers",
        "udp-unknown-peers-beyond-the-limit" => "udp-of-many-peers",
        _ => "udp",
    }
}

struct World {
    server: Bindings,
    now: Timestamp,
    buffer: Vec<u8>,
    accepted: Vec<Key>,
}

fn peer(number: u32) -> SocketAddr {
    SocketAddr::from(((0x0a00_0000 | (number * 7)).to_be_bytes(), 4_433))
}

impl World {
    /// A datagram that is not counted.
    fn prepare(&mut self, remote: SocketAddr, len: usize) {
        let mut payload = vec![7; len];
        let payload = &mut payload[..];
        let datagram = Received { remote, local_ip: None, ecn: 0, payload };
        self.server.handle(self.now, Input::Datagram(datagram));
        loop {
            match self.server.poll(self.now, &mut self.buffer) {
                Step::Event(key, Event::Accepted) => self.accepted.push(key),
                Step::Timeout(_) => break,
                _ => {}
            }
        }
        self.take();
    }

    fn push(&mut self, remote: SocketAddr, len: usize) -> bool {
        self.now += Duration::from_micros(100);
        let mut payload = vec![7; len];
        measured(&mut self.server, self.now, remote, &mut payload, &mut self.buffer)
    }

    /// Takes messages of the peer that was accepted last.
    fn take(&mut self) {
        if let Some(&key) = self.accepted.last() {
            while self.server.recv(self.now, key).is_some() {}
        }
    }
}

pub(crate) fn run(case: &str, is_hostile: bool) -> Outcome {
    let server = server(Mode::Udp, false)?;
    let now = server.start();
    let mut world = World { server, now, buffer: Vec::with_capacity(65_536), accepted: Vec::new() };
    let mut is_closed = false;
    let len = match case {
        "udp-empty-datagrams" => 0,
        "udp-longest-datagrams" => 65_507,
        _ => PACKET,
    };
    match case {
        // The honest peers begin as many connections, while there is room for all.
        "udp-unknown-peers" => {
            let known = if is_hostile { PEERS - PACKETS } else { 0 };
            (0..known).for_each(|number| world.prepare(peer(number), len));
            for number in known..known + PACKETS {
                is_closed |= world.push(peer(number), if is_hostile { 0 } else { len });
            }
        }
        "udp-unknown-peers-beyond-the-limit" => {
            (0..PEERS).for_each(|number| world.prepare(peer(number), 1));
            let first = if is_hostile { PEERS } else { 0 };
            for number in first..first + PACKETS {
                is_closed |= world.push(peer(number), len);
            }
        }
        _ => {
            world.prepare(peer(0), len);
            if case == "udp-not-taken" && is_hostile {
                // More than the queue of a peer holds.
                for _ in 0..10_000 {
                    let _ = world.push_uncounted(peer(0));
                }
            }
            for _ in 0..PACKETS {
                is_closed |= world.push(peer(0), len);
                if case != "udp-not-taken" || !is_hostile {
                    world.take();
                }
            }
        }
    }
    Ok((u64::from(PACKETS), is_closed))
}

impl World {
    /// A datagram that the application does not take, not counted.
    fn push_uncounted(&mut self, remote: SocketAddr) -> bool {
        let mut payload = vec![7; PACKET];
        let payload = &mut payload[..];
        let datagram = Received { remote, local_ip: None, ecn: 0, payload };
        self.server.handle(self.now, Input::Datagram(datagram));
        crate::polled(&mut self.server, self.now, &mut self.buffer)
    }
}
