//! The results of one run of a test, on both sides.

use crate::control::Summary;
use crate::outcome::Outcome;
use crate::report::json::TestInfo;

/// A finished run.
pub(super) struct Run {
    pub(super) test_info: TestInfo,
    pub(super) outcome: Outcome,
    pub(super) remote: Option<Summary>,
    /// Why the server's summary is missing, if it is.
    pub(super) summary_error: Option<String>,
    /// Explanations of losses.
    pub(super) notes: Vec<String>,
    /// The server's report, if requested and received.
    pub(super) output: Option<String>,
}

impl Run {
    /// The first error on either side; `None` if the run succeeded.
    pub(super) fn error(&self) -> Option<String> {
        let far = self.remote.as_ref().map(|remote| &remote.streams[..]).unwrap_or_default();
        let far = far.iter().find_map(|totals| totals.error.clone());
        self.outcome.error().map(str::to_owned).or(far).or_else(|| self.summary_error.clone())
    }
}
