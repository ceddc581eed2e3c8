//! Restarted peers: connections of the former process end when the new process is authenticated.

use std::collections::BTreeMap;

use super::ConnectionHandle;

/// Connections of peers that announce their instance, by the fingerprint of their certificate.
#[derive(Debug, Default)]
pub(super) struct Instances {
    by_peer: BTreeMap<[u8; 32], BTreeMap<ConnectionHandle, u64>>,
}

impl Instances {
    /// Adds a connection. Returns those of older instances of the peer, which are removed.
    pub(super) fn insert(
        &mut self,
        handle: ConnectionHandle,
        peer: [u8; 32],
        instance: u64,
    ) -> Vec<ConnectionHandle> {
        let connections = self.by_peer.entry(peer).or_default();
        connections.insert(handle, instance);
        let older = connections.iter().filter(|(_, other)| **other < instance);
        let older: Vec<_> = older.map(|(old, _)| *old).collect();
        connections.retain(|_, other| *other >= instance);
        older
    }

    pub(super) fn remove(&mut self, handle: ConnectionHandle, peer: Option<[u8; 32]>) {
        let Some(peer) = peer else { return };
        let Some(connections) = self.by_peer.get_mut(&peer) else { return };
        connections.remove(&handle);
        if connections.is_empty() {
            self.by_peer.remove(&peer);
        }
    }
}
