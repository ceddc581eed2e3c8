//! Comparison of existing files with offered ones, and its limits.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::tree::{PartHash, PartLayout, ReadProgress};
use crate::file::FileError;
use crate::file::storage::local;

/// What a comparison that finds other content costs in addition to the bytes read, because it tests a
/// guess of the content. Chosen: a budget of 200 GB allows 200 wrong guesses a day.
const MISMATCH_BYTES: u64 = 1_000_000_000;
/// The time in which a budget is available again as a whole.
const DAY: Duration = Duration::from_secs(86_400);

/// A limit of the bytes of existing files that receivers read for senders in a day, shared by all
/// clones. It applies to the comparison of offered files with files of the same name and size, and to
/// the check of the data of an interrupted transfer. A file that turns out to have other content
/// counts as 1 GB (10^9 bytes) more, so that a sender cannot test many guesses of its content.
///
/// When the budget is used up, existing files count as different and are not read, and interrupted
/// transfers begin again. It refills continuously.
#[derive(Clone, Debug)]
pub struct ReadBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    per_day: u64,
    used: Mutex<Used>,
    parent: Option<ReadBudget>,
}

#[derive(Debug)]
struct Used {
    bytes: u64,
    /// Until when it has refilled.
    at: Instant,
}

#[expect(clippy::disallowed_methods, reason = "the budget of a day needs a clock")]
fn now() -> Instant {
    Instant::now()
}

impl ReadBudget {
    /// Allows `bytes` a day, and as many at once.
    #[must_use]
    pub fn per_day(bytes: u64) -> Self {
        Self::with_parent(bytes, None)
    }

    /// A budget for a part of the receivers, such as those of one peer: at most `bytes` a day, which
    /// also count against this budget.
    #[must_use]
    pub fn part(&self, bytes: u64) -> Self {
        Self::with_parent(bytes, Some(self.clone()))
    }

    fn with_parent(per_day: u64, parent: Option<Self>) -> Self {
        Self(Arc::new(Inner { per_day, used: Mutex::new(Used { bytes: 0, at: now() }), parent }))
    }

    /// Bytes that may be read now.
    #[must_use]
    pub fn left(&self) -> u64 {
        let own = self.0.per_day.saturating_sub(self.update(now(), |used| *used));
        self.0.parent.as_ref().map_or(own, |parent| parent.left().min(own))
    }

    /// Refills the budget, then applies `change` to the bytes used.
    fn update<T>(&self, now: Instant, change: impl FnOnce(&mut u64) -> T) -> T {
        let mut used = self.0.used.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(used.at);
        let refilled = u128::from(self.0.per_day) * elapsed.as_nanos() / DAY.as_nanos();
        // Of less than a byte the time is kept.
        if refilled > 0 {
            used.bytes = used.bytes.saturating_sub(u64::try_from(refilled).unwrap_or(u64::MAX));
            used.at = now;
        }
        change(&mut used.bytes)
    }

    /// Takes bytes that are about to be read; false if there are too few.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.take_at(bytes, now())
    }

    fn take_at(&self, bytes: u64, now: Instant) -> bool {
        let is_taken = self.update(now, |used| {
            let sum = used.checked_add(bytes).filter(|sum| *sum <= self.0.per_day);
            *used = sum.unwrap_or(*used);
            sum.is_some()
        });
        let fits = is_taken && self.0.parent.as_ref().is_none_or(|x| x.take_at(bytes, now));
        if is_taken && !fits {
            self.update(now, |used| *used = used.saturating_sub(bytes));
        }
        fits
    }

    fn give_back(&self, bytes: u64) {
        self.update(now(), |used| *used = used.saturating_sub(bytes));
        if let Some(parent) = &self.0.parent {
            parent.give_back(bytes);
        }
    }
}

/// Opens the path if it is a regular file of this size.
pub(super) fn existing(path: &Path, size: u64) -> Result<Option<File>, FileError> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() == size => {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
            opened.map(Some).map_err(|error| local("read", path, error))
        }
        _ => Ok(None),
    }
}

