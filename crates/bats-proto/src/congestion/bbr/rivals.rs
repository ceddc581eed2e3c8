//! Beside flows that keep a queue standing, whoever yields to a queue starves. Here is how we hold
//! our own, and how we find out whether anybody is there.
//!
//! *Is anybody there?* In a first-in-first-out queue the round trip is the sum of everybody's bytes
//! in flight over the rate. Taking a part of ours away shortens it by our share of that: all of it
//! if we are alone, nothing if there is no queue but a longer path. Such a trial is made when a queue
//! does not yield, and again every few seconds.
//!
//! *How much?* As the first BBR has it: two products of the best rate of ten round trips and the
//! least delay, with a cycle that asks for more in one round and gives it back in the next. That
//! alone holds no balance: two such flows may share in any proportion, and one that answers to loss
//! starves. So the two products become more where the trials show that we have less than half of the
//! queue, and fewer where we have more; and a queue that overflows takes some of the rate.
//!
//! *Who is it?* Beside a BBR, which now and then pauses ([`Pauses`]), our share of the link is known, and that
//! share is what the products in flight follow; overflow, which a BBR causes and does not answer to, takes
//! nothing.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::pauses::{Pauses, Seen};

/// Pace in the phases of the cycle, a round trip each.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// Round trips that the best rate is remembered for.
const RATE_ROUNDS: usize = 10;
/// Products in flight at an equal share, how many more or fewer for a share of the queue that is off
/// by one, and the least and the most.
pub(super) const CWND_GAIN: f64 = 2.0;
const PRODUCTS_PER_SHARE: f64 = 3.0;
pub(super) const EQUAL_SHARE: f64 = 0.5;
const LEAST_PRODUCTS: f64 = 0.7;
const MOST_PRODUCTS: f64 = 2.8;
/// The most for each least delay that a round trip takes, where that is more: half of what fills a long
/// queue is.
const MOST_PER_TRIP: f64 = 1.2;
/// What a trial takes of what is in flight, at most and at least, how many round trips it lasts, and
/// the part of the queue that it may take: an empty one would hide whose it was.
const MOST_TAKEN: f64 = 0.25;
const LEAST_TAKEN: f64 = 0.08;
const TAKEN_OF_QUEUE: f64 = 0.8;
const TRIAL_ROUNDS: u32 = 3;
/// Round trips over which it is seen how the queue grows.
const TREND_ROUNDS: usize = 6;
/// Time between trials.
const TRIAL_INTERVAL: Duration = Duration::from_millis(1_500);
/// By how much a share that is off by one changes the products in flight with each trial.
const PRODUCTS_PER_TRIAL: f64 = 0.5;
/// Part of the newest share in the mean.
const SHARE_PART: f64 = 0.4;
/// Share of the queue from which we are alone, and change of the round trip below which nothing
/// changed: there is no queue.
const ALONE: f64 = 0.85;
const NO_CHANGE: f64 = 0.02;
/// Trials in a row that must agree, and that must if there were others not long ago.
const AGREEING: u32 = 2;
const AGREEING_WHEN_CERTAIN: u32 = 4;
/// Loss beyond the path's own in a round from which the queue overflows, and what that leaves of
/// the rate.
const OVERFLOW: f64 = 0.005;
const OVERFLOW_SHARE: f64 = 0.95;
/// Mean of that loss from which on the products in flight are too many, whatever our share of the
/// queue, and what each further round trip leaves of them: several flows that all want half of a queue
/// would keep it full.
const FLOOD: f64 = 0.08;
const FLOOD_SHARE: f64 = 0.95;
const FLOOD_PART: f64 = 0.125;
/// By how much a share of the link that is off by one changes the products in flight in a round trip, the
/// part of the newest share in the mean, and how much faster than its rate who has none paces: what it
/// has in flight, not its pace, is to decide its share.
const PRODUCTS_PER_ROUND: f64 = 0.1;
const KNOWN_SHARE_PART: f64 = 0.1;
const PACE_PER_SHARE: f64 = 0.7;
/// Share of the queue from which a pause tells nothing more of the others, and room for acknowledgements in
/// steps while they pause.
const MOST_SHARE: f64 = 0.7;
const PAUSE_WINDOW: f64 = 1.25;
/// Rounds and time without a queue after which nobody is there: a BBR that looks for the least round
/// trip is back sooner.
const EMPTY_ROUNDS: u32 = 6;
const EMPTY_TIME: Duration = Duration::from_millis(500);

/// What a round trip with rivals looked like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) now: Timestamp,
    /// The least queue in it.
    pub(super) queue: Duration,
    /// A queue below this is none.
    pub(super) empty: Duration,
    pub(super) min_rtt: Duration,
    /// Bytes in flight.
    pub(super) in_flight: u64,
    /// Share of the packets lost beyond the path's own loss.
    pub(super) excess: f64,
}

