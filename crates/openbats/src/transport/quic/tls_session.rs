//! The TLS 1.3 of a QUIC connection (RFC 9001), whose memory is freed when the handshake is over: the session that comes
//! with `quinn-proto` keeps several kilobytes for as long as a connection exists.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, Mutex, PoisonError};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bats_proto::crypto::fingerprint;
use bytes::BytesMut;
use quinn_proto::crypto::{
    CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, Session,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{Connection, KeyChange, PacketKeySet, Secrets, Suite, Version};

use super::post_handshake::PostHandshake;
use super::watch::Watch;

/// RFC 9001 section 5.8: the key and nonce of the integrity tags of Retry packets.
const RETRY_KEY: [u8; 16] = [
    0xbe, 0x0c, 0x69, 0x0b, 0x9f, 0x66, 0x57, 0x5a, 0x1d, 0x76, 0x6b, 0x54, 0xe3, 0x68, 0xc8, 0x4e,
];
const RETRY_NONCE: [u8; 12] =
    [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
/// Bytes of such a tag.
const RETRY_TAG: usize = 16;

/// The SHA-256 fingerprint of the peer's certificate, as which [`Session::peer_identity`] returns it.
pub(super) struct PeerFingerprint(pub(super) [u8; 32]);

/// The TLS session of a connection, without early data.
pub(super) struct TlsSession {
    side: Side,
    initial: Suite,
    /// None before the handshake has made them. Until [`Self::next_1rtt_keys`] is called they make the keys of the first key
    /// update, then those that were returned last: their [`NextKey`] holds the same secrets.
    secrets: Option<Arc<Secrets>>,
    gave_keys: bool,
    state: State,
    watch: Watch,
}

enum State {
    Handshake(Box<Connection>),
    Established(Established),
}

/// What remains when the handshake is over.
struct Established {
    /// Until they are asked for: `quinn-proto` does so once, at a client right after the handshake, at a server before its
    /// end.
    peer_parameters: Mutex<Option<Box<[u8]>>>,
    peer_fingerprint: Option<[u8; 32]>,
    messages: PostHandshake,
}

impl TlsSession {
    /// `initial` protects Initial packets.
    pub(super) fn new(connection: Connection, initial: Suite, watch: Watch) -> Self {
        let side = match connection {
            Connection::Client(_) => Side::Client,
            Connection::Server(_) => Side::Server,
        };
        Self {
            side,
            initial,
            secrets: None,
            gave_keys: false,
            watch,
            state: State::Handshake(Box::new(connection)),
        }
    }

    /// Frees the memory of TLS if it has nothing left to do.
    fn release(&mut self) {
        let State::Handshake(connection) = &self.state else { return };
        if connection.is_handshaking() || self.secrets.is_none() {
            return;
        }
        self.state = State::Established(Established {
            peer_parameters: Mutex::new(match self.side {
                Side::Client => connection.quic_transport_parameters().map(Into::into),
                Side::Server => None,
            }),
            peer_fingerprint: peer_fingerprint(connection),
            messages: PostHandshake::new(self.side),
        });
    }
}

fn peer_fingerprint(connection: &Connection) -> Option<[u8; 32]> {
    connection.peer_certificates()?.first().map(|certificate| fingerprint(certificate))
}

/// Keys that protect Initial packets (RFC 9001 section 5.2).
pub(super) fn initial_keys(suite: &Suite, id: &ConnectionId, side: Side, watch: &Watch) -> Keys {
    let side = if side.is_client() { rustls::Side::Client } else { rustls::Side::Server };
    boxed(suite.keys(id, side, Version::V1), watch)
}

fn boxed(keys: rustls::quic::Keys, watch: &Watch) -> Keys {
    let (local, remote) = (keys.local, keys.remote);
    Keys {
        header: KeyPair { local: Box::new(local.header), remote: Box::new(remote.header) },
        packet: KeyPair { local: Box::new(local.packet), remote: watch.watched(remote.packet) },
    }
}

/// The key of the next key phase for packets to the peer: it is made with the first packet, as most connections that are idle
/// have sent none. The key for the peer's packets is made in advance, so that the time to refuse a forged packet does not show
/// whether its key phase was the next one (RFC 9001 section 9.5).
struct NextKey {
    state: Mutex<KeyState>,
    tag_len: usize,
    confidentiality_limit: u64,
    integrity_limit: u64,
}

enum KeyState {
    /// Of the key phase before.
    Secrets(Arc<Secrets>),
    Key(Box<dyn rustls::quic::PacketKey>),
}

fn next_keys(secrets: &Secrets) -> PacketKeySet {
    secrets.clone().next_packet_keys()
}

impl NextKey {
    /// `key` is one of the same cipher suite.
    fn new(secrets: Arc<Secrets>, key: &dyn PacketKey) -> Self {
        Self {
            state: Mutex::new(KeyState::Secrets(secrets)),
            tag_len: key.tag_len(),
            confidentiality_limit: key.confidentiality_limit(),
            integrity_limit: key.integrity_limit(),
        }
    }

    fn with<T>(&self, call: impl FnOnce(&dyn PacketKey) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            KeyState::Key(key) => call(key),
            KeyState::Secrets(secrets) => {
                let key = next_keys(secrets).local;
                let result = call(&key);
                *state = KeyState::Key(key);
                result
            }
        }
    }
}

impl PacketKey for NextKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.with(|key| key.encrypt(packet, buf, header_len));
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.with(|key| key.decrypt(packet, header, payload))
    }

    fn tag_len(&self) -> usize {
        self.tag_len
    }

    fn confidentiality_limit(&self) -> u64 {
        self.confidentiality_limit
    }

    fn integrity_limit(&self) -> u64 {
        self.integrity_limit
    }
}

