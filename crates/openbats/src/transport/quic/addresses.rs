//! The connections to each address.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;

/// Finds connections by the addresses of their peers. Anyone can send packets and ICMP errors that name an address, so
/// handling one must not take a search among all connections.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Its keys are random: peers cannot choose addresses with equal hashes.
    hasher: RandomState,
    /// Hashes of addresses, and the connections: with the addresses themselves, an idle connection would take more
    /// memory than is promised.
    connections: BTreeSet<(u64, u64)>,
}

impl Addresses {
    /// Connections of which this end is the server have another hash.
    fn hash(&self, remote: SocketAddr, is_server: bool) -> u64 {
        self.hasher.hash_one((remote, is_server))
    }

    pub(super) fn insert(&mut self, remote: SocketAddr, is_server: bool, id: u64) {
        self.connections.insert((self.hash(remote, is_server), id));
    }

    pub(super) fn remove(&mut self, remote: SocketAddr, is_server: bool, id: u64) {
        self.connections.remove(&(self.hash(remote, is_server), id));
    }

    /// The connections to this address. A collision of hashes (probability 2^-64) may add one to another
    /// address.
    pub(super) fn connections_to(&self, remote: SocketAddr) -> impl Iterator<Item = u64> {
        [false, true].into_iter().flat_map(move |is_server| self.of(remote, is_server))
    }

    /// Whether a client of this endpoint has a connection to this address.
    pub(super) fn is_server(&self, remote: SocketAddr) -> bool {
        self.of(remote, false).next().is_some()
    }

    fn of(&self, remote: SocketAddr, is_server: bool) -> impl Iterator<Item = u64> {
        let hash = self.hash(remote, is_server);
        self.connections.range((hash, 0)..=(hash, u64::MAX)).map(|&(_, id)| id)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }
}
