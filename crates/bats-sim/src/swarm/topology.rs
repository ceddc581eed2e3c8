//! Random networks and faults.

use core::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::relay::RelayConfig;

use super::fault::{Fault, FaultKind};
use super::nodes::Nodes;
use super::rng::SeededRng;
use crate::links::FRAME_OVERHEAD;
use crate::relay_network::node_id;

/// Shortest queue in bytes: a few full frames.
pub(super) const MIN_QUEUE: usize = 4 * 1_514;
/// Minimum rate of a link without relays, in bits per second.
const MIN_RATE: f64 = 5e4;
/// Minimum rate of a link between nodes, which carries handshakes and repairs of several sessions.
const MIN_RELAY_LINK_RATE: f64 = 2e5;
/// Maximum one-way delay of all links together, in seconds.
const MAX_PATH_DELAY: f64 = 0.3;
/// Maximum loss of all links together, 0 to 1.
const MAX_PATH_LOSS: f64 = 0.35;

/// The kinds of impairments that occur in a network.
struct Impairments {
    /// Number of links in each direction.
    count: usize,
    lossy: bool,
    bursty: bool,
    jittery: bool,
    duplicating: bool,
    corrupting: bool,
    narrow: bool,
    asymmetric: bool,
}

impl Impairments {
    fn new(rng: &mut SeededRng, count: usize) -> Self {
        let [lossy, bursty, jittery, duplicating, corrupting, narrow, asymmetric] =
            [0.6, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3].map(|probability| rng.chance(probability));
        Self { count, lossy, bursty, jittery, duplicating, corrupting, narrow, asymmetric }
    }

    fn link(&self, rng: &mut SeededRng, rate: f64, delay: f64) -> LinkConfig {
        let queue = LinkConfig::queue_for(
            rate as u64,
            Duration::from_secs_f64(delay * 2.0),
            rng.magnitude(0.25, 4.0),
        );
        let p = rng.uniform(0.0, MAX_PATH_LOSS / self.count as f64);
        let loss = match (self.lossy, self.bursty) {
            (false, _) => Loss::None,
            (true, false) => Loss::Iid(p),
            (true, true) => Loss::bursts(p, rng.uniform(1.5, 10.0)),
        };
        let amplitude = Duration::from_secs_f64(delay * rng.uniform(0.0, 0.5));
        let jitter = Jitter { amplitude, reorder: rng.chance(0.5) };
        let share =
            |rng: &mut SeededRng, on: bool, most| if on { rng.uniform(0.0, most) } else { 0.0 };
        LinkConfig {
            rate_bps: Some(rate as u64),
            queue_bytes: Some(queue.max(MIN_QUEUE)),
            delay: Duration::from_secs_f64(delay),
            jitter: self.jittery.then_some(jitter),
            loss,
            duplicate: share(rng, self.duplicating, 0.1),
            corrupt: share(rng, self.corrupting, 0.05),
            mtu: self.narrow.then(|| rng.integer(1_200, 1_480) as usize),
            frame_overhead: FRAME_OVERHEAD,
            mark_threshold: rng.chance(0.1).then_some(queue.max(MIN_QUEUE) / 4),
            ..LinkConfig::default()
        }
    }

    /// The forward and the reverse direction of all links, in the same order.
    fn directions(&self, rng: &mut SeededRng, least: f64) -> [Vec<LinkConfig>; 2] {
        let rates: Vec<f64> = (0..self.count).map(|_| rng.magnitude(least, 1e9)).collect();
        let longest = MAX_PATH_DELAY / self.count as f64;
        let delays: Vec<f64> = (0..self.count).map(|_| rng.magnitude(1e-4, longest)).collect();
        let factor = if self.asymmetric { rng.magnitude(0.05, 20.0) } else { 1.0 };
        [1.0, factor].map(|factor| {
            let pairs = rates.iter().zip(&delays);
            pairs.map(|(&rate, &delay)| self.link(rng, (rate * factor).max(least), delay)).collect()
        })
    }
}

