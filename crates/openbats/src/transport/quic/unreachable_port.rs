//! ICMP "port unreachable" errors.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{CloseReason, Timestamp};

use super::Quic;
use super::connection::Connection;
use super::ids::ID_LEN;

/// Longest time by which QUIC delays acknowledgements (RFC 9000, section 18.2), a part of the probe
/// timeout.
const MAX_ACK_DELAY: Duration = Duration::from_millis(25);

/// So many connections to the address of an error are looked at for each error. Chosen: all of them cost about as much as a
/// packet of data (`.ci/hostile-packets quic-port-unreachable`).
const FEW_CONNECTIONS: usize = 64;
/// Least time between two searches among more of them, as in the other modes over UDP: a flood of errors costs little also
/// if its sender has opened many connections from one address. Peers that are gone get more packets, and so more errors.
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);

impl Connection {
    /// Handles an ICMP error; returns whether it ended the connection.
    fn on_unreachable_port(&mut self, now: Timestamp, quoted: &[u8], is_own_flight: bool) -> bool {
        if self.session.is_closed() {
            return false;
        }
        if self.is_unanswered() && (quoted.is_empty() || is_own_flight) {
            self.session.end(CloseReason::Refused);
            return true;
        }
        if !self.reachability.is_quoted(quoted) {
            return false;
        }
        let received = self.quic.stats().udp_rx.datagrams;
        let probe_timeout = self.quic.rtt().saturating_mul(3).saturating_add(MAX_ACK_DELAY);
        let has_vanished = self.reachability.has_vanished(now, received, probe_timeout);
        if has_vanished {
            let text = "the peer has gone: its port is closed".to_owned();
            self.session.end(CloseReason::Lost(text));
        }
        has_vanished
    }
}

impl Quic {
    /// Handles an ICMP "port unreachable" error for a datagram to `remote`; `quoted` is the part of
    /// its payload that the error quotes, perhaps empty. It ends clients that no server has answered,
    /// and connections that receive nothing while errors persist that quote their packets.
    pub(in crate::transport) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        let is_own_flight = self.is_own_first_flight(quoted);
        let is_recent = |last| now - last < SEARCH_INTERVAL;
        let most = match self.last_unreachable_search.is_some_and(is_recent) {
            true => FEW_CONNECTIONS,
            false => usize::MAX,
        };
        let mut are_many = false;
        for (place, id) in self.addresses.connections_to(remote).take(most).enumerate() {
            #[cfg(test)]
            {
                self.unreachable_visits += 1;
            }
            are_many |= place >= FEW_CONNECTIONS;
            if let Some(connection) = self.connections.get_mut(&id)
                && connection.remote == remote
                && connection.on_unreachable_port(now, quoted, is_own_flight)
            {
                self.dirty.insert(id);
            }
        }
        if are_many {
            self.last_unreachable_search = Some(now);
        }
    }

    /// Whether these are the first bytes of a long-header packet (RFC 9000, section 17.2) of this
    /// endpoint.
    fn is_own_first_flight(&self, packet: &[u8]) -> bool {
        let [first, _, _, _, _, length, after @ ..] = packet else { return false };
        let source = after.get(usize::from(*length)..).unwrap_or_default();
        let Some((length, source)) = source.split_first() else { return false };
        first & 0x80 != 0
            && usize::from(*length) == ID_LEN
            && source.first_chunk::<ID_LEN>().is_some_and(|id| self.ids.is_ours(*id))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bats_proto::{ClientConfig, Event, Mode, PeerTrust, TransportConfig};

    use super::super::{Output, Transport};
    use super::*;
    use crate::clock::Clock;

    /// The first bytes of a packet, which a sender of errors guesses.
    const GUESSED: [u8; 9] = [0x40, 1, 2, 3, 4, 5, 6, 7, 8];
    const MS: Duration = Duration::from_millis(1);

    fn address(number: usize) -> SocketAddr {
        let [.., high, low] = number.to_be_bytes();
        ([10, 0, high, low], 4_000).into()
    }

    /// Clients of these addresses that no server has answered, and the time.
    fn clients(addresses: impl Iterator<Item = SocketAddr>) -> (Quic, Timestamp) {
        let clock = Clock::new();
        let now = clock.now();
        let mut quic = Quic::new(clock, [7; 32], None, false, None).unwrap();
        let transport = TransportConfig { mode: Mode::Quic, ..TransportConfig::default() };
        let (trust, transport) = (PeerTrust::DangerousAcceptAny, Arc::new(transport));
        let config = ClientConfig { trust, identity: None, transport };
        for remote in addresses {
            quic.connect(now, remote, "server", &config, false).unwrap();
        }
        poll(&mut quic, now);
        (quic, now)
    }

    /// Polls until it waits; returns the connections that are refused.
    fn poll(quic: &mut Quic, now: Timestamp) -> Vec<u64> {
        let mut closed = Vec::new();
        let mut buffer = Vec::with_capacity(65_536);
        loop {
            match quic.poll(now, &mut buffer) {
                Output::Event(id, Event::Closed(CloseReason::Refused)) => closed.push(id),
                Output::Event(_, event) => panic!("{event:?}"),
                Output::Transmit(_) => {}
                Output::Timeout(_) => return closed,
            }
        }
    }

    #[test]
    fn errors_for_other_addresses_cost_the_same_however_many_connections_there_are() {
        let (mut quic, now) = clients((0..2_000).map(address));
        for number in 0..1_000 {
            quic.handle_unreachable_port(now, address(10_000 + number), &[]);
        }
        assert_eq!((quic.unreachable_visits, poll(&mut quic, now).len()), (0, 0));
        quic.handle_unreachable_port(now, address(77), &[]);
        assert_eq!((quic.unreachable_visits, poll(&mut quic, now)), (1, vec![77]));
    }

    #[test]
    fn errors_for_an_address_with_many_connections_cost_few_visits() {
        const MANY: usize = 3 * FEW_CONNECTIONS;
        let (mut quic, now) = clients((0..=MANY).map(|number| address(number / MANY)));
        assert_eq!(quic.addresses.connections_to(address(0)).count(), MANY);
        let visits = |quic: &mut Quic, after: Duration, remote, errors| {
            let before = quic.unreachable_visits;
            (0..errors).for_each(|_| quic.handle_unreachable_port(now + after, remote, &GUESSED));
            quic.unreachable_visits - before
        };
        assert_eq!(
            visits(&mut quic, Duration::ZERO, address(0), 1_000),
            MANY + 999 * FEW_CONNECTIONS
        );
        assert_eq!(visits(&mut quic, MS * 4, address(0), 1_000), 1_000 * FEW_CONNECTIONS);
        assert_eq!(visits(&mut quic, MS * 4, address(1), 5), 5, "another address");
        assert_eq!(visits(&mut quic, MS * 5, address(0), 1), MANY);
    }

    #[test]
    fn connections_are_found_by_their_address_until_they_are_removed() {
        let (mut quic, now) = clients([0, 1, 1].map(address).into_iter());
        let at = |quic: &Quic, number| -> Vec<u64> {
            quic.addresses.connections_to(address(number)).collect()
        };
        assert_eq!([at(&quic, 0), at(&quic, 1), at(&quic, 2)], [vec![0], vec![1, 2], vec![]]);
        quic.remove(1);
        assert_eq!([at(&quic, 0), at(&quic, 1)], [vec![0], vec![2]]);
        quic.handle_unreachable_port(now, address(1), &[]);
        assert_eq!(poll(&mut quic, now), [2]);
        [0, 2].into_iter().for_each(|id| quic.remove(id));
        assert_eq!(quic.addresses.len(), 0);
    }
}
