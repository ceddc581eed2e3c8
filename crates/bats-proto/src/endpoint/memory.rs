//! Memory for received data: reserved before address validation, charged after it, raised with use
//! and lowered again.

use std::sync::Arc;

use bats_types::Timestamp;

use super::admission::{Account, MemoryLedger};
use super::connections::Connections;
use super::handle::ConnectionHandle;
use super::memory_shares::MemoryShares;
use crate::config::{EndpointConfig, TransportConfig};
use crate::connection::Connection;
use crate::session::{min_receive_budget, receive_budget};
use crate::stats::EndpointStats;

/// Outgoing connections of an endpoint for which memory is reserved: the first ones must not use it
/// up. Servers have the same default.
pub(super) const EXPECTED_CONNECTIONS: usize = 10_000;

/// How the memory of a connection has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryChange {
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

/// The memory of all connections of an endpoint.
#[derive(Debug)]
pub(super) struct Memory {
    ledger: MemoryLedger,
    shares: MemoryShares,
    /// Connections that may exist at the same time.
    expected: usize,
    /// See [`EndpointStats::memory_refusals`].
    refusals: u64,
    /// See [`EndpointStats::budgets_reduced`].
    reduced: u64,
    /// See [`EndpointStats::memory_shortages`].
    shortages: u64,
}

impl Memory {
    pub(super) fn new(config: &EndpointConfig) -> Self {
        let server = config.server.as_ref();
        Self {
            ledger: MemoryLedger::new(config.memory_budget),
            shares: MemoryShares::default(),
            expected: server.map_or(EXPECTED_CONNECTIONS, |server| server.max_connections),
            refusals: 0,
            reduced: 0,
            shortages: 0,
        }
    }

    /// Writes what it counts.
    pub(super) fn count_in(&self, stats: &mut EndpointStats) {
        stats.memory_refusals = self.refusals;
        stats.budgets_reduced = self.reduced;
        stats.memory_shortages = self.shortages;
        stats.memory_promised = self.ledger.charged();
    }

    /// The configuration with a receive budget that the remaining memory allows, when `others` more
    /// connections may follow; `None` if there is too little memory. It is the limit of the
    /// connection's memory, which is charged only with use.
    pub(super) fn within(
        &mut self,
        transport: &Arc<TransportConfig>,
        others: usize,
    ) -> Option<Arc<TransportConfig>> {
        let (wanted, least) = (receive_budget(transport), min_receive_budget(transport));
        let Some(granted) = self.ledger.limit(wanted, least, others) else {
            self.refusals += 1;
            return None;
        };
        if granted == wanted {
            return Some(transport.clone());
        }
        self.reduced += 1;
        Some(Arc::new(TransportConfig { receive_budget: granted, ..(**transport).clone() }))
    }

    /// Charges a new connection for its base.
    pub(super) fn charge_base(
        &mut self,
        connections: &Connections,
        handle: ConnectionHandle,
        wanted: usize,
    ) {
        let Some(connection) = connections.get(handle) else { return };
        self.ledger.add(account_of(&connection));
        if connection.session().memory_limit() < wanted {
            self.shares.want(handle, wanted);
        }
    }

    /// Reserves the base of a new connection whose peer has not validated its address.
    pub(super) fn reserve_base(
        &mut self,
        connections: &Connections,
        handle: ConnectionHandle,
        wanted: usize,
    ) {
        let Some(connection) = connections.get(handle) else { return };
        let base = connection.session().memory();
        self.ledger.reserve(base);
        self.shares.reserve(handle, wanted, base);
    }

    /// A connection is established: charges it for its base, and raises a limit that is lower than
    /// wanted. Returns whether the connection has changed.
    pub(super) fn settle(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) -> bool {
        if let Some((wanted, base)) = self.shares.take_reserved(handle) {
            self.ledger.cancel(base);
            if !self.ledger.has_room(base) {
                // Other peers have got the memory meanwhile.
                self.refusals += 1;
                self.shares.refuse(handle);
                if let Some(mut connection) = connections.get_mut(handle) {
                    connection.close_for_lack_of_memory(now);
                }
                return true;
            }
            self.charge_base(connections, handle, wanted);
        }
        self.shares.allow_raise(handle) && self.raise_limit(now, connections, handle)
    }

