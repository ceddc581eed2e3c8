//! The emulated link as it is written: `loss=5%,delay=50ms,rate=100M`.

use std::time::Duration;

use bats_netem::{Jitter, LinkConfig, Loss};

use crate::units::{parse_bytes, parse_rate, parse_share, parse_time};

/// Bytes of headers below UDP: IPv4 and Ethernet.
const FRAME_OVERHEAD: usize = 42;
/// The shortest queue where none was asked for.
const MIN_QUEUE: usize = 100_000;
/// The longest queue where there is no rate to keep it short.
const MAX_QUEUE: usize = 64 << 20;

/// A link of which there is one in each direction.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Emulation {
    pub(crate) link: LinkConfig,
    pub(crate) seed: u64,
    /// As it was written.
    pub(crate) text: String,
}

pub(super) fn parse(text: &str) -> Result<Emulation, String> {
    let mut link = LinkConfig { frame_overhead: FRAME_OVERHEAD, ..LinkConfig::default() };
    let (mut loss, mut burst, mut seed) = (0.0, 1.0, 1);
    let mut reorder = false;
    for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key {
            "loss" => loss = parse_share(value)?,
            "burst" => {
                burst = value
                    .parse()
                    .ok()
                    .filter(|burst| (1.0..=1_000.0).contains(burst))
                    .ok_or_else(|| format!("'{value}' is no burst length from 1 to 1000"))?;
            }
            "delay" => link.delay = parse_delay(value)?,
            "jitter" => {
                link.jitter = Some(Jitter { amplitude: parse_delay(value)?, reorder: false });
            }
            "reorder" if value.is_empty() => reorder = true,
            "rate" => {
                let rate = parse_rate(value)?;
                if rate == 0 {
                    return Err("rate=0 would let nothing pass".into());
                }
                link.rate_bps = Some(rate);
            }
            "queue" => link.queue_bytes = Some(parse_bytes(value)? as usize),
            "duplicate" => link.duplicate = parse_share(value)?,
            "corrupt" => link.corrupt = parse_share(value)?,
            "mtu" => {
                let mtu = value.parse().ok().filter(|mtu| (1_228..=65_507).contains(mtu));
                link.mtu = Some(
                    mtu.ok_or_else(|| format!("'{value}' is no UDP payload of 1228 to 65507"))?,
                );
            }
            "seed" => {
                seed = value.parse().map_err(|_| format!("'{value}' is no seed (a number)"))?;
            }
            _ => {
                return Err(format!(
                    "'{word}' is no part of a link; loss, burst, delay, jitter, reorder, rate, \
                     queue, duplicate, corrupt, mtu and seed are"
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
        // One bandwidth-delay product, as routers are sized.
        let product = |rate| LinkConfig::queue_for(rate, 2 * link.delay, 1.0);
        link.queue_bytes = link.rate_bps.map(|rate| product(rate).clamp(MIN_QUEUE, MAX_QUEUE));
    }
    Ok(Emulation { link, seed, text: text.to_owned() })
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    parse_time(text, 1e-3)
        .ok()
        .filter(|delay| *delay <= Duration::from_secs(10))
        .ok_or_else(|| format!("'{text}' is no delay up to 10s: say for example 50ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read() {
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
    fn nonsense_is_refused() {
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
