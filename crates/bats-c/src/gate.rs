//! Keeps callbacks from running after their owner is gone.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    /// Threads that are in a callback of the owner now.
    running: Vec<ThreadId>,
}

/// Every callback of an owner passes its gate.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    left: Condvar,
}

/// A callback runs while this lives.
pub(crate) struct Entered<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` once the gate is closed.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        state.running.push(thread::current().id());
        Some(Entered(self))
    }

    /// Closes the gate and waits until every callback has returned, but not for those that the
    /// calling thread itself is in.
    pub(crate) fn close(&self) {
        let me = thread::current().id();
        let mut state = self.lock();
        state.is_closed = true;
        while state.running.iter().any(|&thread| thread != me) {
            state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let me = thread::current().id();
        let mut state = self.0.lock();
        if let Some(place) = state.running.iter().rposition(|&thread| thread == me) {
            state.running.swap_remove(place);
        }
        drop(state);
        self.0.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn closing_waits_for_others_and_not_for_oneself() {
        let gate = Gate::default();
        let done = AtomicBool::new(false);
        let mine = gate.enter();
        thread::scope(|scope| {
            let (entered, wait) = std::sync::mpsc::channel();
            let (gate, done) = (&gate, &done);
            scope.spawn(move || {
                let _running = gate.enter().unwrap();
                entered.send(()).unwrap();
                thread::sleep(Duration::from_millis(50));
                done.store(true, Ordering::SeqCst);
            });
            wait.recv().unwrap();
            gate.close();
            assert!(done.load(Ordering::SeqCst));
        });
        assert!(gate.enter().is_none());
        drop(mine);
        gate.close();
    }
}
