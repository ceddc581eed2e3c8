//! Which connections are to be polled, and when their timers are due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;

use super::handle::ConnectionHandle;

/// The order in which connections are polled, and their timers.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Connections that may have output, each at most once.
    dirty: VecDeque<ConnectionHandle>,
    is_dirty: BTreeSet<ConnectionHandle>,
    /// End-to-end sessions among them that are here only because a link polled them and got no
    /// packet.
    polled_empty: BTreeSet<ConnectionHandle>,
    timers: BTreeSet<(Timestamp, ConnectionHandle)>,
    armed: BTreeMap<ConnectionHandle, Timestamp>,
}

impl Schedule {
    /// A connection may have output.
    pub(super) fn mark_dirty(&mut self, handle: ConnectionHandle) {
        self.polled_empty.remove(&handle);
        if self.is_dirty.insert(handle) {
            self.dirty.push_back(handle);
        }
    }

    /// A link has polled this end-to-end session and got no packet.
    pub(super) fn mark_polled_empty(&mut self, handle: ConnectionHandle) {
        if self.is_dirty.insert(handle) {
            self.dirty.push_back(handle);
            self.polled_empty.insert(handle);
        }
    }

    /// Whether a link that got no packet is the only reason why this connection was polled. That is
    /// forgotten.
    pub(super) fn take_polled_empty(&mut self, handle: ConnectionHandle) -> bool {
        self.polled_empty.remove(&handle)
    }

    /// The connection to poll next.
    pub(super) fn first_dirty(&self) -> Option<ConnectionHandle> {
        self.dirty.front().copied()
    }

    /// The first connection has sent: the others come before it.
    pub(super) fn defer_first(&mut self) {
        self.dirty.rotate_left(1);
    }

    /// The first connection has no more output.
    pub(super) fn remove_first(&mut self) {
        if let Some(handle) = self.dirty.pop_front() {
            self.is_dirty.remove(&handle);
        }
    }

    /// Sets or removes the timer of a connection.
    pub(super) fn set_timer(&mut self, handle: ConnectionHandle, next: Option<Timestamp>) {
        if self.armed.get(&handle).copied() == next {
            return;
        }
        if let Some(at) = self.armed.remove(&handle) {
            self.timers.remove(&(at, handle));
        }
        if let Some(at) = next {
            self.armed.insert(handle, at);
            self.timers.insert((at, handle));
        }
    }

    /// The next connection whose timer is due; its timer is removed.
    pub(super) fn pop_due(&mut self, now: Timestamp) -> Option<ConnectionHandle> {
        let &(at, handle) = self.timers.first()?;
        if at > now {
            return None;
        }
        self.timers.pop_first();
        self.armed.remove(&handle);
        Some(handle)
    }

    /// When the first timer is due.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.timers.first().map(|&(at, _)| at)
    }
}
