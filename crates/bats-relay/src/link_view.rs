//! Links as the relay sees them.

use core::time::Duration;

/// Identifies a link of a node; IDs are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// Measurements of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Rate before loss, in bytes per second.
    pub rate: u64,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Least round-trip time.
    pub min_rtt: Duration,
    /// Fraction of packets lost.
    pub loss: f64,
    /// Variance of the losses relative to independent losses, at least 1.
    pub burst_factor: f64,
    /// Bytes of a full packet.
    pub packet: u64,
    /// Whether the other end is responsive.
    pub alive: bool,
    /// Whether several answers are overdue. Such a link is potentially failed (RFC 7829): it is not
    /// used while another link leads to the same node.
    pub potentially_failed: bool,
}

impl Default for LinkView {
    fn default() -> Self {
        Self {
            rate: 0,
            smoothed_rtt: Duration::from_millis(100),
            min_rtt: Duration::from_millis(100),
            loss: 0.0,
            burst_factor: 1.0,
            packet: 1_200,
            alive: true,
            potentially_failed: false,
        }
    }
}
