//! A file that is being received in parts, perhaps over several connections at once.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::message::Verdict;
use super::side::Put;
use super::tree::{Cut, PartHash, Pulse};
use super::{Existing, side};
use crate::file::storage::{local, rename_without_replacing};
use crate::file::{CHUNK, FileError, name};

/// Bytes after which the disk is waited for, so that a large file does not keep both ends waiting for
/// minutes when it is whole.
const SYNC_EVERY: u64 = 256 << 20;
static ZEROS: [u8; CHUNK] = [0; CHUNK];
/// Components of a name at most.
const MAX_DEPTH: usize = 64;
/// Numbers tried for a free name.
const MAX_COPIES: u32 = 10_000;

/// The place of a name in a directory. Missing directories on the way are made; links are not
/// followed, so that it cannot be elsewhere.
pub(super) fn place(directory: &Path, name: &str) -> Result<PathBuf, FileError> {
    let wrong = |problem| FileError::Name { name: name.escape_debug().to_string(), problem };
    let mut path = directory.to_owned();
    let mut components = name.split('/').peekable();
    let mut depth = 0;
    while let Some(component) = components.next() {
        // What begins with a dot is carried within a directory, and not beside the others.
        match depth {
            0 => name::check(component)?,
            _ => name::check_within(component)?,
        }
        depth += 1;
        if depth > MAX_DEPTH {
            return Err(wrong("it has too many components"));
        }
        path.push(component);
        if components.peek().is_some() {
            make_directory(&path)?;
        }
    }
    Ok(path)
}

/// Makes a directory unless it is there.
pub(super) fn make_directory(path: &Path) -> Result<(), FileError> {
    match fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            match path.symlink_metadata() {
                Ok(metadata) if metadata.is_dir() => Ok(()),
                _ => Err(FileError::Exists(path.to_owned())),
            }
        }
        Err(error) => Err(local("create", path, error)),
    }
}

/// A regular file of this size, opened, if the path is one.
pub(super) fn existing(path: &Path, size: u64) -> Result<Option<File>, FileError> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() == size => {
            let flags = OFlags::NOFOLLOW.bits() as i32;
            let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
            opened.map(Some).map_err(|error| local("read", path, error))
        }
        _ => Ok(None),
    }
}

/// Disk space that open files will still need.
#[derive(Clone, Debug, Default)]
pub(super) struct Reserved(Arc<AtomicU64>);

/// A part of it; given back when dropped.
#[derive(Debug)]
struct Reservation {
    all: Reserved,
    left: AtomicU64,
}

impl Reservation {
    fn take(all: &Reserved, bytes: u64) -> Self {
        all.0.fetch_add(bytes, Ordering::AcqRel);
        Self { all: all.clone(), left: AtomicU64::new(bytes) }
    }

    /// So much is on the disk now.
    fn spend(&self, bytes: u64) {
        let spend = |left: u64| Some(left.saturating_sub(bytes));
        if let Ok(before) = self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, spend) {
            self.all.0.fetch_sub(before.min(bytes), Ordering::AcqRel);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.left.load(Ordering::Acquire), Ordering::AcqRel);
    }
}

/// A file on its way.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) name: String,
    pub(super) cut: Cut,
    target: PathBuf,
    temporary: PathBuf,
    file: File,
    sha256: Option<[u8; 32]>,
    /// Nothing of it had been there.
    is_new: bool,
    /// Bytes that the disk may not have yet.
    unsynced: AtomicU64,
    reservation: Reservation,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    hashes: Vec<Option<PartHash>>,
    /// Parts received in this transfer.
    received: u32,
    finish: Option<(u32, [u8; 32])>,
    /// The temporary file is of no use any more.
    is_over: bool,
    /// The temporary file is worth to be kept.
    is_kept: bool,
}

