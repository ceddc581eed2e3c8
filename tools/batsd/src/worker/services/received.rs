//! Failed receive calls of sockets for datagrams.

use std::io;
use std::time::Duration;

/// Pause after a receive call that failed.
const PAUSE: Duration = Duration::from_millis(1);

/// What a receive call returned; nothing, and that after a pause, if it failed. An error is an ICMP message about a
/// datagram before, or a lack of memory, which leaves the socket ready: the next call would fail at once, without end.
pub(super) async fn received<T>(result: io::Result<T>) -> Option<T> {
    if result.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
    result.ok()
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn receive_calls_that_fail_leave_others_their_turn() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let mut context = Context::from_waker(Waker::noop());
        for error in [Errno::NOMEM, Errno::NOBUFS, Errno::CONNREFUSED] {
            let mut calls = 0;
            let mut receives = pin!(async {
                loop {
                    calls += 1;
                    assert!(calls < 100, "it calls again without a pause");
                    let result = if calls < 3 { Err(error.into()) } else { Ok(7) };
                    let Some(value) = received(result).await else { continue };
                    return (value, calls);
                }
            });
            assert_eq!(receives.as_mut().poll(&mut context), Poll::Pending, "{error}");
            assert_eq!(runtime.block_on(receives), (7, 3), "{error}");
        }
    }
}
