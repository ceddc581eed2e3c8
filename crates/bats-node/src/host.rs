//! The address of a neighbour's host: when its name is resolved, and which of its addresses a link goes to.

use std::net::SocketAddr;
use std::time::Duration;

use bats_types::Timestamp;

/// Shortest time between two resolutions, and that an address gets before another one takes its place.
const SHORTEST: Duration = Duration::from_secs(2);
/// Longest time between two resolutions while the neighbour does not answer.
const LONGEST: Duration = Duration::from_secs(30);

/// A link that was opened to the address of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLinkStatus {
    /// Its number: a link that is opened again has another one.
    pub number: u64,
    /// Attempts and established connections that have ended.
    pub failures: u64,
    /// Whether it is established, and whether the neighbour answers.
    pub progress: Progress,
}

/// How far a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It is established, and the neighbour answers.
    Up,
    /// It is established, and the neighbour does not answer.
    Silent,
    /// It is dialled, or waits for the next attempt.
    Dialling,
}

/// The addresses of a host, and the one in use.
///
/// An answer of the resolver moves no link by itself: [`observe`](Self::observe) decides by what the link does then.
/// While the neighbour answers, the address stays.
#[derive(Clone, Debug)]
pub struct HostAddress {
    current: Option<SocketAddr>,
    /// Whether the present name may have another address than that in use, which an earlier configuration gave.
    is_inherited: bool,
    /// The last answer that has addresses.
    addresses: Vec<SocketAddr>,
    moved: Option<Timestamp>,
    is_resolving: bool,
    answered: Option<Timestamp>,
    interval: Duration,
    /// Number of the link to which the fields below belong.
    number: u64,
    silent_since: Option<Timestamp>,
    was_up: bool,
    /// Failures that say nothing more about the address.
    considered: u64,
}

impl HostAddress {
    /// A host whose name has not been resolved. `current` is the address of a link with the same neighbour that is open
    /// now and stays until the first answer.
    #[must_use]
    pub fn new(current: Option<SocketAddr>) -> Self {
        Self {
            current,
            is_inherited: current.is_some(),
            addresses: Vec::new(),
            moved: None,
            is_resolving: false,
            answered: None,
            interval: SHORTEST,
            number: 0,
            silent_since: None,
            was_up: false,
            considered: 0,
        }
    }

    /// The address that the link goes to, if there is one.
    #[must_use]
    pub fn current(&self) -> Option<SocketAddr> {
        self.current
    }

    /// Chooses the address, given the link to the present one; `None` if there is none, for example because it is left to
    /// the neighbour. Returns whether the name has to be resolved now; [`answer`](Self::answer) must follow then.
    pub fn observe(&mut self, now: Timestamp, link: Option<HostLinkStatus>) -> bool {
        let progress = link.map(|link| link.progress);
        let has_failed = link.is_some_and(|link| self.has_failed(link));
        let is_silent = self.is_silent(now, progress);
        if progress == Some(Progress::Up) {
            self.interval = SHORTEST;
        }
        let may_leave = match progress {
            None | Some(Progress::Dialling) => true,
            Some(Progress::Silent) => is_silent,
            Some(Progress::Up) => false,
        };
        let is_gone = !self.addresses.is_empty()
            && self.current.is_none_or(|current| !self.addresses.contains(&current));
        if is_gone && (may_leave || self.is_inherited) {
            self.go_to(now, 0);
        } else if has_failed && self.moved.is_none_or(|at| now - at >= SHORTEST) {
            self.considered = link.map_or(0, |link| link.failures);
            let at = self.addresses.iter().position(|address| Some(*address) == self.current);
            let next = at.map_or(0, |at| at + 1);
            self.go_to(now, if next < self.addresses.len() { next } else { 0 });
        }
        if !self.addresses.is_empty() {
            self.is_inherited = false;
        }
        let has_ended =
            progress == Some(Progress::Dialling) && link.is_some_and(|link| link.failures > 0);
        let is_wanted = self.current.is_none() || self.is_inherited || is_silent || has_ended;
        let is_due = self.answered.is_none_or(|at| now - at >= self.interval);
        let resolves = is_wanted && is_due && !self.is_resolving;
        self.is_resolving |= resolves;
        resolves
    }

