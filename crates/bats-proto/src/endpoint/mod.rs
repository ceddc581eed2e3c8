//! The endpoint: routes datagrams to connections and is the interface of all of them to the driver.

mod admission;
#[cfg(test)]
mod aead_limit_tests;
mod answers;
mod calls;
mod connection_calls;
mod connections;
#[cfg(test)]
mod direct_tests;
mod handle;
mod instances;
mod memory;
mod memory_shares;
#[cfg(test)]
mod memory_tests;
#[cfg(test)]
mod psk_nonce_tests;
mod relay_calls;
mod relay_node;
#[cfg(test)]
mod replay_ledger_tests;
mod schedule;
mod server;
mod stateless_reset;
mod steering;
#[cfg(test)]
mod stuck_timers_tests;
mod unknown_packets;
mod unreachable_port;

use core::net::SocketAddr;
use core::time::Duration;

use bats_types::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha20Rng;

use crate::config::{ClientConfig, EndpointConfig, PresharedKey, Security, TransportConfig};
use crate::connection::{Connection, Setup};
use crate::datagram::{Incoming, Outgoing};
pub use crate::datagram::{Local, Received, Transmit};
use crate::error::{CloseReason, ConnectError};
use crate::event::Event;
use crate::handshake::{self, FirstPacket, Handshake, InitialInfo, Protection};
use crate::link::Role;
use crate::remote::Remote;
use crate::session::{local_parameters, receive_budget};
use crate::stats::EndpointStats;
use crate::wire::flow::FlowKey;
use crate::wire::parameters::TransportParameters;
use crate::wire::short_header;

pub use connection_calls::ConnectionCalls;
pub use handle::{ConnectionHandle, GroupHandle};
pub use steering::Steering;

use answers::{Answer, Answers};
use connections::Connections;
use instances::Instances;
use memory::{EXPECTED_CONNECTIONS, Memory};
use relay_node::{Arrival, RelayNode};
use server::{Server, Verdict};
use unknown_packets::UnknownPackets;
use unreachable_port::UnreachablePorts;

/// An input from the driver.
#[derive(Debug)]
pub enum Input<'a> {
    /// A datagram arrived.
    Datagram(Received<'a>),
    /// The time of the last [`Output::Timeout`] has come.
    Timeout,
}

/// An output for the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send the datagrams in the buffer.
    Transmit(Transmit),
    /// Report an event to the application.
    Event(ConnectionHandle, Event),
    /// Nothing more to do now; call again at this time at the latest, if set.
    Timeout(Option<Timestamp>),
}

/// Longest handshake of a client with early data. Servers remember first flights for 25 s against
/// replays (ADR 0013).
const MAX_EARLY_HANDSHAKE: Duration = Duration::from_secs(10);

/// All connections of one UDP socket.
#[derive(Debug)]
pub struct Endpoint {
    security: Security,
    /// See [`EndpointConfig::instance`].
    instance: u64,
    /// Set if this endpoint accepts connections.
    server: Option<Server>,
    rng: ChaCha20Rng,
    connections: Connections,
    memory: Memory,
    unknown_packets: UnknownPackets,
    instances: Instances,
    unreachable_ports: UnreachablePorts,
    answers: Answers,
    /// What no other part of the endpoint counts.
    stats: EndpointStats,
    /// Set if this endpoint is a relay node.
    relay_node: Option<RelayNode>,
}

impl Endpoint {
    /// Creates an endpoint; all its random choices follow from `seed`.
    pub fn new(config: EndpointConfig, seed: [u8; 32]) -> Result<Self, ConnectError> {
        let mut rng = ChaCha20Rng::from_seed(seed);
        let server = match &config.server {
            Some(server) => {
                let mut token_key = [0; 32];
                rng.fill_bytes(&mut token_key);
                Some(Server::new(server, config.security, token_key)?)
            }
            None => None,
        };
        let memory = Memory::new(&config);
        let unknown_packets = UnknownPackets::new(&config, &seed);
        Ok(Self {
            security: config.security,
            instance: config.instance,
            server,
            rng,
            connections: Connections::default(),
            memory,
            unknown_packets,
            instances: Instances::default(),
            unreachable_ports: UnreachablePorts::default(),
            answers: Answers::default(),
            stats: EndpointStats::default(),
            relay_node: None,
        })
    }

