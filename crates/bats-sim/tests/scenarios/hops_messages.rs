//! Sparse messages over three lossy hops: relays repair on each hop, so a loss costs milliseconds
//! and not a round trip between the ends.

use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{Event, Timestamp, TransportConfig};
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

const HOPS: usize = 3;
const DELAY: Duration = Duration::from_millis(10);
const INTERVAL: Duration = Duration::from_millis(10);
const MESSAGES: u64 = 2_000;

/// Sorted one-way delays of messages of 512 bytes.
fn delays(loss: f64, mode: bats_proto::Mode) -> Vec<Duration> {
    let cell = Cell { seed: 4, delay: DELAY, ..Cell::over(100, 0, loss, 1) };
    let mut network = RelayNetwork::new(RelayNetworkConfig {
        links: vec![cell.link(); HOPS],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            also_accepted: vec![mode, bats_proto::Mode::Brtp],
            ..TransportConfig::default()
        },
        seed: 4,
    });
    // Messages before the measurement, so that the links have a loss estimate.
    let mut warm_up = 200;
    let client = network.connect_ends_in(mode);
    let (mut sent, mut next) = (0_u64, None::<Timestamp>);
    let mut delays = Vec::new();
    let end = network.now() + Duration::from_secs(60);
    let mut stop = None;
    while network.now() < stop.unwrap_or(end) {
        network.step(next.unwrap_or(end).min(stop.unwrap_or(end)));
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == HOPS => {
                    while let Some(got) = network.node(node).recv(now, handle) {
                        let stamp = u64::from_le_bytes(got[8..16].try_into().expect("8 bytes"));
                        if got[0] == 1 {
                            delays.push(now - Timestamp::from_nanos(stamp));
                        }
                    }
                    network.wake(node);
                }
                _ => {}
            }
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![u8::from(warm_up == 0); 512];
            message[8..16].copy_from_slice(&now.as_nanos().to_le_bytes());
            network.node(0).send(now, client, Bytes::from(message)).expect("room");
            network.wake(0);
            if warm_up > 0 {
                warm_up -= 1;
            } else {
                sent += 1;
            }
            next = (sent < MESSAGES).then(|| now + INTERVAL);
            if next.is_none() {
                stop = Some(now + Duration::from_secs(3));
            }
        }
    }
    delays.sort_unstable();
    delays
}

fn percentile(delays: &[Duration], share: f64) -> Duration {
    delays[((delays.len() as f64 * share) as usize).min(delays.len() - 1)]
}

#[test]
fn p99_delay_over_three_lossy_hops_is_at_most_1_6_one_way_delays() {
    let base = DELAY * HOPS as u32;
    for mode in [bats_proto::Mode::Brtp, bats_proto::Mode::Btp] {
        let delays = delays(0.05, mode);
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| percentile(&delays, share));
        println!("{mode:?}: {} of {MESSAGES}, {p50:?} {p99:?} {p999:?}", delays.len());
        assert!(delays.len() as f64 >= 0.999 * MESSAGES as f64);
        assert!(p50 < base + Duration::from_millis(1), "{p50:?}");
        // At most 0.3 round trips of excess delay at p99, and half a round trip at p99.9.
        assert!(p99 <= base + base * 2 * 3 / 10, "{p99:?}");
        assert!(p999 <= base * 2, "{p999:?}");
    }
}
