//! What a seed decides.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::config::Mode;
use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, Goal, TransportConfig};

use super::draw::Draw;
use super::model::NAMED;
use super::topology::{self, LEAST_QUEUE};

/// One run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What all of this follows from.
    pub seed: u64,
    /// The links from the client to the server and back, one to four each, in the order of the way;
    /// between nodes those of `nodes.edges`, both ways in their order.
    pub hops: [Vec<LinkConfig>; 2],
    /// Nodes between which the links lie; without, links only forward.
    pub nodes: Option<Nodes>,
    /// What happens to them, and until when.
    pub faults: Vec<Fault>,
    /// When the last fault ends and the second phase begins.
    pub calm: Duration,
    /// Limits and behaviour of both ends; modes stand in the connections.
    pub transport: TransportConfig,
    /// The server asks everyone for a token first.
    pub retry: bool,
    /// Connections from the client to the server.
    pub connections: Vec<ConnectionPlan>,
}

/// Client, relays and server.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// The nodes that each link joins; 0 is the client, the largest number the server.
    pub edges: Vec<(usize, usize)>,
    /// What all of them carry with.
    pub relay: RelayConfig,
}

impl Nodes {
    /// The server.
    pub fn last(&self) -> usize {
        self.edges.iter().map(|&(a, b)| a.max(b)).max().unwrap_or(0)
    }

    /// Number of relays.
    pub fn relays(&self) -> usize {
        self.last().saturating_sub(1)
    }

    /// The links of a node.
    pub fn of(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let edges = self.edges.iter().enumerate();
        edges.filter(move |(_, (a, b))| *a == node || *b == node).map(|(link, _)| link)
    }
}

/// What is wrong with a link for a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fault {
    /// When it begins.
    pub from: Duration,
    /// When it ends.
    pub until: Duration,
    /// Which direction: 0 to the server, 1 back, `None` both.
    pub way: Option<usize>,
    /// Which link of the way.
    pub hop: usize,
    /// What it is.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FaultKind {
    /// Nothing passes.
    Partition,
    /// The rate is this share of what it was.
    Rate(f64),
    /// Nothing longer than this passes, in bytes of UDP payload.
    Mtu(usize),
    /// The delay is another.
    Delay(Duration),
    /// So much is lost.
    Loss(f64),
    /// So much arrives twice.
    Duplicates(f64),
    /// So much is altered.
    Corruption(f64),
    /// At its beginning a NAT gives the client of the link, or of all links, another address.
    Rebind,
    /// This relay is dead, and begins at the end without any memory.
    Restart(usize),
}

/// What one connection does.
#[derive(Clone, Debug)]
pub struct ConnectionPlan {
    /// How it treats messages.
    pub mode: Mode,
    /// When the client begins it.
    pub start: Duration,
    /// What the client and the server send.
    pub traffic: [Traffic; 2],
    /// How it ends.
    pub ending: Ending,
    /// How often the client and the server read; `None` for at once.
    pub reads: [Option<Duration>; 2],
}

/// What one end sends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Messages.
    pub messages: u64,
    /// Least and most bytes of a message.
    pub sizes: (usize, usize),
    /// Time between two; `None` for as fast as they are taken.
    pub interval: Option<Duration>,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    /// Both finish when they have sent all, and the client closes when both ends are seen.
    Finish,
    /// The same, and the client waits so long before it closes.
    Linger(Duration),
    /// One (0 client, 1 server) closes at this time, whatever is under way.
    Close(usize, Duration),
}

/// The longest that a connection stays open when all is done, in seconds.
const LONGEST_LINGER: f64 = 4.0;
/// Bits of a full packet.
const PACKET: f64 = 1_472.0 * 8.0;
/// Time that the links of a relay have to come up again.
const JOINING: Duration = Duration::from_secs(4);

