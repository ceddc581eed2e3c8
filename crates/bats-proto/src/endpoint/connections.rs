//! The connections of an endpoint: by their handles, by what datagrams name them by, and in the
//! order in which they are polled.

use std::collections::BTreeMap;
use std::sync::MutexGuard;

use bats_types::{StuckTimers, Timestamp};
use rand::Rng;
use rustc_hash::FxHashMap;

use super::handle::ConnectionHandle;
use super::schedule::Schedule;
use super::steering::Steering;
use crate::connection::{Connection, Setup, SharedConnection};
use crate::remote::Remote;
use crate::wire::long_header::ORIGINAL_CID_LEN;

/// Where a client is, and its initial destination connection ID.
type First = (Remote, [u8; ORIGINAL_CID_LEN]);

/// All connections of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Connections with neighbours, which datagrams of the network reach.
    links: BTreeMap<ConnectionHandle, SharedConnection>,
    /// End-to-end sessions over relays, whose coded packets links send.
    sessions: Sessions,
    next_handle: u64,
    by_cid: FxHashMap<[u8; 4], ConnectionHandle>,
    /// Which connection IDs are those of this endpoint.
    steering: Steering,
    /// Connections by the client's address or flow and initial destination connection ID, for packets
    /// that do not use the server's connection ID yet.
    by_first: FxHashMap<First, ConnectionHandle>,
    /// The inverse of `by_first`.
    firsts: BTreeMap<ConnectionHandle, First>,
    schedule: Schedule,
    stuck_timers: StuckTimers<ConnectionHandle>,
}

/// The end-to-end sessions of an endpoint over relays.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    by_handle: BTreeMap<ConnectionHandle, SharedConnection>,
}

impl Sessions {
    pub(super) fn get(&self, handle: ConnectionHandle) -> Option<MutexGuard<'_, Connection>> {
        self.by_handle.get(&handle).map(SharedConnection::lock)
    }

    /// As [`Connections::get_mut`].
    pub(super) fn get_mut(
        &mut self,
        handle: ConnectionHandle,
    ) -> Option<MutexGuard<'_, Connection>> {
        self.get(handle)
    }
}

impl Connections {
    /// Connections from now on have IDs that name this endpoint.
    pub(super) fn set_steering(&mut self, steering: Steering) {
        self.steering = steering;
    }

    /// Whether another endpoint of the same address takes a datagram.
    pub(super) fn is_foreign(&self, datagram: &[u8]) -> bool {
        self.steering.other_owner(datagram).is_some()
    }

    /// Adds a connection, which is polled.
    pub(super) fn insert(&mut self, now: Timestamp, setup: Setup) -> ConnectionHandle {
        let handle = ConnectionHandle(self.next_handle);
        self.next_handle += 1;
        self.by_cid.insert(setup.local_cid, handle);
        let table = match setup.remote {
            Remote::Network(_) => &mut self.links,
            Remote::Relays(_) => &mut self.sessions.by_handle,
        };
        table.insert(handle, SharedConnection::new(Connection::new(now, setup)));
        self.mark_dirty(handle);
        handle
    }

    /// Adds where the client of a connection is, and its initial destination connection ID.
    pub(super) fn insert_first(&mut self, handle: ConnectionHandle, first: First) {
        self.by_first.insert(first, handle);
        self.firsts.insert(handle, first);
    }

    /// Removes a connection that has ended. Its timer stays until it is set to `None`.
    pub(super) fn remove(&mut self, handle: ConnectionHandle) -> Option<SharedConnection> {
        let removed = self.links.remove(&handle);
        let connection = removed.or_else(|| self.sessions.by_handle.remove(&handle))?;
        self.stuck_timers.forget(handle);
        let local_cid = connection.lock().local_cid();
        self.by_cid.remove(&local_cid);
        if let Some(first) = self.firsts.remove(&handle) {
            self.by_first.remove(&first);
        }
        Some(connection)
    }

    /// A link, and the sessions whose packets it may send.
    pub(super) fn split(
        &mut self,
        link: ConnectionHandle,
    ) -> Option<(MutexGuard<'_, Connection>, &mut Sessions)> {
        Some((self.links.get(&link)?.lock(), &mut self.sessions))
    }

