//! The I/O context: a thread on which everything happens in turn.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use crate::gate::Gate;
use crate::handles::{Table, new_id};
use crate::mailbox::Mailbox;
use crate::protocol::Protocol;
use crate::{log, signals};

/// Threads that read files for `SendFile` go away after this time without work.
const FILE_THREAD_KEPT: Duration = Duration::from_millis(200);
/// Threads that read files at the same time.
const MOST_FILE_THREADS: usize = 4;

pub(crate) static CONTEXTS: Table<Context> = Table::new();

/// One thread with everything that runs on it.
pub(crate) struct Context {
    pub(crate) id: usize,
    runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    stop: Arc<Notify>,
    /// Callbacks wait here if the program polls.
    pub(crate) mailbox: Option<Mailbox>,
    protocols: Mutex<BTreeMap<usize, Weak<Protocol>>>,
    /// For the signal callback.
    pub(crate) gate: Arc<Gate>,
    is_destroyed: AtomicBool,
}

impl Context {
    /// Starts the thread.
    pub(crate) fn create(is_polled: bool) -> io::Result<Arc<Self>> {
        log::start();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MOST_FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_KEPT)
            .build()?;
        let handle = runtime.handle().clone();
        let mailbox = if is_polled { Some(Mailbox::new()?) } else { None };
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("openbats-context".into()).spawn(move || {
            runtime.block_on(stopped.notified());
            // A file that the disk does not give must not hold up the end.
            runtime.shutdown_background();
        })?;
        let context = Arc::new(Self {
            id: new_id(),
            runtime: handle,
            thread_id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
            stop,
            mailbox,
            protocols: Mutex::default(),
            gate: Arc::default(),
            is_destroyed: AtomicBool::new(false),
        });
        CONTEXTS.insert(context.id, context.clone());
        Ok(context)
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::SeqCst)
    }

    /// Whether the caller is on the context's thread: it must not wait for that thread there.
    pub(crate) fn is_here(&self) -> bool {
        thread::current().id() == self.thread_id
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // The handle keeps nothing alive: a task for a runtime that is gone is dropped.
        drop(self.runtime.spawn(task));
    }

    /// Makes a callback: now, or when the program polls.
    pub(crate) async fn dispatch(&self, call: impl FnOnce() + Send + 'static) {
        match &self.mailbox {
            None => call(),
            Some(mailbox) => mailbox.run(Box::new(call)).await,
        }
    }

    pub(crate) fn add(&self, protocol: &Arc<Protocol>) {
        let mut protocols = self.protocols.lock().unwrap_or_else(PoisonError::into_inner);
        protocols.insert(protocol.id, Arc::downgrade(protocol));
    }

    pub(crate) fn remove(&self, protocol: usize) {
        let old = self.protocols.lock().unwrap_or_else(PoisonError::into_inner).remove(&protocol);
        drop(old);
    }

    /// Ends everything of this context. No callback runs when this returns, other than one that
    /// the caller is in.
    pub(crate) fn destroy(&self) {
        if self.is_destroyed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.gate.close();
        signals::forget(self.id);
        let protocols =
            std::mem::take(&mut *self.protocols.lock().unwrap_or_else(PoisonError::into_inner));
        for protocol in protocols.into_values() {
            if let Some(protocol) = protocol.upgrade() {
                protocol.shut_down();
            }
        }
        if let Some(mailbox) = &self.mailbox {
            mailbox.close();
        }
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !self.is_here()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a context had panicked");
        }
    }
}
