//! Configures and starts a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use bats_proto::relay::RelayConfig;
use bats_proto::{Mode, PresharedKey, TransportConfig};

use super::state::{LinkChannels, NodeSetup, serves};
use super::{LinkPolicy, Node, NodeId};
use crate::builder::{Builder, NodeStart};
use crate::driver::{IoThreads, canonical};
use crate::error::StartError;
use crate::fingerprint::Fingerprint;
use crate::identity::Identity;
use crate::options::{ServerOptions, Trust};

/// The modes that nodes accept by default: those of coded packets.
const MODES: [Mode; 4] = [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent];

/// Configures and starts a [`Node`]. By default the node relays nothing, admits no neighbour and
/// accepts no session.
#[derive(Debug)]
pub struct NodeBuilder {
    setup: NodeSetup,
    relay: RelayConfig,
    addresses: Vec<SocketAddr>,
    transport: TransportConfig,
    modes: Vec<Mode>,
    max_connections: Option<usize>,
    memory_budget: Option<u64>,
    threads: Option<IoThreads>,
}

impl NodeBuilder {
    pub(super) fn new(id: NodeId, identity: Identity) -> Self {
        Self {
            setup: NodeSetup {
                id,
                identity,
                preshared_key: None,
                relaying: false,
                neighbours: BTreeMap::new(),
                any_neighbour: None,
                peers: BTreeMap::new(),
                any_peer: false,
                link_messages: false,
                link_channels: None,
            },
            relay: RelayConfig::new(id),
            addresses: Vec::new(),
            transport: TransportConfig::default(),
            modes: MODES.to_vec(),
            max_connections: None,
            memory_budget: None,
            threads: None,
        }
    }

    /// Listens at this UDP address; port 0 for any free port. Each of several addresses needs another IP
    /// address and has a socket of its own; packets of a link are sent from the address of the link. By
    /// default the node uses a free port of all addresses.
    #[must_use]
    pub fn listen(mut self, address: SocketAddr) -> Self {
        self.addresses.push(canonical(address));
        self
    }

    /// Whether this node forwards packets of neighbours to other nodes. The policy of the neighbour must
    /// also allow it: [`LinkPolicy::transit`].
    #[must_use]
    pub fn relaying(mut self, relays: bool) -> Self {
        self.setup.relaying = relays;
        self
    }

    /// Admits the neighbour with this certificate: it may open links to this node. More can follow
    /// with [`Links::admit`](super::Links::admit).
    #[must_use]
    pub fn neighbour(mut self, fingerprint: Fingerprint, policy: LinkPolicy) -> Self {
        self.setup.neighbours.insert(fingerprint.0, policy);
        self
    }

    /// Admits every neighbour, with any certificate or none. Only for networks in which everyone may
    /// use this node; with a [pre-shared key](Self::preshared_key), everyone with the key.
    #[must_use]
    pub fn any_neighbour(mut self, policy: LinkPolicy) -> Self {
        self.setup.any_neighbour = Some(policy);
        self
    }

    /// Accepts sessions from the node with this ID if it has this certificate. Sessions that this
    /// node opens to that one need the same certificate, in addition to their own trust. May be
    /// called several times for a node, for certificates that are replaced.
    #[must_use]
    pub fn peer(mut self, node: NodeId, fingerprint: Fingerprint) -> Self {
        self.setup.peers.entry(node).or_default().push(fingerprint);
        self
    }

    /// Accepts sessions from all nodes that are not named by [`peer`](Self::peer), with any
    /// certificate or none. The IDs of such nodes are not verified.
    #[must_use]
    pub fn any_peer(mut self) -> Self {
        self.setup.any_peer = true;
        self
    }

    /// Whether neighbours may send short messages to this node: [`Links::send`](super::Links::send) and
    /// [`Event::LinkMessage`](super::Event::LinkMessage). By default a link on which a message arrives is
    /// closed.
    #[must_use]
    pub fn link_messages(mut self, accepts: bool) -> Self {
        self.setup.link_messages = accepts;
        self
    }

    /// Gives links with the nodes of [`peer`](Self::peer) a [session of their own](super::Links::session). In those that
    /// this node opens the neighbour may have so many channels open, and this end uses at most so many bytes for received
    /// data, in place of [`LinkOptions::transport`](super::LinkOptions::transport); in those that neighbours open it is
    /// what [`transport`](Self::transport) says. Neighbours without this option open none. By
    /// default a link in which a channel is opened is closed.
    #[must_use]
    pub fn link_channels(mut self, count: u32, receive_budget: usize) -> Self {
        self.setup.link_channels = Some(LinkChannels { count, receive_budget });
        self
    }

