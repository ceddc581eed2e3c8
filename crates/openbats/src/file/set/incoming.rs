//! A file that is being received in parts, over one or more connections.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::message::Verdict;
use super::open_files::OpenFile;
use super::partial::{self, Opened};
use super::reads::{Comparison, Guess, ReadBudget, compare};
use super::sha256sum::HashWrite;
use super::tree::{PartHash, PartLayout, PartSet, ReadProgress, is_hole};
use super::{Existing, sha256sum};
use crate::file::space::{Space, StorageLimits};
use crate::file::storage::{local, rename_without_replacing};
use crate::file::{CHUNK, FileError, name};

/// Bytes after which data is flushed to disk, so that a large file does not need minutes for it at
/// its end.
const SYNC_EVERY: u64 = 256 << 20;
static ZEROS: [u8; CHUNK] = [0; CHUNK];
/// Numbers of copies are lower: a power of two, for the search of a free one.
const MAX_COPIES: u32 = 1 << 14;
/// Numbers that are tried from the first free one on, while other transfers take them.
const MAX_RACES: u32 = 64;
/// Most names that are tried for a hash file. Others than the first two are taken only if several
/// hash files of other content have such names.
const MAX_HASH_FILES: u32 = 16;

/// A file that is being received.
#[derive(Debug)]
pub(super) struct IncomingFile {
    pub(super) name: String,
    pub(super) layout: PartLayout,
    target: PathBuf,
    temporary: PathBuf,
    file: File,
    sha256: Option<[u8; 32]>,
    /// The temporary file is that of an interrupted transfer: it was not empty at the beginning.
    pub(super) is_left_over: bool,
    /// Bytes that may not be flushed to disk yet.
    unsynced: AtomicU64,
    space: Space,
    _open: OpenFile,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    parts: Vec<Part>,
    /// Parts received in this transfer.
    received: u32,
    finish: Option<(u32, [u8; 32])>,
    /// The temporary file has been renamed.
    is_renamed: bool,
    /// Keep the temporary file for a later transfer.
    is_kept: bool,
}

/// The state of a part. Each is received once: a file whose parts are all verified does not change
/// any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Missing,
    Arriving,
    Verified(PartHash),
}

impl IncomingFile {
    /// Opens the temporary file next to the target, or the one of an interrupted transfer.
    pub(super) fn open(
        target: PathBuf,
        name: String,
        layout: PartLayout,
        sha256: Option<[u8; 32]>,
        limits: &StorageLimits,
    ) -> Result<Self, FileError> {
        if sha256.is_some() {
            check_hash_name(&target, &name)?;
        }
        let directory = target.parent().unwrap_or(Path::new(".")).to_owned();
        let open = OpenFile::take()?;
        let (file, temporary, is_resumable) = open_temporary(&directory, &target, layout)?;
        let metadata = file.metadata().map_err(|error| local("inspect", &temporary, error))?;
        let is_left_over = metadata.len() > 0;
        let allocated = metadata.blocks().saturating_mul(512);
        let needed = layout.size.saturating_sub(allocated);
        let space = Space::take(&file, &directory, needed, limits).inspect_err(|_| {
            if !is_left_over {
                let _ = fs::remove_file(&temporary);
            }
        })?;
        let this = Self {
            name,
            layout,
            target,
            temporary,
            file,
            sha256,
            is_left_over,
            unsynced: AtomicU64::new(0),
            space,
            _open: open,
            state: Mutex::new(State {
                parts: vec![Part::Missing; layout.parts as usize],
                received: 0,
                finish: None,
                is_renamed: false,
                // If the file is refused from here on, the data of an earlier transfer is kept.
                is_kept: is_left_over,
            }),
        };
        this.file.set_len(layout.size).map_err(|error| local("write", &this.target, error))?;
        this.lock().is_kept = is_resumable;
        Ok(this)
    }

    /// The parts that an interrupted transfer may have received.
    pub(super) fn parts_with_data(&self) -> PartSet {
        let mut found = PartSet::new(self.layout.parts);
        (0..self.layout.parts).filter(|part| self.has_data(*part)).for_each(|x| found.insert(x));
        found
    }

