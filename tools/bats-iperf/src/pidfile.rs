//! The file with this process's number. It is locked for as long as the process runs, so that what
//! an earlier one left behind is no obstacle, and what a running one needs is not taken.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Tries to lock a file that others remove meanwhile.
const TRIES: usize = 10;

/// A file with this process's number; it goes with the value.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// # Errors
    /// The file cannot be written, or is that of a running process.
    pub(crate) fn write(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        for _ in 0..TRIES {
            let mut file = File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
                .with_context(cannot)?;
            match file.try_lock() {
                // A file system without locks is none of ours to complain about.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    let _ = (&mut file).take(20).read_to_string(&mut owner);
                    bail!("{} is that of the running process {}", path.display(), owner.trim());
                }
            }
            let own = Self { path: path.to_owned(), file };
            if !own.is_at_its_place() {
                // Its process ended between our opening and our locking it.
                continue;
            }
            // What is no regular file has no length.
            let _ = own.file.set_len(0);
            writeln!(&own.file, "{}", std::process::id()).with_context(cannot)?;
            return Ok(own);
        }
        bail!("{}: others take it again and again", path.display())
    }

    fn is_at_its_place(&self) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(own)) => identity(there) == identity(own),
            _ => false,
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // `/dev/stdout` shall stay, and so shall what somebody else has put there.
        let is_file = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        if is_file && self.is_at_its_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("bats-iperf-pid-{name}-{}", std::process::id()))
    }

    #[test]
    fn what_a_dead_process_left_is_replaced_and_goes_in_the_end() {
        let path = scratch("stale");
        fs::write(&path, "123456789123\n").unwrap();
        let own = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(own);
        assert!(!path.exists());
    }

    #[test]
    fn a_running_process_keeps_its_file() {
        let path = scratch("held");
        let own = PidFile::write(&path).unwrap();
        let error = PidFile::write(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("running process {}", std::process::id())), "{error}");
        assert!(path.exists());
        // Somebody put another file there: it is not ours to remove.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "7").unwrap();
        drop(own);
        assert_eq!(fs::read_to_string(&path).unwrap(), "7");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn what_is_no_file_stays() {
        drop(PidFile::write(Path::new("/dev/null")).unwrap());
        assert!(Path::new("/dev/null").exists());
        assert!(PidFile::write(Path::new("/nowhere/pid")).is_err());
    }
}
