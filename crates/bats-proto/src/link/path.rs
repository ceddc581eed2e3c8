//! The path of a link: its 4-tuple, the validation of new addresses of the peer (RFC 9000, section 9), and the
//! anti-amplification limit (section 8).

use core::net::IpAddr;
use core::num::NonZeroU32;
use core::time::Duration;

use bats_types::Timestamp;
use rand::Rng;

use crate::datagram::{Local, Outgoing};
use crate::remote::Remote;

/// ECN codepoint ECT(0) (RFC 9000, section 13.4).
const ECT0: u8 = 0b10;
/// Path challenges sent to an address before validation fails.
const MAX_CHALLENGES: u32 = 5;
/// Probe timeouts for which a new port is used before it is validated: time for four challenges.
const REBINDING_PROBES: u32 = 8;
/// Bytes sent to an unvalidated address per byte received from it (RFC 9000, section 8).
const AMPLIFICATION: u64 = 3;
/// Bytes that data leaves for further challenges of an unvalidated address. A challenge takes 32
/// bytes, an IP and a UDP header excluded.
const CHALLENGES_BYTES: u64 = 40 * (MAX_CHALLENGES as u64 - 1);

/// Where the peer is, and the local address that packets are sent from.
type Addresses = (Remote, Option<IpAddr>);

/// A new address of the peer that is being validated.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    remote: Remote,
    local_ip: Option<IpAddr>,
    challenge: u64,
    sent: u32,
    next: Timestamp,
    bytes_received: u64,
    bytes_sent: u64,
}

/// What a path response has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Validated {
    /// It belongs to no challenge.
    Nothing,
    /// The address in use is validated.
    Current,
    /// The peer has another port of the same host: NAT rebinding.
    Rebound,
    /// The peer has moved to another network.
    Moved,
}

/// The current 4-tuple of a link, and the validation of the peer's newest address (RFC 9000, section 8.2).
#[derive(Debug)]
pub(super) struct Path {
    remote: Remote,
    local_ip: Option<IpAddr>,
    /// The only interface to send through; a client's stays the same.
    interface: Option<NonZeroU32>,
    /// Bytes received and sent in total; they limit a server until the handshake has validated the client.
    received: u64,
    sent: u64,
    candidate: Option<Candidate>,
    /// Addresses validated so far.
    changes: u64,
    /// The last validated address, while packets go to an unvalidated port of the same host.
    validated: Option<Addresses>,
    /// Until when such a port is used without validation.
    unvalidated_until: Option<Timestamp>,
    /// A port failed validation: from now on ports are used only after validation.
    rebinding_disallowed: bool,
    /// When an address was last validated after the handshake.
    changed_at: Option<Timestamp>,
    /// When packets in flight were last abandoned because the peer's port had changed, and the number of the
    /// next packet then.
    abandoned: Option<(Timestamp, u64)>,
}

impl Path {
    pub(super) fn new(remote: Remote, local: Local) -> Self {
        Self {
            remote,
            local_ip: local.ip,
            interface: local.interface,
            received: 0,
            sent: 0,
            candidate: None,
            changes: 0,
            validated: None,
            unvalidated_until: None,
            rebinding_disallowed: false,
            changed_at: None,
            abandoned: None,
        }
    }

    /// Where the peer is.
    pub(super) fn remote(&self) -> Remote {
        self.remote
    }

    /// Local address that packets leave from, if it is known.
    pub(super) fn local_ip(&self) -> Option<IpAddr> {
        self.local_ip
    }

    /// Addresses of the peer that were validated after the handshake.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// A datagram of `bytes` bytes arrived.
    pub(super) fn on_received(&mut self, bytes: usize) {
        self.received += bytes as u64;
    }

    /// Datagrams of `len` bytes in total leave now. Charges them to an address that is not validated yet.
    pub(super) fn transmit(&mut self, len: usize, segment_size: usize) -> Outgoing {
        self.sent += len as u64;
        if let Some(candidate) = &mut self.candidate
            && candidate.remote == self.remote
        {
            candidate.bytes_sent += len as u64;
        }
        Outgoing {
            remote: self.remote,
            local_ip: self.local_ip,
            interface: self.interface,
            ecn: ECT0,
            segment_size,
            len,
        }
    }

    /// Bytes that may be sent now while the handshake has not validated the peer's address.
    pub(super) fn handshake_allowance(&self) -> usize {
        let allowed = self.received.saturating_mul(AMPLIFICATION);
        usize::try_from(allowed.saturating_sub(self.sent)).unwrap_or(usize::MAX)
    }

    /// Whether packets go to a port that is not validated yet.
    pub(super) fn is_unvalidated(&self) -> bool {
        self.validated.is_some()
    }

