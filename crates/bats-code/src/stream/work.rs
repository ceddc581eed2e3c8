//! Limits the work that a peer causes with repairs.
//!
//! What a repair costs depends on the linear system that it belongs to, and a peer chooses that:
//! a repair of one byte over a long system costs many times what a full-size packet costs without losses. So each
//! packet may cause, on average, as much work as one in the stream of a correct sender over a path that loses nearly
//! everything, and much less if it adds nothing. Repairs beyond that are refused, as if they were lost.

use crate::rows::padded_length;

/// Longest window of a correct sender, in symbols.
const WINDOW: u64 = 256;
/// Work for each packet, in bytes of rows, and for each byte of its symbol.
///
/// If all `w` symbols of a window are lost, `w` repairs of `b` bytes are reduced by, and eliminated
/// from, `w / 2` rows of up to `2w` bytes on average, and give `w` symbols, each the sum of `w`
/// payloads, for which the coefficients of `w` equations are added: less than `3w^2 + wb` for each
/// repair. This is a third of the first term and all of the second: enough where nine of ten packets are
/// lost.
const WORK_PER_PACKET: u64 = WINDOW * WINDOW;
const WORK_PER_BYTE: u64 = WINDOW;
/// Packets whose work may be saved, because one packet may solve all symbols of several windows: two that
/// are linked cost four times as much as one.
const SAVED_PACKETS: u64 = 4 * WINDOW;

/// Work for repairs that add nothing, for each packet of any kind: a quarter of what it takes to recognise a repair
/// of 512 symbols as redundant, so that all work for a packet is at most twice that for one without losses
/// (`.ci/hostile-packets`).
const REDUNDANT_WORK_PER_PACKET: u64 = 8 << 10;
/// Packets whose work for such repairs may be saved: 64 repairs of 512 symbols.
const SAVED_REDUNDANT_PACKETS: u64 = 256;

/// The budgets of a decoder.
#[derive(Debug)]
pub(super) struct WorkBudgets {
    all: WorkBudget,
    redundant: WorkBudget,
}

impl WorkBudgets {
    /// The budgets for symbols of up to `symbol_size` bytes.
    pub(super) fn new(symbol_size: usize) -> Self {
        let full_size = WORK_PER_PACKET + WORK_PER_BYTE * padded_length(symbol_size) as u64;
        let redundant = SAVED_REDUNDANT_PACKETS * REDUNDANT_WORK_PER_PACKET;
        Self {
            // The first window may be lost as a whole.
            all: WorkBudget::new(WINDOW * WORK_PER_PACKET, SAVED_PACKETS * full_size),
            redundant: WorkBudget::new(redundant, redundant),
        }
    }

    /// Adds what a packet may cost; `bytes` is the length of its symbol.
    pub(super) fn earn(&mut self, bytes: usize) {
        self.all.earn(WORK_PER_PACKET + WORK_PER_BYTE * padded_length(bytes) as u64);
        self.redundant.earn(REDUNDANT_WORK_PER_PACKET);
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
        let mut budgets = WorkBudgets::new(1_408);
        let state = |budgets: &WorkBudgets| (budgets.all.left, budgets.all.debt);
        budgets.spend(WINDOW * WORK_PER_PACKET - 1);
        assert!(!budgets.is_empty());
        budgets.spend(1);
        assert!(budgets.is_empty(), "at the limit");
        budgets.earn(1);
        budgets.earn(65);
        budgets.spend(2 * WORK_PER_PACKET + 192 * WORK_PER_BYTE - 1);
        assert_eq!(state(&budgets), (1, 0));
        let full = WORK_PER_PACKET + 1_408 * WORK_PER_BYTE;
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
        let mut budgets = WorkBudgets::new(1_408);
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
