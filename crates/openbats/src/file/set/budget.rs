//! Limits of the bytes that receivers may store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::file::FileError;

/// Bytes that a file or directory costs in addition to its content, or at least: without them empty files
/// would be free, and a sender could use up the file system's inodes.
pub(in crate::file) const ENTRY_BYTES: u64 = 4_096;

/// A limit of the bytes that receivers may store, shared by all clones. Files that are discarded
/// give their bytes back, stored files do not: the limit applies to the lifetime of the budget.
#[derive(Clone, Debug)]
pub struct StorageBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: u64,
    used: AtomicU64,
    parent: Option<StorageBudget>,
}

impl StorageBudget {
    /// Allows `limit` bytes in total.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self::with_parent(limit, None)
    }

    /// A budget for a part of the receivers, such as those of one peer: at most `limit` bytes, which
    /// also count against this budget.
    #[must_use]
    pub fn part(&self, limit: u64) -> Self {
        Self::with_parent(limit, Some(self.clone()))
    }

    fn with_parent(limit: u64, parent: Option<Self>) -> Self {
        Self(Arc::new(Inner { limit, used: AtomicU64::new(0), parent }))
    }

    /// Bytes that may still be stored.
    #[must_use]
    pub fn left(&self) -> u64 {
        let own = self.0.limit.saturating_sub(self.0.used.load(Ordering::Acquire));
        self.0.parent.as_ref().map_or(own, |parent| parent.left().min(own))
    }

    /// Takes the bytes of an entry with this content; false if there are too few.
    fn take(&self, bytes: u64) -> bool {
        let add = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.0.limit);
        if self.0.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_err() {
            return false;
        }
        let fits = self.0.parent.as_ref().is_none_or(|parent| parent.take(bytes));
        if !fits {
            self.0.used.fetch_sub(bytes, Ordering::AcqRel);
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::AcqRel);
        if let Some(parent) = &self.0.parent {
            parent.give_back(bytes);
        }
    }

    /// Charges an entry with `bytes` of content.
    ///
    /// # Errors
    /// The budget does not allow it.
    pub(in crate::file) fn charge(&self, bytes: u64) -> Result<Charge, FileError> {
        let all = bytes.saturating_add(ENTRY_BYTES);
        match self.take(all) {
            true => Ok(Charge { budget: self.clone(), bytes: all }),
            false => Err(FileError::OverBudget { size: bytes, left: self.left() }),
        }
    }
}

/// The bytes of one entry; given back when dropped, unless they are kept.
#[derive(Debug)]
pub(in crate::file) struct Charge {
    budget: StorageBudget,
    bytes: u64,
}

impl Charge {
    /// The entry stays on the disk, but without `unused` bytes of the announced content.
    pub(in crate::file) fn keep(&mut self, unused: u64) {
        self.budget.give_back(unused.min(self.bytes));
        self.bytes = 0;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_counts_against_the_whole_and_discarded_entries_do_not() {
        let whole = StorageBudget::new(3 * ENTRY_BYTES + 1_000);
        let (one, two) = (whole.part(2 * ENTRY_BYTES + 600), whole.part(u64::MAX));
        assert!(one.charge(601 + ENTRY_BYTES).is_err());
        let mut first = one.charge(600).unwrap();
        assert_eq!((one.left(), whole.left()), (ENTRY_BYTES, 2 * ENTRY_BYTES + 400));
        assert!(two.charge(ENTRY_BYTES + 401).is_err());
        assert_eq!(two.left(), whole.left(), "a refused charge takes nothing from the part");
        drop(two.charge(400).unwrap());
        assert_eq!(whole.left(), 2 * ENTRY_BYTES + 400);
        first.keep(100);
        drop(first);
        assert_eq!((one.left(), whole.left()), (ENTRY_BYTES + 100, 2 * ENTRY_BYTES + 500));
        assert!(two.charge(u64::MAX).is_err(), "must not overflow");
    }
}
