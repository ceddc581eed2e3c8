//! Bulk transfer over several ways at once: what they carry together, and what the end of one costs.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, TransportConfig};
use serde::Serialize;

use crate::hops::{Hops, HopsOutcome};
use crate::line::{Line, LineConfig, node_id};
use crate::links::{self, capacity};
use crate::matrix::Cell;

/// A link that is cut, and perhaps mended.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Which.
    pub link: usize,
    /// When, from the established session on.
    pub at: Duration,
    /// When it carries again.
    pub until: Option<Duration>,
}

/// Links between two ends, some of them side by side.
#[derive(Clone, Debug)]
pub struct Paths {
    /// What it is called.
    pub name: &'static str,
    /// Each link, and the nodes that it joins: 0 is the source, the largest number the destination.
    pub links: Vec<(usize, usize, LinkConfig)>,
    /// What goes wrong.
    pub cut: Option<Cut>,
    /// Length of the transfer.
    pub duration: Duration,
    /// Decides every random choice.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct PathsFigures {
    /// What was run.
    pub name: &'static str,
    /// Goodput, Mbit/s: from the second third on, or, where a link is cut, of the last third.
    pub goodput_mbps: f64,
    /// Sum of (1 - p) C over the ways that are there then, in Mbit/s of UDP payload in full frames; of
    /// a way of several links the least.
    pub bound_mbps: f64,
    /// Share of the bound.
    pub share: f64,
    /// The share to be reached.
    pub share_bound: f64,
    /// Longest time without progress, in milliseconds.
    pub longest_gap_ms: f64,
    /// What it may be where a way ends.
    pub gap_bound_ms: Option<f64>,
    /// Repairs that the ends sent, per cent of the symbols.
    pub end_repairs_percent: f64,
    /// Coded packets that brought the destination nothing, per cent.
    pub useless_percent: f64,
}

/// Share of the sum that ways carry together (row 18 of the goals).
const LEAST_SHARE: f64 = 0.9;

impl PathsFigures {
    /// Whether the share is reached.
    pub fn has_share(&self) -> bool {
        self.share >= self.share_bound
    }

    /// Whether nothing stopped for too long.
    pub fn is_steady(&self) -> bool {
        self.gap_bound_ms.is_none_or(|bound| self.longest_gap_ms <= bound)
    }

    /// Whether all bounds are kept.
    pub fn is_met(&self) -> bool {
        self.has_share() && self.is_steady()
    }
}

/// A link with a queue of one bandwidth-delay product.
pub fn link(rate_mbps: f64, one_way_ms: u64, loss: f64) -> LinkConfig {
    links::queued((rate_mbps * 1e6) as u64, Duration::from_millis(one_way_ms), 1.0, loss)
}

impl Paths {
    /// Links side by side between two nodes.
    pub fn parallel(name: &'static str, links: &[LinkConfig]) -> Self {
        Self {
            name,
            links: links.iter().map(|link| (0, 1, link.clone())).collect(),
            cut: None,
            duration: Duration::from_secs(15),
            seed: 1,
        }
    }

    /// Two relays side by side between the ends: each way has two links.
    pub fn diamond(name: &'static str, ways: &[[LinkConfig; 2]; 2]) -> Self {
        let [[a, b], [c, d]] = ways.clone();
        Self {
            links: vec![(0, 1, a), (1, 3, b), (0, 2, c), (2, 3, d)],
            ..Self::parallel(name, &[])
        }
    }

    /// The same with a link that is cut.
    #[must_use]
    pub fn with_cut(mut self, link: usize, at: u64, until: Option<u64>) -> Self {
        let [at, until] = [Some(at), until].map(|second| second.map(Duration::from_secs));
        self.cut = Some(Cut { link, at: at.unwrap_or_default(), until });
        self
    }

    /// The usual set: ways of unlike rates, delays and losses, relays side by side, and ways that end.
    pub fn usual(seconds: Duration, seed: u64) -> Vec<Self> {
        let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
        let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
        let third = seconds.as_secs() / 3;
        let runs = vec![
            Self::parallel("one way of 100 Mbit/s, 10 ms", core::slice::from_ref(&fast)),
            Self::parallel("two of 50 Mbit/s, 20 ms", &two),
            Self::parallel(
                "10:1: 100 Mbit/s, 10 ms and 10 Mbit/s, 100 ms",
                &[fast.clone(), slow.clone()],
            ),
            Self::parallel(
                "the same, 5 % lost on both",
                &[link(100.0, 10, 0.05), link(10.0, 100, 0.05)],
            ),
            Self::parallel(
                "1:10: 100 Mbit/s, 100 ms and 10 Mbit/s, 10 ms",
                &[link(100.0, 100, 0.0), link(10.0, 10, 0.0)],
            ),
            Self::parallel(
                "two of 50 Mbit/s, 10 % lost on one",
                &[link(50.0, 20, 0.1), link(50.0, 20, 0.0)],
            ),
            Self::parallel(
                "four of 25 Mbit/s, 20 ms, 2 %",
                &[(); 4].map(|()| link(25.0, 20, 0.02)),
            ),
            Self::diamond(
                "two relays, 50 Mbit/s, 10 and 30 ms a link, 5 %",
                &[
                    [link(50.0, 10, 0.05), link(50.0, 10, 0.05)],
                    [link(50.0, 30, 0.05), link(50.0, 30, 0.05)],
                ],
            ),
            Self::parallel("two of 50 Mbit/s, the first is cut", &two).with_cut(0, third, None),
            Self::parallel("10:1, the fast one is cut", &[fast.clone(), slow.clone()])
                .with_cut(0, third, None),
            Self::parallel("10:1, the slow one is cut", &[fast, slow]).with_cut(1, third, None),
            Self::parallel("two of 50 Mbit/s, one is away for a while", &two).with_cut(
                1,
                third / 2,
                Some(third),
            ),
        ];
        runs.into_iter().map(|run| Self { duration: seconds, seed, ..run }).collect()
    }

