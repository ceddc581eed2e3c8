//! How a node handles the protocol's events: links, admission, sessions.

use std::net::SocketAddr;
use std::task::Waker;

use bats_proto::relay::RelayEvent;
use bats_proto::wire::flow::NodeId;
use bats_proto::{CloseReason, ConnectionHandle, Endpoint, Event as Happened, Timestamp};

use super::codes;
use super::event::Event;
use super::link::LinkId;
use super::link_table::{Entry, MAX_LINK_MESSAGE, MAX_LINKS, MAX_LINKS_PER_NEIGHBOUR};
use super::state::NodeState;
use crate::fingerprint::Fingerprint;

impl NodeState {
    pub(crate) fn close_all(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        due: &mut Vec<Waker>,
    ) {
        let ids: Vec<LinkId> = self.links.ids().collect();
        for id in ids {
            self.close_link(now, packets, id, due);
        }
    }

    pub(crate) fn on_relay_event(&mut self, event: RelayEvent, due: &mut Vec<Waker>) {
        let link_of = |link: bats_proto::relay::LinkId| self.links.of(ConnectionHandle(link.0));
        let event = match event {
            RelayEvent::NonInnovativeNeighbour(link) => {
                link_of(link).map(|link| Event::NonInnovativeNeighbour { link })
            }
            RelayEvent::PollutingPath(link, destination) => {
                link_of(link).map(|link| Event::PollutingPath { link, destination })
            }
            RelayEvent::Unroutable(destination) => Some(Event::NoRoute { destination }),
            _ => None,
        };
        if let Some(event) = event {
            self.events.push(event, due);
        }
    }

    // Sessions.

    /// Whether this node may have a session with a node that has this certificate.
    fn check_peer(&self, remote: NodeId, print: Option<Fingerprint>) -> Result<(), String> {
        match (self.setup.peers.get(&remote), print) {
            (Some(prints), Some(print)) if prints.contains(&print) => Ok(()),
            (Some(_), Some(_)) => Err(format!("this is not the certificate of {remote}")),
            (Some(_), None) => Err(format!("{remote} must present its certificate")),
            (None, _) if self.setup.any_peer => Ok(()),
            (None, _) => Err(format!("{} has no sessions with {remote}", self.id)),
        }
    }

    /// Handles the event of a session. Returns the reason if the session is refused.
    pub(crate) fn refuse_session(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        connection: ConnectionHandle,
        (node, event): (NodeId, &Happened),
        due: &mut Vec<Waker>,
    ) -> Option<String> {
        match event {
            Happened::Accepted | Happened::Connected => {
                let fingerprint = packets.peer_fingerprint(connection).map(Fingerprint);
                // A session that this node opens checks the certificate by its own `Trust`, unless the peer
                // is configured.
                let is_free =
                    *event == Happened::Connected && !self.setup.peers.contains_key(&node);
                let checked = match is_free {
                    true => Ok(()),
                    false => self.check_peer(node, fingerprint),
                };
                let Err(reason) = checked else {
                    self.sessions.insert(connection, node);
                    self.events.push(Event::SessionOpened { node }, due);
                    return None;
                };
                packets.close(now, connection, codes::NOT_ADMITTED, &reason);
                let event = Event::SessionRefused { node, fingerprint, reason: reason.clone() };
                self.events.push(event, due);
                Some(reason)
            }
            Happened::Closed(reason) => {
                if self.sessions.remove(&connection).is_some() {
                    let reason = reason.clone();
                    self.events.push(Event::SessionClosed { node, reason }, due);
                }
                None
            }
            _ => None,
        }
    }

    // Links.

    pub(crate) fn on_link_event(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        connection: ConnectionHandle,
        (event, is_over): (&Happened, bool),
        due: &mut Vec<Waker>,
    ) {
        match event {
            Happened::Accepted if is_over => packets.close(now, connection, 0, "not accepting"),
            Happened::Accepted => self.accept_link(now, packets, connection, due),
            Happened::Connected => {
                if let Some(id) = self.links.of(connection) {
                    self.establish(now, packets, (id, connection), due);
                }
            }
            Happened::Readable if self.setup.link_messages => {
                self.take_messages(now, packets, connection, due);
            }
            Happened::Readable => {
                // A link transports only packets of sessions; its own messages would only use
                // memory.
                packets.close(now, connection, codes::MESSAGE, "a link has no messages of its own");
            }
            Happened::ChannelIncoming if self.setup.link_channels.is_none() => {
                // Sessions that are accepted may have channels, and links are accepted with the same
                // parameters. What arrives in channels of a link would never be read.
                packets.close(now, connection, codes::MESSAGE, "a link has no channels");
            }
            // The neighbour may have a session with this node while this one has none with it. The link stays.
            Happened::ChannelIncoming if !self.has_session(connection) => {
                stop_channels(packets, connection);
            }
            Happened::Closed(reason) => self.on_link_closed(now, packets, connection, reason, due),
            _ => {}
        }
    }

    /// Whether the certificate of this link's neighbour identifies a node, so that the application can have its session.
    fn has_session(&self, connection: ConnectionHandle) -> bool {
        let link = self.links.of(connection).and_then(|link| self.links.get(link));
        link.and_then(|link| self.node_with(link.fingerprint?)).is_some()
    }

    /// Takes messages of a neighbour. They wait nowhere, so that they use no memory.
    fn take_messages(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        connection: ConnectionHandle,
        due: &mut Vec<Waker>,
    ) {
        let Some(link) = self.links.of(connection) else { return };
        while let Some(message) = packets.recv(now, connection) {
            if message.len() > MAX_LINK_MESSAGE {
                let reason = "a message on a link has at most 1024 bytes";
                return packets.close(now, connection, codes::MESSAGE, reason);
            }
            let is_due = self.links.get_mut(link).is_some_and(|entry| entry.messages.take(now));
            if is_due {
                self.events.push(Event::LinkMessage { link, message }, due);
            }
        }
    }

