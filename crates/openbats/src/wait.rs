//! Blocks on a future without an executor.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::clock::Clock;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The time limit of [`Wait::wait_for`] expired. The future was dropped, which cancels the
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {0:?}")]
pub struct Elapsed(pub Duration);

/// Blocks the calling thread until a future completes.
pub trait Wait: Future + Sized {
    /// Waits without a time limit.
    fn wait(self) -> Self::Output {
        let mut future = pin!(self);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            thread::park();
        }
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    /// [`Elapsed`] when the time limit expires.
    fn wait_for(self, limit: Duration) -> Result<Self::Output, Elapsed> {
        let mut future = pin!(self);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let clock = Clock::new();
        let start = clock.now();
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            let passed = clock.now() - start;
            if passed >= limit {
                return Err(Elapsed(limit));
            }
            thread::park_timeout(limit - passed);
        }
    }
}

impl<F: Future> Wait for F {}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use super::*;

    #[test]
    fn wait_returns_when_another_thread_wakes_the_future() {
        let mut polled = 0;
        let future = poll_fn(|context| {
            polled += 1;
            if polled == 3 {
                return Poll::Ready(polled);
            }
            let waker = context.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        });
        assert_eq!(future.wait(), 3);
    }

    #[test]
    fn wait_for_ends_at_its_limit() {
        let limit = Duration::from_millis(5);
        assert_eq!(pending::<()>().wait_for(limit), Err(Elapsed(limit)));
        assert_eq!(std::future::ready(1).wait_for(Duration::ZERO), Ok(1));
    }
}
