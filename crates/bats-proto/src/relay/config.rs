//! What a relay is set up with, what it counts, and its limits.

use core::time::Duration;

use crate::wire::flow::NodeId;

/// Flows known at once (`guide`: 10,000 through one relay); packets of further ones are dropped.
pub const MAX_FLOWS: usize = 16_384;
/// Batches of a kind that a node follows for a flow: eight round trips of 20 ms at 1 Gbit/s.
pub(super) const MAX_BATCHES: usize = 1_024;
/// Combinations made of one batch at most: enough for half of the packets lost in bursts, and an
/// end to what a neighbour that always lacks something can ask for.
pub const MAX_RECODED: u16 = 64;
/// Packets beyond a round trip that may wait for the next hop: what the rates of two hops differ
/// by for a while.
pub(super) const QUEUE_PACKETS: u64 = 128;
/// Least memory of a flow that is granted whatever the round trip is.
pub const LEAST_FLOW_BYTES: usize = 1 << 20;
/// End-to-end packets that wait for a link; more are dropped.
pub const MAX_OPAQUE: usize = 256;
/// Packets over which the share of useless ones from a neighbour is looked at.
pub const USELESS_WINDOW: u64 = 1_000;
/// Useless ones among them from which on a neighbour is left out, where there is another. More than
/// half are told of; but an honest neighbour protects each packet of a thin flow by up to three others,
/// so that three of four may be useless without harm to anybody.
pub const MOST_USELESS: u64 = 800;

/// What a node that relays or speaks across relays is set up with.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Its own name.
    pub node: NodeId,
    /// Whether carried flows are recoded and repaired hop by hop. If not, packets are forwarded
    /// as they come, and the ends repair.
    pub recoding: bool,
    /// Bytes that the payloads of one flow may take: what a round trip of the next hop and its
    /// repairs need, at least 1 MiB, at most this.
    pub flow_bytes: usize,
    /// Bytes that the payloads of all flows may take, and as many that what is known of their batches
    /// may take.
    pub total_bytes: usize,
    /// Silence after which a flow is forgotten.
    pub idle_timeout: Duration,
    /// Links that packets made here may cross.
    pub hop_limit: u8,
}

impl RelayConfig {
    /// Recoding on, at most 8 MiB a flow (1 Gbit/s over a hop of 25 ms round trip) and 64 MiB in
    /// all, flows forgotten after 300 s, 64 hops.
    #[must_use]
    pub fn new(node: NodeId) -> Self {
        Self {
            node,
            recoding: true,
            flow_bytes: 8 << 20,
            total_bytes: 64 << 20,
            idle_timeout: Duration::from_secs(300),
            hop_limit: 64,
        }
    }
}

/// Counters of a relay, in packets unless their names say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelayStats {
    /// Carried packets received from links.
    pub received: u64,
    /// Packets passed on as they came.
    pub forwarded: u64,
    /// Combinations sent because the next node reported less rank than was sent.
    pub top_ups: u64,
    /// Combinations sent ahead of a report, in slots that nothing else wanted, or, where the next
    /// node reports nothing, as adaptive recoding says.
    pub extras: u64,
    /// Coded packets handed to this node's own sessions.
    pub delivered: u64,
    /// End-to-end packets sent, repetitions included.
    pub opaque_sent: u64,
    /// Dropped: coded packets that brought nothing new.
    pub useless: u64,
    /// Dropped: packets of batches that are done or given up.
    pub late: u64,
    /// Dropped: their headers are malformed.
    pub malformed: u64,
    /// Dropped: no route to the destination.
    pub unroutable: u64,
    /// Dropped: they would go back where they came from, or claim to come from here.
    pub looped: u64,
    /// Dropped: they have crossed too many links.
    pub hop_limit: u64,
    /// Dropped: repetitions of end-to-end packets.
    pub repeated: u64,
    /// Dropped: a queue was full, a packet between the ends waited too long in one, or there were
    /// too many flows.
    pub overflowed: u64,
    /// Batches whose packets were let go for want of room before the next node was known to have
    /// them: they were forwarded, and not repaired here.
    pub batches_unrepaired: u64,
    /// Batches dropped for want of room before all their packets were sent.
    pub batches_dropped: u64,
    /// Batches given up because nothing came of them for long.
    pub batches_expired: u64,
    /// Batches of which the most combinations allowed were made.
    pub batches_capped: u64,
    /// Links whose packets were found useless for the most part, each time anew.
    pub links_demoted: u64,
    /// Ways on which something was altered.
    pub ways_lying: u64,
    /// Flows known now.
    pub flows: u64,
    /// Flows forgotten after silence.
    pub flows_expired: u64,
    /// Bytes of what is known of batches, beside their payloads.
    pub state_bytes: u64,
    /// Bytes of payloads held now.
    pub bytes_held: u64,
    /// Most bytes of payloads held so far.
    pub bytes_peak: u64,
}
