//! Configuration, counters and limits of a relay.

use core::time::Duration;

use bats_wire::flow::NodeId;

/// Maximum number of flows (the goal is 10,000 through one relay). Packets of further flows are
/// dropped.
pub const MAX_FLOWS: usize = 16_384;
/// Maximum number of recoded packets of one batch. It covers a loss of half of the packets in
/// bursts, and limits a neighbour that always reports missing rank.
pub const MAX_RECODED: u16 = 64;
/// Number of packets that may be queued for the next hop in addition to a round trip. It absorbs
/// short-term rate differences of two hops.
pub(super) const QUEUE_PACKETS: u64 = 128;
/// Interval at which a further BATCH_RANK of a flow is allowed. Relays report at most once in a
/// millisecond for source symbols and repairs each.
pub(super) const BATCH_RANK_INTERVAL: Duration = Duration::from_micros(450);
/// Memory in bytes that a flow may use as long as there is any, also if others take most of it.
pub const MIN_FLOW_BYTES: usize = 1 << 20;
/// Maximum number of end-to-end packets queued for a link. Further packets are dropped.
pub const MAX_OPAQUE: usize = 256;
/// Number of packets over which the non-innovative ones of a neighbour are counted.
pub const NON_INNOVATIVE_WINDOW: u64 = 1_000;
/// Number of non-innovative packets in that window above which a neighbour is demoted, if there is
/// another one. An event reports more than half of the window. Three of four packets may be
/// non-innovative without harm, because a correct neighbour protects each packet of a thin flow by
/// up to three others.
pub const MAX_NON_INNOVATIVE: u64 = 800;

/// Configuration of a node that relays or that has sessions over relays.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// ID of this node.
    pub node: NodeId,
    /// Whether flows are recoded and repaired hop by hop. If not, packets are forwarded unchanged
    /// and the ends repair losses.
    pub recoding: bool,
    /// Maximum number of bytes of the payloads of all flows. One flow may take half of what the
    /// others leave, at least 1 MiB. The state of the batches may take as many bytes again.
    pub total_bytes: usize,
    /// Idle time after which a flow is removed.
    pub idle_timeout: Duration,
    /// Hop limit of packets that this node sends.
    pub hop_limit: u8,
}

impl RelayConfig {
    /// Recoding enabled; 256 MiB, so 128 MiB for a flow by itself; idle time-out 300 s; 64 hops.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            recoding: true,
            total_bytes: 256 << 20,
            idle_timeout: Duration::from_secs(300),
            hop_limit: 64,
        }
    }
}

/// Counters of a relay, in packets unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Relayed packets received from links.
    pub received: u64,
    /// Packets forwarded unchanged.
    pub forwarded: u64,
    /// Recoded packets sent because the next node reported less rank than was sent.
    pub top_ups: u64,
    /// Recoded packets sent before a report: in idle slots or, if the next node does not report, as
    /// adaptive recoding determines.
    pub extras: u64,
    /// Coded packets delivered to this node's own sessions.
    pub delivered: u64,
    /// End-to-end packets sent, including repetitions.
    pub opaque_sent: u64,
    /// NO_ROUTE packets sent to the sources of packets without a route.
    pub no_route_sent: u64,
    /// Packets dropped, by reason.
    pub dropped: RelayDropStats,
    /// Batches that were not forwarded or repaired completely.
    pub batches: RelayBatchStats,
    /// Number of times that a link was demoted because most of its packets were non-innovative.
    pub links_demoted: u64,
    /// Number of paths marked as polluting.
    pub polluting_paths: u64,
    /// Current number of flows.
    pub flows: u64,
    /// Flows removed after the idle time-out.
    pub flows_expired: u64,
    /// Flows removed because a timer stayed due after it was handled: a defect.
    pub flows_stuck: u64,
    /// Memory of all flows.
    pub memory: RelayMemoryStats,
}

/// Packets that a relay dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayDropStats {
    /// Non-innovative coded packets.
    pub non_innovative: u64,
    /// Packets of batches that are complete or given up.
    pub late: u64,
    /// Malformed headers.
    pub malformed: u64,
    /// No route to the destination.
    pub unroutable: u64,
    /// The packet would return to the link that it came from, or claims this node as its source.
    pub looped: u64,
    /// The policy of the link that they came over does not allow them, or their source is a group.
    pub refused: u64,
    /// End-to-end packets beyond the rate of the link that they came over. Other packets are held
    /// back instead.
    pub rate_limited: u64,
    /// Packets to a group that no entry accepts from the link that they came over.
    pub not_incoming: u64,
    /// Hop limit reached.
    pub hop_limit: u64,
    /// Repeated end-to-end packets.
    pub repeated: u64,
    /// A queue was full, an end-to-end packet waited too long in one, or there were too many flows.
    pub overflowed: u64,
}

/// Batches that a relay did not forward or repair completely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayBatchStats {
    /// Batches whose packets were freed for lack of memory before the next node reported them. They
    /// were forwarded, but not repaired here.
    pub unrepaired: u64,
    /// Batches dropped for lack of memory before all their packets were sent.
    pub dropped: u64,
    /// Batches given up because no packets of them arrived within the time-out.
    pub expired: u64,
    /// Batches that a branch of a group held for too long, and dropped before the next node had all their
    /// packets.
    pub overdue: u64,
    /// Batches that reached [`MAX_RECODED`].
    pub capped: u64,
}

/// Memory that the flows of a relay take, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayMemoryStats {
    /// Bytes of batch state, without payloads.
    pub state_bytes: u64,
    /// Bytes of payloads held now.
    pub bytes_held: u64,
    /// Maximum of [`bytes_held`](Self::bytes_held) so far.
    pub bytes_peak: u64,
}
