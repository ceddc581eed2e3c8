//! Multipath bulk transfer: total goodput, and the effect of the failure of one path.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, TransportConfig};
use serde::Serialize;

use crate::hops::{Hops, HopsOutcome};
use crate::links::{self, capacity};
use crate::matrix::Cell;
use crate::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};

/// Failure of a link.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Index of the link.
    pub link: usize,
    /// Start of the failure, from the established session on.
    pub at: Duration,
    /// End of the failure; `None` if it is permanent.
    pub until: Option<Duration>,
}

/// A bulk transfer over parallel links or paths between two ends.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Name of the scenario.
    pub name: &'static str,
    /// The two nodes and the configuration of each link. Node 0 is the source, the node with the
    /// largest index the destination.
    pub links: Vec<(usize, usize, LinkConfig)>,
    /// The link failure, if any.
    pub cut: Option<Cut>,
    /// Whether the session is a direct one between neighbours, and no end-to-end session.
    pub is_direct: bool,
    /// Duration of the transfer.
    pub duration: Duration,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct PathsFigures {
    /// Name of the scenario.
    pub name: &'static str,
    /// Goodput in Mbit/s after the first third of the run, or in the last third if a link is cut.
    pub goodput_mbps: f64,
    /// Sum of (1 - p) C over the paths that work in that time, in Mbit/s of UDP payload in full
    /// frames. A path of several links counts with the smallest.
    pub bound_mbps: f64,
    /// Goodput divided by the bound.
    pub share: f64,
    /// Lower bound of the share.
    pub share_bound: f64,
    /// Longest time without progress, in milliseconds.
    pub longest_gap_ms: f64,
    /// Upper bound of that time in milliseconds, if a link is cut.
    pub gap_bound_ms: Option<f64>,
    /// Repairs sent by the source, per cent of its symbols.
    pub end_repairs_percent: f64,
    /// Coded packets that were not innovative for the destination, per cent.
    pub non_innovative_percent: f64,
}

/// Required share of the summed capacity of the paths.
const MIN_SHARE: f64 = 0.9;

impl PathsFigures {
    /// Whether the share meets its bound.
    pub fn has_share(&self) -> bool {
        self.share >= self.share_bound
    }

    /// Whether the longest gap meets its bound.
    pub fn is_steady(&self) -> bool {
        self.gap_bound_ms.is_none_or(|bound| self.longest_gap_ms <= bound)
    }

    /// Whether all bounds are met.
    pub fn is_met(&self) -> bool {
        self.has_share() && self.is_steady()
    }
}

/// A link with a queue of one BDP.
pub fn link(rate_mbps: f64, one_way_ms: u64, loss: f64) -> LinkConfig {
    links::queued((rate_mbps * 1e6) as u64, Duration::from_millis(one_way_ms), 1.0, loss)
}

impl Paths {
    /// Parallel links between two nodes.
    pub fn parallel(name: &'static str, links: &[LinkConfig]) -> Self {
        Self {
            name,
            links: links.iter().map(|link| (0, 1, link.clone())).collect(),
            cut: None,
            is_direct: false,
            duration: Duration::from_secs(15),
            seed: 1,
        }
    }

    /// Two paths of two links each, over one relay each.
    pub fn diamond(name: &'static str, paths: &[[LinkConfig; 2]; 2]) -> Self {
        let [[a, b], [c, d]] = paths.clone();
        Self {
            links: vec![(0, 1, a), (1, 3, b), (0, 2, c), (2, 3, d)],
            ..Self::parallel(name, &[])
        }
    }

    /// The same scenario with a link that fails at second `at` and recovers at second `until`.
    #[must_use]
    pub fn with_cut(mut self, link: usize, at: u64, until: Option<u64>) -> Self {
        let [at, until] = [Some(at), until].map(|second| second.map(Duration::from_secs));
        self.cut = Some(Cut { link, at: at.unwrap_or_default(), until });
        self
    }

    /// The same scenario with a direct session. The ends must be neighbours.
    #[must_use]
    pub fn with_direct_session(self) -> Self {
        Self { is_direct: true, ..self }
    }

    /// Whether the ends are neighbours on all links.
    fn has_neighbours(&self) -> bool {
        self.links.iter().all(|&(from, to, _)| (from, to) == (0, 1))
    }

    /// The scenarios whose ends are neighbours, with direct sessions: see [`Paths::scenarios`].
    pub fn direct_scenarios(seconds: Duration, seed: u64) -> Vec<Self> {
        let scenarios = Self::scenarios(seconds, seed).into_iter();
        scenarios.filter(Self::has_neighbours).map(Self::with_direct_session).collect()
    }

