//! Limits the work that a peer causes with repairs that add nothing.

use bats_code::stream::DecoderStats;

use super::FlowError;

/// Work that is always allowed, in bytes of matrix rows: 16 reductions of a redundant repair by
/// the longest linear system, or 1,024 redundant repairs of the longest window (2,048 of a generation
/// of 256 symbols) that are recognised without elimination. The kernels need 0.6 ms for it.
const BURST: u64 = 1 << 25;
/// Work that each innovative packet adds: 64 redundant repairs of a generation of 256 symbols that
/// are recognised without elimination. Honest peers send less, whatever the network loses or
/// duplicates: a relay sends at most 64 packets of a batch, of which one adds something, and a
/// redundant packet costs nothing once its window is decoded.
const REFILL: u64 = 1 << 20;

/// A budget of work for non-innovative repairs (a token bucket that innovative packets refill).
#[derive(Debug)]
pub(super) struct WorkBudget {
    left: u64,
    innovative: u64,
    work: u64,
}

impl Default for WorkBudget {
    fn default() -> Self {
        Self { left: BURST, innovative: 0, work: 0 }
    }
}

impl WorkBudget {
    /// Charges the work since the last call.
    ///
    /// # Errors
    ///
    /// [`FlowError::NonInnovative`] if the budget is used up.
    pub(super) fn charge(&mut self, stats: &DecoderStats) -> Result<(), FlowError> {
        let innovative = stats.source_innovative + stats.repair_innovative;
        let earned = (innovative - self.innovative).saturating_mul(REFILL);
        let spent = stats.non_innovative_work - self.work;
        (self.innovative, self.work) = (innovative, stats.non_innovative_work);
        self.left = self.left.saturating_add(earned).min(BURST);
        self.left = self.left.checked_sub(spent).ok_or(FlowError::NonInnovative)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_refilled_by_innovative_packets_up_to_the_burst() {
        let mut stats = DecoderStats::default();
        let mut budget = WorkBudget::default();
        stats.non_innovative_work = BURST;
        assert_eq!(budget.charge(&stats), Ok(()), "at the limit");
        stats.source_innovative = 1;
        stats.repair_innovative = 1;
        stats.non_innovative_work += 2 * REFILL;
        assert_eq!(budget.charge(&stats), Ok(()));
        stats.non_innovative_work += 1;
        assert_eq!(budget.charge(&stats), Err(FlowError::NonInnovative), "beyond it");
        stats.source_innovative += 1 << 40;
        assert_eq!(budget.charge(&stats), Ok(()));
        assert_eq!(budget.left, BURST);
    }
}