/// What was found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// The queue is our own, or gone.
    Alone,
    /// There is no queue: the path is longer than it was.
    Longer,
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    rounds: u32,
    /// Bytes in flight before, and the part of them that is taken.
    in_flight: f64,
    taken: f64,
    /// Round trip to be expected without it, and the least one since, in seconds.
    before: f64,
    least: f64,
}

/// Holding our own.
#[derive(Debug)]
pub(super) struct Rivals {
    rates: VecDeque<u64>,
    /// The best rate of this round.
    best: u64,
    phase: usize,
    phase_since: Timestamp,
    min_rtt: Duration,
    /// Our share of the queue, or of the link where that is known, a mean.
    share: f64,
    /// Products of rate and delay in flight at an equal share.
    products: f64,
    /// Mean of the loss beyond the path's own.
    overflow: f64,
    /// Round trips of late, in seconds.
    trips: VecDeque<f64>,
    trial: Option<Trial>,
    next_trial: Timestamp,
    /// It is known that there are others.
    is_certain: bool,
    /// Trials in a row that found others.
    shared: u32,
    /// What the last trials found, and how often in a row.
    found: Option<(Finding, u32)>,
    empty_rounds: u32,
    /// When the queue was seen last.
    seen: Timestamp,
    pauses: Pauses,
    /// The rate that packets pass at now.
    passing: u64,
    /// Somebody paused not long ago: the link's rate is known, and our share of it.
    knows_link: bool,
}

impl Rivals {
    /// Begins with this rate in bytes a second, and a trial soon.
    /// `share` and `products` are those of the last time.
    pub(super) fn new(
        now: Timestamp,
        rate: u64,
        min_rtt: Duration,
        is_certain: bool,
        share: f64,
        products: f64,
    ) -> Self {
        Self {
            rates: VecDeque::from([rate]),
            best: 0,
            phase: 2,
            phase_since: now,
            min_rtt,
            share,
            products,
            overflow: 0.0,
            trips: VecDeque::new(),
            trial: None,
            next_trial: now + min_rtt * 4,
            is_certain,
            shared: 0,
            found: None,
            empty_rounds: 0,
            seen: now,
            pauses: Pauses::default(),
            passing: rate,
            knows_link: false,
        }
    }

    /// The best rate of late, bytes a second.
    pub(super) fn rate(&self) -> u64 {
        self.rates.iter().copied().max().unwrap_or(0)
    }

    /// Our share of the queue of late.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Products of rate and delay in flight at an equal share.
    pub(super) fn products(&self) -> f64 {
        self.products
    }

    /// Others were seen, beyond doubt.
    pub(super) fn is_certain(&self) -> bool {
        self.is_certain
    }

    /// Pace, as a share of the rate.
    pub(super) fn gain(&self) -> f64 {
        if let Some(gain) = self.pauses.gain() {
            return gain;
        }
        if self.trial.is_some() {
            return 1.0;
        }
        let more = if self.knows_link { PACE_PER_SHARE * (EQUAL_SHARE - self.share) } else { 0.0 };
        CYCLE[self.phase] * (1.0 + more.max(0.0))
    }

