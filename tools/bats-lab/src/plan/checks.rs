//! Which links of a test the emulator is measured over: every different way of its tools and flows, or
//! the corners where there are many.

use super::{Case, Network};
use crate::settings::{Direction, Link};

/// Different ways of a test that are all measured; of more the corners.
const ALL: usize = 4;

/// A way that is measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    /// Which network, from 0.
    pub(crate) network: usize,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The links of the whole network at that time; an event may have changed them.
    pub(crate) links: Vec<Link>,
    /// The links on the way, forward being the way of the data: what makes it different from others.
    pub(crate) way: Vec<Link>,
    /// Seconds from the start of a tool, where an event made the links what they are.
    pub(crate) at: Option<f64>,
}

/// The rate of the slowest link, the round trip, and the share of packets lost on the way.
type Place = [f64; 3];

impl Check {
    fn place(&self) -> Place {
        let rate = |way: &Direction| if way.rate > 0 { way.rate as f64 } else { f64::MAX };
        let slowest = self.way.iter().map(|link| rate(&link.forward)).fold(f64::MAX, f64::min);
        let time: f64 = self.way.iter().map(|link| link.round_trip().as_secs_f64()).sum();
        let passes: f64 = self.way.iter().map(|link| 1.0 - link.forward.loss.mean()).product();
        [slowest.ln(), time, 1.0 - passes]
    }

    /// What it was measured over, in words.
    pub(crate) fn name(&self) -> String {
        let at = self.at.map_or(String::new(), |at| format!(", as from {at} s on"));
        format!("topology-{}, node {} to {}{at}", self.network, self.from, self.to)
    }
}

impl Case {
    /// The ways to measure, each once.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let mut ends: Vec<(u32, u32)> =
            self.tools.iter().map(|tool| (tool.client, tool.server)).collect();
        ends.extend(self.flows.iter().map(|flow| (flow.client, flow.server)));
        let mut checks: Vec<Check> = Vec::new();
        for (index, network) in self.networks.iter().enumerate() {
            for (at, links) in self.states(network) {
                for &(from, to) in &ends {
                    let Some(path) = network.path(from, to).filter(|path| !path.is_empty()) else {
                        continue;
                    };
                    let on_way = |&(link, forward): &(usize, bool)| {
                        let link = links.get(link).copied().unwrap_or_default();
                        let Link { forward: there, backward: back } = link;
                        if forward { link } else { Link { forward: back, backward: there } }
                    };
                    let way: Vec<Link> = path.iter().map(on_way).collect();
                    let is_cut =
                        way.iter().any(|link| link.forward.black_hole || link.backward.black_hole);
                    if !is_cut && checks.iter().all(|check| check.way != way) {
                        let links = links.clone();
                        checks.push(Check { network: index, from, to, links, way, at });
                    }
                }
            }
        }
        corners(checks)
    }

    /// The links of a network from the start, and after each event.
    fn states(&self, network: &Network) -> Vec<(Option<f64>, Vec<Link>)> {
        let mut links = network.links.clone();
        let mut states = vec![(None, links.clone())];
        for event in &self.events {
            for (index, link) in links.iter_mut().enumerate() {
                if event.link.is_none_or(|chosen| chosen == index) {
                    event.changes.apply(link);
                }
            }
            states.push((Some(event.at), links.clone()));
        }
        states
    }
}

/// Of many those nearest to each combination of lowest and highest rate, delay and loss.
fn corners(checks: Vec<Check>) -> Vec<Check> {
    if checks.len() <= ALL {
        return checks;
    }
    let places: Vec<Place> = checks.iter().map(Check::place).collect();
    let range = |axis: usize| {
        let values = || places.iter().map(|place| place[axis]);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ranges = [range(0), range(1), range(2)];
    let mut chosen: Vec<usize> = Vec::new();
    for corner in 0..8_u8 {
        let far = |place: &Place| -> f64 {
            let axis = |axis: usize| {
                let (least, most) = ranges[axis];
                let share = (place[axis] - least) / (most - least).max(f64::MIN_POSITIVE);
                let wanted = f64::from(corner >> axis & 1);
                // What is the same everywhere has one end only.
                if most > least { (share - wanted).powi(2) } else { 0.0 }
            };
            (0..3).map(axis).sum()
        };
        let nearest =
            (0..places.len()).min_by(|&a, &b| far(&places[a]).total_cmp(&far(&places[b])));
        chosen.extend(nearest.filter(|nearest| !chosen.contains(nearest)));
    }
    chosen.sort_unstable();
    let mut index = 0;
    let mut checks = checks;
    checks.retain(|_| {
        index += 1;
        chosen.contains(&(index - 1))
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checks(case: &str, number: usize) -> Vec<Check> {
        let suite = crate::config::load::suite(&format!("case:{case}"), None).unwrap();
        suite.cases[number].checks()
    }

    #[test]
    fn a_matrix_is_measured_at_its_corners() {
        let suite = crate::config::load::suite("case:matrix-1g", None).unwrap();
        let networks = &suite.cases[0].networks;
        let at = |check: &Check| {
            let network = &networks[check.network];
            (network.loss_percent.unwrap(), network.delay_ms.unwrap())
        };
        let places: Vec<_> = checks("matrix-1g", 0).iter().map(at).collect();
        assert_eq!(places, [(0.0, 10.0), (0.0, 100.0), (10.0, 10.0), (10.0, 100.0)]);
    }

    #[test]
    fn every_different_way_is_measured_once() {
        // The flow beside has a link of its own, which does the same.
        let separate = checks("bbr-cubic", 0);
        assert_eq!(separate.len(), 1);
        assert_eq!((separate[0].from, separate[0].to), (0, 1));
        // Three ways over equal links of a dumbbell.
        assert_eq!(checks("competition", 0).len(), 1);
        // As it begins, and after each change; the end is as the beginning, and nothing passes a cut.
        let times: Vec<_> = checks("outage", 0).iter().map(|check| check.at).collect();
        assert_eq!(times, [None, Some(5.0), Some(10.0)]);
    }

    #[test]
    fn a_way_against_a_link_is_another() {
        let suite = crate::config::load::suite("case:smoke", None).unwrap();
        let mut case = suite.cases[0].clone();
        assert_eq!(case.checks().len(), 1);
        case.networks[0].links[0].backward.rate /= 2;
        let mut back = case.tools[0].clone();
        (back.client, back.server) = (back.server, back.client);
        case.tools.push(back);
        let ways: Vec<u64> = case.checks().iter().map(|check| check.way[0].forward.rate).collect();
        assert_eq!(ways, [40_000_000, 20_000_000]);
    }
}
