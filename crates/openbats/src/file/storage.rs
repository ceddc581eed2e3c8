//! Received files are written under a temporary name and renamed when they are complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::space::{Space, StorageLimits};
use super::{FileError, name};

/// A temporary file that is removed when dropped, unless it was [committed](Self::commit).
#[derive(Debug)]
pub(super) struct TemporaryFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    space: Space,
    is_committed: bool,
}

impl TemporaryFile {
    pub(super) fn create(
        directory: &Path,
        name: &str,
        size: u64,
        overwrite: bool,
        limits: &StorageLimits,
    ) -> Result<Self, FileError> {
        let target = directory.join(name);
        if !overwrite && target.symlink_metadata().is_ok() {
            return Err(FileError::Exists(target));
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random)
            .map_err(|error| local("create a file in", directory, io::Error::other(error)))?;
        let random = u64::from_ne_bytes(random);
        let temporary = directory.join(name::temporary(name, Some(random)));
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(|error| local("create a file in", directory, error))?;
        let space = Space::take(&file, directory, size, limits).inspect_err(|_| {
            let _ = fs::remove_file(&temporary);
        })?;
        Ok(Self { file, temporary, target, space, is_committed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let count = bytes.len() as u64;
        self.space.check(&self.file, count)?;
        self.file.write_all(bytes).map_err(|error| local("write", &self.target, error))?;
        self.space.on_written(count);
        Ok(())
    }

    /// Flushes the complete file to disk and renames it to its final name.
    pub(super) fn commit(mut self, overwrite: bool) -> Result<PathBuf, FileError> {
        self.file.sync_data().map_err(|error| local("write", &self.target, error))?;
        let renamed = if overwrite {
            fs::rename(&self.temporary, &self.target)
        } else {
            rename_without_replacing(&self.temporary, &self.target)
        };
        renamed.map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => FileError::Exists(self.target.clone()),
            _ => local("create", &self.target, error),
        })?;
        self.is_committed = true;
        self.space.keep();
        Ok(self.target.clone())
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.is_committed {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Renames with a hard link, which fails on every file system if the name exists; a rename would
/// replace the file.
pub(super) fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => fs::remove_file(from),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        // File systems without hard links: the name did not exist a moment ago.
        Err(_) if to.symlink_metadata().is_err() => fs::rename(from, to),
        Err(_) => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

pub(super) fn local(action: &'static str, path: &Path, source: io::Error) -> FileError {
    FileError::Local { action, path: path.to_owned(), source }
}
