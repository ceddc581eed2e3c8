//! Sessions: the connections of the C interface, from the first event to the last.

mod ack_state;
mod connect;
mod files;
mod open;

use std::ffi::c_int;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use openbats::{Endpoint, Fingerprint};
use tokio::sync::Notify;

use self::files::FileQueue;
use crate::callback::{AcceptCallback, ChannelCallback, ConnectionCallback, UserPointer};
use crate::channel::{Channel, ChannelSet};
use crate::config::Config;
use crate::connection::{Connection, Rejection};
use crate::context::Context;
use crate::event::{Code, Event, Failure};
use crate::handles::{Table, new_id};
use crate::locks::lock;
use crate::owner::Owner;
use crate::stats::openbats_stats_t;

pub(crate) static SESSIONS: Table<Session> = Table::new();

/// Result of `GetIdealBufferLength` before the connection is established.
const INITIAL_IDEAL_LENGTH: u32 = 100_000;

const CONNECTING: u8 = 0;
const OPEN: u8 = 1;
const CLOSING: u8 = 2;
const ENDED: u8 = 3;

/// Addresses of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) remote: Option<SocketAddr>,
}

#[derive(Default)]
struct Details {
    addresses: Addresses,
    /// Reason why the connection failed or ended.
    error: String,
    last_stats: openbats_stats_t,
}

/// One connection.
pub(crate) struct Session {
    pub(crate) id: usize,
    pub(crate) is_accepted: bool,
    context: Arc<Context>,
    owner: Weak<dyn Owner>,
    config: Arc<Config>,
    callback: Mutex<Option<Arc<ConnectionCallback>>>,
    channels: Arc<ChannelSet>,
    /// Object of the program that is attached to the connection until its end.
    attachment: Mutex<Option<UserPointer>>,
    connection: RwLock<Option<Connection>>,
    /// Mode 11: the socket of this client connection only.
    endpoint: Mutex<Option<Endpoint>>,
    details: Mutex<Details>,
    files: FileQueue,
    state: AtomicU8,
    ideal: AtomicU32,
    /// Wakes the session's task after a change of the fields below.
    wake: Notify,
    stop_requested: AtomicBool,
    /// A message was rejected because the send buffer was full.
    is_blocked: AtomicBool,
    /// Messages or files were sent, and the task does not wait for their acknowledgement yet.
    has_new_data: AtomicBool,
    /// Number of messages sent.
    sent: AtomicU64,
    /// Number of references that the program holds.
    references: AtomicUsize,
    /// Whether the connection has not ended. The handle is valid until then, and while there are
    /// references.
    is_alive: AtomicBool,
}

impl Session {
    fn make(
        owner: &Arc<dyn Owner>,
        config: &Arc<Config>,
        callback: Option<ConnectionCallback>,
        is_accepted: bool,
    ) -> Arc<Self> {
        let (id, context) = (new_id(), owner.context());
        let session = Arc::new(Self {
            id,
            is_accepted,
            context: context.clone(),
            owner: Arc::downgrade(owner),
            config: config.clone(),
            callback: Mutex::new(callback.map(Arc::new)),
            channels: ChannelSet::new(id, context.clone(), Arc::downgrade(owner)),
            attachment: Mutex::default(),
            connection: RwLock::default(),
            endpoint: Mutex::default(),
            details: Mutex::default(),
            state: AtomicU8::new(CONNECTING),
            ideal: AtomicU32::new(INITIAL_IDEAL_LENGTH),
            wake: Notify::new(),
            files: FileQueue::default(),
            stop_requested: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            has_new_data: AtomicBool::new(false),
            sent: AtomicU64::new(0),
            references: AtomicUsize::new(0),
            is_alive: AtomicBool::new(true),
        });
        SESSIONS.insert(session.id, session.clone());
        session
    }

    /// A session for a connection to open.
    pub(crate) fn new(
        owner: &Arc<dyn Owner>,
        config: &Arc<Config>,
        callback: ConnectionCallback,
    ) -> Arc<Self> {
        Self::make(owner, config, Some(callback), false)
    }

    /// A session for an accepted connection.
    pub(crate) fn accepted(
        owner: &Arc<dyn Owner>,
        connection: Connection,
        local: SocketAddr,
        config: &Arc<Config>,
    ) -> Arc<Self> {
        let session = Self::make(owner, config, None, true);
        session.open(connection, local);
        session
    }

