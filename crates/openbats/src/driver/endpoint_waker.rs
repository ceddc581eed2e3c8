//! Wakes the I/O thread of an endpoint.

use std::fmt::Debug;
use std::io;
use std::panic::RefUnwindSafe;
use std::sync::{Arc, OnceLock};

use super::socket_turn::SocketTurn;
use super::{Interest, Sockets};

/// An I/O thread, as its endpoints use it. The thread drives the endpoints, so their state does not name its type.
/// `RefUnwindSafe`, because endpoints and connections promise it.
pub(super) trait EndpointThread: Debug + Send + Sync + RefUnwindSafe {
    /// Wakes the thread: the endpoint with this number has new work.
    fn wake(&self, number: u64);

    /// Changes the events that the thread waits for on the sockets of the endpoint with this number.
    fn watch(&self, number: u64, sockets: &Sockets, interest: Interest) -> io::Result<()>;
}

/// The I/O thread of an endpoint, and the number of the endpoint there. Empty until the thread has taken it.
#[derive(Debug, Default)]
pub(crate) struct EndpointWaker(OnceLock<(Arc<dyn EndpointThread>, u64)>);

impl EndpointWaker {
    /// Sets the thread, unless it is set already.
    pub(super) fn attach(&self, thread: Arc<dyn EndpointThread>, number: u64) {
        let _ = self.0.set((thread, number));
    }

    pub(crate) fn wake(&self) {
        // An endpoint without a thread is not started yet, and its first turn follows.
        if let Some((thread, number)) = self.0.get() {
            thread.wake(*number);
        }
    }

    /// Changes the socket events that the I/O thread waits for.
    pub(super) fn watch(&self, turn: &mut SocketTurn, interest: Interest) -> io::Result<()> {
        if turn.interest != interest {
            let Some((thread, number)) = self.0.get() else {
                return Err(io::ErrorKind::NotConnected.into());
            };
            thread.watch(*number, &turn.socket, interest)?;
            turn.interest = interest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::UnwindSafe;

    use super::*;
    use crate::node::Node;
    use crate::{Connection, Endpoint};

    #[test]
    fn handles_keep_their_auto_traits() {
        fn check<T: Send + Sync + Unpin + UnwindSafe + RefUnwindSafe>() {}
        check::<Endpoint>();
        check::<Connection>();
        check::<Node>();
    }
}
