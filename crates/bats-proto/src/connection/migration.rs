//! Connection migration: NAT rebinding of the peer's port, or a move to another network (RFC 9000,
//! section 9).

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

/// Path challenges sent to an address before validation fails.
const MAX_CHALLENGES: u32 = 5;
/// Probe timeouts for which a new port is used before it is validated: time for four challenges.
const REBINDING_PROBES: u32 = 8;
/// Bytes sent to an unvalidated address per byte received from it (RFC 9000, section 8).
const AMPLIFICATION: u64 = 3;
/// Bytes that data leaves for further challenges of an unvalidated address. A challenge takes 32
/// bytes, an IP and a UDP header excluded.
const CHALLENGES_BYTES: u64 = 40 * (MAX_CHALLENGES as u64 - 1);

/// A new address of the peer that is being validated.
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

/// Path validation (RFC 9000, section 8.2). There is one candidate: the newest address.
#[derive(Debug, Default)]
pub(super) struct Migration {
    candidate: Option<Candidate>,
    /// Addresses validated so far.
    pub(super) changes: u64,
    /// The last validated address, while packets go to an unvalidated port of the same host.
    validated: Option<PathAddresses>,
    /// Until when such a port is used without validation.
    unvalidated_until: Option<Timestamp>,
    /// A port failed validation: from now on ports are used only after validation.
    rebinding_disallowed: bool,
}

/// The peer's address, and the local address that packets are sent from.
type PathAddresses = (SocketAddr, Option<IpAddr>);

impl Migration {
    /// Whether packets go to a port that is not validated yet.
    pub(super) fn is_unvalidated(&self) -> bool {
        self.validated.is_some()
    }

    /// When a challenge is due, or an unvalidated port must be abandoned.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let challenge = self.candidate.map(|candidate| candidate.next);
        challenge.into_iter().chain(self.unvalidated_until).min()
    }
}

impl Connection {
    /// An authentic packet of `bytes` bytes, with the largest number so far, came from a new
    /// address. Only servers migrate: clients know their server's address.
    ///
    /// Another port of the same host is NAT rebinding. The server uses it at once (RFC 9000,
    /// section 9.3), but sends at most three times the bytes received from it until it is
    /// validated: behind a CGN (RFC 6888) it may belong to another customer. An attacker on that
    /// host who replays packets faster than they arrive achieves this once; afterwards new ports
    /// must be validated first.
    pub(super) fn on_new_address(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        local_ip: Option<IpAddr>,
        bytes: usize,
    ) {
        if self.role != Role::Server {
            return;
        }
        if self.migration.validated.is_some_and(|(validated, _)| validated == remote) {
            return self.return_to_validated(now);
        }
        match &mut self.migration.candidate {
            Some(candidate) if candidate.remote == remote => {
                candidate.bytes_received += bytes as u64;
            }
            _ => self.challenge(now, remote, local_ip, bytes),
        }
        let migration = &mut self.migration;
        if remote.ip() == self.remote.ip()
            && migration.validated.is_none()
            && !migration.rebinding_disallowed
        {
            let timeout = self.rtt.probe_timeout(MAX_ACK_DELAY) * REBINDING_PROBES;
            migration.unvalidated_until = Some(now + timeout);
            migration.validated = Some((self.remote, self.local_ip));
            (self.remote, self.local_ip) = (remote, local_ip);
            self.abandon_old_path(now);
        }
    }

