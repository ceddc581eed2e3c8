use core::time::Duration;

use bats_types::Timestamp;

/// UDP payload that every path must carry (RFC 9000, section 14).
pub const BASE_UDP_PAYLOAD: u16 = 1_200;
/// Largest UDP payload that is searched for: frames of 9,216 bytes, and then some.
pub const MAX_UDP_PAYLOAD: u16 = 9_500;
/// Search stops when what passes and what does not are this close.
const SEARCH_STEP: u16 = 16;
/// Sizes that are tried together: each round makes what is unknown five times smaller.
const LADDER: usize = 4;
/// Copies of a probe before its size counts as too large, at least and at most.
const LEAST_COPIES: u8 = 2;
const MOST_COPIES: u8 = 6;
/// Probes are lost at random, too. All copies together should be so once in a thousand times; loss
/// below 3 % is not told from none.
const CHANCE: f64 = 1e-3;
const LEAST_LOSS: f64 = 0.03;
/// A finished search is repeated after this time, the path may have changed (RFC 8899, 5.1.1).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// Large packets lost in a row, with nothing large getting through, that mean a black hole.
/// Random loss of 50 % does this once in 10^9 times.
const BLACK_HOLE_LOSSES: u32 = 30;

/// Path MTU discovery by padded probes (RFC 8899), in bytes of UDP payload.
#[derive(Debug)]
pub struct MtuDiscovery {
    /// Largest size known to pass.
    current: u16,
    /// Smallest size believed not to pass.
    ceiling: u16,
    max: u16,
    round: Option<Round>,
    next_probe_at: Timestamp,
    large_losses: u32,
}

/// Sizes that are tried together, the smallest first; the rest of them is 0.
#[derive(Clone, Copy, Debug)]
struct Round {
    sizes: [u16; LADDER],
    /// The size whose turn it is.
    next: usize,
    /// Copies sent of each.
    copies: u8,
    /// All copies are out.
    waits: bool,
}

impl MtuDiscovery {
    /// Searches up to `max`; the first probe has that very size because it is usually right.
    pub fn new(max: u16) -> Self {
        let max = max.clamp(BASE_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
        Self {
            current: BASE_UDP_PAYLOAD,
            ceiling: max + 1,
            max,
            round: None,
            next_probe_at: Timestamp::ZERO,
            large_losses: 0,
        }
    }

    /// Largest UDP payload known to pass.
    pub fn current(&self) -> u16 {
        self.current
    }

    /// Size of a probe to be sent now, if one is due; `probe_timeout` and `loss`, a share from 0 to 1,
    /// are the path's.
    pub fn poll(&mut self, now: Timestamp, probe_timeout: Duration, loss: f64) -> Option<u16> {
        loop {
            if now < self.next_probe_at {
                return None;
            }
            let mut round = match self.round {
                Some(round) => round,
                None => self.next_round()?,
            };
            let open =
                |from: usize| (from..LADDER).find(|&index| round.sizes[index] > self.current);
            if let Some(index) = open(round.next) {
                round.next = index + 1;
                // Together: one alone between the flights of data would look like a slow link.
                self.next_probe_at = now;
                self.round = Some(round);
                return Some(round.sizes[index]);
            }
            let smallest = open(0).map(|index| round.sizes[index]);
            round.copies += u8::from(!round.waits);
            match smallest {
                // All of them pass.
                None => self.end_round(now),
                Some(_) if round.copies < copies(loss) => {
                    // The second copy of a single size leaves at once, the others wait for an answer.
                    let is_single = round.sizes[LADDER - 2] == 0;
                    let wait = if is_single && round.copies == 1 {
                        Duration::ZERO
                    } else {
                        probe_timeout / 2
                    };
                    round.next = 0;
                    // More copies may be wanted after all: what is lost is learnt meanwhile.
                    round.waits = false;
                    self.next_probe_at = now + wait;
                    self.round = Some(round);
                }
                Some(_) if !round.waits => {
                    round.waits = true;
                    self.next_probe_at = now + probe_timeout;
                    self.round = Some(round);
                }
                // Their answers are overdue.
                Some(size) => {
                    self.ceiling = self.ceiling.min(size);
                    self.end_round(now);
                }
            }
        }
    }

    /// What is tried next, if there is anything left to find.
    fn next_round(&self) -> Option<Round> {
        if self.current + SEARCH_STEP >= self.ceiling {
            return None;
        }
        let mut sizes = [0; LADDER];
        if self.ceiling > self.max {
            sizes[LADDER - 1] = self.max;
        } else {
            let span = self.ceiling - self.current;
            for (index, size) in (1..).zip(&mut sizes) {
                *size = self.current + (u32::from(span) * index / (LADDER as u32 + 1)) as u16;
            }
        }
        Some(Round { sizes, next: 0, copies: 0, waits: false })
    }

    /// The next round begins now, or the search is over for a while.
    fn end_round(&mut self, now: Timestamp) {
        self.round = None;
        self.next_probe_at = now;
        if self.next_round().is_none() {
            self.next_probe_at = now + RAISE_INTERVAL;
            self.ceiling = self.max + 1;
        }
    }

    /// When [`MtuDiscovery::poll`] wants to be asked again, if a search is on.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        (self.round.is_some() || self.next_round().is_some()).then_some(self.next_probe_at)
    }

