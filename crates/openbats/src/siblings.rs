//! The other I/O threads of an endpoint that has several, each with a socket and connections of its own.
//!
//! The kernel hands most packets to the right socket. It does not while the sockets are being opened and closed, for
//! packets that GRO has put together with those of another connection between the same addresses, and for ICMP errors.
//! A thread that receives such a packet passes it on.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::panic::RefUnwindSafe;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bats_proto::{Received, Steering};

use crate::driver::UnreachablePort;

/// Most bytes that wait for a thread; packets beyond are dropped, as by a full socket.
const MAX_BYTES: usize = 1 << 20;
/// What a packet counts besides its payload.
const OVERHEAD: usize = 128;

/// What another thread has received for this one.
#[derive(Debug)]
pub(crate) enum Passed {
    Datagram { remote: SocketAddr, local_ip: Option<IpAddr>, ecn: u8, payload: Vec<u8> },
    UnreachablePort(UnreachablePort),
}

/// The state of another thread. Its type has siblings, so they do not name it.
pub(crate) trait Sibling: Debug + Send + Sync + RefUnwindSafe {
    /// Keeps this for the next turn of the thread, and wakes it.
    fn take_passed(&self, passed: Passed);
}

/// The packets that this thread takes, and the other threads.
#[derive(Debug, Default)]
pub(crate) struct Siblings {
    steering: Steering,
    /// All threads of the endpoint by their indices; empty if this is the only one.
    all: OnceLock<Box<[Weak<dyn Sibling>]>>,
    inbox: Mutex<Inbox>,
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: VecDeque<Passed>,
    bytes: usize,
    /// The thread has ended.
    is_closed: bool,
}

impl Passed {
    fn bytes(&self) -> usize {
        OVERHEAD
            + match self {
                Self::Datagram { payload, .. } => payload.len(),
                Self::UnreachablePort(error) => error.quoted.len(),
            }
    }
}

impl Siblings {
    pub(crate) fn new(steering: Steering) -> Self {
        Self { steering, ..Self::default() }
    }

    /// Sets all threads of the endpoint, by their indices.
    pub(crate) fn set(&self, all: Box<[Weak<dyn Sibling>]>) {
        let _ = self.all.set(all);
    }

    /// Passes a datagram on if it is for another thread; else returns it.
    pub(crate) fn keep_or_pass<'a>(&self, datagram: Received<'a>) -> Option<Received<'a>> {
        let Some(owner) = self.steering.other_owner(datagram.payload) else {
            return Some(datagram);
        };
        let Received { remote, local_ip, ecn, payload } = datagram;
        // A thread that has ended has no connections.
        if let Some(owner) = self.all.get().and_then(|all| all.get(owner)?.upgrade()) {
            let payload = payload.to_vec();
            owner.take_passed(Passed::Datagram { remote, local_ip, ecn, payload });
        }
        None
    }

    /// Passes an error on to all other threads: any may have sent the datagram that it quotes.
    pub(crate) fn pass_error(&self, error: &UnreachablePort) {
        for (index, other) in self.all.get().into_iter().flatten().enumerate() {
            if !self.steering.is(index)
                && let Some(other) = other.upgrade()
            {
                other.take_passed(Passed::UnreachablePort(error.clone()));
            }
        }
    }

    /// What other threads have passed since the last call.
    pub(crate) fn drain(&self) -> VecDeque<Passed> {
        let mut inbox = self.inbox();
        inbox.bytes = 0;
        std::mem::take(&mut inbox.waiting)
    }

    /// The thread ends: it takes no more.
    pub(crate) fn close(&self) {
        *self.inbox() = Inbox { is_closed: true, ..Inbox::default() };
    }

    /// Another thread has received this.
    pub(crate) fn put(&self, passed: Passed) {
        let mut inbox = self.inbox();
        let bytes = inbox.bytes + passed.bytes();
        if !inbox.is_closed && bytes <= MAX_BYTES {
            inbox.bytes = bytes;
            inbox.waiting.push_back(passed);
        }
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU8;
    use std::sync::Arc;

    use super::*;

    #[derive(Debug)]
    struct Thread(Siblings);

    impl Sibling for Thread {
        fn take_passed(&self, passed: Passed) {
            self.0.put(passed);
        }
    }

    fn threads() -> Vec<Arc<Thread>> {
        let count = NonZeroU8::new(3).unwrap();
        let all: Vec<_> = (0..3)
            .map(|index| Arc::new(Thread(Siblings::new(Steering::new(index, count).unwrap()))))
            .collect();
        let weak = |thread: &Arc<Thread>| -> Weak<dyn Sibling> { Arc::downgrade(thread) as _ };
        for thread in &all {
            thread.0.set(all.iter().map(weak).collect());
        }
        all
    }

    fn pass(thread: &Thread, first: u8, len: usize) -> bool {
        let mut payload = vec![first; len];
        payload[0] = 0x40;
        let remote = ([127, 0, 0, 1], 9).into();
        let datagram = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
        thread.0.keep_or_pass(datagram).is_none()
    }

    #[test]
    fn datagrams_reach_the_thread_of_their_connection_id_and_errors_all_others() {
        let all = threads();
        for first in 0..9 {
            assert_eq!(pass(&all[0], first, 50), first % 3 != 0);
        }
        let error = UnreachablePort {
            remote: ([127, 0, 0, 1], 9).into(),
            quoted: [1].into_iter().collect(),
        };
        all[0].0.pass_error(&error);
        assert_eq!(all.iter().map(|thread| thread.0.drain().len()).collect::<Vec<_>>(), [0, 4, 4]);
        assert!(all.iter().all(|thread| thread.0.drain().is_empty()));
    }

    #[test]
    fn what_waits_for_a_thread_is_limited_and_nothing_waits_for_one_that_has_ended() {
        let all = threads();
        for _ in 0..100 {
            assert!(pass(&all[0], 1, 60_000));
        }
        assert_eq!(all[1].0.drain().len(), MAX_BYTES / (60_000 + OVERHEAD));
        assert!(pass(&all[0], 1, 60_000));
        assert_eq!(all[1].0.drain().len(), 1);
        assert!(pass(&all[0], 1, 50));
        all[1].0.close();
        assert!(pass(&all[0], 1, 50));
        assert!(all[1].0.drain().is_empty());
        // A single thread keeps everything.
        assert!(!pass(&Thread(Siblings::default()), 1, 50));
    }
}