impl Incoming {
    /// Opens a temporary file beside the target; what an earlier transfer left there is found
    /// again. The hashes are those of its parts, none where it is new.
    pub(super) fn open(
        target: PathBuf,
        name: String,
        cut: Cut,
        sha256: Option<[u8; 32]>,
        reserved: &Reserved,
        pulse: &mut Pulse<'_>,
    ) -> Result<(Self, Vec<PartHash>), FileError> {
        let directory = target.parent().unwrap_or(Path::new(".")).to_owned();
        let is_resumable = cut.parts > 1;
        let temporary = directory.join(temporary_name(&target, is_resumable)?);
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        if is_resumable {
            options.create(true).truncate(false);
        } else {
            options.create_new(true);
        }
        let file = options.open(&temporary).map_err(|error| local("create", &temporary, error))?;
        // Two transfers must not write into each other's file.
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| FileError::Busy(target.clone()))?;
        let metadata = file.metadata().map_err(|error| local("look at", &temporary, error))?;
        let is_left_over = metadata.len() > 0;
        let there = metadata.blocks().saturating_mul(512);
        let needed = cut.size.saturating_sub(there);
        let this = Self {
            name,
            cut,
            target,
            temporary,
            file,
            sha256,
            is_new: !is_left_over,
            unsynced: AtomicU64::new(0),
            reservation: Reservation::take(reserved, needed),
            state: Mutex::new(State {
                hashes: vec![None; cut.parts as usize],
                received: 0,
                finish: None,
                is_over: false,
                // What is refused from here on leaves what had been there.
                is_kept: is_left_over,
            }),
        };
        let taken = reserved.0.load(Ordering::Acquire).saturating_sub(needed);
        let free = free_space(&directory)?.saturating_sub(taken);
        if needed > free {
            return Err(FileError::NoSpace { directory, size: needed, free });
        }
        let write = |error| local("write", &this.target, error);
        this.file.set_len(cut.size).map_err(write)?;
        let hashes = match is_left_over {
            true => cut.hash_parts_of_sparse(&this.file, pulse).map_err(write)?,
            false => Vec::new(),
        };
        for (place, hash) in this.lock().hashes.iter_mut().zip(&hashes) {
            *place = Some(*hash);
        }
        this.lock().is_kept = is_resumable;
        Ok((this, hashes))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a part of this length fits into the file.
    pub(super) fn has_part(&self, part: u32) -> bool {
        part < self.cut.parts
    }

    /// Writes bytes of a part. In a file that is new zeros are there already, as a hole.
    pub(super) fn write(&self, part: u32, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        if self.is_new && ZEROS.get(..bytes.len()).is_some_and(|zeros| zeros == bytes) {
            return Ok(());
        }
        let written = self.file.write_all_at(bytes, self.cut.offset(part) + at);
        let count = bytes.len() as u64;
        let unsynced = self.unsynced.fetch_add(count, Ordering::Relaxed) + count;
        let written = written.and_then(|()| match unsynced >= SYNC_EVERY {
            true => {
                self.unsynced.store(0, Ordering::Relaxed);
                self.file.sync_data()
            }
            false => Ok(()),
        });
        if let Err(error) = written {
            // A full disk is not helped by what cannot be finished.
            self.discard();
            return Err(local("write", &self.target, error));
        }
        self.reservation.spend(count);
        Ok(())
    }

    /// Gives the temporary file up.
    pub(super) fn discard(&self) {
        self.lock().is_kept = false;
    }

    /// Notes that a part is there. Returns whether all parts are, and the sender has finished.
    pub(super) fn on_part(&self, part: u32, hash: PartHash) -> Result<bool, FileError> {
        let mut state = self.lock();
        let Some(place) = state.hashes.get_mut(part as usize) else {
            return Err(FileError::Protocol("a part that the file does not have"));
        };
        *place = Some(hash);
        state.received += 1;
        Ok(state.is_complete())
    }

    /// Notes that the sender has sent all parts.
    pub(super) fn on_finish(&self, sent: u32, hash: [u8; 32]) -> Result<bool, FileError> {
        let mut state = self.lock();
        if state.finish.replace((sent, hash)).is_some() {
            return Err(FileError::Protocol("a file was finished twice"));
        }
        Ok(state.is_complete())
    }

