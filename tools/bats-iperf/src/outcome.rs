//! The outcome of a throughput test on one side: what its reports are made of.

use crate::control::Summary;
use crate::meter::Reading;
use crate::report::Side;
use crate::transport_stats::TransportStats;

/// Measurements of one report interval.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Seconds since the start of the test.
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// Whether it is omitted from the results.
    pub(crate) is_omitted: bool,
    pub(crate) streams: Vec<Reading>,
    /// Connection statistics at its start and end.
    pub(crate) transport_stats: Vec<Option<(TransportStats, TransportStats)>>,
}

/// Results of a test on this side.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) sides: Vec<Side>,
    pub(crate) is_client: bool,
    pub(crate) intervals: Vec<Interval>,
    /// Number of intervals that were not kept because there were too many.
    pub(crate) left_out: u64,
    pub(crate) summary: Summary,
}

impl Outcome {
    /// The first error of a stream.
    pub(crate) fn error(&self) -> Option<&str> {
        self.summary.streams.iter().find_map(|totals| totals.error.as_deref())
    }
}
