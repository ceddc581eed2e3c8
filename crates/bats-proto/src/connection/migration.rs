//! The peer's address changes: a NAT gave it another port, or it moved to another network.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use bats_types::Timestamp;
use rand::Rng;

use super::{Connection, MAX_ACK_DELAY, Role};
use crate::endpoint::Transmit;
use crate::link::loss::LossEstimator;
use crate::link::mtu::MtuDiscovery;
use crate::link::rtt::RttEstimator;
use crate::link::sent::Contents;
use crate::wire::frame::{self, Frame};
use crate::wire::short_header::PacketKind;

/// Challenges sent to an address before it is given up.
const MAX_CHALLENGES: u32 = 5;
/// Probe time-outs for which a port is believed without a proof: there are four challenges in them.
const BELIEVED_PROBES: u32 = 8;
/// Bytes sent to an unproved address for each one that came from there (RFC 9000, section 8).
const AMPLIFICATION: u64 = 3;

/// An address from which the peer seems to speak, until it proves that it hears there, too.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    challenge: u64,
    sent: u32,
    next: Timestamp,
    bytes_received: u64,
    bytes_sent: u64,
}

/// Validation of a new path (RFC 9000, section 8.2). There is one candidate: the newest.
#[derive(Debug, Default)]
pub(super) struct Migration {
    candidate: Option<Candidate>,
    /// Addresses taken so far.
    pub(super) changes: u64,
    /// The last address that was proved, while packets go to another port of its host that is not.
    proved: Option<Address>,
    /// Until when such a port is believed.
    believed_until: Option<Timestamp>,
    /// A port did not prove itself: the next one is not believed before it does.
    distrusts_ports: bool,
}

/// Where packets go, and from where.
type Address = (SocketAddr, Option<IpAddr>);

impl Migration {
    /// When a challenge is due, or an unproved port is to be left.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let challenge = self.candidate.map(|candidate| candidate.next);
        challenge.into_iter().chain(self.believed_until).min()
    }
}

impl Connection {
    /// An authentic packet, newer than all before it, of so many bytes came from elsewhere. Only a
    /// server follows: clients know where their server is.
    ///
    /// Another port of the same host is a NAT that forgot, and is followed at once (RFC 9000, section 9.3),
    /// without the limit of an unproved address: the host has proved that it wants to hear. Whoever
    /// repeats a client's packets from another port of that host, and faster than they arrive, gets
    /// this once; then ports must prove themselves first, too.
    pub(super) fn on_other_address(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        bytes: usize,
    ) {
        if self.role != Role::Server {
            return;
        }
        if self.migration.proved.is_some_and(|(proved, _)| proved == remote) {
            return self.return_to_proved(now);
        }
        match &mut self.migration.candidate {
            Some(candidate) if candidate.remote == remote => {
                candidate.bytes_received += bytes as u64;
            }
            _ => self.challenge(now, remote, local_ip, bytes),
        }
        let migration = &mut self.migration;
        if remote.ip() == self.remote.ip()
            && migration.proved.is_none()
            && !migration.distrusts_ports
        {
            let patience = self.rtt.probe_timeout(MAX_ACK_DELAY) * BELIEVED_PROBES;
            migration.believed_until = Some(now + patience);
            migration.proved = Some((self.remote, self.local_ip));
            (self.remote, self.local_ip) = (remote, local_ip);
            self.leave_behind(now);
        }
    }

    /// The newest packet came from where this end sends to.
    pub(super) fn on_known_address(&mut self, now: Timestamp, bytes: usize) {
        if self.migration.proved.is_none() {
            self.migration.candidate = None;
            return;
        }
        match &mut self.migration.candidate {
            Some(candidate) if candidate.remote == self.remote => {
                candidate.bytes_received += bytes as u64;
            }
            _ => self.challenge(now, self.remote, self.local_ip, bytes),
        }
    }

    fn challenge(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        bytes: usize,
    ) {
        self.migration.candidate = Some(Candidate {
            remote,
            local_ip,
            challenge: self.rng.next_u64(),
            sent: 0,
            next: now,
            bytes_received: bytes as u64,
            bytes_sent: 0,
        });
    }

    /// The port that was believed did not prove itself, or the client still speaks from the one before.
    fn return_to_proved(&mut self, now: Timestamp) {
        if let Some(proved) = self.migration.proved.take() {
            (self.remote, self.local_ip) = proved;
            self.migration.candidate = None;
            self.migration.believed_until = None;
            self.migration.distrusts_ports = true;
            self.leave_behind(now);
        }
    }

    /// A challenge for the new address, if one is due.
    pub(super) fn poll_challenge(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if self.migration.believed_until.is_some_and(|until| until <= now) {
            self.return_to_proved(now);
        }
        let mut candidate = self.migration.candidate.filter(|candidate| candidate.next <= now)?;
        if candidate.sent == MAX_CHALLENGES {
            self.migration.candidate = None;
            if candidate.remote == self.remote {
                self.return_to_proved(now);
            }
            return None;
        }
        self.begin_packet(buffer);
        let challenge = Frame::PathChallenge(candidate.challenge);
        let start = self.write_frames(buffer, |writer| frame::encode(writer, &challenge));
        self.finish_packet(now, buffer, start, PacketKind::Control, true, Contents::default());
        let len = buffer.len();
        candidate.sent += 1;
        candidate.bytes_sent += len as u64;
        let wait = self.rtt.probe_timeout(MAX_ACK_DELAY) * (1 << candidate.sent.min(6)) / 2;
        candidate.next = now + wait.max(Duration::from_millis(1));
        self.migration.candidate = Some(candidate);
        if candidate.bytes_sent > AMPLIFICATION * candidate.bytes_received {
            // The number is used; it counts as lost.
            buffer.clear();
            return None;
        }
        let mut transmit = self.transmit(now, buffer, len);
        (transmit.remote, transmit.local_ip) = (candidate.remote, candidate.local_ip);
        Some(transmit)
    }

    /// Whoever was challenged answers.
    pub(super) fn on_path_response(&mut self, now: Timestamp, response: u64) {
        let Some(candidate) = self.migration.candidate.filter(|c| c.challenge == response) else {
            return;
        };
        self.migration.candidate = None;
        (self.migration.proved, self.migration.believed_until) = (None, None);
        self.migration.changes += 1;
        if candidate.remote == self.remote {
            return;
        }
        let moved = candidate.remote.ip() != self.remote.ip();
        (self.remote, self.local_ip) = (candidate.remote, candidate.local_ip);
        if moved {
            // Another network: nothing of what is known of the path holds (RFC 9000, section 9.4). A
            // new port of the same address is a NAT that forgot.
            let rtt = self.rtt.smoothed();
            self.rtt = RttEstimator::new(rtt);
            self.sent.loss = LossEstimator::default();
            self.mtu = MtuDiscovery::new(self.max_udp_payload);
            self.controller = self.new_controller();
            // Its rounds end by bytes of the connection, and those before it count.
            self.controller.on_sent(now, self.sent.bytes_sent(), 0);
        }
        self.leave_behind(now);
    }

    /// What went to the old address says nothing about the path, and nobody will ask for it before
    /// something else arrives.
    fn leave_behind(&mut self, now: Timestamp) {
        let lost = self.sent.abandon_in_flight();
        self.retransmit_control(lost);
        let view = self.path_view();
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_path_lost(now, &view);
        }
        self.probe_count = 0;
        self.blackout = None;
        self.arm_probe(now);
    }
}
