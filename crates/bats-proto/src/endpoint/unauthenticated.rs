//! Datagrams with long headers from unauthenticated peers, before a connection exists.

use bats_types::Timestamp;
use rand::Rng;

use super::{ConnectionHandle, Endpoint, Local, Received};
use crate::config::{PresharedKey, ServerConfig};
use crate::connection::Setup;
use crate::error::ConnectError;
use crate::handshake::{self, FirstPacket, Handshake, ServerCrypto, ServerStart};
use crate::link::Role;
use crate::session::receive_budget;
use crate::wire::parameters::TransportParameters;

impl Endpoint {
    /// Replaces the pre-shared keys that the server accepts, of which there are at most
    /// [`MAX_FURTHER_PSKS`](crate::MAX_FURTHER_PSKS) besides the first. Open connections and
    /// handshakes that have begun are not concerned.
    ///
    /// # Errors
    ///
    /// [`ConnectError::Configuration`] if the endpoint is not a server in PSK mode, or the number of
    /// keys is 0 or too large. The old keys then stay.
    pub fn set_psks(&mut self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        let (Some(crypto), Some(config)) = (&mut self.server, &self.config.server) else {
            return Err(ConnectError::Configuration("this endpoint is no server".to_owned()));
        };
        crypto.set_psks(&config.transport, keys)
    }

    /// Finds or creates the connection for a datagram with long headers, or answers it statelessly.
    pub(super) fn route_long(
        &mut self,
        now: Timestamp,
        datagram: &Received<'_>,
    ) -> Option<ConnectionHandle> {
        let first = handshake::parse_first(datagram.payload);
        match first {
            Some(FirstPacket::ForUs { destination }) => {
                let handle = self.connections.with_cid(destination);
                self.stats.datagrams_dropped += u64::from(handle.is_none());
                handle
            }
            Some(FirstPacket::Early { destination }) => {
                let handle = self.connections.with_first((datagram.remote, destination));
                self.stats.datagrams_dropped += u64::from(handle.is_none());
                handle
            }
            Some(FirstPacket::Initial(initial)) => {
                let key = (datagram.remote, initial.destination);
                if let Some(handle) = self.connections.with_first(key) {
                    return Some(handle);
                }
                self.accept(now, datagram, &initial)
            }
            Some(FirstPacket::UnknownVersion(unknown)) => {
                match self.server.as_ref().map(ServerCrypto::requires_psk) {
                    None => self.stats.datagrams_dropped += 1,
                    Some(true) => self.stats.unauthenticated_ignored += 1,
                    Some(false) => {
                        self.stats.version_negotiations_sent += 1;
                        let answer =
                            handshake::write_version_negotiation(&unknown, self.rng.next_u32());
                        self.answers.push(datagram, answer);
                    }
                }
                None
            }
            None => {
                self.stats.datagrams_dropped += 1;
                None
            }
        }
    }

    fn accept(
        &mut self,
        now: Timestamp,
        datagram: &Received<'_>,
        initial: &handshake::InitialInfo<'_>,
    ) -> Option<ConnectionHandle> {
        let (Some(crypto), Some(config)) = (&self.server, &self.config.server) else {
            self.stats.datagrams_dropped += 1;
            return None;
        };
        // Check the PSK proof first: unauthenticated peers cost this much and no more.
        let Some(initial) = crypto.verify_psk_proof(initial) else {
            self.stats.unauthenticated_ignored += 1;
            return None;
        };
        let flight = (initial.destination, initial.source);
        let is_repeated = crypto.requires_psk() && self.first_flights.contains(flight);
        let end_to_end = self.relay_node.as_ref().and_then(|c| c.key_of(datagram.remote));
        if self.has_session(end_to_end) {
            // Otherwise any node that may use the relays could take over the flow of a session.
            self.stats.connections_refused += 1;
            return None;
        }
        if self.half_open.is_full(datagram.remote) {
            self.stats.half_open_refused += 1;
            return None;
        }
        let ServerConfig { transport, retry_threshold, max_connections, .. } = config;
        let transport = transport.clone();
        let (retry_threshold, max_connections) = (*retry_threshold, *max_connections);
        let full = self.connections.len() >= max_connections;
        let start = crypto.start(
            now,
            datagram.remote,
            &initial,
            full,
            is_repeated || self.half_open.requires_retry(datagram.remote, retry_threshold),
        );
        match start {
            // In PSK mode a sender with a copied proof but no valid first flight gets no Retry
            // either.
            ServerStart::Answer(_)
                if crypto.requires_psk() && !crypto.opens(&initial, datagram.payload) =>
            {
                self.stats.unauthenticated_ignored += 1;
                None
            }
            ServerStart::Accept(_) if !crypto.opens(&initial, datagram.payload) => {
                // Damaged in transit, or not a first flight: create no state for it.
                self.stats.datagrams_dropped += 1;
                None
            }
            ServerStart::Accept(start) => {
                let others = max_connections.saturating_sub(self.connections.len() + 1);
                let wanted = receive_budget(&transport);
                let is_validated = start.is_validated();
                let transport = self.memory.within(&transport, others)?;
                let local_cid = self.connections.fresh_cid(&mut self.rng);
                let code_seed = self.rng.next_u64();
                let take_early = transport.early_data && end_to_end.is_none();
                let reset_token =
                    self.unknown_packets.token(local_cid, datagram.remote, end_to_end.is_some());
                let parameters = TransportParameters {
                    reset_token,
                    early_limit: if take_early { handshake::EARLY_LIMIT } else { 0 },
                    ..self.parameters(&transport, code_seed)
                };
                let seed = self.fresh_seed();
                let crypto = self.server.as_ref()?;
                self.stats.early_data_refused += u64::from(!crypto.has_early_room(now));
                let handshake =
                    Handshake::server(now, crypto, parameters, local_cid, &start, take_early, seed)
                        .ok()?;
                if crypto.requires_psk() {
                    self.first_flights.insert(flight);
                }
                self.stats.handshakes_started += 1;
                let setup = Setup {
                    role: Role::Server,
                    config: transport,
                    remote: datagram.remote,
                    // Answers follow the system's routes, as they always do for servers.
                    local: Local { ip: datagram.local_ip, interface: None },
                    local_cid,
                    handshake,
                    seed: self.fresh_seed(),
                    code_seed,
                    end_to_end,
                };
                let handle = self.insert(now, setup);
                match is_validated {
                    true => self.memory.charge_base(&self.connections, handle, wanted),
                    false => self.memory.reserve_base(&self.connections, handle, wanted),
                }
                self.half_open.insert(handle, datagram.remote);
                let first = (datagram.remote, initial.destination);
                self.connections.insert_first(handle, first);
                Some(handle)
            }
            ServerStart::Answer(answer) => {
                self.stats.retries_sent += 1;
                self.answers.push(datagram, answer);
                None
            }
            ServerStart::Drop => {
                if full {
                    self.stats.connections_refused += 1;
                } else {
                    self.stats.datagrams_dropped += 1;
                }
                None
            }
        }
    }
}
