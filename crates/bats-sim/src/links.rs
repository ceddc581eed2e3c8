//! The links of the scenarios, and their capacity.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};

/// Bytes that Ethernet, IPv4 and UDP add to a payload.
pub const FRAME_OVERHEAD: usize = 42;

/// A link with this rate, one-way delay and independent loss (0 to 1). Its queue holds `queue_bdp`
/// times the BDP.
pub fn queued(rate_bps: u64, delay: Duration, queue_bdp: f64, loss: f64) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(rate_bps),
        queue_bytes: Some(LinkConfig::queue_for(rate_bps, delay * 2, queue_bdp)),
        delay,
        loss: if loss > 0.0 { Loss::Iid(loss) } else { Loss::None },
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    }
}

/// A lossless link with a queue of one BDP.
pub fn link(rate_mbps: u64, one_way_ms: u64) -> LinkConfig {
    queued(rate_mbps * 1_000_000, Duration::from_millis(one_way_ms), 1.0, 0.0)
}

/// Capacity of `link` after loss in Mbit/s of UDP payload in full frames. It is infinite for a link
/// without a rate limit, so that the efficiency on such a link is 0 and misses every bound.
pub fn capacity(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.map_or(f64::INFINITY, |rate| rate as f64 / 1e6);
    rate * 1_472.0 / 1_514.0 * (1.0 - link.loss.mean())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_a_rate_limit_has_infinite_capacity() {
        let limited = LinkConfig { loss: Loss::Iid(0.5), ..link(1_514, 1) };
        assert!((capacity(&limited) - 736.0).abs() < 1e-9, "{}", capacity(&limited));
        let unlimited = LinkConfig { rate_bps: None, ..limited };
        assert_eq!(100.0 / capacity(&unlimited), 0.0);
    }
}
