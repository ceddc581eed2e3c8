//! The PID file. It is locked while the process runs. A file left by a process that has ended is
//! replaced; the file of a running process is not.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Attempts to lock a file that other processes remove meanwhile.
const TRIES: usize = 10;

/// A PID file with the number of this process; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    /// # Errors
    /// The file cannot be written, or belongs to a running process.
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
                // Some file systems have no locks; go on without one.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut owner = String::new();
                    let _ = (&mut file).take(20).read_to_string(&mut owner);
                    bail!("{} belongs to the running process {}", path.display(), owner.trim());
                }
            }
            let pid_file = Self { path: path.to_owned(), file };
            if !pid_file.is_current() {
                // The owner removed the file between open and lock.
                continue;
            }
            // Has no effect on a file that is not a regular file.
            let _ = pid_file.file.set_len(0);
            writeln!(&pid_file.file, "{}", std::process::id()).with_context(cannot)?;
            return Ok(pid_file);
        }
        bail!("cannot lock {}: other processes replace it repeatedly", path.display())
    }

    fn is_current(&self) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        match (fs::metadata(&self.path), self.file.metadata()) {
            (Ok(there), Ok(pid_file)) => identity(there) == identity(pid_file),
            _ => false,
        }
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Keep `/dev/stdout`, and a file that another process has put there.
        let is_file = fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.is_file());
        if is_file && self.is_current() {
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
    fn a_stale_pid_file_is_replaced_and_removed_on_drop() {
        let path = scratch("stale");
        fs::write(&path, "123456789123\n").unwrap();
        let pid_file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        drop(pid_file);
        assert!(!path.exists());
    }

    #[test]
    fn the_pid_file_of_a_running_process_is_kept() {
        let path = scratch("held");
        let pid_file = PidFile::write(&path).unwrap();
        let error = PidFile::write(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("running process {}", std::process::id())), "{error}");
        assert!(path.exists());
        // Another process put a different file there: it must not be removed.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "7").unwrap();
        drop(pid_file);
        assert_eq!(fs::read_to_string(&path).unwrap(), "7");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_device_file_is_not_removed() {
        drop(PidFile::write(Path::new("/dev/null")).unwrap());
        assert!(Path::new("/dev/null").exists());
        assert!(PidFile::write(Path::new("/nowhere/pid")).is_err());
    }
}
