//! The coded flow of one direction: symbols, repairs, rank feedback, credit.
//!
//! A flow handles neither packet numbers nor messages. The link supplies its path estimates
//! ([`PathView`]); the session fills and consumes its symbols.

mod coded_packet;
mod credit;
mod link_assignments;
mod rate;
mod rateless;
mod receiver;
mod reordering;
mod sender;
mod spare_rate;
mod steady;
mod thin;
mod timely_receiver;
mod timely_sender;
mod work_budget;

use core::time::Duration;

pub use credit::initial_credit;
pub use rate::{RateController, RepairClass};
pub(crate) use rateless::credit_of;
pub use rateless::{
    RATELESS_HEADER_LEN, RatelessHeader, RatelessParameters, RatelessReceiver, RatelessSender,
    RatelessSenderParameters, rateless_packet_size,
};
pub use receiver::{FlowReceiver, ReceiverCounters, ReceiverParameters};
pub use sender::{FlowSender, SenderCounters, SenderParameters};
pub use timely_receiver::{MAX_UNKNOWNS as TIMELY_MAX_UNKNOWNS, ResidualStats, TimelyReceiver};
pub use timely_sender::{TimelyParameters, TimelySender};

// The code and the wire format have the same batches.
const _: () = assert!(bats_code::BATCH_SIZE == crate::wire::coding::BATCH_SIZE);

/// Path estimates of the link, as the flow needs them.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Estimated rate of the path.
    pub rate_bytes_per_second: u64,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Delay of acknowledgements and feedback.
    pub ack_interval: Duration,
    /// Loss before repair, 0 to 1; 0 if none was seen.
    pub loss: f64,
    /// Variance of the loss relative to independent losses, at least 1.
    pub burst_factor: f64,
    /// Number of packets that the estimate is based on.
    pub loss_packets: u64,
    /// Queueing delay of the path, as congestion control sees it.
    pub queue_delay: Duration,
}

/// A violation of the flow's protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// A coded packet is too short or has invalid fields.
    #[error("malformed coding header")]
    Malformed,
    /// A symbol beyond the credit.
    #[error("symbol {symbol} beyond the credit of {credit} symbols")]
    BeyondCredit {
        /// Its number.
        symbol: u64,
        /// Symbols allowed.
        credit: u64,
    },
    /// Repairs that add nothing have caused more work than an honest sender's can.
    #[error("non-innovative repairs cost more work than is allowed")]
    NonInnovative,
    /// Feedback about symbols that were not sent.
    #[error("feedback about symbol {0}, which was not sent")]
    NotSent(u64),
}
