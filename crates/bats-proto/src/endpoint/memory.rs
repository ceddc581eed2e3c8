//! Shares of the endpoint's memory: reserved before address validation, promised after it, and
//! raised when other connections give memory back.

use std::collections::{BTreeMap, BTreeSet};

use bats_types::Timestamp;

use super::{ConnectionHandle, EXPECTED_CONNECTIONS, Endpoint};
use crate::connection::min_receive_budget;

/// Connections whose budget is raised when one connection ends. It bounds the work for that.
const RAISED_AT_ONCE: usize = 8;

/// Connections whose promised budget is below the configured one.
#[derive(Debug, Default)]
pub(super) struct MemoryShares {
    /// Wanted bytes of the connections whose share is only reserved, with the reserved bytes.
    reserved: BTreeMap<ConnectionHandle, (usize, usize)>,
    /// Wanted bytes of the connections with a smaller promise.
    wanted: BTreeMap<ConnectionHandle, usize>,
    /// Those of them that are established, so that their budget can be raised.
    raisable: BTreeSet<ConnectionHandle>,
}

impl Endpoint {
    fn share_of(&self, handle: ConnectionHandle) -> usize {
        self.connections.get(&handle).map_or(0, |connection| connection.memory())
    }

    /// Promises a new connection its budget.
    pub(super) fn promise_memory(&mut self, handle: ConnectionHandle, wanted: usize) {
        let share = self.share_of(handle);
        self.memory.promise(share);
        if share < wanted {
            self.memory_shares.wanted.insert(handle, wanted);
        }
    }

    /// Reserves the budget of a new connection whose peer has not validated its address.
    pub(super) fn reserve_memory(&mut self, handle: ConnectionHandle, wanted: usize) {
        let share = self.share_of(handle);
        self.memory.reserve(share);
        self.memory_shares.reserved.insert(handle, (wanted, share));
    }

    /// A connection is established: promises its budget, and raises one that is smaller than
    /// wanted. Returns whether the connection has changed.
    pub(super) fn settle_memory(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        if let Some((wanted, share)) = self.memory_shares.reserved.remove(&handle) {
            self.memory.cancel(share);
            if !self.memory.has_room(share) {
                // Validated peers have got the memory meanwhile.
                self.stats.memory_refusals += 1;
                if let Some(connection) = self.connections.get_mut(&handle) {
                    connection.close_for_lack_of_memory(now);
                }
                return true;
            }
            self.memory.promise(share);
            if share < wanted {
                self.memory_shares.wanted.insert(handle, wanted);
            }
        }
        self.memory_shares.wanted.contains_key(&handle)
            && self.memory_shares.raisable.insert(handle)
            && self.raise_memory(now, handle)
    }

    /// Raises the budget of an established connection as far as there is memory. Returns whether it
    /// has changed.
    fn raise_memory(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        let Some(&wanted) = self.memory_shares.wanted.get(&handle) else { return false };
        let known = self.connections.len();
        let Some(connection) = self.connections.get_mut(&handle) else { return false };
        let share = connection.memory();
        let server = self.config.server.as_ref();
        let expected = server.map_or(EXPECTED_CONNECTIONS, |server| server.max_connections);
        let least = min_receive_budget(connection.config());
        let others = expected.saturating_sub(known);
        // As if it began now: without its present share.
        self.memory.release(share);
        let raised = self.memory.grant(wanted, least, others).unwrap_or(share).max(share);
        self.memory.promise(raised);
        if raised == wanted {
            self.memory_shares.wanted.remove(&handle);
            self.memory_shares.raisable.remove(&handle);
        }
        if raised > share {
            connection.raise_receive_budget(now, raised);
        }
        raised > share
    }

    /// A connection has ended: its memory goes to others.
    pub(super) fn release_memory(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        share: usize,
    ) {
        match self.memory_shares.reserved.remove(&handle) {
            Some((_, reserved)) => self.memory.cancel(reserved),
            None => self.memory.release(share),
        }
        self.memory_shares.wanted.remove(&handle);
        self.memory_shares.raisable.remove(&handle);
        let next: Vec<_> =
            self.memory_shares.raisable.iter().copied().take(RAISED_AT_ONCE).collect();
        for handle in next {
            if self.raise_memory(now, handle) {
                self.mark_dirty(handle);
            }
        }
    }
}
