//! Opens the temporary file of a transfer that can be resumed.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

use crate::file::FileError;
use crate::file::storage::local;

/// How often a name is tried that other transfers remove and create meanwhile.
const ATTEMPTS: usize = 8;

/// What is at the name of a temporary file.
#[derive(Debug)]
pub(super) enum Opened {
    /// A file of this transfer, or of an interrupted one. It is locked: no other receiver writes to
    /// it, renames it or removes it.
    Ours(File),
    /// Something that no receiver of this user has made. It was not changed.
    Foreign,
}

/// Opens or creates the temporary file `path` for reading and writing. Only a regular file that
/// belongs to this process's user and has no other name is opened. Symbolic links are not followed,
/// and files that another user placed there are not written to.
///
/// # Errors
/// Another transfer is writing to it, or the system refuses to create it.
pub(super) fn open(path: &Path, target: &Path) -> Result<Opened, FileError> {
    // A pipe or device must neither block nor become the terminal of this process.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    for _ in 0..ATTEMPTS {
        let (file, is_new) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match options.open(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(_) => return Ok(Opened::Foreign),
                Ok(file) => (file, false),
            },
            created => (created.map_err(|error| local("create", path, error))?, true),
        };
        let inspect = || file.metadata().map_err(|error| local("inspect", path, error));
        // Some file systems give a new file another owner.
        let is_ours = |metadata: &Metadata| is_new || belongs_to_us(metadata);
        if !is_ours(&inspect()?) {
            return Ok(Opened::Foreign);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| FileError::Busy(target.to_owned()))?;
        // Until it was locked, another transfer could give it its final name, or remove it.
        let metadata = inspect()?;
        let is_there = path
            .symlink_metadata()
            .is_ok_and(|there| (there.dev(), there.ino()) == (metadata.dev(), metadata.ino()));
        if is_there && is_ours(&metadata) {
            return Ok(Opened::Ours(file));
        }
    }
    Err(FileError::Busy(target.to_owned()))
}

fn belongs_to_us(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.nlink() == 1
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_partial_file_is_opened_by_one_transfer_at_a_time() {
        let directory = std::env::temp_dir().join(format!("openbats-part-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (path, target) = (directory.join(".x.openbats.part"), directory.join("x"));
        let opened = || open(&path, &target);
        let Ok(Opened::Ours(first)) = opened() else { panic!("a new file") };
        first.set_len(7).unwrap();
        assert!(matches!(opened(), Err(FileError::Busy(_))));
        drop(first);
        let Ok(Opened::Ours(again)) = opened() else { panic!("the file of an earlier transfer") };
        assert_eq!(again.metadata().unwrap().len(), 7);
        // It got its final name, but its first one was not removed: the stored file must not change.
        fs::hard_link(&path, &target).unwrap();
        drop(again);
        assert!(matches!(opened(), Ok(Opened::Foreign)));
        // A pipe must not block.
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(opened(), Ok(Opened::Foreign)));
        fs::remove_dir_all(directory).unwrap();
    }
}
