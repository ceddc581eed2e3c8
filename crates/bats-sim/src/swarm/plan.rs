//! The plan of a run, which derives from its seed.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::config::Mode;
use bats_proto::{CongestionAlgorithm, Goal, TransportConfig};

use super::fault::{Fault, FaultKind};
use super::model::LABEL_LEN;
use super::nodes::Nodes;
use super::rng::SeededRng;
use super::topology::{self, MIN_QUEUE};

/// Plan of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed from which the plan derives.
    pub seed: u64,
    /// The links from the client to the server and those back. Without nodes: one to four each, in
    /// the order of transmission. With nodes: both directions in the order of `nodes.edges`.
    pub hops: [Vec<LinkConfig>; 2],
    /// Nodes between the links; without them, links only forward.
    pub nodes: Option<Nodes>,
    /// The faults of the network.
    pub faults: Vec<Fault>,
    /// Time at which the last fault ends and the second phase begins.
    pub faults_end: Duration,
    /// Transport configuration of both ends; each connection has its own mode.
    pub transport: TransportConfig,
    /// Whether the server validates each client's address with a Retry packet.
    pub retry: bool,
    /// Connections from the client to the server.
    pub connections: Vec<ConnectionPlan>,
}

/// Plan of one connection.
#[derive(Clone, Debug)]
pub struct ConnectionPlan {
    /// Mode of the session.
    pub mode: Mode,
    /// Time at which the client connects.
    pub start: Duration,
    /// Traffic from the client and from the server.
    pub traffic: [Traffic; 2],
    /// How the connection ends.
    pub ending: Ending,
    /// Time between reads of the client and of the server; `None` to read at once.
    pub reads: [Option<Duration>; 2],
}

/// Messages that one end sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Number of messages.
    pub messages: u64,
    /// Minimum and maximum message size in bytes.
    pub sizes: (usize, usize),
    /// Time between two messages; `None` to send as fast as the connection accepts them.
    pub interval: Option<Duration>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// Both ends finish after their last message. The client closes when both have seen the end.
    Finish,
    /// As `Finish`, but the client waits for this time before it closes.
    Linger(Duration),
    /// One end (0 client, 1 server) closes at this time, even with data in flight.
    Close(usize, Duration),
}

/// Maximum time that a finished connection stays open, in seconds.
const MAX_LINGER: f64 = 4.0;
/// Bits of a full packet.
const PACKET: f64 = 1_472.0 * 8.0;
/// Time for the links of a restarted relay to be established.
const RELAY_SETUP_TIME: Duration = Duration::from_secs(4);

impl Plan {
    /// The plan of `seed`, with a fault phase of at most `longest`.
    pub fn new(seed: u64, longest: Duration) -> Self {
        let mut rng = SeededRng::new(seed);
        let (hops, nodes) = if rng.chance(0.5) {
            let (hops, nodes) = topology::nodes(&mut rng);
            (hops, Some(nodes))
        } else {
            (topology::chain(&mut rng), None)
        };
        let faults_end = Duration::from_secs_f64(longest.as_secs_f64() * rng.uniform(0.2, 1.0));
        let faults = topology::faults(&mut rng, &hops, nodes.as_ref(), faults_end);
        let transport = transport(&mut rng);
        let retry = nodes.is_none() && rng.chance(0.2);
        let connections = Vec::new();
        let mut plan =
            Self { seed, hops, nodes, faults, faults_end, transport, retry, connections };
        if plan.has_rebinding() {
            // The server learns the new address of a client only from its packets. A client that
            // only receives needs keep-alives to send any.
            plan.transport.keep_alive.get_or_insert(Duration::from_secs(1));
        }
        // A Retry packet is not authenticated: a corrupted one makes the handshake fail.
        plan.retry &= !plan.corrupts();
        let count = rng.pick(&[1, 1, 2, 3, 4]);
        plan.transport.congestion = plan.controller(&mut rng, count);
        plan.connections = (0..count).map(|_| plan.connection(&mut rng, count)).collect();
        plan
    }

    /// The links, with the faults at time `at` applied.
    pub fn links(&self, at: Duration) -> [Vec<LinkConfig>; 2] {
        let mut hops = self.hops.clone();
        for fault in self.faults.iter().filter(|fault| fault.from <= at && at < fault.until) {
            for (direction, links) in hops.iter_mut().enumerate() {
                if let (FaultKind::Restart(node), Some(nodes)) = (fault.kind, &self.nodes) {
                    nodes.of(node).for_each(|hop| links[hop].black_hole = true);
                } else if fault.direction.is_none_or(|only| only == direction) {
                    let hop = fault.hop.min(links.len() - 1);
                    fault.kind.apply(&mut links[hop]);
                }
            }
        }
        hops
    }

