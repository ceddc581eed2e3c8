//! How a connection is made: TLS 1.3 over long packets, built to survive heavy loss.
//!
//! A mini QUIC handshake (RFC 9000, sections 7, 8, 13; RFC 9001, section 4): Initial and
//! Handshake packets carry an acknowledged byte stream per level, flights are repeated early and
//! in full as far as unacknowledged (ADR 0002), and whatever is not authentic is counted and
//! forgotten. Everything is sans-IO: datagrams and times in, datagrams and times out.

mod error;
mod outgoing;
mod range_set;
mod reassembly;
mod receive;
mod schedule;
mod space;
mod stateless;
#[cfg(test)]
mod tests;
mod transmit;

use core::time::Duration;

use bats_types::Timestamp;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use smallvec::SmallVec;

use crate::config::{ClientConfig, Security};
use crate::crypto::{ClientSetup, KeyChange, Keys, PacketKey, Session, Side};
use crate::error::ConnectError;
use crate::wire::long_header::{CID_LEN, MAX_CID_LEN, ORIGINAL_CID_LEN};
use crate::wire::parameters::TransportParameters;
use crate::wire::version::{self, VERSION};

pub use error::{Blame, HandshakeError};
use schedule::Schedule;
use space::Space;
pub use stateless::{
    Accepted, FirstPacket, InitialInfo, ServerCrypto, ServerStart, UnknownVersion, parse_first,
    write_version_negotiation,
};

/// A handshake that is not done by then has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What became of the packets of one handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandshakeCounters {
    /// Packets that failed authentication.
    pub forged: u64,
    /// Authentic packets whose number had been seen before.
    pub duplicated: u64,
    /// Authentic Initial packets with malformed content; anyone on the path can make them.
    pub malformed: u64,
    /// Packets that were not for this moment or this end: other versions, unknown connection IDs,
    /// keys not there yet or no more.
    pub ignored: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Times that an unacknowledged flight was sent again.
    pub repeats: u64,
}

/// One end's handshake.
#[derive(Debug)]
pub struct Handshake {
    side: Side,
    security: Security,
    session: Session,
    rng: ChaCha8Rng,
    local_cid: [u8; CID_LEN],
    peer_cid: Option<[u8; CID_LEN]>,
    /// Destination of what is sent: the peer's own ID as soon as it is known.
    destination: SmallVec<[u8; MAX_CID_LEN]>,
    /// Destination of the client's very first packet.
    original: [u8; ORIGINAL_CID_LEN],
    /// Server: the destination of the client's packets before it knows ours.
    /// Client: the destination that a retry asked for.
    first: [u8; ORIGINAL_CID_LEN],
    retry_source: Option<[u8; ORIGINAL_CID_LEN]>,
    token: Vec<u8>,
    initial: Space,
    handshake: Space,
    /// TLS reads and writes at the Handshake level by now.
    has_handshake_keys: bool,
    one_rtt: Option<Keys>,
    had_one_rtt: bool,
    /// Client: Handshake packets that overtook the ServerHello.
    early: Vec<Vec<u8>>,
    peer_parameters: Option<TransportParameters>,
    complete_at: Option<Timestamp>,
    confirmed: bool,
    /// An authentic packet of the peer was processed.
    heard: bool,
    /// The peer has proved that it receives at its address.
    address_validated: bool,
    rtt: Option<Duration>,
    schedule: Schedule,
    started: Timestamp,
    /// The error that ended the attempt.
    failure: Option<HandshakeError>,
    counters: HandshakeCounters,
}

impl Handshake {
    /// Begins a connection to `server_name`. `parameters` needs no connection IDs and versions,
    /// they are filled in. Every random choice but TLS's own follows from `seed`.
    ///
    /// # Errors
    /// What is wrong with the configuration or the name.
    pub fn client(
        now: Timestamp,
        config: &ClientConfig,
        server_name: &str,
        security: Security,
        parameters: TransportParameters,
        local_cid: [u8; CID_LEN],
        seed: [u8; 32],
    ) -> Result<Self, ConnectError> {
        let setup = ClientSetup::new(config, server_name, security)?;
        let mut rng = ChaCha8Rng::from_seed(seed);
        let mut original = [0; ORIGINAL_CID_LEN];
        rng.fill_bytes(&mut original);
        let parameters = TransportParameters {
            initial_source: local_cid,
            original_destination: None,
            retry_source: None,
            versions: (VERSION, vec![VERSION, version::grease(rng.next_u32())]),
            ..parameters
        };
        let session = setup.start(parameters.encode(rng.next_u64()), &seed)?;
        let keys = Keys::initial(security, &original, Side::Client);
        let mut handshake = Self {
            side: Side::Client,
            security,
            session,
            rng,
            local_cid,
            peer_cid: None,
            destination: SmallVec::from_slice(&original),
            original,
            first: original,
            retry_source: None,
            token: Vec::new(),
            initial: Space::new(Some(keys)),
            handshake: Space::new(None),
            has_handshake_keys: false,
            one_rtt: None,
            had_one_rtt: false,
            early: Vec::new(),
            peer_parameters: None,
            complete_at: None,
            confirmed: false,
            heard: false,
            address_validated: true,
            rtt: None,
            schedule: Schedule::default(),
            started: now,
            failure: None,
            counters: HandshakeCounters::default(),
        };
        handshake.take_from_session(now);
        Ok(handshake)
    }