/// A chain of links that only forward.
pub(super) fn chain(rng: &mut SeededRng) -> [Vec<LinkConfig>; 2] {
    let count = rng.pick(&[1, 1, 1, 2, 3, 4]);
    let [up, mut down] = Impairments::new(rng, count).directions(rng, MIN_RATE);
    down.reverse();
    [up, down]
}

/// Up to three relays in a row, with up to three parallel links between neighbours. Without a
/// relay, parallel links between the ends.
pub(super) fn nodes(rng: &mut SeededRng) -> ([Vec<LinkConfig>; 2], Nodes) {
    let relays = rng.pick(&[0, 1, 1, 2, 2, 3]);
    let parallel = relays == 0 || rng.chance(0.4);
    let mut edges = Vec::new();
    for node in 0..=relays {
        let links = match (relays, parallel) {
            (0, _) => rng.integer(2, 3),
            (_, true) => rng.pick(&[1, 1, 2, 3]),
            (_, false) => 1,
        };
        edges.extend((0..links).map(|_| (node, node + 1)));
    }
    let relay = RelayConfig {
        recoding: rng.chance(0.8),
        total_bytes: rng.pick(&[64 << 20, 8 << 20, 2 << 20]),
        idle_timeout: Duration::from_secs(rng.pick(&[5, 10, 30])),
        ..RelayConfig::new(node_id(0))
    };
    let directions = Impairments::new(rng, edges.len()).directions(rng, MIN_RELAY_LINK_RATE);
    (directions, Nodes { edges, relay })
}

/// The faults of a network, all of which end by `faults_end`. Each kind of fault occurs in some
/// runs only.
pub(super) fn faults(
    rng: &mut SeededRng,
    hops: &[Vec<LinkConfig>; 2],
    nodes: Option<&Nodes>,
    faults_end: Duration,
) -> Vec<Fault> {
    let mut kinds: Vec<u32> = (0..9).filter(|_| rng.chance(0.4)).collect();
    let relays = nodes.map_or(0, Nodes::relays);
    if relays > 0 && rng.chance(0.5) {
        kinds.push(9);
    }
    if kinds.is_empty() {
        return Vec::new();
    }
    let faults_end = faults_end.as_secs_f64();
    let count = rng.integer(1, 6);
    let mut restarted = Vec::new();
    let fault = |_| {
        let from = rng.uniform(0.0, faults_end);
        let length = rng.magnitude(0.02, 6.0);
        let one_direction = |rng: &mut SeededRng| Some(rng.integer(0, 1) as usize);
        let (kind, direction) = match rng.pick(&kinds) {
            0 => (FaultKind::Partition, None),
            1 => (FaultKind::Partition, one_direction(rng)),
            2 => (FaultKind::Rate(rng.magnitude(0.02, 2.0)), None),
            3 => (FaultKind::Mtu(rng.integer(1_200, 1_450) as usize), None),
            4 => (FaultKind::Delay(rng.time(1e-4, 0.5)), one_direction(rng)),
            5 => {
                let loss = FaultKind::Loss(rng.uniform(0.1, 0.9));
                (loss, if rng.chance(0.5) { one_direction(rng) } else { None })
            }
            6 => (FaultKind::Duplicates(rng.uniform(0.1, 0.9)), None),
            7 => (FaultKind::Corruption(rng.uniform(0.05, 0.5)), None),
            8 => (FaultKind::Rebind, None),
            _ => (FaultKind::Restart(rng.integer(1, relays as u64) as usize), None),
        };
        let until = (from + length).min(faults_end);
        let fault = Fault {
            from: Duration::from_secs_f64(from),
            until: Duration::from_secs_f64(if kind == FaultKind::Rebind { from } else { until }),
            direction,
            hop: rng.integer(0, hops[0].len() as u64 - 1) as usize,
            kind,
        };
        // A node restarts only once: a second restart would use the same random numbers again.
        let again = matches!(kind, FaultKind::Restart(node) if restarted.contains(&node));
        if let FaultKind::Restart(node) = kind {
            restarted.push(node);
        }
        (!again).then_some(fault)
    };
    (0..count).filter_map(fault).collect()
}