    /// Times at which faults begin or end, in order.
    pub fn changes(&self) -> Vec<Duration> {
        let mut times: Vec<_> = self.faults.iter().flat_map(|f| [f.from, f.until]).collect();
        times.sort_unstable();
        times.dedup();
        times
    }

    /// Rate of the slowest link of both directions without faults, in bits per second.
    pub fn rate(&self) -> u64 {
        self.hops.iter().flatten().filter_map(|link| link.rate_bps).min().unwrap_or(1_000_000)
    }

    /// Round-trip time without faults and queueing.
    pub fn round_trip(&self) -> Duration {
        let jitter = |link: &LinkConfig| link.jitter.map_or(Duration::ZERO, |j| j.amplitude);
        self.hops.iter().flatten().map(|link| link.delay + jitter(link)).sum()
    }

    /// Maximum queueing delay of the worse direction without faults.
    pub fn queueing(&self) -> Duration {
        let wait = |link: &LinkConfig| match (link.queue_bytes, link.rate_bps) {
            (Some(bytes), Some(rate)) => bytes as f64 * 8.0 / rate as f64,
            _ => 0.0,
        };
        let directions = self.hops.iter().map(|direction| direction.iter().map(wait).sum());
        Duration::from_secs_f64(directions.fold(0.0, f64::max))
    }

    /// Fraction of the packets that arrive in the worse direction without faults.
    pub fn passing(&self) -> f64 {
        let link = |link: &LinkConfig| (1.0 - link.loss.mean()) * (1.0 - link.corrupt);
        let directions = self.hops.iter().map(|direction| direction.iter().map(link).product());
        directions.fold(1.0, f64::min)
    }

    /// Upper bound of the time in which few or no packets pass in a direction.
    pub fn blackout(&self) -> Duration {
        let severe = |fault: &&Fault| match fault.kind {
            FaultKind::Partition | FaultKind::Rate(_) | FaultKind::Restart(_) => true,
            FaultKind::Loss(p) | FaultKind::Corruption(p) => p > 0.3,
            FaultKind::Mtu(_) | FaultKind::Delay(_) => false,
            FaultKind::Duplicates(_) | FaultKind::Rebind => false,
        };
        let severe = self.faults.iter().filter(severe);
        severe.map(|fault| fault.until - fault.from).sum::<Duration>()
            + RELAY_SETUP_TIME * self.restarts()
    }

