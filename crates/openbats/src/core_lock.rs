//! The lock of the state of an endpoint.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use crate::driver::EndpointWaker;
use crate::endpoint_state::Core;
use crate::transport::Handle;
use crate::work::{SharedWork, Work};

/// The state of an endpoint and its lock, which is held for whole turns. Calls for one connection of the coded modes do
/// not wait for it: they leave what follows from them to the thread that has it.
#[derive(Debug)]
pub(crate) struct CoreLock {
    core: Mutex<Core>,
    /// A thread that holds its lock only tries to lock the core.
    left: SharedWork,
    waker: Arc<EndpointWaker>,
}

impl CoreLock {
    pub(crate) fn new(core: Core, waker: Arc<EndpointWaker>) -> Self {
        Self { core: Mutex::new(core), left: SharedWork::default(), waker }
    }

    /// What calls have left.
    pub(crate) fn left(&self) -> &SharedWork {
        &self.left
    }

    /// Locks the state. After a panic in another thread it is still consistent enough to report that the endpoint has
    /// ended.
    pub(crate) fn lock(&self) -> CoreGuard<'_> {
        self.guard(self.core.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the state, or leaves the work of a call to the thread that has it.
    pub(crate) fn lock_or_leave(&self, handle: Handle, work: Work) -> Option<CoreGuard<'_>> {
        let mut left = self.left.lock();
        let core = match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => {
                left.leave(handle, std::thread::current().id(), work);
                return None;
            }
        };
        Some(self.guard(core))
    }

    fn guard<'a>(&'a self, core: MutexGuard<'a, Core>) -> CoreGuard<'a> {
        CoreGuard { lock: self, core: Some(core) }
    }
}

/// The state of an endpoint, locked. When it is dropped, it does what calls have left meanwhile.
#[derive(Debug)]
pub(crate) struct CoreGuard<'a> {
    lock: &'a CoreLock,
    /// Set until it is dropped.
    core: Option<MutexGuard<'a, Core>>,
}

impl CoreGuard<'_> {
    /// Unlocks the state and waits for `changed` while `condition` holds, at most for `limit`. Work that calls have left
    /// meanwhile is done when the state is unlocked the next time.
    pub(crate) fn wait_while(
        mut self,
        changed: &Condvar,
        limit: Duration,
        condition: impl FnMut(&mut Core) -> bool,
    ) {
        if let Some(core) = self.core.take() {
            let waited = changed.wait_timeout_while(core, limit, condition);
            self.core = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        self.core.as_ref().expect("it is set until it is dropped")
    }
}

impl DerefMut for CoreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        self.core.as_mut().expect("it is set until it is dropped")
    }
}

impl Drop for CoreGuard<'_> {
    fn drop(&mut self) {
        // Calls leave work only while they hold this lock and find the core locked, so none stays behind.
        let mut left = self.lock.left.lock();
        let must_wake = left.apply(self) && std::mem::take(&mut self.is_asleep);
        self.core = None;
        drop(left);
        if must_wake {
            self.lock.waker.wake();
        }
    }
}
