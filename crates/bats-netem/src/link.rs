use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::MAX_OVERHEAD;
use crate::flight::{Flight, Route};
use crate::frame::{Drawn, Frame};
use crate::policer::Buckets;
use crate::queue::{Entry, Limits, Queue};
use crate::rate::{Rate, WORK_OF_A_BYTE};
use crate::slots::SlotState;
use crate::stats::{Backlog, Flows, Reason, Tally};
use crate::thinning::{Thinned, Thinner};
use crate::timed_loss::{HoleState, Turns};
use crate::{FlowStats, LinkConfig, LinkStats, Payload, Sojourn};

/// What a link answers when it is polled.
#[derive(Debug, PartialEq, Eq)]
pub enum Output<P> {
    /// A packet arrives.
    Deliver(P),
    /// Nothing before this time.
    Timeout(Option<Timestamp>),
}

/// What became of a packet at a link's entrance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It is in transit, perhaps changed or twice. CoDel, FQ-CoDel, thinning and losses that depend on
    /// the time may still drop it; the counters know.
    Carried,
    /// Dropped because the queue is full.
    QueueFull,
    /// Dropped by the loss model.
    Lost,
    /// Dropped because it is too long.
    TooLong,
    /// Dropped by a black hole.
    BlackHole,
    /// Dropped by the policer.
    Policed,
    /// Dropped by PIE.
    Early,
}

/// Bytes of a packet that count for the rate at most, 1 GiB: far beyond all that there are.
const MAX_LEN: usize = 1 << 30;

/// A frame whose transmission has been foreseen at the entrance. There may be many: a long queue
/// should not take more memory than it needs.
#[derive(Debug)]
struct Waiting {
    entered: Timestamp,
    /// End of the transmission.
    through: Timestamp,
    bytes: u32,
    /// Packets in flight that it has become: 2 with a duplicate, 0 if it is lost.
    copies: u8,
}

/// The frame that is transmitted.
#[derive(Debug)]
struct Service<P> {
    frame: Frame<P>,
    /// Work that was left at `since`.
    work: u128,
    since: Timestamp,
    through: Timestamp,
}

/// One direction of a link.
///
/// The queue has two implementations with the same results. As long as all that matters is known
/// when a packet enters (a fixed rate, first in first out, losses by packet), its arrival is computed
/// there: one event a packet. Otherwise, and for what waits when the rate changes, frames wait in a
/// queue, and disciplines, the rate and losses act when a frame's turn comes.
#[derive(Debug)]
pub struct Link<P> {
    config: LinkConfig,
    seed: u64,
    rng: ChaCha8Rng,
    turns: Turns,
    holes: HoleState,
    /// `None` for unlimited.
    rate: Option<Rate>,
    /// Another view of it, for the loss that follows it.
    fade_rate: Option<Rate>,
    buckets: Buckets,
    thinner: Thinner<P>,
    /// When the rate has dealt with all that was foreseen.
    busy_until: Timestamp,
    /// When the last of these was through that no longer waits.
    idle_from: Timestamp,
    /// Foreseen frames in the order of their transmission.
    waiting: VecDeque<Waiting>,
    queue: Queue<P>,
    service: Option<Service<P>>,
    /// No frame in the queue or in service takes less from the end of its transmission to its arrival.
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
    /// A link whose every random choice follows from `seed`.
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
            waiting: VecDeque::new(),
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

    /// How it behaves.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// Changes how it behaves. What waits is transmitted at the new rate from `now` on, also the rest
    /// of a frame in transmission, and changes to the new discipline. What is behind the rate is not
    /// affected, nor are the delay and the losses that were decided at the entrance.
    pub fn set_config(&mut self, now: Timestamp, config: LinkConfig) {
        self.advance(now);
        self.drain(now);
        let old = &self.config;
        let has_new_rate = (old.rate_bps, &old.rate_schedule)
            != (config.rate_bps, &config.rate_schedule)
            || (old.epoch != config.epoch && config.rate_schedule.is_some());
        if !self.waiting.is_empty() && (has_new_rate || !config.is_foreseeable()) {
            self.enqueue_waiting(now);
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
        self.least_lag = self.least_lag.min(self.floor_of_lags());
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
                service.through = rate.through(now, service.work);
            }
            return;
        }
        // Nothing waits for an unlimited rate.
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

