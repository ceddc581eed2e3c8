//! Runs a cell whose nodes between hops are relays of the protocol: they recode, repair the losses of
//! their hop, and have a congestion controller for each hop.

use core::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, Event, SendError, Timestamp, TransportConfig};

use super::cell::{Cell, Who, Work};
use super::outcome::{Outcome, SAMPLE, Sample};
use crate::delay_histogram::DelayHistogram;
use crate::link_event::LinkEventKind;
use crate::relay_network::{LinkDirection, RelayNetwork, RelayNetworkConfig, node_id};
use crate::transfer::message;

/// Interval at which queues are sampled, and the start of the run, as in a cell without relays.
const STEP: Duration = Duration::from_millis(10);
const START: Timestamp = Timestamp::from_millis(1);
const MESSAGE: usize = 16 << 10;

/// Whether the nodes of a cell recode: several hops in a row with one bulk transfer that is judged.
pub(super) fn is_relayed(cell: &Cell) -> bool {
    let [flow] = &cell.flows[..] else { return false };
    let is_plain = flow.who == Who::Subject && flow.work == Work::Bulk && !flow.reverse;
    cell.relays && cell.hops.len() > 1 && is_plain && cell.routes.iter().all(Option::is_none)
}

/// Runs the cell. Delays of packets are those of the queues before all hops, sampled each 10 ms,
/// because packets of the ends do not cross the relays as they are.
pub(super) fn run(cell: &Cell, congestion: CongestionAlgorithm, seed: u64) -> Outcome {
    let transport = TransportConfig { congestion, ..TransportConfig::default() };
    let config = RelayNetworkConfig {
        links: cell.hops.iter().map(|hop| hop.up.clone()).collect(),
        relay: RelayConfig::new(node_id(0)),
        transport,
        seed,
    };
    let down: Vec<_> = cell.hops.iter().map(|hop| hop.down.clone()).collect();
    let edges = (0..cell.hops.len()).map(|hop| (hop, hop + 1)).collect();
    let mut run = Run {
        cell,
        seed,
        network: RelayNetwork::build(config, &down, edges),
        client: None,
        server: None,
        messages: 0,
        received: 0,
        sent: Rc::new(RefCell::new(0)),
        delays: DelayHistogram::default(),
        samples: Vec::new(),
    };
    run.go();
    run.outcome()
}

struct Run<'a> {
    cell: &'a Cell,
    seed: u64,
    network: RelayNetwork,
    client: Option<bats_proto::ConnectionHandle>,
    server: Option<bats_proto::ConnectionHandle>,
    messages: u64,
    received: u64,
    sent: Rc<RefCell<u64>>,
    delays: DelayHistogram,
    samples: Vec<Sample>,
}

impl Run<'_> {
    fn go(&mut self) {
        let sent = Rc::clone(&self.sent);
        self.network.observe(Box::new(move |event| {
            let is_sent = matches!(event.kind, LinkEventKind::Sent(_));
            if is_sent && event.link == 0 && event.direction == LinkDirection::Forward {
                *sent.borrow_mut() += 1;
            }
        }));
        let end = START + self.cell.warm_up + self.cell.measure;
        let mut changes = self.cell.changes.clone();
        changes.sort_by_key(|change| change.at);
        changes.reverse();
        let (mut step_at, mut sample_at) = (START, START);
        loop {
            let due = changes.last().map(|change| START + change.at);
            let until = due.into_iter().chain([step_at, sample_at, end]).min().unwrap_or(end);
            while self.network.step(until) {
                self.take_events();
            }
            self.take_events();
            while changes.last().is_some_and(|change| START + change.at <= until) {
                let Some(change) = changes.pop() else { break };
                let direction =
                    if change.reverse { LinkDirection::Reverse } else { LinkDirection::Forward };
                self.network.set_direction(change.hop, direction, change.link);
            }
            if self.client.is_none() && self.network.is_established() {
                self.client = Some(self.network.connect_ends());
            }
            if step_at <= until {
                self.sample_delay(until);
                step_at += STEP;
            }
            if sample_at <= until {
                self.sample(until);
                sample_at += SAMPLE;
            }
            if until >= end {
                return;
            }
        }
    }

    fn take_events(&mut self) {
        let last = self.network.last();
        for (node, handle, event) in core::mem::take(&mut self.network.events) {
            match event {
                Event::Connected | Event::Writable if node == 0 && self.client == Some(handle) => {
                    self.write(handle);
                }
                Event::Accepted if node == last && self.network.is_session(node, handle) => {
                    self.server = Some(handle);
                }
                Event::Readable if node == last && self.network.is_session(node, handle) => {
                    let now = self.network.now();
                    while let Some(got) = self.network.node(last).recv(now, handle) {
                        self.received += got.len() as u64;
                    }
                    self.network.wake(last);
                }
                _ => {}
            }
        }
    }

    fn write(&mut self, handle: bats_proto::ConnectionHandle) {
        let now = self.network.now();
        loop {
            let message = message(self.seed, self.messages, MESSAGE);
            match self.network.node(0).send(now, handle, message) {
                Ok(()) => self.messages += 1,
                Err(SendError::Blocked(_)) => break,
                Err(_) => return,
            }
        }
        self.network.wake(0);
    }

    fn queues(&mut self) -> Vec<usize> {
        let hops = 0..self.cell.hops.len();
        hops.map(|hop| self.network.queue_bytes(hop, LinkDirection::Forward)).collect()
    }

    fn sample_delay(&mut self, now: Timestamp) {
        if now < START + self.cell.warm_up {
            return;
        }
        let mut delay = Duration::ZERO;
        for (queue, hop) in self.queues().into_iter().zip(&self.cell.hops) {
            let rate = hop.up.rate_bps.unwrap_or(u64::MAX).max(1) as f64;
            delay += Duration::from_secs_f64(queue as f64 * 8.0 / rate);
        }
        self.delays.add(delay);
    }

    fn sample(&mut self, now: Timestamp) {
        let queues = self.queues();
        self.samples.push(Sample {
            time: now - START,
            received: vec![self.received],
            sent: vec![*self.sent.borrow()],
            links: (0..self.cell.hops.len()).map(|hop| self.network.link_stats(hop)).collect(),
            queues,
        });
    }

    fn outcome(mut self) -> Outcome {
        let (now, last) = (self.network.now(), self.network.last());
        Outcome {
            samples: self.samples,
            delays: vec![self.delays],
            completed: vec![None],
            message_delays: vec![Vec::new()],
            senders: vec![self.client.and_then(|at| self.network.node(0).stats(now, at))],
            receivers: vec![self.server.and_then(|at| self.network.node(last).stats(now, at))],
        }
    }
}
