//! Runs a cell in virtual time.

use core::time::Duration;

use bats_netem::{Link, LinkStats, Output as LinkOutput};
use bats_proto::ConnectionStats;
use bats_types::Timestamp;

use super::cell::{Algorithm, Cell, Who};
use super::packet::Packet;
use super::traffic::{Active, Sent, packet};

/// Called every [`SAMPLE`] with the time, the first flow's sender and the bytes in the queue.
pub type Trace<'a> = dyn FnMut(Duration, &ConnectionStats, u64) + 'a;

/// Interval of the samples.
pub const SAMPLE: Duration = Duration::from_millis(100);
/// Bins of the delay histogram, 0.25 ms each; the last one holds all longer delays.
const DELAY_BINS: usize = 40_000;
const DELAY_BIN_NANOS: u64 = 250_000;

/// State of all flows at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time from the start of the run.
    pub time: Duration,
    /// Bytes of each flow delivered in order.
    pub received: Vec<u64>,
    /// Packets of each flow sent in the data direction.
    pub sent: Vec<u64>,
    /// Counters of each hop in the data direction.
    pub links: Vec<LinkStats>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Samples, one every [`SAMPLE`].
    pub samples: Vec<Sample>,
    /// One-way delays of each flow, for packets that arrived during the measurement.
    pub delays: Vec<DelayHistogram>,
    /// Time from the start of each flow until all its data has arrived.
    pub completed: Vec<Option<Duration>>,
    /// Message delays of each flow with a rate.
    pub message_delays: Vec<Vec<Duration>>,
    /// Sender statistics of each protocol flow at the end.
    pub senders: Vec<Option<ConnectionStats>>,
}

/// One-way delays.
#[derive(Clone, Debug)]
pub struct DelayHistogram {
    bins: Vec<u32>,
    count: u64,
}

impl Default for DelayHistogram {
    fn default() -> Self {
        Self { bins: vec![0; DELAY_BINS], count: 0 }
    }
}

impl DelayHistogram {
    fn add(&mut self, delay: Duration) {
        let bin = (delay.as_nanos() as u64 / DELAY_BIN_NANOS) as usize;
        self.bins[bin.min(DELAY_BINS - 1)] += 1;
        self.count += 1;
    }

    /// The quantile `quantile` of the delays.
    pub fn quantile(&self, quantile: f64) -> Duration {
        let target = (self.count as f64 * quantile).ceil() as u64;
        let mut sum = 0;
        for (bin, &count) in self.bins.iter().enumerate() {
            sum += u64::from(count);
            if sum >= target && sum > 0 {
                return Duration::from_nanos((bin as u64 + 1) * DELAY_BIN_NANOS);
            }
        }
        Duration::ZERO
    }
}

struct World<'a> {
    cell: &'a Cell,
    subject: Algorithm,
    seed: u64,
    now: Timestamp,
    start: Timestamp,
    /// The hops in the data direction and in the reverse direction.
    links: [Vec<Link<Packet>>; 2],
    flows: Vec<Option<Active>>,
    timers: Vec<Option<Timestamp>>,
    sent: Vec<u64>,
    delays: Vec<DelayHistogram>,
    completed: Vec<Option<Duration>>,
    out: Sent,
}

/// Runs `cell` with `subject` in place of [`Who::Subject`]. `seed` determines all random choices.
/// `trace` is called with each sample of the first flow's sender.
pub fn run(cell: &Cell, subject: Algorithm, seed: u64, trace: Option<&mut Trace<'_>>) -> Outcome {
    World::new(cell, subject, seed).go(trace)
}

impl<'a> World<'a> {
    fn new(cell: &'a Cell, subject: Algorithm, seed: u64) -> Self {
        let count = cell.flows.len();
        let link = |config, salt: u64| Link::new(config, seed.wrapping_mul(0x9e37_79b9) ^ salt);
        let hops = || cell.hops.iter().enumerate();
        let salt = |base: u64, i: usize| base + ((i as u64) << 16);
        let up = hops().map(|(i, hop)| link(hop.up.clone(), salt(0x51, i))).collect();
        let down = hops().rev().map(|(i, hop)| link(hop.down.clone(), salt(0xd0, i))).collect();
        let start = Timestamp::from_millis(1);
        Self {
            cell,
            subject,
            seed,
            now: start,
            start,
            links: [up, down],
            flows: (0..count).map(|_| None).collect(),
            timers: vec![None; count],
            sent: vec![0; count],
            delays: vec![DelayHistogram::default(); count],
            completed: vec![None; count],
            out: Vec::new(),
        }
    }

    fn rtt(&self) -> Duration {
        self.cell.hops.iter().map(|hop| hop.up.delay + hop.down.delay).sum()
    }