    /// Marks the session as open: messages can be sent from here on.
    fn open(&self, connection: Connection, local: SocketAddr) {
        self.set_addresses(Addresses { local: Some(local), remote: Some(connection.remote()) });
        self.ideal.store(connection.ideal_length(), Ordering::Relaxed);
        *self.connection.write().unwrap_or_else(PoisonError::into_inner) = Some(connection);
        self.channels.start();
        let _ = self.state.compare_exchange(CONNECTING, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    pub(crate) fn connection(&self) -> Option<Connection> {
        self.connection.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores the socket that belongs to this connection only.
    fn keep_endpoint(&self, endpoint: Endpoint) {
        let mut place = lock(&self.endpoint);
        if !self.is_ended() {
            *place = Some(endpoint);
        }
    }

    /// Takes the socket that belongs to this connection only, if there is one.
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

    /// Stores the reason why the connection failed or ended.
    pub(crate) fn fail(&self, text: &str) {
        text.clone_into(&mut lock(&self.details).error);
    }

    /// Runs the callback for an event on the current thread. `data` is set for messages only.
    pub(crate) fn call_now(&self, event: Event, data: Option<&[u8]>, length: c_int) {
        let Some(owner) = self.owner.upgrade() else { return };
        let Some(_running) = owner.gate().enter() else { return };
        // The clone lives until the call returns, even if the call sets another callback.
        let callback = lock(&self.callback).clone();
        let Some(callback) = callback else { return };
        if matches!(event, Event::Failed | Event::Error | Event::SendDataError | Event::Timeout) {
            crate::last_error::set(&self.error());
        }
        callback.call(self.id, event, data, length);
    }

    /// Runs the callback for an event where the context runs callbacks.
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
        // The release function is code of the program, so it must not run under the lock.
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
        let guard = self.connection.read().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = guard.as_ref().filter(|_| self.state.load(Ordering::SeqCst) == OPEN)
        else {
            let text = match self.state.load(Ordering::SeqCst) {
                CONNECTING => "the connection is not established yet",
                _ => "the connection is closed",
            };
            return Err(Failure::new(Code::ConnectionClosed, text));
        };
        let result = connection.try_send(message, deadline);
        drop(guard);
        match result {
            Ok(()) => {
                self.note_sent();
                Ok(())
            }
            Err(Rejection::Full) => {
                self.is_blocked.store(true, Ordering::SeqCst);
                self.wake.notify_one();
                Err(Failure::new(Code::SendFailed, "the send buffer is full: wait for WRITABLE"))
            }
            Err(Rejection::Failed(failure)) => Err(failure),
        }
    }

    /// Queues a file to be sent.
    pub(crate) fn send_file(&self, path: &Path) -> Result<(), Failure> {
        let is_open = self.state.load(Ordering::SeqCst) == OPEN;
        let Some(connection) = self.connection().filter(|_| is_open) else {
            return Err(Failure::new(Code::ConnectionClosed, "the connection is not established"));
        };
        if !connection.is_reliable() {
            let text = "files can be sent in reliable modes only";
            return Err(Failure::new(Code::SendFailed, text));
        }
        self.files.push(path)
    }

    fn note_sent(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if !self.has_new_data.swap(true, Ordering::SeqCst) {
            self.wake.notify_one();
        }
    }

    /// Opens a channel. If the peer allows no more now, it is opened later. Returns the number of its
    /// handle.
    pub(crate) fn open_channel(&self, callback: ChannelCallback) -> Result<usize, Failure> {
        Channel::open(&self.channels, self.channel_connection()?, callback)
    }

    /// Sets the callback for channels that the peer opens.
    pub(crate) fn accept_channels(&self, callback: AcceptCallback) -> Result<(), Failure> {
        self.channels.accept(self.channel_connection()?, callback)
    }

    /// The connection, if channels can be opened and accepted.
    fn channel_connection(&self) -> Result<Connection, Failure> {
        let closed = || Failure::new(Code::ConnectionClosed, "the connection is not established");
        self.connection().filter(|_| self.channels.is_started()).ok_or_else(closed)
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.state.load(Ordering::SeqCst) == OPEN && !self.is_blocked.load(Ordering::SeqCst)
    }

    pub(crate) fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.connection().and_then(|connection| connection.peer_fingerprint())
    }

    pub(crate) fn is_compressed(&self) -> bool {
        self.connection().is_some_and(|connection| connection.is_compressed())
    }

    pub(crate) fn ideal_length(&self) -> u32 {
        self.ideal.load(Ordering::Relaxed)
    }

    /// [`stop`](Self::stop) if the connection is one of `owner`.
    pub(crate) fn stop_by(&self, owner: &dyn Owner) -> Result<(), Failure> {
        if !std::ptr::addr_eq(self.owner.as_ptr(), owner) {
            return Err(Failure::invalid("the connection is one of another protocol object"));
        }
        self.stop();
        Ok(())
    }

    /// Requests the end of the connection. CLOSED follows.
    pub(crate) fn stop(&self) {
        self.stop_requested.store(true, Ordering::SeqCst);
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst);
        self.wake.notify_one();
    }

    pub(crate) fn stats(&self) -> openbats_stats_t {
        match self.connection() {
            Some(connection) => (&connection.stats()).into(),
            None => lock(&self.details).last_stats,
        }
    }

    pub(crate) fn attach(&self, attachment: UserPointer) {
        let old = {
            let mut place = lock(&self.attachment);
            if self.is_ended() { Some(attachment) } else { place.replace(attachment) }
        };
        drop(old);
    }

    /// The pointer of [`attach`](Self::attach). It may be used in a callback only.
    pub(crate) fn attachment(&self) -> *mut std::ffi::c_void {
        lock(&self.attachment).as_ref().map_or(std::ptr::null_mut(), |owned| owned.pointer)
    }

    /// Ends the session and releases all pointers of the program. Idempotent.
    pub(crate) fn end(&self) {
        if self.state.swap(ENDED, Ordering::SeqCst) != ENDED {
            let connection = self.connection.write().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(connection) = connection {
                lock(&self.details).last_stats = (&connection.stats()).into();
                connection.close();
            }
        }
        let callback = lock(&self.callback).take();
        let attachment = lock(&self.attachment).take();
        self.channels.end();
        drop(self.take_endpoint());
        if let Some(owner) = self.owner.upgrade() {
            owner.remove_session(self.id);
        }
        self.wake.notify_one();
        self.release_own_reference();
        drop((callback, attachment));
    }

    /// Drops the session's own reference to its handle.
    fn release_own_reference(&self) {
        self.is_alive.store(false, Ordering::SeqCst);
        if self.references.load(Ordering::SeqCst) == 0 {
            drop(SESSIONS.remove(self.id));
        }
    }

    pub(crate) fn retain(&self) {
        self.references.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        let decrement = |references: usize| references.checked_sub(1);
        let previous = self.references.fetch_update(Ordering::SeqCst, Ordering::SeqCst, decrement);
        if previous == Ok(1) && !self.is_alive.load(Ordering::SeqCst) {
            drop(SESSIONS.remove(self.id));
        }
    }
}
