//! Channels of the C interface: streams of bytes within a connection.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Poll, Waker};

use bytes::Bytes;
use openbats::ChannelError;
use tokio::sync::Notify;

use crate::callback::{AcceptCallback, ChannelCallback};
use crate::connection::Connection;
use crate::context::Context;
use crate::event::{ChannelEvent, Code, Failure};
use crate::gate::Gate;
use crate::handles::{Table, new_id};
use crate::locks::lock;
use crate::owner::Owner;

pub(crate) static CHANNELS: Table<Channel> = Table::new();

/// Most bytes of one DATA event.
const MAX_DATA: usize = 64 << 10;

/// The result of a future that is ready now.
fn now_or_never<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

fn failure(error: &ChannelError) -> Failure {
    let code = match error {
        ChannelError::ConnectionClosed(_) | ChannelError::Closed => Code::ConnectionClosed,
        ChannelError::Unsupported => Code::InvalidParam,
        _ => Code::SendFailed,
    };
    Failure::new(code, error.to_string())
}

/// The channels of a connection, and the callback for those that the peer opens.
pub(crate) struct ChannelSet {
    /// The number of the connection's handle.
    session: usize,
    context: Arc<Context>,
    owner: Weak<dyn Owner>,
    /// `None` after the end.
    channels: Mutex<Option<HashMap<usize, Weak<Channel>>>>,
    acceptor: Mutex<Option<Arc<AcceptCallback>>>,
    is_accepting: AtomicBool,
}

impl ChannelSet {
    pub(crate) fn new(session: usize, context: Arc<Context>, owner: Weak<dyn Owner>) -> Arc<Self> {
        Arc::new(Self {
            session,
            context,
            owner,
            channels: Mutex::default(),
            acceptor: Mutex::default(),
            is_accepting: AtomicBool::new(false),
        })
    }

    /// Lets channels be opened and accepted.
    pub(crate) fn start(&self) {
        *lock(&self.channels) = Some(HashMap::new());
    }

    /// Whether channels can be opened and accepted.
    pub(crate) fn is_started(&self) -> bool {
        lock(&self.channels).is_some()
    }

    /// Adds a channel, unless the end has come.
    fn insert(&self, channel: &Arc<Channel>) -> bool {
        let mut channels = lock(&self.channels);
        let Some(channels) = channels.as_mut() else { return false };
        channels.insert(channel.id, Arc::downgrade(channel));
        true
    }

    fn remove(&self, id: usize) {
        if let Some(channels) = lock(&self.channels).as_mut() {
            channels.remove(&id);
        }
    }

    /// Ends all channels and releases all pointers of the program. Idempotent.
    pub(crate) fn end(&self) {
        let channels = lock(&self.channels).take().unwrap_or_default();
        for channel in channels.into_values().filter_map(|channel| channel.upgrade()) {
            channel.end();
        }
        let acceptor = lock(&self.acceptor).take();
        drop(acceptor);
    }

    /// Sets the callback for channels that the peer opens.
    pub(crate) fn accept(
        self: &Arc<Self>,
        connection: Connection,
        callback: AcceptCallback,
    ) -> Result<(), Failure> {
        let old = lock(&self.acceptor).replace(Arc::new(callback));
        drop(old);
        if self.is_accepting.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        // A connection without channels says so at once.
        let first = match now_or_never(connection.accept_channel()).transpose() {
            Ok(first) => first,
            Err(error) => {
                self.is_accepting.store(false, Ordering::SeqCst);
                let unused = lock(&self.acceptor).take();
                drop(unused);
                return Err(failure(&error));
            }
        };
        self.context.spawn(self.clone().run_acceptor(connection, first));
        // The pointers may have been released before this one was set.
        if !self.is_started() {
            let late = lock(&self.acceptor).take();
            drop(late);
        }
        Ok(())
    }

    async fn run_acceptor(
        self: Arc<Self>,
        connection: Connection,
        mut first: Option<openbats::Channel>,
    ) {
        loop {
            let accepted = match first.take() {
                Some(accepted) => accepted,
                None => match connection.accept_channel().await {
                    Ok(accepted) => accepted,
                    Err(_) => return,
                },
            };
            let channel = Channel::make(&self, None);
            channel.set_inner(accepted);
            let (set, offered) = (self.clone(), channel.clone());
            self.context.dispatch(move || set.call_acceptor(&offered)).await;
            if lock(&channel.callback).is_none() {
                // Nothing else would end it.
                channel.close();
                continue;
            }
            self.context.spawn(channel.run());
        }
    }

