//! I/O threads. Each drives the sockets of any number of endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use bats_types::Timestamp;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::endpoint_driver::{Driver, Next};
use super::endpoint_waker::EndpointThread;
use super::socket::{RECEIVE_BATCH, ReceiveBuffers};
use super::timers::SHORTEST_SLEEP;
use super::{Interest, Poller, Sockets, ThreadWaker};
use crate::clock::Clock;

/// Timer slack requested from the system: the default of 50 us is a fifth of a pacing interval.
const TIMER_SLACK_NS: u64 = 1;
/// Poller token of the thread's waker. The tokens of an endpoint are twice its number for UDP, and
/// one more for its TCP sockets.
const WAKER: u64 = u64::MAX;

/// A set of I/O threads that endpoints share; see [`Builder::io_threads`](crate::Builder). Clones
/// refer to the same threads. A thread starts when an endpoint needs it and ends with its last
/// endpoint.
#[derive(Clone, Debug)]
pub struct IoThreads(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    limit: NonZeroUsize,
    /// A thread keeps itself until its end.
    threads: Mutex<Vec<Weak<IoThread>>>,
}

impl IoThreads {
    /// A set of at most `limit` threads. Each endpoint uses one of them.
    #[must_use]
    pub fn new(limit: NonZeroUsize) -> Self {
        Self(Arc::new(Pool { limit, threads: Mutex::default() }))
    }

    /// Adds an endpoint to the thread with the fewest, or to a new one.
    pub(super) fn attach(&self, driver: Driver) -> io::Result<()> {
        let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| thread.upgrade().is_some_and(|thread| !thread.lock().has_ended));
        let mut driver = driver;
        if threads.len() >= self.0.limit.get() {
            let running = threads.iter().filter_map(Weak::upgrade);
            if let Some(thread) = running.min_by_key(|thread| thread.lock().endpoints) {
                match thread.add(driver) {
                    Ok(()) => return Ok(()),
                    // The thread has just ended.
                    Err(returned) => driver = *returned,
                }
            }
        }
        threads.push(Arc::downgrade(&IoThread::start(driver)?));
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Inbox {
    new: Vec<Driver>,
    /// Endpoints with new work.
    woken: Vec<u64>,
    next: u64,
    endpoints: usize,
    has_ended: bool,
}

/// The part of an I/O thread that other threads use.
#[derive(Debug)]
pub(super) struct IoThread {
    inbox: Mutex<Inbox>,
    waker: ThreadWaker,
    poller: Poller,
}

impl EndpointThread for IoThread {
    fn wake(&self, number: u64) {
        self.lock().woken.push(number);
        self.waker.wake();
    }

