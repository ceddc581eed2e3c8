//! Free space of file systems, and what received files that are open still need of it.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{StatVfs, fstatvfs, statvfs};

use super::FileError;
use super::set::StorageBudget;
use super::set::budget::{Charge, ENTRY_BYTES};

/// Bytes of a file after which the free space is looked at again, because other programs use it, too.
/// Chosen: small compared with any sensible reserve, large compared with the cost of a system call, which
/// is a round trip on a network file system.
const CHECK_EVERY: u64 = 1 << 20;

/// Bytes that the open files of all receivers of this process still need of a file system. Each receiver
/// sees the needs of the others, so that transfers at once do not use the same space.
type Needed = Arc<Mutex<u64>>;

/// By the device number. A file system stays in it: there are few, and peers cannot mount any.
static FILE_SYSTEMS: Mutex<BTreeMap<u64, Needed>> = Mutex::new(BTreeMap::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn inspect(path: &Path, source: io::Error) -> FileError {
    FileError::Local { action: "inspect", path: path.to_owned(), source }
}

/// Free space that receivers leave to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Bytes.
    Bytes(u64),
    /// Per cent of the size of the file system, at most 100.
    Percent(u8),
}

impl Reserve {
    /// Free space without the reserve.
    fn free(self, space: &StatVfs) -> u64 {
        let reserve = match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let whole = space.f_blocks.saturating_mul(space.f_frsize);
                (whole / 100).saturating_mul(u64::from(percent.min(100)))
            }
        };
        space.f_bavail.saturating_mul(space.f_frsize).saturating_sub(reserve)
    }
}

/// What a receiver may use of the disk.
#[derive(Clone, Debug)]
pub(super) struct StorageLimits {
    pub(super) budget: Option<StorageBudget>,
    pub(super) reserve: Reserve,
}

impl Default for StorageLimits {
    fn default() -> Self {
        Self { budget: None, reserve: Reserve::Bytes(0) }
    }
}

impl StorageLimits {
    /// Takes what a new directory in `parent` costs.
    ///
    /// # Errors
    /// It would use up the reserve, or the budget does not allow it.
    pub(super) fn take_directory(&self, parent: &Path) -> Result<Option<Charge>, FileError> {
        let space = statvfs(parent).map_err(|error| inspect(parent, error.into()))?;
        let (size, free) = (ENTRY_BYTES, self.reserve.free(&space));
        if free < size {
            return Err(FileError::NoSpace { directory: parent.to_owned(), size, free });
        }
        self.charge(0)
    }

    fn charge(&self, bytes: u64) -> Result<Option<Charge>, FileError> {
        self.budget.as_ref().map(|budget| budget.charge(bytes)).transpose()
    }
}

/// The space of a file that is being received. What it still needs is counted until it is written or this
/// is dropped.
#[derive(Debug)]
pub(super) struct Space {
    directory: PathBuf,
    reserve: Reserve,
    needed: Needed,
    left: AtomicU64,
    size: u64,
    written: AtomicU64,
    /// Bytes written since the free space was looked at.
    unchecked: AtomicU64,
    charge: Option<Mutex<Charge>>,
}

impl Space {
    /// Takes `bytes` of the file system of `file`, which is in `directory`.
    ///
    /// # Errors
    /// With what other open files need, they would use up the reserve, or the budget does not allow them.
    pub(super) fn take(
        file: &File,
        directory: &Path,
        bytes: u64,
        limits: &StorageLimits,
    ) -> Result<Self, FileError> {
        let device = file.metadata().map_err(|error| inspect(directory, error))?.dev();
        let this = Self {
            directory: directory.to_owned(),
            reserve: limits.reserve,
            charge: limits.charge(bytes)?.map(Mutex::new),
            needed: lock(&FILE_SYSTEMS).entry(device).or_default().clone(),
            left: AtomicU64::new(0),
            size: bytes,
            written: AtomicU64::new(0),
            unchecked: AtomicU64::new(0),
        };
        let mut needed = lock(&this.needed);
        // What others write meanwhile counts twice rather than not at all: they release it afterwards.
        let free = this.free(file)?.saturating_sub(*needed);
        let size = bytes.max(ENTRY_BYTES);
        if free < size {
            return Err(this.refusal(size, free));
        }
        *needed = needed.saturating_add(bytes);
        this.left.store(bytes, Ordering::Release);
        drop(needed);
        Ok(this)
    }

    fn refusal(&self, size: u64, free: u64) -> FileError {
        FileError::NoSpace { directory: self.directory.clone(), size, free }
    }