    /// How long frames waited for the rate. What is foreseen is counted by the next
    /// [`Link::handle`] or [`Link::queue_bytes`] after its transmission.
    pub fn sojourn(&self) -> &Sojourn {
        &self.sojourn
    }

    /// Counters of a flow.
    pub fn flow_stats(&self, flow: u64) -> FlowStats {
        self.flows.get(flow)
    }

    /// Counters of all flows of which a packet was dropped or marked, by their numbers. Those beyond
    /// [`MAX_COUNTED_FLOWS`](crate::MAX_COUNTED_FLOWS) are in [`Link::other_flows`].
    pub fn flows(&self) -> impl Iterator<Item = (u64, FlowStats)> {
        self.flows.iter()
    }

    /// Counters of the flows that have none of their own.
    pub fn other_flows(&self) -> FlowStats {
        self.flows.others()
    }

    /// When the packet that was delivered last was due: drivers in real time are later.
    pub fn last_due(&self) -> Timestamp {
        self.last_due
    }

    /// Bytes that wait for the rate.
    pub fn queue_bytes(&mut self, now: Timestamp) -> usize {
        self.advance(now);
        self.drain(now);
        self.backlog.bytes
    }

    /// Frames that wait for the rate.
    pub fn queue_packets(&mut self, now: Timestamp) -> usize {
        self.queue_bytes(now);
        self.backlog.packets
    }

    /// Removes foreseen frames that are through.
    fn drain(&mut self, now: Timestamp) {
        while let Some(front) = self.waiting.front()
            && front.through <= now
        {
            // It waited for the one before it, if at all.
            self.sojourn.record(self.idle_from - front.entered);
            self.idle_from = front.through;
            self.backlog.remove(front.through, front.bytes as usize, &mut self.stats);
            self.waiting.pop_front();
        }
        self.backlog.account(now, &mut self.stats);
    }

    /// Puts foreseen frames into the queue.
    fn enqueue_waiting(&mut self, now: Timestamp) {
        self.busy_until = now;
        let count = self.waiting.iter().map(|waiting| u64::from(waiting.copies)).sum();
        let config = &self.config;
        let route = |packet: &P| route(config, packet.flow());
        let mut copies = self.flight.take_back(count, route).into_iter();
        for waiting in core::mem::take(&mut self.waiting) {
            let twin = if waiting.copies > 1 { copies.next() } else { None };
            let copy = if waiting.copies > 0 { copies.next() } else { None };
            let twin = twin.map(|(twin, _)| twin.at - waiting.through);
            let (packet, drawn) = match copy {
                Some((copy, route)) => {
                    let lag = copy.at - waiting.through;
                    (Some(copy.packet), Some(Drawn { lag, twin, route }))
                }
                None => (None, None),
            };
            if let Some(drawn) = &drawn {
                self.note_lag(drawn);
            }
            let frame = Frame {
                is_ect: packet.as_ref().is_some_and(Payload::is_ect),
                flow: packet.as_ref().map_or(0, Payload::flow),
                packet,
                bytes: waiting.bytes as usize,
                entered: waiting.entered,
                drawn,
            };
            if self.service.is_some() {
                self.queue.push(frame);
                continue;
            }
            self.sojourn.record(self.idle_from - waiting.entered);
            self.service = Some(Service {
                work: frame.bytes as u128 * WORK_OF_A_BYTE,
                frame,
                since: self.idle_from.max(waiting.entered),
                through: waiting.through,
            });
        }
    }