    fn watch(&self, number: u64, sockets: &Sockets, interest: Interest) -> io::Result<()> {
        self.poller.change(sockets, 2 * number, interest)
    }
}

impl IoThread {
    /// Starts a thread with a first endpoint.
    pub(super) fn start(driver: Driver) -> io::Result<Arc<Self>> {
        let poller = Poller::new()?;
        let waker = ThreadWaker::new()?;
        poller.add(&waker, WAKER, Interest::Read)?;
        let thread = Arc::new(Self { inbox: Mutex::default(), waker, poller });
        // A new thread cannot have ended.
        let _ = thread.add(driver);
        let own = thread.clone();
        thread::Builder::new().name("openbats-io".into()).spawn(move || {
            set_timer_slack();
            Turns::new(&own).run();
        })?;
        Ok(thread)
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an endpoint. Returns it if the thread has ended.
    fn add(self: &Arc<Self>, driver: Driver) -> Result<(), Box<Driver>> {
        let mut inbox = self.lock();
        if inbox.has_ended {
            return Err(Box::new(driver));
        }
        let number = inbox.next;
        inbox.next += 1;
        inbox.endpoints += 1;
        // The driver is new, so its waker is not set.
        driver.shared.waker.attach(self.clone(), number);
        inbox.new.push(driver);
        drop(inbox);
        self.waker.wake();
        Ok(())
    }

    /// Waits until a socket is ready, the thread is woken, or the timeout expires.
    fn sleep(&self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut files = [PollFd::new(&self.poller, PollFlags::IN)];
        match poll(&mut files, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn set_timer_slack() {
    #[cfg(target_os = "linux")]
    if let Err(error) =
        rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(TIMER_SLACK_NS))
    {
        tracing::debug!(%error, "timers stay coarse");
    }
}

/// An endpoint on its thread.
struct Place {
    driver: Driver,
    until: Option<Timestamp>,
    /// Only the timer makes it ready: no event and no call.
    is_by_timer: bool,
    polls_tcp: bool,
}

/// The loop of an I/O thread.
struct Turns<'a> {
    thread: &'a Arc<IoThread>,
    clock: Clock,
    incoming: ReceiveBuffers,
    places: BTreeMap<u64, Place>,
    timers: BTreeSet<(Timestamp, u64)>,
    /// Endpoints that are ready for their turn.
    ready: BTreeSet<u64>,
    tokens: Vec<u64>,
    /// The reason that endpoints report if the thread ends.
    why: String,
}

impl<'a> Turns<'a> {
    fn new(thread: &'a Arc<IoThread>) -> Self {
        Self {
            thread,
            clock: Clock::new(),
            incoming: ReceiveBuffers::new(RECEIVE_BATCH),
            places: BTreeMap::new(),
            timers: BTreeSet::new(),
            ready: BTreeSet::new(),
            tokens: Vec::new(),
            why: "the I/O thread panicked".into(),
        }
    }

    fn run(&mut self) {
        while self.take_inbox() {
            let mut again = BTreeSet::new();
            for number in std::mem::take(&mut self.ready) {
                if self.turn(number) {
                    again.insert(number);
                }
            }
            self.ready = again;
            if let Err(error) = self.wait() {
                tracing::error!(%error, "the I/O thread ends");
                self.why = error.to_string();
                return;
            }
        }
    }

    /// Takes new endpoints and wakeups. Returns `false` if no endpoint is left: the thread ends.
    fn take_inbox(&mut self) -> bool {
        let mut inbox = self.thread.lock();
        let first = inbox.next - inbox.new.len() as u64;
        let new = std::mem::take(&mut inbox.new);
        for number in inbox.woken.drain(..) {
            self.ready.insert(number);
            if let Some(place) = self.places.get_mut(&number) {
                place.is_by_timer = false;
            }
        }
        inbox.has_ended = new.is_empty() && self.places.is_empty();
        let goes_on = !inbox.has_ended;
        drop(inbox);
        for (number, driver) in (first..).zip(new) {
            let added = match &*driver.shared.lock_socket() {
                Some(turn) => self.thread.poller.add(&*turn.socket, 2 * number, turn.interest),
                None => Err(io::ErrorKind::NotConnected.into()),
            };
            if let Err(error) = added {
                self.thread.lock().endpoints -= 1;
                driver.end(error.to_string());
                continue;
            }
            let place = Place { driver, until: None, is_by_timer: false, polls_tcp: false };
            self.places.insert(number, place);
            self.ready.insert(number);
        }
        goes_on
    }

    /// Gives an endpoint its turn. Returns whether it needs another turn at once.
    fn turn(&mut self, number: u64) -> bool {
        let Some(place) = self.places.get_mut(&number) else { return false };
        let is_by_timer = std::mem::take(&mut place.is_by_timer);
        let (again, until) = match place.driver.turn(&mut self.incoming, is_by_timer) {
            Ok(Next::Now) => (true, None),
            Ok(Next::Sleep(timeout)) => (false, timeout.map(|timeout| self.clock.now() + timeout)),
            Ok(Next::SleepUntilWritable) => (false, None),
            Ok(Next::Finish) => {
                self.remove(number, "all handles were dropped".into());
                return false;
            }
            Err(error) => {
                tracing::error!(%error, "an endpoint ends");
                self.remove(number, error.to_string());
                return false;
            }
        };
        if place.until != until {
            if let Some(old) = place.until {
                self.timers.remove(&(old, number));
            }
            if let Some(until) = until {
                self.timers.insert((until, number));
            }
            place.until = until;
        }
        match self.watch_tcp(number) {
            Ok(()) => again,
            Err(error) => {
                tracing::error!(%error, "an endpoint ends");
                self.remove(number, error.to_string());
                false
            }
        }
    }

    fn watch_tcp(&mut self, number: u64) -> io::Result<()> {
        let Some(place) = self.places.get_mut(&number) else { return Ok(()) };
        let poller = &self.thread.poller;
        if !place.polls_tcp
            && let Some(tcp) = place.driver.shared.poller.file()
        {
            poller.add(&tcp, 2 * number + 1, Interest::Read)?;
            place.polls_tcp = true;
        }
        Ok(())
    }

    fn remove(&mut self, number: u64, why: String) {
        let Some(place) = self.places.remove(&number) else { return };
        if let Some(until) = place.until {
            self.timers.remove(&(until, number));
        }
        self.thread.lock().endpoints -= 1;
        place.driver.end(why);
    }

    /// Sleeps unless an endpoint is ready, and finds out which ones are ready then.
    fn wait(&mut self) -> io::Result<()> {
        if self.places.is_empty() {
            // No event or timer would end the sleep.
            return Ok(());
        }
        let next = self.timers.first().map(|&(until, _)| until - self.clock.now());
        if self.ready.is_empty() && next.is_none_or(|next| next >= SHORTEST_SLEEP) {
            self.thread.sleep(next)?;
        }
        self.thread.poller.ready(&mut self.tokens)?;
        for token in self.tokens.drain(..) {
            if token == WAKER {
                self.thread.waker.reset();
            } else {
                self.ready.insert(token / 2);
            }
        }
        let now = self.clock.now() + SHORTEST_SLEEP;
        while let Some(&(until, number)) = self.timers.first()
            && until <= now
        {
            self.timers.pop_first();
            let is_by_timer = self.ready.insert(number);
            if let Some(place) = self.places.get_mut(&number) {
                (place.until, place.is_by_timer) = (None, is_by_timer);
            }
        }
        Ok(())
    }
}

/// Notifies the waiting tasks of all endpoints when the thread ends, also after a panic.
impl Drop for Turns<'_> {
    fn drop(&mut self) {
        let new = {
            let mut inbox = self.thread.lock();
            inbox.has_ended = true;
            std::mem::take(&mut inbox.new)
        };
        let places = std::mem::take(&mut self.places);
        for driver in places.into_values().map(|place| place.driver).chain(new) {
            driver.end(self.why.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_waker_ends_the_sleep() {
        let thread = IoThread {
            inbox: Mutex::default(),
            waker: ThreadWaker::new().unwrap(),
            poller: Poller::new().unwrap(),
        };
        thread.poller.add(&thread.waker, WAKER, Interest::Read).unwrap();
        let short = Some(Duration::from_micros(100));
        let mut tokens = Vec::new();
        thread.sleep(short).unwrap();
        thread.poller.ready(&mut tokens).unwrap();
        assert!(tokens.is_empty());
        thread.waker.wake();
        thread.waker.wake();
        thread.sleep(None).unwrap();
        thread.poller.ready(&mut tokens).unwrap();
        assert_eq!(tokens, [WAKER]);
        thread.waker.reset();
        tokens.clear();
        thread.poller.ready(&mut tokens).unwrap();
        assert!(tokens.is_empty());
    }
}

#[cfg(test)]
#[path = "io_thread_tests.rs"]
mod turn_tests;
