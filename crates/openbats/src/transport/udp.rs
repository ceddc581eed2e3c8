//! Mode 11: a message is a plain UDP datagram.
//!
//! There is no handshake: a client's connection is established at once, and a server's with the
//! first datagram of a peer. Datagrams are assigned to connections by the remote address alone, so
//! a server of this mode offers no other mode. Connections end by idle timeout or a local close. On
//! a socket that is for this mode alone, the system fragments long messages, and clients are
//! notified of unreachable ports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::session::{Inbox, MESSAGE_OVERHEAD};
use bats_proto::{
    BufferStats, ClientConfig, CloseReason, CongestionStats, ConnectError, ConnectionStats, Event,
    Mode, PathStats, PeerLimits, Received, SendError, ServerConfig, Timestamp, Transmit,
    TransportConfig,
};
use bytes::Bytes;

use super::binding::{Output, Transport};
use super::round_robin::RoundRobin;

/// Bytes queued for sending before a message is refused.
const SEND_QUEUE: usize = 1 << 20;
/// Bytes of one peer that wait for the application; further datagrams are lost.
const RECEIVE_QUEUE: usize = 8 << 20;
/// The same for all peers together, because source addresses can be spoofed.
const TOTAL_RECEIVE_QUEUE: usize = 64 << 20;
/// Bytes that each datagram counts in addition to its payload.
const DATAGRAM_COST: usize = MESSAGE_OVERHEAD;
/// Peers of a server; a single datagram, even with a spoofed address, creates one.
const MAX_PEERS: usize = 4_096;
/// The longest payload of both IP families if datagrams may be fragmented.
const MAX_FRAGMENTED: usize = 65_507;
/// Bytes by which the IPv6 header is longer than that of IPv4.
const IPV6_EXTRA_HEADER: usize = 20;
/// The longest deadline of a message.
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

#[derive(Debug)]
struct Server {
    transport: TransportConfig,
    max_peers: usize,
}

#[derive(Debug)]
struct Connection {
    remote: SocketAddr,
    is_client: bool,
    limit: usize,
    idle_timeout: Duration,
    deadline: Duration,
    outgoing: VecDeque<(Bytes, Timestamp)>,
    queued: usize,
    incoming: Inbox,
    /// When a datagram was last sent or received.
    active: Timestamp,
    armed: Option<Timestamp>,
    events: VecDeque<Event>,
    was_refused: bool,
    is_readable_reported: bool,
    is_finished: bool,
    is_over: bool,
    stats: ConnectionStats,
}

impl Connection {
    fn new(
        now: Timestamp,
        remote: SocketAddr,
        config: &TransportConfig,
        is_client: bool,
        may_fragment: bool,
    ) -> Self {
        let shorter = if remote.is_ipv6() { IPV6_EXTRA_HEADER } else { 0 };
        let packet = usize::from(config.max_udp_payload).saturating_sub(shorter);
        let limit = if may_fragment { MAX_FRAGMENTED } else { packet };
        let first = if is_client { Event::Connected } else { Event::Accepted };
        let stats = ConnectionStats {
            established: Some(now),
            congestion: CongestionStats {
                controller_state: "none",
                pacing_bps: u64::MAX,
                ..CongestionStats::default()
            },
            path: PathStats { mtu: packet as u16, ..PathStats::default() },
            ..ConnectionStats::default()
        };
        Self {
            remote,
            is_client,
            limit: limit.min(config.max_message_size),
            idle_timeout: config.idle_timeout,
            deadline: config.deadline,
            outgoing: VecDeque::new(),
            queued: 0,
            incoming: Inbox::default(),
            active: now,
            armed: None,
            events: VecDeque::from([first]),
            was_refused: false,
            is_readable_reported: false,
            is_finished: false,
            is_over: false,
            stats,
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if !self.is_over {
            self.is_over = true;
            self.outgoing.clear();
            self.queued = 0;
            self.events.push_back(Event::Closed(reason));
        }
    }

    /// Returns the next message before its deadline and drops expired ones.
    fn pop_outgoing(&mut self, now: Timestamp) -> Option<Bytes> {
        while let Some((message, until)) = self.outgoing.pop_front() {
            self.queued -= message.len() + DATAGRAM_COST;
            if now <= until {
                return Some(message);
            }
            self.stats.messages.expired += 1;
        }
        None
    }
}

/// The connections of mode 11 of an endpoint.
#[derive(Debug)]
pub(crate) struct Udp {
    server: Option<Server>,
    /// Whether the socket is for this mode alone.
    is_exclusive: bool,
    refuses_new: bool,
    connections: BTreeMap<u64, Connection>,
    by_remote: BTreeMap<SocketAddr, u64>,
    next: u64,
    dirty: RoundRobin,
    timers: BTreeSet<(Timestamp, u64)>,
    held: usize,
    refused: u64,
}

impl Udp {
    /// With a server the socket is for this mode alone, regardless of `is_exclusive`.
    pub(crate) fn new(server: Option<&ServerConfig>, is_exclusive: bool) -> Self {
        let is_exclusive = is_exclusive || server.is_some();
        let server = server.map(|server| Server {
            transport: TransportConfig::clone(&server.transport),
            max_peers: server.max_connections.min(MAX_PEERS),
        });
        Self {
            server,
            is_exclusive,
            refuses_new: false,
            connections: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            next: 0,
            dirty: RoundRobin::default(),
            timers: BTreeSet::new(),
            held: 0,
            refused: 0,
        }
    }

