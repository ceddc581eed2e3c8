//! Wakes the I/O thread from its sleep.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[cfg(target_os = "linux")]
use rustix::event::{EventfdFlags, eventfd};

/// A file that becomes readable when someone rings.
#[derive(Debug)]
pub(crate) struct Alarm {
    listen: OwnedFd,
    /// On Linux both ends are one eventfd.
    #[cfg(not(target_os = "linux"))]
    ring: OwnedFd,
}

impl Alarm {
    #[cfg(target_os = "linux")]
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { listen: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)? })
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn new() -> io::Result<Self> {
        let (ring, listen) = std::os::unix::net::UnixStream::pair()?;
        ring.set_nonblocking(true)?;
        listen.set_nonblocking(true)?;
        Ok(Self { listen: listen.into(), ring: ring.into() })
    }

    pub(crate) fn ring(&self) {
        #[cfg(target_os = "linux")]
        let ring = &self.listen;
        #[cfg(not(target_os = "linux"))]
        let ring = &self.ring;
        // A full file rings already; nothing else can go wrong with a file of our own.
        let _ = rustix::io::write(ring, &1u64.to_ne_bytes());
    }

    pub(crate) fn silence(&self) {
        let mut count = [0; 64];
        let _ = rustix::io::read(&self.listen, &mut count);
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listen.as_fd()
    }
}
