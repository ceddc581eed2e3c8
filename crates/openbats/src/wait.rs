//! Blocks on a future without an executor.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::driver::{Candidate, Parker};

/// The time limit of [`Wait::wait_for`] expired. The future was dropped, which cancels the
/// operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not done within {0:?}")]
pub struct Elapsed(pub Duration);

/// Blocks the calling thread until a future completes.
///
/// A thread that waits for a message of [`Connection::recv`](crate::Connection::recv) receives from
/// the socket itself if no other task waits for this endpoint, which saves the hop over the I/O
/// thread.
pub trait Wait: Future + Sized {
    /// Waits without a time limit.
    fn wait(self) -> Self::Output {
        match block_on(self, None) {
            Ok(output) => output,
            Err(Elapsed(_)) => unreachable!("there is no time limit"),
        }
    }

    /// Waits for at most `limit`.
    ///
    /// # Errors
    /// [`Elapsed`] when the time limit expires.
    fn wait_for(self, limit: Duration) -> Result<Self::Output, Elapsed> {
        block_on(self, Some(limit))
    }
}

fn block_on<F: Future>(future: F, limit: Option<Duration>) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let parker = Parker::of_this_thread();
    let waker = Waker::from(parker.shared());
    let mut context = Context::from_waker(&waker);
    let mut start = None;
    loop {
        let (polled, candidate) = Candidate::collect(|| future.as_mut().poll(&mut context));
        if let Poll::Ready(output) = polled {
            return Ok(output);
        }
        let left = match limit {
            None => None,
            Some(limit) => {
                // Many futures are ready at once, so the time begins here.
                let passed = start.get_or_insert_with(now).elapsed();
                if passed >= limit {
                    return Err(Elapsed(limit));
                }
                Some(limit.saturating_sub(passed))
            }
        };
        let has_led = candidate.is_some_and(|candidate| candidate.lead(&parker, &waker, left));
        match has_led {
            true => parker.clear(),
            false => parker.park(left),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this waits for the system's time")]
fn now() -> Instant {
    Instant::now()
}

impl<F: Future> Wait for F {}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::thread;

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