    /// Replaces the pre-shared keys that the server accepts, of which there are at most
    /// [`MAX_FURTHER_PSKS`](crate::MAX_FURTHER_PSKS) besides the first. Open connections and
    /// handshakes that have begun are not concerned.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Configuration`] if the endpoint is not a server in PSK mode, or the number of
    /// keys is 0 or too large. The old keys then stay.
    pub fn set_psks(&mut self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        let Some(server) = &mut self.server else {
            return Err(ConnectError::Configuration("this endpoint is no server".to_owned()));
        };
        server.set_psks(keys)
    }

    /// Several endpoints share an address: connections from now on have IDs that name this one.
    pub fn set_steering(&mut self, steering: Steering) {
        self.connections.set_steering(steering);
    }

    /// Starts a connection; [`Event::Connected`] or [`Event::Closed`] follows.
    pub fn connect(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        self.connect_from(now, Local::default(), remote, server_name, config)
    }

    /// As [`Endpoint::connect`], from this local address and interface. A driver with several sockets
    /// sends the packets from the one that is bound to the address.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`].
    pub fn connect_from(
        &mut self,
        now: Timestamp,
        local: Local,
        remote: SocketAddr,
        server_name: &str,
        config: ClientConfig,
    ) -> Result<ConnectionHandle, ConnectError> {
        let protection = Protection::Handshake(self.security);
        self.connect_to(now, local, (remote.into(), server_name), config, protection)
    }

    /// Starts a link to an address, an end-to-end session over relays, or a direct session.
    fn connect_to(
        &mut self,
        now: Timestamp,
        local: Local,
        (remote, server_name): (Remote, &str),
        config: ClientConfig,
        protection: Protection,
    ) -> Result<ConnectionHandle, ConnectError> {
        if !config.transport.mode.is_own() {
            let text = format!("mode {} needs another transport", config.transport.mode as u8);
            return Err(ConnectError::Configuration(text));
        }
        if config.transport.early_data && config.transport.handshake_timeout > MAX_EARLY_HANDSHAKE {
            let text = "with early data the handshake timeout is at most 10 s, because servers \
                        remember first flights for 25 s only";
            return Err(ConnectError::Configuration(text.to_owned()));
        }
        if let Some(group) =
            remote.flow_key().map(|key| key.destination).filter(|node| node.is_group())
        {
            let text = format!("{group} is a group and cannot be the other end of a session");
            return Err(ConnectError::Configuration(text));
        }
        if remote.is_over_relays() && config.transport.early_data {
            let text = "end-to-end sessions over relays do not support early data";
            return Err(ConnectError::Configuration(text.to_owned()));
        }
        if let Some(key) = remote.flow_key()
            && self.relay_node.as_ref().is_none_or(|node| !node.may_send(key))
        {
            let text = format!("{} is not this node", key.source);
            return Err(ConnectError::Configuration(text));
        }
        if let Some(key) = remote.flow_key().filter(|key| self.has_session(*key)) {
            let text =
                format!("a session with {} in flow {} already exists", key.destination, key.flow);
            return Err(ConnectError::Configuration(text));
        }
        let others = EXPECTED_CONNECTIONS.saturating_sub(self.connections.len() + 1);
        let wanted = receive_budget(&config.transport);
        let transport =
            self.memory.within(&config.transport, others).ok_or(ConnectError::Memory)?;
        let config = ClientConfig { transport, ..config };
        let local_cid = self.connections.fresh_cid(&mut self.rng);
        let code_seed = self.rng.next_u64();
        let parameters = self.parameters(&config.transport, code_seed);
        let mut handshake_seed = [0; 32];
        self.rng.fill_bytes(&mut handshake_seed);
        let handshake = Handshake::client(
            now,
            &config,
            (remote, server_name),
            protection,
            parameters,
            local_cid,
            handshake_seed,
        )?;
        let setup = Setup {
            role: Role::Client,
            config: config.transport,
            remote,
            local,
            local_cid,
            handshake,
            seed: self.fresh_seed(),
            code_seed,
            is_recoding: self.is_recoding(),
        };
        let handle = self.insert(now, setup);
        self.memory.charge_base(&self.connections, handle, wanted);
        Ok(handle)
    }