    /// The newest packet came from the current address of the peer.
    pub(super) fn on_current_address(&mut self, now: Timestamp, bytes: usize) {
        if self.migration.validated.is_none() {
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

    /// Bytes that may be sent now to a port that is used before it is validated; `None` if the
    /// current address is validated.
    fn unvalidated_allowance(&self) -> Option<u64> {
        self.migration.validated?;
        let candidate = self.migration.candidate.filter(|c| c.remote == self.remote);
        Some(candidate.map_or(0, |c| {
            c.bytes_received.saturating_mul(AMPLIFICATION).saturating_sub(c.bytes_sent)
        }))
    }

    /// Whether nothing but challenges may be sent until the current address is validated. Data
    /// waits in its buffers.
    pub(super) fn awaits_validation(&self) -> bool {
        self.unvalidated_allowance()
            .is_some_and(|allowance| allowance < u64::from(self.mtu.current()) + CHALLENGES_BYTES)
    }

    /// Charges bytes sent to an address that is not validated yet.
    pub(super) fn charge_unvalidated(&mut self, bytes: u64) {
        if let Some(candidate) = &mut self.migration.candidate
            && candidate.remote == self.remote
        {
            candidate.bytes_sent += bytes;
        }
    }

    /// Validation of the new port failed, or the client still uses the old one.
    fn return_to_validated(&mut self, now: Timestamp) {
        if let Some(validated) = self.migration.validated.take() {
            (self.remote, self.local_ip) = validated;
            self.migration.candidate = None;
            self.migration.unvalidated_until = None;
            self.migration.rebinding_disallowed = true;
            self.abandon_old_path(now);
        }
    }

    /// Writes a path challenge for the new address, if one is due.
    pub(super) fn poll_challenge(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
    ) -> Option<Transmit> {
        if self.migration.unvalidated_until.is_some_and(|until| until <= now) {
            self.return_to_validated(now);
        }
        let mut candidate = self.migration.candidate.filter(|candidate| candidate.next <= now)?;
        if candidate.sent == MAX_CHALLENGES {
            self.migration.candidate = None;
            if candidate.remote == self.remote {
                self.return_to_validated(now);
            }
            return None;
        }
        self.begin_packet(buffer);
        let challenge = Frame::PathChallenge(candidate.challenge);
        let start = self.write_frames(buffer, |writer| frame::encode(writer, &challenge));
        self.finish_packet(now, buffer, start, PacketKind::Control, true, Contents::default());
        let len = buffer.len();
        candidate.sent += 1;
        let charged_later = candidate.remote == self.remote;
        let bytes_sent = candidate.bytes_sent + len as u64;
        let wait = self.rtt.probe_timeout(MAX_ACK_DELAY) * (1 << candidate.sent.min(6)) / 2;
        candidate.next = now + wait.max(Duration::from_millis(1));
        if bytes_sent > AMPLIFICATION * candidate.bytes_received {
            self.migration.candidate = Some(candidate);
            // The packet number is used up; the packet counts as lost.
            buffer.clear();
            return None;
        }
        if !charged_later {
            candidate.bytes_sent = bytes_sent;
        }
        self.migration.candidate = Some(candidate);
        let mut transmit = self.transmit(now, buffer, len);
        (transmit.remote, transmit.local_ip) = (candidate.remote, candidate.local_ip);
        Some(transmit)
    }

    /// A path response arrived: the candidate is validated if it matches.
    pub(super) fn on_path_response(&mut self, now: Timestamp, response: u64) {
        let Some(candidate) = self.migration.candidate.filter(|c| c.challenge == response) else {
            return;
        };
        self.migration.candidate = None;
        (self.migration.validated, self.migration.unvalidated_until) = (None, None);
        self.migration.changes += 1;
        if candidate.remote == self.remote {
            return;
        }
        let moved = candidate.remote.ip() != self.remote.ip();
        (self.remote, self.local_ip) = (candidate.remote, candidate.local_ip);
        if moved {
            // Another network: path estimates do not apply any more (RFC 9000, section 9.4). A new
            // port of the same host is NAT rebinding and keeps them.
            let rtt = self.rtt.smoothed();
            self.rtt = RttEstimator::new(rtt);
            self.sent.loss = LossEstimator::default();
            self.mtu = MtuDiscovery::new(self.max_udp_payload);
            self.controller = self.new_controller();
            // Round trips are counted by bytes sent on the connection, earlier ones included.
            self.controller.on_sent(now, self.sent.bytes_sent(), 0);
        }
        self.abandon_old_path(now);
    }

    /// Abandons packets in flight to the old address, or that are too large for the path. They say nothing about
    /// the path as it is now, and the peer cannot report them missing before something else arrives.
    pub(super) fn abandon_old_path(&mut self, now: Timestamp) {
        let lost = self.sent.abandon_path(now);
        self.retransmit_control(lost);
        let view = self.path_view();
        let is_limited = self.migration.is_unvalidated();
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_path_lost(now, &view, is_limited);
        }
        self.probe_count = 0;
        self.blackout = None;
        self.arm_probe(now);
    }
}