    /// The scenarios of command `paths`: paths with different rates, delays and losses, parallel
    /// relays, and path failures.
    pub fn scenarios(seconds: Duration, seed: u64) -> Vec<Self> {
        let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
        let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
        let third = seconds.as_secs() / 3;
        let runs = vec![
            Self::parallel("one path of 100 Mbit/s, 10 ms", core::slice::from_ref(&fast)),
            Self::parallel("two of 50 Mbit/s, 20 ms", &two),
            Self::parallel(
                "10:1: 100 Mbit/s, 10 ms and 10 Mbit/s, 100 ms",
                &[fast.clone(), slow.clone()],
            ),
            Self::parallel(
                "10:1, 5 % loss on both",
                &[link(100.0, 10, 0.05), link(10.0, 100, 0.05)],
            ),
            Self::parallel(
                "1:10: 100 Mbit/s, 100 ms and 10 Mbit/s, 10 ms",
                &[link(100.0, 100, 0.0), link(10.0, 10, 0.0)],
            ),
            Self::parallel(
                "two of 50 Mbit/s, 10 % loss on one",
                &[link(50.0, 20, 0.1), link(50.0, 20, 0.0)],
            ),
            Self::parallel(
                "four of 25 Mbit/s, 20 ms, 2 % loss",
                &[(); 4].map(|()| link(25.0, 20, 0.02)),
            ),
            Self::diamond(
                "two relays, 50 Mbit/s, 10 or 30 ms/link, 5 % loss",
                &[
                    [link(50.0, 10, 0.05), link(50.0, 10, 0.05)],
                    [link(50.0, 30, 0.05), link(50.0, 30, 0.05)],
                ],
            ),
            Self::parallel("two of 50 Mbit/s, the first is cut", &two).with_cut(0, third, None),
            Self::parallel("10:1, the fast one is cut", &[fast.clone(), slow.clone()])
                .with_cut(0, third, None),
            Self::parallel("10:1, the slow one is cut", &[fast, slow]).with_cut(1, third, None),
            Self::parallel("two of 50 Mbit/s, one fails for a while", &two).with_cut(
                1,
                third / 2,
                Some(third),
            ),
        ];
        runs.into_iter().map(|run| Self { duration: seconds, seed, ..run }).collect()
    }

    fn build_network(&self) -> Option<RelayNetwork> {
        let config = RelayNetworkConfig {
            links: self.links.iter().map(|(_, _, link)| link.clone()).collect(),
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: self.seed,
        };
        let edges = self.links.iter().map(|&(a, b, _)| (a, b)).collect();
        let mut network = RelayNetwork::try_mesh(config, edges)?;
        if self.is_direct {
            network.use_direct_sessions();
        }
        Some(network)
    }

    /// Sum of the capacities of the paths from the source, each that of its smallest link.
    fn bound(&self, without: Option<usize>) -> f64 {
        let last = self.links.iter().map(|&(a, b, _)| a.max(b)).max().unwrap_or(0);
        let paths = self
            .links
            .iter()
            .enumerate()
            .filter(|(index, (from, ..))| *from == 0 && Some(*index) != without);
        paths
            .map(|(_, (_, to, link))| {
                let (mut at, mut least) = (*to, capacity(link));
                // A path has at most as many links as the network.
                for _ in &self.links {
                    let onwards = self.links.iter().find(|(from, ..)| *from == at && at != last);
                    let Some((_, to, link)) = onwards else { break };
                    (at, least) = (*to, least.min(capacity(link)));
                }
                least
            })
            .sum()
    }

    /// The longest round trip of all links, plus one sample interval: the resolution of a gap. Delivery
    /// in order waits for what was in flight on the link that is cut, and only its round trip shows
    /// that it is lost.
    fn gap_bound(&self) -> Option<Duration> {
        self.cut?;
        let one_way = self.links.iter().map(|(_, _, link)| link.delay).max()?;
        Some(one_way * 2 + Hops::SAMPLE)
    }

    /// Runs the transfer in virtual time. The destination checks every message.
    ///
    /// # Panics
    ///
    /// If a message arrives corrupted, twice or out of order, or if a link is not established.
    pub fn run(&self) -> PathsFigures {
        self.try_run().expect("all links are established within 30 s")
    }

    /// As [`Paths::run`], but returns `None` if a link is not established within 30 s.
    ///
    /// # Panics
    ///
    /// If a message arrives corrupted, twice or out of order.
    pub fn try_run(&self) -> Option<PathsFigures> {
        let cell = Cell {
            congestion: CongestionAlgorithm::Ltcc,
            loss: 0.0,
            delay: Duration::ZERO,
            rate_bps: 0,
            queue: 1.0,
            duration: self.duration,
            seed: self.seed,
        };
        let hops = Hops { hops: 1, cell, recoding: true, message_size: 16 << 10 };
        let mut network = self.build_network()?;
        let mut done = (false, false);
        let outcome = hops.run_on(&mut network, |network, at| {
            let Some(cut) = self.cut else { return };
            let link = &self.links[cut.link].2;
            if at >= cut.at && !done.0 {
                done.0 = true;
                network.set_link(cut.link, &LinkConfig { loss: Loss::Iid(1.0), ..link.clone() });
            }
            if cut.until.is_some_and(|until| at >= until) && !done.1 {
                done.1 = true;
                network.set_link(cut.link, link);
            }
        });
        Some(self.figures(&outcome))
    }

    fn figures(&self, outcome: &HopsOutcome) -> PathsFigures {
        let failed = self.cut.filter(|cut| cut.until.is_none()).map(|cut| cut.link);
        let bound_mbps = self.bound(failed);
        let from = outcome.delivered.len() * if self.cut.is_some() { 2 } else { 1 } / 3;
        let goodput_mbps = outcome.goodput_from(from);
        let sources = outcome.sender.coding.source_packets_sent.max(1);
        let repairs = outcome.sender.coding.proactive_packets_sent
            + outcome.sender.coding.top_up_packets_sent;
        let coded = outcome.receiver.coding.coded_packets_received.max(1);
        PathsFigures {
            name: self.name,
            goodput_mbps,
            bound_mbps,
            share: goodput_mbps / bound_mbps,
            share_bound: MIN_SHARE,
            longest_gap_ms: outcome.longest_gap().as_secs_f64() * 1e3,
            gap_bound_ms: self.gap_bound().map(|bound| bound.as_secs_f64() * 1e3),
            end_repairs_percent: repairs as f64 * 100.0 / sources as f64,
            non_innovative_percent: outcome.receiver.coding.wasted_packets_received as f64 * 100.0
                / coded as f64,
        }
    }
}