    /// Whether nothing but challenges may be sent until the current address is validated, with packets of
    /// `packet` bytes. Data waits in its buffers.
    pub(super) fn awaits_validation(&self, packet: u16) -> bool {
        self.unvalidated_allowance()
            .is_some_and(|allowance| allowance < u64::from(packet) + CHALLENGES_BYTES)
    }

    /// Bytes that may be sent now to a port that is used before it is validated; `None` if the
    /// current address is validated.
    fn unvalidated_allowance(&self) -> Option<u64> {
        self.validated?;
        let candidate = self.candidate.filter(|c| c.remote == self.remote);
        Some(candidate.map_or(0, |c| {
            c.bytes_received.saturating_mul(AMPLIFICATION).saturating_sub(c.bytes_sent)
        }))
    }

    /// An authentic packet came from the current address of the peer, to this local address.
    pub(super) fn set_local(&mut self, local_ip: Option<IpAddr>) {
        self.local_ip = local_ip.or(self.local_ip);
    }

    /// The newest packet, of `bytes` bytes, came from the current address of the peer.
    pub(super) fn on_current_address(&mut self, now: Timestamp, bytes: usize, rng: &mut impl Rng) {
        if self.validated.is_none() {
            self.candidate = None;
            return;
        }
        match &mut self.candidate {
            Some(candidate) if candidate.remote == self.remote => {
                candidate.bytes_received += bytes as u64;
            }
            _ => self.challenge(now, (self.remote, self.local_ip), bytes, rng),
        }
    }

    /// An authentic packet of `bytes` bytes, with the largest number so far, came from a new
    /// address. Returns whether packets now go to another address.
    ///
    /// Another port of the same host is NAT rebinding. The server uses it at once (RFC 9000,
    /// section 9.3), but sends at most three times the bytes received from it until it is
    /// validated: behind a CGN (RFC 6888) it may belong to another customer. An attacker on that
    /// host who replays packets faster than they arrive achieves this once; afterwards new ports
    /// must be validated first.
    pub(super) fn on_new_address(
        &mut self,
        now: Timestamp,
        addresses: Addresses,
        bytes: usize,
        probe_timeout: Duration,
        rng: &mut impl Rng,
    ) -> bool {
        let (remote, _) = addresses;
        if self.validated.is_some_and(|(validated, _)| validated == remote) {
            return self.return_to_validated();
        }
        match &mut self.candidate {
            Some(candidate) if candidate.remote == remote => {
                candidate.bytes_received += bytes as u64;
            }
            _ => self.challenge(now, addresses, bytes, rng),
        }
        let is_used = remote.is_same_host(self.remote)
            && self.validated.is_none()
            && !self.rebinding_disallowed;
        if is_used {
            self.unvalidated_until = Some(now + probe_timeout * REBINDING_PROBES);
            self.validated = Some((self.remote, self.local_ip));
            (self.remote, self.local_ip) = addresses;
        }
        is_used
    }

    /// Packets go to another port of the peer now, and the next one has the number `next_pn`. Returns whether to
    /// abandon those in flight to the old one: once in a probe timeout, and only if the peer has acknowledged a packet
    /// since it was done last. Otherwise a peer that changes its port all the time would make this end forget what
    /// it has not acknowledged, and so send beyond the congestion window.
    pub(super) fn may_abandon(
        &mut self,
        now: Timestamp,
        probe_timeout: Duration,
        next_pn: u64,
        largest_acked: Option<u64>,
    ) -> bool {
        let is_due = self
            .abandoned
            .is_none_or(|(at, first)| at + probe_timeout <= now && largest_acked >= Some(first));
        if is_due {
            self.abandoned = Some((now, next_pn));
        }
        is_due
    }

    fn challenge(
        &mut self,
        now: Timestamp,
        (remote, local_ip): Addresses,
        bytes: usize,
        rng: &mut impl Rng,
    ) {
        self.candidate = Some(Candidate {
            remote,
            local_ip,
            challenge: rng.next_u64(),
            sent: 0,
            next: now,
            bytes_received: bytes as u64,
            bytes_sent: 0,
        });
    }

    /// Validation of the new port failed, or the client still uses the old one. Returns whether
    /// packets now go to another address.
    fn return_to_validated(&mut self) -> bool {
        let Some(validated) = self.validated.take() else { return false };
        (self.remote, self.local_ip) = validated;
        self.candidate = None;
        self.unvalidated_until = None;
        self.rebinding_disallowed = true;
        true
    }

