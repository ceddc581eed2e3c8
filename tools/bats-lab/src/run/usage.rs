//! Processor time of what takes part in a measurement, over time.

use std::time::Duration;

use crate::process::Process;
use crate::result::Series;

/// Time between two looks: the kernel counts in hundredths of a second, which show as noise in less.
const INTERVAL: f64 = 0.5;

/// Who is looked at, and what was seen.
pub(crate) struct Usage {
    who: Vec<(String, Process, Duration)>,
    /// Seconds at the last look.
    last: f64,
    seen: Vec<Vec<(f64, f64)>>,
}

impl Usage {
    /// Looks from now on at these, by the number of their process.
    pub(crate) fn new(who: impl IntoIterator<Item = (String, Option<Process>)>) -> Self {
        let who: Vec<_> = who
            .into_iter()
            .filter_map(|(name, process)| {
                let process = process?;
                Some((name, process, process.processor_time()))
            })
            .collect();
        Self { seen: vec![Vec::new(); who.len()], who, last: 0.0 }
    }

    /// Takes a look, if it is time for one.
    pub(crate) fn look(&mut self, now: f64) {
        let elapsed = now - self.last;
        if elapsed < INTERVAL {
            return;
        }
        self.last = now;
        for ((_, process, before), points) in self.who.iter_mut().zip(&mut self.seen) {
            // Who has ended uses nothing, and its number may be another's.
            if !process.is_alive() {
                continue;
            }
            let used = process.processor_time();
            points.push((now, used.saturating_sub(*before).as_secs_f64() / elapsed));
            *before = used;
        }
    }

    /// What was seen, in processors.
    pub(crate) fn series(self) -> Vec<Series> {
        self.who
            .into_iter()
            .zip(self.seen)
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
    fn work_is_seen_and_idle_is_not_work() {
        let mut usage = Usage::new([("x".to_owned(), Process::own()), ("y".to_owned(), None)]);
        for at in [0.2, 0.6, 1.2, 1.4] {
            usage.look(at);
        }
        let series = usage.series();
        assert_eq!(series.len(), 1);
        let times: Vec<f64> = series[0].points.iter().map(|point| point.0).collect();
        assert_eq!(times, [0.6, 1.2]);
        assert!(series[0].points.iter().all(|point| point.1 >= 0.0));
    }
}
