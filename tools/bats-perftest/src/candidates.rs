//! The subscribers that have announced themselves, and which of them to try next.
//!
//! Announcements are not authenticated: anyone on the network can invent subscribers, also in the name
//! of other hosts. So their number is bounded, the hosts take turns, and an address that does not
//! answer is tried ever more rarely.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Addresses that are remembered.
const MAX_KNOWN: usize = 1_024;
/// Pause after the first failure; it doubles with each further one up to the longest.
const FIRST_PAUSE_NS: u64 = 1_000_000_000;
const MAX_DOUBLINGS: u32 = 5;

#[derive(Clone, Copy, Debug)]
struct Candidate {
    announced_ns: u64,
    failures: u32,
    /// Not tried before this time.
    next_ns: u64,
}

/// Announced addresses.
#[derive(Debug, Default)]
pub(crate) struct Candidates(BTreeMap<SocketAddr, Candidate>);

impl Candidates {
    /// Notes an announcement. If there are too many, that with the oldest announcement is forgotten.
    pub(crate) fn announced(&mut self, address: SocketAddr, now_ns: u64) {
        if let Some(known) = self.0.get_mut(&address) {
            known.announced_ns = now_ns;
            return;
        }
        if self.0.len() >= MAX_KNOWN
            && let Some(oldest) =
                self.0.iter().min_by_key(|(_, one)| one.announced_ns).map(|(&oldest, _)| oldest)
        {
            self.0.remove(&oldest);
        }
        self.0.insert(address, Candidate { announced_ns: now_ns, failures: 0, next_ns: 0 });
    }

    /// The addresses to try now, at most `most`. Hosts take turns; of a host those with the fewest
    /// failures come first.
    pub(crate) fn due(&self, now_ns: u64, most: usize) -> Vec<SocketAddr> {
        let mut of_hosts: BTreeMap<IpAddr, Vec<(u32, u64, SocketAddr)>> = BTreeMap::new();
        for (&address, one) in self.0.iter().filter(|(_, one)| one.next_ns <= now_ns) {
            of_hosts.entry(address.ip()).or_default().push((one.failures, one.next_ns, address));
        }
        let mut turns: Vec<(usize, u32, u64, SocketAddr)> = Vec::new();
        for mut of_host in of_hosts.into_values() {
            of_host.sort_unstable();
            let with_turn = of_host.into_iter().enumerate();
            turns.extend(
                with_turn.map(|(turn, (failures, next, address))| (turn, failures, next, address)),
            );
        }
        turns.sort_unstable();
        turns.into_iter().take(most).map(|(.., address)| address).collect()
    }

    /// An attempt to connect has failed.
    pub(crate) fn failed(&mut self, address: SocketAddr, now_ns: u64) {
        if let Some(one) = self.0.get_mut(&address) {
            let pause = FIRST_PAUSE_NS << one.failures.min(MAX_DOUBLINGS);
            one.failures = one.failures.saturating_add(1);
            one.next_ns = now_ns.saturating_add(pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn address(host: u16, port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, (host >> 8) as u8, host as u8], port))
    }

    #[test]
    fn a_subscriber_is_tried_at_once_among_thousands_that_one_host_invents() {
        let mut candidates = Candidates::default();
        for port in 0..5_000 {
            candidates.announced(address(1, port), u64::from(port));
        }
        candidates.announced(address(2, 7_412), 6_000);
        assert_eq!(candidates.0.len(), MAX_KNOWN);
        assert!(candidates.due(7_000, 16).contains(&address(2, 7_412)));
    }

    #[test]
    fn all_addresses_of_a_host_have_their_turn() {
        let mut candidates = Candidates::default();
        // As many as a domain has ports.
        for port in 0..119 {
            candidates.announced(address(1, port), 0);
        }
        let (mut now, mut tried) = (0, std::collections::BTreeSet::new());
        for _ in 0..119usize.div_ceil(32) {
            let due = candidates.due(now, 32);
            now += 3 * SECOND / 2;
            for address in due {
                candidates.failed(address, now);
                tried.insert(address);
            }
        }
        assert_eq!(tried.len(), 119);
    }

    #[test]
    fn an_address_that_does_not_answer_is_tried_ever_more_rarely() {
        let mut candidates = Candidates::default();
        let mut attempts = 0;
        for tenth in 0..6_000u64 {
            let now = tenth * SECOND / 10;
            candidates.announced(address(1, 1), now);
            for address in candidates.due(now, 16) {
                attempts += 1;
                candidates.failed(address, now);
            }
        }
        // In ten minutes: five with growing pauses, then one in 32 s.
        assert!((20..=25).contains(&attempts), "{attempts}");
    }

    #[test]
    fn the_oldest_announcements_are_forgotten_first() {
        let mut candidates = Candidates::default();
        for host in 0..2_000u16 {
            candidates.announced(address(host, 1), u64::from(host));
            // The real one announces itself again.
            candidates.announced(address(0, 1), u64::from(host));
        }
        assert_eq!(candidates.0.len(), MAX_KNOWN);
        assert!(candidates.due(3_000, MAX_KNOWN).contains(&address(0, 1)));
    }
}
