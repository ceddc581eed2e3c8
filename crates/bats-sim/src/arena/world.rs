//! Runs a cell in virtual time.

use core::time::Duration;

use bats_netem::Link;
use bats_proto::ConnectionStats;
use bats_types::Timestamp;

use super::cell::{Algorithm, Cell, Route, Who, opposite};
use super::relayed;
use super::traffic::{self, Active, Flows, Path};
use crate::flow_links::{Flow, FlowLinks, FlowWorld, TICK, Traffic};

pub use super::outcome::{Outcome, SAMPLE, Sample};

/// Called every [`SAMPLE`] with the time, the first flow's sender and the bytes that wait.
pub type Trace<'a> = dyn FnMut(Duration, &ConnectionStats, u64) + 'a;

struct Run<'a> {
    cell: &'a Cell,
    subject: Option<Algorithm>,
    seed: u64,
    start: Timestamp,
    /// Its links: the hops in the direction of the data, and then those against it.
    world: FlowWorld,
    flows: Flows,
    /// Bytes that flows had received when they ended.
    ended: Vec<u64>,
    completed: Vec<Option<Duration>>,
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
    Run::new(cell, subject, seed).go(trace)
}

/// The next of some events in the order of their times, if it is due.
fn pop_due<T>(events: &mut Vec<(Timestamp, T)>, now: Timestamp) -> Option<T> {
    match events.last() {
        Some((at, _)) if *at <= now => events.pop().map(|(_, event)| event),
        _ => None,
    }
}

/// Events in the order of their times; the first is the last.
fn sorted<T>(start: Timestamp, events: impl Iterator<Item = (Duration, T)>) -> Vec<(Timestamp, T)> {
    let mut events: Vec<_> = events.map(|(at, event)| (start + at, event)).collect();
    events.sort_by_key(|(at, _)| *at);
    events.reverse();
    events
}

impl<'a> Run<'a> {
    fn new(cell: &'a Cell, subject: Option<Algorithm>, seed: u64) -> Self {
        let (count, hops) = (cell.flows.len(), cell.hops.len());
        let link = |config, salt: u64| Link::new(config, seed.wrapping_mul(0x9e37_79b9) ^ salt);
        let salt = |base: u64, i: usize| base + ((i as u64) << 16);
        let up = cell.hops.iter().enumerate().map(|(i, hop)| link(hop.up.clone(), salt(0x51, i)));
        let down =
            cell.hops.iter().enumerate().map(|(i, hop)| link(hop.down.clone(), salt(0xd0, i)));
        let links = up.chain(down).collect();
        let indices = |route: &Route| {
            let index = |&(hop, is_forward): &(usize, bool)| hop + hops * usize::from(!is_forward);
            route.iter().map(index).collect()
        };
        let flow = |flow| {
            let route = cell.route(flow);
            let mut flow = Flow::new([indices(&route), indices(&opposite(&route))]);
            flow.propagation = cell.delay(&route);
            flow
        };
        let start = Timestamp::from_millis(1);
        // The order in which packets cross the hops.
        let order = (0..hops).chain((hops..2 * hops).rev());
        let mut world = FlowLinks::world(start, links, (0..count).map(flow).collect(), order);
        world.links.delays_from = start + cell.warm_up;
        // A cell of a file may let millions of packets arrive at one time.
        world.max_work = u32::MAX;
        Self {
            cell,
            subject,
            seed,
            start,
            world,
            flows: Flows((0..count).map(|_| None).collect()),
            ended: vec![0; count],
            completed: vec![None; count],
        }
    }