impl Session for TlsSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        initial_keys(&self.initial, dst_cid, side, &self.watch)
    }

    /// None: there is only one application protocol, and nothing depends on the server name.
    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    /// A [`PeerFingerprint`].
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        let fingerprint = match &self.state {
            State::Handshake(connection) => peer_fingerprint(connection)?,
            State::Established(established) => established.peer_fingerprint?,
        };
        Some(Box::new(PeerFingerprint(fingerprint)))
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.side.is_client().then_some(false)
    }

    fn is_handshaking(&self) -> bool {
        matches!(&self.state, State::Handshake(connection) if connection.is_handshaking())
    }

    /// Returns false: there is no [`Session::handshake_data`].
    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        match &mut self.state {
            State::Handshake(connection) => connection.read_hs(buf).map_err(|error| {
                let violation = TransportErrorCode::PROTOCOL_VIOLATION;
                let alert = connection.alert();
                TransportError {
                    code: alert.map_or(violation, |alert| TransportErrorCode::crypto(alert.into())),
                    frame: None,
                    reason: error.to_string(),
                }
            })?,
            State::Established(established) => established.messages.read(buf)?,
        }
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let read = |bytes: &[u8]| TransportParameters::read(self.side, &mut Cursor::new(bytes));
        let parameters = match &self.state {
            State::Handshake(connection) => connection.quic_transport_parameters().map(read),
            State::Established(established) => {
                let mut parameters =
                    established.peer_parameters.lock().unwrap_or_else(PoisonError::into_inner);
                parameters.take().map(|bytes| read(&bytes))
            }
        };
        Ok(parameters.transpose()?)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let State::Handshake(connection) = &mut self.state else { return None };
        match connection.write_hs(buf) {
            Some(KeyChange::Handshake { keys }) => Some(boxed(keys, &self.watch)),
            Some(KeyChange::OneRtt { keys, next }) => {
                self.secrets = Some(Arc::new(next));
                Some(boxed(keys, &self.watch))
            }
            None => {
                if buf.is_empty() {
                    self.release();
                }
                None
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.watch.on_next_keys();
        let secrets = self.secrets.as_mut()?;
        if core::mem::replace(&mut self.gave_keys, true) {
            Arc::make_mut(secrets).next_packet_keys();
        }
        let remote = self.watch.watched(next_keys(secrets).remote);
        let local = Box::new(NextKey::new(secrets.clone(), &*remote));
        Some(KeyPair { local, remote })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some((token, tag)) = payload.split_last_chunk::<RETRY_TAG>() else { return false };
        let (Ok(id_len), Ok(key)) =
            (u8::try_from(orig_dst_cid.len()), UnboundKey::new(&AES_128_GCM, &RETRY_KEY))
        else {
            return false;
        };
        let pseudo_packet = [&[id_len][..], orig_dst_cid, header, token].concat();
        let nonce = Nonce::assume_unique_for_key(RETRY_NONCE);
        LessSafeKey::new(key).open_in_place(nonce, Aad::from(pseudo_packet), &mut { *tag }).is_ok()
    }

    /// Fails when the handshake is over: nothing here uses it.
    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        match &self.state {
            State::Handshake(connection) => connection
                .export_keying_material(output, label, Some(context))
                .map(drop)
                .map_err(|_| ExportKeyingMaterialError),
            State::Established(_) => Err(ExportKeyingMaterialError),
        }
    }
}

