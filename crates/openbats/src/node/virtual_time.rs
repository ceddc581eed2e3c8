//! A node in virtual time: the same links, routes, admission and sessions, without sockets, threads and the
//! system's clock. Packets are neither encrypted nor authenticated, and certificates prove nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use bats_proto::{Input, Received, Timestamp, Transmit};

use super::{Node, NodeBuilder};
use crate::builder::Simulated;
use crate::clock::Clock;
use crate::error::StartError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::transport::Output;

/// An identity whose certificate is these bytes. Only for nodes in virtual time.
#[must_use]
pub fn identity(certificate: &[u8]) -> Identity {
    let certificate_chain = vec![certificate.to_vec()];
    Identity(bats_proto::Identity { certificate_chain, private_key: Vec::new() })
}

/// The fingerprint of such an identity.
#[must_use]
pub fn fingerprint(certificate: &[u8]) -> Fingerprint {
    Fingerprint::of(certificate)
}

/// What a node in virtual time begins with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The time.
    pub now: Timestamp,
    /// Decides all random choices.
    pub seed: [u8; 32],
    /// Larger than that of each earlier process with the same certificate.
    pub instance: u64,
    /// Addresses at which the node listens.
    pub addresses: Vec<SocketAddr>,
}

/// A node in virtual time.
#[derive(Debug)]
pub struct VirtualNode {
    node: Node,
    time: Arc<AtomicU64>,
    due: Vec<Waker>,
}

impl VirtualNode {
    /// Starts a node. Its own addresses in the builder are ignored.
    ///
    /// # Errors
    /// The configuration is unusable.
    pub fn start(builder: NodeBuilder, start: Start) -> Result<Self, StartError> {
        let time = Arc::new(AtomicU64::new(start.now.as_nanos()));
        let clock = Clock::simulated(Arc::clone(&time));
        let Start { seed, instance, addresses, .. } = start;
        let simulated = Simulated { clock, seed, instance, addresses };
        let endpoint = builder.into_endpoint()?.simulate(simulated)?;
        Ok(Self { node: Node::new(endpoint), time, due: Vec::new() })
    }

    /// The node. Its calls act at the time of the last call of this value.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Sets the time.
    pub fn set_time(&self, now: Timestamp) {
        self.time.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Takes a datagram of the network.
    pub fn receive(&mut self, now: Timestamp, datagram: Received<'_>) {
        self.set_time(now);
        self.node.endpoint.shared().lock().endpoint.handle(now, Input::Datagram(datagram));
    }

    /// Does what is due. Returns datagrams to send, which are in `buffer`, or else when to call again.
    pub fn poll(
        &mut self,
        now: Timestamp,
        buffer: &mut Vec<u8>,
    ) -> Result<Transmit, Option<Timestamp>> {
        self.set_time(now);
        let shared = self.node.endpoint.shared();
        let mut core = shared.lock();
        core.endpoint.handle(now, Input::Timeout);
        core.drive_node(now, &mut self.due);
        let next = loop {
            match core.endpoint.poll(now, buffer) {
                Output::Transmit(transmit) => break Ok(transmit),
                Output::Event(handle, event) => {
                    core.on_event(&shared.clock, handle, event, &mut self.due);
                }
                Output::Timeout(at) => {
                    break Err([at, core.node_timeout()].into_iter().flatten().min());
                }
            }
        };
        drop(core);
        self.due.drain(..).for_each(Waker::wake);
        next
    }
}