    /// Bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        let product = self.rate() as f64 * self.min_rtt.as_secs_f64();
        if let Some(gain) = self.pauses.gain() {
            return (product * (gain * PAUSE_WINDOW).max(self.products)) as u64;
        }
        let more = PRODUCTS_PER_SHARE * (EQUAL_SHARE - self.share);
        let more = if self.floods() && !self.knows_link { more.min(0.0) } else { more };
        let products = (self.products + more).clamp(LEAST_PRODUCTS, self.most_products());
        let usual = product * products;
        let trial = self.trial.map_or(f64::INFINITY, |trial| trial.in_flight * (1.0 - trial.taken));
        usual.min(trial) as u64
    }

    fn most_products(&self) -> f64 {
        let trip = self.trips.back().copied().unwrap_or_default();
        MOST_PRODUCTS.max(trip / self.min_rtt.as_secs_f64().max(1e-6) * MOST_PER_TRIP)
    }

    fn change_products(&mut self, more: f64) {
        self.products = (self.products + more).clamp(LEAST_PRODUCTS, self.most_products());
    }

    fn floods(&self) -> bool {
        self.overflow > FLOOD
    }

    /// Every acknowledgement, with the rate in bytes a second that packets passed at.
    pub(super) fn on_ack(&mut self, now: Timestamp, min_rtt: Duration, rate: u64) {
        self.min_rtt = min_rtt;
        self.pauses.on_ack(rate);
        self.passing = rate;
        if !self.pauses.hides_share() {
            self.best = self.best.max(rate);
        }
        if now - self.phase_since >= min_rtt {
            self.phase = (self.phase + 1) % CYCLE.len();
            self.phase_since = now;
        }
    }

    /// Every round trip.
    pub(super) fn on_round(&mut self, round: &Round) -> Option<Finding> {
        if !self.pauses.hides_share() {
            if self.rates.len() == RATE_ROUNDS {
                self.rates.pop_front();
            }
            self.rates.push_back(core::mem::take(&mut self.best));
        }
        self.look_for_pauses(round);
        if round.excess > OVERFLOW && !self.knows_link {
            let left = |rate: &mut u64| *rate = (*rate as f64 * OVERFLOW_SHARE) as u64;
            self.rates.iter_mut().for_each(left);
        }
        self.overflow += (round.excess - self.overflow) * FLOOD_PART;
        if self.floods() && !(self.knows_link && self.share < EQUAL_SHARE) {
            self.products = (self.products * FLOOD_SHARE).max(LEAST_PRODUCTS);
        }
        self.empty_rounds = if round.queue <= round.empty { self.empty_rounds + 1 } else { 0 };
        if self.empty_rounds == 0 {
            self.seen = round.now;
        } else if self.empty_rounds >= EMPTY_ROUNDS && round.now - self.seen >= EMPTY_TIME {
            return Some(Finding::Alone);
        }
        if self.pauses.hides_share() {
            return None;
        }
        let rtt = (round.min_rtt + round.queue).as_secs_f64();
        if self.trips.len() > TREND_ROUNDS {
            self.trips.pop_front();
        }
        self.trips.push_back(rtt);
        if let Some(trial) = &mut self.trial {
            trial.rounds += 1;
            trial.least = trial.least.min(rtt);
            if trial.rounds < TRIAL_ROUNDS {
                return None;
            }
            let change = 1.0 - trial.least / trial.before;
            let share = (change / trial.taken).clamp(0.0, 1.0);
            self.trial = None;
            return self.conclude(round, change, share);
        }
        let taken = (round.queue.as_secs_f64() / rtt * TAKEN_OF_QUEUE).min(MOST_TAKEN);
        // Who knows its share need not ask.
        let is_due = round.now >= self.next_trial && !self.knows_link;
        if is_due && round.in_flight > 0 && taken >= LEAST_TAKEN {
            let in_flight = (round.in_flight as f64).min(self.window() as f64);
            // What the others add to the queue in the meantime would hide what we take.
            let first = self.trips.front().copied().unwrap_or(rtt);
            let rounds = self.trips.len().saturating_sub(1).max(1);
            let growth = ((rtt - first) / rounds as f64).max(0.0);
            let before = rtt + growth;
            self.trial = Some(Trial { rounds: 0, in_flight, taken, before, least: rtt });
        }
        None
    }

    /// Whether somebody pauses, and what that tells of our share.
    fn look_for_pauses(&mut self, round: &Round) {
        let before = self.trips.iter().rev().take(3).copied().fold(0.0, f64::max);
        let has_begun = self.pauses.on_round(&Seen {
            now: round.now,
            rtt: round.min_rtt + round.queue,
            before: Duration::from_secs_f64(before),
            is_empty: round.queue <= round.empty,
            share: self.share.min(MOST_SHARE),
            taken: self.trial.map_or(0.0, |trial| trial.taken),
            rate: self.rate(),
        });
        if has_begun {
            // What it would conclude is the pause's.
            self.trial = None;
        }
        let link = self.pauses.link_rate(round.now);
        self.knows_link = link.is_some();
        if let Some(link) = link
            && !self.pauses.hides_share()
        {
            let share = (self.passing as f64 / link.max(1) as f64).min(1.0);
            self.share += (share - self.share) * KNOWN_SHARE_PART;
            self.change_products((EQUAL_SHARE - share) * PRODUCTS_PER_ROUND);
        }
    }

    /// By which part a trial changed the round trip, and whose queue that makes it.
    fn conclude(&mut self, round: &Round, change: f64, share: f64) -> Option<Finding> {
        self.share += (share - self.share) * SHARE_PART;
        self.change_products((EQUAL_SHARE - share) * PRODUCTS_PER_TRIAL);
        let finding = if share >= ALONE || round.queue <= round.empty {
            Some(Finding::Alone)
        } else if change <= NO_CHANGE && !self.is_certain {
            Some(Finding::Longer)
        } else {
            None
        };
        let Some(finding) = finding else {
            self.found = None;
            self.shared += 1;
            self.is_certain |= self.shared >= AGREEING;
            self.next_trial = round.now + TRIAL_INTERVAL;
            return None;
        };
        let last = self.found.filter(|&(last, _)| last == finding);
        let count = last.map_or(1, |(_, count)| count + 1);
        self.found = Some((finding, count));
        let enough = if self.is_certain { AGREEING_WHEN_CERTAIN } else { AGREEING };
        if count >= enough {
            return Some(finding);
        }
        self.next_trial = round.now + round.min_rtt * TRIAL_ROUNDS;
        None
    }
}
