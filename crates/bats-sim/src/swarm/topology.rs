//! Networks and their faults, as a seed decides them.

use core::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};
use bats_proto::relay::RelayConfig;

use super::draw::Draw;
use super::plan::{Fault, FaultKind, Nodes};
use crate::line::node_id;
use crate::links::FRAME_OVERHEAD;

/// Bytes of the shortest queue: a few full frames.
pub(super) const LEAST_QUEUE: usize = 4 * 1_514;
/// Least bits per second of a link that only forwards, and of one that carries the handshakes and
/// repairs of several sessions.
const LEAST_RATE: f64 = 5e4;
const LEAST_CARRYING_RATE: f64 = 2e5;
/// Seconds of delay of all links of a way together, at most.
const LONGEST_WAY: f64 = 0.3;
/// Loss of all links of a way together, at most.
const WORST_WAY: f64 = 0.35;

/// Which troubles a network has at all.
struct Troubles {
    /// Links of a way.
    count: usize,
    lossy: bool,
    bursty: bool,
    jittery: bool,
    doubling: bool,
    corrupting: bool,
    narrow: bool,
    asymmetric: bool,
}

impl Troubles {
    fn new(draw: &mut Draw, count: usize) -> Self {
        let [lossy, bursty, jittery, doubling, corrupting, narrow, asymmetric] =
            [0.6, 0.4, 0.4, 0.3, 0.3, 0.3, 0.3].map(|probability| draw.chance(probability));
        Self { count, lossy, bursty, jittery, doubling, corrupting, narrow, asymmetric }
    }

    fn link(&self, draw: &mut Draw, rate: f64, delay: f64) -> LinkConfig {
        let queue = LinkConfig::queue_for(
            rate as u64,
            Duration::from_secs_f64(delay * 2.0),
            draw.magnitude(0.25, 4.0),
        );
        let p = draw.uniform(0.0, WORST_WAY / self.count as f64);
        let loss = match (self.lossy, self.bursty) {
            (false, _) => Loss::None,
            (true, false) => Loss::Iid(p),
            (true, true) => Loss::bursts(p, draw.uniform(1.5, 10.0)),
        };
        let amplitude = Duration::from_secs_f64(delay * draw.uniform(0.0, 0.5));
        let jitter = Jitter { amplitude, reorder: draw.chance(0.5) };
        let share =
            |draw: &mut Draw, on: bool, most| if on { draw.uniform(0.0, most) } else { 0.0 };
        LinkConfig {
            rate_bps: Some(rate as u64),
            queue_bytes: Some(queue.max(LEAST_QUEUE)),
            delay: Duration::from_secs_f64(delay),
            jitter: self.jittery.then_some(jitter),
            loss,
            duplicate: share(draw, self.doubling, 0.1),
            corrupt: share(draw, self.corrupting, 0.05),
            mtu: self.narrow.then(|| draw.integer(1_200, 1_480) as usize),
            frame_overhead: FRAME_OVERHEAD,
            mark_threshold: draw.chance(0.1).then_some(queue.max(LEAST_QUEUE) / 4),
            ..LinkConfig::default()
        }
    }

    /// Links there and back, in the same order.
    fn ways(&self, draw: &mut Draw, least: f64) -> [Vec<LinkConfig>; 2] {
        let rates: Vec<f64> = (0..self.count).map(|_| draw.magnitude(least, 1e9)).collect();
        let longest = LONGEST_WAY / self.count as f64;
        let delays: Vec<f64> = (0..self.count).map(|_| draw.magnitude(1e-4, longest)).collect();
        let factor = if self.asymmetric { draw.magnitude(0.05, 20.0) } else { 1.0 };
        [1.0, factor].map(|factor| {
            let pairs = rates.iter().zip(&delays);
            pairs
                .map(|(&rate, &delay)| self.link(draw, (rate * factor).max(least), delay))
                .collect()
        })
    }
}