    /// Returns whether packets now go to another address, because the validation of a port failed, and
    /// the challenge that is due.
    pub(super) fn poll(&mut self, now: Timestamp) -> (bool, Option<u64>) {
        if self.unvalidated_until.is_some_and(|until| until <= now) && self.return_to_validated() {
            return (true, None);
        }
        let Some(candidate) = self.candidate.filter(|candidate| candidate.next <= now) else {
            return (false, None);
        };
        if candidate.sent < MAX_CHALLENGES {
            return (false, Some(candidate.challenge));
        }
        self.candidate = None;
        (candidate.remote == self.remote && self.return_to_validated(), None)
    }

    /// A packet of `len` bytes with the challenge is written: returns where it goes, or `None` if the
    /// anti-amplification limit forbids it.
    pub(super) fn on_challenge(
        &mut self,
        now: Timestamp,
        len: usize,
        probe_timeout: Duration,
    ) -> Option<Addresses> {
        let candidate = self.candidate.as_mut()?;
        candidate.sent += 1;
        let wait = probe_timeout * (1 << candidate.sent.min(6)) / 2;
        candidate.next = now + wait.max(Duration::from_millis(1));
        let bytes_sent = candidate.bytes_sent + len as u64;
        if bytes_sent > AMPLIFICATION * candidate.bytes_received {
            return None;
        }
        // `transmit` charges what goes to the current address.
        if candidate.remote != self.remote {
            candidate.bytes_sent = bytes_sent;
        }
        Some((candidate.remote, candidate.local_ip))
    }

    /// A path response arrived: the candidate is validated if it matches, unless the address before was validated less
    /// than a probe timeout ago. Then the next response counts: each change makes the path's estimates start again and
    /// what was in flight be sent again, so that a peer that changes its address all the time would cost too much.
    pub(super) fn on_response(
        &mut self,
        now: Timestamp,
        response: u64,
        probe_timeout: Duration,
    ) -> Validated {
        let is_early = self.changed_at.is_some_and(|at| now < at + probe_timeout);
        let Some(candidate) = self.candidate.filter(|c| c.challenge == response && !is_early)
        else {
            return Validated::Nothing;
        };
        self.candidate = None;
        self.changed_at = Some(now);
        (self.validated, self.unvalidated_until) = (None, None);
        self.changes += 1;
        if candidate.remote == self.remote {
            return Validated::Current;
        }
        let has_moved = !candidate.remote.is_same_host(self.remote);
        (self.remote, self.local_ip) = (candidate.remote, candidate.local_ip);
        if has_moved { Validated::Moved } else { Validated::Rebound }
    }

    /// When a challenge is due, or an unvalidated port must be abandoned.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let challenge = self.candidate.map(|candidate| candidate.next);
        challenge.into_iter().chain(self.unvalidated_until).min()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    const PROBE_TIMEOUT: Duration = Duration::from_millis(100);

