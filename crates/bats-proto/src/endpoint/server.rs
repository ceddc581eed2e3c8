//! What an endpoint that accepts connections gives unauthenticated peers: handshakes, or stateless
//! answers, or nothing.

use std::sync::Arc;

use bats_types::Timestamp;
use rand::Rng;

use super::admission::{FirstFlights, Flight, HalfOpen};
use super::connections::Connections;
use super::handle::ConnectionHandle;
use super::relay_node::RelayNode;
use crate::config::{PresharedKey, Security, ServerConfig, TransportConfig};
use crate::datagram::Incoming;
use crate::error::ConnectError;
use crate::handshake::{self, Handshake, InitialInfo, ServerCrypto, ServerStart, StartInfo};
use crate::remote::Remote;
use crate::stats::EndpointStats;
use crate::wire::parameters::TransportParameters;

/// The server's half of an endpoint.
#[derive(Debug)]
pub(super) struct Server {
    crypto: ServerCrypto,
    /// For direct sessions of neighbours, whose links have authenticated them.
    direct: ServerCrypto,
    transport: Arc<TransportConfig>,
    retry_threshold: usize,
    max_connections: usize,
    half_open: HalfOpen,
    /// First flights for which a server in PSK mode has started handshakes.
    first_flights: FirstFlights,
    counts: Counts,
}

/// See the fields of [`EndpointStats`] with these names.
#[derive(Debug, Default)]
struct Counts {
    datagrams_dropped: u64,
    unauthenticated_ignored: u64,
    handshakes_started: u64,
    connections_refused: u64,
    half_open_refused: u64,
    retries_sent: u64,
    version_negotiations_sent: u64,
    early_data_refused: u64,
}

/// What a first packet gets.
#[derive(Debug)]
pub(super) enum Verdict {
    Accept(Admitted),
    /// This datagram, and no state is kept.
    Answer(Vec<u8>),
    Drop,
}

/// A first packet for which a handshake may start.
#[derive(Debug)]
pub(super) struct Admitted {
    start: StartInfo,
    flight: Flight,
    /// Where the client is.
    pub(super) remote: Remote,
}

impl Admitted {
    /// Whether the peer has validated its address.
    pub(super) fn is_validated(&self) -> bool {
        self.start.is_validated()
    }
}