    // Links come first: a plain connection costs one look-up.

    /// The connection with its lock, for calls of the application.
    pub(super) fn shared(&self, handle: ConnectionHandle) -> Option<&SharedConnection> {
        self.links.get(&handle).or_else(|| self.sessions.by_handle.get(&handle))
    }

    /// The connection, locked: only one at a time may be held.
    pub(super) fn get(&self, handle: ConnectionHandle) -> Option<MutexGuard<'_, Connection>> {
        self.shared(handle).map(SharedConnection::lock)
    }

    /// The connection, locked. That this borrows the table proves that the endpoint has locked no other one.
    pub(super) fn get_mut(
        &mut self,
        handle: ConnectionHandle,
    ) -> Option<MutexGuard<'_, Connection>> {
        self.get(handle)
    }

    /// All connections, in the order in which they began.
    pub(super) fn iter(
        &self,
    ) -> impl Iterator<Item = (ConnectionHandle, MutexGuard<'_, Connection>)> {
        let mut links = self.links.iter().peekable();
        let mut sessions = self.sessions.by_handle.iter().peekable();
        let next = move || {
            let is_session_next = match (links.peek(), sessions.peek()) {
                (Some((link, _)), Some((session, _))) => session < link,
                (link, _) => link.is_none(),
            };
            if is_session_next { sessions.next() } else { links.next() }
        };
        core::iter::from_fn(next).map(|(handle, connection)| (*handle, connection.lock()))
    }

    pub(super) fn contains(&self, handle: ConnectionHandle) -> bool {
        self.shared(handle).is_some()
    }

    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.links.len() + self.sessions.by_handle.len()
    }

    /// The connection with this connection ID.
    pub(super) fn with_cid(&self, cid: [u8; 4]) -> Option<ConnectionHandle> {
        self.by_cid.get(&cid).copied()
    }

    /// The connection whose client is there and chose this connection ID for the server.
    pub(super) fn with_first(&self, first: First) -> Option<ConnectionHandle> {
        self.by_first.get(&first).copied()
    }

    /// A connection ID that no connection has.
    pub(super) fn fresh_cid(&self, rng: &mut impl Rng) -> [u8; 4] {
        loop {
            let cid = self.steering.steer(rng.next_u32().to_be_bytes());
            if !self.by_cid.contains_key(&cid) {
                return cid;
            }
        }
    }

    /// Changes a connection, after which it may have output.
    pub(super) fn change<T>(
        &mut self,
        handle: ConnectionHandle,
        change: impl FnOnce(&mut Connection) -> T,
    ) -> Option<T> {
        let result = change(&mut *self.get_mut(handle)?);
        self.mark_dirty(handle);
        Some(result)
    }

    /// A connection may have output.
    pub(super) fn mark_dirty(&mut self, handle: ConnectionHandle) {
        self.schedule.mark_dirty(handle);
    }

    /// The order in which the connections are polled, and their timers.
    pub(super) fn schedule_mut(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    /// When the first timer is due.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.schedule.next_timeout()
    }

    /// Handles the timers that are due.
    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        while let Some(handle) = self.schedule.pop_due(now) {
            if self.change(handle, |connection| connection.handle_timeout(now)).is_some() {
                self.stuck_timers.on_handled(handle, now);
            }
        }
    }

    /// Ends a connection with a timer that stays due although it is handled: a defect, which must
    /// not block the others. Returns whether it has one.
    pub(super) fn end_if_stuck(&mut self, now: Timestamp, handle: ConnectionHandle) -> bool {
        // Few calls follow a timeout.
        if !self.stuck_timers.watches(handle) {
            return false;
        }
        let timeout = self.get(handle).map(|connection| connection.next_timeout(now));
        let Some(timeout) = timeout else { return false };
        if !self.stuck_timers.is_stuck(handle, timeout) {
            return false;
        }
        self.change(handle, |connection| connection.on_stuck_timer(now));
        true
    }
}
