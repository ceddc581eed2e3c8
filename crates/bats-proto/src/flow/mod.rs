//! The coded flow of one direction: symbols, repairs, rank feedback, credit.
//!
//! A flow knows neither packet numbers nor messages: the link tells it how the path looks
//! ([`PathView`]), the session fills and takes its symbols.

mod coded;
mod credit;
mod rate;
mod rateless;
mod receiver;
mod reordering;
mod sender;
mod shares;
mod thin;
mod timely_receiver;
mod timely_sender;

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
pub use timely_receiver::{Residual, TimelyReceiver};
pub use timely_sender::{TimelyParameters, TimelySender};

/// How the path looks to a flow, from the link's measurements.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Estimated rate of the path.
    pub rate_bytes_per_second: u64,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// How long acknowledgements and feedback are held back.
    pub ack_interval: Duration,
    /// Loss before repair, 0 to 1; 0 while none was seen.
    pub loss: f64,
    /// Variance of the loss over that of independent losses, at least 1.
    pub burst_factor: f64,
    /// Packets that the estimate rests on.
    pub loss_packets: u64,
}

/// How the peer broke the rules of the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FlowError {
    /// A coded packet is too short or has impossible fields.
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
    /// Feedback about symbols that were not sent.
    #[error("feedback about symbol {0}, which was not sent")]
    NotSent(u64),
}
