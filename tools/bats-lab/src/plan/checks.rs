//! Selects the paths of a test over which the emulator is verified: all distinct paths of its tools
//! and flows, or the corners if there are many.

use super::{Case, Network};
use crate::settings::{Direction, Link};

/// Maximum number of distinct paths that are all verified; of more only the corners.
const MAX_CHECKS: usize = 4;
/// Number of paths up to which equal ones are found. Beyond, the corners are chosen anyway, and of equal paths the
/// first one, so that equal ones among them change nothing.
const MAX_COMPARED: usize = 1_000;

/// A path to verify.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    /// Index of the network.
    pub(crate) network: usize,
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The links of the whole network at that time; an event may have changed them.
    pub(crate) links: Vec<Link>,
    /// The links on the path, with forward as the direction of the data. Distinguishes paths.
    pub(crate) path_links: Vec<Link>,
    /// Seconds from the start of a tool, if an event changed the links.
    pub(crate) at: Option<f64>,
}

/// Logarithm of the bottleneck rate, round-trip time, and fraction of packets lost.
type Coordinates = [f64; 3];

impl Check {
    fn coordinates(&self) -> Coordinates {
        let rate = |direction: &Direction| {
            if direction.rate > 0 { direction.rate as f64 } else { f64::MAX }
        };
        let slowest =
            self.path_links.iter().map(|link| rate(&link.forward)).fold(f64::MAX, f64::min);
        let time: f64 = self.path_links.iter().map(|link| link.round_trip().as_secs_f64()).sum();
        let delivered: f64 =
            self.path_links.iter().map(|link| 1.0 - link.forward.loss.mean()).product();
        [slowest.ln(), time, 1.0 - delivered]
    }

    /// A description of the path.
    pub(crate) fn name(&self) -> String {
        let at = self.at.map_or(String::new(), |at| format!(", as from {at} s on"));
        format!("topology-{}, node {} to {}{at}", self.network, self.from, self.to)
    }
}

impl Case {
    /// The distinct paths to verify.
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
                    let on_path = |&(link, forward): &(usize, bool)| {
                        let Link { forward: there, backward: back } =
                            links.get(link).cloned().unwrap_or_default();
                        let (there, back) = if forward { (there, back) } else { (back, there) };
                        Link { forward: there, backward: back }
                    };
                    let path_links: Vec<Link> = path.iter().map(on_path).collect();
                    let is_cut = path_links
                        .iter()
                        .any(|link| link.forward.black_hole || link.backward.black_hole);
                    // Rate, delay and loss of others are not the same at any time.
                    let is_steady = path_links
                        .iter()
                        .all(|link| link.forward.is_steady() && link.backward.is_steady());
                    if is_steady
                        && !is_cut
                        && (checks.len() >= MAX_COMPARED
                            || checks.iter().all(|check| check.path_links != path_links))
                    {
                        let links = links.clone();
                        checks.push(Check { network: index, from, to, links, path_links, at });
                    }
                }
            }
        }
        corners(checks)
    }

    /// Whether a network has links that no check covers, because they change with time.
    pub(crate) fn has_unsteady_links(&self) -> bool {
        let is_unsteady = |link: &Link| !link.forward.is_steady() || !link.backward.is_steady();
        let states = self.networks.iter().flat_map(|network| self.states(network));
        states.into_iter().any(|(_, links)| links.iter().any(is_unsteady))
    }

    /// The links of a network at the start and after each event.
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

/// Of many paths, those nearest to each combination of lowest and highest rate, delay and loss.
fn corners(checks: Vec<Check>) -> Vec<Check> {
    if checks.len() <= MAX_CHECKS {
        return checks;
    }
    let points: Vec<Coordinates> = checks.iter().map(Check::coordinates).collect();
    let range = |axis: usize| {
        let values = || points.iter().map(|point| point[axis]);
        (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max))
    };
    let ranges = [range(0), range(1), range(2)];
    let mut chosen: Vec<usize> = Vec::new();
    for corner in 0..8_u8 {
        let distance = |point: &Coordinates| -> f64 {
            let axis = |axis: usize| {
                let (least, most) = ranges[axis];
                let fraction = (point[axis] - least) / (most - least).max(f64::MIN_POSITIVE);
                let wanted = f64::from(corner >> axis & 1);
                // An axis with only one value does not count.
                if most > least { (fraction - wanted).powi(2) } else { 0.0 }
            };
            (0..3).map(axis).sum()
        };
        let nearest = (0..points.len())
            .min_by(|&a, &b| distance(&points[a]).total_cmp(&distance(&points[b])));
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
    fn a_matrix_is_verified_at_its_corners() {
        let suite = crate::config::load::suite("case:matrix-1g", None).unwrap();
        let networks = &suite.cases[0].networks;
        let at = |check: &Check| {
            let network = &networks[check.network];
            (network.loss_percent.unwrap(), network.delay_ms.unwrap())
        };
        let coordinates: Vec<_> = checks("matrix-1g", 0).iter().map(at).collect();
        assert_eq!(coordinates, [(0.0, 10.0), (0.0, 100.0), (10.0, 10.0), (10.0, 100.0)]);
    }

    #[test]
    fn each_distinct_path_is_verified_once() {
        // The competing flow has its own link with the same parameters.
        let separate = checks("bbr-cubic", 0);
        assert_eq!(separate.len(), 1);
        assert_eq!((separate[0].from, separate[0].to), (0, 1));
        // Three paths over equal links of a dumbbell.
        assert_eq!(checks("competition", 0).len(), 1);
        // At the start and after each change. The last state equals the first, and a cut path is
        // not verified.
        let times: Vec<_> = checks("outage", 0).iter().map(|check| check.at).collect();
        assert_eq!(times, [None, Some(5.0), Some(10.0)]);
    }

    #[test]
    fn reverse_paths_over_asymmetric_links_are_distinct() {
        let suite = crate::config::load::suite("case:smoke", None).unwrap();
        let mut case = suite.cases[0].clone();
        assert_eq!(case.checks().len(), 1);
        case.networks[0].links[0].backward.rate /= 2;
        let mut back = case.tools[0].clone();
        (back.client, back.server) = (back.server, back.client);
        case.tools.push(back);
        let rates: Vec<u64> =
            case.checks().iter().map(|check| check.path_links[0].forward.rate).collect();
        assert_eq!(rates, [40_000_000, 20_000_000]);
    }
}