    /// PSK mode, for all links and sessions: peers without the key get no answer. See
    /// [PSK mode](crate#psk-mode).
    #[must_use]
    pub fn preshared_key(mut self, key: PresharedKey) -> Self {
        self.setup.preshared_key = Some(key);
        self
    }

    /// Whether packets are recoded and repaired hop by hop, the default. If not, they are forwarded
    /// unchanged, and the ends repair all losses.
    #[must_use]
    pub fn recoding(mut self, recodes: bool) -> Self {
        self.relay.recoding = recodes;
        self
    }

    /// Bytes of payloads that the node may hold for all flows together, by default 256 MiB; its own
    /// sessions are flows, too. One flow may take half of what the others leave: about two and a half
    /// BDP of the next link at 10 % loss. The state of the flows may take as many bytes again.
    #[must_use]
    pub fn relay_memory(mut self, bytes: usize) -> Self {
        self.relay.total_bytes = bytes;
        self
    }

    /// Hop limit of packets that this node sends, by default 64.
    #[must_use]
    pub fn hop_limit(mut self, hops: u8) -> Self {
        self.relay.hop_limit = hops;
        self
    }

    /// Limits and behaviour of links and sessions that other nodes open.
    #[must_use]
    pub fn transport(mut self, transport: TransportConfig) -> Self {
        self.transport = transport;
        self
    }

    /// The modes that other nodes may request for sessions. By default BTP, BRTP, BRCTP and
    /// TRANSPARENT; other modes cannot be relayed, and the node does not start with them. Links need
    /// BRTP, which is always among them.
    #[must_use]
    pub fn modes(mut self, modes: impl IntoIterator<Item = Mode>) -> Self {
        self.modes = modes.into_iter().collect();
        self
    }

    /// Largest number of links and sessions together, by default 10,000; more are refused.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.max_connections = Some(connections);
        self
    }

    /// Bytes of received data that all sessions together may hold; see
    /// [`Builder::memory_budget`](crate::Builder::memory_budget).
    #[must_use]
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.memory_budget = Some(bytes);
        self
    }

    /// Uses one of these I/O threads, which other nodes and endpoints share. By default the node
    /// starts its own.
    #[must_use]
    pub fn io_threads(mut self, threads: &IoThreads) -> Self {
        self.threads = Some(threads.clone());
        self
    }

    /// Opens the sockets and starts the I/O thread.
    ///
    /// # Errors
    /// An address is in use or not local, the configuration is unusable, or the system has no more
    /// threads or file descriptors.
    pub fn start(self) -> Result<Node, StartError> {
        self.into_endpoint()?.start().map(Node::new)
    }

    pub(super) fn into_endpoint(mut self) -> Result<Builder, StartError> {
        self.check()?;
        if !self.modes.contains(&Mode::Brtp) {
            self.modes.push(Mode::Brtp);
        }
        let mut server = ServerOptions::new(self.setup.identity.clone())
            // Fingerprints are checked once the handshake is complete: links and sessions arrive at the
            // same sockets, and each may need another certificate.
            .client_trust(Trust::dangerous_any())
            .transport(self.transport)
            .modes(self.modes);
        if let Some(key) = &self.setup.preshared_key {
            server = server.preshared_key(key.clone());
        }
        if let Some(connections) = self.max_connections {
            server = server.max_connections(connections);
        }
        let mut addresses = self.addresses.into_iter();
        let mut builder = Builder::default().server(server);
        if let Some(first) = addresses.next() {
            builder = builder.bind(first);
        }
        if let Some(bytes) = self.memory_budget {
            builder = builder.memory_budget(bytes);
        }
        if let Some(threads) = &self.threads {
            builder = builder.io_threads(threads);
        }
        let node = NodeStart { setup: self.setup, relay: self.relay, others: addresses.collect() };
        Ok(builder.node(node))
    }

    fn check(&self) -> Result<(), StartError> {
        let unusable = |text: String| Err(StartError::Configuration(text));
        for (index, one) in self.addresses.iter().enumerate() {
            for other in &self.addresses[index + 1..] {
                if serves(one, other.ip()) || serves(other, one.ip()) {
                    return unusable(format!(
                        "the addresses {one} and {other} have packets of the same IP address: a \
                         node has one socket for each"
                    ));
                }
            }
        }
        if let Some(mode) = self.modes.iter().find(|mode| !MODES.contains(mode)) {
            return unusable(format!("mode {} does not go over relays", *mode as u8));
        }
        if self.relay.hop_limit == 0 {
            return unusable("a hop limit of 0 lets no packet leave: use 1 to 255".to_owned());
        }
        Ok(())
    }
}
