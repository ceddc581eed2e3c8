//! Received files are written under a temporary name and renamed when they are complete.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{FileError, name};

/// A temporary file that is removed when dropped, unless it was [committed](Self::commit).
#[derive(Debug)]
pub(super) struct TemporaryFile {
    file: File,
    temporary: PathBuf,
    target: PathBuf,
    is_committed: bool,
}

impl TemporaryFile {
    pub(super) fn create(
        directory: &Path,
        name: &str,
        size: u64,
        overwrite: bool,
    ) -> Result<Self, FileError> {
        let target = directory.join(name);
        if !overwrite && target.symlink_metadata().is_ok() {
            return Err(FileError::Exists(target));
        }
        let space = rustix::fs::statvfs(directory)
            .map_err(|error| local("inspect", directory, error.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        if size > free {
            return Err(FileError::NoSpace { directory: directory.to_owned(), size, free });
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
            .map_err(|error| local("create", &temporary, error))?;
        Ok(Self { file, temporary, target, is_committed: false })
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(|error| local("write", &self.target, error))
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
