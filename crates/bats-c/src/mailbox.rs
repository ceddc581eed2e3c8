//! Events of a context that is polled: they wait until the program fetches them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Events fetched by one call at most, so that it returns.
const MOST_AT_ONCE: usize = 256;

struct Letter {
    job: Job,
    _done: oneshot::Sender<()>,
}

/// A queue of callbacks to be made, and a file that is readable while there are any. Whoever puts
/// one in waits until it has run, so there is at most one for each connection and listener.
pub(crate) struct Mailbox {
    queue: Mutex<VecDeque<Letter>>,
    alarm: OwnedFd,
    is_polled: AtomicBool,
    is_closed: AtomicBool,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            queue: Mutex::default(),
            alarm: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            is_polled: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Letter>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.alarm.as_raw_fd()
    }

    fn ring(&self) {
        // A full counter rings already.
        let _ = rustix::io::write(&self.alarm, &1u64.to_ne_bytes());
    }

    /// Queues a callback and waits until it has run, or the mailbox was closed.
    pub(crate) async fn run(&self, job: Job) {
        let (done, ran) = oneshot::channel();
        {
            let mut queue = self.lock();
            if self.is_closed.load(Ordering::SeqCst) {
                return;
            }
            queue.push_back(Letter { job, _done: done });
        }
        self.ring();
        // The sender is dropped after the job, or with the queue.
        let _ = ran.await;
    }

    /// Runs what waits; if nothing does, waits for it at most `timeout` (`None`: for ever). The
    /// number of callbacks made.
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
            let mut files = [PollFd::new(&self.alarm, PollFlags::IN)];
            // An interrupted wait is over early, as the caller's other waits are.
            let _ = poll(&mut files, timeout.as_ref());
        }
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.alarm, &mut count);
        let mut ran = 0;
        while ran < MOST_AT_ONCE {
            let Some(letter) = self.lock().pop_front() else { return Ok(ran) };
            (letter.job)();
            ran += 1;
        }
        self.ring();
        Ok(ran)
    }

    /// Drops what waits and takes nothing more.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let rest = std::mem::take(&mut *self.lock());
        drop(rest);
        self.ring();
    }
}

struct EndPoll<'a>(&'a Mailbox);

impl Drop for EndPoll<'_> {
    fn drop(&mut self) {
        self.0.is_polled.store(false, Ordering::SeqCst);
    }
}
