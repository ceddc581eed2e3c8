//! Signals: an interrupt or a request to end stops a test in order, a hang-up opens the log anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result};
use openbats::Endpoint;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::console::Console;
use crate::{logging, sentence};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// From now on an interrupt or termination shuts these endpoints down. A hang-up does the same
/// unless there is a log file, which it opens anew, or no terminal that could hang up.
pub(crate) fn watch(endpoints: Vec<Endpoint>, console: Arc<Console>) -> Result<()> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                let goes_on = console.has_log() || console.is_detached() || logging::has_file();
                if signal == SIGHUP && goes_on {
                    console.reopen();
                    if let Err(error) = logging::reopen() {
                        console.note(&format!("bats_iperf: {}", sentence::of(&error)));
                    }
                    continue;
                }
                if REQUESTED.swap(true, Ordering::AcqRel) {
                    // Asked twice: whoever asks will not wait.
                    std::process::exit(1);
                }
                for endpoint in &endpoints {
                    endpoint.shut_down(1, "interrupted");
                }
            }
        })
        .context("cannot watch for signals")?;
    Ok(())
}

/// Whether there was one.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}