#[cfg(test)]
mod tests {
    use bats_proto::crypto::{generate_identity, tls_client, tls_server};
    use bats_proto::{ClientConfig, PeerTrust, ServerConfig};
    use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
    use quinn_proto::crypto::{self, ServerConfig as _};

    use super::super::tls_config::{VERSION, client_config, server_config};
    use super::*;

    const ALPN: &[u8] = b"test";

    /// Both ends of a connection after the handshake.
    struct Ends {
        client: Box<dyn Session>,
        server: Box<dyn Session>,
        /// The keys of the packets of 1-RTT at the client and at the server.
        keys: [Keys; 2],
        /// The certificate of the server.
        print: [u8; 32],
    }

    /// Those of a peer that sends none.
    fn parameters() -> TransportParameters {
        TransportParameters::read(Side::Client, &mut &[][..]).unwrap()
    }

    fn server_tls() -> (rustls::ServerConfig, [u8; 32]) {
        let identity = generate_identity(&["localhost".to_owned()]).unwrap();
        let print = fingerprint(&identity.certificate_chain[0]);
        let config = ServerConfig {
            identity,
            client_trust: None,
            transport: Arc::default(),
            retry_threshold: 1,
            max_connections: 1,
        };
        (tls_server(&config, ALPN).unwrap(), print)
    }

    fn client_tls(print: [u8; 32]) -> rustls::ClientConfig {
        let trust = PeerTrust::Fingerprints(vec![print]);
        let config = ClientConfig { trust, identity: None, transport: Arc::default() };
        tls_client(&config, "localhost", ALPN).unwrap().0
    }

