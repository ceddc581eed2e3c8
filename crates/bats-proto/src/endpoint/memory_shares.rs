//! Which connections have less memory than they want, and whose turn it is when some becomes free.

use core::ops::Bound;
use std::collections::{BTreeMap, BTreeSet};

use super::ConnectionHandle;

/// Connections that may get more memory when another one gives some back. It bounds the work.
const RAISED_AT_ONCE: usize = 8;

/// Connections that have less memory, or a lower limit of it, than they want.
#[derive(Debug, Default)]
pub(super) struct MemoryShares {
    /// Wanted limits of the connections whose memory is only reserved, with the reserved bytes.
    reserved: BTreeMap<ConnectionHandle, (usize, usize)>,
    /// Wanted limits of the connections with a lower one.
    wanted: BTreeMap<ConnectionHandle, usize>,
    /// Those of them that are established, so that their limit can be raised.
    raisable: BTreeSet<ConnectionHandle>,
    /// Connections that are closed because there was no memory for their base: nothing is charged.
    refused: BTreeSet<ConnectionHandle>,
    /// Connections that wait for memory.
    short: BTreeSet<ConnectionHandle>,
    /// The last of them that got its turn.
    last_turn: Option<ConnectionHandle>,
}

impl MemoryShares {
    /// The memory of a connection, `base` bytes, is reserved only; it wants this limit.
    pub(super) fn reserve(&mut self, handle: ConnectionHandle, wanted: usize, base: usize) {
        self.reserved.insert(handle, (wanted, base));
    }

    /// The wanted limit and the reserved bytes of a connection, which are reserved no longer.
    pub(super) fn take_reserved(&mut self, handle: ConnectionHandle) -> Option<(usize, usize)> {
        self.reserved.remove(&handle)
    }

    /// There was no memory for the base of a connection.
    pub(super) fn refuse(&mut self, handle: ConnectionHandle) {
        self.refused.insert(handle);
    }

    /// Whether there was no memory for the base of a connection, which ends.
    pub(super) fn take_refused(&mut self, handle: ConnectionHandle) -> bool {
        self.refused.remove(&handle)
    }

    /// Whether a connection is charged for its memory.
    pub(super) fn is_charged(&self, handle: ConnectionHandle) -> bool {
        !self.reserved.contains_key(&handle) && !self.refused.contains(&handle)
    }

    /// A connection has a lower limit than this one, which it wants.
    pub(super) fn want(&mut self, handle: ConnectionHandle, limit: usize) {
        self.wanted.insert(handle, limit);
    }

    /// The limit that a connection wants, if it has a lower one.
    pub(super) fn wanted(&self, handle: ConnectionHandle) -> Option<usize> {
        self.wanted.get(&handle).copied()
    }

    /// A connection is established: its limit may be raised. Returns whether that is new and it wants
    /// a higher one.
    pub(super) fn allow_raise(&mut self, handle: ConnectionHandle) -> bool {
        self.wanted.contains_key(&handle) && self.raisable.insert(handle)
    }

    /// A connection has the limit that it wants.
    pub(super) fn on_raised(&mut self, handle: ConnectionHandle) {
        self.wanted.remove(&handle);
        self.raisable.remove(&handle);
    }

    /// Connections whose limits may be raised now that memory is free.
    pub(super) fn next_raisable(&self) -> Vec<ConnectionHandle> {
        self.raisable.iter().copied().take(RAISED_AT_ONCE).collect()
    }

    /// Whether a connection waits for memory.
    pub(super) fn set_short(&mut self, handle: ConnectionHandle, is_short: bool) {
        if is_short {
            self.short.insert(handle);
        } else {
            self.short.remove(&handle);
        }
    }

    /// Connections that wait for memory and get their turn now.
    pub(super) fn next_short(&mut self) -> Vec<ConnectionHandle> {
        let last = self.last_turn.unwrap_or(ConnectionHandle(u64::MAX));
        // Not a scan of all: peers cause shortages and the end of them.
        let after = self.short.range((Bound::Excluded(last), Bound::Unbounded));
        let next: Vec<_> =
            after.chain(&self.short).copied().take(RAISED_AT_ONCE.min(self.short.len())).collect();
        self.last_turn = next.last().copied().or(self.last_turn);
        next
    }

    /// A connection has ended.
    pub(super) fn remove(&mut self, handle: ConnectionHandle) {
        self.on_raised(handle);
        self.short.remove(&handle);
    }
}
