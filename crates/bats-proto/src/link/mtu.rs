use core::time::Duration;

use bats_types::Timestamp;

/// UDP payload that every path must support (RFC 9000, section 14).
pub const BASE_UDP_PAYLOAD: u16 = 1_200;
/// Upper limit of the search: jumbo frames of 9,216 bytes and some more.
pub const MAX_UDP_PAYLOAD: u16 = 9_500;
/// The search stops when the bounds are this close, in bytes.
const SEARCH_STEP: u16 = 16;
/// Probe sizes per round. Four sizes divide the search interval by five.
const ROUND_SIZES: usize = 4;
/// Bounds of the number of copies of a probe before its size counts as too large.
const MIN_COPIES: u8 = 2;
/// The least in later searches, during which data may fill a short queue (MAX_PROBES, RFC 8899, section 5.1.2). With two,
/// some searches on a full link of 2 Mbit/s ended below the path MTU for ten minutes.
const MIN_LATER_COPIES: u8 = 3;
const MAX_COPIES: u8 = 6;
/// Probability that random loss hits all copies of a probe; it sets their number. A loss below 3 %
/// counts as 3 %.
const FALSE_POSITIVE_RATE: f64 = 1e-3;
const MIN_ASSUMED_LOSS: f64 = 0.03;
/// A finished search is repeated after this time, because the path may have changed
/// (PMTU_RAISE_TIMER, RFC 8899, section 5.1.1).
const RAISE_INTERVAL: Duration = Duration::from_secs(600);
/// Consecutive losses of large packets, without a large one acknowledged, that indicate a black
/// hole. With 50 % random loss this happens by chance once in 10^9 times.
pub const BLACK_HOLE_LOSSES: u32 = 30;
/// The same probability sets the number if a small probe was answered after probe timeouts in which large packets
/// were sent at the same times: a burst of losses would have to end between them. A path without loss needs 4
/// packets, which two probe timeouts send; the second one is the first with a small probe.
const FALSE_BLACK_HOLE_RATE: f64 = 1e-9;
/// A lower loss counts as this.
const MIN_BLACK_HOLE_LOSS: f64 = 0.005;

/// Path MTU discovery with padded probes (DPLPMTUD, RFC 8899), in bytes of UDP payload.
#[derive(Debug)]
pub struct MtuDiscovery {
    /// Largest size known to pass.
    current: u16,
    /// Smallest size assumed not to pass.
    ceiling: u16,
    max: u16,
    round: Option<Round>,
    next_probe_at: Timestamp,
    /// When sizes up to the maximum are searched again at the earliest.
    raise_at: Timestamp,
    /// A black hole limits the search to the sizes below it.
    is_limited: bool,
    large_losses: u32,
}

/// One round of the search: sizes that are probed together, in ascending order; unused entries are
/// 0.
#[derive(Clone, Copy, Debug)]
struct Round {
    sizes: [u16; ROUND_SIZES],
    /// Index of the next size to send.
    next: usize,
    /// Copies sent of each size.
    copies: u8,
    /// All copies are sent.
    awaiting_answers: bool,
}

