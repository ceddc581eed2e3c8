//! One link: packet numbers, acknowledgements, loss detection, round-trip time, path MTU.

/// Loss and burst estimate.
pub mod loss;
/// Path MTU discovery.
pub mod mtu;
/// Replay window and acknowledgement ranges.
pub mod received;
mod replay_window;
pub(crate) mod report_budget;
/// Round-trip time.
pub mod rtt;
/// Packets in flight and loss detection.
pub mod sent;
#[cfg(test)]
mod sent_tests;
