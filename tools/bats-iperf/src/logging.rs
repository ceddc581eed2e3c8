//! Where the library's log goes.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;

use crate::cli::Options;

/// The protocol's log, for as long as the process runs.
static LOG: Mutex<Option<(PathBuf, File)>> = Mutex::new(None);

/// Begins to log, if that is asked for: with `-L` to a file, with `-d` to standard error, with
/// both in detail to the file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn start(options: &Options) -> Result<()> {
    let level = if options.debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let builder = tracing_subscriber::fmt().with_max_level(level);
    match file(options) {
        Some(path) => {
            let file = open(&path)?;
            if let Ok(mut log) = LOG.lock() {
                *log = Some((path, file));
            }
            builder.with_ansi(false).with_writer(|| ToLog).init();
        }
        None if options.debug => builder.with_writer(std::io::stderr).init(),
        None => {}
    }
    Ok(())
}

/// Opens the file by its name again: it may have been renamed or removed.
///
/// # Errors
/// It cannot be opened; the old one goes on.
pub(crate) fn reopen() -> Result<()> {
    let Ok(mut log) = LOG.lock() else { return Ok(()) };
    if let Some((path, file)) = &mut *log {
        *file = open(path)?;
    }
    Ok(())
}

/// Whether there is such a file.
pub(crate) fn has_file() -> bool {
    LOG.lock().is_ok_and(|log| log.is_some())
}

fn open(path: &Path) -> Result<File> {
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write the protocol log {}", path.display()))
}

/// In a directory, each side and port has a file of its own.
fn file(options: &Options) -> Option<PathBuf> {
    let path = options.protocol_log.as_ref()?;
    if !path.is_dir() {
        return Some(path.clone());
    }
    let side = if options.server { "server" } else { "client" };
    Some(path.join(format!("bats_iperf-{side}-{}.log", options.port)))
}

/// Writes to whatever file is open now.
struct ToLog;

impl Write for ToLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match LOG.lock().as_deref_mut() {
            Ok(Some((_, file))) => file.write(bytes),
            _ => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
