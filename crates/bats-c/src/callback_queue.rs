//! Callback queue of a context without a thread: callbacks wait until the program polls.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Maximum number of callbacks that one poll runs, so that it returns.
const MAX_PER_POLL: usize = 256;

struct QueuedCallback {
    job: Job,
    _done: oneshot::Sender<()>,
}

/// A queue of callbacks, and a file descriptor that is readable while the queue is not empty. The
/// task that queues a callback waits until it has run, so there is at most one per connection and
/// listener.
pub(crate) struct CallbackQueue {
    queue: Mutex<VecDeque<QueuedCallback>>,
    eventfd_handle: OwnedFd,
    is_polled: AtomicBool,
    is_closed: AtomicBool,
}

impl CallbackQueue {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            eventfd_handle: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            is_polled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<QueuedCallback>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.eventfd_handle.as_raw_fd()
    }

    fn signal(&self) {
        // The write fails only if the counter is at its maximum; then the descriptor is readable.
        let _ = rustix::io::write(&self.eventfd_handle, &1u64.to_ne_bytes());
    }

    /// Queues a callback, and waits until it has run or the queue is closed.
    pub(crate) async fn run(&self, job: Job) {
        let (done, ran) = oneshot::channel();
        {
            let mut queue = self.lock();
            if self.is_closed.load(Ordering::SeqCst) {
                return;
            }
            queue.push_back(QueuedCallback { job, _done: done });
        }
        self.signal();
        // The sender is dropped after the job, or with the queue.
        let _ = ran.await;
    }

    /// Runs the queued callbacks and returns their number. If there is none, waits for the first
    /// one at most `timeout` (`None`: without limit).
    pub(crate) fn poll(&self, timeout: Option<Duration>) -> Result<usize, &'static str> {
        if self.is_polled.swap(true, Ordering::SeqCst) {
            return Err("the context is being polled already, by another thread or a callback");
        }
        let _end = EndPoll(self);
        if self.lock().is_empty() && timeout != Some(Duration::ZERO) {
            let timeout = timeout.map(|timeout| Timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            let mut files = [PollFd::new(&self.eventfd_handle, PollFlags::IN)];
            // An interrupted wait returns early, like other waits of the program.
            let _ = poll(&mut files, timeout.as_ref());
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.eventfd_handle, &mut count);
        let mut ran = 0;
        while ran < MAX_PER_POLL {
            let Some(next) = self.lock().pop_front() else { return Ok(ran) };
            (next.job)();
            ran += 1;
        }
        self.signal();
        Ok(ran)
    }

    /// Drops the queued callbacks and accepts no more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let queued = std::mem::take(&mut *self.lock());
        drop(queued);
        self.signal();
    }
}

struct EndPoll<'a>(&'a CallbackQueue);

impl Drop for EndPoll<'_> {
    fn drop(&mut self) {
        self.0.is_polled.store(false, Ordering::SeqCst);
    }
}