    fn has_data(&self, part: u32) -> bool {
        !is_hole(&self.file, self.layout.offset(part), self.layout.len(part))
    }

    /// Finds the parts of an interrupted transfer that have the hashes of the parts `asked`, as far as
    /// `reads` allows to read them.
    pub(super) fn compare_parts(
        &self,
        asked: &PartSet,
        hashes: &[PartHash],
        reads: Option<&ReadBudget>,
        progress: &mut ReadProgress<'_>,
    ) -> Result<PartSet, FileError> {
        let layout = &self.layout;
        let mut found = PartSet::new(layout.parts);
        for (part, hash) in asked.iter(layout.parts).zip(hashes) {
            if !self.has_data(part) {
                continue;
            }
            // The sender learns the result for each part, so each is a guess of its own.
            let Some(guess) = Guess::begin(reads) else { break };
            if !guess.take(layout.len(part)) {
                guess.confirm();
                break;
            }
            let read = layout.hash_part(&self.file, part, progress);
            if read.map_err(|error| local("read", &self.temporary, error))? != *hash {
                continue;
            }
            guess.confirm();
            found.insert(part);
            if let Some(place) = self.lock().parts.get_mut(part as usize) {
                *place = Part::Verified(*hash);
            }
        }
        Ok(found)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to receive a part.
    pub(super) fn begin_part(&self, part: u32) -> Result<(), FileError> {
        match self.lock().parts.get_mut(part as usize) {
            Some(place @ Part::Missing) => {
                *place = Part::Arriving;
                Ok(())
            }
            _ => Err(FileError::Protocol("a part that was not requested")),
        }
    }

    /// Writes bytes of a part. A new file has holes that read as zeros, so that zeros are not
    /// written.
    pub(super) fn write(&self, part: u32, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        let count = bytes.len() as u64;
        if !self.is_left_over && ZEROS.get(..bytes.len()).is_some_and(|zeros| zeros == bytes) {
            self.space.release(count);
            return Ok(());
        }
        let checked = self.space.check(&self.file, count);
        let written = checked.and_then(|()| {
            self.write_at(self.layout.offset(part) + at, bytes)
                .map_err(|error| local("write", &self.target, error))
        });
        if written.is_err() {
            // An incomplete file should not occupy a full disk, nor until its connections have ended.
            self.discard();
            let _ = self.file.set_len(0);
            return written;
        }
        self.space.on_written(count);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        let count = bytes.len() as u64;
        if self.unsynced.fetch_add(count, Ordering::Relaxed) + count >= SYNC_EVERY {
            self.unsynced.store(0, Ordering::Relaxed);
            self.file.sync_data()?;
        }
        Ok(())
    }

    /// Removes the temporary file when this is dropped.
    pub(super) fn discard(&self) {
        self.lock().is_kept = false;
    }

    /// Records a received part. Returns whether the file is complete and the sender has finished
    /// it.
    pub(super) fn on_part(&self, part: u32, hash: PartHash) -> Result<bool, FileError> {
        let mut state = self.lock();
        let Some(place) = state.parts.get_mut(part as usize) else {
            return Err(FileError::Protocol("a part that the file does not have"));
        };
        *place = Part::Verified(hash);
        state.received += 1;
        Ok(state.is_complete())
    }

    /// Records that the sender has sent all parts; returns whether the file is complete.
    pub(super) fn on_finish(&self, sent: u32, hash: [u8; 32]) -> Result<bool, FileError> {
        let mut state = self.lock();
        if state.finish.replace((sent, hash)).is_some() {
            return Err(FileError::Protocol("a file was finished twice"));
        }
        Ok(state.is_complete())
    }

    /// Verifies the complete file and gives it its final name.
    pub(super) fn store(
        &self,
        policy: Existing,
        reads: Option<&ReadBudget>,
        progress: &mut ReadProgress<'_>,
    ) -> Result<(Verdict, [u8; 32]), FileError> {
        let (hashes, announced) = {
            let state = self.lock();
            let hash = |part: &Part| match part {
                Part::Verified(hash) => Some(*hash),
                Part::Missing | Part::Arriving => None,
            };
            let hashes: Option<Vec<PartHash>> = state.parts.iter().map(hash).collect();
            let Some((hashes, (_, announced))) = hashes.zip(state.finish) else {
                return Err(FileError::Protocol("a file was finished without all of its parts"));
            };
            (hashes, announced)
        };
        let hash = self.layout.root(&hashes);
        // `blake3::Hash` compares in constant time, although the hash is not secret.
        if blake3::Hash::from(hash) != blake3::Hash::from(announced) {
            self.discard();
            return Err(FileError::Corrupt(self.name.clone()));
        }
        if let Some(wanted) = &self.sha256 {
            let found = sha256sum::hash(&self.file, progress)
                .map_err(|error| local("read", &self.target, error))?;
            if found != *wanted {
                self.discard();
                return Err(FileError::Checksum(self.name.clone()));
            }
        }
        self.file.sync_data().map_err(|error| {
            self.discard();
            local("write", &self.target, error)
        })?;
        let verdict = self.place_at_target(policy, &hashes, reads, progress)?;
        // If the target has the same content, the temporary file is removed.
        self.lock().is_renamed = verdict != Verdict::Unchanged;
        Ok((verdict, hash))
    }

    fn place_at_target(
        &self,
        policy: Existing,
        hashes: &[PartHash],
        reads: Option<&ReadBudget>,
        progress: &mut ReadProgress<'_>,
    ) -> Result<Verdict, FileError> {
        let taken = match self.rename_to(&self.target, policy)? {
            None => return Ok(Verdict::Stored),
            Some(taken) => taken,
        };
        let comparison = match taken == self.target {
            true => compare(&self.target, self.layout, hashes, reads, progress)?,
            false => Comparison::Differs,
        };
        if comparison == Comparison::Same {
            ensure_hash_file(&self.target, self.sha256.as_ref(), policy)?;
            self.discard();
            return Ok(Verdict::Unchanged);
        }
        if policy == Existing::Rename {
            let first = free_number(|number| {
                let copy = numbered(&self.target, number);
                let exists = |path: &Path| path.symlink_metadata().is_ok();
                exists(&copy) || self.sha256.is_some() && exists(&sha256sum::hash_path(&copy))
            });
            for number in (first..MAX_COPIES).take(MAX_RACES as usize) {
                if self.rename_to(&numbered(&self.target, number), policy)?.is_none() {
                    return Ok(Verdict::Renamed(format!("{}.{number}", self.name)));
                }
            }
        }
        self.discard();
        Err(comparison.refusal(taken))
    }

    /// Renames the file to `path` and writes its SHA-256 hash file. If one of the names exists and
    /// must not be replaced, does neither and returns that name.
    fn rename_to(&self, path: &Path, policy: Existing) -> Result<Option<PathBuf>, FileError> {
        let replaces = policy == Existing::Overwrite;
        let write = |path: &Path, error| local("write", path, error);
        if !replaces && path.symlink_metadata().is_ok() {
            return Ok(Some(path.to_owned()));
        }
        // The hash file comes first: if the second name exists, it is easy to remove.
        let hash_path = sha256sum::hash_path(path);
        let hash_write = match &self.sha256 {
            Some(hash) if !replaces => {
                let written = sha256sum::write(path, hash, false);
                Some(written.map_err(|error| write(&hash_path, error))?)
            }
            _ => None,
        };
        if hash_write == Some(HashWrite::Conflict) {
            return Ok(Some(hash_path));
        }
        let renamed = match replaces {
            true => fs::rename(&self.temporary, path),
            false => rename_without_replacing(&self.temporary, path),
        };
        if let Err(error) = renamed {
            if hash_write == Some(HashWrite::Written) {
                let _ = fs::remove_file(&hash_path);
            }
            return match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(Some(path.to_owned())),
                _ => Err(local("create", path, error)),
            };
        }
        if let (true, Some(hash)) = (replaces, &self.sha256) {
            sha256sum::write(path, hash, true).map_err(|error| write(&hash_path, error))?;
        }
        Ok(None)
    }
}

