//! A thread that is blocked in a receive call serves the socket; see [`custody`](super::custody).

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use bats_proto::Input;
use bats_types::Timestamp;

use super::parker::{ParkState, Parker, Readiness, time_left};
use super::socket::ReceiveBuffers;
use super::timers::timers_until;
use super::{Interest, Sockets, ThreadWaker};
use crate::shared::Shared;
use crate::transport::Handle;

/// Number of buffers of a leader, of 64 KiB each: it returns the socket when more data arrives.
const BUFFERS: usize = 4;
/// A wait for the socket that took less than this does not count as a sleep.
const SHORTEST_WAIT: Duration = Duration::from_micros(2);

/// A connection whose message a thread waits for.
#[derive(Debug)]
pub(crate) struct Candidate {
    shared: Arc<Shared>,
    handle: Handle,
}

thread_local! {
    /// A blocking wait polls its future.
    static COLLECTS: Cell<bool> = const { Cell::new(false) };
    static OFFERED: RefCell<Option<Candidate>> = const { RefCell::new(None) };
    static INCOMING: RefCell<Option<Box<ReceiveBuffers>>> = const { RefCell::new(None) };
}

impl Candidate {
    /// Runs `poll`; also returns the connection if it waits for a message of exactly one.
    pub(crate) fn collect<T>(poll: impl FnOnce() -> T) -> (T, Option<Self>) {
        /// Restores the state, also after a panic of the future.
        struct Collecting(bool);
        impl Drop for Collecting {
            fn drop(&mut self) {
                COLLECTS.set(self.0);
                OFFERED.take();
            }
        }
        let collecting = Collecting(COLLECTS.replace(true));
        let result = poll();
        let offered = OFFERED.take();
        drop(collecting);
        (result, offered)
    }

    /// A future waits for a message of this connection. Does nothing outside of a blocking wait.
    pub(crate) fn offer(shared: &Arc<Shared>, handle: Handle) {
        if COLLECTS.get() && handle.uses_shared_socket() {
            OFFERED.set(Some(Self { shared: Arc::clone(shared), handle }));
        }
    }

    /// Serves the socket until the waker is called or the time is up. Returns `false` if this
    /// thread cannot do so now.
    pub(crate) fn lead(&self, parker: &Parker, waker: &Waker, limit: Option<Duration>) -> bool {
        let mut incoming =
            INCOMING.take().unwrap_or_else(|| Box::new(ReceiveBuffers::new(BUFFERS)));
        let has_led = Lead::begin(self, parker, waker, limit).map(|lead| lead.run(&mut incoming));
        INCOMING.set(Some(incoming));
        has_led.is_some()
    }
}

/// The end of a leader's wait.
struct Wakeup {
    /// Before anything is read from the socket.
    at: Timestamp,
    readiness: Readiness,
    has_slept: bool,
}

/// A thread that leads. When dropped, the I/O thread takes care of the socket.
struct Lead<'a> {
    shared: &'a Shared,
    handle: Handle,
    parker: &'a ParkState,
    waker: &'a Waker,
    until: Option<Timestamp>,
    /// Dropped before the lead ends, so that an endpoint that ends frees its address at once.
    files: Option<(Arc<Sockets>, Arc<ThreadWaker>)>,
}

impl<'a> Lead<'a> {
    fn begin(
        candidate: &'a Candidate,
        parker: &'a Parker,
        waker: &'a Waker,
        limit: Option<Duration>,
    ) -> Option<Self> {
        let shared = &*candidate.shared;
        let mut guard = shared.lock_socket_soon()?;
        // The I/O thread waits until it can send the rest.
        let turn = guard.as_mut().filter(|turn| turn.outgoing.is_empty())?;
        let mut core = shared.lock();
        let now = shared.clock.now();
        if !core.custody.may_begin(now) || !core.waits_alone(candidate.handle, waker) {
            return None;
        }
        let event = turn.lead_event().ok()?;
        parker.prepare_poll(&event);
        shared.waker.watch(turn, Interest::Nothing).ok()?;
        core.custody.begin(parker.shared());
        let files = Some((Arc::clone(&turn.socket), event));
        let until = limit.map(|limit| now + limit);
        Some(Self { shared, handle: candidate.handle, parker, waker, until, files })
    }

    fn run(self, incoming: &mut ReceiveBuffers) {
        // Packets may have arrived since the last turn; then a busy receiver does not sleep at all.
        loop {
            let Some(wakeup) = self.sleep() else { return };
            if !self.turn(incoming, &wakeup) || self.is_over() {
                return;
            }
        }
    }

