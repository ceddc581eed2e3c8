//! Locks that outlast a panic in another thread: what they protect is consistent after each statement.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic of a thread that held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
