//! A run of a random network.

use std::collections::BTreeMap;
use std::time::Duration;

use bats_netem::{Link, LinkConfig, Output};
use bats_proto::{Received, Timestamp};

use super::check::Monitor;
use super::config::{Reach, World};
use super::node::{Message, SimulatedNode, address};
use super::plan::{Change, NetworkPlan, shortest_paths};
use crate::network::Datagram;
use crate::swarm::rng::SeededRng;

/// Longest time from the last event to a message from each node to each that it reaches.
pub const LIMIT: Duration = Duration::from_secs(1);
/// Time after that in which nodes without a path must get nothing.
const AFTER: Duration = Duration::from_millis(300);
/// Interval at which the nodes send messages and look at their sessions.
const TICK: Duration = Duration::from_millis(20);
/// Rate of each edge in bits per second.
const RATE: u64 = 20_000_000;
/// Most polls at one time; more are an infinite loop.
const MAX_POLLS: u32 = 1_000_000;

/// What a run has shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NetworkReport {
    /// The seed.
    pub seed: u64,
    /// What was wrong, in the order in which it was found.
    pub violations: Vec<String>,
    /// Number of nodes, and of events.
    pub nodes: u64,
    /// Number of events.
    pub events: u64,
    /// Ordered pairs of nodes that must reach each other after the last event, and that must not.
    pub reached: u64,
    /// Ordered pairs of peers that must not.
    pub unreached: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Packets that relays have forwarded.
    pub forwarded: u64,
    /// Longest time from the last event to the first message, among the pairs.
    pub slowest: Duration,
}

struct Run<'a> {
    plan: &'a NetworkPlan,
    world: World,
    now: Timestamp,
    nodes: Vec<SimulatedNode>,
    links: Vec<[Link<Datagram>; 2]>,
    monitor: Monitor,
    rng: SeededRng,
    instance: u64,
    /// When the first message that was made after the last event arrived, by pair.
    first: BTreeMap<(usize, usize), Timestamp>,
    last_event: Timestamp,
    report: NetworkReport,
}

fn link_config(delay_ms: u64, loss: f64, is_cut: bool) -> LinkConfig {
    let delay = Duration::from_millis(delay_ms);
    LinkConfig { black_hole: is_cut, ..crate::links::queued(RATE, delay, 4.0, loss) }
}

/// Runs a network.
#[must_use]
pub fn run(plan: &NetworkPlan) -> NetworkReport {
    let now = Timestamp::from_millis(1_000);
    let world = plan.world.clone();
    let links = world.edges.iter().enumerate().map(|(index, edge)| {
        let config = link_config(edge.delay_ms, edge.loss, false);
        let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index as u64;
        [Link::new(config.clone(), seed), Link::new(config, !seed)]
    });
    let mut run = Run {
        now,
        nodes: (0..world.nodes.len())
            .map(|node| SimulatedNode::start(now, plan.seed, node, 1, &world))
            .collect(),
        links: links.collect(),
        monitor: Monitor::default(),
        rng: SeededRng::new(plan.seed),
        instance: 1,
        first: BTreeMap::new(),
        last_event: now,
        report: NetworkReport { seed: plan.seed, ..NetworkReport::default() },
        plan,
        world,
    };
    run.run();
    run.report
}