    fn is_over(&self) -> bool {
        self.parker.is_notified() || self.until.is_some_and(|at| at <= self.shared.clock.now())
    }

    /// Waits for the socket, the waker, and the next deadline. `None`: the waker was called.
    fn sleep(&self) -> Option<Wakeup> {
        let (socket, event) = self.files.as_ref()?;
        if let Some(readiness) = self.spin(socket) {
            let at = self.shared.clock.now();
            return readiness.map(|readiness| Wakeup { at, readiness, has_slept: true });
        }
        let now = self.shared.clock.now();
        let (timeout, must_wake_io) = {
            let mut core = self.shared.lock();
            if core.custody.has_ended {
                return None;
            }
            let until = core.custody.leader_sleeps(self.until, now);
            (time_left(until, now), core.custody.must_wake_io(now))
        };
        if must_wake_io {
            self.shared.waker.wake();
        }
        if !self.parker.begin_poll() {
            return None;
        }
        let readiness = self.parker.poll(&**socket, event, timeout).ok()?;
        let at = self.shared.clock.now();
        let has_slept = at - now >= SHORTEST_WAIT || !readiness.is_readable;
        Some(Wakeup { at, readiness, has_slept })
    }

    /// Polls the socket without sleeping for the configured time. `None`: no packet arrived; `Some(None)`: the waker was called.
    fn spin(&self, socket: &Sockets) -> Option<Option<Readiness>> {
        let limit = self.shared.busy_poll;
        if limit.is_zero() {
            return None;
        }
        let start = self.shared.clock.now();
        loop {
            if let Some(readiness) = socket.readiness() {
                return Some(Some(readiness));
            }
            if self.parker.is_notified() {
                return Some(None);
            }
            if self.shared.clock.now() - start >= limit {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// Receives, processes and sends. Returns whether to continue to lead.
    fn turn(&self, incoming: &mut ReceiveBuffers, wakeup: &Wakeup) -> bool {
        let shared = self.shared;
        let clock = &shared.clock;
        let mut guard = shared.lock_socket();
        let Some(turn) = guard.as_mut() else { return false };
        let errors = match wakeup.readiness.has_error || turn.socket.has_several() {
            true => turn.socket.unreachable_ports(),
            false => Vec::new(),
        };
        // The I/O thread handles the error and ends the endpoint.
        let Ok(received) = turn.socket.receive(incoming) else { return false };
        let mut due = Vec::new();
        let mut core = shared.lock();
        for error in errors {
            shared.siblings.pass_error(&error);
            core.endpoint.handle_unreachable_port(clock.now(), error.remote, &error.quoted);
        }
        for datagram in incoming.drain() {
            if let Some(datagram) = shared.siblings.keep_or_pass(datagram) {
                core.endpoint.handle(clock.now(), Input::Datagram(datagram));
            }
        }
        // The I/O thread serves TCP connections.
        let now = clock.now();
        core.endpoint.handle_timers(timers_until(wakeup.at, now));
        core.check_untrusted_peers(clock);
        core.drive_node(now, &mut due);
        let has_more = turn.collect((&mut core, shared.left()), clock, usize::MAX, true, &mut due);
        if received {
            core.custody.on_received();
        }
        let now = clock.now();
        let is_busy = core.custody.on_turn(now, wakeup.has_slept || !received);
        let hands_back = is_busy || has_more || !core.waits_alone(self.handle, self.waker);
        core.check_idle(&mut due);
        drop(core);
        let all_sent = matches!(turn.socket.send(&mut turn.outgoing), Ok(true));
        let hands_back = hands_back || !all_sent;
        if hands_back {
            if shared.waker.watch(turn, Interest::Read).is_ok() {
                shared.lock().custody.hand_back();
            }
            // The I/O thread continues.
            shared.waker.wake();
        }
        // A waker may run its task, which may call this endpoint.
        drop(guard);
        due.into_iter().for_each(Waker::wake);
        !hands_back
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        self.files = None;
        let mut core = self.shared.lock();
        let now = self.shared.clock.now();
        let is_mine = |leader: &Arc<ParkState>| std::ptr::eq(&**leader, self.parker);
        if core.custody.leader.as_ref().is_some_and(is_mine) {
            core.custody.end(now);
        }
        if thread::panicking() {
            // The state may be inconsistent.
            core.is_terminated = true;
        }
        let must_wake = core.custody.must_wake_io(now);
        let has_ended = core.custody.has_ended;
        drop(core);
        if must_wake || thread::panicking() {
            self.shared.waker.wake();
        }
        if has_ended {
            self.shared.lead_ended.notify_all();
        }
    }
}