    fn insert(&mut self, now: Timestamp, setup: Setup) -> ConnectionHandle {
        let key = setup.remote.flow_key();
        let handle = self.connections.insert(now, setup);
        if let (Some(relay_node), Some(key)) = (&mut self.relay_node, key) {
            relay_node.insert(now, &mut self.connections, key, handle);
        }
        handle
    }

    /// Whether a session of this node sends a flow.
    fn has_session(&self, key: FlowKey) -> bool {
        self.relay_node.as_ref().is_some_and(|node| node.has_session(key))
    }

    /// Whether this endpoint is a relay node that recodes.
    pub fn is_recoding(&self) -> bool {
        self.relay_node.as_ref().is_some_and(RelayNode::is_recoding)
    }

    /// This end's transport parameters.
    fn parameters(&self, transport: &TransportConfig, code_seed: u64) -> TransportParameters {
        TransportParameters {
            batch_ranks: self.is_recoding(),
            instance: self.instance,
            ..local_parameters(transport, code_seed)
        }
    }

    fn fresh_seed(&mut self) -> [u8; 32] {
        let mut seed = [0; 32];
        self.rng.fill_bytes(&mut seed);
        seed
    }

    /// Processes one input. Never fails: invalid datagrams are counted and dropped.
    pub fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        match input {
            // An answer could end the connection that another endpoint has.
            Input::Datagram(datagram) if self.connections.is_foreign(datagram.payload) => {
                self.stats.datagrams_dropped += 1;
            }
            Input::Datagram(datagram) => self.handle_datagram(now, datagram.into()),
            Input::Timeout => {
                self.connections.handle_timeout(now);
                if let Some(relay_node) = &mut self.relay_node {
                    relay_node.handle_timeout(now, &mut self.connections);
                }
            }
        }
    }

    fn handle_datagram(&mut self, now: Timestamp, datagram: Incoming<'_>) {
        self.stats.datagrams_received += 1;
        let route = if let Some(cid) = short_header::destination(datagram.payload) {
            self.connections.with_cid(cid)
        } else {
            match self.route_long(now, &datagram) {
                Some(handle) => Some(handle),
                None => return,
            }
        };
        // The tables name no connection that has ended.
        let Some(handle) = route else { return self.handle_unknown_cid(now, &datagram) };
        let connection = self.connections.get_mut(handle);
        let Some(mut connection) = connection.filter(|one| one.takes_from(datagram.remote)) else {
            self.stats.datagrams_dropped += 1;
            return;
        };
        connection.handle_datagram(now, datagram);
        drop(connection);
        self.memory.balance(now, &mut self.connections, handle);
        self.connections.mark_dirty(handle);
        self.fetch_relay_inputs(now, handle);
    }

    /// Finds or creates the connection for a datagram with long headers, or answers it statelessly.
    fn route_long(&mut self, now: Timestamp, datagram: &Incoming<'_>) -> Option<ConnectionHandle> {
        let known = match handshake::parse_first(datagram.payload) {
            Some(FirstPacket::ForUs { destination }) => self.connections.with_cid(destination),
            Some(FirstPacket::Early { destination }) => {
                self.connections.with_first((datagram.remote, destination))
            }
            Some(FirstPacket::Initial(initial)) => {
                let known = self.connections.with_first((datagram.remote, initial.destination));
                if known.is_none() && self.server.is_some() {
                    return self.accept(now, datagram, &initial);
                }
                known
            }
            Some(FirstPacket::UnknownVersion(unknown)) => {
                if let Some(server) = &mut self.server {
                    let answer = server.negotiate_version(&unknown, &mut self.rng)?;
                    self.answers.push(datagram, answer);
                    return None;
                }
                None
            }
            None => None,
        };
        self.stats.datagrams_dropped += u64::from(known.is_none());
        known
    }

    /// Accepts the connection that a first packet asks for, or answers it statelessly.
    fn accept(
        &mut self,
        now: Timestamp,
        datagram: &Incoming<'_>,
        initial: &InitialInfo<'_>,
    ) -> Option<ConnectionHandle> {
        let server = self.server.as_mut()?;
        let node = self.relay_node.as_ref();
        let admitted = match server.check(now, datagram, initial, &self.connections, node) {
            Verdict::Accept(admitted) => admitted,
            Verdict::Answer(answer) => {
                self.answers.push(datagram, answer);
                return None;
            }
            Verdict::Drop => return None,
        };
        let remote = admitted.remote;
        let wanted = receive_budget(server.transport());
        let transport = self.memory.within(server.transport(), server.others(&self.connections))?;
        let local_cid = self.connections.fresh_cid(&mut self.rng);
        let code_seed = self.rng.next_u64();
        let reset_token = self.unknown_packets.token(local_cid, remote);
        let parameters =
            TransportParameters { reset_token, ..self.parameters(&transport, code_seed) };
        let seed = self.fresh_seed();
        let server = self.server.as_mut()?;
        let handshake = server.start(now, &admitted, parameters, local_cid, seed)?;
        let setup = Setup {
            role: Role::Server,
            config: transport,
            remote,
            // Answers follow the system's routes, as they always do for servers.
            local: Local { ip: datagram.local_ip, interface: None },
            local_cid,
            handshake,
            seed: self.fresh_seed(),
            code_seed,
            is_recoding: self.is_recoding(),
        };
        let handle = self.insert(now, setup);
        match admitted.is_validated() {
            true => self.memory.charge_base(&self.connections, handle, wanted),
            false => self.memory.reserve_base(&self.connections, handle, wanted),
        }
        if let Some(server) = &mut self.server {
            server.insert_half_open(handle, remote);
        }
        self.connections.insert_first(handle, (remote, initial.destination));
        Some(handle)
    }

    /// Handles a datagram with a short header and an unknown connection ID: it may be a reset of the
    /// server, or be answered by one.
    fn handle_unknown_cid(&mut self, now: Timestamp, datagram: &Incoming<'_>) {
        if self.unknown_packets.handle_reset(&mut self.connections, datagram) {
            return;
        }
        if datagram.remote.is_over_relays() {
            return self.handle_unknown_flow(now, datagram);
        }
        self.stats.datagrams_dropped += 1;
        let (rng, answers) = (&mut self.rng, &mut self.answers);
        self.unknown_packets.answer_unknown_cid(now, datagram, rng, answers);
    }

    /// Handles a packet of a flow that belongs to no session.
    fn handle_unknown_flow(&mut self, now: Timestamp, packet: &Incoming<'_>) {
        self.stats.datagrams_dropped += 1;
        let Some(node) = &self.relay_node else { return };
        let (rng, answers) = (&mut self.rng, &mut self.answers);
        self.unknown_packets.answer_unknown_flow(now, packet, node, rng, answers);
    }

    /// Handles an ICMP "port unreachable" error for a datagram to `remote`. `quoted` is the part of
    /// its UDP payload that the error quotes, perhaps empty. It ends the connections to this address
    /// that no server has answered, and, if it quotes a packet of one of them, those that receive
    /// nothing while the errors persist.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn handle_unreachable_port(&mut self, now: Timestamp, remote: SocketAddr, quoted: &[u8]) {
        let connections = &mut self.connections;
        self.unreachable_ports.handle_unreachable_port(now, connections, remote, quoted);
    }

    /// Passes what a link has received for the relay to it, and packets for this node to its sessions.
    fn fetch_relay_inputs(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let Some(relay_node) = &mut self.relay_node else { return };
        if !relay_node.fetch_inputs(now, &mut self.connections, handle) {
            return;
        }
        while let Some(arrival) =
            self.relay_node.as_mut().and_then(|node| node.next_arrival(now, &mut self.connections))
        {
            match arrival {
                Arrival::Control(key, mut payload) => {
                    self.handle_datagram(now, Incoming::over_relays(key, &mut payload));
                }
                Arrival::Handled(handle) => {
                    // After each packet: a burst of them takes more than the reserve for one.
                    self.memory.balance(now, &mut self.connections, handle);
                    self.connections.mark_dirty(handle);
                }
                Arrival::UnknownFlow(key, mut payload) => {
                    self.handle_unknown_flow(now, &Incoming::over_relays(key, &mut payload));
                }
            }
        }
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.wake_links(&mut self.connections);
        }
    }

    /// Returns the next output. `buffer` is cleared first; its capacity bounds a GSO burst.
    pub fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        buffer.clear();
        while let Some(Answer { remote, local_ip, payload }) = self.answers.pop() {
            let remote = match remote {
                Remote::Network(remote) => remote,
                Remote::Relays(key) => {
                    self.send_relayed(now, key, &payload);
                    continue;
                }
            };
            buffer.extend_from_slice(&payload);
            let len = payload.len();
            let (interface, segment_size) = (None, len);
            let transmit = Transmit { remote, local_ip, interface, ecn: 0, segment_size, len };
            return Output::Transmit(transmit);
        }
        while let Some(handle) = self.connections.schedule_mut().first_dirty() {
            if self.connections.contains(handle) {
                if let Some(event) = self.pop_event(handle) {
                    return self.report_event(handle, event);
                }
                if let Some(outgoing) = self.poll_connection(now, handle, buffer) {
                    let remote = match outgoing.remote {
                        Remote::Network(remote) => remote,
                        Remote::Relays(key) => {
                            for packet in buffer[..outgoing.len].chunks(outgoing.segment_size) {
                                self.send_relayed(now, key, packet);
                            }
                            continue;
                        }
                    };
                    // Round robin: the next connection comes first next time.
                    self.connections.schedule_mut().defer_first();
                    return Output::Transmit(outgoing.to(remote));
                }
                if let Some(event) = self.pop_event(handle) {
                    return self.report_event(handle, event);
                }
            }
            self.connections.schedule_mut().remove_first();
            self.finish_polling(now, handle);
        }
        let own = self.connections.next_timeout();
        let relay_timeout = self.relay_node.as_ref().and_then(RelayNode::next_timeout);
        Output::Timeout(Timestamp::earlier(own, relay_timeout))
    }

    fn pop_event(&mut self, handle: ConnectionHandle) -> Option<Event> {
        self.connections.get_mut(handle)?.pop_event()
    }

    fn report_event(&mut self, handle: ConnectionHandle, event: Event) -> Output {
        if let Event::Closed(CloseReason::PeerMisbehaved(_)) = event {
            self.stats.peers_misbehaved += 1;
        }
        match event {
            Event::Connected => {
                self.record_reset_token(handle);
                self.end_older_instances(handle);
            }
            Event::Accepted => self.end_older_instances(handle),
            _ => {}
        }
        Output::Event(handle, event)
    }

    /// A connection is established: records its token, if this end is the client.
    fn record_reset_token(&mut self, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(handle) else { return };
        if let Some(token) = connection.reset_token() {
            self.unknown_packets.record_token(token, handle);
        }
    }

    /// A connection is established: connections of older instances of its peer end without a packet,
    /// because no process would receive one.
    fn end_older_instances(&mut self, handle: ConnectionHandle) {
        let Some(connection) = self.connections.get(handle) else { return };
        let (Some(peer), Some(instance)) =
            (connection.peer_fingerprint(), connection.peer_instance())
        else {
            return;
        };
        drop(connection);
        for old in self.instances.insert(handle, peer, instance) {
            self.connections.change(old, Connection::on_restarted_peer);
        }
    }

    /// Sends an end-to-end packet of a flow over the relay.
    fn send_relayed(&mut self, now: Timestamp, key: FlowKey, packet: &[u8]) {
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.send(now, &mut self.connections, key, packet);
        }
    }

    /// Polls a connection for datagrams.
    fn poll_connection(
        &mut self,
        now: Timestamp,
        handle: ConnectionHandle,
        buffer: &mut Vec<u8>,
    ) -> Option<Outgoing> {
        match &mut self.relay_node {
            Some(node) => node.poll_connection(now, &mut self.connections, handle, buffer),
            None => self.connections.get_mut(handle)?.poll_transmit(now, buffer, None),
        }
    }

    /// A connection has no more output now: arms its timer, or drops it if it is closed.
    fn finish_polling(&mut self, now: Timestamp, handle: ConnectionHandle) {
        let was_polled_empty = self.connections.schedule_mut().take_polled_empty(handle);
        if let Some(relay_node) = &mut self.relay_node {
            relay_node.update_link_state(now, &mut self.connections, handle);
            relay_node.avoid_polluting_link(now, &mut self.connections, handle);
        }
        if self.connections.end_if_stuck(now, handle) {
            self.stats.timers_stuck += 1;
            return;
        }
        let is_established = self.connections.get(handle).map(|one| one.is_established());
        let Some(is_established) = is_established else { return };
        if is_established {
            if let Some(server) = &mut self.server {
                server.remove_half_open(handle);
            }
            if self.memory.settle(now, &mut self.connections, handle) {
                // It is polled again with the budget that it has now.
                return self.connections.mark_dirty(handle);
            }
            if self.memory.balance(now, &mut self.connections, handle) {
                return self.connections.mark_dirty(handle);
            }
        }
        let Some(connection) = self.connections.get(handle) else { return };
        let has_data = connection.has_end_to_end_data();
        let key = connection.flow_key();
        let next = (!connection.is_dead()).then(|| connection.next_timeout(now));
        drop(connection);
        if next.is_none() {
            self.remove_connection(now, handle);
        }
        self.connections.schedule_mut().set_timer(handle, next.flatten());
        if let (Some(relay_node), Some(key)) = (&mut self.relay_node, key) {
            relay_node.update_session(&mut self.connections, key, has_data, was_polled_empty);
        }
    }

    fn remove_connection(&mut self, now: Timestamp, handle: ConnectionHandle) {
        if let Some(connection) = self.connections.remove(handle) {
            // Calls of the application may still have it.
            let connection = connection.lock();
            self.memory.release(now, &mut self.connections, handle, &connection);
            if let Some(token) = connection.reset_token() {
                self.unknown_packets.forget_token(token, handle);
            }
            if let Some(server) = &mut self.server {
                server.remove_half_open(handle);
            }
            self.instances.remove(handle, connection.peer_fingerprint());
            if let Some(relay_node) = &mut self.relay_node {
                let key = connection.flow_key();
                relay_node.remove_connection(now, &mut self.connections, handle, key);
            }
        }
    }

    /// Statistics of the endpoint itself.
    pub fn endpoint_stats(&self) -> EndpointStats {
        let mut stats = self.stats.clone();
        if let Some(server) = &self.server {
            server.count_in(&mut stats);
        }
        stats.answers_dropped = self.answers.dropped();
        self.memory.count_in(&mut stats);
        self.unknown_packets.count_in(&mut stats);
        stats
    }

    /// Number of open connections.
    pub fn connection_count(&self) -> usize {
        self.connections.len()
    }
}
