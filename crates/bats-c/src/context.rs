//! I/O contexts: a thread that runs the I/O and the callbacks of its objects.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use openbats::IoThreads;
use tokio::runtime::{Builder, Handle};
use tokio::sync::Notify;

use crate::callback_queue::CallbackQueue;
use crate::gate::Gate;
use crate::handles::{Table, new_id};
use crate::{log, signals};

/// Idle time after which threads that read files for `SendFile` end.
const FILE_THREAD_KEEP_ALIVE: Duration = Duration::from_millis(200);
/// Maximum number of threads that read files at the same time.
const MAX_FILE_THREADS: usize = 4;
/// Maximum number of threads for the sockets of a context. One serves about 3 Gbit/s; more than the
/// processors of the machine would only compete.
const MAX_IO_THREADS: usize = 4;

/// An object that runs on a context and ends with it.
pub(crate) trait Member: Send + Sync {
    /// Ends the object. When this returns, none of its callbacks runs except one that the caller is in.
    fn shut_down(&self);
}

pub(crate) static CONTEXTS: Table<Context> = Table::new();

/// A context: a thread for callbacks, threads for I/O, and the objects that run on them.
pub(crate) struct Context {
    pub(crate) id: usize,
    runtime: Handle,
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
    /// The I/O threads that all protocol objects share.
    pub(crate) io_threads: IoThreads,
    stop: Arc<Notify>,
    /// Queue of callbacks, for a polled context.
    pub(crate) queue: Option<CallbackQueue>,
    members: Mutex<BTreeMap<usize, Weak<dyn Member>>>,
    /// Gate of the signal callback.
    pub(crate) gate: Arc<Gate>,
    is_destroyed: AtomicBool,
}

fn io_threads() -> NonZeroUsize {
    let limit = NonZeroUsize::new(MAX_IO_THREADS).unwrap_or(NonZeroUsize::MIN);
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN).min(limit)
}

impl Context {
    /// Starts the thread.
    pub(crate) fn create(is_polled: bool) -> io::Result<Arc<Self>> {
        log::start();
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_FILE_THREADS)
            .thread_keep_alive(FILE_THREAD_KEEP_ALIVE)
            .build()?;
        let handle = runtime.handle().clone();
        let queue = if is_polled { Some(CallbackQueue::new()?) } else { None };
        let stop = Arc::new(Notify::new());
        let stopped = stop.clone();
        let thread = thread::Builder::new().name("openbats-context".into()).spawn(move || {
            runtime.block_on(stopped.notified());
            // A blocked file read must not delay the end of the thread.
            runtime.shutdown_background();
        })?;
        let context = Arc::new(Self {
            id: new_id(),
            runtime: handle,
            thread_id: thread.thread().id(),
            thread: Mutex::new(Some(thread)),
            io_threads: IoThreads::new(io_threads()),
            stop,
            queue,
            members: Mutex::default(),
            gate: Arc::default(),
            is_destroyed: AtomicBool::new(false),
        });
        CONTEXTS.insert(context.id, context.clone());
        Ok(context)
    }

    pub(crate) fn is_destroyed(&self) -> bool {
        self.is_destroyed.load(Ordering::SeqCst)
    }

    /// Whether the caller runs on the context's thread, where it must not wait for that thread.
    pub(crate) fn is_on_thread(&self) -> bool {
        thread::current().id() == self.thread_id
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // The handle does not keep the runtime alive: a task for an ended runtime is dropped.
        drop(self.runtime.spawn(task));
    }

    /// Runs a callback: now, or when the program polls. Returns after it has run.
    pub(crate) async fn dispatch(&self, call: impl FnOnce() + Send + 'static) {
        match &self.queue {
            None => call(),
            Some(queue) => queue.run(Box::new(call)).await,
        }
    }

    pub(crate) fn add(&self, id: usize, member: Weak<dyn Member>) {
        self.members.lock().unwrap_or_else(PoisonError::into_inner).insert(id, member);
    }

    pub(crate) fn remove(&self, id: usize) {
        let old = self.members.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        drop(old);
    }

    /// Destroys the context with all its objects. When this returns, no callback runs except one
    /// that the caller is in.
    pub(crate) fn destroy(&self) {
        if self.is_destroyed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.gate.close();
        signals::remove_callback(self.id);
        let members =
            std::mem::take(&mut *self.members.lock().unwrap_or_else(PoisonError::into_inner));
        for member in members.into_values() {
            if let Some(member) = member.upgrade() {
                member.shut_down();
            }
        }
        if let Some(queue) = &self.queue {
            queue.close();
        }
        self.stop.notify_one();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && !self.is_on_thread()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a context panicked");
        }
    }
}
