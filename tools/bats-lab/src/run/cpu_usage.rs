//! CPU use of the processes of a measurement over time.

use std::time::Duration;

use crate::process::Process;
use crate::result::series::Series;

/// Sampling interval in seconds. CPU time has a resolution of 10 ms, which would be noise in
/// shorter intervals.
const INTERVAL: f64 = 0.5;

/// The processes and their samples.
pub(crate) struct CpuUsage {
    processes: Vec<(String, Process, Duration)>,
    /// Time of the last sample in seconds.
    last: f64,
    samples: Vec<Vec<(f64, f64)>>,
}

impl CpuUsage {
    /// Starts to sample these processes.
    pub(crate) fn new(processes: impl IntoIterator<Item = (String, Option<Process>)>) -> Self {
        let processes: Vec<_> = processes
            .into_iter()
            .filter_map(|(name, process)| {
                let process = process?;
                Some((name, process, process.processor_time()))
            })
            .collect();
        Self { samples: vec![Vec::new(); processes.len()], processes, last: 0.0 }
    }

    /// Takes a sample, if one is due.
    pub(crate) fn sample(&mut self, now: f64) {
        let elapsed = now - self.last;
        if elapsed < INTERVAL {
            return;
        }
        self.last = now;
        for ((_, process, before), points) in self.processes.iter_mut().zip(&mut self.samples) {
            // A process that has ended uses nothing, and its ID may be reused.
            if !process.is_alive() {
                continue;
            }
            let used = process.processor_time();
            points.push((now, used.saturating_sub(*before).as_secs_f64() / elapsed));
            *before = used;
        }
    }

    /// The samples, in processors used.
    pub(crate) fn series(self) -> Vec<Series> {
        self.processes
            .into_iter()
            .zip(self.samples)
            .filter(|(_, points)| points.len() > 1)
            .map(|((of, _, _), points)| Series {
                name: "processor time".into(),
                of,
                unit: "processors".into(),
                points,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_taken_at_intervals_for_known_processes() {
        let mut usage = CpuUsage::new([("x".to_owned(), Process::own()), ("y".to_owned(), None)]);
        for at in [0.2, 0.6, 1.2, 1.4] {
            usage.sample(at);
        }
        let series = usage.series();
        assert_eq!(series.len(), 1);
        let times: Vec<f64> = series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(times, [0.6, 1.2]);
        assert!(series[0].points.iter().all(|point| point.1 >= 0.0));
    }
}