    fn free(&self, file: &File) -> Result<u64, FileError> {
        let space = fstatvfs(file).map_err(|error| inspect(&self.directory, error.into()));
        Ok(self.reserve.free(&space?))
    }

    /// To be called before `bytes` are written. Looks at the free space at intervals.
    ///
    /// # Errors
    /// The rest of the file would use up the reserve, because other programs have taken the space that it
    /// needs.
    pub(super) fn check(&self, file: &File, bytes: u64) -> Result<(), FileError> {
        let unchecked = self.unchecked.fetch_add(bytes, Ordering::AcqRel).saturating_add(bytes);
        if unchecked < CHECK_EVERY {
            return Ok(());
        }
        self.unchecked.store(0, Ordering::Release);
        let free = self.free(file)?;
        // Without what other files need: of several that do not fit together, not all should fail.
        let size = self.left.load(Ordering::Acquire).max(bytes);
        match free < size {
            true => Err(self.refusal(size, free)),
            false => Ok(()),
        }
    }

    /// Bytes have been written.
    pub(super) fn on_written(&self, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::AcqRel);
        self.release(bytes);
    }

    /// The file stays on the disk: its bytes stay charged, without holes and missing parts.
    pub(super) fn keep(&self) {
        if let Some(charge) = &self.charge {
            lock(charge).keep(self.size.saturating_sub(self.written.load(Ordering::Acquire)));
        }
    }

    /// Releases bytes that are not needed any more: they are on the disk, or a hole of the file.
    pub(super) fn release(&self, bytes: u64) {
        let rest = |left: u64| Some(left.saturating_sub(bytes));
        if let Ok(before) = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest) {
            let mut needed = lock(&self.needed);
            *needed = needed.saturating_sub(before.min(bytes));
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        self.release(u64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in a directory of its own.
    struct Scratch(PathBuf, File);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("openbats-{name}-{}", std::process::id()));
            let file = File::create(&path).unwrap();
            Self(path, file)
        }

        /// A reserve that leaves about this much, in MiB: other programs write meanwhile.
        fn reserve(&self, left: u64) -> Reserve {
            Reserve::Bytes(Reserve::Bytes(left << 20).free(&fstatvfs(&self.1).unwrap()))
        }

        fn take(&self, mebibytes: u64, reserve: Reserve) -> Result<Space, FileError> {
            let limits = StorageLimits { budget: None, reserve };
            Space::take(&self.1, &self.0, mebibytes << 20, &limits)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    /// As different receivers do, which know nothing of each other.
    #[test]
    fn open_files_of_all_receivers_share_the_free_space() {
        let scratch = Scratch::new("space");
        let reserve = scratch.reserve(200);
        let first = scratch.take(120, reserve).unwrap();
        let error = scratch.take(120, reserve).unwrap_err();
        let FileError::NoSpace { size, free, .. } = error else { panic!("{error}") };
        assert!(size == 120 << 20 && free < size, "{free} of {size}");
        // An impossible size does not change what is counted.
        assert!(scratch.take(u64::MAX >> 20, reserve).is_err());
        first.on_written(80 << 20);
        drop(scratch.take(120, reserve).unwrap());
        let second = scratch.take(120, reserve).unwrap();
        assert!(scratch.take(120, reserve).is_err());
        drop((first, second));
        scratch.take(120, reserve).unwrap();
        // Without the reserve there is room.
        scratch.take(250, Reserve::Bytes(0)).unwrap();
    }

    #[test]
    fn the_reserve_is_checked_again_while_writing() {
        let scratch = Scratch::new("space-later");
        let mut space = scratch.take(1, scratch.reserve(100)).unwrap();
        let writes = |space: &Space| (0..8).find_map(|_| space.check(&scratch.1, 256 << 10).err());
        assert!(writes(&space).is_none());
        // As if another program had taken the rest.
        space.reserve = Reserve::Percent(100);
        let error = writes(&space).expect("at least once for each MiB");
        assert!(error.to_string().contains("0 bytes free"), "{error}");
        assert!(error.to_string().contains("1048576 needed"), "{error}");
    }

    #[test]
    fn empty_files_and_directories_leave_the_reserve() {
        let scratch = Scratch::new("space-empty");
        let parent = std::env::temp_dir();
        for (reserve, is_free) in [(Reserve::Percent(100), false), (Reserve::Bytes(0), true)] {
            assert_eq!(scratch.take(0, reserve).is_ok(), is_free);
            let limits = StorageLimits { budget: None, reserve };
            assert_eq!(limits.take_directory(&parent).is_ok(), is_free);
        }
    }
}