    fn line(&self) -> Option<Line> {
        let config = LineConfig {
            links: self.links.iter().map(|(_, _, link)| link.clone()).collect(),
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: self.seed,
        };
        Line::try_mesh(config, self.links.iter().map(|&(a, b, _)| (a, b)).collect())
    }

    /// Sum of what the ways carry that lead from the source on, each as much as its least link.
    fn bound(&self, without: Option<usize>) -> f64 {
        let last = self.links.iter().map(|&(a, b, _)| a.max(b)).max().unwrap_or(0);
        let ways = self
            .links
            .iter()
            .enumerate()
            .filter(|(index, (from, ..))| *from == 0 && Some(*index) != without);
        ways.map(|(_, (_, to, link))| {
            let (mut at, mut least) = (*to, capacity(link));
            // No way has more links than there are.
            for _ in &self.links {
                let onwards = self.links.iter().find(|(from, ..)| *from == at && at != last);
                let Some((_, to, link)) = onwards else { break };
                (at, least) = (*to, least.min(capacity(link)));
            }
            least
        })
        .sum()
    }

    /// The round trip of the longest way that is left when one is cut (row 19 of the goals), and the two
    /// samples between which a gap lies.
    fn gap_bound(&self) -> Option<Duration> {
        let cut = self.cut?;
        let left = self.links.iter().enumerate().filter(|(index, _)| *index != cut.link);
        let one_way = left.map(|(_, (_, _, link))| link.delay).max()?;
        Some(one_way * 2 + Hops::SAMPLE)
    }

    /// Runs the transfer in virtual time; the destination checks every message.
    ///
    /// # Panics
    ///
    /// If a message arrives altered, twice or out of order, or the links do not come up.
    pub fn run(&self) -> PathsFigures {
        self.try_run().expect("the links come up")
    }

    /// The same; `None` if the links do not come up within 30 s.
    ///
    /// # Panics
    ///
    /// If a message arrives altered, twice or out of order.
    pub fn try_run(&self) -> Option<PathsFigures> {
        let cell = Cell {
            congestion: CongestionAlgorithm::Bbr,
            loss: 0.0,
            delay: Duration::ZERO,
            rate_bps: 0,
            queue: 1.0,
            duration: self.duration,
            seed: self.seed,
        };
        let hops = Hops { hops: 1, cell, recoding: true, message_size: 16 << 10 };
        let mut line = self.line()?;
        let mut done = (false, false);
        let outcome = hops.run_on(&mut line, |line, at| {
            let Some(cut) = self.cut else { return };
            let link = &self.links[cut.link].2;
            if at >= cut.at && !done.0 {
                done.0 = true;
                line.set_link(cut.link, &LinkConfig { loss: Loss::Iid(1.0), ..link.clone() });
            }
            if cut.until.is_some_and(|until| at >= until) && !done.1 {
                done.1 = true;
                line.set_link(cut.link, link);
            }
        });
        Some(self.figures(&outcome))
    }

    fn figures(&self, outcome: &HopsOutcome) -> PathsFigures {
        let gone = self.cut.filter(|cut| cut.until.is_none()).map(|cut| cut.link);
        let bound_mbps = self.bound(gone);
        let from = outcome.delivered.len() * if self.cut.is_some() { 2 } else { 1 } / 3;
        let goodput_mbps = outcome.goodput_from(from);
        let sources = outcome.sender.source_packets_sent.max(1);
        let repairs = outcome.sender.proactive_packets_sent + outcome.sender.top_up_packets_sent;
        let coded = outcome.receiver.coded_packets_received.max(1);
        PathsFigures {
            name: self.name,
            goodput_mbps,
            bound_mbps,
            share: goodput_mbps / bound_mbps,
            share_bound: LEAST_SHARE,
            longest_gap_ms: outcome.longest_gap().as_secs_f64() * 1e3,
            gap_bound_ms: self.gap_bound().map(|bound| bound.as_secs_f64() * 1e3),
            end_repairs_percent: repairs as f64 * 100.0 / sources as f64,
            useless_percent: outcome.receiver.wasted_packets_received as f64 * 100.0 / coded as f64,
        }
    }
}
