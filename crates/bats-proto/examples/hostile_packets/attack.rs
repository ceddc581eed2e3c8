//! One attack: a peer, the server, and what the server does for each packet.

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{Endpoint, Event, Input, Output, Received, Timestamp};

use crate::harness::Harness;

/// Interval of packets: full-size ones at 120 Mbit/s.
pub(crate) const INTERVAL: Duration = Duration::from_micros(100);

/// What the endpoint does for a datagram, and for the timers that are due. Returns whether it closes
/// the connection. The counter counts this function only.
#[inline(never)]
pub(crate) fn measured(
    server: &mut Endpoint,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    let mut is_closed = false;
    loop {
        match server.poll(now, buffer) {
            Output::Timeout(Some(at)) if at <= now => server.handle(now, Input::Timeout),
            Output::Timeout(_) => return is_closed,
            Output::Event(_, Event::Closed(_)) => is_closed = true,
            _ => {}
        }
    }
}

/// A peer and the server that it attacks.
pub(crate) struct Attack {
    pub(crate) harness: Harness,
    pub(crate) buffer: Vec<u8>,
    pub(crate) packets: u64,
    pub(crate) is_closed: bool,
    /// The application takes what the server delivers.
    pub(crate) is_read: bool,
}

impl Attack {
    pub(crate) fn new(harness: Harness) -> Self {
        Self {
            harness,
            buffer: Vec::with_capacity(65_536),
            packets: 0,
            is_closed: false,
            is_read: true,
        }
    }

    /// Hands a datagram to the server after an interval. Takes what the server delivers.
    /// Packets after the connection was closed do not count.
    pub(crate) fn push(&mut self, mut datagram: Vec<u8>) {
        if self.is_closed {
            return;
        }
        let harness = &mut self.harness;
        harness.now += INTERVAL;
        let (now, remote) = (harness.now, harness.remote);
        self.is_closed |=
            measured(&mut harness.server, now, remote, &mut datagram, &mut self.buffer);
        self.packets += 1;
        if let Some(handle) = harness.handle.filter(|_| self.is_read) {
            while harness.server.recv(now, handle).is_some() {}
        }
    }
}