    fn go(mut self, mut trace: Option<&mut Trace<'_>>) -> Outcome {
        let (start, cell) = (self.start, self.cell);
        let end = start + cell.warm_up + cell.measure;
        let flows = || cell.flows.iter().enumerate();
        let mut starts = sorted(start, flows().map(|(index, flow)| (flow.start, index)));
        let mut ends = sorted(start, flows().filter_map(|(index, flow)| Some((flow.end?, index))));
        let mut changes = sorted(start, cell.changes.iter().map(|change| (change.at, change)));
        let (mut samples, mut sample_at) = (Vec::new(), start);
        loop {
            let now = self.world.now;
            while let Some(index) = pop_due(&mut starts, now) {
                self.begin(index);
            }
            while let Some(index) = pop_due(&mut ends, now) {
                self.end(index);
            }
            while let Some(change) = pop_due(&mut changes, now) {
                let index = change.hop + cell.hops.len() * usize::from(change.reverse);
                self.world.links.all[index].set_config(now, change.link.clone());
            }
            self.settle();
            if sample_at <= now {
                samples.push(self.sample());
                sample_at += SAMPLE;
                if let Some(trace) = &mut trace
                    && let Some(stats) = self.stats(0)[0].take()
                {
                    let hops = &mut self.world.links.all[..cell.hops.len()];
                    let queue: usize = hops.iter_mut().map(|link| link.queue_bytes(now)).sum();
                    trace(now - start, &stats, queue as u64);
                }
            }
            if now >= end {
                break;
            }
            let applications = self.flows.0.iter().flatten().filter_map(Active::next_message);
            let next = self.world.next_time().into_iter().chain(applications);
            let next = next
                .chain(starts.last().map(|(at, _)| *at))
                .chain(ends.last().map(|(at, _)| *at))
                .chain(changes.last().map(|(at, _)| *at))
                .chain([sample_at, end])
                .min()
                .unwrap_or(end);
            // All work that is due now is done: nothing is due twice at one time without progress.
            self.world.advance(next.max(now + TICK).min(end));
        }
        let stats: Vec<_> = (0..cell.flows.len()).map(|flow| self.stats(flow)).collect();
        let (senders, receivers) = stats.into_iter().map(|[from, to]| (from, to)).unzip();
        let message_delays = |flow: &mut Option<Active>| match flow {
            Some(Active::Protocol(transfer)) => core::mem::take(&mut transfer.message_delays),
            _ => Vec::new(),
        };
        Outcome {
            samples,
            delays: self.world.links.flows().iter().map(|flow| flow.delays.clone()).collect(),
            completed: self.completed,
            message_delays: self.flows.0.iter_mut().map(message_delays).collect(),
            senders,
            receivers,
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
        let flow = traffic::begin(&mut self.world, index, algorithm, spec.work, path, seed);
        self.flows.0[index] = Some(flow);
    }

    fn end(&mut self, index: usize) {
        self.ended[index] = self.received(index);
        self.flows.0[index] = None;
        for node in &mut self.world.nodes[2 * index..2 * index + 2] {
            *node = None;
        }
        self.world.links.start(self.world.now, index, Traffic::Nothing);
    }

    /// Does all that is due now.
    fn settle(&mut self) {
        for (index, flow) in self.flows.0.iter_mut().enumerate() {
            if let Some(flow) = flow {
                flow.send_due(&mut self.world, index);
            }
        }
        while self.world.round(&mut self.flows) {}
        self.flows.take_datagrams(&mut self.world);
        for (index, flow) in self.flows.0.iter().enumerate() {
            if flow.as_ref().is_some_and(|flow| flow.is_done(&self.world.links.flows()[index])) {
                let begun = self.start + self.cell.flows[index].start;
                self.completed[index].get_or_insert(self.world.now - begun);
            }
        }
    }

    fn received(&self, index: usize) -> u64 {
        let flow = &self.world.links.flows()[index];
        self.flows.0[index].as_ref().map_or(self.ended[index], |active| active.received(flow))
    }

    /// Statistics of both ends of a flow of the protocol.
    fn stats(&self, index: usize) -> [Option<ConnectionStats>; 2] {
        let connections = self.flows.0[index].as_ref().map(Active::connections);
        [0, 1].map(|host| {
            let node = self.world.nodes[2 * index + host].as_ref()?;
            node.stats(self.world.now, connections?[host]?)
        })
    }

    fn sample(&mut self) -> Sample {
        let (now, hops) = (self.world.now, self.cell.hops.len());
        let received = (0..self.cell.flows.len()).map(|flow| self.received(flow)).collect();
        let links = &mut self.world.links;
        Sample {
            time: now - self.start,
            received,
            sent: links.flows().iter().map(|flow| flow.sent).collect(),
            queues: links.all[..hops].iter_mut().map(|link| link.queue_bytes(now)).collect(),
            links: links.all[..hops].iter().map(Link::stats).collect(),
        }
    }
}
