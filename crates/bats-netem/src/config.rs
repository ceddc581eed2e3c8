use core::time::Duration;

use crate::Loss;

/// Variation of the delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter {
    /// Delays lie uniformly within this much below and above the mean.
    pub amplitude: Duration,
    /// Whether packets may overtake one another; otherwise an early packet waits for the one
    /// before it.
    pub reorder: bool,
}

/// How a link behaves; may change while it runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second of whole frames; `None` for unlimited.
    pub rate_bps: Option<u64>,
    /// Bytes that wait for the rate at most, drop-tail; `None` for unlimited.
    pub queue_bytes: Option<usize>,
    /// One-way delay.
    pub delay: Duration,
    /// Variation of the delay.
    pub jitter: Option<Jitter>,
    /// Loss, after the queue: lost frames have used the rate.
    pub loss: Loss,
    /// Share of packets delivered twice.
    pub duplicate: f64,
    /// Share of packets with one byte changed.
    pub corrupt: f64,
    /// Packets with more bytes are dropped.
    pub mtu: Option<usize>,
    /// Nothing passes.
    pub black_hole: bool,
    /// Bytes that a frame has beyond the packet handed in, for the rate: 42 for UDP payload over
    /// IPv4 and Ethernet.
    pub frame_overhead: usize,
    /// Packets are marked with ECN-CE when more bytes than this wait.
    pub mark_threshold: Option<usize>,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            rate_bps: None,
            queue_bytes: None,
            delay: Duration::ZERO,
            jitter: None,
            loss: Loss::None,
            duplicate: 0.0,
            corrupt: 0.0,
            mtu: None,
            black_hole: false,
            frame_overhead: 0,
            mark_threshold: None,
        }
    }
}

impl LinkConfig {
    /// The queue that holds `products` bandwidth-delay products of a round trip `rtt`.
    pub fn queue_for(rate_bps: u64, rtt: Duration, products: f64) -> usize {
        (rate_bps as f64 / 8.0 * rtt.as_secs_f64() * products) as usize
    }
}