impl MtuDiscovery {
    /// Starts a search up to `max`. The first probe has this size, because it usually passes.
    pub fn new(max: u16) -> Self {
        let max = max.clamp(BASE_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
        Self {
            current: BASE_UDP_PAYLOAD,
            ceiling: max + 1,
            max,
            round: None,
            next_probe_at: Timestamp::ZERO,
            raise_at: Timestamp::ZERO,
            is_limited: false,
            large_losses: 0,
        }
    }

    /// Starts the search again: the path is another one.
    pub fn restart(&mut self) {
        *self = Self::new(self.max);
    }

    /// Largest UDP payload known to pass.
    pub fn current(&self) -> u16 {
        self.current
    }

    /// Size of a probe to send now, if one is due, from the path's probe timeout and loss fraction
    /// (0 to 1).
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
                |from: usize| (from..ROUND_SIZES).find(|&index| round.sizes[index] > self.current);
            if let Some(index) = open(round.next) {
                round.next = index + 1;
                // Send all sizes together: a lone probe between flights of data would make the link
                // look slow.
                self.next_probe_at = now;
                self.round = Some(round);
                return Some(round.sizes[index]);
            }
            let smallest = open(0).map(|index| round.sizes[index]);
            round.copies += u8::from(!round.awaiting_answers);
            match smallest {
                // All sizes pass.
                None => self.end_round(now),
                Some(_) if round.copies < self.copies(loss) => {
                    // Send the second copy of the first size of all at once; otherwise wait for answers. Later, data
                    // may have filled the queue, which would drop both.
                    let is_first = round.sizes[0] == 0 && !self.was_complete();
                    let wait = if is_first && round.copies == 1 {
                        Duration::ZERO
                    } else {
                        probe_timeout / 2
                    };
                    round.next = 0;
                    // The loss estimate may have risen, so that more copies are needed.
                    round.awaiting_answers = false;
                    self.next_probe_at = now + wait;
                    self.round = Some(round);
                }
                Some(_) if !round.awaiting_answers => {
                    round.awaiting_answers = true;
                    self.next_probe_at = now + probe_timeout;
                    self.round = Some(round);
                }
                // The answers are overdue: the smallest size did not pass.
                Some(size) => {
                    self.ceiling = self.ceiling.min(size);
                    self.end_round(now);
                }
            }
        }
    }

    /// The next round, unless the search is complete.
    fn next_round(&self) -> Option<Round> {
        if self.current + SEARCH_STEP >= self.ceiling {
            return None;
        }
        let mut sizes = [0; ROUND_SIZES];
        if self.ceiling > self.max {
            sizes[ROUND_SIZES - 1] = self.max;
        } else {
            let span = self.ceiling - self.current;
            for (index, size) in (1..).zip(&mut sizes) {
                *size = self.current + (u32::from(span) * index / (ROUND_SIZES as u32 + 1)) as u16;
            }
        }
        Some(Round { sizes, next: 0, copies: 0, awaiting_answers: false })
    }

    /// Starts the next round now, or ends the search for [`RAISE_INTERVAL`]. The search after a black hole does
    /// not postpone the next one: black holes that follow each other would do so for ever.
    fn end_round(&mut self, now: Timestamp) {
        self.round = None;
        self.next_probe_at = now;
        if self.next_round().is_none() {
            let was_limited = core::mem::take(&mut self.is_limited);
            if !was_limited || self.raise_at <= now {
                self.raise_at = now + RAISE_INTERVAL;
            }
            self.next_probe_at = self.raise_at;
            self.ceiling = self.max + 1;
        }
    }

    /// Whether a search has ended before the current one on this path.
    fn was_complete(&self) -> bool {
        self.raise_at > Timestamp::ZERO
    }

    /// Number of copies of a probe on a path with this loss.
    fn copies(&self, loss: f64) -> u8 {
        let least = if self.was_complete() { MIN_LATER_COPIES } else { MIN_COPIES };
        lost_by_chance(loss.max(MIN_ASSUMED_LOSS), FALSE_POSITIVE_RATE)
            .clamp(least.into(), MAX_COPIES.into()) as u8
    }

    /// When to call [`MtuDiscovery::poll`] again, if a search is active.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        (self.round.is_some() || self.next_round().is_some()).then_some(self.next_probe_at)
    }

    /// A packet of `size` was acknowledged.
    pub fn on_acknowledged(&mut self, now: Timestamp, size: u16) {
        if size > BASE_UDP_PAYLOAD {
            self.large_losses = 0;
        }
        if size > self.current {
            self.current = size.min(self.max);
            if self.round.is_none_or(|round| round.sizes[ROUND_SIZES - 1] <= size) {
                self.end_round(now);
            }
        }
    }

    /// A packet of `size`, not a probe, was lost, and no large one sent after it has arrived. `answered` is the loss
    /// fraction of the path (0 to 1) if a small probe was answered meanwhile. True if this indicates a black hole:
    /// the path MTU falls back to the base size and the search starts again.
    pub fn on_lost(&mut self, now: Timestamp, size: u16, answered: Option<f64>) -> bool {
        if size <= BASE_UDP_PAYLOAD || self.current == BASE_UDP_PAYLOAD {
            return false;
        }
        self.large_losses += 1;
        let by_chance =
            |loss: f64| lost_by_chance(loss.max(MIN_BLACK_HOLE_LOSS), FALSE_BLACK_HOLE_RATE);
        if self.large_losses < answered.map_or(BLACK_HOLE_LOSSES, by_chance).min(BLACK_HOLE_LOSSES)
        {
            return false;
        }
        self.large_losses = 0;
        self.ceiling = self.current;
        self.current = BASE_UDP_PAYLOAD;
        self.is_limited = true;
        self.end_round(now);
        true
    }
}

