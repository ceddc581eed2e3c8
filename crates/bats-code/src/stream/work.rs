//! Limits the work that a peer causes with repairs.
//!
//! What a repair costs depends on the linear system that it belongs to, and a peer chooses that:
//! a repair of one byte over a long system costs many times what a full-size packet costs without losses. So each
//! packet may cause, on average, as much work as one in the stream of a correct sender over a path that loses nearly
//! everything, and much less if it adds nothing. Repairs beyond that are refused, as if they were lost.

use super::DecoderConfig;
use crate::rows::padded_length;

/// Packets whose work may be saved, because one packet may solve all symbols of several windows of 256: two that
/// are linked cost four times as much as one.
const SAVED_PACKETS: u64 = 4 * 256;

/// Work for repairs that add nothing, for each packet of any kind and symbol of the window: with 256 of them a
/// quarter of what it takes to recognise a repair of 512 symbols as redundant, so that all work for a packet is
/// at most twice that for one without losses (`.ci/hostile-packets`).
const REDUNDANT_WORK_PER_PACKET: u64 = 32;
/// Packets whose work for such repairs may be saved: 64 repairs of 512 symbols.
const SAVED_REDUNDANT_PACKETS: u64 = 256;

/// The budgets of a decoder.
///
/// Work is counted in bytes of rows. If all `w` symbols of a window are lost, `w` repairs of `b` bytes are reduced
/// by, and eliminated from, `w / 2` rows of up to `2w` bytes on average, and give `w` symbols, each the sum
/// of `w` payloads, for which the coefficients of `w` equations are added: less than `3w^2 + wb` for
/// each repair. Each packet adds a third of the first term and all of the second: with the longest window of a
/// correct sender as `w`, enough where nine of ten packets are lost.
#[derive(Debug)]
pub(super) struct WorkBudgets {
    /// `w`.
    window: u64,
    all: WorkBudget,
    redundant: WorkBudget,
}

impl WorkBudgets {
    /// The budgets of a decoder with these limits.
    pub(super) fn new(config: &DecoderConfig) -> Self {
        let window = u64::from(config.lost_window);
        let redundant = SAVED_REDUNDANT_PACKETS * REDUNDANT_WORK_PER_PACKET * window;
        let all = SAVED_PACKETS * work_per_packet(window, config.max_symbol_size);
        Self {
            window,
            // The first window may be lost as a whole.
            all: WorkBudget::new(window * window * window, all),
            redundant: WorkBudget::new(redundant, redundant),
        }
    }

    /// Adds what a packet may cost; `bytes` is the length of its symbol.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.all.earn(work_per_packet(self.window, bytes));
        self.redundant.earn(REDUNDANT_WORK_PER_PACKET * self.window);
    }

    /// Takes the work for a packet.
    pub(super) fn spend(&mut self, work: u64) {
        self.all.spend(work);
    }

    /// Counts work that was taken as that for a packet that added nothing.
    pub(super) fn count_redundant(&mut self, work: u64) {
        self.redundant.spend(work);
    }

    /// Whether nothing is left of one of the budgets.
    pub(super) fn is_empty(&self) -> bool {
        self.all.left == 0 || self.redundant.left == 0
    }
}

fn work_per_packet(window: u64, bytes: usize) -> u64 {
    window * (window + padded_length(bytes) as u64)
}

/// A budget of work, in bytes of rows that are multiplied and added: nearly all that decoding does.
#[derive(Debug)]
struct WorkBudget {
    /// What is left.
    left: u64,
    /// What was taken beyond it: a packet that was accepted is processed to the end.
    debt: u64,
    most: u64,
}

impl WorkBudget {
    fn new(left: u64, most: u64) -> Self {
        Self { left, debt: 0, most }
    }

    fn earn(&mut self, work: u64) {
        let repaid = work.min(self.debt);
        self.debt -= repaid;
        self.left = self.left.saturating_add(work - repaid).min(self.most);
    }

    fn spend(&mut self, work: u64) {
        self.debt = self.debt.saturating_add(work.saturating_sub(self.left));
        self.left = self.left.saturating_sub(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_refilled_by_packets_up_to_four_windows() {
        let mut budgets = WorkBudgets::new(&DecoderConfig::new(1_408, 0));
        let state = |budgets: &WorkBudgets| (budgets.all.left, budgets.all.debt);
        budgets.spend(256 * 256 * 256 - 1);
        assert!(!budgets.is_empty());
        budgets.spend(1);
        assert!(budgets.is_empty(), "at the limit");
        budgets.earn(1);
        budgets.earn(65);
        budgets.spend(2 * 256 * 256 + 192 * 256 - 1);
        assert_eq!(state(&budgets), (1, 0));
        let full = 256 * (256 + 1_408);
        (0..2_000).for_each(|_| budgets.earn(1_408));
        assert_eq!(state(&budgets), (1_024 * full, 0));
        budgets.spend(1_026 * full + 7);
        assert_eq!(state(&budgets), (0, 2 * full + 7), "beyond it");
        for debt in [full + 7, 7] {
            budgets.earn(1_408);
            assert_eq!((budgets.is_empty(), state(&budgets)), (true, (0, debt)));
        }
        budgets.earn(1_408);
        assert_eq!(state(&budgets), (full - 7, 0));
    }

    #[test]
    fn budget_for_redundant_repairs_is_refilled_by_packets_of_any_size() {
        let mut budgets = WorkBudgets::new(&DecoderConfig::new(1_408, 0));
        budgets.count_redundant((2 << 20) - 1);
        assert!(!budgets.is_empty());
        budgets.count_redundant((16 << 10) + 1);
        for bytes in [1, 1_408] {
            assert!(budgets.is_empty());
            budgets.earn(bytes);
        }
        assert!(budgets.is_empty(), "what was taken beyond it is paid");
        budgets.earn(1);
        assert!(!budgets.is_empty());
        (0..300).for_each(|_| budgets.earn(1));
        budgets.count_redundant((2 << 20) - 1);
        assert!(!budgets.is_empty());
        budgets.count_redundant(1);
        assert!(budgets.is_empty(), "no more than 256 packets are saved");
    }
}
