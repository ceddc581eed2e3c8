//! The state that the I/O thread and the application's calls share, and its locks.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use bats_proto::Timestamp;

use crate::access::Access;
use crate::clock::Clock;
use crate::compress::CompressionOffer;
use crate::core_lock::{CoreGuard, CoreLock};
use crate::driver::{EndpointWaker, LazyPoller, SocketTurn};
use crate::endpoint_state::Core;
use crate::siblings::{Passed, Sibling, Siblings};
use crate::slot::{SharedSlot, Slot};
use crate::transport::{Handle, Transports};
use crate::work::{FollowUp, SharedWork, Work};

/// Maximum number of bursts that the thread of a call sends.
const BURSTS_PER_CALL: usize = 2;

/// Longest time for a thread of the application to leave the socket of an endpoint that ends. It
/// leaves within microseconds unless a waker blocks it.
const LEAVE_LIMIT: Duration = Duration::from_secs(1);

/// The whole state of an endpoint. Its locks in the order in which a thread may take them: the socket, the core, the
/// slot of a connection, the connection itself, the left work.
#[derive(Debug)]
pub(crate) struct Shared {
    core: CoreLock,
    /// The socket, from the start of the I/O thread to its end. A thread that holds the core only tries to lock it.
    socket: Mutex<Option<SocketTurn>>,
    /// A thread of the application has stopped serving the socket.
    pub(crate) lead_ended: Condvar,
    /// Time for which a blocked receiver polls for packets before it sleeps.
    pub(crate) busy_poll: Duration,
    pub(crate) waker: Arc<EndpointWaker>,
    /// Other threads of the endpoint.
    pub(crate) siblings: Siblings,
    /// Polls the sockets of TCP connections.
    pub(crate) poller: Arc<LazyPoller>,
    pub(crate) clock: Clock,
    pub(crate) local_addr: SocketAddr,
}

impl Shared {
    pub(crate) fn new(
        endpoint: Transports,
        (compression_offer, untrusted_peer_budget): (Option<CompressionOffer>, Option<usize>),
        poller: Arc<LazyPoller>,
        (clock, busy_poll): (Clock, Duration),
        (local_addr, siblings): (SocketAddr, Siblings),
    ) -> Arc<Self> {
        let waker = Arc::new(EndpointWaker::default());
        let core = Core::new(endpoint, compression_offer, untrusted_peer_budget);
        Arc::new(Self {
            core: CoreLock::new(core, Arc::clone(&waker)),
            socket: Mutex::new(None),
            lead_ended: Condvar::new(),
            busy_poll,
            waker,
            siblings,
            poller,
            clock,
            local_addr,
        })
    }

