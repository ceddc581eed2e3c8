//! The receiving side of a hop: the ranks that the previous node needs as feedback.

use core::time::Duration;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_code::BATCH_SIZE;
use bats_code::recode::{Basis, CoefficientVector};
use bats_types::Timestamp;

use super::link_view::LinkView;
use bats_wire::batch_rank::{BatchRank, MAX_BATCHES, Space};
use bats_wire::coding::expand;
use bats_wire::flow::FlowKey;

/// Number of batches before the first one seen that may still be in flight.
const HISTORY: u64 = 64;
/// Number of round trips after which an incomplete batch is given up. Each one allows one round of
/// repairs. At 20 % loss, three would leave 1 % of the packets unrepaired on every hop; eight leave
/// a negligible part.
pub(super) const BATCH_TIMEOUT_ROUND_TRIPS: u32 = 8;
/// Minimum of that time.
pub(super) const MIN_BATCH_TIMEOUT: Duration = Duration::from_millis(250);
/// Limits of the interval between reports, which is a fraction of the round trip.
const MIN_REPORT_INTERVAL: Duration = Duration::from_millis(1);
const MAX_REPORT_INTERVAL: Duration = Duration::from_millis(10);
const REPORTS_PER_RTT: u32 = 16;

/// Classification of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The packet raised the rank.
    Innovative,
    /// The packet did not raise the rank.
    NonInnovative,
    /// The batch is complete or given up.
    Late,
}

/// A batch of which some packets have arrived.
#[derive(Clone, Debug)]
struct Incomplete {
    basis: Basis,
    /// When it last made progress.
    changed: Timestamp,
}

/// Ranks of the batches of one kind.
///
/// A packet may jump over thousands of batches, which may all be in flight. So nothing is held for
/// a batch of which no packet has arrived: the batches that one packet jumped over share a time.
#[derive(Clone, Debug, Default)]
struct Ranks {
    started: bool,
    /// The first batch that is not complete or given up.
    floor: u64,
    /// The batch after the newest.
    end: u64,
    incomplete: BTreeMap<u64, Box<Incomplete>>,
    /// The complete batches from `floor` on.
    complete: BTreeSet<u64>,
    /// When a later packet first arrived, for the batches from a number to that of the next entry. The
    /// first entry is that of `floor`.
    passed: VecDeque<(u64, Timestamp)>,
    /// Whether a packet arrived since the last report.
    has_new_packets: bool,
}

impl Ranks {
    fn bytes(&self) -> usize {
        self.incomplete.len() * (size_of::<u64>() + size_of::<Incomplete>())
            + self.complete.len() * size_of::<u64>()
            + self.passed.len() * size_of::<(u64, Timestamp)>()
    }

    fn on_packet(
        &mut self,
        now: Timestamp,
        batch: u32,
        vector: &CoefficientVector,
        batch_timeout: Duration,
    ) -> (u64, Arrival) {
        let number = self.number(batch);
        if !self.started {
            self.started = true;
            self.floor = number.saturating_sub(HISTORY);
            self.end = self.floor;
        }
        self.has_new_packets = true;
        if number < self.floor {
            return (number, Arrival::Late);
        }
        let most = MAX_BATCHES as u64;
        if number - self.floor >= most {
            // Packets overtook the oldest batches by more than is tracked.
            self.give_up_before(number + 1 - most);
        }
        if self.end <= number {
            if self.passed.back().is_none_or(|&(_, at)| at < now) {
                self.passed.push_back((self.end, now));
            }
            self.end = number + 1;
            self.drop_passed();
        }
        if self.complete.contains(&number) {
            return (number, Arrival::NonInnovative);
        }
        match self.incomplete.entry(number) {
            Entry::Vacant(entry) => {
                let mut basis = Basis::default();
                if !basis.insert(*vector) {
                    return (number, Arrival::NonInnovative);
                }
                entry.insert(Box::new(Incomplete { basis, changed: now }));
            }
            Entry::Occupied(mut entry) => {
                let batch = entry.get_mut();
                if !batch.basis.insert(*vector) {
                    return (number, Arrival::NonInnovative);
                }
                batch.changed = now;
                if batch.basis.rank() == BATCH_SIZE {
                    entry.remove();
                    self.complete.insert(number);
                }
            }
        }
        self.retire(now, batch_timeout);
        (number, Arrival::Innovative)
    }

