//! Counts how often a thread has gone through a whole configuration: tests bound it.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

pub(super) fn add() {
    COUNT.set(COUNT.get() + 1);
}

pub(crate) fn count() -> usize {
    COUNT.get()
}