    /// Answers a client whose first packet was accepted; that datagram has still to be handed to
    /// [`Handshake::handle_datagram`].
    ///
    /// # Errors
    /// TLS does not take the configuration.
    pub fn server(
        now: Timestamp,
        crypto: &ServerCrypto,
        parameters: TransportParameters,
        local_cid: [u8; CID_LEN],
        accepted: &Accepted,
        seed: [u8; 32],
    ) -> Result<Self, ConnectError> {
        let mut rng = ChaCha8Rng::from_seed(seed);
        let parameters = TransportParameters {
            initial_source: local_cid,
            original_destination: Some(accepted.original),
            retry_source: accepted.retry_source,
            versions: (VERSION, vec![VERSION, version::grease(rng.next_u32())]),
            ..parameters
        };
        let session = crypto.setup().start(parameters.encode(rng.next_u64()), &seed)?;
        let security = crypto.setup().security();
        let keys = Keys::initial(security, &accepted.destination, Side::Server);
        Ok(Self {
            side: Side::Server,
            security,
            session,
            rng,
            local_cid,
            peer_cid: Some(accepted.source),
            destination: SmallVec::from_slice(&accepted.source),
            original: accepted.original,
            first: accepted.destination,
            retry_source: accepted.retry_source,
            token: Vec::new(),
            initial: Space::new(Some(keys)),
            handshake: Space::new(None),
            has_handshake_keys: false,
            one_rtt: None,
            had_one_rtt: false,
            early: Vec::new(),
            peer_parameters: None,
            complete_at: None,
            confirmed: false,
            heard: false,
            address_validated: accepted.retry_source.is_some(),
            rtt: None,
            schedule: Schedule::default(),
            started: now,
            failure: None,
            counters: HandshakeCounters::default(),
        })
    }

    /// Moves what TLS wants to say into the streams, and the keys that it made to their places.
    fn take_from_session(&mut self, now: Timestamp) {
        loop {
            let mut octets = Vec::new();
            let change = self.session.write(&mut octets);
            if change.is_none() && octets.is_empty() {
                return;
            }
            if !octets.is_empty() {
                // After the 1-RTT keys TLS has nothing to say: tickets are switched off.
                if self.has_handshake_keys {
                    self.handshake.outgoing.push(&octets);
                } else {
                    self.initial.outgoing.push(&octets);
                }
                self.schedule.restart(now, self.rtt);
            }
            match change {
                Some(KeyChange::Handshake(keys)) => {
                    self.handshake.keys = Some(keys);
                    self.has_handshake_keys = true;
                    if self.side == Side::Client {
                        // Every packet from now on is a Handshake packet, which also tells the
                        // server that the ServerHello has arrived (RFC 9001, section 4.9.1).
                        self.initial.discard();
                    }
                }
                Some(KeyChange::OneRtt(keys)) => {
                    self.one_rtt = Some(keys);
                    self.had_one_rtt = true;
                }
                None => {}
            }
        }
    }

    /// The keys of data packets, once, as soon as they exist. A server has them before the client
    /// has proved anything: it must not act on data until [`Handshake::is_complete`].
    pub fn take_one_rtt_keys(&mut self) -> Option<Keys> {
        self.one_rtt.take()
    }

    /// Packet keys (local, remote) of the generation after the last one given out. `None` before
    /// there are 1-RTT keys.
    pub fn next_one_rtt_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        self.session.next_keys()
    }

    /// Whether both ends' Finished messages are verified as far as this end sees it.
    pub fn is_complete(&self) -> bool {
        self.complete_at.is_some()
    }

    /// What the peer told about itself; there once the handshake is complete.
    pub fn peer_parameters(&self) -> Option<&TransportParameters> {
        self.peer_parameters.as_ref()
    }

    /// The connection ID that the peer chose for itself.
    pub fn peer_cid(&self) -> Option<[u8; CID_LEN]> {
        self.peer_cid
    }

    /// SHA-256 of the peer's end-entity certificate, if it showed one.
    pub fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.session.peer_fingerprint()
    }

    /// Smallest round-trip time seen, less the peer's delay. Packet numbers are never reused, so
    /// every sample is unambiguous.
    pub fn rtt_sample(&self) -> Option<Duration> {
        self.rtt
    }

    /// Whether the peer has proved its address, by a retry token or a Handshake packet
    /// (RFC 9000, section 8.1); until then a server sends at most three times what it received.
    pub fn is_address_validated(&self) -> bool {
        self.address_validated
    }

    /// The client learnt in a data packet that the server is complete: nothing is repeated any
    /// more and all handshake keys are dropped.
    pub fn confirm(&mut self) {
        if self.side == Side::Client && self.is_complete() {
            self.confirmed = true;
            self.schedule.stop();
            self.initial.discard();
            self.handshake.discard();
        }
    }

    /// TLS messages that came in data packets after the handshake. What TLS does not understand is
    /// counted and has no effect.
    pub fn read_post_handshake(&mut self, data: &[u8]) {
        if !self.is_complete() || self.session.read(data).is_err() {
            self.counters.malformed += 1;
        }
    }

    /// Whether the time for the handshake is over.
    pub fn has_timed_out(&self, now: Timestamp) -> bool {
        !self.is_complete() && now >= self.started + TIMEOUT
    }

    /// What became of the packets.
    pub fn counters(&self) -> &HandshakeCounters {
        &self.counters
    }
}