impl Plan {
    /// What `seed` decides, with faults during up to `longest`.
    pub fn new(seed: u64, longest: Duration) -> Self {
        let mut draw = Draw::new(seed);
        let (hops, nodes) = if draw.chance(0.5) {
            let (hops, nodes) = topology::nodes(&mut draw);
            (hops, Some(nodes))
        } else {
            (topology::chain(&mut draw), None)
        };
        let calm = Duration::from_secs_f64(longest.as_secs_f64() * draw.uniform(0.2, 1.0));
        let faults = topology::faults(&mut draw, &hops, nodes.as_ref(), calm);
        let transport = transport(&mut draw);
        let retry = nodes.is_none() && draw.chance(0.2);
        let connections = Vec::new();
        let mut plan = Self { seed, hops, nodes, faults, calm, transport, retry, connections };
        if plan.moves() {
            // A client that only waits, and has asked in vain before it moved, is found by chance.
            plan.transport.keep_alive.get_or_insert(Duration::from_secs(1));
        }
        // A Retry packet has no seal: a client believes an altered one and fails.
        plan.retry &= !plan.corrupts();
        let count = draw.pick(&[1, 1, 2, 3, 4]);
        plan.transport.congestion = plan.controller(&mut draw, count);
        plan.connections = (0..count).map(|_| plan.connection(&mut draw, count)).collect();
        plan
    }

    /// The links at a time.
    pub fn links(&self, at: Duration) -> [Vec<LinkConfig>; 2] {
        let mut hops = self.hops.clone();
        for fault in self.faults.iter().filter(|fault| fault.from <= at && at < fault.until) {
            for (way, links) in hops.iter_mut().enumerate() {
                if let (FaultKind::Restart(node), Some(nodes)) = (fault.kind, &self.nodes) {
                    nodes.of(node).for_each(|hop| links[hop].black_hole = true);
                } else if fault.way.is_none_or(|only| only == way) {
                    let hop = fault.hop.min(links.len() - 1);
                    fault.kind.apply(&mut links[hop]);
                }
            }
        }
        hops
    }

    /// Times at which links change, in order.
    pub fn changes(&self) -> Vec<Duration> {
        let mut times: Vec<_> = self.faults.iter().flat_map(|f| [f.from, f.until]).collect();
        times.sort_unstable();
        times.dedup();
        times
    }

    /// Bits per second of the slowest link of both ways without faults.
    pub fn rate(&self) -> u64 {
        self.hops.iter().flatten().filter_map(|link| link.rate_bps).min().unwrap_or(1_000_000)
    }

    /// Round trip without faults and queues.
    pub fn round_trip(&self) -> Duration {
        let jitter = |link: &LinkConfig| link.jitter.map_or(Duration::ZERO, |j| j.amplitude);
        self.hops.iter().flatten().map(|link| link.delay + jitter(link)).sum()
    }

    /// Longest time that packets wait in queues of one way without faults.
    pub fn queueing(&self) -> Duration {
        let wait = |link: &LinkConfig| match (link.queue_bytes, link.rate_bps) {
            (Some(bytes), Some(rate)) => bytes as f64 * 8.0 / rate as f64,
            _ => 0.0,
        };
        let ways = self.hops.iter().map(|way| way.iter().map(wait).sum());
        Duration::from_secs_f64(ways.fold(0.0, f64::max))
    }

    /// Share of the packets of the worse way that arrive without faults.
    pub fn passing(&self) -> f64 {
        let link = |link: &LinkConfig| (1.0 - link.loss.mean()) * (1.0 - link.corrupt);
        let ways = self.hops.iter().map(|way| way.iter().map(link).product());
        ways.fold(1.0, f64::min)
    }

    /// Time during which hardly anything passes in one direction, at most.
    pub fn blackout(&self) -> Duration {
        let severe = |fault: &&Fault| match fault.kind {
            FaultKind::Partition | FaultKind::Rate(_) | FaultKind::Restart(_) => true,
            FaultKind::Loss(p) | FaultKind::Corruption(p) => p > 0.3,
            FaultKind::Mtu(_) | FaultKind::Delay(_) => false,
            FaultKind::Duplicates(_) | FaultKind::Rebind => false,
        };
        let severe = self.faults.iter().filter(severe);
        severe.map(|fault| fault.until - fault.from).sum::<Duration>() + JOINING * self.restarts()
    }

