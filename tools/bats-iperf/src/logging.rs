//! The log of the library.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;

use crate::cli::Options;

/// The protocol log; stays open while the process runs.
static LOG: Mutex<Option<(PathBuf, File)>> = Mutex::new(None);

/// Starts logging if requested: with `-L` to a file, with `-d` to standard error, with both in
/// detail to the file.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn start(options: &Options) -> Result<()> {
    let level = if options.output.debug { LevelFilter::DEBUG } else { LevelFilter::INFO };
    let builder = tracing_subscriber::fmt().with_max_level(level);
    match file(options) {
        Some(path) => {
            let file = open(&path)?;
            if let Ok(mut log) = LOG.lock() {
                *log = Some((path, file));
            }
            builder.with_ansi(false).with_writer(|| LogWriter).init();
        }
        None if options.output.debug => builder.with_writer(std::io::stderr).init(),
        None => {}
    }
    Ok(())
}

/// Reopens the file by its name: it may have been renamed or removed.
///
/// # Errors
/// The file cannot be opened; logging continues to the old one.
pub(crate) fn reopen() -> Result<()> {
    let Ok(mut log) = LOG.lock() else { return Ok(()) };
    if let Some((path, file)) = &mut *log {
        *file = open(path)?;
    }
    Ok(())
}

/// Whether there is a log file.
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

/// The path of the log file. In a directory, each side and port has its own file.
fn file(options: &Options) -> Option<PathBuf> {
    let path = options.output.protocol_log.as_ref()?;
    if !path.is_dir() {
        return Some(path.clone());
    }
    let side = if options.server { "server" } else { "client" };
    Some(path.join(format!("bats_iperf-{side}-{}.log", options.port)))
}

/// Writes to the file that is open at the time.
struct LogWriter;

impl Write for LogWriter {
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
