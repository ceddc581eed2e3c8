//! SIGINT and SIGTERM end a test with its summary; a second one ends the process at once.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handlers.
///
/// # Errors
/// The system refuses them.
pub(crate) fn watch() -> Result<()> {
    let requested = Arc::clone(REQUESTED.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 255, Arc::clone(&requested))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&requested)))
            .context("cannot watch for signals")?;
    }
    Ok(())
}

/// Whether a signal asked the process to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.get().is_some_and(|requested| requested.load(Ordering::Acquire))
}
