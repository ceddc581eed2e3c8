//! Lack of memory or of file descriptors: a shortage of the host that ends by itself must not end a lab.

use std::io::{Error, ErrorKind};
use std::time::Duration;

use nix::errno::Errno;

/// Pause before an `accept` that failed is repeated. The connection waits, so the next call would fail at once.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// Pause after a call for which the kernel had no memory: short against the times at which frames are late.
pub(crate) const MEMORY_PAUSE: Duration = Duration::from_micros(50);

/// Whether the error of a call that sends or receives is a time limit, a signal or a lack of kernel memory. After the last
/// it pauses: the socket stays ready, so the next call would fail at once.
pub(crate) fn may_retry(error: &Error) -> bool {
    if openbats::is_lack_of_memory(error) {
        std::thread::sleep(MEMORY_PAUSE);
        return true;
    }
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Whether the error of `accept` leaves the listener usable: no memory, no file descriptor, a signal, or a connection
/// that has ended before.
pub(crate) fn is_temporary_accept(error: &Error) -> bool {
    let lacks_files =
        matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE));
    lacks_files
        || openbats::is_lack_of_memory(error)
        || matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_kernel_memory_ends_no_sender_or_receiver() {
        for code in [Errno::ENOMEM, Errno::ENOBUFS, Errno::EAGAIN, Errno::EINTR, Errno::ETIMEDOUT] {
            assert!(may_retry(&code.into()), "{code}");
        }
        for code in [Errno::EBADF, Errno::ECONNREFUSED, Errno::ECONNRESET] {
            assert!(!may_retry(&code.into()), "{code}");
        }
    }

    #[test]
    fn shortages_and_ended_connections_end_no_listener() {
        let temporary = [
            Errno::EMFILE,
            Errno::ENFILE,
            Errno::ENOMEM,
            Errno::ENOBUFS,
            Errno::EINTR,
            Errno::ECONNABORTED,
        ];
        for code in temporary {
            assert!(is_temporary_accept(&code.into()), "{code}");
        }
        for code in [Errno::EBADF, Errno::EINVAL, Errno::EPERM] {
            assert!(!is_temporary_accept(&code.into()), "{code}");
        }
    }
}
