//! The key log of the process, to decrypt captures: the file that `SSLKEYLOGFILE` names.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::{Mutex, OnceLock, PoisonError};

use bats_proto::KeyLog;

/// The variable that names the file, as in other programs with TLS.
const VARIABLE: &str = "SSLKEYLOGFILE";

/// The log that the environment asks for; `None` if the variable is unset or empty, or if the file
/// cannot be opened. The variable is read once.
pub(crate) fn from_environment() -> Option<KeyLog> {
    static LOG: OnceLock<Option<KeyLog>> = OnceLock::new();
    LOG.get_or_init(|| {
        let path = std::env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        match open(&path) {
            Ok(file) => {
                tracing::warn!(file = ?path, "secrets of all connections are logged: {VARIABLE} is set");
                Some(log_to(file))
            }
            Err(error) => {
                tracing::error!(%error, file = ?path, "secrets are not logged: cannot open the file of {VARIABLE}");
                None
            }
        }
    })
    .clone()
}

/// Opens the file for appending; a new one is readable by its owner only.
fn open(path: &OsStr) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn log_to(file: File) -> KeyLog {
    let file = Mutex::new(file);
    KeyLog::new(move |line| {
        // One write per line, because other processes may append to the same file.
        let written = file
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(format!("{line}\n").as_bytes());
        if let Err(error) = written {
            tracing::debug!(%error, "secret not logged");
        }
    })
}
