use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::MAX_OVERHEAD;
use crate::flight::{Flight, Route};
use crate::frame::{Frame, RandomDecisions};
use crate::policer::Buckets;
use crate::queue::{Entry, Limits, Queue};
use crate::rate::{Rate, WORK_PER_BYTE};
use crate::slots::SlotState;
use crate::stats::{Backlog, Flows, Reason, Tally};
use crate::thinning::{Thinned, Thinner};
use crate::timed_loss::{HoleState, Turns};
use crate::{FlowStats, LinkConfig, LinkStats, Payload, Sojourn};

/// Result of [`Link::poll`].
#[derive(Debug, PartialEq, Eq)]
pub enum Output<P> {
    /// Deliver this packet.
    Deliver(P),
    /// Poll again at this time; nothing happens before.
    Timeout(Option<Timestamp>),
}

/// Result of handing a packet to a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// Accepted, perhaps corrupted or duplicated. CoDel, FQ-CoDel, thinning and loss that depends
    /// on time may still drop it; the counters show that.
    Carried,
    /// Dropped because the queue is full.
    QueueFull,
    /// Dropped by the loss model.
    Lost,
    /// Dropped because it exceeds the MTU.
    TooLong,
    /// Dropped by a black hole.
    BlackHole,
    /// Dropped by the policer.
    Policed,
    /// Dropped by PIE.
    Early,
}

/// Maximum packet size that counts for the rate, 1 GiB: far above every real packet.
const MAX_LEN: usize = 1 << 30;

/// A frame whose arrival was computed on entry. A long queue has many of them, so they are small.
#[derive(Debug)]
struct PrecomputedFrame {
    entered: Timestamp,
    /// End of the transmission.
    tx_end: Timestamp,
    bytes: u32,
    /// Number of packets in flight that result from the frame: 2 with a duplicate, 0 if it is lost.
    copies: u8,
}

/// The frame in transmission.
#[derive(Debug)]
struct Service<P> {
    frame: Frame<P>,
    /// Work that remained at `since`.
    work: u128,
    since: Timestamp,
    tx_end: Timestamp,
}

/// One direction of a link.
///
/// The queue has two implementations with the same results. While everything that matters is known
/// when a packet enters (constant rate, FIFO, loss by packet), the link computes its arrival at
/// once, with one event per packet. Otherwise, and for queued packets when the rate changes, frames
/// wait in a real queue. Queue discipline, rate and loss then apply when the frame reaches the
/// head.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    seed: u64,
    rng: ChaCha8Rng,
    turns: Turns,
    holes: HoleState,
    /// `None` for unlimited.
    rate: Option<Rate>,
    /// A second cursor over the same rate, for `fade`.
    fade_rate: Option<Rate>,
    buckets: Buckets,
    thinner: Thinner<P>,
    /// Time at which the last precomputed frame leaves the link.
    busy_until: Timestamp,
    /// Time at which the last completed precomputed frame left the link.
    idle_from: Timestamp,
    /// Precomputed frames in the order of transmission.
    precomputed: VecDeque<PrecomputedFrame>,
    queue: Queue<P>,
    service: Option<Service<P>>,
    /// Lower bound of the time from the end of the transmission to the arrival, over all frames in
    /// the queue and in transmission.
    least_lag: Duration,
    backlog: Backlog,
    flight: Flight<P>,
    slots: SlotState,
    last_due: Timestamp,
    stats: LinkStats,
    flows: Flows,
    sojourn: Sojourn,
}

fn rate_of(config: &LinkConfig) -> Option<Rate> {
    match &config.rate_schedule {
        Some(schedule) => Some(Rate::scheduled(schedule.clone(), config.epoch)),
        None => config.rate_bps.map(Rate::fixed),
    }
}