/// The name of a copy.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut copy = path.as_os_str().to_owned();
    copy.push(format!(".{number}"));
    copy.into()
}

/// The number of a copy whose name is free, [`MAX_COPIES`] if none was found. Numbers are taken in
/// order, so it doubles and halves its steps: a sender can make many copies, each of which would
/// otherwise cost an access for the next.
fn free_number(is_taken: impl Fn(u32) -> bool) -> u32 {
    let (mut taken, mut free) = (0, 1);
    while free < MAX_COPIES && is_taken(free) {
        (taken, free) = (free, free * 2);
    }
    while free - taken > 1 {
        let middle = taken.midpoint(free);
        match is_taken(middle) {
            true => taken = middle,
            false => free = middle,
        }
    }
    free
}

/// Ensures that an existing file has its hash file. If that name exists with other content that
/// must not be replaced, the hash file gets a free name under [`Existing::Rename`] and is refused
/// otherwise.
pub(super) fn ensure_hash_file(
    path: &Path,
    sha256: Option<&[u8; 32]>,
    policy: Existing,
) -> Result<(), FileError> {
    let Some(hash) = sha256 else { return Ok(()) };
    let hash_path = sha256sum::hash_path(path);
    let write = |error| local("write", &hash_path, error);
    let mut written = sha256sum::write(path, hash, policy == Existing::Overwrite).map_err(write)?;
    if policy == Existing::Rename {
        for number in 1..MAX_HASH_FILES {
            if written != HashWrite::Conflict {
                break;
            }
            let copy = numbered(&hash_path, number);
            written = sha256sum::write_as(&copy, path, hash, false).map_err(write)?;
        }
    }
    match written {
        HashWrite::Conflict => Err(FileError::Exists(hash_path)),
        HashWrite::Written | HashWrite::Unchanged => Ok(()),
    }
}