/// Number of packets all of which random loss hits with at most this probability.
fn lost_by_chance(loss: f64, probability: f64) -> u32 {
    (probability.ln() / loss.min(0.99).ln()).ceil() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTO: Duration = Duration::from_millis(100);

    /// Runs the search on a path with MTU `limit`; `lost` decides which probes are lost.
    fn search(
        limit: u16,
        max: u16,
        loss: f64,
        lost: impl FnMut(u32) -> bool,
    ) -> (MtuDiscovery, u32) {
        let (mtu, probes, _) = search_until(Timestamp::from_millis(60_000), limit, max, loss, lost);
        (mtu, probes)
    }

    /// The same until `end`; returns also the sizes found and when. Answers take half a probe
    /// timeout.
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
    fn full_mtu_is_found_by_the_first_probe() {
        let (mtu, probes) = search(1472, 1472, 0.0, |_| false);
        assert_eq!(mtu.current(), 1472);
        assert!(probes <= 2, "{probes}: the second is sent before the first is answered");
    }

    #[test]
    fn smaller_mtu_is_found_within_one_step() {
        for limit in [1200, 1252, 1380, 1452] {
            let (mtu, probes) = search(limit, 1472, 0.0, |_| false);
            assert!(mtu.current() <= limit && mtu.current() + SEARCH_STEP >= limit, "{mtu:?}");
            assert!(probes <= 30, "{probes}");
        }
    }

    #[test]
    fn lost_probes_are_retransmitted() {
        let (mtu, _) = search(1472, 1472, 0.6, |n| n % 3 != 0);
        assert_eq!(mtu.current(), 1472);
    }

    #[test]
    fn smaller_mtu_is_found_despite_random_loss() {
        for period in [10, 20, 3] {
            // Aperiodic: periodic loss would hit all copies of one size.
            let lost = |n: u32| (n.wrapping_mul(0x9e37_79b1) >> 16).is_multiple_of(period);
            let (mtu, probes) = search(1_392, 1_472, 1.0 / f64::from(period), lost);
            assert!(mtu.current() + SEARCH_STEP >= 1_392, "{mtu:?}, {probes} probes");
        }
    }

    #[test]
    fn rising_loss_estimate_does_not_end_the_search() {
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
    fn mtu_reaches_95_percent_within_five_round_trips() {
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
    fn higher_loss_needs_more_copies() {
        let copies = |mtu: &MtuDiscovery| {
            [0.0, 0.05, 0.1, 0.3, 0.9, 0.9736, 1.0].map(|loss| mtu.copies(loss))
        };
        let mut mtu = MtuDiscovery::new(1_472);
        assert_eq!(copies(&mtu), [2, 3, 3, 6, 6, 6, 6]);
        // Later, data may fill a queue, which drops probes together.
        mtu.on_acknowledged(Timestamp::from_millis(1), 1_472);
        assert_eq!(copies(&mtu), [3, 3, 3, 6, 6, 6, 6]);
    }

    /// A full queue drops all probes of a moment. The search after ten minutes meets one twice, and still finds that
    /// the path MTU has risen.
    #[test]
    fn later_search_outlasts_a_queue_that_is_full_at_times() {
        let mut mtu = MtuDiscovery::new(1_472);
        let (mut now, mut full) = (Timestamp::from_millis(1), std::collections::BTreeSet::new());
        while now < Timestamp::from_millis(700_000) {
            while let Some(size) = mtu.poll(now, PTO, 0.0) {
                // No probe passes until the first search has ended.
                if now < Timestamp::from_millis(300_000) {
                    continue;
                }
                if full.len() < 2 {
                    full.insert(now);
                }
                if !full.contains(&now) {
                    mtu.on_acknowledged(now, size);
                }
            }
            now += Duration::from_millis(1);
        }
        assert_eq!((full.len(), mtu.current()), (2, 1_472));
    }

    /// With a small probe that is answered, the least n for which loss^n is at most 1e-9: 0.005^4 is 6e-10.
    #[test]
    fn mtu_falls_back_after_exactly_the_black_hole_losses() {
        let of_loss = [(0.0, 4), (0.005, 4), (0.01, 5), (0.03, 6), (0.3, 18), (0.5, 30), (0.9, 30)];
        let answered = of_loss.map(|(loss, losses)| (Some(loss), losses));
        for (answered, losses) in [(None, 30)].into_iter().chain(answered) {
            let (mut mtu, _) = search(1472, 1472, 0.0, |_| false);
            let now = Timestamp::from_millis(70_000);
            for _ in 0..losses - 1 {
                assert!(!mtu.on_lost(now, 1437, answered));
            }
            mtu.on_acknowledged(now, 1437);
            for _ in 0..losses - 1 {
                assert!(!mtu.on_lost(now, 1437, answered));
            }
            assert!(mtu.on_lost(now, 1437, answered), "{answered:?}");
            assert_eq!(mtu.current(), BASE_UDP_PAYLOAD);
        }
    }

    /// Calls `poll` only at its timeouts; probes above `limit` are lost, the answers to the others take
    /// 60 ms. Returns when each probe is sent, in ms, with its size.
    fn probes_until(mtu: &mut MtuDiscovery, limit: u16, end: Timestamp) -> Vec<(u64, u16)> {
        let mut answers = std::collections::VecDeque::new();
        let mut probes = Vec::new();
        loop {
            let timeout = mtu.next_timeout().into_iter();
            let next = timeout.chain(answers.front().map(|&(at, _)| at)).min();
            let Some(now) = next.filter(|&now| now < end) else { return probes };
            if answers.front().is_some_and(|&(at, _)| at == now) {
                let (_, size) = answers.pop_front().unwrap();
                mtu.on_acknowledged(now, size);
            } else if let Some(size) = mtu.poll(now, PTO, 0.0) {
                probes.push((now.as_micros() / 1_000, size));
                if size <= limit {
                    answers.push_back((now + Duration::from_millis(60), size));
                }
            }
        }
    }

    /// Takes the path MTU as fallen below the base size.
    fn black_hole(mtu: &mut MtuDiscovery, now: Timestamp) {
        let size = mtu.current();
        (1..BLACK_HOLE_LOSSES).for_each(|_| assert!(!mtu.on_lost(now, size, None)));
        assert!(mtu.on_lost(now, size, None));
        assert_eq!(mtu.current(), BASE_UDP_PAYLOAD);
    }

    /// Nothing is left to search between the base size and a size that fails just above it.
    #[test]
    fn higher_mtu_is_found_after_a_black_hole_just_above_the_base_size() {
        for size in [1_201, 1_210, 1_216] {
            let mut mtu = MtuDiscovery::new(1_472);
            probes_until(&mut mtu, 1_200, Timestamp::from_millis(10_000));
            mtu.on_acknowledged(Timestamp::from_millis(10_000), size);
            probes_until(&mut mtu, size, Timestamp::from_millis(20_000));
            assert_eq!(mtu.current(), size);
            black_hole(&mut mtu, Timestamp::from_millis(20_000));
            let raise = mtu.next_timeout().expect("a search");
            assert!(raise <= Timestamp::from_millis(20_000) + RAISE_INTERVAL, "{size}: {raise:?}");
            assert_eq!(mtu.poll(raise, PTO, 0.0), Some(1_472), "{size}");
        }
    }

    /// The path MTU falls below the base size for a moment each 300 s.
    #[test]
    fn higher_mtu_is_found_despite_black_holes_that_follow_each_other() {
        let mut mtu = MtuDiscovery::new(1_472);
        let mut found = None;
        for at in (300..4_000).step_by(300) {
            let raised = at > 1_500;
            let limit = if raised { 1_472 } else { 1_300 };
            let now = Timestamp::from_millis(at * 1_000);
            let probes = probes_until(&mut mtu, limit, now);
            assert!(probes.len() <= 100, "{} probes in 300 s", probes.len());
            assert!(mtu.current() <= limit);
            found = found.or((mtu.current() == 1_472).then_some(at));
            black_hole(&mut mtu, now);
        }
        assert!(found.is_some_and(|at| at <= 1_500 + 600 + 300), "{found:?}");
    }

    /// Each size of a round is sent again after half a probe timeout, and the answers are awaited for
    /// one; the first size of the first search is sent twice at once. A round divides the interval by
    /// five; a search ends when 16 bytes are left, and the next one, which sends each size three times,
    /// begins ten minutes later.
    #[test]
    fn search_sends_each_size_twice_and_three_times_after_ten_minutes() {
        type Rounds = &'static [(u64, [u16; 4])];
        let unanswered: Rounds =
            &[(100, [1_254, 1_308, 1_363, 1_417]), (250, [1_210, 1_221, 1_232, 1_243])];
        let unanswered_later: Rounds =
            &[(200, [1_254, 1_308, 1_363, 1_417]), (400, [1_210, 1_221, 1_232, 1_243])];
        let answered: Rounds =
            &[(100, [1_254, 1_308, 1_363, 1_417]), (250, [1_264, 1_275, 1_286, 1_297])];
        let repeated: Rounds =
            &[(200, [1_332, 1_367, 1_402, 1_437]), (400, [1_304, 1_311, 1_318, 1_325])];
        for (limit, first, length, second, found) in [
            (1_200, unanswered, 400, unanswered_later, 1_200),
            (1_300, answered, 310, repeated, 1_297),
        ] {
            let mut expected = Vec::new();
            let later = length + 600_000;
            let copies_of_full: [&[u64]; 2] = [&[0, 0], &[later, later + 50, later + 100]];
            for (start, rounds, full) in
                [(0, first, copies_of_full[0]), (later, second, copies_of_full[1])]
            {
                expected.extend(full.iter().map(|&at| (at, 1_472)));
                for (at, sizes) in rounds {
                    for copy in (0..full.len() as u64).map(|copy| start + at + 50 * copy) {
                        expected.extend(sizes.iter().map(|&size| (copy, size)));
                    }
                }
            }
            let mut mtu = MtuDiscovery::new(1_472);
            let end = Timestamp::from_millis(1_000_000);
            assert_eq!(probes_until(&mut mtu, limit, end), expected);
            let next = later + 600 + 600_000;
            assert_eq!(
                (mtu.current(), mtu.next_timeout()),
                (found, Some(Timestamp::from_millis(next)))
            );
        }
    }

    #[test]
    fn acknowledgements_of_the_known_size_do_not_start_a_search() {
        let mut mtu = MtuDiscovery::new(1_472);
        probes_until(&mut mtu, 1_300, Timestamp::from_millis(1_000));
        let (current, next) = (mtu.current(), mtu.next_timeout());
        for size in [1_200, current] {
            mtu.on_acknowledged(Timestamp::from_millis(2_000), size);
            assert_eq!((mtu.current(), mtu.next_timeout()), (current, next));
        }
        // A larger one does.
        let now = Timestamp::from_millis(2_000);
        mtu.on_acknowledged(now, current + 1);
        assert_eq!((mtu.current(), mtu.next_timeout()), (current + 1, Some(now)));
        // Nothing is left to find.
        mtu.on_acknowledged(now, 9_000);
        assert_eq!((mtu.current(), mtu.next_timeout()), (1_472, None));
    }

    #[test]
    fn late_answer_to_a_size_taken_as_too_large_counts() {
        let mut mtu = MtuDiscovery::new(1_472);
        probes_until(&mut mtu, 1_200, Timestamp::from_millis(300));
        let now = Timestamp::from_millis(320);
        mtu.on_acknowledged(now, 1_417);
        assert_eq!((mtu.current(), mtu.next_timeout()), (1_417, Some(now + RAISE_INTERVAL)));
    }

    #[test]
    fn losses_and_acknowledgements_of_packets_of_the_base_size_say_nothing_about_the_mtu() {
        let mut mtu = MtuDiscovery::new(1_472);
        let now = Timestamp::from_millis(70_000);
        let lose = |mtu: &mut MtuDiscovery, size, count| {
            let mut losses = 0..count;
            losses.any(|_| mtu.on_lost(now, size, None)).then(|| losses.len())
        };
        assert_eq!(lose(&mut mtu, 1_472, 60), None);
        mtu.on_acknowledged(now, 1_472);
        assert_eq!(lose(&mut mtu, BASE_UDP_PAYLOAD, 60), None);
        for (acknowledged, losses) in
            [(BASE_UDP_PAYLOAD, 1), (BASE_UDP_PAYLOAD + 1, BLACK_HOLE_LOSSES as usize)]
        {
            assert_eq!(lose(&mut mtu, BASE_UDP_PAYLOAD + 1, BLACK_HOLE_LOSSES as usize - 1), None);
            mtu.on_acknowledged(now, acknowledged);
            assert_eq!(lose(&mut mtu, BASE_UDP_PAYLOAD + 1, losses), Some(0), "the last one");
            // The size that failed is not tried again before the sizes below it.
            assert_eq!((mtu.current(), mtu.next_timeout()), (BASE_UDP_PAYLOAD, Some(now)));
            assert_eq!(mtu.poll(now, PTO, 0.0), Some(1_254));
            mtu.on_acknowledged(now, 1_472);
        }
    }
}