/// A chain of links that only forward.
pub(super) fn chain(draw: &mut Draw) -> [Vec<LinkConfig>; 2] {
    let count = draw.pick(&[1, 1, 1, 2, 3, 4]);
    let [up, mut down] = Troubles::new(draw, count).ways(draw, LEAST_RATE);
    down.reverse();
    [up, down]
}

/// Up to three relays in a row, with up to three links from each node to the next; without a relay,
/// links side by side between the ends.
pub(super) fn nodes(draw: &mut Draw) -> ([Vec<LinkConfig>; 2], Nodes) {
    let relays = draw.pick(&[0, 1, 1, 2, 2, 3]);
    let parallel = relays == 0 || draw.chance(0.4);
    let mut edges = Vec::new();
    for node in 0..=relays {
        let links = match (relays, parallel) {
            (0, _) => draw.integer(2, 3),
            (_, true) => draw.pick(&[1, 1, 2, 3]),
            (_, false) => 1,
        };
        edges.extend((0..links).map(|_| (node, node + 1)));
    }
    let relay = RelayConfig {
        recoding: draw.chance(0.8),
        flow_bytes: draw.pick(&[8 << 20, 1 << 20]),
        total_bytes: draw.pick(&[64 << 20, 8 << 20, 2 << 20]),
        idle_timeout: Duration::from_secs(draw.pick(&[5, 10, 30])),
        ..RelayConfig::new(node_id(0))
    };
    let ways = Troubles::new(draw, edges.len()).ways(draw, LEAST_CARRYING_RATE);
    (ways, Nodes { edges, relay })
}

/// What happens to a network until `calm`: each kind of fault with a probability, or not at all.
pub(super) fn faults(
    draw: &mut Draw,
    hops: &[Vec<LinkConfig>; 2],
    nodes: Option<&Nodes>,
    calm: Duration,
) -> Vec<Fault> {
    let mut kinds: Vec<u32> = (0..9).filter(|_| draw.chance(0.4)).collect();
    let relays = nodes.map_or(0, Nodes::relays);
    if relays > 0 && draw.chance(0.5) {
        kinds.push(9);
    }
    if kinds.is_empty() {
        return Vec::new();
    }
    let calm = calm.as_secs_f64();
    let count = draw.integer(1, 6);
    let mut restarted = Vec::new();
    let fault = |_| {
        let from = draw.uniform(0.0, calm);
        let length = draw.magnitude(0.02, 6.0);
        let one_way = |draw: &mut Draw| Some(draw.integer(0, 1) as usize);
        let (kind, way) = match draw.pick(&kinds) {
            0 => (FaultKind::Partition, None),
            1 => (FaultKind::Partition, one_way(draw)),
            2 => (FaultKind::Rate(draw.magnitude(0.02, 2.0)), None),
            3 => (FaultKind::Mtu(draw.integer(1_200, 1_450) as usize), None),
            4 => (FaultKind::Delay(draw.time(1e-4, 0.5)), one_way(draw)),
            5 => {
                let loss = FaultKind::Loss(draw.uniform(0.1, 0.9));
                (loss, if draw.chance(0.5) { one_way(draw) } else { None })
            }
            6 => (FaultKind::Duplicates(draw.uniform(0.1, 0.9)), None),
            7 => (FaultKind::Corruption(draw.uniform(0.05, 0.5)), None),
            8 => (FaultKind::Rebind, None),
            _ => (FaultKind::Restart(draw.integer(1, relays as u64) as usize), None),
        };
        let until = (from + length).min(calm);
        let fault = Fault {
            from: Duration::from_secs_f64(from),
            until: Duration::from_secs_f64(if kind == FaultKind::Rebind { from } else { until }),
            way,
            hop: draw.integer(0, hops[0].len() as u64 - 1) as usize,
            kind,
        };
        // Who comes back a second time would remember the first: its random choices are the same.
        let again = matches!(kind, FaultKind::Restart(node) if restarted.contains(&node));
        if let FaultKind::Restart(node) = kind {
            restarted.push(node);
        }
        (!again).then_some(fault)
    };
    (0..count).filter_map(fault).collect()
}
