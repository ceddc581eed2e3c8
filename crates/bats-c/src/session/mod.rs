//! Sessions: connections as the program sees them, from the first event to the last.

mod acks;
mod connect;
mod files;
mod open;

use std::collections::VecDeque;
use std::ffi::c_int;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use openbats::Endpoint;
use tokio::sync::Notify;

use crate::callback::{ConnectionCallback, Owned};
use crate::config::Config;
use crate::context::Context;
use crate::event::{Code, Event, Failure};
use crate::handles::{Table, new_id};
use crate::link::{Link, Refusal};
use crate::protocol::Protocol;
use crate::stats::openbats_stats_t;

pub(crate) static SESSIONS: Table<Session> = Table::new();

/// What `GetIdealBufferLength` says before there is a path to ask.
const FIRST_IDEAL: u32 = 100_000;

const CONNECTING: u8 = 0;
const OPEN: u8 = 1;
const CLOSING: u8 = 2;
const ENDED: u8 = 3;

/// Where a connection leads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
}

#[derive(Default)]
struct Details {
    addresses: Addresses,
    /// Why it failed or ended.
    error: String,
    last_stats: openbats_stats_t,
    files: VecDeque<PathBuf>,
    /// Of files that are done, for the program to be told.
    file_results: VecDeque<Result<(), String>>,
}

/// One connection.
pub(crate) struct Session {
    pub(crate) id: usize,
    pub(crate) is_accepted: bool,
    context: Arc<Context>,
    protocol: Weak<Protocol>,
    config: Arc<Config>,
    callback: Mutex<Option<Arc<ConnectionCallback>>>,
    /// An object of the program's that belongs to the connection, until its end.
    attachment: Mutex<Option<Owned>>,
    link: RwLock<Option<Link>>,
    /// Mode 11: the client's socket, which no other connection uses.
    endpoint: Mutex<Option<Endpoint>>,
    details: Mutex<Details>,
    state: AtomicU8,
    ideal: AtomicU32,
    /// Something of the following is to be looked at.
    wake: Notify,
    files_wanted: Notify,
    stop_wanted: AtomicBool,
    /// A message was refused for want of room.
    refused: AtomicBool,
    /// Messages or files were sent that nobody waits to see acknowledged yet.
    dirty: AtomicBool,
    /// Counts messages sent.
    sent: AtomicU64,
    /// References that the program holds.
    held: AtomicUsize,
    /// Of the two that keep a handle valid, the connection's own.
    is_listed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn make(
        protocol: &Arc<Protocol>,
        config: &Arc<Config>,
        callback: Option<ConnectionCallback>,
        is_accepted: bool,
    ) -> Arc<Self> {
        let session = Arc::new(Self {
            id: new_id(),
            is_accepted,
            context: protocol.context.clone(),
            protocol: Arc::downgrade(protocol),
            config: config.clone(),
            callback: Mutex::new(callback.map(Arc::new)),
            attachment: Mutex::default(),
            link: RwLock::default(),
            endpoint: Mutex::default(),
            details: Mutex::default(),
            state: AtomicU8::new(CONNECTING),
            ideal: AtomicU32::new(FIRST_IDEAL),
            wake: Notify::new(),
            files_wanted: Notify::new(),
            stop_wanted: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            dirty: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            held: AtomicUsize::new(0),
            is_listed: AtomicBool::new(true),
        });
        SESSIONS.insert(session.id, session.clone());
        session
    }

    /// A connection that is to be made.
    pub(crate) fn new(
        protocol: &Arc<Protocol>,
        config: &Arc<Config>,
        callback: ConnectionCallback,
    ) -> Arc<Self> {
        Self::make(protocol, config, Some(callback), false)
    }

    /// A connection that a peer has made.
    pub(crate) fn accepted(
        protocol: &Arc<Protocol>,
        link: Link,
        local: SocketAddr,
        config: &Arc<Config>,
    ) -> Arc<Self> {
        let session = Self::make(protocol, config, None, true);
        session.open(link, local);
        session
    }