    /// Whether a client gets another address.
    fn moves(&self) -> bool {
        self.faults.iter().any(|fault| fault.kind == FaultKind::Rebind)
    }

    /// Relays that come back without memory.
    pub fn restarts(&self) -> u32 {
        let restart = |fault: &&Fault| matches!(fault.kind, FaultKind::Restart(_));
        self.faults.iter().filter(restart).count() as u32
    }

    /// Bits per second of all connections together that the controller keeps up when the network
    /// loses what it loses: its least window, or its least rate.
    pub fn share(&self) -> f64 {
        let most = self.rate() as f64 * self.passing() / 5.0;
        let round = (self.round_trip() + self.queueing()).as_secs_f64();
        most.min(match self.transport.congestion {
            CongestionAlgorithm::Cubic => PACKET * self.passing() / round,
            CongestionAlgorithm::Gcc => 2.0 * PACKET * self.passing(),
            CongestionAlgorithm::FixedRate { bits_per_second } => {
                bits_per_second as f64 * self.passing() / 3.0
            }
            // Of a burst arrives what the queue holds.
            CongestionAlgorithm::None => {
                LEAST_QUEUE as f64 * 8.0 / 2.0 * self.passing() / round.max(0.1)
            }
            // Much loss hides what the path carries: the least window remains.
            _ if self.passing() < 0.8 => 4.0 * PACKET * self.passing() / round,
            _ => most,
        })
    }

    /// Whether a connection may be given up for silence.
    pub fn may_die(&self) -> bool {
        let waits = self.queueing() * 4 + self.round_trip() * 8;
        self.blackout() * 2 + waits > self.transport.idle_timeout
    }

    /// Whether a burst of losses may outlast the idle time-out of an end that has nothing but questions
    /// to send. Bursts last so many packets, however few are sent: they ask four times a second for 5 s,
    /// and once a second then.
    pub fn may_be_silenced(&self) -> bool {
        let (idle, fast) = (self.transport.idle_timeout.as_secs_f64(), 5.0);
        let packets = idle.min(fast) * 4.0 + (idle - fast).max(0.0);
        let lasts = |link: &LinkConfig| match link.loss {
            Loss::GilbertElliott { bad_to_good, .. } => (1.0 - bad_to_good).powf(packets) > 0.01,
            _ => false,
        };
        self.hops.iter().flatten().any(lasts)
    }

    /// Whether a handshake may fail: it has 10 s, and backs off.
    pub fn may_fail(&self) -> bool {
        let waits = self.queueing() * 4 + self.round_trip() * 4;
        // A client that moves before it is known is another one.
        let moves = self.moves();
        let lost = self.restarts() > 0;
        self.may_die() || moves || lost || self.blackout() * 2 + waits > Duration::from_secs(5)
    }

    /// Whether anything alters packets.
    pub fn corrupts(&self) -> bool {
        let fault = |fault: &Fault| matches!(fault.kind, FaultKind::Corruption(_));
        self.hops.iter().flatten().any(|link| link.corrupt > 0.0) || self.faults.iter().any(fault)
    }

    /// Whether packets may come much later than others.
    pub fn delays(&self) -> bool {
        self.faults.iter().any(|fault| matches!(fault.kind, FaultKind::Delay(_)))
            || self.hops.iter().flatten().any(|link| link.jitter.is_some())
    }

