//! What a peer does that `quinn-proto` does not report: updates of the keys, ranges of acknowledgements, and the largest
//! number in them.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, PacketKey};

use super::ack_ranges::acks;

/// Counts of all connections of an endpoint. Those of a connection are the differences over its packets.
#[derive(Clone, Default)]
pub(super) struct Watch(Arc<Counters>);

#[derive(Default)]
struct Counters {
    key_updates: AtomicU64,
    ack_ranges: AtomicU64,
    /// Since it was taken.
    largest_acked: AtomicU64,
    /// For tests: how much lower the integrity limits of keys are.
    #[cfg(test)]
    less_integrity: AtomicU64,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Keys that were made in advance: one for the first, one for each update by either end.
    pub(super) key_updates: u64,
    pub(super) ack_ranges: u64,
    /// The largest packet number that was acknowledged.
    pub(super) largest_acked: u64,
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
        self.largest_acked = self.largest_acked.max(now.largest_acked);
    }
}

impl Watch {
    /// All counts, and the largest number in acknowledgements since the last call.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            key_updates: self.0.key_updates.load(Relaxed),
            ack_ranges: self.0.ack_ranges.load(Relaxed),
            largest_acked: self.0.largest_acked.swap(0, Relaxed),
        }
    }

    /// A key for packets of the peer.
    pub(super) fn watched(&self, key: Box<dyn rustls::quic::PacketKey>) -> Box<dyn PacketKey> {
        Box::new(Watched { key, watch: self.clone() })
    }

    /// Lowers the integrity limit of keys that are made from now on to `limit` packets.
    #[cfg(test)]
    pub(super) fn lower_integrity_limit(&self, key_limit: u64, limit: u64) {
        self.0.less_integrity.store(key_limit - limit, Relaxed);
    }

    /// Keys of the next key phase are made.
    pub(super) fn on_next_keys(&self) {
        self.0.key_updates.fetch_add(1, Relaxed);
    }
}

/// A key for packets of the peer, whose content is watched.
struct Watched {
    key: Box<dyn rustls::quic::PacketKey>,
    watch: Watch,
}

impl PacketKey for Watched {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        let acks = acks(payload);
        if acks.ranges > 0 {
            self.watch.0.ack_ranges.fetch_add(acks.ranges, Relaxed);
            self.watch.0.largest_acked.fetch_max(acks.largest, Relaxed);
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        let limit = self.key.integrity_limit();
        #[cfg(test)]
        let limit = limit.saturating_sub(self.watch.0.less_integrity.load(Relaxed));
        limit
    }
}