    /// From here on messages can be sent.
    fn open(&self, link: Link, local: SocketAddr) {
        self.set_addresses(Addresses { local: Some(local), remote: Some(link.remote()) });
        self.ideal.store(link.ideal_length(), Ordering::Relaxed);
        *self.link.write().unwrap_or_else(PoisonError::into_inner) = Some(link);
        let _ = self.state.compare_exchange(CONNECTING, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(crate) fn link(&self) -> Option<Link> {
        self.link.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The socket is this connection's alone.
    fn keep_endpoint(&self, endpoint: Endpoint) {
        let mut place = lock(&self.endpoint);
        if !self.is_ended() {
            *place = Some(endpoint);
        }
    }

    /// The socket that is this connection's alone, if there is one.
    pub(crate) fn take_endpoint(&self) -> Option<Endpoint> {
        lock(&self.endpoint).take()
    }

    fn is_ended(&self) -> bool {
        self.state.load(Ordering::SeqCst) == ENDED
    }

    pub(crate) fn addresses(&self) -> Addresses {
        lock(&self.details).addresses
    }

    fn set_addresses(&self, addresses: Addresses) {
        lock(&self.details).addresses = addresses;
    }

    pub(crate) fn error(&self) -> String {
        lock(&self.details).error.clone()
    }

    /// Notes why the connection failed, for the program to ask.
    pub(crate) fn fail(&self, text: &str) {
        text.clone_into(&mut lock(&self.details).error);
    }

    /// Tells the program of an event, on the current thread. `data` only with a message.
    pub(crate) fn call_now(&self, event: Event, data: Option<&[u8]>, length: c_int) {
        let Some(protocol) = self.protocol.upgrade() else { return };
        let Some(_running) = protocol.gate.enter() else { return };
        // Kept until the call is over, also if the call sets another.
        let callback = lock(&self.callback).clone();
        let Some(callback) = callback else { return };
        if matches!(event, Event::Failed | Event::Error | Event::SendDataError | Event::Timeout) {
            crate::last_error::set(&self.error());
        }
        callback.call(self.id, event, data, length);
    }

    /// Tells the program of an event where its callbacks run.
    async fn emit(self: &Arc<Self>, event: Event) {
        self.emit_with(event, None, 0).await;
    }

    async fn emit_with(self: &Arc<Self>, event: Event, message: Option<Bytes>, length: c_int) {
        let session = self.clone();
        let call = move || session.call_now(event, message.as_deref(), length);
        self.context.dispatch(call).await;
    }

    pub(crate) fn set_callback(&self, callback: ConnectionCallback) {
        if self.is_ended() {
            return;
        }
        let old = lock(&self.callback).replace(Arc::new(callback));
        // May run code of the program's: not under the lock.
        drop(old);
        if self.is_ended() {
            let late = lock(&self.callback).take();
            drop(late);
        }
        self.wake.notify_one();
    }

    fn has_callback(&self) -> bool {
        lock(&self.callback).is_some()
    }

    pub(crate) fn send(&self, message: &[u8], deadline: Option<Duration>) -> Result<(), Failure> {
        let guard = self.link.read().unwrap_or_else(PoisonError::into_inner);
        let Some(link) = guard.as_ref().filter(|_| self.state.load(Ordering::SeqCst) == OPEN)
        else {
            let text = match self.state.load(Ordering::SeqCst) {
                CONNECTING => "the connection is not established yet",
                _ => "the connection is closed",
            };
            return Err(Failure::new(Code::ConnectionClosed, text));
        };
        let result = link.try_send(message, deadline);
        drop(guard);
        match result {
            Ok(()) => {
                self.note_sent();
                Ok(())
            }
            Err(Refusal::Full) => {
                self.refused.store(true, Ordering::SeqCst);
                self.wake.notify_one();
                Err(Failure::new(Code::SendFailed, "the send buffer is full: wait for WRITABLE"))
            }
            Err(Refusal::Failed(failure)) => Err(failure),
        }
    }

    fn note_sent(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if !self.dirty.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.state.load(Ordering::SeqCst) == OPEN && !self.refused.load(Ordering::SeqCst)
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.link().is_some_and(|link| link.is_compressed())
    }

    pub(crate) fn ideal_length(&self) -> u32 {
        self.ideal.load(Ordering::Relaxed)
    }

    /// Asks for the end: CLOSED follows.
    pub(crate) fn stop(&self) {
        self.stop_wanted.store(true, Ordering::SeqCst);
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst);
        self.wake.notify_one();
    }

    pub(crate) fn stats(&self) -> openbats_stats_t {
        match self.link() {
            Some(link) => (&link.stats()).into(),
            None => lock(&self.details).last_stats,
        }
    }

    pub(crate) fn attach(&self, attachment: Owned) {
        let old = {
            let mut place = lock(&self.attachment);
            if self.is_ended() { Some(attachment) } else { place.replace(attachment) }
        };
        drop(old);
    }

    /// The pointer of [`attach`](Self::attach). It may be used within a callback only.
    pub(crate) fn attachment(&self) -> *mut std::ffi::c_void {
        lock(&self.attachment).as_ref().map_or(std::ptr::null_mut(), |owned| owned.pointer)
    }

    /// The last of everything: nothing of the program's is kept after this. Idempotent.
    pub(crate) fn end(&self) {
        if self.state.swap(ENDED, Ordering::SeqCst) != ENDED {
            let link = self.link.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(link) = link {
                lock(&self.details).last_stats = (&link.stats()).into();
                link.close();
            }
        }
        let callback = lock(&self.callback).take();
        let attachment = lock(&self.attachment).take();
        drop(self.take_endpoint());
        if let Some(protocol) = self.protocol.upgrade() {
            protocol.remove_session(self.id);
        }
        self.wake.notify_one();
        self.unlist();
        drop((callback, attachment));
    }

    /// The connection's own claim on its handle is over.
    fn unlist(&self) {
        self.is_listed.store(false, Ordering::SeqCst);
        if self.held.load(Ordering::SeqCst) == 0 {
            drop(SESSIONS.remove(self.id));
        }
    }

    pub(crate) fn retain(&self) {
        self.held.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        let more = |held: usize| held.checked_sub(1);
        let was = self.held.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        if was == Ok(1) && !self.is_listed.load(Ordering::SeqCst) {
            drop(SESSIONS.remove(self.id));
        }
    }
}
