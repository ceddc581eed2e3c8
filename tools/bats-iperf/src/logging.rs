//! Where the library's log goes.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;

use crate::cli::Options;

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
            let file = File::options()
                .append(true)
                .create(true)
                .open(&path)
                .with_context(|| format!("cannot write the protocol log {}", path.display()))?;
            builder.with_ansi(false).with_writer(Mutex::new(file)).init();
        }
        None if options.debug => builder.with_writer(std::io::stderr).init(),
        None => {}
    }
    Ok(())
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