impl Server {
    /// `token_key` signs retry tokens.
    pub(super) fn new(
        config: &ServerConfig,
        security: Security,
        token_key: [u8; 32],
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            crypto: ServerCrypto::new(config, security, token_key)?,
            direct: ServerCrypto::of_links(token_key),
            transport: config.transport.clone(),
            retry_threshold: config.retry_threshold,
            max_connections: config.max_connections,
            half_open: HalfOpen::default(),
            first_flights: FirstFlights::default(),
            counts: Counts::default(),
        })
    }

    /// Replaces the pre-shared keys.
    pub(super) fn set_psks(&mut self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        self.crypto.set_psks(&self.transport, keys)
    }

    /// The configuration of its connections.
    pub(super) fn transport(&self) -> &Arc<TransportConfig> {
        &self.transport
    }

    /// Connections that may still come after the next one.
    pub(super) fn others(&self, connections: &Connections) -> usize {
        self.max_connections.saturating_sub(connections.len() + 1)
    }

    /// Writes what it counts.
    pub(super) fn count_in(&self, stats: &mut EndpointStats) {
        let Counts { datagrams_dropped, unauthenticated_ignored, .. } = self.counts;
        stats.datagrams_dropped += datagrams_dropped;
        stats.unauthenticated_ignored = unauthenticated_ignored;
        stats.handshakes_started = self.counts.handshakes_started;
        stats.connections_refused = self.counts.connections_refused;
        stats.half_open_refused = self.counts.half_open_refused;
        stats.retries_sent = self.counts.retries_sent;
        stats.version_negotiations_sent = self.counts.version_negotiations_sent;
        stats.early_data_refused = self.counts.early_data_refused;
        stats.sessions_displaced = self.crypto.sessions_displaced();
    }

    /// The answer to a packet of an unknown version, if it gets one.
    pub(super) fn negotiate_version(
        &mut self,
        unknown: &handshake::UnknownVersion<'_>,
        rng: &mut impl Rng,
    ) -> Option<Vec<u8>> {
        if self.crypto.requires_psk() {
            self.counts.unauthenticated_ignored += 1;
            return None;
        }
        self.counts.version_negotiations_sent += 1;
        Some(handshake::write_version_negotiation(unknown, rng.next_u32()))
    }

    /// Decides what the first packet of a datagram gets.
    pub(super) fn check(
        &mut self,
        now: Timestamp,
        datagram: &Incoming<'_>,
        initial: &InitialInfo<'_>,
        connections: &Connections,
        node: Option<&RelayNode>,
    ) -> Verdict {
        let remote = datagram.remote;
        // The flow ID alone decides, so that no other session can do without TLS.
        let crypto = match remote.direct_flow() {
            Some(_) => &self.direct,
            None => &self.crypto,
        };
        let counts = &mut self.counts;
        // Check the PSK proof first: unauthenticated peers cost this much and no more.
        let Some(initial) = crypto.verify_psk_proof(initial) else {
            counts.unauthenticated_ignored += 1;
            return Verdict::Drop;
        };
        let flight = (initial.destination, initial.source);
        let is_repeated = crypto.requires_psk() && self.first_flights.contains(flight);
        let has_session = |key| node.is_some_and(|node| node.has_session(key));
        if remote.flow_key().is_some_and(has_session) {
            // Otherwise any node that may use the relays could take over the flow of a session.
            counts.connections_refused += 1;
            return Verdict::Drop;
        }
        if self.half_open.is_full(remote) {
            counts.half_open_refused += 1;
            return Verdict::Drop;
        }
        let full = connections.len() >= self.max_connections;
        let start = crypto.start(
            now,
            remote,
            &initial,
            full,
            is_repeated || self.half_open.requires_retry(remote, self.retry_threshold),
        );
        match start {
            // In PSK mode a sender with a copied proof but no valid first flight gets no Retry
            // either.
            ServerStart::Answer(_)
                if crypto.requires_psk() && !crypto.opens(&initial, datagram.payload) =>
            {
                counts.unauthenticated_ignored += 1;
                Verdict::Drop
            }
            ServerStart::Accept(_) if !crypto.opens(&initial, datagram.payload) => {
                // Damaged in transit, or not a first flight: create no state for it.
                counts.datagrams_dropped += 1;
                Verdict::Drop
            }
            ServerStart::Accept(mut start) => {
                if let (Some(key), Some(node)) = (remote.direct_flow(), node) {
                    start.set_neighbour(node.fingerprint_of(connections, key.destination));
                }
                Verdict::Accept(Admitted { start, flight, remote })
            }
            ServerStart::Answer(answer) => {
                counts.retries_sent += 1;
                Verdict::Answer(answer)
            }
            ServerStart::Drop => {
                if full {
                    counts.connections_refused += 1;
                } else {
                    counts.datagrams_dropped += 1;
                }
                Verdict::Drop
            }
        }
    }

    /// Starts the handshake for a first packet. Sessions over relays take no early data.
    pub(super) fn start(
        &mut self,
        now: Timestamp,
        admitted: &Admitted,
        parameters: TransportParameters,
        local_cid: [u8; 4],
        seed: [u8; 32],
    ) -> Option<Handshake> {
        let take_early = self.transport.early_data && !admitted.remote.is_over_relays();
        let early_limit = if take_early { handshake::EARLY_LIMIT } else { 0 };
        let parameters = TransportParameters { early_limit, ..parameters };
        let (crypto, start) = match admitted.remote.direct_flow() {
            Some(_) => (&self.direct, &admitted.start),
            None => (&self.crypto, &admitted.start),
        };
        self.counts.early_data_refused += u64::from(!crypto.has_early_room(now));
        let handshake =
            Handshake::server(now, crypto, parameters, local_cid, start, take_early, seed).ok()?;
        if crypto.requires_psk() {
            self.first_flights.insert(admitted.flight);
        }
        self.counts.handshakes_started += 1;
        Some(handshake)
    }

    /// The handshake of this connection has started.
    pub(super) fn insert_half_open(&mut self, handle: ConnectionHandle, remote: Remote) {
        self.half_open.insert(handle, remote);
    }

    /// The handshake of this connection has completed or failed.
    pub(super) fn remove_half_open(&mut self, handle: ConnectionHandle) {
        self.half_open.remove(handle);
    }

    /// Fills the replay ledger.
    #[cfg(test)]
    pub(super) fn fill_ledger(&self, now: Timestamp) {
        self.crypto.fill_ledger(now);
    }
}