    /// Whether a NAT rebinding changes an address.
    fn has_rebinding(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::Rebind)
    }

    /// Number of relay restarts.
    pub fn restarts(&self) -> u32 {
        let restart = |fault: &&Fault| matches!(fault.kind, FaultKind::Restart(_));
        self.faults.iter().filter(restart).count() as u32
    }

    /// Throughput of all connections together, in bits per second, that the congestion controller
    /// sustains at the loss of the network: that of its minimum window or minimum rate.
    pub fn sustained_rate(&self) -> f64 {
        let most = self.rate() as f64 * self.passing() / 5.0;
        let round = (self.round_trip() + self.queueing()).as_secs_f64();
        most.min(match self.transport.congestion {
            CongestionAlgorithm::Cubic => PACKET * self.passing() / round,
            CongestionAlgorithm::Gcc => 2.0 * PACKET * self.passing(),
            CongestionAlgorithm::FixedRate { bits_per_second } => {
                bits_per_second as f64 * self.passing() / 3.0
            }
            // Of a burst, only what fits in the queue arrives.
            CongestionAlgorithm::None => {
                MIN_QUEUE as f64 * 8.0 / 2.0 * self.passing() / round.max(0.1)
            }
            // At high loss the controller may not see the rate of the path, and keeps its minimum
            // window.
            _ if self.passing() < 0.8 => 4.0 * PACKET * self.passing() / round,
            _ => most,
        })
    }

    /// Whether a connection may end by its idle time-out.
    pub fn idle_timeout_is_possible(&self) -> bool {
        let waits = self.queueing() * 4 + self.round_trip() * 8;
        self.blackout() * 2 + waits > self.transport.idle_timeout
    }

    /// Whether a loss burst may outlast the idle time-out of an end that only sends probes. The
    /// length of a burst is in packets and not in time. Probes are sent four times a second for
    /// 5 s, then once a second.
    pub fn bursts_may_outlast_idle_timeout(&self) -> bool {
        let (idle, fast) = (self.transport.idle_timeout.as_secs_f64(), 5.0);
        let packets = idle.min(fast) * 4.0 + (idle - fast).max(0.0);
        let lasts = |link: &LinkConfig| match link.loss {
            Loss::GilbertElliott { bad_to_good, .. } => (1.0 - bad_to_good).powf(packets) > 0.01,
            _ => false,
        };
        self.hops.iter().flatten().any(lasts)
    }

    /// Whether a handshake may fail. It has 10 s, with exponential backoff.
    pub fn handshake_may_fail(&self) -> bool {
        let waits = self.queueing() * 4 + self.round_trip() * 4;
        // The server takes a client for another one if its address changes during the handshake.
        let has_rebinding = self.has_rebinding();
        let lost = self.restarts() > 0;
        self.idle_timeout_is_possible()
            || has_rebinding
            || lost
            || self.blackout() * 2 + waits > Duration::from_secs(5)
    }

    /// Whether the network may corrupt packets.
    pub fn corrupts(&self) -> bool {
        let fault = |fault: &Fault| matches!(fault.kind, FaultKind::Corruption(_));
        self.hops.iter().flatten().any(|link| link.corrupt > 0.0) || self.faults.iter().any(fault)
    }

    /// Whether the delay of packets varies.
    pub fn delays(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Delay(_)))
            || self.hops.iter().flatten().any(|link| link.jitter.is_some())
    }

    /// Time limit for all connections to finish after the faults have ended. It is the time to send
    /// `bytes_left` at a fifth of what the path carries, 10 s for backoff, and 40 round trips with
    /// full queues for path discovery.
    pub fn time_limit(&self, bytes_left: u64) -> Duration {
        // An unreliable sender keeps messages until their deadline, so its budget limits its rate.
        let kept = self.transport.send_budget as f64 * 8.0 / self.transport.deadline.as_secs_f64();
        let share = self.sustained_rate().min(kept / 2.0);
        // A link may be down, be closed by its idle time-out, and be established again.
        let links = self.nodes.as_ref().map_or(Duration::ZERO, |_| {
            self.transport.idle_timeout + RELAY_SETUP_TIME * 4 + self.transport.handshake_timeout
        });
        let links = if self.faults.is_empty() { Duration::ZERO } else { links };
        links
            + Duration::from_secs_f64(bytes_left as f64 * 8.0 / share)
            + Duration::from_secs(10)
            + (self.round_trip() + self.queueing()) * 40
            + self.transport.deadline * 2
    }

    /// The congestion controller, mostly the default. A fixed rate or none is used only without
    /// relays.
    fn controller(&self, rng: &mut SeededRng, connections: u32) -> CongestionAlgorithm {
        let share = rng.uniform(0.2, 0.6) / f64::from(connections);
        let fixed = format!("fixed:{}", (self.rate() as f64 * share).max(8_000.0) as u64);
        // All flows of a relay share the window of a link. A window that shrinks at each loss would
        // be too small for them.
        let names: &[&str] = if self.nodes.is_some() && self.passing() < 0.98 {
            &["ltcc"]
        } else if self.nodes.is_some() {
            &["ltcc", "ltcc", "bbr3", "cubic", "gcc"]
        } else {
            &["ltcc", "ltcc", "ltcc", "bbr3", "cubic", "cubic", "gcc", "gcc", &fixed, "none"]
        };
        rng.pick(names).parse().unwrap_or_default()
    }

    fn connection(&self, rng: &mut SeededRng, count: u32) -> ConnectionPlan {
        let mode = rng.pick(&[
            Mode::Brtp,
            Mode::Brtp,
            Mode::Brctp,
            Mode::Brctp,
            Mode::Btp,
            Mode::Btp,
            Mode::Transparent,
        ]);
        // In bits per second, then in bytes per second for each connection.
        let rate = match self.transport.congestion {
            CongestionAlgorithm::Ltcc => self.rate() as f64,
            _ => (self.rate() as f64).min(self.sustained_rate() * 5.0),
        };
        let rate = rate / 8.0 / f64::from(count);
        // Each link of the simulation transmits all of the data.
        let most_total = 4e6 / self.hops[0].len() as f64;
        let both = rng.chance(0.5);
        let mut traffic = |sends: bool| {
            if !sends {
                return Traffic { messages: 0, sizes: (LABEL_LEN, LABEL_LEN), interval: None };
            }
            let least = if mode.is_reliable() && rng.chance(0.3) { 0 } else { LABEL_LEN };
            let total = (rate * rng.uniform(0.2, 3.0)).clamp(3_000.0, most_total);
            if mode.is_reliable() && rng.chance(0.5) {
                let most = rng.magnitude(20.0, (total / 2.0).min(300_000.0)) as usize;
                let messages = (total / (most as f64 / 2.0 + 24.0)).clamp(1.0, 20_000.0) as u64;
                return Traffic { messages, sizes: (least.min(most), most), interval: None };
            }
            let most = rng.magnitude(20.0, (rate / 4.0).clamp(30.0, 30_000.0)) as usize;
            let load = rate * rng.uniform(0.02, 0.4);
            let interval = (most as f64 + 60.0) / load;
            let messages = (self.faults_end.as_secs_f64() / interval).clamp(1.0, 4_000.0) as u64;
            let interval = Some(Duration::from_secs_f64(interval.min(0.5)));
            Traffic { messages, sizes: (least.min(most), most), interval }
        };
        let traffic = [traffic(true), traffic(both)];
        let faults_end = self.faults_end.as_secs_f64();
        let start = Duration::from_secs_f64(rng.uniform(0.0, faults_end / 2.0));
        let ending = if rng.chance(0.15) {
            let at = Duration::from_secs_f64(rng.uniform(0.0, faults_end));
            Ending::Close(usize::from(rng.chance(0.5)), start + at)
        } else if rng.chance(0.3) {
            Ending::Linger(rng.time(0.1, MAX_LINGER))
        } else {
            Ending::Finish
        };
        let mut reads = || rng.chance(0.15).then(|| rng.time(0.01, 0.5));
        ConnectionPlan { mode, start, traffic, ending, reads: [reads(), reads()] }
    }
}