/// The result of comparing an existing file with an offered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Same,
    Differs,
    /// The budget does not allow it.
    NotCompared,
}

impl Comparison {
    /// Why a file is refused whose name exists.
    pub(super) fn refusal(self, target: PathBuf) -> FileError {
        match self {
            Self::NotCompared => FileError::NotCompared(target),
            Self::Same | Self::Differs => FileError::Exists(target),
        }
    }
}

/// Compares the file at `target` with the offered file, whose parts have these hashes. Stops at the
/// first difference.
pub(super) fn compare(
    target: &Path,
    layout: PartLayout,
    hashes: &[PartHash],
    reads: Option<&ReadBudget>,
    progress: &mut ReadProgress<'_>,
) -> Result<Comparison, FileError> {
    let Some(file) = existing(target, layout.size)? else { return Ok(Comparison::Differs) };
    let Some(guess) = Guess::begin(reads) else { return Ok(Comparison::NotCompared) };
    // All of it at once: nothing is read for a comparison that cannot end.
    if !guess.take(layout.size) {
        guess.confirm();
        return Ok(Comparison::NotCompared);
    }
    // To the end, also after a difference: how far it was read would tell the sender where that is.
    let mut is_same = true;
    for (part, hash) in (0..layout.parts).zip(hashes) {
        let found = layout.hash_part(&file, part, progress);
        is_same &= found.map_err(|error| local("read", target, error))? == *hash;
    }
    if !is_same {
        return Ok(Comparison::Differs);
    }
    guess.confirm();
    Ok(Comparison::Same)
}

/// A comparison of existing content with what a sender says it is. The cost of a wrong guess is taken
/// at its beginning, so that comparisons at the same time count, too.
pub(super) struct Guess<'a>(Option<&'a ReadBudget>);

impl<'a> Guess<'a> {
    /// `None` if the budget does not allow another one.
    pub(super) fn begin(reads: Option<&'a ReadBudget>) -> Option<Self> {
        let is_allowed = reads.is_none_or(|reads| reads.take(MISMATCH_BYTES));
        is_allowed.then_some(Self(reads))
    }

    /// Takes bytes that are about to be read; false if there are too few.
    pub(super) fn take(&self, bytes: u64) -> bool {
        self.0.is_none_or(|reads| reads.take(bytes))
    }

    /// The sender knows the content, or nothing was compared: it costs no more than the bytes read.
    pub(super) fn confirm(self) {
        if let Some(reads) = self.0 {
            reads.give_back(MISMATCH_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_budget_refills_in_a_day_and_counts_against_the_whole() {
        let whole = ReadBudget::per_day(86_400_000);
        let (one, two) = (whole.part(50_000_000), whole.part(u64::MAX));
        let start = now();
        assert!(one.take_at(50_000_000, start) && !one.take_at(1_000_000, start));
        assert!(!two.take_at(40_000_000, start), "the whole has less");
        assert!(two.take_at(36_000_000, start), "a refused take takes nothing");
        let later = start + Duration::from_secs(3_600);
        assert!(!one.take_at(3_000_000, later) && one.take_at(2_000_000, later));
        let next_day = later + DAY;
        assert!(one.take_at(50_000_000, next_day) && !one.take_at(1_000_000, next_day));
        assert!(!one.take_at(u64::MAX, next_day), "must not overflow");
    }

    /// A budget that is asked often must refill, too.
    #[test]
    fn frequent_requests_do_not_delay_the_refill() {
        let budget = ReadBudget::per_day(86_400);
        let start = now();
        assert!(budget.take_at(86_400, start));
        let taken = (1..=100_000_u32)
            .filter(|step| budget.take_at(1, start + Duration::from_millis(1) * *step))
            .count();
        assert!((98..=100).contains(&taken), "{taken}");
    }
}