    fn go(mut self, mut trace: Option<&mut Trace<'_>>) -> Outcome {
        let end = self.start + self.cell.warm_up + self.cell.measure;
        let mut starts: Vec<(Timestamp, usize)> = Vec::new();
        for (index, flow) in self.cell.flows.iter().enumerate() {
            starts.push((self.start + flow.start, index));
        }
        starts.sort_unstable();
        starts.reverse();
        let mut changes = self.cell.changes.clone();
        changes.sort_by_key(|change| change.0);
        changes.reverse();
        let (mut samples, mut sample_at) = (Vec::new(), self.start);
        loop {
            while starts.last().is_some_and(|&(at, _)| at <= self.now) {
                if let Some((_, index)) = starts.pop() {
                    self.begin(index);
                }
            }
            while changes.last().is_some_and(|change| self.start + change.0 <= self.now) {
                if let Some((_, hop, config)) = changes.pop() {
                    self.links[0][hop].set_config(self.now, config);
                }
            }
            self.settle();
            if sample_at <= self.now {
                samples.push(self.sample());
                sample_at += SAMPLE;
                if let (Some(trace), Some(Some(flow))) = (&mut trace, self.flows.first_mut())
                    && let Some(stats) = flow.stats(self.now)
                {
                    let queue = self.links[0].iter_mut().map(|link| link.queue_bytes(self.now));
                    trace(self.now - self.start, &stats, queue.sum::<usize>() as u64);
                }
            }
            if self.now >= end {
                break;
            }
            let next = self.next_event().into_iter();
            let next = next
                .chain(starts.last().map(|&(at, _)| at))
                .chain(changes.last().map(|change| self.start + change.0))
                .chain([sample_at, end])
                .min()
                .unwrap_or(end);
            // Everything that is due now is done, so time advances by at least 1 ns.
            self.now = next.max(self.now + Duration::from_nanos(1)).min(end);
        }
        let now = self.now;
        Outcome {
            samples,
            delays: self.delays,
            completed: self.completed,
            message_delays: self
                .flows
                .iter_mut()
                .map(|flow| match flow {
                    Some(Active::Protocol(flow)) => core::mem::take(&mut flow.message_delays),
                    _ => Vec::new(),
                })
                .collect(),
            senders: self
                .flows
                .iter_mut()
                .map(|flow| flow.as_mut().and_then(|flow| flow.stats(now)))
                .collect(),
        }
    }

    fn begin(&mut self, index: usize) {
        let spec = &self.cell.flows[index];
        let algorithm = match spec.who {
            Who::Subject => self.subject,
            Who::Fixed(algorithm) => algorithm,
        };
        let seed = self.seed.wrapping_mul(31).wrapping_add(1_000 * index as u64);
        let flow = Active::new(self.now, algorithm, spec.work, self.rtt(), seed);
        self.timers[index] = Some(self.now);
        self.flows[index] = Some(flow);
    }

    fn settle(&mut self) {
        for index in 0..self.flows.len() {
            if self.timers[index].is_some_and(|at| at <= self.now)
                && let Some(flow) = &mut self.flows[index]
            {
                flow.on_timer(self.now, &mut self.out);
                self.hand_over(index);
            }
        }
        for direction in 0..2 {
            let last = self.links[direction].len() - 1;
            for hop in 0..=last {
                while let LinkOutput::Deliver(packet) = self.links[direction][hop].poll(self.now) {
                    if hop < last {
                        self.links[direction][hop + 1].handle(self.now, packet);
                    } else {
                        self.deliver(direction, packet);
                    }
                }
            }
        }
    }

    fn deliver(&mut self, direction: usize, packet: Packet) {
        let Packet { flow: index, sent, body } = packet;
        let is_data = (direction == 1) == self.cell.flows[index].reverse;
        if is_data && self.now >= self.start + self.cell.warm_up {
            self.delays[index].add(self.now - sent);
        }
        let Some(flow) = &mut self.flows[index] else { return };
        flow.on_packet(self.now, is_data, body, &mut self.out);
        if flow.is_done() {
            let begun = self.start + self.cell.flows[index].start;
            self.completed[index].get_or_insert(self.now - begun);
        }
        self.hand_over(index);
    }

    /// Hands the packets of a flow to its first link.
    fn hand_over(&mut self, index: usize) {
        let reverse = self.cell.flows[index].reverse;
        let mut out = core::mem::take(&mut self.out);
        for (is_data, body) in out.drain(..) {
            self.sent[index] += u64::from(is_data);
            let direction = usize::from(is_data == reverse);
            self.links[direction][0].handle(self.now, packet(index, self.now, body));
        }
        self.out = out;
        self.timers[index] = self.flows[index].as_ref().and_then(Active::next_timer);
    }

    fn next_event(&mut self) -> Option<Timestamp> {
        let now = self.now;
        let links = self.links.iter_mut().flatten().filter_map(|link| match link.poll(now) {
            LinkOutput::Timeout(at) => at,
            LinkOutput::Deliver(_) => Some(now),
        });
        links.chain(self.timers.iter().flatten().copied()).min()
    }

    fn sample(&mut self) -> Sample {
        let now = self.now;
        self.links[0].iter_mut().for_each(|link| {
            link.queue_bytes(now);
        });
        let received = |flow: &Option<Active>| flow.as_ref().map_or(0, Active::received);
        Sample {
            time: now - self.start,
            received: self.flows.iter().map(received).collect(),
            sent: self.sent.clone(),
            links: self.links[0].iter().map(Link::stats).collect(),
        }
    }
}