impl Run<'_> {
    fn run(&mut self) {
        let start = self.now;
        for (at, change) in &self.plan.events {
            self.advance(start + *at);
            self.apply(change);
        }
        self.last_event = self.now;
        self.first.clear();
        self.advance(self.now + LIMIT);
        self.check_reached();
        self.advance(self.now + AFTER);
        self.report.nodes = self.world.nodes.len() as u64;
        self.report.events = self.plan.events.len() as u64;
        self.report.forwarded = self.monitor.forwarded;
        self.check_unreached();
    }

    fn fail(&mut self, text: String) {
        if self.report.violations.len() < 8 {
            let at = (self.now - Timestamp::from_millis(1_000)).as_secs_f64();
            self.report.violations.push(format!("{at:.3} s: {text}"));
        }
    }

    fn apply(&mut self, change: &Change) {
        let now = self.now;
        let mut changed = vec![];
        match change {
            Change::Cut(edge, cuts) => {
                let state = &mut self.world.edges[*edge];
                state.is_cut = *cuts;
                let config = link_config(state.delay_ms, state.loss, *cuts);
                changed.extend(state.ends);
                for each in &mut self.links[*edge] {
                    each.set_config(now, config.clone());
                }
            }
            Change::Restart(node) => {
                self.instance += 1;
                self.nodes[*node] =
                    SimulatedNode::start(now, self.plan.seed, *node, self.instance, &self.world);
            }
            Change::Policy(node, neighbour, policy) => {
                match policy {
                    Some(transit) => self.world.nodes[*node].transit.insert(*neighbour, *transit),
                    None => self.world.nodes[*node].transit.remove(neighbour),
                };
                changed.push(*node);
            }
            Change::Peer(node, peer, is_peer) => {
                match is_peer {
                    true => self.world.nodes[*node].peers.insert(*peer),
                    false => self.world.nodes[*node].peers.remove(peer),
                };
                changed.push(*node);
            }
            Change::Dial(node, edge, opens) => {
                match opens {
                    true => self.world.nodes[*node].dials.insert(*edge),
                    false => self.world.nodes[*node].dials.remove(edge),
                };
                changed.push(*node);
            }
            Change::Route(node, to, edges) => {
                self.world.nodes[*node].routes.insert(*to, edges.clone());
                changed.push(*node);
            }
            Change::Routes => {
                let count = self.world.nodes.len() - usize::from(self.plan.impostor.is_some());
                for (node, routes) in shortest_paths(&self.world, count).into_iter().enumerate() {
                    self.world.nodes[node].routes = routes;
                    changed.push(node);
                }
            }
        }
        for node in changed {
            self.nodes[node].configure(now, &self.world);
        }
    }

    /// Advances the time, with messages in between.
    fn advance(&mut self, until: Timestamp) {
        while self.now < until {
            self.step((self.now + TICK).min(until));
            let mut all = Vec::new();
            for node in 0..self.nodes.len() {
                let mut messages = Vec::new();
                self.nodes[node].serve(self.now, &mut messages);
                all.extend(messages.into_iter().map(|message| (node, message)));
                // The impostor, and some messages of others, have sources that are not their own.
                let own = self.world.nodes[node].claims;
                let source = match self.rng.chance(0.2) {
                    true => self.rng.integer(0, self.nodes.len() as u64 - 1) as usize,
                    false => own,
                };
                self.nodes[node].send(self.now, source);
                if let Some(violation) = self.nodes[node].violation.take() {
                    self.fail(format!("node {node}: {violation}"));
                }
            }
            all.into_iter().for_each(|(node, message)| self.take(node, message));
        }
    }

    fn take(&mut self, node: usize, message: Message) {
        let Message { origin, source, made, peer } = message;
        self.report.delivered += 1;
        if source != origin || peer != origin {
            self.fail(format!(
                "node {node} takes a message of node {origin} as one of {peer} with the address of {source}"
            ));
        }
        if !self.world.nodes[node].peers.contains(&origin) {
            self.fail(format!("node {node} takes a message of {origin}, which is no peer"));
        }
        if made > self.last_event {
            self.first.entry((origin, node)).or_insert(self.now);
        }
    }

    /// Advances the time to `until`.
    fn step(&mut self, until: Timestamp) {
        let mut polls = 0;
        loop {
            polls += 1;
            assert!(polls < MAX_POLLS, "seed {}: the time does not advance", self.plan.seed);
            let mut next = None;
            let now = self.now;
            for edge in 0..self.links.len() {
                for side in 0..2 {
                    loop {
                        match self.links[edge][side].poll(now) {
                            Output::Deliver(datagram) => self.deliver(edge, side, datagram),
                            Output::Timeout(at) => {
                                next = [next, at].into_iter().flatten().min();
                                break;
                            }
                        }
                    }
                }
            }
            for node in 0..self.nodes.len() {
                if self.nodes[node].wake_at.is_some_and(|at| at <= now) {
                    self.drive(node);
                    next = Some(now);
                } else {
                    next = [next, self.nodes[node].wake_at].into_iter().flatten().min();
                }
            }
            match next {
                Some(at) if at <= until => self.now = at.max(self.now),
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
    }

    fn deliver(&mut self, edge: usize, side: usize, mut datagram: Datagram) {
        let to = self.world.edges[edge].ends[1 - side];
        self.monitor.receive(self.now, &self.world, (to, edge), &datagram.bytes);
        let received = Received {
            remote: address(edge, side),
            local_ip: Some(address(edge, 1 - side).ip()),
            ecn: datagram.ecn,
            payload: &mut datagram.bytes,
        };
        self.nodes[to].receive(self.now, received);
    }

    fn drive(&mut self, node: usize) {
        let mut buffer = Vec::with_capacity(65_536);
        while let Some(transmit) = self.nodes[node].poll(self.now, &self.world, &mut buffer) {
            let std::net::IpAddr::V4(ip) = transmit.remote.ip() else { continue };
            let [_, _, edge, end] = ip.octets();
            let (edge, side) = (usize::from(edge), 2 - usize::from(end));
            for bytes in buffer[..transmit.len].chunks(transmit.segment_size) {
                let wrong = self.monitor.send(self.now, &self.world, (node, edge), bytes);
                if let Some(wrong) = wrong.filter(|_| self.plan.impostor != Some(node)) {
                    self.fail(wrong);
                }
                let (to, ecn, sent) = (transmit.remote, transmit.ecn, self.now);
                let datagram = Datagram { bytes: bytes.to_vec(), ecn, sent, to };
                self.links[edge][side].handle(self.now, datagram);
            }
        }
    }

    fn pairs(&self) -> Vec<(usize, usize, Reach)> {
        let count = self.nodes.len();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let peers = pairs.filter(|(from, to)| self.world.nodes[*from].peers.contains(to));
        peers.map(|(from, to)| (from, to, self.world.reach(from, to))).collect()
    }

    fn check_reached(&mut self) {
        for (from, to, reach) in self.pairs() {
            if reach != Reach::All {
                continue;
            }
            self.report.reached += 1;
            match self.first.get(&(from, to)) {
                Some(at) => {
                    self.report.slowest = self.report.slowest.max(*at - self.last_event);
                }
                None => {
                    let text = format!(
                        "no message from {from} to {to} within 1 s of the last event, {:?}\n    {}\n    {}",
                        self.plan.events.last().map(|(_, change)| change),
                        self.nodes[from].describe(),
                        self.nodes[to].describe(),
                    );
                    self.fail(text);
                }
            }
        }
    }

    fn check_unreached(&mut self) {
        for (from, to, reach) in self.pairs() {
            if reach != Reach::None {
                continue;
            }
            self.report.unreached += 1;
            if self.first.get(&(from, to)).is_some_and(|at| *at > self.last_event + LIMIT) {
                self.fail(format!("messages from {from} to {to}, which has no path"));
            }
        }
    }
}