    fn call_acceptor(&self, channel: &Channel) {
        let Some(owner) = self.owner.upgrade() else { return };
        let Some(_running) = owner.gate().enter() else { return };
        let acceptor = lock(&self.acceptor).clone();
        if let Some(acceptor) = acceptor {
            acceptor.call(self.session, channel.id);
        }
    }
}

/// One channel.
pub(crate) struct Channel {
    id: usize,
    set: Weak<ChannelSet>,
    /// The native channel, once it is open. Taken at the end, which closes it.
    inner: Mutex<Option<Arc<openbats::Channel>>>,
    number: OnceLock<u64>,
    callback: Mutex<Option<Arc<ChannelCallback>>>,
    gate: Gate,
    /// Wakes the channel's task after a change of the fields below.
    wake: Notify,
    is_ended: AtomicBool,
    is_paused: AtomicBool,
    /// A write queued less than it was given.
    is_blocked: AtomicBool,
}

impl Channel {
    fn make(set: &Arc<ChannelSet>, callback: Option<ChannelCallback>) -> Arc<Self> {
        let channel = Arc::new(Self {
            id: new_id(),
            set: Arc::downgrade(set),
            inner: Mutex::default(),
            number: OnceLock::new(),
            callback: Mutex::new(callback.map(Arc::new)),
            gate: Gate::default(),
            wake: Notify::new(),
            is_ended: AtomicBool::new(false),
            is_paused: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
        });
        CHANNELS.insert(channel.id, channel.clone());
        if !set.insert(&channel) {
            channel.end();
        }
        channel
    }

    /// Opens a channel. If the peer allows no more now, it is opened later. Returns the number of its
    /// handle.
    pub(crate) fn open(
        set: &Arc<ChannelSet>,
        connection: Connection,
        callback: ChannelCallback,
    ) -> Result<usize, Failure> {
        let opened =
            now_or_never(connection.open_channel()).transpose().map_err(|error| failure(&error))?;
        let channel = Self::make(set, Some(callback));
        let id = channel.id;
        if let Some(opened) = opened {
            channel.set_inner(opened);
        }
        set.context.spawn(channel.run_opened(connection));
        Ok(id)
    }

    fn set_inner(&self, opened: openbats::Channel) {
        let _ = self.number.set(opened.id());
        let mut inner = lock(&self.inner);
        // After the end nothing would close it.
        if !self.has_ended() {
            *inner = Some(Arc::new(opened));
        }
    }

    fn has_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    fn inner(&self) -> Option<Arc<openbats::Channel>> {
        lock(&self.inner).clone()
    }

    fn opened(&self) -> Result<Arc<openbats::Channel>, Failure> {
        let missing = || Failure::new(Code::SendFailed, "the channel is not open yet");
        self.inner().ok_or_else(missing)
    }

    /// The number of the channel, which both ends know; 0 before it is open.
    pub(crate) fn number(&self) -> u64 {
        self.number.get().copied().unwrap_or(0)
    }

    pub(crate) fn set_callback(&self, callback: ChannelCallback) {
        let old = lock(&self.callback).replace(Arc::new(callback));
        // The release function is code of the program, so it must not run under the lock.
        drop(old);
        if self.has_ended() {
            let late = lock(&self.callback).take();
            drop(late);
        }
        self.wake.notify_one();
    }

    /// Queues bytes and returns their number. WRITABLE follows if it is less than asked for.
    pub(crate) fn write(&self, data: &[u8]) -> Result<usize, Failure> {
        let inner = self.opened()?;
        let queued = match now_or_never(inner.write(data)) {
            Some(queued) => queued.map_err(|error| failure(&error))?,
            None => 0,
        };
        if queued < data.len() {
            self.is_blocked.store(true, Ordering::SeqCst);
            self.wake.notify_one();
        }
        Ok(queued)
    }

    pub(crate) fn finish(&self) -> Result<(), Failure> {
        self.opened()?.finish().map_err(|error| failure(&error))
    }

    pub(crate) fn reset(&self, code: u64) -> Result<(), Failure> {
        self.opened()?.reset(code);
        Ok(())
    }

    pub(crate) fn stop(&self, code: u64) -> Result<(), Failure> {
        self.opened()?.stop(code);
        Ok(())
    }

    pub(crate) fn set_weight(&self, weight: u8) -> Result<(), Failure> {
        self.opened()?.set_weight(weight).map_err(|error| failure(&error))
    }

