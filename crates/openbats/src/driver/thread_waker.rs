//! Wakes the I/O thread from its sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(target_os = "linux")]
use rustix::event::{EventfdFlags, eventfd};

/// A file descriptor that becomes readable on [`wake`](Self::wake).
#[derive(Debug)]
pub(crate) struct ThreadWaker {
    read_end: OwnedFd,
    /// On Linux one eventfd serves as both ends.
    #[cfg(not(target_os = "linux"))]
    write_end: OwnedFd,
}

impl ThreadWaker {
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { read_end: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)? })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        let (write_end, read_end) = std::os::unix::net::UnixStream::pair()?;
        write_end.set_nonblocking(true)?;
        read_end.set_nonblocking(true)?;
        Ok(Self { read_end: read_end.into(), write_end: write_end.into() })
    }

    pub(crate) fn wake(&self) {
        #[cfg(target_os = "linux")]
        let write_end = &self.read_end;
        #[cfg(not(target_os = "linux"))]
        let write_end = &self.write_end;
        // If the buffer is full, the descriptor is readable already. No other error can occur.
        let _ = rustix::io::write(write_end, &1u64.to_ne_bytes());
    }

    pub(crate) fn reset(&self) {
        let mut count = [0; 64];
        let _ = rustix::io::read(&self.read_end, &mut count);
    }
}

impl AsFd for ThreadWaker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read_end.as_fd()
    }
}
