//! Shortens tests for a quick check of function and rough results.

use super::{Case, Suite, ToolKind};

/// Maximum duration of a measurement in seconds.
const SECONDS: f64 = 8.0;
/// Maximum number of round-trip messages.
const MESSAGES: u32 = 300;
/// Minimum number of throughput intervals.
const INTERVALS: u32 = 4;
/// More networks than this are a matrix, of which four corners are kept.
const NETWORKS: usize = 4;

impl Suite {
    /// Shortens all tests: less time, fewer messages, the corners of a matrix, no repetitions.
    pub(crate) fn shorten(&mut self) {
        for case in &mut self.cases {
            shorten(case);
        }
        self.notes.push(format!(
            "--quick: measurements of at most {SECONDS} s and {MESSAGES} messages, the corners of matrices, no repetitions; times of flows and events are scaled accordingly"
        ));
    }
}

fn shorten(case: &mut Case) {
    case.repetitions = 1;
    // Flows and events keep their relative time in the longest throughput measurement.
    let throughput =
        case.tools.iter().filter(|tool| matches!(tool.kind, ToolKind::Throughput { .. }));
    let longest = throughput.map(super::Tool::seconds).fold(SECONDS, f64::max);
    let factor = SECONDS / longest;
    for tool in &mut case.tools {
        let is_long = tool.seconds() > SECONDS;
        match &mut tool.kind {
            ToolKind::Rtt { count, .. } | ToolKind::Ping { count, .. } => {
                *count = (*count).min(MESSAGES);
                tool.intervals = tool.intervals.min(*count);
            }
            _ if is_long => {
                tool.interval = tool.interval.min(SECONDS / f64::from(INTERVALS));
                tool.intervals = (SECONDS / tool.interval).round().max(1.0) as u32;
            }
            _ => {}
        }
    }
    for flow in &mut case.flows {
        for time in [&mut flow.delay, &mut flow.duration].into_iter().flatten() {
            *time *= factor;
        }
    }
    for event in &mut case.events {
        event.at *= factor;
    }
    keep_corners(case);
}

/// Keeps the corners of a matrix of networks.
fn keep_corners(case: &mut Case) {
    if case.networks.len() <= NETWORKS {
        return;
    }
    let values = |of: fn(&super::Network) -> Option<f64>| -> Option<(f64, f64)> {
        let all: Option<Vec<f64>> = case.networks.iter().map(of).collect();
        let all = all?;
        let ends = (all.iter().copied().reduce(f64::min)?, all.into_iter().reduce(f64::max)?);
        Some(ends)
    };
    let is_corner = match (values(|one| one.loss_percent), values(|one| one.delay_ms)) {
        (Some(losses), Some(delays)) => {
            let at = |ends: (f64, f64), value: Option<f64>| {
                value.is_some_and(|value| value == ends.0 || value == ends.1)
            };
            let corner = move |one: &super::Network| {
                at(losses, one.loss_percent) && at(delays, one.delay_ms)
            };
            case.networks.iter().map(corner).collect()
        }
        _ => vec![false; case.networks.len()],
    };
    let last = case.networks.len() - 1;
    let has_corners = is_corner.iter().any(|&corner| corner);
    let mut index = 0;
    case.networks.retain(|_| {
        let stays = if has_corners { is_corner[index] } else { index == 0 || index == last };
        index += 1;
        stays
    });
    // Assertions refer to networks by their index in the full matrix.
    case.assertions.retain(|one| one.network.is_none());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quick(case: &str) -> Suite {
        let mut suite = crate::config::load::suite(&format!("case:{case}"), None).unwrap();
        suite.shorten();
        suite
    }

    #[test]
    fn every_case_becomes_short_and_keeps_its_structure() {
        for name in crate::config::shipped::cases() {
            for case in quick(name).cases {
                for tool in &case.tools {
                    assert!(tool.seconds() <= SECONDS + 1e-9 || tool.intervals <= MESSAGES);
                    assert!(tool.intervals >= 1, "{name}");
                }
                for flow in &case.flows {
                    assert!(flow.delay.unwrap_or(0.0) < SECONDS, "{name}");
                }
                assert!(case.events.iter().all(|event| event.at < SECONDS), "{name}");
                assert!(case.repetitions == 1 && !case.networks.is_empty());
            }
        }
        let corners = &quick("matrix-1g").cases[0].networks;
        let places: Vec<_> = corners.iter().map(|one| (one.loss_percent, one.delay_ms)).collect();
        let at = |loss: f64, delay: f64| (Some(loss), Some(delay));
        assert_eq!(places, [at(0.0, 10.0), at(0.0, 100.0), at(10.0, 10.0), at(10.0, 100.0)]);
    }
}