impl<P: Payload> Link<P> {
    /// Creates a link. `seed` determines all random choices.
    pub fn new(config: LinkConfig, seed: u64) -> Self {
        let rate = rate_of(&config);
        Self {
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            turns: Turns::default(),
            holes: HoleState::default(),
            fade_rate: config.fade.and(rate.clone()),
            rate,
            buckets: Buckets::default(),
            thinner: Thinner::default(),
            busy_until: Timestamp::ZERO,
            idle_from: Timestamp::ZERO,
            precomputed: VecDeque::new(),
            queue: Queue::new(&config.discipline, seed),
            service: None,
            least_lag: Duration::MAX,
            backlog: Backlog::default(),
            flight: Flight::default(),
            slots: SlotState::default(),
            last_due: Timestamp::ZERO,
            stats: LinkStats::default(),
            flows: Flows::default(),
            sojourn: Sojourn::default(),
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes the configuration from `now` on. Queued packets, and the rest of the frame in
    /// transmission, are sent at the new rate and under the new discipline. Packets that have been
    /// transmitted are not affected. Delays and losses that were decided on entry stay.
    pub fn set_config(&mut self, now: Timestamp, config: LinkConfig) {
        self.advance(now);
        self.drain(now);
        let old = &self.config;
        let has_new_rate = (old.rate_bps, &old.rate_schedule)
            != (config.rate_bps, &config.rate_schedule)
            || (old.epoch != config.epoch && config.rate_schedule.is_some());
        if !self.precomputed.is_empty() && (has_new_rate || !config.is_precomputable()) {
            self.requeue_precomputed(now);
        }
        if self.config.discipline != config.discipline {
            let mut queue = Queue::new(&config.discipline, self.seed);
            while let Some(frame) = self.queue.take() {
                queue.push(frame);
            }
            self.queue = queue;
        }
        if self.config.policer != config.policer {
            self.buckets = Buckets::default();
        }
        let slots = (config.slots, config.epoch);
        if (self.config.slots, self.config.epoch) != slots {
            self.slots = SlotState::default();
        }
        self.config = config;
        self.least_lag = self.least_lag.min(self.min_lag());
        let rate = rate_of(&self.config);
        self.fade_rate = self.config.fade.and(rate.clone());
        if has_new_rate {
            self.change_rate(now, rate);
        }
        if self.config.thinning.is_none() {
            while let Some(packet) = self.thinner.release() {
                self.enter(now, packet);
            }
        }
    }

    fn change_rate(&mut self, now: Timestamp, rate: Option<Rate>) {
        if let (Some(service), Some(old)) = (&mut self.service, &mut self.rate) {
            service.work = service.work.saturating_sub(old.work(service.since, now));
            service.since = now;
        }
        self.rate = rate;
        if let Some(rate) = &mut self.rate {
            if let Some(service) = &mut self.service {
                service.tx_end = rate.tx_end(now, service.work);
            }
            return;
        }
        // With an unlimited rate no frame waits.
        let first = self.service.take().map(|service| service.frame);
        let rest: Vec<Frame<P>> = core::iter::from_fn(|| self.queue.take()).collect();
        for frame in first.into_iter().chain(rest) {
            self.backlog.remove(now, frame.bytes, &mut self.stats);
            self.depart(now, frame);
        }
    }

    /// Counters.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Sojourn times of the frames. Those of precomputed frames are added by the next
    /// [`Link::handle`] or [`Link::queue_bytes`] after their transmission.
    pub fn sojourn(&self) -> &Sojourn {
        &self.sojourn
    }

    /// Counters of a flow.
    pub fn flow_stats(&self, flow: u64) -> FlowStats {
        self.flows.get(flow)
    }

    /// Counters of all flows of which a packet was dropped or marked, with the flow numbers.
    /// [`Link::other_flows`] counts flows beyond [`MAX_COUNTED_FLOWS`](crate::MAX_COUNTED_FLOWS).
    pub fn flows(&self) -> impl Iterator<Item = (u64, FlowStats)> {
        self.flows.iter()
    }

    /// Counters of all flows without counters of their own.
    pub fn other_flows(&self) -> FlowStats {
        self.flows.others()
    }

    /// Time at which the last delivered packet was due. A driver in real time delivers later.
    pub fn last_due(&self) -> Timestamp {
        self.last_due
    }

    /// Bytes in the queue, including the frame in transmission.
    pub fn queue_bytes(&mut self, now: Timestamp) -> usize {
        self.advance(now);
        self.drain(now);
        self.backlog.bytes
    }

    /// Frames in the queue, including the one in transmission.
    pub fn queue_packets(&mut self, now: Timestamp) -> usize {
        self.queue_bytes(now);
        self.backlog.packets
    }

    /// Removes precomputed frames whose transmission has ended.
    fn drain(&mut self, now: Timestamp) {
        while let Some(front) = self.precomputed.front()
            && front.tx_end <= now
        {
            // A frame waits until the one before it has left.
            self.sojourn.record(self.idle_from - front.entered);
            self.idle_from = front.tx_end;
            self.backlog.remove(front.tx_end, front.bytes as usize, &mut self.stats);
            self.precomputed.pop_front();
        }
        self.backlog.account(now, &mut self.stats);
    }

    /// Moves precomputed frames to the real queue.
    fn requeue_precomputed(&mut self, now: Timestamp) {
        self.busy_until = now;
        let count = self.precomputed.iter().map(|precomputed| u64::from(precomputed.copies)).sum();
        let config = &self.config;
        let route = |packet: &P| route(config, packet.flow());
        let mut copies = self.flight.take_back(count, route).into_iter();
        for precomputed in core::mem::take(&mut self.precomputed) {
            let duplicate_lag = if precomputed.copies > 1 { copies.next() } else { None };
            let copy = if precomputed.copies > 0 { copies.next() } else { None };
            let duplicate_lag =
                duplicate_lag.map(|(duplicate_lag, _)| duplicate_lag.at - precomputed.tx_end);
            let (packet, drawn) = match copy {
                Some((copy, route)) => {
                    let lag = copy.at - precomputed.tx_end;
                    (Some(copy.packet), Some(RandomDecisions { lag, duplicate_lag, route }))
                }
                None => (None, None),
            };
            if let Some(drawn) = &drawn {
                self.record_lag(drawn);
            }
            let frame = Frame {
                is_ect: packet.as_ref().is_some_and(Payload::is_ect),
                flow: packet.as_ref().map_or(0, Payload::flow),
                packet,
                bytes: precomputed.bytes as usize,
                entered: precomputed.entered,
                drawn,
            };
            if self.service.is_some() {
                self.queue.push(frame);
                continue;
            }
            self.sojourn.record(self.idle_from - precomputed.entered);
            self.service = Some(Service {
                work: frame.bytes as u128 * WORK_PER_BYTE,
                frame,
                since: self.idle_from.max(precomputed.entered),
                tx_end: precomputed.tx_end,
            });
        }
    }

    /// Lower bound of the time from the end of a transmission to the arrival.
    fn min_lag(&self) -> Duration {
        let jitter = self.config.jitter.map_or(Duration::ZERO, |jitter| jitter.amplitude);
        self.config.delay.saturating_sub(jitter)
    }

    fn record_lag(&mut self, drawn: &RandomDecisions) {
        self.least_lag =
            self.least_lag.min(drawn.lag).min(drawn.duplicate_lag.unwrap_or(drawn.lag));
    }

    /// Takes a packet at the entrance of the link, and returns what happens to it there.
    pub fn handle(&mut self, now: Timestamp, packet: P) -> Fate {
        self.stats.offered += 1;
        if self.config.mtu.is_some_and(|mtu| packet.len() > mtu) {
            self.stats.dropped_mtu += 1;
            return Fate::TooLong;
        }
        self.advance(now);
        let Some(thinning) = self.config.thinning else { return self.enter(now, packet) };
        let flow = packet.flow();
        if packet.len() > thinning.max_len {
            if let Some(held) = self.thinner.release_flow(flow) {
                self.enter(now, held);
            }
            return self.enter(now, packet);
        }
        match self.thinner.take(&thinning, now, flow, packet) {
            Thinned::Held { replaced, released } => {
                self.stats.dropped_thinned += u64::from(replaced);
                if let Some(released) = released {
                    self.enter(now, released);
                }
                Fate::Carried
            }
            Thinned::Pass { packet, replaced } => {
                self.stats.dropped_thinned += u64::from(replaced);
                self.enter(now, packet)
            }
        }
    }

    /// Passes a packet to the policer and the queue.
    fn enter(&mut self, now: Timestamp, packet: P) -> Fate {
        let flow = packet.flow();
        let bytes = packet.len().min(MAX_LEN) + self.config.frame_overhead.min(MAX_OVERHEAD);
        if let Some(policer) = &self.config.policer
            && !self.buckets.admit(policer, now, flow, bytes)
        {
            self.count(now, flow, Reason::Policer);
            return Fate::Policed;
        }
        if self.rate.is_none() {
            self.enter_unlimited(now, packet, flow)
        } else if self.service.is_none() && self.queue.is_empty() && self.config.is_precomputable()
        {
            self.enter_precomputed(now, packet, flow, bytes)
        } else {
            self.enter_queue(now, packet, flow, bytes)
        }
    }

    fn enter_unlimited(&mut self, now: Timestamp, mut packet: P, flow: u64) -> Fate {
        if self.config.black_hole {
            self.stats.dropped_black_hole += 1;
            return Fate::BlackHole;
        }
        match self.decide(now, &mut packet, flow) {
            Ok(drawn) => {
                self.launch(now, drawn, packet);
                Fate::Carried
            }
            Err(reason) => {
                self.count(now, flow, reason);
                Fate::Lost
            }
        }
    }

    /// Computes the arrival of a packet on entry.
    fn enter_precomputed(
        &mut self,
        now: Timestamp,
        mut packet: P,
        flow: u64,
        bytes: usize,
    ) -> Fate {
        self.drain(now);
        if !self.limits().has_room(&self.backlog, bytes) {
            self.count(now, flow, Reason::Queue);
            return Fate::QueueFull;
        }
        self.mark_by_bytes(&mut packet, flow);
        let Some(rate) = &mut self.rate else { return Fate::Carried };
        let tx_end = rate.tx_end(self.busy_until.max(now), bytes as u128 * WORK_PER_BYTE);
        self.busy_until = tx_end;
        self.backlog.add(bytes, &mut self.stats);
        let before = self.flight.order();
        let fate = if self.config.black_hole {
            self.stats.dropped_black_hole += 1;
            Fate::BlackHole
        } else {
            match self.decide(tx_end, &mut packet, flow) {
                Ok(drawn) => {
                    self.launch(tx_end, drawn, packet);
                    Fate::Carried
                }
                Err(reason) => {
                    self.count(now, flow, reason);
                    Fate::Lost
                }
            }
        };
        let copies = (self.flight.order() - before) as u8;
        // A frame is shorter than 4 GB: `enter` limits it.
        self.precomputed.push_back(PrecomputedFrame {
            entered: now,
            tx_end,
            bytes: bytes as u32,
            copies,
        });
        fate
    }

    /// Puts a packet into the real queue.
    fn enter_queue(&mut self, now: Timestamp, mut packet: P, flow: u64, bytes: usize) -> Fate {
        self.backlog.account(now, &mut self.stats);
        let limits = self.limits();
        let is_ect = packet.is_ect();
        let (mut drawn, mut fate) = (None, Fate::Carried);
        let has_room = limits.has_room(&self.backlog, bytes);
        if has_room {
            self.mark_by_bytes(&mut packet, flow);
        }
        if has_room && self.config.decides_on_entry() {
            if !self.config.black_hole {
                match self.decide(now, &mut packet, flow) {
                    Ok(decided) => {
                        self.record_lag(&decided);
                        drawn = Some(decided);
                    }
                    Err(reason) => {
                        self.count(now, flow, reason);
                        fate = Fate::Lost;
                    }
                }
            }
        } else {
            self.least_lag = self.least_lag.min(self.min_lag());
        }
        if self.config.black_hole {
            fate = Fate::BlackHole;
        }
        let packet = (fate == Fate::Carried).then_some(packet);
        let frame = Frame { packet, bytes, flow, is_ect, entered: now, drawn };
        let Self { queue, stats, flows, backlog, rng, .. } = self;
        let entry = queue.offer(frame, limits, &mut Tally { now, stats, flows, backlog }, rng);
        let refused = match entry {
            Entry::Full => Some((Reason::Queue, Fate::QueueFull)),
            Entry::Early => Some((Reason::Aqm, Fate::Early)),
            Entry::Queued | Entry::Dropped => None,
        };
        if let Some((reason, fate)) = refused {
            self.count(now, flow, reason);
            return fate;
        }
        self.stats.dropped_black_hole += u64::from(fate == Fate::BlackHole);
        if self.service.is_none() {
            self.start_next(now);
        }
        if entry == Entry::Dropped && fate == Fate::Carried { Fate::QueueFull } else { fate }
    }

    fn limits(&self) -> Limits {
        Limits { bytes: self.config.queue_bytes, packets: self.config.queue_packets }
    }

    fn mark_by_bytes(&mut self, packet: &mut P, flow: u64) {
        if self.config.mark_threshold.is_some_and(|limit| self.backlog.bytes > limit) {
            self.stats.marked += 1;
            self.flows.of(flow).marked += 1;
            packet.mark();
        }
    }

    fn count(&mut self, now: Timestamp, flow: u64, reason: Reason) {
        let Self { stats, flows, backlog, .. } = self;
        Tally { now, stats, flows, backlog }.count(flow, reason);
    }

    /// Makes the random decisions about a packet whose transmission ends at `tx_end`.
    fn decide(
        &mut self,
        tx_end: Timestamp,
        packet: &mut P,
        flow: u64,
    ) -> Result<RandomDecisions, Reason> {
        let Self { config, rng, turns, holes, fade_rate, stats, .. } = self;
        let epoch = config.epoch;
        if turns.draw(&config.loss, config.alternate_loss.as_ref(), epoch, tx_end, rng) {
            return Err(Reason::Loss);
        }
        if let Some(model) = &config.holes
            && holes.is_inside(model, epoch, tx_end, !self.seed)
        {
            return Err(Reason::Hole);
        }
        if let (Some(fade), Some(rate)) = (&config.fade, fade_rate) {
            let probability = fade.probability(rate.at(tx_end));
            if probability > 0.0 && rng.random::<f64>() < probability {
                return Err(Reason::Fade);
            }
        }
        if config.corrupt > 0.0 && !packet.is_empty() && rng.random::<f64>() < config.corrupt {
            stats.corrupted += 1;
            let at = rng.random_range(0..packet.len());
            packet.corrupt(at, rng.random_range(1..=255));
        }
        let is_duplicate = config.duplicate > 0.0 && rng.random::<f64>() < config.duplicate;
        stats.duplicated += u64::from(is_duplicate);
        let duplicate_lag = is_duplicate.then(|| draw_lag(config, flow, rng));
        let lag = draw_lag(config, flow, rng);
        Ok(RandomDecisions { lag, duplicate_lag, route: route(config, flow) })
    }

    /// Puts a packet into flight whose transmission ends at `tx_end`.
    fn launch(&mut self, tx_end: Timestamp, drawn: RandomDecisions, packet: P) {
        let schedule = self.config.delay_schedule.as_ref();
        let extra = schedule.map_or(Duration::ZERO, |it| it.extra(self.config.epoch, tx_end));
        if let Some(lag) = drawn.duplicate_lag {
            self.flight.launch(tx_end, lag.saturating_add(extra), drawn.route, packet.clone());
        }
        self.flight.launch(tx_end, drawn.lag.saturating_add(extra), drawn.route, packet);
    }

    /// Handles the end of a frame's transmission at `at`.
    fn depart(&mut self, at: Timestamp, frame: Frame<P>) {
        let Frame { packet, flow, drawn, .. } = frame;
        let Some(mut packet) = packet else { return };
        let drawn = match drawn {
            Some(drawn) => Ok(drawn),
            None => self.decide(at, &mut packet, flow),
        };
        match drawn {
            Ok(drawn) => self.launch(at, drawn, packet),
            Err(reason) => self.count(at, flow, reason),
        }
    }

    /// Starts to transmit the next frame of the queue at `at`.
    fn start_next(&mut self, at: Timestamp) {
        let Self { queue, stats, flows, backlog, rate: Some(rate), .. } = self else { return };
        match queue.next(&mut Tally { now: at, stats, flows, backlog }) {
            Some(frame) => {
                self.sojourn.record(at - frame.entered);
                let work = frame.bytes as u128 * WORK_PER_BYTE;
                let tx_end = rate.tx_end(at, work);
                self.service = Some(Service { frame, work, since: at, tx_end });
            }
            None => self.least_lag = Duration::MAX,
        }
    }

    /// Completes all transmissions that end by `now`.
    fn serve(&mut self, now: Timestamp) {
        while let Some(service) =
            self.service.take_if(|service| service.tx_end <= now && service.tx_end < Timestamp::MAX)
        {
            let at = service.tx_end;
            self.backlog.remove(at, service.frame.bytes, &mut self.stats);
            self.depart(at, service.frame);
            self.start_next(at);
        }
    }

    /// Handles everything that is due by `now`.
    #[inline]
    fn advance(&mut self, now: Timestamp) {
        // Precomputed frames need no processing here.
        if self.service.is_none() && self.thinner.next().is_none() {
            return;
        }
        while let Some(at) = self.thinner.next()
            && at <= now
        {
            self.serve(at);
            if let Some(packet) = self.thinner.release() {
                self.enter(at, packet);
            }
        }
        self.serve(now);
    }

    /// Arrival time with slots of a packet that would arrive at `at` without them.
    fn due(&self, at: Timestamp) -> Timestamp {
        let slots = self.config.slots.as_ref();
        slots.map_or(at, |slots| self.slots.due(slots, self.config.epoch, at))
    }

    /// Returns the next packet that has arrived by `now`, or the time of the next call. With a
    /// discipline or a schedule, that time may be before the next arrival.
    pub fn poll(&mut self, now: Timestamp) -> Output<P> {
        self.advance(now);
        let in_transit = self.flight.next();
        let due = in_transit.map(|at| self.due(at));
        if let (Some(at), Some(due)) = (in_transit, due)
            && due <= now
            && let Some(packet) = self.flight.pop()
        {
            if let Some(slots) = &self.config.slots {
                self.slots.take(slots, self.config.epoch, at);
            }
            self.last_due = due;
            self.stats.delivered += 1;
            self.stats.delivered_bytes += packet.len() as u64;
            return Output::Deliver(packet);
        }
        let least = self.least_lag.min(Duration::from_secs(1 << 32));
        let served = self.service.as_ref().map(|service| service.tx_end);
        let served = served.filter(|&tx_end| tx_end < Timestamp::MAX);
        let served = served.map(|tx_end| self.due(tx_end + least));
        let events = [due, served, self.thinner.next()];
        Output::Timeout(events.into_iter().flatten().min())
    }
}

/// Which packets a packet of `flow` may overtake.
fn route(config: &LinkConfig, flow: u64) -> Route {
    if config.jitter.is_some_and(|jitter| jitter.reorder) {
        Route::Free
    } else if config.flow_delays.is_empty() {
        Route::InOrder
    } else {
        Route::Class((flow % config.flow_delays.len() as u64) as usize)
    }
}

/// Draws the time from the end of the transmission to the arrival, without schedules.
fn draw_lag(config: &LinkConfig, flow: u64, rng: &mut ChaCha8Rng) -> Duration {
    let mut lag = config.delay;
    if !config.flow_delays.is_empty() {
        let class = flow % config.flow_delays.len() as u64;
        lag = lag.saturating_add(config.flow_delays[class as usize]);
    }
    if let Some(contention) = &config.contention {
        lag = lag.saturating_add(contention.draw(rng));
    }
    if let Some(jitter) = config.jitter {
        // A quarter of the range, so that twice the value does not overflow.
        let amplitude = jitter.amplitude.as_nanos().min(u128::from(u64::MAX / 4)) as u64;
        let shift = rng.random_range(0..=2 * amplitude);
        lag = lag.saturating_add(Duration::from_nanos(shift));
        lag = lag.saturating_sub(Duration::from_nanos(amplitude));
    }
    lag
}
#[cfg(test)]
mod tests;
