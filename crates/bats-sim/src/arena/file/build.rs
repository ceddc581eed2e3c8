//! Turns the keys of a cell into the cell.

use core::time::Duration;
use std::path::Path;

use bats_netem::{
    AckThinning, AlternateLoss, CoDel, Contention, DelaySchedule, Discipline, ETHERNET_OVERHEAD,
    FqCoDel, Holes, IPV4_UDP_HEADERS, Jitter, LeoRate, LinkConfig, LteRate, Pie, Policer,
    RateSchedule, Slots, StepMark, Trace,
};

use super::spec::{CellSpec, DisciplineName, FlowSpecification, LinkSpec, ScheduleSpec};
use super::values::Queue;
use crate::arena::cell::{Algorithm, Cell, Change, FlowSpec, Hop, Who, Work};
use crate::arena::draw::Draw;
use crate::arena::goal::{Bound, Check, Goal, Measure};

const MAX_HOPS: usize = 8;
const MAX_FLOWS: usize = 256;
const MAX_CHANGES: usize = 10_000;
const MAX_STEPS: usize = 100_000;
/// Bits that all hops of a cell carry in a run: 200 s at 10 Gbit/s.
const MAX_BITS: f64 = 2e12;
/// Longest run.
const MAX_RUN: Duration = Duration::from_secs(1_200);
/// Packets or messages per second of a flow with a rate.
const MAX_MESSAGES: f64 = 100_000.0;
/// The least queue: ten full packets.
const LEAST_QUEUE: usize = 10 * 1_538;
/// Largest packet that is thinned as an acknowledgement, and the time after which one is kept.
const THINNED: usize = 200;
const THINNING_WINDOW: Duration = Duration::from_millis(50);
/// Message of a flow with a rate.
const MESSAGE: usize = 1_200;

/// A cell that was checked.
#[derive(Debug)]
pub(super) struct Prepared {
    spec: CellSpec,
    flows: Vec<FlowSpec>,
    /// Recorded rates of the hops, in both directions.
    traces: Vec<[Option<RateSchedule>; 2]>,
}