    /// Whether the socket is for this mode alone.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Whether a datagram from this address belongs to this mode.
    pub(super) fn wants(&self, remote: SocketAddr) -> bool {
        self.server.is_some() || self.by_remote.contains_key(&remote)
    }

    pub(super) fn stop_listening(&mut self) {
        self.refuses_new = true;
    }

    pub(super) fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        config: &ClientConfig,
    ) -> Result<u64, ConnectError> {
        if self.by_remote.contains_key(&remote) {
            return Err(ConnectError::Configuration(format!(
                "this endpoint already has a connection of mode 11 to {remote}: datagrams of two \
                 connections could not be distinguished"
            )));
        }
        let connection = Connection::new(now, remote, &config.transport, true, self.is_exclusive);
        Ok(self.insert(connection))
    }

    /// Handles an ICMP "port unreachable" error: the client's connection has no server.
    pub(super) fn handle_unreachable_port(&mut self, remote: SocketAddr) {
        let Some(&id) = self.by_remote.get(&remote) else { return };
        if let Some(connection) = self.connections.get_mut(&id)
            && connection.is_client
        {
            connection.end(CloseReason::Refused);
            self.dirty.insert(id);
        }
    }

    fn insert(&mut self, connection: Connection) -> u64 {
        let id = self.next;
        self.next += 1;
        self.by_remote.insert(connection.remote, id);
        self.connections.insert(id, connection);
        self.dirty.insert(id);
        id
    }

    pub(super) fn handle_datagram(&mut self, now: Timestamp, datagram: &Received<'_>) {
        let id = match (self.by_remote.get(&datagram.remote), &self.server) {
            (Some(&id), _) => id,
            (None, Some(server))
                if !self.refuses_new && self.connections.len() < server.max_peers =>
            {
                let peer = Connection::new(
                    now,
                    datagram.remote,
                    &server.transport,
                    false,
                    self.is_exclusive,
                );
                self.insert(peer)
            }
            (None, _) => {
                self.refused += 1;
                return;
            }
        };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.is_over {
            return;
        }
        connection.active = now;
        let stats = &mut connection.stats;
        stats.packets.received += 1;
        stats.packets.bytes_received += datagram.payload.len() as u64;
        let cost = datagram.payload.len() + DATAGRAM_COST;
        if connection.incoming.bytes_held() + cost > RECEIVE_QUEUE
            || self.held + cost > TOTAL_RECEIVE_QUEUE
        {
            stats.messages.lost += 1;
            return;
        }
        stats.messages.bytes_received += datagram.payload.len() as u64;
        self.held += cost;
        connection.incoming.push(Bytes::copy_from_slice(datagram.payload));
        if !core::mem::replace(&mut connection.is_readable_reported, true) {
            connection.events.push_back(Event::Readable);
        }
        self.dirty.insert(id);
    }

