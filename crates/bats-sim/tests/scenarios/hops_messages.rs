//! Sparse messages over three lossy hops: relays repair on each hop, so a loss costs milliseconds
//! and not a round trip between the ends.

use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{Event, Timestamp, TransportConfig};
use bats_sim::jobs::parallel;
use bats_sim::matrix::Cell;
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

const HOPS: usize = 3;
const DELAY: Duration = Duration::from_millis(10);
const INTERVAL: Duration = Duration::from_millis(10);
const MESSAGES: u64 = 2_000;

/// Sorted one-way delays of messages of 512 bytes.
fn delays(loss: f64, mode: bats_proto::Mode, seed: u64) -> Vec<Duration> {
    let cell = Cell { seed, delay: DELAY, ..Cell::over(100, 0, loss, 1) };
    let mut network = RelayNetwork::new(RelayNetworkConfig {
        links: vec![cell.link(); HOPS],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            also_accepted: vec![mode, bats_proto::Mode::Brtp],
            ..TransportConfig::default()
        },
        seed,
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

/// With one seed in ten more than one message in a hundred of BTP waits for a repair of the ends. What is
/// measured at most, and 5 %: a p99 of 54.6 ms in 24 seeds, a p99.9 of 77.2 ms in the seeds below.
const WORST: [Duration; 2] = [Duration::from_millis(58), Duration::from_millis(81)];

#[test]
fn p99_delay_over_three_lossy_hops_is_at_most_1_6_one_way_delays() {
    let base = DELAY * HOPS as u32;
    // At most 0.3 round trips of excess delay at p99, and half a round trip at p99.9.
    let goals = [base + base * 2 * 3 / 10, base * 2];
    for mode in [bats_proto::Mode::Brtp, bats_proto::Mode::Btp] {
        let seeds = [1, 2, 3, 4, 5, 6, 7];
        let of_seeds = parallel(&seeds, 0, |&seed| {
            let delays = delays(0.05, mode, seed);
            assert!(
                delays.len() as f64 >= 0.999 * MESSAGES as f64,
                "seed {seed}: {}",
                delays.len()
            );
            [0.5, 0.99, 0.999].map(|share| percentile(&delays, share))
        });
        println!("{mode:?}: {of_seeds:?}");
        assert!(of_seeds.iter().all(|&[p50, ..]| p50 < base + Duration::from_millis(1)));
        for (index, (goal, worst)) in goals.into_iter().zip(WORST).enumerate() {
            let mut sorted: Vec<_> = of_seeds.iter().map(|of_seed| of_seed[index + 1]).collect();
            sorted.sort_unstable();
            assert!(sorted[seeds.len() / 2] <= goal, "{mode:?}, median: {sorted:?}");
            assert!(sorted[seeds.len() - 1] <= worst, "{mode:?}, worst: {sorted:?}");
        }
    }
}