impl Prepared {
    pub(super) fn new(spec: CellSpec, folder: &Path) -> Result<Self, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if spec.name.is_empty() || spec.name.len() > 40 || !spec.name.chars().all(is_name) {
            return Err("a name has 1 to 40 letters, digits, -, _ and .".into());
        }
        if spec.title.len() > 200 {
            return Err("a title has at most 200 bytes".into());
        }
        if spec.hops.is_empty() || spec.hops.len() > MAX_HOPS {
            return Err(format!("a cell has 1 to {MAX_HOPS} hops, not {}", spec.hops.len()));
        }
        if spec.changes.len() > MAX_CHANGES {
            return Err(format!("a cell has at most {MAX_CHANGES} changes"));
        }
        let flows = flows(&spec.flows)?;
        let mut traces = Vec::new();
        for hop in &spec.hops {
            let read = |schedule: &Option<ScheduleSpec>| recorded(schedule.as_ref(), folder);
            traces.push([read(&hop.schedule)?, read(&hop.reverse.schedule)?]);
            if hop.flow_delays.len() > MAX_FLOWS {
                return Err(format!("flow_delays has at most {MAX_FLOWS} entries"));
            }
        }
        for change in &spec.changes {
            if change.hop >= spec.hops.len() {
                return Err(no_hop(change.hop));
            }
            if change.set.schedule.is_some() {
                return Err("a change sets `rate`, not `schedule`".into());
            }
        }
        let prepared = Self { spec, flows, traces };
        // With the parameters of the file, and the extreme ones that a draw may give.
        let cell = prepared.build(&mut Draw::published(1))?;
        prepared.check(&cell)?;
        Ok(prepared)
    }

    /// Refuses values with which no run could end.
    fn check(&self, cell: &Cell) -> Result<(), String> {
        let run = cell.warm_up.saturating_add(cell.measure);
        if cell.measure < Duration::from_secs(1) || run > MAX_RUN {
            let allowed = MAX_RUN.as_secs();
            return Err(format!("`measure` is 1 s or more, with `warm_up` at most {allowed} s"));
        }
        let mut bits = 0.0;
        let changed = cell.changes.iter().map(|change| &change.link);
        let links = cell.hops.iter().flat_map(|hop| [&hop.up, &hop.down]).chain(changed);
        for link in links {
            link.validate().map_err(|error| error.to_string())?;
            let start = link.epoch;
            bits += match &link.rate_schedule {
                Some(schedule) => schedule.bits(start, start, start + run),
                None => link.rate_bps.unwrap_or(0) as f64 * run.as_secs_f64(),
            };
        }
        for flow in &cell.flows {
            if let Work::Rate { bits_per_second, .. } = flow.work {
                bits += bits_per_second * run.as_secs_f64();
            }
        }
        if bits > MAX_BITS {
            return Err(format!(
                "rates and times make {bits:.1e} bits in a run; at most {MAX_BITS:.0e} are allowed"
            ));
        }
        if !(0..cell.flows.len()).any(|flow| cell.is_subject(flow)) {
            return Err("no flow has `algorithm: subject`: there is nothing to judge".into());
        }
        if cell.flows.iter().any(|flow| flow.end.is_some_and(|end| end <= flow.start)) {
            return Err("the `end` of a flow is after its `start`".into());
        }
        Ok(())
    }

    pub(super) fn title(&self) -> String {
        self.spec.title.clone()
    }

    pub(super) fn cell(&self, draw: &mut Draw) -> Cell {
        // A cell that is valid with the file's parameters is also valid with drawn ones: all bounds are wider.
        self.build(draw).unwrap_or_else(|_| Cell::new(Vec::new(), Vec::new()))
    }

    fn build(&self, draw: &mut Draw) -> Result<Cell, String> {
        let mut hops = Vec::with_capacity(self.spec.hops.len());
        for (hop, traces) in self.spec.hops.iter().zip(&self.traces) {
            let rate = draw.of(hop.rate.0.0);
            let delay = draw.of(hop.delay.map_or(0.0, |delay| delay.0.as_secs_f64()));
            let queue = draw.of(1.0);
            let mut base = LinkConfig {
                rate_bps: Some(rate as u64),
                delay: Duration::from_secs_f64(delay),
                frame_overhead: IPV4_UDP_HEADERS + ETHERNET_OVERHEAD,
                flow_delays: hop.flow_delays.iter().map(|delay| delay.0).collect(),
                ..LinkConfig::default()
            };
            // Rate and delay are drawn above, and may not be set again.
            let forward = LinkSpec { rate: None, delay: None, ..hop.forward() };
            let scale = rate / hop.rate.0.0;
            let seed = draw.seed;
            apply(&mut base, &forward, scale, seed)?;
            let mut down = LinkConfig { flow_delays: Vec::new(), ..base.clone() };
            if let Some(trace) = &traces[0] {
                base.rate_schedule = Some(trace.clone());
                down.rate_schedule = Some(trace.clone());
            }
            apply(&mut down, &hop.reverse, 1.0, seed.wrapping_add(1))?;
            if let Some(trace) = &traces[1] {
                down.rate_schedule = Some(trace.clone());
            }
            let rtt = base.delay.saturating_add(down.delay);
            let forward_queue = hop.queue.map(|queue| queue.0);
            let reverse_queue = hop.reverse.queue.map(|queue| queue.0).or(forward_queue);
            set_queue(&mut base, forward_queue, rtt, queue);
            set_queue(&mut down, reverse_queue, rtt, queue);
            hops.push(Hop { up: base, down });
        }
        let mut cell = Cell::new(hops, self.flows.clone());
        (cell.relays, cell.tcp_ecn) = (self.spec.relays, self.spec.ecn);
        if let Some(warm_up) = self.spec.warm_up {
            cell.warm_up = warm_up.0;
        }
        if let Some(measure) = self.spec.measure {
            cell.measure = measure.0;
        }
        let mut changes: Vec<_> = self.spec.changes.iter().collect();
        changes.sort_by_key(|change| change.at.0);
        let mut now = cell.hops.clone();
        for change in changes {
            let hop = now.get_mut(change.hop).ok_or_else(|| no_hop(change.hop))?;
            let rtt = hop.up.delay.saturating_add(hop.down.delay);
            let link = if change.reverse { &mut hop.down } else { &mut hop.up };
            apply(link, &change.set, 1.0, draw.seed)?;
            if let Some(queue) = change.set.queue {
                set_queue(link, Some(queue.0), rtt, 1.0);
            }
            let (at, hop, reverse) = (change.at.0, change.hop, change.reverse);
            cell.changes.push(Change { at, hop, reverse, link: link.clone() });
        }
        Ok(cell)
    }

    pub(super) fn goals(&self) -> Vec<Goal> {
        let given = &self.spec.goals;
        let least = [
            (Measure::Efficiency, given.efficiency),
            (Measure::First10s, given.first_10s),
            (Measure::Jain, given.jain),
            (Measure::Latecomer, given.latecomer),
            (Measure::OfBestPeer, given.of_best_peer),
            (Measure::OfCubic, given.of_cubic),
        ];
        let most = [
            (Measure::Queue, given.queue_bdp),
            (Measure::Drops, given.drops),
            (Measure::StartDrops, given.start_drops),
            (Measure::OfFairShare, given.of_fair_share),
            (Measure::MediaP95, given.media_p95),
            (Measure::NonInnovative, given.non_innovative),
            (Measure::RelayQueue, given.relay_queue_bdp),
            (Measure::QueueOverPeer, given.queue_over_peer_bdp),
            (Measure::DelayOfCubic, given.delay_of_cubic),
            (Measure::CompletionOfCubic, given.completion_of_cubic),
            (Measure::DropsOverBbr3, given.drops_over_bbr3),
            (Measure::HarmOverCubic, given.harm_over_cubic),
        ];
        let least = least.into_iter().filter_map(|(m, b)| Some(Goal::at_least(m, b?.0.0)));
        let most = most.into_iter().filter_map(|(m, b)| Some(Goal::at_most(m, b?.0.0)));
        let share = given.share.map(|[low, high]| {
            Goal(vec![Check { measure: Measure::Share, bound: Bound::Within(low.0.0, high.0.0) }])
        });
        least.chain(most).chain(share).collect()
    }
}