    /// Locks the state.
    pub(crate) fn lock(&self) -> CoreGuard<'_> {
        self.core.lock()
    }

    /// What calls have left to the thread that has the state.
    pub(crate) fn left(&self) -> &SharedWork {
        self.core.left()
    }

    pub(crate) fn lock_socket(&self) -> MutexGuard<'_, Option<SocketTurn>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the socket unless another thread has its turn.
    fn try_lock_socket(&self) -> Option<MutexGuard<'_, Option<SocketTurn>>> {
        match self.socket.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the socket unless the lock may take long.
    pub(crate) fn lock_socket_soon(&self) -> Option<MutexGuard<'_, Option<SocketTurn>>> {
        if let Some(guard) = self.try_lock_socket() {
            return Some(guard);
        }
        let is_led = self.lock().custody.is_led();
        is_led.then(|| self.lock_socket())
    }

    /// As [`lock_socket_soon`](Self::lock_socket_soon) for a thread that holds the core, which is released while this
    /// waits for the socket: others lock the core while they hold the socket.
    fn lock_socket_too<'a>(
        &'a self,
        core: CoreGuard<'a>,
    ) -> (Option<MutexGuard<'a, Option<SocketTurn>>>, CoreGuard<'a>) {
        match self.try_lock_socket() {
            None if core.custody.is_led() => {
                drop(core);
                let guard = self.lock_socket();
                (Some(guard), self.lock())
            }
            guard => (guard, core),
        }
    }

    /// Runs a call of the application for one connection. Those of the coded modes wait for no other connection: if
    /// a thread has the core, it does what the call leaves to do. If the I/O thread sleeps, this thread sends the
    /// resulting packets at once or wakes the I/O thread.
    pub(crate) fn call_connection<T>(
        &self,
        handle: Handle,
        slot: &SharedSlot,
        call: impl FnOnce(&mut Slot, &mut Access<'_>, Timestamp) -> (T, Work),
    ) -> T {
        if !handle.has_own_lock() {
            let mut core = self.lock();
            let mut access = Access::Endpoint(&mut core.endpoint, handle);
            let (result, work) = call(&mut slot.lock(), &mut access, self.clock.now());
            self.follow_up(core, handle, work);
            return result;
        }
        let (result, work) = {
            let mut slot = slot.lock();
            let mut access = slot.calls.clone().map_or(Access::Ended, Access::Own);
            call(&mut slot, &mut access, self.clock.now())
        };
        if work != Work::NOTHING
            && let Some(core) = self.core.lock_or_leave(handle, work)
        {
            self.follow_up(core, handle, work);
        }
        result
    }

    /// Does what a call leaves to do.
    fn follow_up(&self, mut core: CoreGuard<'_>, handle: Handle, work: Work) {
        let follow_up = work.apply(&mut core, handle, thread::current().id(), self.clock.now());
        // The I/O thread looks for output before it sleeps.
        if !core.is_asleep || follow_up == FollowUp::Nothing {
            return;
        }
        if follow_up == FollowUp::Wake {
            core.is_asleep = false;
            drop(core);
            return self.waker.wake();
        }
        let (mut guard, mut core) = self.lock_socket_too(core);
        if !core.is_asleep {
            return;
        }
        let turn = guard.as_mut().and_then(|guard| guard.as_mut());
        let may_send = match follow_up {
            FollowUp::Nothing | FollowUp::Wake => false,
            FollowUp::Poll => true,
            FollowUp::Send => core.custody.may_send(self.clock.now()),
        };
        let Some(turn) = turn.filter(|_| may_send) else {
            core.is_asleep = false;
            drop((core, guard));
            self.waker.wake();
            return;
        };
        let mut due = Vec::new();
        let has_more =
            turn.collect((&mut core, self.left()), &self.clock, BURSTS_PER_CALL, false, &mut due);
        let must_wake = core.custody.must_wake_io(self.clock.now()) || has_more;
        drop(core);
        // The I/O thread handles errors.
        let all_sent = matches!(turn.send(), Ok(true));
        drop(guard);
        // A waker may run its task, which may call this endpoint.
        due.into_iter().for_each(Waker::wake);
        if must_wake || !all_sent {
            self.waker.wake();
        }
    }

    /// Makes a thread of the application leave the socket permanently.
    pub(crate) fn stop_leader(&self) {
        let mut core = self.lock();
        core.custody.stop();
        core.wait_while(&self.lead_ended, LEAVE_LIMIT, |core| core.custody.is_led_now());
    }

    /// Runs a call of the application and wakes the I/O thread if it sleeps.
    pub(crate) fn call<T>(&self, call: impl FnOnce(&mut Core, &Clock) -> T) -> T {
        let (result, asleep) = {
            let mut core = self.lock();
            let result = call(&mut core, &self.clock);
            (result, core::mem::take(&mut core.is_asleep))
        };
        if asleep {
            self.waker.wake();
        }
        result
    }

    /// Handles the drop of a connection's handle, or of an endpoint's if `connection` is `None`.
    pub(crate) fn on_dropped(&self, connection: Option<Handle>) {
        self.call(|core, clock| {
            core.handles -= 1;
            match connection {
                Some(handle) => {
                    if let Some(slot) = core.slots.get(&handle).cloned() {
                        let mut slot = slot.lock();
                        slot.is_held = false;
                        if slot.end.is_some() {
                            core.slots.remove(&handle);
                        } else {
                            core.endpoint.close(clock.now(), handle, 0, "");
                        }
                    }
                }
                None => core.endpoints -= 1,
            }
            core.close_unreachable(clock);
        });
    }

    /// Closes all connections and stops accepting.
    pub(crate) fn shut_down(&self, code: u64, reason: &str) {
        self.call(|core, clock| {
            core.is_shut_down = true;
            core.endpoint.stop_listening();
            core.close_unreachable(clock);
            let open: Vec<_> = core
                .slots
                .iter()
                // Links end after the sessions.
                .filter(|(_, slot)| {
                    let slot = slot.lock();
                    slot.end.is_none() && !slot.is_link
                })
                .map(|(handle, _)| *handle)
                .collect();
            for handle in open {
                core.endpoint.close(clock.now(), handle, code, reason);
            }
            let mut due = Vec::new();
            core.accepting.drain_into(&mut due);
            if let Some(node) = &mut core.node {
                node.wake_all(&mut due);
            }
            due.into_iter().for_each(Waker::wake);
        });
    }

    /// Asks the I/O thread to end after it has sent the pending packets once.
    pub(crate) fn terminate(&self) {
        self.call(|core, _| core.is_terminated = true);
    }

    /// Wakes all waiting tasks when the I/O thread ends.
    pub(crate) fn on_ended(&self, why: String) {
        self.siblings.close();
        let mut due = Vec::new();
        let mut core = self.lock();
        for slot in core.slots.values() {
            let mut slot = slot.lock();
            slot.is_lost = true;
            slot.wake_all(&mut due);
        }
        core.accepting.drain_into(&mut due);
        core.idling.drain_into(&mut due);
        core.ending.drain_into(&mut due);
        if let Some(node) = &mut core.node {
            node.wake_all(&mut due);
        }
        core.endpoint.abandon();
        core.ended = Some(why);
        drop(core);
        due.into_iter().for_each(Waker::wake);
    }
}

impl Sibling for Shared {
    fn take_passed(&self, passed: Passed) {
        self.siblings.put(passed);
        self.waker.wake();
    }
}