    pub(super) fn handle_timeout(&mut self, now: Timestamp) {
        while let Some(&(due, id)) = self.timers.first()
            && due <= now
        {
            self.timers.pop_first();
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.armed = None;
                if now >= connection.active + connection.idle_timeout {
                    connection.end(CloseReason::IdleTimeout(connection.idle_timeout));
                }
                self.dirty.insert(id);
            }
        }
    }

    fn update_timer(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let next = (!connection.is_over).then(|| connection.active + connection.idle_timeout);
        if connection.armed != next {
            if let Some(due) = connection.armed {
                self.timers.remove(&(due, id));
            }
            if let Some(due) = next {
                self.timers.insert((due, id));
            }
            connection.armed = next;
        }
        if connection.is_over {
            self.held -= connection.incoming.bytes_held();
            self.by_remote.remove(&connection.remote);
            self.connections.remove(&id);
        }
    }

    /// Datagrams of new peers beyond the limit.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

impl Transport for Udp {
    type Id = u64;

    /// Returns the next datagram, event or timeout. After each datagram or event it is another connection's turn.
    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output<u64> {
        buffer.clear();
        while let Some(id) = self.dirty.current() {
            let Some(connection) = self.connections.get_mut(&id) else {
                self.dirty.remove(id);
                continue;
            };
            if let Some(event) = connection.events.pop_front() {
                if event == Event::Readable {
                    connection.is_readable_reported = false;
                }
                self.dirty.on_output(id);
                return Output::Event(id, event);
            }
            let had_some = !connection.outgoing.is_empty();
            let message = connection.pop_outgoing(now);
            if had_some && connection.outgoing.is_empty() {
                connection.events.push_back(Event::AllAcknowledged);
            }
            if let Some(message) = message {
                connection.active = now;
                let stats = &mut connection.stats;
                stats.packets.sent += 1;
                stats.packets.bytes_sent += message.len() as u64;
                buffer.extend_from_slice(&message);
                if connection.was_refused && connection.queued <= SEND_QUEUE / 2 {
                    connection.was_refused = false;
                    connection.events.push_back(Event::Writable);
                }
                let remote = connection.remote;
                let len = message.len();
                self.dirty.on_output(id);
                return Output::Transmit(Transmit {
                    remote,
                    local_ip: None,
                    interface: None,
                    ecn: 0,
                    segment_size: len.max(1),
                    len,
                });
            }
            if !connection.events.is_empty() {
                continue;
            }
            self.dirty.remove(id);
            self.update_timer(id);
        }
        Output::Timeout(self.timers.first().map(|&(due, _)| due))
    }

    fn send(
        &mut self,
        now: Timestamp,
        id: u64,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        let connection = self.connections.get_mut(&id).ok_or(SendError::Closed)?;
        if connection.is_over {
            return Err(SendError::Closed);
        }
        if connection.is_finished {
            return Err(SendError::Finished);
        }
        if message.len() > connection.limit {
            let (size, limit) = (message.len(), connection.limit);
            return Err(SendError::TooLarge { size, limit });
        }
        let cost = message.len() + DATAGRAM_COST;
        if connection.queued + cost > SEND_QUEUE {
            connection.was_refused = true;
            return Err(SendError::Blocked(message));
        }
        connection.queued += cost;
        connection.stats.messages.sent += 1;
        connection.stats.messages.bytes_sent += message.len() as u64;
        let until = now + deadline.unwrap_or(connection.deadline).min(MAX_DEADLINE);
        connection.outgoing.push_back((message, until));
        self.dirty.insert(id);
        Ok(())
    }

    fn finish(&mut self, _now: Timestamp, id: u64) -> Result<(), SendError> {
        let connection = self.connections.get_mut(&id).ok_or(SendError::Closed)?;
        if core::mem::replace(&mut connection.is_finished, true) {
            return Err(SendError::Finished);
        }
        Ok(())
    }

    fn recv(&mut self, _now: Timestamp, id: u64) -> Option<Bytes> {
        let connection = self.connections.get_mut(&id)?;
        let message = connection.incoming.pop()?;
        connection.stats.messages.received += 1;
        self.held -= message.len() + DATAGRAM_COST;
        Some(message)
    }