fn no_hop(hop: usize) -> String {
    format!("there is no hop {hop}: hops count from 0")
}

fn flows(given: &[FlowSpecification]) -> Result<Vec<FlowSpec>, String> {
    if given.is_empty() {
        return Ok(vec![FlowSpec::subject()]);
    }
    let mut flows = Vec::new();
    for flow in given {
        if flow.count == 0 || flow.count > MAX_FLOWS.saturating_sub(flows.len()) {
            return Err(format!("a cell has at most {MAX_FLOWS} flows, and `count` is 1 or more"));
        }
        let work = match (flow.bytes, flow.rate) {
            (None, None) => Work::Bulk,
            (Some(bytes), None) => Work::Bytes(bytes.0.0),
            (None, Some(rate)) => {
                let message = flow.message.unwrap_or(MESSAGE);
                let bits_per_second = rate.0.0;
                if !(8..=65_536).contains(&message)
                    || bits_per_second / (message as f64 * 8.0) > MAX_MESSAGES
                {
                    return Err(format!(
                        "`message` has 8 to 65,536 bytes, and `rate` makes at most {MAX_MESSAGES} of them a second"
                    ));
                }
                Work::Rate { bits_per_second, message }
            }
            (Some(_), Some(_)) => return Err("a flow has `bytes` or `rate`, not both".into()),
        };
        if flow.message.is_some() && flow.rate.is_none() {
            return Err("`message` needs `rate`".into());
        }
        let is_media = matches!(work, Work::Rate { .. });
        let who = match flow.algorithm.as_str() {
            "subject" if is_media => Who::SubjectMedia,
            "subject" => Who::Subject,
            name => {
                let name: String = name.chars().take(40).collect();
                let algorithm = Algorithm::parse(&name)?;
                if is_media && !matches!(algorithm, Algorithm::Btp(_) | Algorithm::Udp) {
                    return Err(format!("a flow of {name} has no `rate`: use btp/NAME or udp"));
                }
                if algorithm == Algorithm::Udp && !is_media {
                    return Err("a flow of udp needs `rate`".into());
                }
                Who::Fixed(algorithm)
            }
        };
        for index in 0..flow.count {
            let apart = flow.apart.map_or(Duration::ZERO, |apart| apart.0);
            let start = flow.start.map_or(Duration::ZERO, |start| start.0);
            flows.push(FlowSpec {
                who,
                work,
                start: start.saturating_add(apart.saturating_mul(index as u32)),
                end: flow.end.map(|end| end.0),
                reverse: flow.reverse,
            });
        }
    }
    Ok(flows)
}

