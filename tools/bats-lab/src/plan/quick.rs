//! A shorter form of tests: does everything work, and roughly how?

use super::{Case, Suite, ToolKind};

/// Seconds of a measurement, at most.
const SECONDS: f64 = 8.0;
/// Messages that are sent back, at most.
const MESSAGES: u32 = 300;
/// Intervals of throughput, at least.
const INTERVALS: u32 = 4;
/// More networks than this are a matrix, of which four corners are left.
const NETWORKS: usize = 4;

impl Suite {
    /// Makes all tests shorter: less time, fewer messages, the corners of a matrix, no repetitions.
    pub(crate) fn shorten(&mut self) {
        for case in &mut self.cases {
            case.shorten();
        }
        self.notes.push(format!(
            "--quick: measurements of at most {SECONDS} s and {MESSAGES} messages, the corners of matrices, each once; times of flows and changes are shortened alike"
        ));
    }
}

impl Case {
    fn shorten(&mut self) {
        self.repetitions = 1;
        // Flows and changes keep their place in the longest measurement of throughput.
        let throughput =
            self.tools.iter().filter(|tool| matches!(tool.kind, ToolKind::Throughput { .. }));
        let longest = throughput.map(super::Tool::seconds).fold(SECONDS, f64::max);
        let factor = SECONDS / longest;
        for tool in &mut self.tools {
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
        for flow in &mut self.flows {
            for time in [&mut flow.delay, &mut flow.duration].into_iter().flatten() {
                *time *= factor;
            }
        }
        for event in &mut self.events {
            event.at *= factor;
        }
        self.corners();
    }

    fn corners(&mut self) {
        if self.networks.len() <= NETWORKS {
            return;
        }
        let values = |of: fn(&super::Network) -> Option<f64>| -> Option<(f64, f64)> {
            let all: Option<Vec<f64>> = self.networks.iter().map(of).collect();
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
                self.networks.iter().map(corner).collect()
            }
            _ => vec![false; self.networks.len()],
        };
        let last = self.networks.len() - 1;
        let has_corners = is_corner.iter().any(|&corner| corner);
        let mut index = 0;
        self.networks.retain(|_| {
            let stays = if has_corners { is_corner[index] } else { index == 0 || index == last };
            index += 1;
            stays
        });
        // Assertions name networks by their number in the whole.
        self.assertions.retain(|one| one.network.is_none());
    }
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
    fn every_case_gets_short_and_keeps_its_shape() {
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
