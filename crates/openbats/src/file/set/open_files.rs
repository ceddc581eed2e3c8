//! Limit of the received files that the process has open at a time.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Resource, getrlimit};

use crate::file::FileError;

/// A part of the descriptors that the process may open, so that senders of files leave some for
/// sockets and everything else. Chosen: a quarter.
const SHARE: u64 = 4;

static OPEN: LazyLock<OpenFiles> =
    LazyLock::new(|| OpenFiles::new(max_open(getrlimit(Resource::Nofile).current)));

fn max_open(descriptors: Option<u64>) -> usize {
    descriptors.map_or(usize::MAX, |limit| usize::try_from(limit / SHARE).unwrap_or(usize::MAX))
}

#[derive(Debug)]
struct OpenFiles {
    count: AtomicUsize,
    max: usize,
}

impl OpenFiles {
    fn new(max: usize) -> Self {
        Self { count: AtomicUsize::new(0), max }
    }

    fn take(&'static self) -> Result<OpenFile, FileError> {
        let add = |count: usize| (count < self.max).then_some(count + 1);
        match self.count.fetch_update(Ordering::AcqRel, Ordering::Acquire, add) {
            Ok(_) => Ok(OpenFile(self)),
            Err(_) => Err(FileError::TooManyOpen { limit: self.max }),
        }
    }
}

/// The place of one open file; released when dropped.
#[derive(Debug)]
pub(super) struct OpenFile(&'static OpenFiles);

impl OpenFile {
    /// # Errors
    /// The process has too many received files open.
    pub(super) fn take() -> Result<Self, FileError> {
        OPEN.take()
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn received_files_leave_most_descriptors() {
        assert_eq!([None, Some(1_024), Some(3)].map(max_open), [usize::MAX, 256, 0]);
        static SMALL: LazyLock<OpenFiles> = LazyLock::new(|| OpenFiles::new(2));
        let first = SMALL.take().unwrap();
        let _second = SMALL.take().unwrap();
        let error = SMALL.take().unwrap_err().to_string();
        assert!(error.contains("more than 2"), "{error}");
        drop(first);
        SMALL.take().unwrap();
    }
}
