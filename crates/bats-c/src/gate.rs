//! Prevents callbacks from running after their owner is destroyed.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

#[derive(Debug, Default)]
struct State {
    is_closed: bool,
    /// Threads that now run a callback of the owner.
    running: Vec<ThreadId>,
}

/// Gate of an owner. Each of its callbacks enters the gate before it runs.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    returned: Condvar,
}

/// Guard of a running callback.
pub(crate) struct CallbackGuard<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the gate for a callback; `None` if the gate is closed.
    pub(crate) fn enter(&self) -> Option<CallbackGuard<'_>> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        state.running.push(thread::current().id());
        Some(CallbackGuard(self))
    }

    /// Closes the gate and waits until all callbacks have returned, except those on the calling
    /// thread.
    pub(crate) fn close(&self) {
        let me = thread::current().id();
        let mut state = self.lock();
        state.is_closed = true;
        while state.running.iter().any(|&thread| thread != me) {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

impl Drop for CallbackGuard<'_> {
    fn drop(&mut self) {
        let me = thread::current().id();
        let mut state = self.0.lock();
        if let Some(index) = state.running.iter().rposition(|&thread| thread == me) {
            state.running.swap_remove(index);
        }
        drop(state);
        self.0.returned.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn close_waits_for_callbacks_of_other_threads_only() {
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
