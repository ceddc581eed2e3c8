//! Parses the emulated link of `--emulate`: `loss=5%,delay=50ms,rate=100M`.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};

use crate::units::{parse_bytes, parse_fraction, parse_rate, parse_time};

/// Bytes of headers below UDP: IPv4 and Ethernet.
const FRAME_OVERHEAD: usize = 42;
/// Minimum queue length in bytes if none is given.
const MIN_QUEUE: usize = 100_000;
/// Maximum queue length in bytes if none is given.
const MAX_QUEUE: usize = 64 << 20;

/// An emulated link; each direction gets one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Emulation {
    pub(crate) link: LinkConfig,
    pub(crate) seed: u64,
    /// The text of the option.
    pub(crate) text: String,
}

pub(super) fn parse(text: &str) -> Result<Emulation, String> {
    let mut link = LinkConfig { frame_overhead: FRAME_OVERHEAD, ..LinkConfig::default() };
    let (mut loss, mut burst, mut seed) = (0.0, 1.0, 1);
    let mut reorder = false;
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "loss" => loss = parse_fraction(value)?,
            "burst" => {
                burst = value
                    .parse()
                    .ok()
                    .filter(|burst| (1.0..=1_000.0).contains(burst))
                    .ok_or_else(|| format!("'{value}' is not a burst length; use 1 to 1000"))?;
            }
            "delay" => link.delay = parse_delay(value)?,
            "jitter" => {
                link.jitter = Some(Jitter { amplitude: parse_delay(value)?, reorder: false });
            }
            "reorder" if value.is_empty() => reorder = true,
            "rate" => {
                let rate = parse_rate(value)?;
                if rate == 0 {
                    return Err("rate=0 would drop everything; use a rate above 0".into());
                }
                link.rate_bps = Some(rate);
            }
            "queue" => link.queue_bytes = Some(parse_bytes(value)? as usize),
            "duplicate" => link.duplicate = parse_fraction(value)?,
            "corrupt" => link.corrupt = parse_fraction(value)?,
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (1_228..=65_507).contains(mtu));
                link.mtu =
                    Some(mtu.ok_or_else(|| {
                        format!("'{value}' is not an MTU; use 1228 to 65507 bytes")
                    })?);
            }
            "seed" => {
                seed =
                    value.parse().map_err(|_| format!("'{value}' is not a seed; use a number"))?;
            }
            _ => {
                return Err(format!(
                    "'{word}' is not a link parameter; use loss, burst, delay, jitter, reorder, \
                     rate, queue, duplicate, corrupt, mtu or seed"
                ));
            }
        }
    }
    match (&mut link.jitter, reorder) {
        (Some(jitter), _) => jitter.reorder = reorder,
        (None, true) => return Err("reorder needs jitter".into()),
        (None, false) => {}
    }
    if burst > 1.0 && loss == 0.0 {
        return Err("burst needs loss".into());
    }
    link.loss = if loss == 0.0 {
        Loss::None
    } else if burst > 1.0 {
        Loss::bursts(loss, burst)
    } else {
        Loss::Iid(loss)
    };
    if link.queue_bytes.is_none() {
        // One bandwidth-delay product (BDP), as routers are sized.
        let bdp = |rate| LinkConfig::queue_for(rate, link.delay.saturating_mul(2), 1.0);
        link.queue_bytes = link.rate_bps.map(|rate| bdp(rate).clamp(MIN_QUEUE, MAX_QUEUE));
    }
    Ok(Emulation { link, seed, text: text.to_owned() })
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    parse_time(text, 1e-3)
        .ok()
        .filter(|delay| *delay <= Duration::from_secs(10))
        .ok_or_else(|| format!("'{text}' is not a delay; use up to 10s, for example 50ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_parameters_parse() {
        let link = parse("loss=5%,delay=50ms,rate=1000M").unwrap().link;
        assert_eq!(link.loss, Loss::Iid(0.05));
        assert_eq!(link.delay, Duration::from_millis(50));
        assert_eq!(link.rate_bps, Some(1_000_000_000));
        assert_eq!(link.queue_bytes, Some(12_500_000));
        let link = parse("loss=0.1, burst=4, jitter=2ms, reorder, queue=50k, mtu=1400").unwrap();
        assert_eq!(link.link.loss, Loss::bursts(0.1, 4.0));
        assert!(link.link.jitter.unwrap().reorder);
        assert_eq!((link.link.queue_bytes, link.link.mtu), (Some(50_000), Some(1_400)));
        assert_eq!(parse("").unwrap().link.loss, Loss::None);
    }

    #[test]
    fn invalid_links_are_rejected() {
        for wrong in [
            "loss=100%",
            "loss",
            "delay=1h",
            "delay=20s",
            "rate=0",
            "rate=x",
            "reorder",
            "burst=4",
            "burst=0,loss=1%",
            "mtu=100",
            "mtu=x",
            "colour=red",
            "seed=x",
            "queue=0",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
