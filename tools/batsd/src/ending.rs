//! Waits for a daemon that is ending. The worker of a killed keeper ends some milliseconds after it, and
//! the kernel closes its sockets and removes its device even later: a supervisor that starts the
//! next daemon at once must not find these in use.

use std::io::{self, ErrorKind};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time for the processes of a killed daemon to end. The longest seen is 30 ms; a host may be busy.
const ENDING: Duration = Duration::from_secs(1);
const INTERVAL: Duration = Duration::from_millis(5);

/// Calls a function again while what it needs is in use.
///
/// # Errors
/// Those of the last call.
pub(crate) fn retry<T>(mut call: impl FnMut() -> anyhow::Result<T>) -> anyhow::Result<T> {
    let end = Instant::now() + ENDING;
    loop {
        match call() {
            Err(error) if is_in_use(&error) && Instant::now() < end => sleep(INTERVAL),
            result => return result,
        }
    }
}

/// Whether something is in use, a device or an address.
pub(crate) fn is_in_use(error: &anyhow::Error) -> bool {
    let mut kinds = error.chain().filter_map(|one| Some(one.downcast_ref::<io::Error>()?.kind()));
    kinds.any(|kind| matches!(kind, ErrorKind::AddrInUse | ErrorKind::ResourceBusy))
}