    /// Verifies the whole and gives it its name.
    pub(super) fn store(
        &self,
        policy: Existing,
        pulse: &mut Pulse<'_>,
    ) -> Result<(Verdict, [u8; 32]), FileError> {
        let (hashes, announced) = {
            let state = self.lock();
            let hashes: Option<Vec<PartHash>> = state.hashes.iter().copied().collect();
            let Some((hashes, (_, announced))) = hashes.zip(state.finish) else {
                return Err(FileError::Protocol("a file was finished without all of its parts"));
            };
            (hashes, announced)
        };
        let hash = self.cut.root(&hashes);
        // Compared in constant time, though there is no secret in it.
        if blake3::Hash::from(hash) != blake3::Hash::from(announced) {
            self.discard();
            return Err(FileError::Corrupt(self.name.clone()));
        }
        if let Some(wanted) = &self.sha256 {
            let found = side::hash(&self.file, pulse)
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
        let verdict = self.put(policy, &hash, pulse)?;
        // A copy of what is there already goes away.
        self.lock().is_over = verdict != Verdict::Unchanged;
        Ok((verdict, hash))
    }

    fn put(
        &self,
        policy: Existing,
        hash: &[u8; 32],
        pulse: &mut Pulse<'_>,
    ) -> Result<Verdict, FileError> {
        let taken = match self.put_at(&self.target, policy)? {
            None => return Ok(Verdict::Stored),
            Some(taken) => taken,
        };
        if taken == self.target && self.is_same(hash, pulse)? {
            confirm_side(&self.target, self.sha256.as_ref(), policy)?;
            self.discard();
            return Ok(Verdict::Unchanged);
        }
        if policy == Existing::Rename {
            for number in 1..MAX_COPIES {
                let mut path = self.target.clone().into_os_string();
                path.push(format!(".{number}"));
                if self.put_at(Path::new(&path), policy)?.is_none() {
                    return Ok(Verdict::Renamed(format!("{}.{number}", self.name)));
                }
            }
        }
        self.discard();
        Err(FileError::Exists(taken))
    }

    /// Gives the file this name, and its SHA-256 hash the name beside it. Where one of them is taken
    /// and must stay, neither happens, and it is returned.
    fn put_at(&self, path: &Path, policy: Existing) -> Result<Option<PathBuf>, FileError> {
        let replaces = policy == Existing::Overwrite;
        let write = |path: &Path, error| local("write", path, error);
        if !replaces && path.symlink_metadata().is_ok() {
            return Ok(Some(path.to_owned()));
        }
        // The hash comes first: should both names not be had, it is the one that is easily taken back.
        let beside = side::beside(path);
        let side = match &self.sha256 {
            Some(hash) if !replaces => {
                let put = side::put(path, hash, false);
                Some(put.map_err(|error| write(&beside, error))?)
            }
            _ => None,
        };
        if side == Some(Put::Taken) {
            return Ok(Some(beside));
        }
        let renamed = match replaces {
            true => fs::rename(&self.temporary, path),
            false => rename_without_replacing(&self.temporary, path),
        };
        if let Err(error) = renamed {
            if side == Some(Put::New) {
                let _ = fs::remove_file(&beside);
            }
            return match error.kind() {
                io::ErrorKind::AlreadyExists => Ok(Some(path.to_owned())),
                _ => Err(local("create", path, error)),
            };
        }
        if let (true, Some(hash)) = (replaces, &self.sha256) {
            side::put(path, hash, true).map_err(|error| write(&beside, error))?;
        }
        Ok(None)
    }

    /// Whether the target is a file of this content.
    fn is_same(&self, hash: &[u8; 32], pulse: &mut Pulse<'_>) -> Result<bool, FileError> {
        let Some(file) = existing(&self.target, self.cut.size)? else { return Ok(false) };
        let hashes = self
            .cut
            .hash_parts(&file, pulse)
            .map_err(|error| local("read", &self.target, error))?;
        Ok(self.cut.root(&hashes) == *hash)
    }
}

/// Sees to it that the hash stands beside a file that is there already. Where something else stands
/// that must stay, the hash gets a free name if files do, and is refused otherwise.
pub(super) fn confirm_side(
    path: &Path,
    sha256: Option<&[u8; 32]>,
    policy: Existing,
) -> Result<(), FileError> {
    let Some(hash) = sha256 else { return Ok(()) };
    let beside = side::beside(path);
    let write = |error| local("write", &beside, error);
    let mut put = side::put(path, hash, policy == Existing::Overwrite).map_err(write)?;
    if policy == Existing::Rename {
        for number in 1..MAX_COPIES {
            if put != Put::Taken {
                break;
            }
            let mut copy = beside.clone().into_os_string();
            copy.push(format!(".{number}"));
            put = side::put_as(Path::new(&copy), path, hash, false).map_err(write)?;
        }
    }
    match put {
        Put::Taken => Err(FileError::Exists(beside)),
        Put::New | Put::Same => Ok(()),
    }
}

impl State {
    fn is_complete(&self) -> bool {
        self.finish.is_some_and(|(sent, _)| sent == self.received)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let state = self.lock();
        if !state.is_over && !state.is_kept {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// The name of a temporary file: one that is found again, or one of its own.
fn temporary_name(target: &Path, is_resumable: bool) -> Result<String, FileError> {
    let name = target.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if is_resumable {
        return Ok(format!(".{name}{}", name::TEMPORARY));
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random)
        .map_err(|error| local("create", target, io::Error::other(error)))?;
    Ok(format!(".{name}.{:016x}{}", u64::from_ne_bytes(random), name::TEMPORARY))
}

fn free_space(directory: &Path) -> Result<u64, FileError> {
    let space = rustix::fs::statvfs(directory)
        .map_err(|error| local("look at", directory, error.into()))?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_so_many_components() {
        let directory = std::env::temp_dir().join(format!("openbats-depth-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let deep = |count: usize| vec!["d"; count].join("/");
        let placed = [place(&directory, &deep(MAX_DEPTH)), place(&directory, &deep(MAX_DEPTH + 1))];
        fs::remove_dir_all(&directory).unwrap();
        assert!(placed[0].as_ref().unwrap().ends_with("d/d/d"));
        assert!(placed[1].as_ref().unwrap_err().to_string().contains("too many components"));
    }
}