    /// Starts or ends a pause of DATA, END and RESET events.
    pub(crate) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
        self.wake.notify_one();
    }

    /// Ends the channel for the program: when this returns, no callback runs except one that the
    /// caller is in.
    pub(crate) fn close(&self) {
        if let Some(set) = self.set.upgrade() {
            set.remove(self.id);
        }
        self.gate.close();
        self.end();
    }

    /// Closes the native channel and releases the pointer of the program. Idempotent.
    fn end(&self) {
        self.is_ended.store(true, Ordering::SeqCst);
        drop(CHANNELS.remove(self.id));
        let inner = lock(&self.inner).take();
        let callback = lock(&self.callback).take();
        self.wake.notify_one();
        drop((inner, callback));
    }

    /// Runs the callback for an event on the current thread.
    fn call_now(&self, event: ChannelEvent, data: &[u8], code: u64) {
        let Some(owner) = self.set.upgrade().and_then(|set| set.owner.upgrade()) else { return };
        let Some(_running) = owner.gate().enter() else { return };
        let Some(_running_here) = self.gate.enter() else { return };
        // The clone lives until the call returns, even if the call sets another callback.
        let callback = lock(&self.callback).clone();
        if let Some(callback) = callback {
            callback.call(self.id, event, data, code);
        }
    }

    async fn emit(self: &Arc<Self>, event: ChannelEvent, data: Bytes, code: u64) {
        let Some(context) = self.set.upgrade().map(|set| set.context.clone()) else {
            return;
        };
        let channel = self.clone();
        context.dispatch(move || channel.call_now(event, &data, code)).await;
    }

    async fn run_opened(self: Arc<Self>, connection: Connection) {
        if self.inner().is_none() && !self.has_ended() {
            let opened = tokio::select! {
                opened = connection.open_channel() => opened,
                () = self.ended() => return,
            };
            // If the connection has ended, the session ends this channel.
            let Ok(opened) = opened else { return };
            self.set_inner(opened);
        }
        drop(connection);
        self.emit(ChannelEvent::Opened, Bytes::new(), 0).await;
        self.run().await;
    }

    async fn ended(&self) {
        while !self.has_ended() {
            self.wake.notified().await;
        }
    }

    /// Reports the events of an open channel until its end.
    async fn run(self: Arc<Self>) {
        let mut is_at_end = false;
        while !self.has_ended() {
            // The strong reference ends before the program's code runs, which may close the channel.
            let Some(inner) = self.inner() else { return };
            let reads = !is_at_end
                && !self.is_paused.load(Ordering::SeqCst)
                && lock(&self.callback).is_some();
            let is_blocked = self.is_blocked.load(Ordering::SeqCst);
            let event = tokio::select! {
                biased;
                () = self.wake.notified() => None,
                writable = inner.writable(), if is_blocked => {
                    self.is_blocked.store(false, Ordering::SeqCst);
                    match writable {
                        Ok(()) => Some((ChannelEvent::Writable, Bytes::new(), 0)),
                        Err(ChannelError::Stopped { code }) => {
                            Some((ChannelEvent::Stopped, Bytes::new(), code))
                        }
                        Err(ChannelError::ConnectionClosed(_)) => return,
                        Err(_) => None,
                    }
                }
                read = read(&inner), if reads => match read {
                    Ok(data) if data.is_empty() => {
                        is_at_end = true;
                        Some((ChannelEvent::End, data, 0))
                    }
                    Ok(data) => Some((ChannelEvent::Data, data, 0)),
                    Err(ChannelError::ConnectionClosed(_)) => return,
                    Err(error) => {
                        is_at_end = true;
                        match error {
                            ChannelError::Reset { code } => {
                                Some((ChannelEvent::Reset, Bytes::new(), code))
                            }
                            // This end has stopped reading.
                            _ => None,
                        }
                    }
                },
            };
            drop(inner);
            if let Some((event, data, code)) = event {
                self.emit(event, data, code).await;
                // A fast peer must not keep the tasks of other channels waiting.
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Bytes that have arrived, empty at the end.
async fn read(channel: &openbats::Channel) -> Result<Bytes, ChannelError> {
    thread_local! {
        /// Shared, so that a channel that waits needs no buffer.
        static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_DATA]);
    }
    poll_fn(|context| {
        BUFFER.with_borrow_mut(|buffer| {
            let polled = pin!(channel.read(buffer)).poll(context);
            polled.map_ok(|read| Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default()))
        })
    })
    .await
}