    fn accept_link(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        connection: ConnectionHandle,
        due: &mut Vec<Waker>,
    ) {
        let Some(remote) = packets.remote(connection) else { return };
        let fingerprint = packets.peer_fingerprint(connection).map(Fingerprint);
        let local_ip = packets.local_ip(connection);
        let old = self.accepted_at((remote, local_ip), fingerprint);
        if let Err(reason) = self.check_neighbour(fingerprint, old.is_some()) {
            packets.close(now, connection, codes::NOT_ADMITTED, &reason);
            self.events.push(Event::LinkRefused { remote, fingerprint, reason }, due);
            return;
        }
        let id = old.unwrap_or_else(|| self.links.insert(Entry::new(None, remote)));
        if let Some(entry) = self.links.get_mut(id) {
            (entry.fingerprint, entry.local_ip) = (fingerprint, local_ip);
        }
        self.establish(now, packets, (id, connection), due);
    }

    /// An earlier link from a neighbour at the same addresses, which shows that the neighbour was
    /// restarted.
    fn accepted_at(
        &self,
        (remote, local_ip): (SocketAddr, Option<std::net::IpAddr>),
        fingerprint: Option<Fingerprint>,
    ) -> Option<LinkId> {
        let mut links = self.links.iter();
        let same = links.find(|(_, entry)| {
            entry.options.is_none()
                && (entry.remote, entry.local_ip) == (remote, local_ip)
                && entry.fingerprint == fingerprint
        });
        same.map(|(id, _)| id)
    }

    /// Whether a neighbour may open a link, or replace one.
    fn check_neighbour(&self, print: Option<Fingerprint>, replaces: bool) -> Result<(), String> {
        let listed = print.is_some_and(|print| self.setup.neighbours.contains_key(&print.0));
        if !listed && self.setup.any_neighbour.is_none() {
            return Err(match print {
                Some(print) => format!("{} does not admit the certificate {print}", self.id),
                None => format!("{} admits no neighbour without a certificate", self.id),
            });
        }
        if replaces {
            return Ok(());
        }
        let count = print.map_or(0, |print| self.accepted_from(print).len());
        if count >= MAX_LINKS_PER_NEIGHBOUR {
            return Err(format!("a neighbour may open {MAX_LINKS_PER_NEIGHBOUR} links"));
        }
        if self.links.len() >= MAX_LINKS {
            return Err(format!("{} has {MAX_LINKS} links and takes no more", self.id));
        }
        Ok(())
    }

    /// A connection of a link is established; it may replace an older one.
    fn establish(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        (id, connection): (LinkId, ConnectionHandle),
        due: &mut Vec<Waker>,
    ) {
        let Some(entry) = self.links.get_mut(id) else { return };
        let old = entry.connection.replace(connection).filter(|old| *old != connection);
        if entry.attempt == Some(connection) {
            entry.attempt = None;
        }
        entry.fingerprint = packets.peer_fingerprint(connection).map(Fingerprint);
        if let Some(remote) = packets.remote(connection) {
            entry.remote = remote;
        }
        entry.local_ip = packets.local_ip(connection).or(entry.local_ip);
        (entry.since, entry.silent_since, entry.redial_at) = (now, None, None);
        entry.established += 1;
        entry.waiting.drain_into(due);
        let (remote, fingerprint) = (entry.remote, entry.fingerprint);
        self.links.index(id);
        if let Some(policy) = self.enforced_policy(id) {
            packets.admit_with(now, connection, policy);
        }
        // Queued packets of the old connection move to the new one.
        self.apply_routes_over(now, packets, id, fingerprint);
        if let Some(old) = old {
            packets.close(now, old, 0, "replaced by a new connection");
        }
        self.events.push(Event::LinkUp { link: id, remote, fingerprint }, due);
        self.next_check.get_or_insert(now);
    }

    fn on_link_closed(
        &mut self,
        now: Timestamp,
        packets: &mut Endpoint,
        connection: ConnectionHandle,
        reason: &CloseReason,
        due: &mut Vec<Waker>,
    ) {
        let Some(id) = self.links.of(connection) else { return };
        let Some(entry) = self.links.get_mut(id) else { return };
        let was_up = entry.connection == Some(connection);
        match was_up {
            true => (entry.connection, entry.silent_since) = (None, None),
            false => {
                entry.attempt = None;
                // A neighbour that refuses this node has proved its certificate in the handshake.
                let shown = packets.peer_fingerprint(connection).map(Fingerprint);
                entry.fingerprint = entry.fingerprint.or(shown);
            }
        }
        entry.on_failure(now, was_up, reason.clone());
        entry.waiting.drain_into(due);
        let (fingerprint, is_over) = (entry.fingerprint, entry.options.is_none());
        self.links.index(id);
        if was_up {
            self.apply_routes_over(now, packets, id, fingerprint);
        }
        self.events.push(Event::LinkDown { link: id, reason: reason.clone() }, due);
        // The neighbour opens the link again.
        if is_over {
            self.links.remove(id);
        }
    }
}

/// Stops the channels that a neighbour has opened, of which no one reads.
fn stop_channels(packets: &mut Endpoint, connection: ConnectionHandle) {
    while let Ok(Some(channel)) = packets.accept_channel(connection) {
        packets.stop_channel(connection, channel, codes::NO_SESSION);
        packets.reset_channel(connection, channel, codes::NO_SESSION);
    }
}
