//! Runs a cell in virtual time.

use core::time::Duration;

use bats_netem::{Link, Output as LinkOutput};
use bats_proto::ConnectionStats;
use bats_types::Timestamp;

use super::cell::{Algorithm, Cell, Route, Who, opposite};
use super::packet::Packet;
use super::relayed;
use super::traffic::{Active, Path, Sent};

pub use super::delay_histogram::DelayHistogram;
pub use super::outcome::{Outcome, SAMPLE, Sample};

/// Called every [`SAMPLE`] with the time, the first flow's sender and the bytes that wait.
pub type Trace<'a> = dyn FnMut(Duration, &ConnectionStats, u64) + 'a;

struct World<'a> {
    cell: &'a Cell,
    subject: Option<Algorithm>,
    seed: u64,
    now: Timestamp,
    start: Timestamp,
    /// The hops in the direction of the data, and against it, by their index.
    links: [Vec<Link<Packet>>; 2],
    /// Of each flow: the route of its data, and that of its acknowledgements.
    routes: Vec<[Route; 2]>,
    flows: Vec<Option<Active>>,
    /// Bytes that flows had received when they ended.
    ended: Vec<u64>,
    timers: Vec<Option<Timestamp>>,
    sent: Vec<u64>,
    delays: Vec<DelayHistogram>,
    completed: Vec<Option<Duration>>,
    out: Sent,
}

/// Runs `cell` with `subject` in place of [`Who::Subject`], or without these flows; `seed` decides every
/// random choice. `trace` is called with each sample of the first flow's sender.
///
/// # Panics
/// If the cell has no flow, or a route or change names a hop that it has not.
pub fn run(
    cell: &Cell,
    subject: Option<Algorithm>,
    seed: u64,
    trace: Option<&mut Trace<'_>>,
) -> Outcome {
    if let Some(Algorithm::Brtp(congestion)) = subject
        && relayed::is_relayed(cell)
    {
        return relayed::run(cell, congestion, seed);
    }
    World::new(cell, subject, seed).go(trace)
}

impl<'a> World<'a> {
    fn new(cell: &'a Cell, subject: Option<Algorithm>, seed: u64) -> Self {
        let count = cell.flows.len();
        let link = |config, salt: u64| Link::new(config, seed.wrapping_mul(0x9e37_79b9) ^ salt);
        let hops = || cell.hops.iter().enumerate();
        let salt = |base: u64, i: usize| base + ((i as u64) << 16);
        let up = hops().map(|(i, hop)| link(hop.up.clone(), salt(0x51, i))).collect();
        let down = hops().map(|(i, hop)| link(hop.down.clone(), salt(0xd0, i))).collect();
        let start = Timestamp::from_millis(1);
        Self {
            cell,
            subject,
            seed,
            now: start,
            start,
            links: [up, down],
            routes: (0..count)
                .map(|flow| {
                    let route = cell.route(flow);
                    let back = opposite(&route);
                    [route, back]
                })
                .collect(),
            flows: (0..count).map(|_| None).collect(),
            ended: vec![0; count],
            timers: vec![None; count],
            sent: vec![0; count],
            delays: vec![DelayHistogram::default(); count],
            completed: vec![None; count],
            out: Vec::new(),
        }
    }

    fn go(mut self, mut trace: Option<&mut Trace<'_>>) -> Outcome {
        let end = self.start + self.cell.warm_up + self.cell.measure;
        let mut starts: Vec<(Timestamp, usize)> = Vec::new();
        for (index, flow) in self.cell.flows.iter().enumerate() {
            starts.push((self.start + flow.start, index));
        }
        starts.sort_unstable();
        starts.reverse();
        let mut ends: Vec<(Timestamp, usize)> = Vec::new();
        for (index, flow) in self.cell.flows.iter().enumerate() {
            ends.extend(flow.end.map(|end| (self.start + end, index)));
        }
        ends.sort_unstable();
        ends.reverse();
        let mut changes = self.cell.changes.clone();
        changes.sort_by_key(|change| change.at);
        changes.reverse();
        let (mut samples, mut sample_at) = (Vec::new(), self.start);
        loop {
            while starts.last().is_some_and(|&(at, _)| at <= self.now) {
                if let Some((_, index)) = starts.pop() {
                    self.begin(index);
                }
            }
            while ends.last().is_some_and(|&(at, _)| at <= self.now) {
                if let Some((_, index)) = ends.pop() {
                    self.ended[index] = self.flows[index].as_ref().map_or(0, Active::received);
                    (self.flows[index], self.timers[index]) = (None, None);
                }
            }
            while changes.last().is_some_and(|change| self.start + change.at <= self.now) {
                if let Some(change) = changes.pop() {
                    let direction = usize::from(change.reverse);
                    self.links[direction][change.hop].set_config(self.now, change.link);
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
                .chain(ends.last().map(|&(at, _)| at))
                .chain(changes.last().map(|change| self.start + change.at))
                .chain([sample_at, end])
                .min()
                .unwrap_or(end);
            // All work that is due now is done: nothing is due twice at one time without progress.
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
            receivers: self
                .flows
                .iter_mut()
                .map(|flow| flow.as_mut().and_then(|flow| flow.receiver_stats(now)))
                .collect(),
        }
    }

    fn begin(&mut self, index: usize) {
        let spec = &self.cell.flows[index];
        let algorithm = match spec.who {
            Who::Subject => self.subject,
            Who::SubjectMedia => self.subject.map(Algorithm::of_media),
            Who::Fixed(algorithm) => Some(algorithm),
        };
        let Some(algorithm) = algorithm else { return };
        let seed = self.seed.wrapping_mul(31).wrapping_add(1_000 * index as u64);
        let path = Path { rtt: self.cell.rtt(index), tcp_ecn: self.cell.tcp_ecn };
        let flow = Active::new(self.now, algorithm, spec.work, path, seed);
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
            for place in 0..self.links[direction].len() {
                // The order in which packets of this direction cross the hops.
                let hop = if direction == 0 { place } else { self.links[1].len() - 1 - place };
                while let LinkOutput::Deliver(packet) = self.links[direction][hop].poll(self.now) {
                    self.forward(packet);
                }
            }
        }
    }

    /// Passes a packet to the next hop of its route, or to its receiver.
    fn forward(&mut self, packet: Packet) {
        let route = &self.routes[packet.flow][usize::from(!packet.is_data)];
        match route.get(packet.position) {
            Some(&(hop, is_forward)) => {
                let packet = Packet { position: packet.position + 1, ..packet };
                self.links[usize::from(!is_forward)][hop].handle(self.now, packet);
            }
            None => self.deliver(packet),
        }
    }

    fn deliver(&mut self, packet: Packet) {
        let Packet { flow: index, is_data, sent, body, .. } = packet;
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

    /// Passes the packets that a flow sent to its first link.
    fn hand_over(&mut self, index: usize) {
        let mut out = core::mem::take(&mut self.out);
        for (is_data, body) in out.drain(..) {
            self.sent[index] += u64::from(is_data);
            let packet = Packet { flow: index, is_data, position: 0, sent: self.now, body };
            self.forward(packet);
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
        let queues = self.links[0].iter_mut().map(|link| link.queue_bytes(now)).collect();
        let received =
            |(flow, ended): (&Option<Active>, &u64)| flow.as_ref().map_or(*ended, Active::received);
        Sample {
            time: now - self.start,
            received: self.flows.iter().zip(&self.ended).map(received).collect(),
            sent: self.sent.clone(),
            links: self.links[0].iter().map(Link::stats).collect(),
            queues,
        }
    }
}
