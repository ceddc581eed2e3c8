//! Readiness of many sockets: epoll(7).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::event::{Timespec, epoll};

/// Sockets reported per call; the next call reports the others.
const MAX_EVENTS: usize = 256;

/// The readiness to wait for. Errors are always reported, once if paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    Nothing,
    /// Nothing, for a socket that may have an error.
    Paused,
    Read,
    ReadWrite,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Nothing => epoll::EventFlags::empty(),
            Self::Paused => epoll::EventFlags::ONESHOT,
            Self::Read => epoll::EventFlags::IN,
            Self::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
        }
    }
}

/// A set of sockets. Its own file descriptor is readable while one of them is ready.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(epoll::CreateFlags::CLOEXEC)?))
    }

    /// Adds a socket; closing the socket removes it.
    pub(crate) fn add(&self, socket: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.0, socket, data, interest.flags())?)
    }

    pub(crate) fn change(
        &self,
        socket: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::modify(&self.0, socket, data, interest.flags())?)
    }

    /// Removes a socket that stays open.
    pub(crate) fn remove(&self, socket: &impl AsFd) {
        // An error means that the socket is not in the set.
        let _ = epoll::delete(&self.0, socket);
    }

    /// Appends the tokens of the sockets that are ready now.
    pub(crate) fn ready(&self, tokens: &mut Vec<u64>) -> io::Result<()> {
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; MAX_EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.0, &mut events[..], Some(&now)) {
            Ok(count) => tokens.extend(events[..count].iter().map(|event| event.data.u64())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

/// A poller that is created with its first socket.
#[derive(Debug, Default)]
pub(crate) struct LazyPoller(OnceLock<Poller>);

impl LazyPoller {
    /// See [`Poller::add`].
    pub(crate) fn add(&self, socket: &impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        let poller = match self.0.get() {
            Some(poller) => poller,
            None => {
                let new = Poller::new()?;
                self.0.get_or_init(|| new)
            }
        };
        poller.add(socket, token, interest)
    }

    /// See [`Poller::change`].
    pub(crate) fn change(
        &self,
        socket: &impl AsFd,
        token: u64,
        interest: Interest,
    ) -> io::Result<()> {
        match self.0.get() {
            Some(poller) => poller.change(socket, token, interest),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// See [`Poller::remove`].
    pub(crate) fn remove(&self, socket: &impl AsFd) {
        if let Some(poller) = self.0.get() {
            poller.remove(socket);
        }
    }

    /// See [`Poller::ready`].
    pub(crate) fn ready(&self, tokens: &mut Vec<u64>) -> io::Result<()> {
        self.0.get().map_or(Ok(()), |poller| poller.ready(tokens))
    }

    /// The file descriptor that is readable while a socket is ready, once there is one.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.0.get().map(AsFd::as_fd)
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