    /// Connections that may still come, beyond those that exist.
    fn others(&self, connections: &Connections) -> usize {
        self.expected.saturating_sub(connections.len())
    }

    /// Raises the limit of an established connection as far as there is memory. Returns whether it
    /// has changed.
    fn raise_limit(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) -> bool {
        let Some(wanted) = self.shares.wanted(handle) else { return false };
        let others = self.others(connections);
        let Some(mut connection) = connections.get_mut(handle) else { return false };
        let (account, limit) = (account_of(&connection), connection.session().memory_limit());
        // As if it began now.
        self.ledger.remove(account);
        let raised = self.ledger.limit(wanted, account.least, others).unwrap_or(limit);
        self.ledger.add(account);
        if raised >= wanted {
            self.shares.on_raised(handle);
        }
        if raised > limit {
            connection.raise_receive_budget(now, raised);
        }
        raised > limit
    }

    /// Charges a connection for the memory that it needs now, as far as there is any.
    fn adjust(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) -> MemoryChange {
        if !self.shares.is_charged(handle) {
            return MemoryChange::None;
        }
        let others = self.others(connections);
        let Some(mut connection) = connections.get_mut(handle) else { return MemoryChange::None };
        let Some(needed) = connection.memory_demand() else { return MemoryChange::None };
        let (account, was_short) =
            (account_of(&connection), connection.session().is_short_of_memory());
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
            let granted = self.ledger.raise(account, target, others);
            (granted.min(needed).max(present), granted < target)
        } else {
            return MemoryChange::None;
        };
        if (bytes, is_short) == (present, was_short) {
            return MemoryChange::None;
        }
        self.ledger.remove(account);
        self.ledger.add(Account { charged: bytes, ..account });
        connection.set_memory(now, bytes, is_short);
        self.shortages += u64::from(is_short && !was_short);
        self.shares.set_short(handle, is_short);
        if is_less { MemoryChange::Less } else { MemoryChange::More }
    }

    /// A connection that has handled a packet or a call: adjusts its memory. What it gives back goes
    /// to others. Returns whether it has got more.
    pub(super) fn balance(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
    ) -> bool {
        let change = self.adjust(now, connections, handle);
        let waits = |connections: &Connections| {
            let connection = connections.get(handle);
            connection.is_some_and(|connection| connection.session().waits_for_charge())
        };
        // Each step raises the charge, at most to the limit of the connection.
        while change == MemoryChange::More && waits(connections) {
            if self.adjust(now, connections, handle) != MemoryChange::More {
                break;
            }
        }
        if change == MemoryChange::Less {
            self.serve_short(now, connections);
        }
        change == MemoryChange::More
    }

    /// Memory is free: connections that wait for it get their turn.
    fn serve_short(&mut self, now: Timestamp, connections: &mut Connections) {
        let next = self.shares.next_short();
        for handle in next {
            if self.adjust(now, connections, handle) == MemoryChange::More {
                connections.mark_dirty(handle);
            }
        }
    }

    /// A connection has ended: its memory goes to others.
    pub(super) fn release(
        &mut self,
        now: Timestamp,
        connections: &mut Connections,
        handle: ConnectionHandle,
        connection: &Connection,
    ) {
        match self.shares.take_reserved(handle) {
            Some((_, reserved)) => self.ledger.cancel(reserved),
            None if self.shares.take_refused(handle) => {}
            None => self.ledger.remove(account_of(connection)),
        }
        self.shares.remove(handle);
        let next = self.shares.next_raisable();
        for handle in next {
            if self.raise_limit(now, connections, handle) {
                connections.mark_dirty(handle);
            }
        }
        self.serve_short(now, connections);
    }
}
