//! Parks a thread until its waker is called, also while it waits for a socket.

use std::cell::RefCell;
use std::io;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Wake;
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use bats_types::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ThreadWaker;

/// The thread runs.
const RUNNING: u8 = 0;
/// The waker was called since the last sleep.
const NOTIFIED: u8 = 1;
/// The thread is parked.
const PARKED: u8 = 2;
/// The thread waits for a file descriptor.
const POLLING: u8 = 3;

/// The waker of a thread.
#[derive(Debug)]
pub(crate) struct ParkState {
    thread: Thread,
    state: AtomicU8,
    /// Ends a wait for a file descriptor. It belongs to an endpoint, and is closed with it.
    event: Mutex<Weak<ThreadWaker>>,
}

impl Wake for ParkState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.swap(NOTIFIED, Ordering::AcqRel) {
            PARKED => self.thread.unpark(),
            POLLING => {
                if let Some(event) = self.event().upgrade() {
                    event.wake();
                }
            }
            _ => {}
        }
    }
}

/// Whether a descriptor is ready after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Readiness {
    pub(crate) is_readable: bool,
    pub(crate) has_error: bool,
}

impl Readiness {
    pub(super) fn new(events: PollFlags) -> Self {
        let has = |flag| events.contains(flag);
        Self { is_readable: has(PollFlags::IN), has_error: has(PollFlags::ERR) }
    }
}

impl ParkState {
    pub(crate) fn is_notified(&self) -> bool {
        self.state.load(Ordering::Acquire) == NOTIFIED
    }

    pub(super) fn thread_id(&self) -> ThreadId {
        self.thread.id()
    }

    fn event(&self) -> MutexGuard<'_, Weak<ThreadWaker>> {
        self.event.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares waits for a file descriptor that `event` ends.
    pub(crate) fn prepare_poll(&self, event: &Arc<ThreadWaker>) {
        let mut known = self.event();
        if !std::ptr::eq(known.as_ptr(), Arc::as_ptr(event)) {
            *known = Arc::downgrade(event);
        }
    }

    /// From now on the waker ends the following [`poll`](Self::poll). Returns `false` if it was
    /// called already.
    pub(crate) fn begin_poll(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(RUNNING, POLLING, success, failure).is_ok()
    }

    /// Waits until the file is readable, the waker is called, or the time is up. `begin_poll` came
    /// before.
    pub(crate) fn poll(
        &self,
        file: &impl AsFd,
        event: &ThreadWaker,
        timeout: Option<Duration>,
    ) -> io::Result<Readiness> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut files = [PollFd::new(file, PollFlags::IN), PollFd::new(event, PollFlags::IN)];
        let result = match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        };
        let [ready, woken] = files.map(|file| file.revents());
        if !self.end_poll() || !woken.is_empty() {
            event.reset();
        }
        result.map(|()| Readiness::new(ready))
    }

    /// Ends the time in which the waker writes to the event. Returns `false` if it has done so or
    /// is about to; the notification is kept.
    fn end_poll(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        self.state.compare_exchange(POLLING, RUNNING, success, failure).is_ok()
    }
}

/// The waker of the calling thread, reused by all its waits.
#[derive(Debug)]
pub(crate) struct Parker(Arc<ParkState>);

thread_local! {
    static FREE: RefCell<Option<Arc<ParkState>>> = const { RefCell::new(None) };
}

impl Parker {
    /// Takes the parker of this thread. A wait inside of another one gets its own.
    pub(crate) fn of_this_thread() -> Self {
        let free = FREE.try_with(|free| free.take()).ok().flatten();
        let state = free.unwrap_or_else(|| {
            Arc::new(ParkState {
                thread: thread::current(),
                state: AtomicU8::new(RUNNING),
                event: Mutex::default(),
            })
        });
        Self(state)
    }

    pub(crate) fn shared(&self) -> Arc<ParkState> {
        Arc::clone(&self.0)
    }

    /// Waits until the waker is called or the time is up; sometimes it returns earlier.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        let state = &self.0.state;
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        if state.compare_exchange(RUNNING, PARKED, success, failure).is_ok() {
            match limit {
                None => thread::park(),
                Some(limit) => thread::park_timeout(limit),
            }
        }
        state.store(RUNNING, Ordering::Release);
    }

    /// Forgets the notification: the future is polled next.
    pub(crate) fn clear(&self) {
        self.0.state.store(RUNNING, Ordering::Release);
    }
}

impl Deref for Parker {
    type Target = ParkState;

    fn deref(&self) -> &ParkState {
        &self.0
    }
}

impl Drop for Parker {
    fn drop(&mut self) {
        self.clear();
        let _ = FREE.try_with(|free| *free.borrow_mut() = Some(Arc::clone(&self.0)));
    }
}

/// The time from `now` to `until`, at least zero.
pub(super) fn time_left(until: Option<Timestamp>, now: Timestamp) -> Option<Duration> {
    until.map(|until| until - now)
}