    /// Time after which everything must have finished, once there are no faults any more: what is
    /// left to send at a fifth of what the path carries, ten seconds for what was backed off, and
    /// round trips with full queues for what has to be found out again.
    pub fn patience(&self, bytes_left: u64) -> Duration {
        // A sender of timely messages keeps what it sent until the deadline: its budget is a rate.
        let kept = self.transport.send_budget as f64 * 8.0 / self.transport.deadline.as_secs_f64();
        let share = self.share().min(kept / 2.0);
        // A link may be dead, be found so after its silence, and come up again.
        let links = self.nodes.as_ref().map_or(Duration::ZERO, |_| {
            self.transport.idle_timeout + JOINING * 4 + self.transport.handshake_timeout
        });
        let links = if self.faults.is_empty() { Duration::ZERO } else { links };
        links
            + Duration::from_secs_f64(bytes_left as f64 * 8.0 / share)
            + Duration::from_secs(10)
            + (self.round_trip() + self.queueing()) * 40
            + self.transport.deadline * 2
    }

    /// What controls congestion: mostly the default; no control, or a rate of one's own, only on links
    /// that nobody else decides about.
    fn controller(&self, draw: &mut Draw, connections: u32) -> CongestionAlgorithm {
        let share = draw.uniform(0.2, 0.6) / f64::from(connections);
        let fixed = format!("fixed:{}", (self.rate() as f64 * share).max(8_000.0) as u64);
        // Relays share one window among all that they carry, and one that shrinks at each loss is
        // too little for that.
        let names: &[&str] = if self.nodes.is_some() && self.passing() < 0.98 {
            &["bbr"]
        } else if self.nodes.is_some() {
            &["bbr", "bbr", "bbr", "cubic", "gcc"]
        } else {
            &["bbr", "bbr", "bbr", "bbr", "cubic", "cubic", "gcc", "gcc", &fixed, "none"]
        };
        draw.pick(names).parse().unwrap_or_default()
    }

    fn connection(&self, draw: &mut Draw, count: u32) -> ConnectionPlan {
        let mode = draw.pick(&[
            Mode::Brtp,
            Mode::Brtp,
            Mode::Brctp,
            Mode::Brctp,
            Mode::Btp,
            Mode::Btp,
            Mode::Transparent,
        ]);
        // In bytes per second, for each connection.
        let rate = match self.transport.congestion {
            CongestionAlgorithm::Bbr => self.rate() as f64,
            _ => (self.rate() as f64).min(self.share() * 5.0),
        };
        let rate = rate / 8.0 / f64::from(count);
        // Each link carries all of it.
        let most_total = 4e6 / self.hops[0].len() as f64;
        let both = draw.chance(0.5);
        let mut traffic = |sends: bool| {
            if !sends {
                return Traffic { messages: 0, sizes: (NAMED, NAMED), interval: None };
            }
            let least = if mode.is_reliable() && draw.chance(0.3) { 0 } else { NAMED };
            let total = (rate * draw.uniform(0.2, 3.0)).clamp(3_000.0, most_total);
            if mode.is_reliable() && draw.chance(0.5) {
                let most = draw.magnitude(20.0, (total / 2.0).min(300_000.0)) as usize;
                let messages = (total / (most as f64 / 2.0 + 24.0)).clamp(1.0, 20_000.0) as u64;
                return Traffic { messages, sizes: (least.min(most), most), interval: None };
            }
            let most = draw.magnitude(20.0, (rate / 4.0).clamp(30.0, 30_000.0)) as usize;
            let load = rate * draw.uniform(0.02, 0.4);
            let interval = (most as f64 + 60.0) / load;
            let messages = (self.calm.as_secs_f64() / interval).clamp(1.0, 4_000.0) as u64;
            let interval = Some(Duration::from_secs_f64(interval.min(0.5)));
            Traffic { messages, sizes: (least.min(most), most), interval }
        };
        let traffic = [traffic(true), traffic(both)];
        let calm = self.calm.as_secs_f64();
        let start = Duration::from_secs_f64(draw.uniform(0.0, calm / 2.0));
        let ending = if draw.chance(0.15) {
            let at = Duration::from_secs_f64(draw.uniform(0.0, calm));
            Ending::Close(usize::from(draw.chance(0.5)), start + at)
        } else if draw.chance(0.3) {
            Ending::Linger(draw.time(0.1, LONGEST_LINGER))
        } else {
            Ending::Finish
        };
        let mut reads = || draw.chance(0.15).then(|| draw.time(0.01, 0.5));
        ConnectionPlan { mode, start, traffic, ending, reads: [reads(), reads()] }
    }
}