    fn remote(host: u8, port: u16) -> Remote {
        Remote::Network(([10, 0, 0, host], port).into())
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// A path to port 1 of host 1, and a packet of `bytes` bytes from another address.
    fn path_after_packet(from: Remote, bytes: usize) -> (Path, ChaCha8Rng) {
        let mut rng = ChaCha8Rng::from_seed([1; 32]);
        let mut path = Path::new(remote(1, 1), Local::default());
        path.on_new_address(at(0), (from, None), bytes, PROBE_TIMEOUT, &mut rng);
        (path, rng)
    }

    #[test]
    fn handshake_sends_three_times_the_bytes_received() {
        let mut path = Path::new(remote(1, 1), Local::default());
        assert_eq!(path.handshake_allowance(), 0);
        path.on_received(1_200);
        assert_eq!(path.handshake_allowance(), 3_600);
        path.transmit(2_400, 1_200);
        assert_eq!(path.handshake_allowance(), 1_200);
        path.transmit(2_400, 1_200);
        assert_eq!(path.handshake_allowance(), 0);
    }

    #[test]
    fn another_port_is_used_at_once_and_another_host_after_its_response() {
        let (mut path, _) = path_after_packet(remote(1, 2), 1_000);
        assert_eq!((path.remote(), path.is_unvalidated()), (remote(1, 2), true));
        let (_, challenge) = path.poll(at(0));
        let mut answer = |number| path.on_response(at(9), number, PROBE_TIMEOUT);
        assert_eq!(answer(challenge.unwrap() ^ 1), Validated::Nothing);
        assert_eq!(answer(challenge.unwrap()), Validated::Current);
        assert!(!path.is_unvalidated());
        assert_eq!((path.changes(), path.next_timeout()), (1, None));

        let (mut path, _) = path_after_packet(remote(2, 1), 1_000);
        assert_eq!((path.remote(), path.is_unvalidated()), (remote(1, 1), false));
        let (_, challenge) = path.poll(at(0));
        assert_eq!(path.on_challenge(at(0), 100, PROBE_TIMEOUT), Some((remote(2, 1), None)));
        assert_eq!(path.on_response(at(9), challenge.unwrap(), PROBE_TIMEOUT), Validated::Moved);
        assert_eq!(path.remote(), remote(2, 1));
    }

    #[test]
    fn addresses_are_validated_at_most_once_in_a_probe_timeout() {
        let (mut path, mut rng) = path_after_packet(remote(2, 1), 1_000);
        let mut validates = |now: u64, host: u8| {
            let from = (remote(host, 1), None);
            path.on_new_address(at(now), from, 1_000, PROBE_TIMEOUT, &mut rng);
            let (_, challenge) = path.poll(at(now));
            path.on_challenge(at(now), 100, PROBE_TIMEOUT);
            let validated = path.on_response(at(now), challenge.unwrap(), PROBE_TIMEOUT);
            (validated, path.remote())
        };
        assert_eq!(validates(1, 2), (Validated::Moved, remote(2, 1)));
        assert_eq!(validates(2, 3), (Validated::Nothing, remote(2, 1)));
        assert_eq!(validates(100, 4), (Validated::Nothing, remote(2, 1)));
        // The challenge is repeated, and the next response counts.
        let (is_other, again) = path.poll(at(200));
        assert_eq!((is_other, again.is_some()), (false, true));
        let response = again.unwrap();
        assert_eq!(path.on_response(at(200), response, PROBE_TIMEOUT), Validated::Moved);
        assert_eq!((path.remote(), path.changes()), (remote(4, 1), 2));
    }

    #[test]
    fn unvalidated_port_gets_three_times_the_bytes_received_from_it() {
        let (mut path, mut rng) = path_after_packet(remote(1, 2), 1_000);
        assert!(!path.awaits_validation(1_200));
        path.transmit(1_641, 1_200);
        assert!(path.awaits_validation(1_200), "1,359 bytes are left, and 160 are for challenges");
        path.on_current_address(at(1), 1, &mut rng);
        assert!(!path.awaits_validation(1_200), "now 1,362");
        path.transmit(1_300, 1_300);
        assert_eq!(path.on_challenge(at(1), 62, PROBE_TIMEOUT), Some((remote(1, 2), None)));
        assert_eq!(path.on_challenge(at(1), 63, PROBE_TIMEOUT), None);
    }

    #[test]
    fn failed_port_is_abandoned_and_ports_are_validated_first_from_then_on() {
        let (mut path, mut rng) = path_after_packet(remote(1, 2), 1_000);
        for now in [0, 100, 300, 700].map(at) {
            assert!(path.poll(now).1.is_some());
            path.on_challenge(now, 32, PROBE_TIMEOUT);
            assert_eq!(path.poll(now), (false, None), "the next one is not due yet");
        }
        assert_eq!(path.poll(at(799)), (false, None));
        assert_eq!(path.poll(at(800)), (true, None));
        assert_eq!((path.remote(), path.next_timeout()), (remote(1, 1), None));
        let from = (remote(1, 3), None);
        assert!(!path.on_new_address(at(900), from, 1_000, PROBE_TIMEOUT, &mut rng));
        assert_eq!(path.remote(), remote(1, 1));
        assert!(path.poll(at(900)).1.is_some(), "it is validated");
        path.on_current_address(at(901), 50, &mut rng);
        assert_eq!(path.next_timeout(), None, "the peer still uses the old one");
    }

    #[test]
    fn packets_in_flight_are_abandoned_once_in_a_probe_timeout() {
        let mut path = Path::new(remote(1, 1), Local::default());
        for (ms, largest_acked, is_abandoned) in [
            (0, None, true),
            (99, Some(10), false),
            (100, None, false),
            (100, Some(9), false),
            (100, Some(10), true),
            (199, Some(30), false),
            (200, Some(19), false),
            (200, Some(20), true),
        ] {
            let next_pn = 10 + ms / 10;
            let found = path.may_abandon(at(ms), PROBE_TIMEOUT, next_pn, largest_acked);
            assert_eq!(found, is_abandoned, "after {ms} ms, {largest_acked:?}");
        }
    }

    #[test]
    fn packet_from_the_validated_port_ends_the_use_of_another() {
        let (mut path, mut rng) = path_after_packet(remote(1, 2), 1_000);
        let old = (remote(1, 1), None);
        assert!(path.on_new_address(at(5), old, 100, PROBE_TIMEOUT, &mut rng));
        assert_eq!((path.remote(), path.is_unvalidated()), (remote(1, 1), false));
    }
}