/// The recorded rate that a schedule names.
fn recorded(
    schedule: Option<&ScheduleSpec>,
    folder: &Path,
) -> Result<Option<RateSchedule>, String> {
    let Some(name) = schedule.and_then(|schedule| schedule.trace.as_ref()) else { return Ok(None) };
    let text = super::read_bounded(&folder.join(name), super::MAX_TRACE_BYTES)
        .map_err(|error| format!("trace {name}: {error}"))?;
    let trace = Trace::parse(text).map_err(|error| format!("trace {name}: {error}"))?;
    Ok(Some(RateSchedule::trace(&trace)))
}

/// Sets the keys that are given; `scale` is what the rate was redrawn by.
fn apply(link: &mut LinkConfig, spec: &LinkSpec, scale: f64, seed: u64) -> Result<(), String> {
    if let Some(rate) = spec.rate {
        link.rate_bps = Some((rate.0.0 * scale) as u64);
        link.rate_schedule = None;
    }
    if let Some(delay) = spec.delay {
        link.delay = delay.0;
    }
    if let Some(loss) = spec.loss {
        link.loss = loss.0;
    }
    if let Some(schedule) = &spec.schedule {
        apply_schedule(link, schedule, scale, seed)?;
    }
    if let Some(amplitude) = spec.jitter {
        let reorder = spec.reorder.unwrap_or(false);
        link.jitter = Some(Jitter { amplitude: amplitude.0, reorder });
    } else if spec.reorder.is_some() {
        return Err("`reorder` needs `jitter`".into());
    }
    link.duplicate = spec.duplicate.map_or(link.duplicate, |share| share.0.0);
    link.corrupt = spec.corrupt.map_or(link.corrupt, |share| share.0.0);
    if let Some(holes) = spec.holes {
        link.holes = Some(Holes::Periodic { period: holes.every.0, length: holes.length.0 });
    }
    if let Some(other) = spec.alternate_loss {
        link.alternate_loss = Some(AlternateLoss { loss: other.loss.0, every: other.every.0 });
    }
    if let Some(spikes) = spec.spikes {
        if spikes.length.0 >= spikes.every.0 {
            return Err("the `length` of spikes is less than `every`".into());
        }
        let (extra, length, period) = (spikes.extra.0, spikes.length.0, spikes.every.0);
        link.delay_schedule = Some(DelaySchedule::Spikes { extra, length, period });
    }
    if let Some(policer) = spec.policer {
        let (rate_bps, burst_bytes) =
            ((policer.rate.0.0 * scale) as u64, policer.bucket.0.0 as usize);
        link.policer = Some(Policer { rate_bps, burst_bytes, per_flow: policer.per_flow });
    }
    if let Some(name) = spec.discipline {
        link.discipline = match name {
            DisciplineName::DropTail => Discipline::DropTail,
            DisciplineName::Codel => Discipline::CoDel(CoDel::default()),
            DisciplineName::FqCodel => Discipline::FqCoDel(FqCoDel::default()),
            DisciplineName::Pie => Discipline::Pie(Pie::default()),
            DisciplineName::StepMark => Discipline::StepMark(StepMark::default()),
        };
    }
    if let Some(slot) = spec.contention {
        link.contention = Some(Contention::wifi(slot.0));
    }
    if let Some(interval) = spec.slots {
        link.slots = Some(Slots { interval: interval.0, limit: u32::MAX });
    }
    if let Some(keep_one_of) = spec.keep_one_ack_of {
        let (max_len, window) = (THINNED, THINNING_WINDOW);
        link.thinning = Some(AckThinning { max_len, keep_one_of, window });
    }
    if let Some(is_down) = spec.down {
        link.black_hole = is_down;
    }
    Ok(())
}

