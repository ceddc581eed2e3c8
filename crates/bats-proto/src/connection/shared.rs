//! A connection with its lock, which the endpoint and the calls of the application share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Connection;

/// A connection and its lock. Clones refer to the same connection.
#[derive(Clone, Debug)]
pub(crate) struct SharedConnection(Arc<Mutex<Connection>>);

impl SharedConnection {
    pub(crate) fn new(connection: Connection) -> Self {
        Self(Arc::new(Mutex::new(connection)))
    }

    /// Locks the connection. A thread that holds it locks a second one only as a link that takes packets of its
    /// sessions. After a panic in another thread the connection is still consistent enough to be closed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