    /// Completes a handshake; an end is that of `quinn-proto` or ours.
    fn ends(client_is_ours: bool, server_is_ours: bool) -> Ends {
        let watch = Watch::default();
        let (tls, print) = server_tls();
        let mut server = if server_is_ours {
            server_config(tls, watch.clone()).unwrap().start_session(VERSION, &parameters())
        } else {
            Arc::new(QuicServerConfig::try_from(tls).unwrap()).start_session(VERSION, &parameters())
        };
        let tls = client_tls(print);
        let client: Arc<dyn crypto::ClientConfig> = if client_is_ours {
            client_config(tls, watch.clone()).unwrap()
        } else {
            Arc::new(QuicClientConfig::try_from(tls).unwrap())
        };
        let mut client = client.start_session(VERSION, "localhost", &parameters()).unwrap();
        let mut keys = [None, None];
        for _ in 0..8 {
            for end in [0, 1] {
                let (from, to) = match end {
                    0 => (&mut client, &mut server),
                    _ => (&mut server, &mut client),
                };
                let mut bytes = Vec::new();
                keys[end] = from.write_handshake(&mut bytes).or(keys[end].take());
                if !bytes.is_empty() {
                    to.read_handshake(&bytes).unwrap();
                }
            }
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        Ends { client, server, keys: keys.map(Option::unwrap), print }
    }

    /// Whether a packet that is protected with one key is accepted with the other.
    fn agree(local: &dyn PacketKey, remote: &dyn PacketKey) -> bool {
        let header = b"header";
        let mut packet = [&header[..], b"content", &[0; 16]].concat();
        local.encrypt(7, &mut packet, header.len());
        let mut payload = BytesMut::from(&packet[header.len()..]);
        remote.decrypt(7, header, &mut payload).is_ok() && &payload[..] == b"content"
    }

    #[test]
    fn keys_of_all_phases_agree_with_those_of_the_peer() {
        for (client_is_ours, server_is_ours) in [(true, true), (true, false), (false, true)] {
            let mut ends = ends(client_is_ours, server_is_ours);
            let [client, server] = ends.keys;
            let mut phases = vec![[client.packet, server.packet]];
            for _ in 0..5 {
                let next = [&mut ends.client, &mut ends.server];
                phases.push(next.map(|end| end.next_1rtt_keys().unwrap()));
            }
            for (phase, [client, server]) in phases.iter().enumerate() {
                for (other, [_, remote]) in phases.iter().enumerate() {
                    assert_eq!(agree(&*client.local, &*remote.remote), phase == other);
                }
                // Also with a key that exists.
                assert!(agree(&*client.local, &*server.remote));
                assert!(agree(&*server.local, &*client.remote));
                assert_eq!(client.local.tag_len(), 16);
            }
        }
    }

    /// As connections do it: two phases are known, and the older one is used before the next one is asked for.
    #[test]
    fn keys_agree_over_many_updates_in_turn() {
        let mut ends = ends(true, false);
        let next = |ends: &mut Ends| {
            [&mut ends.client, &mut ends.server].map(|end| end.next_1rtt_keys().unwrap())
        };
        let mut current = next(&mut ends);
        for _ in 0..100 {
            let upcoming = next(&mut ends);
            let [client, server] = &current;
            assert!(agree(&*client.local, &*server.remote));
            assert!(agree(&*server.local, &*client.remote));
            assert!(!agree(&*client.local, &*upcoming[1].remote));
            current = upcoming;
        }
    }

    #[test]
    fn tls_is_released_after_the_handshake_and_what_is_asked_for_remains() {
        let ends = ends(true, true);
        let [client, server] = [ends.client, ends.server];
        let identity = client.peer_identity().unwrap().downcast::<PeerFingerprint>().unwrap();
        assert_eq!(identity.0, ends.print);
        assert!(server.peer_identity().is_none(), "clients have no certificate");
        let parameters = client.transport_parameters().unwrap();
        assert_eq!(parameters, Some(self::parameters()));
        for end in [client, server] {
            let exported = end.export_keying_material(&mut [0; 8], b"label", b"");
            assert!(exported.is_err(), "TLS could export keys");
        }
    }

    #[test]
    fn tickets_change_nothing_and_key_updates_of_tls_are_errors() {
        let mut ends = ends(true, true);
        let mut bytes = Vec::new();
        assert!(!ends.client.read_handshake(&[4, 0, 0, 2, 1, 2]).unwrap());
        assert!(ends.client.write_handshake(&mut bytes).is_none() && bytes.is_empty());
        let key_update = [24, 0, 0, 1, 0];
        for end in [&mut ends.client, &mut ends.server] {
            let error = end.read_handshake(&key_update).unwrap_err();
            assert_eq!(error.code, TransportErrorCode::crypto(10));
        }
    }

    #[test]
    fn other_messages_than_those_of_a_handshake_are_refused_with_the_alert() {
        let server = server_config(server_tls().0, Watch::default()).unwrap();
        let mut session = server.start_session(VERSION, &parameters());
        // A ServerHello for a server.
        let error = session.read_handshake(&[2, 0, 0, 1, 0]).unwrap_err();
        assert!(u64::from(error.code) > 0x100, "{error:?}");
        assert!(!error.reason.is_empty() && session.is_handshaking());
    }

    #[test]
    fn only_retry_packets_with_the_right_tag_are_valid() {
        let (tls, print) = server_tls();
        let server = server_config(tls, Watch::default()).unwrap();
        let client = client_config(client_tls(print), Watch::default()).unwrap();
        let client = client.start_session(VERSION, "localhost", &parameters()).unwrap();
        let id = ConnectionId::new(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let (header, token) = (&[0xf0, 0, 0, 0, 1, 0, 0][..], &b"a token"[..]);
        let tag = server.retry_tag(VERSION, &id, &[header, token].concat());
        let packet = [token, &tag].concat();
        assert!(client.is_valid_retry(&id, header, &packet));
        for bit in 0..8 * packet.len() {
            let mut packet = packet.clone();
            packet[bit / 8] ^= 1 << (bit % 8);
            assert!(!client.is_valid_retry(&id, header, &packet));
        }
        for len in 0..packet.len() {
            assert!(!client.is_valid_retry(&id, header, &packet[..len]));
        }
        assert!(!client.is_valid_retry(&ConnectionId::new(&[9]), header, &packet));
    }
}