    /// The peer cannot signal its end.
    fn is_finished(&self, _id: u64) -> bool {
        false
    }

    /// Whether all queued messages are sent.
    fn is_all_acknowledged(&self, id: u64) -> bool {
        self.connections.get(&id).is_some_and(|connection| connection.outgoing.is_empty())
    }

    fn close(&mut self, _now: Timestamp, id: u64, _code: u64, _reason: &str) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.end(CloseReason::Local);
            self.dirty.insert(id);
        }
    }

    fn stats(&self, now: Timestamp, id: u64) -> Option<ConnectionStats> {
        let connection = self.connections.get(&id)?;
        Some(ConnectionStats {
            time: now,
            buffers: BufferStats {
                send_bytes: connection.queued as u64,
                receive_bytes: connection.incoming.bytes_held() as u64,
                ..BufferStats::default()
            },
            ..connection.stats.clone()
        })
    }

    fn receive_buffer_bytes(&self, id: u64) -> usize {
        self.connections.get(&id).map_or(0, |connection| connection.incoming.bytes_held())
    }

    fn remote(&self, id: u64) -> Option<SocketAddr> {
        Some(self.connections.get(&id)?.remote)
    }

    fn mode(&self, _id: u64) -> Option<Mode> {
        Some(Mode::Udp)
    }

    fn peer_limits(&self, _id: u64) -> Option<PeerLimits> {
        None
    }

    fn longest_datagram(&self, _id: u64) -> Option<usize> {
        None
    }

    fn peer_fingerprint(&self, _id: u64) -> Option<[u8; 32]> {
        None
    }

    fn connection_count(&self) -> usize {
        self.connections.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(1_000 + ms)
    }

    fn remote(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn client() -> ClientConfig {
        ClientConfig {
            trust: bats_proto::PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: TransportConfig::default().into(),
        }
    }

    fn server(max_connections: usize) -> Udp {
        let identity = bats_proto::Identity { certificate_chain: vec![], private_key: vec![] };
        Udp::new(
            Some(&ServerConfig {
                identity,
                transport: TransportConfig::default().into(),
                client_trust: None,
                retry_threshold: 0,
                max_connections,
            }),
            false,
        )
    }

    fn receive(udp: &mut Udp, port: u16, payload: &[u8]) {
        let mut payload = payload.to_vec();
        let remote = remote(port);
        let datagram = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
        udp.handle_datagram(at(0), &datagram);
    }

    fn events(udp: &mut Udp, now: Timestamp) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        loop {
            match udp.poll(now, &mut Vec::new()) {
                Output::Event(id, event) => events.push((id, event)),
                Output::Transmit(_) => {}
                Output::Timeout(_) => return events,
            }
        }
    }

    #[test]
    fn receive_queues_are_bounded_per_peer_and_in_total() {
        let mut udp = server(10_000);
        for port in 1..=12 {
            for _ in 0..200 {
                receive(&mut udp, port, &[1; 60_000]);
            }
        }
        assert!(
            udp.connections
                .values()
                .all(|connection| connection.incoming.bytes_held() <= RECEIVE_QUEUE)
        );
        assert!(udp.held <= TOTAL_RECEIVE_QUEUE && udp.held > TOTAL_RECEIVE_QUEUE - (1 << 20));
        for _ in 0..1_000_000 {
            receive(&mut udp, 100, &[]);
        }
        assert!(udp.held <= TOTAL_RECEIVE_QUEUE);
        let lost = udp.stats(at(0), 11).unwrap();
        assert!(lost.messages.lost > 0 && lost.packets.received == 200, "{lost:?}");
        (0..13).for_each(|id| udp.close(at(0), id, 0, ""));
        events(&mut udp, at(0));
        assert_eq!((udp.held, udp.connection_count()), (0, 0));
    }

    #[test]
    fn the_longest_message_depends_on_fragmentation() {
        for (is_exclusive, limit) in [(false, 1_472), (true, 65_507)] {
            let mut udp = Udp::new(None, is_exclusive);
            let id = udp.connect(at(0), remote(1), &client()).unwrap();
            udp.send(at(0), id, vec![0; limit].into(), None).unwrap();
            let beyond = udp.send(at(0), id, vec![0; limit + 1].into(), None);
            assert_eq!(beyond, Err(SendError::TooLarge { size: limit + 1, limit }));
        }
    }

    #[test]
    fn the_send_queue_is_bounded_in_bytes() {
        let mut udp = Udp::new(None, true);
        let id = udp.connect(at(0), remote(1), &client()).unwrap();
        let message = Bytes::from(vec![0; (SEND_QUEUE / 32) - DATAGRAM_COST]);
        for _ in 0..32 {
            udp.send(at(0), id, message.clone(), None).unwrap();
        }
        assert_eq!(udp.send(at(0), id, Bytes::new(), None), Err(SendError::Blocked(Bytes::new())));
        let found = events(&mut udp, at(0));
        assert!(found.contains(&(id, Event::Writable)), "{found:?}");
        udp.send(at(0), id, message, None).unwrap();
    }

    #[test]
    fn connections_with_messages_to_send_take_turns() {
        let mut udp = Udp::new(None, true);
        let ids = [1, 2, 3].map(|port| udp.connect(at(0), remote(port), &client()).unwrap());
        events(&mut udp, at(0));
        for id in ids {
            (0..200).for_each(|_| udp.send(at(0), id, vec![7; 1_000].into(), None).unwrap());
        }
        let mut sent = [0; 3];
        for _ in 0..99 {
            match udp.poll(at(0), &mut Vec::new()) {
                Output::Transmit(transmit) => sent[usize::from(transmit.remote.port()) - 1] += 1,
                Output::Event(_, event) => panic!("{event:?}"),
                Output::Timeout(at) => panic!("nothing to send until {at:?}"),
            }
        }
        assert_eq!(sent, [33; 3]);
    }

    #[test]
    fn an_unreachable_port_ends_clients_but_not_servers() {
        let mut udp = Udp::new(None, true);
        let id = udp.connect(at(0), remote(1), &client()).unwrap();
        udp.handle_unreachable_port(remote(2));
        assert_eq!(events(&mut udp, at(0)), [(id, Event::Connected)]);
        udp.handle_unreachable_port(remote(1));
        assert_eq!(events(&mut udp, at(0)), [(id, Event::Closed(CloseReason::Refused))]);
        assert_eq!(udp.connection_count(), 0);
        let mut udp = server(2);
        receive(&mut udp, 1, b"x");
        udp.handle_unreachable_port(remote(1));
        assert_eq!(udp.connection_count(), 1);
    }

    #[test]
    fn new_peers_beyond_the_limit_are_refused() {
        let mut udp = server(2);
        for port in 1..=3 {
            receive(&mut udp, port, b"x");
        }
        let found = events(&mut udp, at(0));
        let accepted = found.iter().filter(|(_, event)| *event == Event::Accepted).count();
        assert_eq!((accepted, udp.connection_count(), udp.refused()), (2, 2, 1));
    }

    #[test]
    fn expired_messages_are_dropped_and_idle_connections_end() {
        let mut udp = server(2);
        receive(&mut udp, 1, b"x");
        events(&mut udp, at(0));
        udp.send(at(0), 0, Bytes::from_static(b"late"), Some(Duration::from_millis(5))).unwrap();
        udp.send(at(0), 0, Bytes::from_static(b"in time"), None).unwrap();
        assert_eq!(events(&mut udp, at(10)), [(0, Event::AllAcknowledged)]);
        let stats = udp.stats(at(10), 0).unwrap();
        assert_eq!((stats.messages.sent, stats.messages.expired, stats.packets.sent), (2, 1, 1));
        udp.handle_timeout(at(30_009));
        assert_eq!(events(&mut udp, at(30_009)), []);
        udp.handle_timeout(at(30_010));
        let idle = CloseReason::IdleTimeout(Duration::from_secs(30));
        assert_eq!(events(&mut udp, at(30_010)), [(0, Event::Closed(idle))]);
    }
}
