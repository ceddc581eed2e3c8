//! The TLS of `quinn-proto`, and counts of what a peer does that `quinn-proto` does not report: updates of the keys, and
//! ranges of acknowledgements.
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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::crypto::{
    ClientConfig, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey,
    ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError};

use super::ack_ranges::ack_ranges;

/// Counts of all connections of an endpoint. Those of a connection are the differences over its packets.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Counters>);

#[derive(Default)]
struct Counters {
    key_updates: AtomicU64,
    ack_ranges: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Keys that were made in advance: one for the first, one for each update by either end.
    pub(super) key_updates: u64,
    pub(super) ack_ranges: u64,
}

impl Counts {
    /// Adds what `watch` has counted since it counted `before`.
    pub(super) fn add_since(&mut self, before: Self, watch: &Watch) {
        let now = watch.counts();
        let add = |to: &mut u64, from: u64, until: u64| {
            *to = to.saturating_add(until.saturating_sub(from));
        };
        add(&mut self.key_updates, before.key_updates, now.key_updates);
        add(&mut self.ack_ranges, before.ack_ranges, now.ack_ranges);
    }
}

impl Watch {
    pub(super) fn counts(&self) -> Counts {
        Counts {
            key_updates: self.0.key_updates.load(Relaxed),
            ack_ranges: self.0.ack_ranges.load(Relaxed),
        }
    }

    pub(super) fn client(&self, inner: QuicClientConfig) -> Arc<dyn ClientConfig> {
        Arc::new(Watched { inner: Arc::new(inner), watch: self.clone() })
    }

    pub(super) fn server(&self, inner: QuicServerConfig) -> Arc<dyn ServerConfig> {
        Arc::new(Watched { inner: Arc::new(inner), watch: self.clone() })
    }

    fn session(&self, inner: Box<dyn Session>) -> Box<dyn Session> {
        Box::new(Watched { inner, watch: self.clone() })
    }

    fn packet_keys(&self, keys: KeyPair<Box<dyn PacketKey>>) -> KeyPair<Box<dyn PacketKey>> {
        let remote = Watched { inner: keys.remote, watch: self.clone() };
        KeyPair { local: keys.local, remote: Box::new(remote) }
    }
}

/// A part of the TLS that is watched.
struct Watched<T> {
    inner: T,
    watch: Watch,
}

impl ClientConfig for Watched<Arc<QuicClientConfig>> {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        let session = self.inner.clone().start_session(version, server_name, params)?;
        Ok(self.watch.session(session))
    }
}

impl ServerConfig for Watched<Arc<QuicServerConfig>> {
    fn initial_keys(
        &self,
        version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        self.inner.initial_keys(version, dst_cid)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        self.inner.retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        let session = self.inner.clone().start_session(version, params);
        self.watch.session(session)
    }
}

impl Session for Watched<Box<dyn Session>> {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        self.inner.initial_keys(dst_cid, side)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        self.inner.handshake_data()
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        self.inner.peer_identity()
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        self.inner.early_crypto()
    }

    fn early_data_accepted(&self) -> Option<bool> {
        self.inner.early_data_accepted()
    }

    fn is_handshaking(&self) -> bool {
        self.inner.is_handshaking()
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        self.inner.read_handshake(buf)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        self.inner.transport_parameters()
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let keys = self.inner.write_handshake(buf)?;
        Some(Keys { header: keys.header, packet: self.watch.packet_keys(keys.packet) })
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.watch.0.key_updates.fetch_add(1, Relaxed);
        Some(self.watch.packet_keys(self.inner.next_1rtt_keys()?))
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        self.inner.is_valid_retry(orig_dst_cid, header, payload)
    }

    fn export_keying_material(
        &self,
        output: &mut [u8],
        label: &[u8],
        context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        self.inner.export_keying_material(output, label, context)
    }
}

impl PacketKey for Watched<Box<dyn PacketKey>> {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.inner.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.inner.decrypt(packet, header, payload)?;
        let ranges = ack_ranges(payload);
        if ranges > 0 {
            self.watch.0.ack_ranges.fetch_add(ranges, Relaxed);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.inner.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.inner.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.inner.integrity_limit()
    }
}