    /// Takes over the answer of the resolver: the addresses, each once, or none if it has failed. While it brings nothing
    /// new, the next one is asked for after a time that doubles.
    pub fn answer(&mut self, now: Timestamp, addresses: Vec<SocketAddr>) {
        self.is_resolving = false;
        self.answered = Some(now);
        if addresses.is_empty() || addresses == self.addresses {
            self.interval = (self.interval * 2).min(LONGEST);
        } else {
            self.interval = SHORTEST;
            self.addresses = addresses;
        }
    }

    fn go_to(&mut self, now: Timestamp, index: usize) {
        let next = self.addresses.get(index).copied();
        if next.is_some() && next != self.current {
            self.current = next;
            self.moved = Some(now);
        }
    }

    /// Whether the neighbour has not answered for so long that the address may be wrong.
    fn is_silent(&mut self, now: Timestamp, progress: Option<Progress>) -> bool {
        if progress != Some(Progress::Silent) {
            self.silent_since = None;
            return false;
        }
        now - *self.silent_since.get_or_insert(now) >= SHORTEST
    }

    /// Whether an attempt at the address has failed. The end of an established connection is none: the neighbour may come
    /// back at the same address.
    fn has_failed(&mut self, link: HostLinkStatus) -> bool {
        if self.number != link.number {
            (self.number, self.was_up, self.considered) = (link.number, false, 0);
        }
        match link.progress {
            Progress::Up => self.was_up = true,
            Progress::Silent => {}
            Progress::Dialling => {
                if std::mem::take(&mut self.was_up) {
                    self.considered = link.failures;
                }
                return link.failures > self.considered;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn second(seconds: u64) -> Timestamp {
        Timestamp::from_millis(1_000 * seconds)
    }

    fn link(number: u64, failures: u64, progress: Progress) -> Option<HostLinkStatus> {
        Some(HostLinkStatus { number, failures, progress })
    }

    use Progress::{Dialling, Silent, Up};

    /// A host with these addresses, resolved at 0 s.
    fn host(addresses: &[SocketAddr]) -> HostAddress {
        let mut host = HostAddress::new(None);
        assert!(host.observe(second(0), None));
        host.answer(second(0), addresses.to_vec());
        host.observe(second(0), None);
        host
    }

    #[test]
    fn after_an_address_that_fails_comes_the_next_one_and_at_the_end_the_first() {
        let all = ["[2001:db8::7]:4900", "192.0.2.7:4900", "192.0.2.8:4900"].map(at);
        let mut host = host(&all);
        for (step, expected) in [0, 1, 2, 0].into_iter().enumerate() {
            let (number, now) = (step as u64, 10 * step as u64);
            // The address was chosen a second ago. Attempts may fail at once: each address has its time all the same.
            for (later, failures) in [(0, 0), (0, 3), (8, 0)] {
                host.observe(second(now + later), link(number, failures, Dialling));
                assert_eq!(host.current(), Some(all[expected]), "{step}");
            }
            host.observe(second(now + 9), link(number, 4, Dialling));
            assert_ne!(host.current(), Some(all[expected]), "{step}");
        }
    }

    #[test]
    fn an_address_that_was_up_gets_an_attempt_before_the_next_one() {
        let all = ["[2001:db8::7]:4900", "192.0.2.7:4900"].map(at);
        let mut host = host(&all);
        for (now, failures, progress) in [(3, 0, Up), (100, 1, Dialling), (104, 1, Dialling)] {
            host.observe(second(now), link(1, failures, progress));
            assert_eq!(host.current(), Some(all[0]), "{now}");
        }
        host.observe(second(110), link(1, 2, Dialling));
        assert_eq!(host.current(), Some(all[1]));
        // Failures of a link that was opened again to the same address count from 0.
        host.observe(second(120), link(2, 0, Up));
        host.observe(second(130), link(2, 20, Dialling));
        host.observe(second(131), link(3, 0, Dialling));
        assert_eq!(host.current(), Some(all[1]));
        host.observe(second(141), link(3, 1, Dialling));
        assert_eq!(host.current(), Some(all[0]));
    }

    #[test]
    fn an_answer_does_not_move_a_link_whose_neighbour_answers() {
        let [old, new] = ["192.0.2.7:4900", "192.0.2.8:4900"].map(at);
        let mut host = host(&[old]);
        host.observe(second(10), link(1, 0, Up));
        assert!(!host.observe(second(20), link(1, 0, Silent)), "a burst of losses is no reason");
        assert!(host.observe(second(22), link(1, 0, Silent)));
        // The answer comes when the neighbour is back.
        host.answer(second(23), vec![new]);
        assert!(!host.observe(second(23), link(1, 0, Up)));
        assert_eq!(host.current(), Some(old));
        // It is silent again, for long.
        host.observe(second(30), link(1, 0, Silent));
        assert_eq!(host.current(), Some(old));
        host.observe(second(32), link(1, 0, Silent));
        assert_eq!(host.current(), Some(new));
    }

    #[test]
    fn an_address_of_before_stays_until_the_name_has_others() {
        let [old, new] = ["192.0.2.7:4900", "192.0.2.8:4900"].map(at);
        for (answer, expected) in [(vec![], old), (vec![new, old], old), (vec![new], new)] {
            let mut host = HostAddress::new(Some(old));
            assert!(host.observe(second(1), link(1, 0, Up)));
            host.answer(second(1), answer.clone());
            host.observe(second(1), link(1, 0, Up));
            assert_eq!(host.current(), Some(expected), "{answer:?}");
        }
    }

    #[test]
    fn a_resolver_that_fails_does_not_stop_the_other_addresses() {
        let all = ["[2001:db8::7]:4900", "192.0.2.7:4900"].map(at);
        let mut host = host(&all);
        assert!(host.observe(second(10), link(1, 1, Dialling)));
        host.answer(second(10), Vec::new());
        assert_eq!(host.current(), Some(all[1]));
    }

    #[test]
    fn resolutions_without_news_become_rare() {
        let mut host = HostAddress::new(None);
        let mut asked = Vec::new();
        for now in 0..130 {
            if host.observe(second(now), None) {
                asked.push(now);
                assert!(!host.observe(second(now), None), "one at a time");
                host.answer(second(now), Vec::new());
            }
        }
        assert_eq!(asked, [0, 4, 12, 28, 58, 88, 118]);
        host.answer(second(130), vec![at("192.0.2.7:4900")]);
        host.observe(second(130), None);
        assert!(!host.observe(second(200), link(1, 0, Up)), "nothing to ask");
        assert!(host.observe(second(202), link(1, 1, Dialling)), "at once after an end");
    }

    proptest! {
        /// Whatever the resolver and the link do: an address in use comes from an answer, and stays while the neighbour
        /// answers.
        #[test]
        fn addresses_come_from_answers_and_stay_while_up(
            steps in prop::collection::vec(
                (0u64..5, prop::option::of((0u64..3, 0u64..4, 0usize..3)), prop::collection::vec(0u16..4, 0..4)),
                0..60,
            )
        ) {
            let mut host = HostAddress::new(None);
            let (mut now, mut known) = (0, Vec::new());
            for (pause, status, ports) in steps {
                now += pause;
                let before = host.current();
                let status = status.map(|(number, failures, progress)| HostLinkStatus {
                    number, failures, progress: [Up, Silent, Dialling][progress],
                });
                let resolves = host.observe(second(now), status);
                let current = host.current();
                prop_assert!(current.is_none_or(|current| known.contains(&current)));
                prop_assert!(known.is_empty() || current.is_some() || status.is_some());
                if status.is_some_and(|link| link.progress == Up) {
                    prop_assert_eq!(before, current);
                }
                if resolves {
                    let mut addresses: Vec<SocketAddr> =
                        ports.iter().map(|&port| ([192, 0, 2, 7], port).into()).collect();
                    addresses.sort();
                    addresses.dedup();
                    known.extend(addresses.iter().copied());
                    host.answer(second(now), addresses);
                }
            }
        }
    }
}