    /// Removes complete batches, and those that have timed out, from the front. The newest two may
    /// still grow, because a slow source fills them one symbol at a time.
    fn retire(&mut self, now: Timestamp, batch_timeout: Duration) {
        while self.floor < self.end {
            if self.complete.first() == Some(&self.floor) {
                self.complete.pop_first();
            } else {
                let first = self.incomplete.first_key_value();
                let first = first.filter(|&(&number, _)| number == self.floor);
                let passed = self.passed.front().map_or(now, |&(_, at)| at);
                let changed = first.map_or(passed, |(_, batch)| batch.changed);
                if self.end - self.floor <= 2 || changed + batch_timeout > now {
                    break;
                }
                if first.is_some() {
                    self.incomplete.pop_first();
                }
            }
            self.floor += 1;
            self.drop_passed();
        }
    }

    fn give_up_before(&mut self, floor: u64) {
        while self.incomplete.first_key_value().is_some_and(|(&first, _)| first < floor) {
            self.incomplete.pop_first();
        }
        while self.complete.first().is_some_and(|&first| first < floor) {
            self.complete.pop_first();
        }
        self.floor = floor;
        self.end = self.end.max(floor);
        self.drop_passed();
    }

    /// Drops the times of batches before `floor`.
    fn drop_passed(&mut self) {
        while self.passed.get(1).is_some_and(|&(first, _)| first <= self.floor) {
            self.passed.pop_front();
        }
    }

    /// The ranks of the batches from `floor` on.
    fn ranks(&self) -> Vec<u8> {
        let mut ranks = vec![0; (self.end - self.floor) as usize];
        let incomplete =
            self.incomplete.iter().map(|(&number, batch)| (number, batch.basis.rank()));
        let complete = self.complete.iter().map(|&number| (number, BATCH_SIZE));
        for (number, rank) in incomplete.chain(complete) {
            ranks[(number - self.floor) as usize] = rank as u8;
        }
        ranks
    }

    /// The full number of a batch.
    fn number(&self, batch: u32) -> u64 {
        expand(u64::from(batch), 24, self.end)
    }
}

/// The packets of a flow that arrived over all links, so that a packet is forwarded once even if it comes back
/// over another link: while routes change, they may form a loop.
#[derive(Debug, Default)]
pub(super) struct OverAllLinks([Ranks; 2]);

impl OverAllLinks {
    /// Begins with what arrived over one link.
    pub(super) fn new(link: &Inbound) -> Self {
        Self(link.spaces.clone())
    }

    /// Whether a packet adds to what arrived before. `batch_timeout` is that of the slowest link.
    pub(super) fn is_innovative(
        &mut self,
        now: Timestamp,
        space: Space,
        batch: u32,
        vector: &CoefficientVector,
        batch_timeout: Duration,
    ) -> bool {
        let (_, arrival) = self.0[space as usize].on_packet(now, batch, vector, batch_timeout);
        arrival == Arrival::Innovative
    }

    /// Bytes of batch state.
    pub(super) fn state_bytes(&self) -> usize {
        self.0.iter().map(Ranks::bytes).sum()
    }
}

/// The receiving side of a hop.
#[derive(Debug, Default)]
pub(super) struct Inbound {
    spaces: [Ranks; 2],
    report_at: Option<Timestamp>,
    last_report: Timestamp,
    /// Packets queued here, as last reported. When fewer are, a report is due even if no packet arrives.
    queued_reported: u64,
    /// Earliest time of such a report.
    room_report_at: Timestamp,
}

/// Time after which an incomplete batch is given up on a hop.
pub(super) fn batch_timeout(view: &LinkView) -> Duration {
    (view.smoothed_rtt * BATCH_TIMEOUT_ROUND_TRIPS).max(MIN_BATCH_TIMEOUT)
}

/// Interval between two reports of arrivals.
pub(super) fn report_interval(view: &LinkView) -> Duration {
    (view.min_rtt / REPORTS_PER_RTT).clamp(MIN_REPORT_INTERVAL, MAX_REPORT_INTERVAL)
}

/// Interval between two reports while nothing arrives. It follows the link's queue, because these
/// reports themselves may fill it: on a link of 370 kbit/s with a round trip of 5 ms, one each
/// millisecond let nothing else pass.
fn idle_report_interval(view: &LinkView) -> Duration {
    let queue = view.smoothed_rtt.saturating_sub(view.min_rtt);
    report_interval(view).max(queue / REPORTS_PER_RTT)
}

