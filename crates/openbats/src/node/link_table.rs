//! The links of a node: their connections, and when they are dialled again.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bats_proto::{CloseReason, ConnectionHandle, Timestamp};
use bats_types::ReportBudget;

use super::codes;
use super::link::{LinkId, LinkOptions, LinkState};
use crate::fingerprint::Fingerprint;
use crate::wakers::Wakers;

/// Maximum number of links of a node. Each takes a connection and a part of the memory budget.
pub(crate) const MAX_LINKS: usize = 4_096;
/// Maximum number of links that one neighbour may open: as many as a route uses at once.
pub(crate) const MAX_LINKS_PER_NEIGHBOUR: usize = bats_proto::relay::MAX_PATHS;
/// Longest message on a link: messages are for the management of nodes, and each is an event.
pub(crate) const MAX_LINK_MESSAGE: usize = 1_024;
/// Mean interval of the messages that a neighbour may send on a link.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(10);
/// Time before the second attempt; it doubles with each failure.
const FIRST_DELAY: Duration = Duration::from_millis(200);
/// Longest time between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(5);
/// A link that was established for this long is dialled again without a longer delay, unless the neighbour
/// refuses the node, which it may say only later: one that restarts again and again should not be left alone.
const STABLE: Duration = Duration::from_millis(500);

/// A link.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Options of a link that this node opened.
    pub(crate) options: Option<Box<LinkOptions>>,
    /// The established connection.
    pub(crate) connection: Option<ConnectionHandle>,
    /// The connection whose handshake is under way. It replaces a silent one.
    pub(crate) attempt: Option<ConnectionHandle>,
    pub(crate) remote: SocketAddr,
    pub(crate) local_ip: Option<IpAddr>,
    pub(crate) fingerprint: Option<Fingerprint>,
    /// When it was last established.
    pub(crate) since: Timestamp,
    pub(crate) established: u64,
    /// Attempts and connections that have ended.
    pub(crate) failures: u64,
    /// Those since it was last stable.
    failures_in_a_row: u32,
    pub(crate) redial_at: Option<Timestamp>,
    /// Since when the neighbour does not answer.
    pub(crate) silent_since: Option<Timestamp>,
    pub(crate) last_end: Option<CloseReason>,
    pub(crate) waiting: Wakers,
    /// Messages that the neighbour may send.
    pub(crate) messages: ReportBudget,
}

