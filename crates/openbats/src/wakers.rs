//! Tasks that wait for an event.

use std::task::Waker;

use smallvec::SmallVec;

/// Tasks that wait for the same event.
#[derive(Debug, Default)]
pub(crate) struct Wakers(SmallVec<[Waker; 1]>);

impl Wakers {
    pub(crate) fn register(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.will_wake(waker)) {
            self.0.push(waker.clone());
        }
    }

    /// Removes the task of `waker`.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.will_wake(waker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether only the task of `waker` waits.
    pub(crate) fn has_only(&self, waker: Option<&Waker>) -> bool {
        self.0.iter().all(|known| waker.is_some_and(|waker| known.will_wake(waker)))
    }

    pub(crate) fn drain_into(&mut self, due: &mut Vec<Waker>) {
        due.extend(self.0.drain(..));
    }
}