    /// No packet takes less than this from the end of its transmission to its arrival.
    fn floor_of_lags(&self) -> Duration {
        let jitter = self.config.jitter.map_or(Duration::ZERO, |jitter| jitter.amplitude);
        self.config.delay.saturating_sub(jitter)
    }

    fn note_lag(&mut self, drawn: &Drawn) {
        self.least_lag = self.least_lag.min(drawn.lag).min(drawn.twin.unwrap_or(drawn.lag));
    }

    /// Takes a packet at the link's entrance and says what becomes of it.
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

    /// A packet comes to policer and queue.
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
        } else if self.service.is_none() && self.queue.is_empty() && self.config.is_foreseeable() {
            self.enter_foreseen(now, packet, flow, bytes)
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

    /// All that will happen to the packet is known now.
    fn enter_foreseen(&mut self, now: Timestamp, mut packet: P, flow: u64, bytes: usize) -> Fate {
        self.drain(now);
        if !self.limits().has_room(&self.backlog, bytes) {
            self.count(now, flow, Reason::Queue);
            return Fate::QueueFull;
        }
        self.mark_by_bytes(&mut packet, flow);
        let Some(rate) = &mut self.rate else { return Fate::Carried };
        let through = rate.through(self.busy_until.max(now), bytes as u128 * WORK_OF_A_BYTE);
        self.busy_until = through;
        self.backlog.add(bytes, &mut self.stats);
        let before = self.flight.order();
        let fate = if self.config.black_hole {
            self.stats.dropped_black_hole += 1;
            Fate::BlackHole
        } else {
            match self.decide(through, &mut packet, flow) {
                Ok(drawn) => {
                    self.launch(through, drawn, packet);
                    Fate::Carried
                }
                Err(reason) => {
                    self.count(now, flow, reason);
                    Fate::Lost
                }
            }
        };
        let copies = (self.flight.order() - before) as u8;
        // Frames are shorter than 4 GB: see `enter`.
        self.waiting.push_back(Waiting { entered: now, through, bytes: bytes as u32, copies });
        fate
    }

    /// The packet's turn will come.
    fn enter_queue(&mut self, now: Timestamp, mut packet: P, flow: u64, bytes: usize) -> Fate {
        self.backlog.account(now, &mut self.stats);
        let limits = self.limits();
        let is_ect = packet.is_ect();
        let (mut drawn, mut fate) = (None, Fate::Carried);
        let has_room = limits.has_room(&self.backlog, bytes);
        if has_room {
            self.mark_by_bytes(&mut packet, flow);
        }
        if has_room && self.config.draws_at_entry() {
            if !self.config.black_hole {
                match self.decide(now, &mut packet, flow) {
                    Ok(decided) => {
                        self.note_lag(&decided);
                        drawn = Some(decided);
                    }
                    Err(reason) => {
                        self.count(now, flow, reason);
                        fate = Fate::Lost;
                    }
                }
            }
        } else {
            self.least_lag = self.least_lag.min(self.floor_of_lags());
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

    /// Lets chance decide about a packet that is through at `through`.
    fn decide(&mut self, through: Timestamp, packet: &mut P, flow: u64) -> Result<Drawn, Reason> {
        let Self { config, rng, turns, holes, fade_rate, stats, .. } = self;
        let epoch = config.epoch;
        if turns.draw(&config.loss, config.alternate_loss.as_ref(), epoch, through, rng) {
            return Err(Reason::Loss);
        }
        if let Some(model) = &config.holes
            && holes.is_inside(model, epoch, through, !self.seed)
        {
            return Err(Reason::Hole);
        }
        if let (Some(fade), Some(rate)) = (&config.fade, fade_rate) {
            let probability = fade.probability(rate.at(through));
            if probability > 0.0 && rng.random::<f64>() < probability {
                return Err(Reason::Fade);
            }
        }
        if config.corrupt > 0.0 && !packet.is_empty() && rng.random::<f64>() < config.corrupt {
            stats.corrupted += 1;
            let at = rng.random_range(0..packet.len());
            packet.corrupt(at, rng.random_range(1..=255));
        }
        let is_twin = config.duplicate > 0.0 && rng.random::<f64>() < config.duplicate;
        stats.duplicated += u64::from(is_twin);
        let twin = is_twin.then(|| draw_lag(config, flow, rng));
        let lag = draw_lag(config, flow, rng);
        Ok(Drawn { lag, twin, route: route(config, flow) })
    }

    /// Sends a packet off whose transmission ends at `through`.
    fn launch(&mut self, through: Timestamp, drawn: Drawn, packet: P) {
        let schedule = self.config.delay_schedule.as_ref();
        let extra = schedule.map_or(Duration::ZERO, |it| it.extra(self.config.epoch, through));
        if let Some(lag) = drawn.twin {
            self.flight.launch(through, lag.saturating_add(extra), drawn.route, packet.clone());
        }
        self.flight.launch(through, drawn.lag.saturating_add(extra), drawn.route, packet);
    }

    /// A frame of the queue is through.
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

    /// The next frame of the queue is transmitted from `at` on.
    fn start_next(&mut self, at: Timestamp) {
        let Self { queue, stats, flows, backlog, rate: Some(rate), .. } = self else { return };
        match queue.next(&mut Tally { now: at, stats, flows, backlog }) {
            Some(frame) => {
                self.sojourn.record(at - frame.entered);
                let work = frame.bytes as u128 * WORK_OF_A_BYTE;
                let through = rate.through(at, work);
                self.service = Some(Service { frame, work, since: at, through });
            }
            None => self.least_lag = Duration::MAX,
        }
    }

    /// Transmits what is through by `now`.
    fn serve(&mut self, now: Timestamp) {
        while let Some(service) = self
            .service
            .take_if(|service| service.through <= now && service.through < Timestamp::MAX)
        {
            let at = service.through;
            self.backlog.remove(at, service.frame.bytes, &mut self.stats);
            self.depart(at, service.frame);
            self.start_next(at);
        }
    }

    /// Does what happens by itself until `now`.
    #[inline]
    fn advance(&mut self, now: Timestamp) {
        // Foreseen frames need nothing.
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

    /// When the packet arrives that would be there at `at` without slots.
    fn due(&self, at: Timestamp) -> Timestamp {
        let slots = self.config.slots.as_ref();
        slots.map_or(at, |slots| self.slots.due(slots, self.config.epoch, at))
    }

    /// The next packet that has arrived by `now`, or when there will be one. With a discipline or a
    /// schedule, that may be earlier than the next arrival.
    pub fn poll(&mut self, now: Timestamp) -> Output<P> {
        self.advance(now);
        let flying = self.flight.next();
        let due = flying.map(|at| self.due(at));
        if let (Some(at), Some(due)) = (flying, due)
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
        let served = self.service.as_ref().map(|service| service.through);
        let served = served.filter(|&through| through < Timestamp::MAX);
        let served = served.map(|through| self.due(through + least));
        let events = [due, served, self.thinner.next()];
        Output::Timeout(events.into_iter().flatten().min())
    }
}

/// What a packet of `flow` may overtake.
fn route(config: &LinkConfig, flow: u64) -> Route {
    if config.jitter.is_some_and(|jitter| jitter.reorder) {
        Route::Free
    } else if config.flow_delays.is_empty() {
        Route::InOrder
    } else {
        Route::Class((flow % config.flow_delays.len() as u64) as usize)
    }
}

/// From the end of a transmission to the arrival, without schedules.
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
        // A quarter of all time, so that twice of it fits.
        let amplitude = jitter.amplitude.as_nanos().min(u128::from(u64::MAX / 4)) as u64;
        let shift = rng.random_range(0..=2 * amplitude);
        lag = lag.saturating_add(Duration::from_nanos(shift));
        lag = lag.saturating_sub(Duration::from_nanos(amplitude));
    }
    lag
}
#[cfg(test)]
mod tests;