impl Inbound {
    /// Processes the coefficient vector of a packet. Returns the full batch number and the
    /// classification.
    pub(super) fn on_packet(
        &mut self,
        now: Timestamp,
        space: Space,
        batch: u32,
        vector: &CoefficientVector,
        view: &LinkView,
    ) -> (u64, Arrival) {
        let due = (self.last_report + report_interval(view)).max(now);
        self.report_at = Some(self.report_at.map_or(due, |at| at.min(due)));
        self.spaces[space as usize].on_packet(now, batch, vector, batch_timeout(view))
    }

    /// Bytes of batch state.
    pub(super) fn state_bytes(&self) -> usize {
        self.spaces.iter().map(Ranks::bytes).sum()
    }

    /// Whether a packet of this batch would take no further memory.
    pub(super) fn holds(&self, space: Space, batch: u32) -> bool {
        let ranks = &self.spaces[space as usize];
        ranks.incomplete.contains_key(&ranks.number(batch))
    }

    /// When the next report is due.
    pub(super) fn report_at(&self) -> Option<Timestamp> {
        self.report_at
    }

    /// Postpones the timer while a report waits to be written.
    pub(super) fn postpone(&mut self, now: Timestamp) {
        self.report_at = Some(now + MAX_REPORT_INTERVAL);
    }

    /// Schedules a report if fewer packets are queued here than were reported: there is more room. Work
    /// follows the packets that leave, not the number of flows that wait.
    pub(super) fn on_queue(&mut self, now: Timestamp, queued: u64) {
        if queued < self.queued_reported && self.report_at.is_none() {
            self.report_at = Some(self.room_report_at.max(now));
        }
    }

    /// Cancels the report: the previous node does not accept reports.
    pub(super) fn cancel_report(&mut self) {
        self.report_at = None;
    }

