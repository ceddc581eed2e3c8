//! Rate limit for log lines that peers can trigger: one line a second per class; the others are
//! counted.

use std::time::Duration;

use bats_types::Timestamp;

/// Least time between two lines of a class, so that a peer cannot fill the disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// The rate limit of one class of log lines.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Timestamp>,
    suppressed: u64,
}

impl LogLimit {
    /// Returns the number of suppressed lines since the last one if a line may be logged now.
    pub(crate) fn allow(&mut self, now: Timestamp) -> Option<u64> {
        if self.last.is_some_and(|last| now < last + INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_reports_the_number_suppressed() {
        let mut limit = LogLimit::default();
        let mut lines = Vec::new();
        for millis in 0..2_500 {
            lines.extend(limit.allow(Timestamp::from_millis(millis)));
        }
        assert_eq!(lines, [0, 999, 999]);
    }
}