fn apply_schedule(
    link: &mut LinkConfig,
    given: &ScheduleSpec,
    scale: f64,
    seed: u64,
) -> Result<(), String> {
    let kinds = [
        given.steps.is_some(),
        given.saw.is_some(),
        given.lte.is_some(),
        given.leo.is_some(),
        given.trace.is_some(),
    ];
    if kinds.into_iter().filter(|is_set| *is_set).count() != 1 {
        return Err("a schedule has one of steps, saw, lte, leo and trace".into());
    }
    if given.once && given.steps.is_none() {
        return Err("`once` is for the steps of a schedule".into());
    }
    let mean = link.rate_bps.unwrap_or(1);
    if let Some(steps) = &given.steps {
        if steps.len() > MAX_STEPS {
            return Err(format!("a schedule has at most {MAX_STEPS} steps"));
        }
        let steps: Vec<_> =
            steps.iter().map(|step| (step.length.0, (step.rate.0.0 * scale) as u64)).collect();
        let schedule = RateSchedule::steps(&steps, !given.once);
        link.rate_schedule = Some(schedule.map_err(|error| error.to_string())?);
    }
    if let Some(saw) = given.saw {
        let rate = |rate: f64| (rate * scale) as u64;
        let fall = saw.fall.map_or(Duration::ZERO, |fall| fall.0);
        let schedule = RateSchedule::saw(rate(saw.low.0.0), rate(saw.high.0.0), saw.rise.0, fall);
        link.rate_schedule = Some(schedule.map_err(|error| error.to_string())?);
    }
    if let Some(lte) = given.lte {
        let base = LteRate::new(mean, seed);
        let correlation = lte.correlation.unwrap_or(base.correlation);
        let rate = LteRate { sigma: lte.sigma, step: lte.step.0, correlation, ..base };
        link.rate_schedule = Some(RateSchedule::Lte(rate));
    }
    if let Some(leo) = given.leo {
        if !(0.0..=10.0).contains(&leo.low) || !(0.0..=10.0).contains(&leo.high) {
            return Err("`low` and `high` of leo are factors of 0 to 10".into());
        }
        let period = leo.period.0;
        let rate = LeoRate { base_bps: mean, low: leo.low, high: leo.high, period, seed };
        link.rate_schedule = Some(RateSchedule::Leo(rate));
        if let Some(span) = leo.delay_span {
            link.delay_schedule = Some(DelaySchedule::Leo { period, span: span.0, seed });
        }
    }
    // Limits of the schedules before anything is generated.
    link.validate().map_err(|error| error.to_string())
}

fn set_queue(link: &mut LinkConfig, queue: Option<Queue>, rtt: Duration, scale: f64) {
    (link.queue_bytes, link.queue_packets) = (None, None);
    match queue.unwrap_or(Queue::Bdp(1.0)) {
        Queue::Bdp(bdp) => {
            let bytes = LinkConfig::queue_for(link.rate_bps.unwrap_or(1), rtt, bdp * scale);
            link.queue_bytes = Some(bytes.max(LEAST_QUEUE));
        }
        Queue::Bytes(bytes) => link.queue_bytes = Some((bytes as f64 * scale) as usize),
        Queue::Packets(packets) => {
            link.queue_packets = Some(((packets as f64 * scale) as usize).max(1));
        }
    }
}