impl State {
    fn is_complete(&self) -> bool {
        self.finish.is_some_and(|(sent, _)| sent == self.received)
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        let state = self.lock();
        if !state.is_renamed && !state.is_kept {
            let _ = fs::remove_file(&self.temporary);
        } else {
            self.space.keep();
        }
    }
}

/// Opens the temporary file: one with a fixed name if the transfer can be resumed, otherwise one with
/// a random name. Returns the file, its path, and whether the transfer can be resumed.
fn open_temporary(
    directory: &Path,
    target: &Path,
    layout: PartLayout,
) -> Result<(File, PathBuf, bool), FileError> {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if layout.parts > 1 {
        let path = directory.join(name::temporary(name, None));
        match partial::open(&path, target)? {
            Opened::Ours(file) => return Ok((file, path, true)),
            Opened::Foreign => tracing::warn!(
                path = %path.display(),
                "not a partial file of this user: remove it, so that an interrupted transfer of this \
                 name can be resumed"
            ),
        }
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| local("create", target, io::Error::other(error)))?;
    let path = directory.join(name::temporary(name, Some(u64::from_ne_bytes(random))));
    let created = File::options().read(true).write(true).create_new(true).open(&path);
    Ok((created.map_err(|error| local("create", &path, error))?, path, false))
}

/// Refuses a file whose hash file would have too long a name.
fn check_hash_name(target: &Path, name: &str) -> Result<(), FileError> {
    let length = sha256sum::hash_path(target).file_name().map_or(0, |name| name.len());
    match length > name::MAX_NAME {
        true => Err(FileError::Name {
            name: name.escape_debug().to_string(),
            problem: "with .sha256sum it is longer than 255 bytes",
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_free_number_is_found_in_few_steps() {
        for taken in [0, 1, 2, 3, 7, 8, 9, 100, 8_191, 8_192, MAX_COPIES - 1] {
            let asked = Cell::new(0);
            let is_taken = |number| {
                asked.set(asked.get() + 1);
                (1..=taken).contains(&number)
            };
            assert_eq!(free_number(is_taken), taken + 1);
            assert!(asked.get() <= 28, "{taken}: {}", asked.get());
        }
        // Some were removed.
        assert!([1, 2, 4, 5].contains(&free_number(|number| [3, 6].contains(&number))));
    }
}
