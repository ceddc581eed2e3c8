//! Lines of log that somebody else causes: one in a second of each class, the others are counted.

use std::time::Duration;

use bats_types::Timestamp;

/// Least time between two lines of a class: who causes them must not fill a disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// The lines of one class.
#[derive(Debug, Default)]
pub(crate) struct LogLimit {
    last: Option<Timestamp>,
    suppressed: u64,
}

impl LogLimit {
    /// Whether a line may be written now; if so, how many were not since the last one.
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
    fn one_line_a_second_tells_of_the_others() {
        let mut limit = LogLimit::default();
        let mut lines = Vec::new();
        for millis in 0..2_500 {
            lines.extend(limit.allow(Timestamp::from_millis(millis)));
        }
        assert_eq!(lines, [0, 999, 999]);
    }
}
