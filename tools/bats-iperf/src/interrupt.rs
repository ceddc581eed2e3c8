//! Whether the process was asked to stop. Signals set it; tests and connection attempts check it.

use std::sync::atomic::{AtomicBool, Ordering};

static REQUESTED: AtomicBool = AtomicBool::new(false);

/// Asks the process to stop. Returns whether it was asked before.
pub(crate) fn request() -> bool {
    REQUESTED.swap(true, Ordering::AcqRel)
}

/// Whether the process was asked to stop.
pub(crate) fn requested() -> bool {
    REQUESTED.load(Ordering::Acquire)
}
