//! What carries datagrams between the nodes of a world.

use core::net::{IpAddr, SocketAddr};

use bats_types::Timestamp;

use crate::endpoint::Transmit;

/// Carries datagrams between nodes: links, queues, or a delay. Its sources are what datagrams arrive from, by
/// numbers of its own; the order of the turns names them.
pub trait Links {
    /// Takes a datagram of node `from`. `bytes` is a copy of `segment`, unless the application changed it.
    fn send(
        &mut self,
        now: Timestamp,
        from: usize,
        transmit: &Transmit,
        segment: &[u8],
        bytes: Vec<u8>,
    );

    /// What arrives next from a source at this time.
    fn receive(&mut self, now: Timestamp, source: usize) -> Arrival;

    /// When something arrives next from any source, after all that arrives now.
    fn next(&mut self, now: Timestamp) -> Option<Timestamp>;

    /// Whether something waits for the caller of [`World::step`](super::World::step).
    fn is_waiting(&self) -> bool {
        false
    }
}

/// What happens at a source.
#[derive(Debug)]
pub enum Arrival {
    /// Nothing more at this time.
    Idle,
    /// Something that no node gets: a packet went on to its next link, or was lost.
    Progress,
    /// A node gets a datagram.
    Delivery(Delivery),
}

/// A datagram that arrives at a node.
#[derive(Debug)]
pub struct Delivery {
    /// The receiver.
    pub to: usize,
    /// The address of the sender.
    pub remote: SocketAddr,
    /// The address that it was sent to, if the receiver knows it.
    pub local_ip: Option<IpAddr>,
    /// ECN bits.
    pub ecn: u8,
    /// Payload.
    pub bytes: Vec<u8>,
}
