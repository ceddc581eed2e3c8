//! BTP across relays with a sender that is not application-limited: the congestion control of the
//! first link paces the messages, and they arrive at a steady rate.

use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{CongestionAlgorithm, Event, Mode, SendError, Timestamp, TransportConfig};
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

/// Message size in bytes; the first eight bytes are its number.
const SIZE: usize = 1_200;
/// Rate of each link in Mbit/s, frames included.
const RATE: f64 = 20.0;
const SAMPLE: Duration = Duration::from_millis(250);

struct Run {
    /// Bytes delivered until each sample.
    delivered: Vec<u64>,
    /// Messages sent, and messages that expired before they were sent.
    sent: u64,
    expired: u64,
    closed: Option<String>,
}

impl Run {
    /// Goodput in the second that begins with this sample, in Mbit/s.
    fn rate_at(&self, sample: usize) -> f64 {
        (self.delivered[sample + 4] - self.delivered[sample]) as f64 * 8e-6
    }
}

/// Sends messages as fast as the session accepts them, across `hops` links.
fn flood(congestion: CongestionAlgorithm, mode: Mode, hops: usize, loss: f64, seconds: u64) -> Run {
    let cell = Cell {
        congestion,
        loss,
        delay: Duration::from_millis(10),
        rate_bps: (RATE * 1e6) as u64,
        queue: 1.0,
        duration: Duration::from_secs(seconds),
        seed: 5,
    };
    let mut network = RelayNetwork::new(RelayNetworkConfig {
        links: vec![cell.link(); hops],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            congestion,
            also_accepted: vec![mode, Mode::Brtp],
            idle_timeout: Duration::from_secs(3),
            ..TransportConfig::default()
        },
        seed: 5,
    });
    let client = network.connect_ends_in(mode);
    let mut run = Run { delivered: vec![0], sent: 0, expired: 0, closed: None };
    let mut seen = Vec::new();
    let (mut bytes, mut start) = (0, None::<Timestamp>);
    let limit = network.now() + Duration::from_secs(20 + seconds);
    while network.now() < start.map_or(limit, |start| start + cell.duration) {
        let next = start.map_or(limit, |start| start + SAMPLE * run.delivered.len() as u32);
        network.step(next);
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected | Event::Writable if (node, handle) == (0, client) => {
                    start = start.or(Some(now));
                    loop {
                        let mut message = vec![run.sent as u8; SIZE];
                        message[..8].copy_from_slice(&run.sent.to_le_bytes());
                        match network.node(0).send(now, client, Bytes::from(message)) {
                            Ok(()) => run.sent += 1,
                            Err(SendError::Blocked(_)) => break,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    network.wake(0);
                }
                Event::Readable if node == hops => {
                    while let Some(got) = network.node(node).recv(now, handle) {
                        let number = u64::from_le_bytes(got[..8].try_into().expect("8 bytes"));
                        assert!(number < run.sent && got[8..].iter().all(|&o| o == number as u8));
                        let index = number as usize;
                        if seen.len() <= index {
                            seen.resize(index + 1, false);
                        }
                        assert!(!seen[index], "message {number} came twice");
                        seen[index] = true;
                        bytes += got.len() as u64;
                    }
                    network.wake(node);
                }
                Event::Closed(reason)
                    if (node, handle) == (0, client)
                        || network.node(node).remote_node(handle).is_some() =>
                {
                    run.closed = Some(format!("node {node}: {reason:?}"));
                }
                _ => {}
            }
        }
        if now >= next {
            run.delivered.push(bytes);
        }
    }
    let now = network.now();
    if let Some(stats) = network.node(0).stats(now, client) {
        // The rate and window are those of the first link, not of a session without congestion
        // control.
        let pacing = stats.congestion.pacing_bps as f64 / (RATE * 1e6);
        assert!((0.3..3.0).contains(&pacing), "{stats:?}");
        assert!(stats.congestion.cwnd_bytes < 2 << 20, "{stats:?}");
        run.expired = stats.messages.expired;
    }
    let of_sample = |bytes: &[u64]| (bytes[1] - bytes[0]) as f64 * 8e-6 / SAMPLE.as_secs_f64();
    let rates: Vec<_> = run.delivered.windows(2).map(of_sample).map(|rate| rate as u64).collect();
    println!(
        "{congestion:?} {mode:?}, {hops} hops, loss {loss}: {rates:?} Mbit/s, {} sent, {} expired",
        run.sent, run.expired
    );
    run
}

/// Capacity of a link for these messages in Mbit/s, after headers and loss.
fn bound(loss: f64) -> f64 {
    // Frame overhead, hop header and tag, flow header, coding header and symbol authentication tag.
    let frame = SIZE + 42 + 9 + 16 + 12 + 4 + 18 + 8;
    RATE * (1.0 - loss) * SIZE as f64 / frame as f64
}

fn check(congestion: CongestionAlgorithm, mode: Mode, hops: usize, loss: f64, share: f64) {
    let run = flood(congestion, mode, hops, loss, 7);
    // Only messages accepted before the path is known may expire.
    assert!(run.expired * (SIZE as u64) < 4 << 20, "{} expired", run.expired);
    assert_eq!(run.closed, None, "{congestion:?} {hops} {loss}");
    for second in 1..7 {
        let rate = run.rate_at(4 * second);
        let least = share * bound(loss);
        assert!(rate >= least, "{congestion:?} {hops} {loss}: {rate} < {least} in {second}");
    }
}

/// The run exceeds the idle time-out of 3 s, so the source must receive packets to stay connected.
#[test]
fn btp_without_application_limit_keeps_its_rate_under_each_congestion_control() {
    for hops in [1, 3] {
        check(CongestionAlgorithm::Ltcc, Mode::Btp, hops, 0.0, 0.9);
        check(CongestionAlgorithm::Cubic, Mode::Btp, hops, 0.0, 0.8);
        check(CongestionAlgorithm::Gcc, Mode::Btp, hops, 0.0, 0.7);
    }
    for hops in [2, 3] {
        check(CongestionAlgorithm::Ltcc, Mode::Btp, hops, 0.05, 0.8);
        check(CongestionAlgorithm::Gcc, Mode::Btp, hops, 0.05, 0.6);
    }
}
