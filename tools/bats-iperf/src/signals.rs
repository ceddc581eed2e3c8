//! Signal handling: SIGINT and SIGTERM stop a test in order, SIGHUP reopens the logs.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::sync::Arc;
use std::thread;

use anyhow::{Context, Result};
use openbats::Endpoint;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::console::Console;
use crate::{error_text, interrupt, logging};

/// Installs the handlers: SIGINT and SIGTERM shut these endpoints down. So does SIGHUP, unless
/// there is a log file to reopen, the process is a daemon, or `nohup` started it.
pub(crate) fn watch(endpoints: Vec<Endpoint>, console: Arc<Console>) -> Result<()> {
    let ignores_hangup = is_ignored(SIGHUP);
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
                        console.note(&format!("bats_iperf: {}", error_text::join_causes(&error)));
                    }
                    continue;
                }
                if signal == SIGHUP && ignores_hangup {
                    continue;
                }
                if interrupt::request() {
                    // A second signal ends the process at once.
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

/// Whether the process ignores this signal.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Bit 0 is signal 1.
    let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
    let mask = bit.and_then(|bit| mask?.checked_shr(bit));
    mask.is_some_and(|mask| mask & 1 == 1)
}
