//! Limits the work that a peer causes with repairs.
//!
//! What a repair costs depends on the linear system that it belongs to, and a peer chooses that: a
//! repair of one byte over a long system costs a hundred times as much as a full-size packet without
//! losses. So each packet that adds something may cause, on average, as much as it can in the stream of
//! a correct sender. A peer that causes more is not served any longer.

use crate::rows::padded_length;

/// Longest window of a correct sender, in symbols.
const WINDOW: u64 = 256;
/// Work for each packet that adds something, in bytes of rows, and for each byte of its symbol.
///
/// If all `w` symbols of a window are lost, `w` repairs of `b` bytes are reduced by, and eliminated
/// from, `w / 2` rows of up to `2w` bytes on average, and give `w` symbols, each the sum of `w`
/// payloads, for which the coefficients of `w` equations are added: less than `3w^2 + wb` for each
/// repair. This is half of the first term and three halves of the second. Only full-size symbols come in such
/// windows; windows of short ones have at most 64 symbols.
const WORK_PER_PACKET: u64 = 3 * WINDOW * WINDOW / 2;
const WORK_PER_BYTE: u64 = 3 * WINDOW / 2;
/// Packets whose work without symbols is allowed in addition: for redundant repairs, which add nothing
/// to the budget. 768 of the longest window, if they are recognised without elimination.
const FREE_PACKETS: u64 = 128;
/// Packets whose work may be saved in addition to that for the repairs that are held: two windows that are
/// linked cost four times as much as one.
const SAVED_PACKETS: u64 = 4 * WINDOW;

/// Work that a packet with a symbol of this length adds to the budget.
fn work_for(bytes: usize) -> u64 {
    WORK_PER_PACKET + WORK_PER_BYTE * padded_length(bytes) as u64
}

/// A budget of work, in bytes of rows that are multiplied and added: nearly all that decoding does.
#[derive(Debug)]
pub(super) struct WorkBudget {
    left: u64,
    /// Work for a packet of full size.
    full: u64,
    is_exceeded: bool,
}

impl WorkBudget {
    /// The budget for symbols of up to `symbol_size` bytes.
    pub(super) fn new(symbol_size: usize) -> Self {
        let full = work_for(symbol_size);
        Self { left: FREE_PACKETS * WORK_PER_PACKET, full, is_exceeded: false }
    }

    /// Adds what a packet that added something may cost; `bytes` is the length of its symbol. Now `held`
    /// repairs wait for their solution.
    pub(super) fn earn(&mut self, bytes: usize, held: usize) {
        let most = (SAVED_PACKETS + held as u64).saturating_mul(self.full);
        let earned = self.left.saturating_add(work_for(bytes)).min(most);
        self.left = self.left.max(earned);
    }

    /// Takes `work` from the budget. Returns whether there was as much; if not, the budget is exceeded
    /// permanently.
    pub(super) fn spend(&mut self, work: u64) -> bool {
        match self.left.checked_sub(work) {
            Some(left) => self.left = left,
            None => self.is_exceeded = true,
        }
        !self.is_exceeded
    }

    /// Whether more was taken than there was.
    pub(super) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_refilled_by_packets_up_to_four_windows_and_the_repairs_held() {
        let mut budget = WorkBudget::new(1_408);
        assert!(budget.spend(FREE_PACKETS * WORK_PER_PACKET), "at the limit");
        budget.earn(1, 0);
        budget.earn(65, 0);
        assert!(budget.spend(2 * WORK_PER_PACKET + 192 * WORK_PER_BYTE));
        let full = WORK_PER_PACKET + 1_408 * WORK_PER_BYTE;
        (0..2_000).for_each(|_| budget.earn(1_408, 300));
        assert_eq!(budget.left, 1_324 * full);
        budget.earn(1_408, 0);
        assert!(budget.spend(300 * full), "what was saved stays when repairs are solved");
        budget.earn(1_408, 0);
        assert!(budget.spend(1_024 * full));
        assert!(!budget.is_exceeded());
        assert!(!budget.spend(1), "beyond it");
        budget.earn(1_408, 0);
        assert!(!budget.spend(0) && budget.is_exceeded(), "permanently");
    }
}
