//! Limits the work that a peer causes with repairs.
//!
//! What a repair costs depends on the linear system that it belongs to, and a peer chooses that:
//! a repair of one byte over a long system costs many times what a full-size packet costs without losses. So each packet may cause, on average, as much work as one in the stream of a correct sender
//! over a path that loses nearly everything. Repairs beyond that are refused, as if they were lost.

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

/// Work that a packet with a symbol of this length adds to the budget.
fn work_for(bytes: usize) -> u64 {
    WORK_PER_PACKET + WORK_PER_BYTE * padded_length(bytes) as u64
}

/// A budget of work, in bytes of rows that are multiplied and added: nearly all that decoding does.
#[derive(Debug)]
pub(super) struct WorkBudget {
    /// What is left.
    left: u64,
    /// What was taken beyond it: a packet that was accepted is processed to the end.
    debt: u64,
    most: u64,
}

impl WorkBudget {
    /// The budget for symbols of up to `symbol_size` bytes.
    pub(super) fn new(symbol_size: usize) -> Self {
        // The first window may be lost as a whole.
        Self {
            left: WINDOW * WORK_PER_PACKET,
            debt: 0,
            most: SAVED_PACKETS * work_for(symbol_size),
        }
    }

    /// Adds what a packet may cost; `bytes` is the length of its symbol.
    pub(super) fn earn(&mut self, bytes: usize) {
        let earned = work_for(bytes);
        let repaid = earned.min(self.debt);
        self.debt -= repaid;
        self.left = self.left.saturating_add(earned - repaid).min(self.most);
    }

    /// Takes `work` from the budget.
    pub(super) fn spend(&mut self, work: u64) {
        self.debt = self.debt.saturating_add(work.saturating_sub(self.left));
        self.left = self.left.saturating_sub(work);
    }

    /// Whether nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_refilled_by_packets_up_to_four_windows() {
        let mut budget = WorkBudget::new(1_408);
        budget.spend(WINDOW * WORK_PER_PACKET - 1);
        assert!(!budget.is_empty());
        budget.spend(1);
        assert!(budget.is_empty(), "at the limit");
        budget.earn(1);
        budget.earn(65);
        budget.spend(2 * WORK_PER_PACKET + 192 * WORK_PER_BYTE - 1);
        assert_eq!((budget.left, budget.debt), (1, 0));
        let full = WORK_PER_PACKET + 1_408 * WORK_PER_BYTE;
        (0..2_000).for_each(|_| budget.earn(1_408));
        assert_eq!((budget.left, budget.debt), (1_024 * full, 0));
        budget.spend(1_026 * full + 7);
        assert_eq!((budget.left, budget.debt), (0, 2 * full + 7), "beyond it");
        for debt in [full + 7, 7] {
            budget.earn(1_408);
            assert_eq!((budget.is_empty(), budget.debt), (true, debt));
        }
        budget.earn(1_408);
        assert_eq!((budget.left, budget.debt), (full - 7, 0));
    }
}
