//! What a call of the application for one connection leaves to do for the thread that has the state of the endpoint.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use bats_proto::Timestamp;

use crate::driver::Custody;
use crate::endpoint_state::Core;
use crate::transport::Handle;

/// Who does what a call leaves to do, if the I/O thread sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FollowUp {
    #[default]
    Nothing,
    /// A control packet may be due.
    Poll,
    /// A message is to be sent.
    Send,
    /// The I/O thread must handle it, or else the thread that has the endpoint.
    Wake,
}

/// What a call has read, from which credit for the peer may follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Read {
    /// It reads nothing.
    #[default]
    Never,
    /// It has tried to take a message; the bytes of the one that there was.
    Message(Option<usize>),
    /// It has tried to read from a channel; the bytes that there were. `has_credit`: a frame is due.
    Channel { bytes: Option<usize>, has_credit: bool },
}

impl Read {
    /// Records what was read. Returns what follows from it.
    fn apply(self, custody: &mut Custody, now: Timestamp) -> FollowUp {
        let is_due = match self {
            Self::Never => false,
            // To look for credit after each message would take as long as the taking.
            Self::Message(Some(bytes)) => custody.on_taken(bytes),
            Self::Message(None) => custody.has_taken(),
            // Credit is sent at once; everything else that follows from bytes that were read waits for the next turn,
            // if that is near: a call for each few packets would take longer than the reading.
            Self::Channel { bytes, has_credit } => {
                if let Some(bytes) = bytes {
                    custody.on_taken(bytes);
                }
                has_credit || custody.has_taken() && !custody.has_turn_soon(now)
            }
        };
        if is_due { FollowUp::Poll } else { FollowUp::Nothing }
    }
}

/// What a call for a connection leaves to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Work {
    pub(crate) follow_up: FollowUp,
    pub(crate) read: Read,
    /// A task waits for the connection now, which a thread that leads must know.
    pub(crate) has_waiter: bool,
}

impl Work {
    pub(crate) const NOTHING: Self =
        Self { follow_up: FollowUp::Nothing, read: Read::Never, has_waiter: false };

    pub(crate) fn follow_up(follow_up: FollowUp) -> Self {
        Self { follow_up, ..Self::NOTHING }
    }

    /// A task waits, and nothing has changed.
    pub(crate) fn waiter() -> Self {
        Self { has_waiter: true, ..Self::NOTHING }
    }

    /// Records in the core what the call has done. Returns who does the rest.
    pub(crate) fn apply(
        self,
        core: &mut Core,
        handle: Handle,
        thread: ThreadId,
        now: Timestamp,
    ) -> FollowUp {
        let custody = &mut core.custody;
        if self.has_waiter {
            custody.disturb_leader();
        }
        if self.follow_up == FollowUp::Send {
            custody.on_send(thread);
        }
        let of_read = self.read.apply(custody, now);
        core.endpoint.mark_called(handle);
        self.follow_up.max(of_read)
    }
}

/// The work of calls that came while another thread had the state of the endpoint. That thread does it before it
/// gives the state back.
#[derive(Debug, Default)]
pub(crate) struct LeftWork {
    called: BTreeSet<Handle>,
    /// Messages and bytes that were taken.
    taken: (usize, usize),
    /// The last thread that has sent a message.
    sender: Option<ThreadId>,
    has_waiter: bool,
    /// Something is to be sent.
    is_due: bool,
    /// A call that reads may find credit due for what was taken before it.
    has_looked: bool,
}

impl LeftWork {
    /// Leaves the work of a call. At most one entry for each connection is kept.
    pub(crate) fn leave(&mut self, handle: Handle, thread: ThreadId, work: Work) {
        if work.follow_up == FollowUp::Send {
            self.sender = Some(thread);
        }
        self.has_waiter |= work.has_waiter;
        let (bytes, has_credit) = match work.read {
            Read::Never => (None, false),
            Read::Message(bytes) => (bytes, false),
            Read::Channel { bytes, has_credit } => (bytes, has_credit),
        };
        if let Some(bytes) = bytes {
            self.taken = (self.taken.0 + 1, self.taken.1 + bytes);
        }
        self.is_due |= work.follow_up != FollowUp::Nothing || has_credit;
        self.has_looked |= matches!(work.read, Read::Message(None) | Read::Channel { .. });
        self.called.insert(handle);
    }

    /// Does what is left. Returns whether a connection must be polled soon.
    pub(crate) fn apply(&mut self, core: &mut Core) -> bool {
        let Self { called, taken, sender, has_waiter, is_due, has_looked } = std::mem::take(self);
        if has_waiter {
            core.custody.disturb_leader();
        }
        if let Some(sender) = sender {
            core.custody.on_send(sender);
        }
        let has_credit = core.custody.on_all_taken(taken);
        for handle in &called {
            core.endpoint.mark_called(*handle);
        }
        is_due || has_credit || has_looked && core.custody.has_taken()
    }
}

/// [`LeftWork`] with its lock, the last one that a thread takes.
#[derive(Debug, Default)]
pub(crate) struct SharedWork(Mutex<LeftWork>);

impl SharedWork {
    pub(crate) fn lock(&self) -> MutexGuard<'_, LeftWork> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what is left, as [`LeftWork::apply`].
    pub(crate) fn apply(&self, core: &mut Core) -> bool {
        self.lock().apply(core)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reading_leaves_work_only_for_credit_or_if_no_turn_follows() {
        let now = Timestamp::ZERO + Duration::from_secs(1);
        let mut custody = Custody::default();
        let read = |bytes, has_credit| Read::Channel { bytes, has_credit };
        assert_eq!(read(None, false).apply(&mut custody, now), FollowUp::Nothing, "nothing read");
        assert_eq!(read(None, true).apply(&mut custody, now), FollowUp::Poll, "credit");
        assert_eq!(read(Some(1), false).apply(&mut custody, now), FollowUp::Poll, "no timer");
        custody.set_deadline(Some(now + Duration::from_micros(500)), now);
        assert_eq!(read(Some(1), false).apply(&mut custody, now), FollowUp::Nothing, "a turn");
        assert_eq!(read(None, true).apply(&mut custody, now), FollowUp::Poll, "credit is urgent");
    }

    #[test]
    fn messages_that_are_taken_leave_work_only_for_several_or_at_the_last_one() {
        let (now, mut custody) = (Timestamp::ZERO, Custody::default());
        assert_eq!(Read::Never.apply(&mut custody, now), FollowUp::Nothing);
        assert_eq!(Read::Message(None).apply(&mut custody, now), FollowUp::Nothing, "none");
        assert_eq!(Read::Message(Some(9)).apply(&mut custody, now), FollowUp::Nothing, "a few");
        assert_eq!(Read::Message(None).apply(&mut custody, now), FollowUp::Poll, "the last");
        let many = Read::Message(Some(100_000));
        assert_eq!(many.apply(&mut custody, now), FollowUp::Poll, "many bytes");
    }
}