    /// Builds the reports that are due: one for each kind of batches with new packets.
    pub(super) fn reports(
        &mut self,
        now: Timestamp,
        key: FlowKey,
        mark: u64,
        (queued, room): (u64, u64),
        view: &LinkView,
    ) -> Vec<BatchRank> {
        self.last_report = now;
        self.report_at = None;
        self.room_report_at = now + idle_report_interval(view);
        let more_room = self.queued_reported > queued;
        self.queued_reported = queued;
        let mut reports = Vec::new();
        for (space, ranks) in [Space::Source, Space::Repair].into_iter().zip(&mut self.spaces) {
            let room_alone = space == Space::Source && more_room && ranks.started;
            if !core::mem::take(&mut ranks.has_new_packets) && !room_alone {
                continue;
            }
            ranks.retire(now, batch_timeout(view));
            reports.push(BatchRank {
                key,
                space,
                mark,
                room,
                first: (ranks.floor & 0x00ff_ffff) as u32,
                ranks: ranks.ranks(),
            });
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use bats_code::recode::unit_vector;

    use super::*;
    use bats_wire::flow::NodeId;

    const KEY: FlowKey = FlowKey { destination: NodeId(1), source: NodeId(2), flow: 3 };

    fn push(inbound: &mut Inbound, now: Timestamp, batch: u32, index: usize) -> Arrival {
        let vector = unit_vector(index).unwrap();
        inbound.on_packet(now, Space::Source, batch, &vector, &LinkView::default()).1
    }

    fn report(inbound: &mut Inbound, now: Timestamp) -> BatchRank {
        inbound.reports(now, KEY, 0, (0, 9), &LinkView::default()).remove(0)
    }

    #[test]
    fn reports_without_arrivals_do_not_fill_a_queue() {
        let interval = |smoothed, min| {
            idle_report_interval(&LinkView {
                smoothed_rtt: Duration::from_millis(smoothed),
                min_rtt: Duration::from_millis(min),
                ..LinkView::default()
            })
        };
        assert_eq!(interval(5, 5), Duration::from_millis(1));
        assert_eq!(interval(1_605, 5), Duration::from_millis(100));
    }

    #[test]
    fn reports_start_at_the_first_incomplete_batch() {
        let mut inbound = Inbound::default();
        let now = Timestamp::from_millis(20);
        assert_eq!(inbound.report_at(), None);
        for index in 0..16 {
            assert_eq!(push(&mut inbound, now, 0, index), Arrival::Innovative);
        }
        assert_eq!(push(&mut inbound, now, 0, 3), Arrival::Late);
        for (batch, index) in [(1, 4), (1, 7), (3, 0)] {
            assert_eq!(push(&mut inbound, now, batch, index), Arrival::Innovative);
        }
        assert_eq!(push(&mut inbound, now, 3, 0), Arrival::NonInnovative);
        assert_eq!(inbound.report_at(), Some(now));
        let report = report(&mut inbound, now);
        assert_eq!((report.first, &report.ranks[..]), (1, &[2, 0, 1][..]));
        assert_eq!(inbound.report_at(), None);
        assert!(inbound.reports(now, KEY, 0, (0, 9), &LinkView::default()).is_empty());
    }

    #[test]
    fn first_report_includes_batches_in_flight() {
        let mut inbound = Inbound::default();
        let now = Timestamp::from_millis(5);
        push(&mut inbound, now, 1_000, 0);
        let report = report(&mut inbound, now);
        assert_eq!((report.first, report.ranks.len()), (1_000 - 64, 65));
    }

    #[test]
    fn stale_batches_are_dropped_except_the_newest_two() {
        let mut inbound = Inbound::default();
        let start = Timestamp::from_millis(5);
        for batch in 0..4 {
            push(&mut inbound, start, batch, 0);
        }
        let later = start + Duration::from_secs(10);
        assert_eq!(push(&mut inbound, later, 3, 1), Arrival::Innovative);
        assert_eq!(report(&mut inbound, later).first, 2);
        assert_eq!(push(&mut inbound, later, 1, 1), Arrival::Late);
        assert_eq!(push(&mut inbound, later, 2, 1), Arrival::Innovative);
    }

    #[test]
    fn tracked_batches_are_bounded() {
        let mut inbound = Inbound::default();
        let now = Timestamp::from_millis(5);
        for batch in (0..0x00ff_ffff).step_by(99_991) {
            push(&mut inbound, now, batch, 0);
            assert!(inbound.spaces[0].end - inbound.spaces[0].floor <= MAX_BATCHES as u64);
        }
        assert!(report(&mut inbound, now).ranks.len() <= MAX_BATCHES);
        // One beyond the limit retires the first.
        let mut inbound = Inbound::default();
        push(&mut inbound, now, 0, 0);
        push(&mut inbound, now, MAX_BATCHES as u32 - 1, 0);
        assert_eq!(report(&mut inbound, now).first, 0);
        push(&mut inbound, now, MAX_BATCHES as u32, 0);
        assert_eq!(report(&mut inbound, now).first, 1);
    }

    fn link(smoothed: u64, min: u64) -> LinkView {
        let (smoothed_rtt, min_rtt) = (Duration::from_millis(smoothed), Duration::from_millis(min));
        LinkView { smoothed_rtt, min_rtt, ..LinkView::default() }
    }

    #[test]
    fn intervals_follow_the_round_trip_within_their_limits() {
        for (rtt, timeout, interval) in [
            (1, 250, 1),
            (16, 250, 1),
            (31, 250, 0),
            (32, 256, 2),
            (160, 1_280, 10),
            (900, 7_200, 10),
        ] {
            let view = link(rtt, rtt);
            assert_eq!(batch_timeout(&view), Duration::from_millis(timeout));
            if interval > 0 {
                assert_eq!(report_interval(&view), Duration::from_millis(interval));
            }
        }
    }

    #[test]
    fn incomplete_batch_is_given_up_exactly_after_its_timeout() {
        let start = Timestamp::from_millis(5);
        // Eight round trips of 100 ms.
        let end = start + Duration::from_millis(800);
        for (now, first) in [(end.saturating_sub(Duration::from_nanos(1)), 0), (end, 1)] {
            let mut inbound = Inbound::default();
            (0..3).for_each(|batch| _ = push(&mut inbound, start, batch, 0));
            push(&mut inbound, now, 2, 1);
            assert_eq!(report(&mut inbound, now).first, first);
            // Progress counts, and packets that do not raise the rank do not.
            let mut inbound = Inbound::default();
            (0..3).for_each(|batch| _ = push(&mut inbound, start, batch, 0));
            let later = start + Duration::from_millis(1);
            assert_eq!(push(&mut inbound, later, 0, 0), Arrival::NonInnovative);
            assert_eq!(push(&mut inbound, later, 1, 1), Arrival::Innovative);
            push(&mut inbound, now, 2, 1);
            assert_eq!(report(&mut inbound, now).first, first);
        }
    }

    #[test]
    fn state_is_what_arrived_and_a_time_for_each_packet_that_was_the_newest() {
        let mut inbound = Inbound::default();
        let now = Timestamp::from_millis(5);
        let incomplete = size_of::<u64>() + size_of::<Incomplete>();
        let (complete, passed) = (size_of::<u64>(), size_of::<(u64, Timestamp)>());
        assert_eq!(inbound.state_bytes(), 0);
        push(&mut inbound, now, 0, 0);
        assert_eq!(inbound.state_bytes(), incomplete + passed);
        push(&mut inbound, now, 9, 0);
        assert_eq!(inbound.state_bytes(), 2 * incomplete + passed, "at the same time");
        let later = now + Duration::from_millis(1);
        push(&mut inbound, later, 4_000, 0);
        assert_eq!(inbound.state_bytes(), 3 * incomplete + 2 * passed);
        assert!(inbound.holds(Space::Source, 0) && !inbound.holds(Space::Repair, 0));
        (1..16).for_each(|index| _ = push(&mut inbound, later, 9, index));
        assert_eq!(inbound.state_bytes(), 2 * incomplete + complete + 2 * passed);
        assert!(!inbound.holds(Space::Source, 9), "it is complete");
        assert_eq!(OverAllLinks::new(&inbound).state_bytes(), inbound.state_bytes());
        // A complete batch at the front goes.
        (1..16).for_each(|index| _ = push(&mut inbound, later, 0, index));
        assert_eq!(inbound.state_bytes(), incomplete + complete + 2 * passed);
        // Those before the ones that are tracked go, too.
        push(&mut inbound, later, MAX_BATCHES as u32 + 4_000, 0);
        assert_eq!(inbound.state_bytes(), incomplete + passed);
    }

    #[test]
    fn reports_are_due_an_interval_after_the_last_one() {
        let mut inbound = Inbound::default();
        let (start, view) = (Timestamp::from_millis(5), LinkView::default());
        push(&mut inbound, start, 0, 0);
        let reports = |inbound: &mut Inbound, now, queued| {
            let reports = inbound.reports(now, KEY, 3, (queued, 9), &view);
            reports
                .iter()
                .map(|report| (report.space, report.mark, report.room))
                .collect::<Vec<_>>()
        };
        assert_eq!(reports(&mut inbound, start, 2), [(Space::Source, 3, 9)]);
        // A sixteenth of 100 ms. When a queued packet leaves, a report is due without an arrival.
        let due = start + Duration::from_micros(6_250);
        assert_eq!(inbound.report_at(), None);
        inbound.on_queue(start, 2);
        assert_eq!(inbound.report_at(), None, "none left");
        inbound.on_queue(start, 1);
        assert_eq!(inbound.report_at(), Some(due));
        inbound.cancel_report();
        inbound.on_queue(due + Duration::from_millis(9), 0);
        assert_eq!(inbound.report_at(), Some(due + Duration::from_millis(9)), "it is due");
        inbound.cancel_report();
        push(&mut inbound, start + Duration::from_millis(1), 0, 1);
        assert_eq!(inbound.report_at(), Some(due));
        assert_eq!(reports(&mut inbound, due, 2), [(Space::Source, 3, 9)]);
        assert_eq!(reports(&mut inbound, due, 2), [], "nothing is new");
        assert_eq!(reports(&mut inbound, due, 1), [(Space::Source, 3, 9)], "there is more room");
        assert_eq!(reports(&mut inbound, due, 0), [(Space::Source, 3, 9)]);
        assert_eq!((inbound.report_at(), reports(&mut inbound, due, 0)), (None, vec![]));
        let now = due + Duration::from_millis(20);
        push(&mut inbound, now, 0, 2);
        assert_eq!(inbound.report_at(), Some(now));
        inbound.postpone(now);
        assert_eq!(inbound.report_at(), Some(now + MAX_REPORT_INTERVAL));
        inbound.cancel_report();
        assert_eq!(inbound.report_at(), None);
    }

    #[test]
    fn batch_numbers_of_reports_have_24_bits() {
        let mut inbound = Inbound::default();
        let now = Timestamp::from_millis(5);
        push(&mut inbound, now, 0x00ff_fff0, 0);
        push(&mut inbound, now, 3, 0);
        let first = report(&mut inbound, now);
        assert_eq!((first.first, first.ranks.len()), (0x00ff_fff0 - 64, 64 + 16 + 4));
        (0..16).for_each(|index| _ = push(&mut inbound, now, 3, index));
        let later = now + Duration::from_secs(60);
        push(&mut inbound, later, 5, 0);
        assert_eq!(report(&mut inbound, later).first, 4, "all but the newest two are given up");
    }
}