    /// A packet of `size` arrived.
    pub fn on_acknowledged(&mut self, now: Timestamp, size: u16) {
        if size > BASE_UDP_PAYLOAD {
            self.large_losses = 0;
        }
        if size > self.current {
            self.current = size.min(self.max);
            self.ceiling = self.ceiling.max(self.current + 1);
            if self.round.is_none_or(|round| round.sizes[LADDER - 1] <= size) {
                self.end_round(now);
            }
        }
    }

    /// A packet of `size` that was no probe was lost. True when that makes a black hole: the
    /// size falls back to the base and the search begins anew.
    pub fn on_lost(&mut self, now: Timestamp, size: u16) -> bool {
        if size <= BASE_UDP_PAYLOAD || self.current == BASE_UDP_PAYLOAD {
            return false;
        }
        self.large_losses += 1;
        if self.large_losses < BLACK_HOLE_LOSSES {
            return false;
        }
        self.large_losses = 0;
        self.ceiling = self.current;
        self.current = BASE_UDP_PAYLOAD;
        self.round = None;
        self.next_probe_at = now;
        true
    }
}

/// Copies that a path with this loss needs.
fn copies(loss: f64) -> u8 {
    let copies = (CHANCE.ln() / loss.clamp(LEAST_LOSS, 0.99).ln()).ceil();
    (copies as u8).clamp(LEAST_COPIES, MOST_COPIES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTO: Duration = Duration::from_millis(100);

    /// Runs the search over a path that passes up to `limit` and loses by `lost`.
    fn search(
        limit: u16,
        max: u16,
        loss: f64,
        lost: impl FnMut(u32) -> bool,
    ) -> (MtuDiscovery, u32) {
        let (mtu, probes, _) = search_until(Timestamp::from_millis(60_000), limit, max, loss, lost);
        (mtu, probes)
    }

    /// The same until a time, and the sizes found on the way. Answers take half a probe time-out.
    fn search_until(
        end: Timestamp,
        limit: u16,
        max: u16,
        loss: f64,
        mut lost: impl FnMut(u32) -> bool,
    ) -> (MtuDiscovery, u32, Vec<(Timestamp, u16)>) {
        let mut mtu = MtuDiscovery::new(max);
        let mut now = Timestamp::from_millis(1);
        let mut probes = 0;
        let mut answers = std::collections::VecDeque::new();
        let mut found = vec![(now, mtu.current())];
        while now < end {
            while answers.front().is_some_and(|&(at, _)| at <= now) {
                let (_, size) = answers.pop_front().unwrap();
                mtu.on_acknowledged(now, size);
            }
            if let Some(size) = mtu.poll(now, PTO, loss) {
                probes += 1;
                if size <= limit && !lost(probes) {
                    answers.push_back((now + PTO / 2, size));
                }
            }
            if found.last().is_none_or(|&(_, size)| size != mtu.current()) {
                found.push((now, mtu.current()));
            }
            now += Duration::from_millis(1);
        }
        (mtu, probes, found)
    }

    #[test]
    fn a_full_size_path_is_found_by_the_first_probe() {
        let (mtu, probes) = search(1472, 1472, 0.0, |_| false);
        assert_eq!(mtu.current(), 1472);
        assert!(probes <= 2, "{probes}: the answer to the first comes after the second");
    }

    #[test]
    fn a_smaller_path_is_found_within_a_step() {
        for limit in [1200, 1252, 1380, 1452] {
            let (mtu, probes) = search(limit, 1472, 0.0, |_| false);
            assert!(mtu.current() <= limit && mtu.current() + SEARCH_STEP >= limit, "{mtu:?}");
            assert!(probes <= 30, "{probes}");
        }
    }

    #[test]
    fn lost_probes_are_repeated() {
        let (mtu, _) = search(1472, 1472, 0.6, |n| n % 3 != 0);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn a_smaller_path_that_loses_is_found() {
        for share in [10, 20, 3] {
            // Spread without a period, which would hit all copies of one size.
            let lost = |n: u32| (n.wrapping_mul(0x9e37_79b1) >> 16).is_multiple_of(share);
            let (mtu, probes) = search(1_392, 1_472, 1.0 / f64::from(share), lost);
            assert!(mtu.current() + SEARCH_STEP >= 1_392, "{mtu:?}, {probes} probes");
        }
    }

    #[test]
    fn a_loss_that_is_learnt_in_the_middle_does_not_end_the_search() {
        let mut mtu = MtuDiscovery::new(1_472);
        let (mut now, mut probes) = (Timestamp::from_millis(1), 0);
        while now < Timestamp::from_millis(10_000) {
            let loss = if now < Timestamp::from_millis(80) { 0.0 } else { 0.3 };
            if let Some(size) = mtu.poll(now, PTO, loss) {
                probes += 1;
                if size <= 1_392 {
                    mtu.on_acknowledged(now, size);
                }
            }
            now += Duration::from_millis(1);
        }
        assert!(mtu.current() + SEARCH_STEP >= 1_392 && probes < 100, "{mtu:?}, {probes} probes");
    }

    #[test]
    fn nearly_all_is_used_within_five_round_trips() {
        let round_trip = PTO / 2;
        for limit in 1_201..1_472 {
            let end = Timestamp::from_millis(1) + round_trip * 20;
            let (mtu, _, found) = search_until(end, limit, 1_472, 0.0, |_| false);
            let early = found.iter().rev().find(|(at, _)| *at <= Timestamp::ZERO + round_trip * 5);
            let (_, size) = early.unwrap();
            assert!(f64::from(*size) >= 0.95 * f64::from(limit), "{limit}: {found:?}");
            assert!(mtu.current() + SEARCH_STEP >= limit, "{limit}: {found:?}");
        }
    }

    #[test]
    fn more_copies_where_more_is_lost() {
        assert_eq!([0.0, 0.05, 0.1, 0.3, 0.9].map(copies), [2, 3, 3, 6, 6]);
    }

    #[test]
    fn a_black_hole_falls_back_and_one_loss_less_does_not() {
        let (mut mtu, _) = search(1472, 1472, 0.0, |_| false);
        let now = Timestamp::from_millis(70_000);
        for _ in 0..BLACK_HOLE_LOSSES - 1 {
            assert!(!mtu.on_lost(now, 1437));
        }
        mtu.on_acknowledged(now, 1437);
        for _ in 0..BLACK_HOLE_LOSSES - 1 {
            assert!(!mtu.on_lost(now, 1437));
        }
        assert!(mtu.on_lost(now, 1437));
        assert_eq!(mtu.current(), BASE_UDP_PAYLOAD);
    }
}