fn transport(rng: &mut SeededRng) -> TransportConfig {
    let default = TransportConfig::default();
    TransportConfig {
        also_accepted: vec![Mode::Btp, Mode::Transparent, Mode::Brctp],
        deadline: rng.time(0.02, 2.0),
        goal: rng.pick(&[Goal::Latency, Goal::Balanced, Goal::Throughput]),
        max_message_size: 1 << 20,
        send_budget: rng.pick(&[default.send_budget, 256 << 10, 1 << 20]),
        receive_budget: rng.pick(&[default.receive_budget, 3 << 20, 4 << 20]),
        idle_timeout: rng.pick(&[
            Duration::from_secs(30),
            Duration::from_secs(30),
            Duration::from_secs(8),
        ]),
        keep_alive: rng.chance(0.3).then(|| rng.time(0.2, 3.0)),
        key_update_packets: rng.pick(&[default.key_update_packets, 64, 300, 2_000]),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_plans_and_different_seeds_different_ones() {
        let longest = Duration::from_secs(10);
        // The text contains the seed, so it is set to 0.
        let text = |seed| format!("{:?}", Plan { seed: 0, ..Plan::new(seed, longest) });
        let all: std::collections::BTreeSet<_> = (0..500).map(text).collect();
        assert_eq!(all.len(), 500);
        assert_eq!(text(7), text(7));
    }

    #[test]
    fn long_bursts_outlast_only_short_idle_timeouts() {
        let mut plan = Plan::new(1, Duration::from_secs(1));
        for (burst, idle, outlasts) in [(9.0, 8, true), (3.0, 8, false), (9.0, 30, false)] {
            let link = LinkConfig { loss: Loss::bursts(0.1, burst), ..LinkConfig::default() };
            plan.hops = [vec![LinkConfig::default()], vec![link]];
            plan.transport.idle_timeout = Duration::from_secs(idle);
            assert_eq!(plan.bursts_may_outlast_idle_timeout(), outlasts, "{burst} {idle}");
        }
    }

    #[test]
    fn links_have_their_original_configuration_after_the_faults() {
        let mut with = 0;
        for seed in 0..300 {
            let plan = Plan::new(seed, Duration::from_secs(10));
            assert_eq!(plan.links(plan.faults_end), plan.hops, "seed {seed}");
            for fault in &plan.faults {
                assert!(fault.from <= fault.until && fault.until <= plan.faults_end, "seed {seed}");
                if fault.from < fault.until && plan.links(fault.from) != plan.hops {
                    with += 1;
                }
            }
            assert!(plan.rate() >= 50_000 && plan.passing() > 0.5, "seed {seed}");
        }
        assert!(with > 300, "{with} faults");
    }
}
