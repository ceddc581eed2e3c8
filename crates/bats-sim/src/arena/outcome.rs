//! The outcome of a run: samples of all flows, delays and statistics.

use core::time::Duration;

use bats_netem::LinkStats;
use bats_proto::ConnectionStats;

use crate::delay_histogram::DelayHistogram;

/// Interval of the samples.
pub const SAMPLE: Duration = Duration::from_millis(100);

/// State of all flows at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Time from the start of the run.
    pub time: Duration,
    /// Bytes delivered in order, of each flow.
    pub received: Vec<u64>,
    /// Packets that each flow handed to the network in the direction of its data.
    pub sent: Vec<u64>,
    /// Counters of each hop in the direction of the data.
    pub links: Vec<LinkStats>,
    /// Bytes that wait before each hop in the direction of the data.
    pub queues: Vec<usize>,
}

/// Outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Samples, one every [`SAMPLE`].
    pub samples: Vec<Sample>,
    /// Of each flow: one-way delays of the packets that arrived in the time that counts, beyond the propagation delay of
    /// the flow's route.
    pub delays: Vec<DelayHistogram>,
    /// Of each flow: from its start until all has arrived.
    pub completed: Vec<Option<Duration>>,
    /// Of each flow with a rate: delays of its messages.
    pub message_delays: Vec<Vec<Duration>>,
    /// Of each flow of the protocol: the sender's statistics at the end.
    pub senders: Vec<Option<ConnectionStats>>,
    /// The same of the receiver.
    pub receivers: Vec<Option<ConnectionStats>>,
}