impl FaultKind {
    fn apply(self, link: &mut LinkConfig) {
        match self {
            Self::Partition => link.black_hole = true,
            // A packet must pass within a second even so.
            Self::Rate(share) => {
                link.rate_bps =
                    link.rate_bps.map(|rate| ((rate as f64 * share) as u64).max(20_000));
            }
            Self::Mtu(bytes) => {
                link.mtu = Some(link.mtu.map_or(bytes, |mtu| mtu.min(bytes)));
            }
            Self::Delay(delay) => link.delay = delay,
            Self::Loss(p) => link.loss = Loss::Iid(p),
            Self::Duplicates(share) => link.duplicate = share,
            Self::Corruption(share) => link.corrupt = share,
            // A rebinding is a moment, and a restart concerns all links of the relay.
            Self::Rebind | Self::Restart(_) => {}
        }
    }
}

fn transport(draw: &mut Draw) -> TransportConfig {
    let default = TransportConfig::default();
    TransportConfig {
        also_accepted: vec![Mode::Btp, Mode::Transparent, Mode::Brctp],
        deadline: draw.time(0.02, 2.0),
        goal: draw.pick(&[Goal::Latency, Goal::Balanced, Goal::Throughput]),
        max_message_size: 1 << 20,
        send_budget: draw.pick(&[default.send_budget, 256 << 10, 1 << 20]),
        receive_budget: draw.pick(&[default.receive_budget, 3 << 20, 4 << 20]),
        idle_timeout: draw.pick(&[
            Duration::from_secs(30),
            Duration::from_secs(30),
            Duration::from_secs(8),
        ]),
        keep_alive: draw.chance(0.3).then(|| draw.time(0.2, 3.0)),
        key_update_packets: draw.pick(&[default.key_update_packets, 64, 300, 2_000]),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_decides_everything_and_seeds_differ() {
        let longest = Duration::from_secs(10);
        // The seed itself stands in the text.
        let text = |seed| format!("{:?}", Plan { seed: 0, ..Plan::new(seed, longest) });
        let all: std::collections::BTreeSet<_> = (0..500).map(text).collect();
        assert_eq!(all.len(), 500);
        assert_eq!(text(7), text(7));
    }

    #[test]
    fn a_long_burst_silences_short_time_outs_only() {
        let mut plan = Plan::new(1, Duration::from_secs(1));
        for (burst, idle, silenced) in [(9.0, 8, true), (3.0, 8, false), (9.0, 30, false)] {
            let link = LinkConfig { loss: Loss::bursts(0.1, burst), ..LinkConfig::default() };
            plan.hops = [vec![LinkConfig::default()], vec![link]];
            plan.transport.idle_timeout = Duration::from_secs(idle);
            assert_eq!(plan.may_be_silenced(), silenced, "{burst} {idle}");
        }
    }

    #[test]
    fn faults_end_and_links_are_whole_again() {
        let mut with = 0;
        for seed in 0..300 {
            let plan = Plan::new(seed, Duration::from_secs(10));
            assert_eq!(plan.links(plan.calm), plan.hops, "seed {seed}");
            for fault in &plan.faults {
                assert!(fault.from <= fault.until && fault.until <= plan.calm, "seed {seed}");
                if fault.from < fault.until && plan.links(fault.from) != plan.hops {
                    with += 1;
                }
            }
            assert!(plan.rate() >= 50_000 && plan.passing() > 0.5, "seed {seed}");
        }
        assert!(with > 300, "{with} faults");
    }
}
