//! Memory for received data: reserved before address validation, charged after it, raised with use
//! and lowered again.

use bats_types::Timestamp;

use super::admission::Account;
use super::connections::Connections;
use super::{ConnectionHandle, EXPECTED_CONNECTIONS, Endpoint};
use crate::connection::Connection;
use crate::session::min_receive_budget;

/// How the memory of a connection has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryChange {
    None,
    More,
    Less,
}

fn account_of(connection: &Connection) -> Account {
    Account {
        charged: connection.session().memory(),
        least: min_receive_budget(connection.config()),
    }
}

impl Endpoint {
    /// Charges a new connection for its base.
    pub(super) fn charge_base(&mut self, handle: ConnectionHandle, wanted: usize) {
        let Some(connection) = self.connections.get(handle) else { return };
        self.memory.add(account_of(connection));
        if connection.session().memory_limit() < wanted {
            self.memory_shares.want(handle, wanted);
        }
    }

    /// Reserves the base of a new connection whose peer has not validated its address.
    pub(super) fn reserve_base(&mut self, handle: ConnectionHandle, wanted: usize) {
        let Some(connection) = self.connections.get(handle) else { return };
        let base = connection.session().memory();
        self.memory.reserve(base);
        self.memory_shares.reserve(handle, wanted, base);
    }

    /// A connection is established: charges it for its base, and raises a limit that is lower than
    /// wanted. Returns whether the connection has changed.
    pub(super) fn settle_memory(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        if let Some((wanted, base)) = self.memory_shares.take_reserved(handle) {
            self.memory.cancel(base);
            if !self.memory.has_room(base) {
                // Other peers have got the memory meanwhile.
                self.stats.memory_refusals += 1;
                self.memory_shares.refuse(handle);
                if let Some(connection) = self.connections.get_mut(handle) {
                    connection.close_for_lack_of_memory(now);
                }
                return true;
            }
            self.charge_base(handle, wanted);
        }
        self.memory_shares.allow_raise(handle) && self.raise_limit(now, handle)
    }

    /// Connections that may still come, beyond those that exist.
    fn expected_connections(&self) -> usize {
        let server = self.config.server.as_ref();
        let expected = server.map_or(EXPECTED_CONNECTIONS, |server| server.max_connections);
        expected.saturating_sub(self.connections.len())
    }

    /// Raises the limit of an established connection as far as there is memory. Returns whether it
    /// has changed.
    fn raise_limit(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        let Some(wanted) = self.memory_shares.wanted(handle) else { return false };
        let others = self.expected_connections();
        let Some(connection) = self.connections.get_mut(handle) else { return false };
        let (account, limit) = (account_of(connection), connection.session().memory_limit());
        // As if it began now.
        self.memory.remove(account);
        let raised = self.memory.limit(wanted, account.least, others).unwrap_or(limit);
        self.memory.add(account);
        if raised >= wanted {
            self.memory_shares.on_raised(handle);
        }
        if raised > limit {
            connection.raise_receive_budget(now, raised);
        }
        raised > limit
    }

    /// Charges a connection for the memory that it needs now, as far as there is any.
    pub(super) fn adjust_memory(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
    ) -> MemoryChange {
        if !self.memory_shares.is_charged(handle) {
            return MemoryChange::None;
        }
        let others = self.expected_connections();
        let Some(connection) = self.connections.get_mut(handle) else { return MemoryChange::None };
        let Some(needed) = connection.memory_demand() else { return MemoryChange::None };
        let (account, was_short) =
            (account_of(connection), connection.session().is_short_of_memory());
        let present = account.charged;
        // Half as much again, so that a steady flow does not change it all the time.
        let is_less = needed + needed / 2 < present;
        let (bytes, is_short) = if is_less {
            (needed, false)
        } else if needed > present || was_short {
            // A connection that was short stays so until there is memory in reserve. Otherwise it
            // would give credit for which there is no memory.
            let reserve = if was_short { present * 2 } else { 0 };
            let target = needed.max(reserve.min(connection.session().memory_limit()));
            let granted = self.memory.raise(account, target, others);
            (granted.min(needed).max(present), granted < target)
        } else {
            return MemoryChange::None;
        };
        if (bytes, is_short) == (present, was_short) {
            return MemoryChange::None;
        }
        self.memory.remove(account);
        self.memory.add(Account { charged: bytes, ..account });
        connection.set_memory(now, bytes, is_short);
        self.stats.memory_shortages += u64::from(is_short && !was_short);
        self.memory_shares.set_short(handle, is_short);
        if is_less { MemoryChange::Less } else { MemoryChange::More }
    }

    /// A connection that has handled a packet or a call: adjusts its memory. What it gives back goes
    /// to others. Returns whether it has got more.
    pub(super) fn balance_memory(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        let change = self.adjust_memory(now, handle);
        let waits = |connections: &Connections| {
            let connection = connections.get(handle);
            connection.is_some_and(|connection| connection.session().waits_for_charge())
        };
        // Each step raises the charge, at most to the limit of the connection.
        while change == MemoryChange::More && waits(&self.connections) {
            if self.adjust_memory(now, handle) != MemoryChange::More {
                break;
            }
        }
        if change == MemoryChange::Less {
            self.serve_short(now);
        }
        change == MemoryChange::More
    }

    /// Memory is free: connections that wait for it get their turn.
    fn serve_short(&mut self, now: Timestamp) {
        let next = self.memory_shares.next_short();
        for handle in next {
            if self.adjust_memory(now, handle) == MemoryChange::More {
                self.connections.mark_dirty(handle);
            }
        }
    }

    /// A connection has ended: its memory goes to others.
    pub(super) fn release_memory(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        connection: &Connection,
    ) {
        match self.memory_shares.take_reserved(handle) {
            Some((_, reserved)) => self.memory.cancel(reserved),
            None if self.memory_shares.take_refused(handle) => {}
            None => self.memory.remove(account_of(connection)),
        }
        self.memory_shares.remove(handle);
        let next = self.memory_shares.next_raisable();
        for handle in next {
            if self.raise_limit(now, handle) {
                self.connections.mark_dirty(handle);
            }
        }
        self.serve_short(now);
    }
}
