//! Timers of the flows: one for each.

use std::collections::BTreeSet;

use bats_types::Timestamp;
use bats_wire::flow::FlowKey;

use super::flow::Flow;

/// When each flow has something to do next.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(Timestamp, FlowKey)>);

impl Timers {
    /// Arms the timer of a flow for `at` or earlier. Early timers are harmless.
    pub(super) fn arm(&mut self, key: FlowKey, flow: &mut Flow, at: Timestamp) {
        if flow.timer.is_some_and(|armed| armed <= at) {
            return;
        }
        if let Some(armed) = flow.timer.replace(at) {
            self.0.remove(&(armed, key));
        }
        self.0.insert((at, key));
    }

    /// When the first timer is due.
    pub(super) fn next_at(&self) -> Option<Timestamp> {
        self.0.first().map(|&(at, _)| at)
    }

    /// Removes the first timer that is due. Returns its flow, which may have been removed before.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<FlowKey> {
        let &(_, key) = self.0.first().filter(|&&(at, _)| at <= now)?;
        self.0.pop_first();
        Some(key)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