impl Entry {
    pub(crate) fn new(options: Option<LinkOptions>, remote: SocketAddr) -> Self {
        Self {
            local_ip: options.as_ref().and_then(|options| options.local_ip),
            options: options.map(Box::new),
            connection: None,
            attempt: None,
            remote,
            fingerprint: None,
            since: Timestamp::ZERO,
            established: 0,
            failures: 0,
            failures_in_a_row: 0,
            redial_at: None,
            silent_since: None,
            last_end: None,
            waiting: Wakers::default(),
            messages: ReportBudget::new(MESSAGE_INTERVAL),
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    pub(crate) fn state(&self) -> LinkState {
        match (self.connection, self.silent_since) {
            (Some(_), None) => LinkState::Up,
            (Some(_), Some(_)) => LinkState::Silent,
            _ if self.attempt.is_some() => LinkState::Dialling,
            _ if self.redial_at.is_some() => LinkState::Waiting,
            _ => LinkState::Closed,
        }
    }

    /// Records the end of a connection or an attempt, and when to dial again.
    pub(crate) fn on_failure(&mut self, now: Timestamp, was_up: bool, reason: CloseReason) {
        let is_refused =
            matches!(&reason, CloseReason::Peer { code, .. } if *code == codes::NOT_ADMITTED);
        if was_up && !is_refused && now - self.since >= STABLE {
            self.failures_in_a_row = 0;
        }
        let delay = FIRST_DELAY * 2u32.saturating_pow(self.failures_in_a_row.min(16));
        self.failures += 1;
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        self.last_end = Some(reason);
        let redials = self.options.as_ref().is_some_and(|options| options.redials);
        self.redial_at = redials.then(|| now + delay.min(LONGEST_DELAY));
    }

    fn connections(&self) -> impl Iterator<Item = ConnectionHandle> {
        self.connection.into_iter().chain(self.attempt)
    }
}

/// The links by their IDs and connections.
#[derive(Debug, Default)]
pub(crate) struct LinkTable {
    entries: BTreeMap<LinkId, Entry>,
    by_connection: BTreeMap<ConnectionHandle, LinkId>,
    next: u64,
}

impl LinkTable {
    pub(crate) fn insert(&mut self, entry: Entry) -> LinkId {
        self.next += 1;
        let id = LinkId(self.next);
        self.entries.insert(id, entry);
        self.index(id);
        id
    }

    /// Updates the index after the connections of a link have changed.
    pub(crate) fn index(&mut self, id: LinkId) {
        let connections = self.entries.get(&id).into_iter().flat_map(Entry::connections);
        let connections: Vec<_> = connections.collect();
        self.by_connection.retain(|handle, link| *link != id || connections.contains(handle));
        self.by_connection.extend(connections.into_iter().map(|handle| (handle, id)));
    }

    /// Removes a link; returns its connections.
    pub(crate) fn remove(&mut self, id: LinkId) -> Option<Entry> {
        let entry = self.entries.remove(&id)?;
        self.index(id);
        Some(entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Connections of links, those in a handshake included.
    pub(crate) fn connections(&self) -> usize {
        self.by_connection.len()
    }

    pub(crate) fn contains(&self, id: LinkId) -> bool {
        self.entries.contains_key(&id)
    }

    pub(crate) fn get(&self, id: LinkId) -> Option<&Entry> {
        self.entries.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Entry> {
        self.entries.get_mut(&id)
    }

    pub(crate) fn of(&self, connection: ConnectionHandle) -> Option<LinkId> {
        self.by_connection.get(&connection).copied()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = LinkId> {
        self.entries.keys().copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &Entry)> {
        self.entries.iter().map(|(&id, entry)| (id, entry))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (LinkId, &mut Entry)> {
        self.entries.iter_mut().map(|(&id, entry)| (id, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Trust;

    fn entry() -> Entry {
        let remote = ([127, 0, 0, 1], 9).into();
        Entry::new(Some(LinkOptions::new(remote, Trust::dangerous_any())), remote)
    }

    #[test]
    fn attempts_follow_with_growing_delays_until_the_link_is_stable() {
        let mut entry = entry();
        let now = Timestamp::from_millis(100_000);
        let mut delays = Vec::new();
        for _ in 0..7 {
            entry.on_failure(now, false, CloseReason::HandshakeTimeout);
            delays.push((entry.redial_at.unwrap() - now).as_millis());
        }
        assert_eq!(delays, [200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
        entry.since = now;
        entry.on_failure(now + STABLE / 2, true, CloseReason::HandshakeTimeout);
        assert_eq!(entry.redial_at, Some(now + STABLE / 2 + LONGEST_DELAY), "it flaps");
        entry.on_failure(now + STABLE, true, CloseReason::HandshakeTimeout);
        assert_eq!(entry.redial_at, Some(now + STABLE + FIRST_DELAY));
        let refused = CloseReason::Peer { code: codes::NOT_ADMITTED, reason: String::new() };
        entry.on_failure(now + STABLE, true, refused);
        assert_eq!(
            entry.redial_at,
            Some(now + STABLE + 2 * FIRST_DELAY),
            "after a long round trip"
        );
    }

    #[test]
    fn index_follows_the_connections_of_a_link() {
        let mut links = LinkTable::default();
        let [first, second] = [1, 2].map(ConnectionHandle);
        let id = links.insert(Entry { attempt: Some(first), ..entry() });
        assert_eq!((links.of(first), links.of(second)), (Some(id), None));
        let entry = links.get_mut(id).unwrap();
        (entry.connection, entry.attempt) = (Some(second), None);
        links.index(id);
        assert_eq!((links.of(first), links.of(second)), (None, Some(id)));
        assert_eq!(links.connections(), 1);
        assert!(links.remove(id).is_some() && links.of(second).is_none());
        assert_eq!((links.len(), links.connections()), (0, 0));
    }
}
