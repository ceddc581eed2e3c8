//! Links as the scenarios have them, and what they carry.

use core::time::Duration;

use bats_netem::{LinkConfig, Loss};

/// Bytes that Ethernet, IPv4 and UDP add to a payload.
pub const FRAME_OVERHEAD: usize = 42;

/// A link of `rate_bps` and a one-way `delay` that loses the share `loss` of the packets,
/// independently; its queue holds so many `products` of bandwidth and round trip.
pub fn queued(rate_bps: u64, delay: Duration, products: f64, loss: f64) -> LinkConfig {
    LinkConfig {
        rate_bps: Some(rate_bps),
        queue_bytes: Some(LinkConfig::queue_for(rate_bps, delay * 2, products)),
        delay,
        loss: if loss > 0.0 { Loss::Iid(loss) } else { Loss::None },
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    }
}

/// A link that loses nothing, with a queue of one bandwidth-delay product.
pub fn link(rate_mbps: u64, one_way_ms: u64) -> LinkConfig {
    queued(rate_mbps * 1_000_000, Duration::from_millis(one_way_ms), 1.0, 0.0)
}

/// Mbit/s of UDP payload in full frames that arrive over `link`; without end over one without a rate,
/// so that no share of it is enough for anybody.
pub fn capacity(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.map_or(f64::INFINITY, |rate| rate as f64 / 1e6);
    rate * 1_472.0 / 1_514.0 * (1.0 - link.loss.mean())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_without_a_rate_is_never_filled() {
        let limited = LinkConfig { loss: Loss::Iid(0.5), ..link(1_514, 1) };
        assert!((capacity(&limited) - 736.0).abs() < 1e-9, "{}", capacity(&limited));
        let unlimited = LinkConfig { rate_bps: None, ..limited };
        assert_eq!(100.0 / capacity(&unlimited), 0.0);
    }
}
