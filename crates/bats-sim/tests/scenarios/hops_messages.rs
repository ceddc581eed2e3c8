//! Messages now and then across three lossy relays: relays repair on the spot, so that a loss costs
//! milliseconds and not the round trip between the ends.

use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{Event, Timestamp, TransportConfig};
use bats_sim::line::{Line, LineConfig, node_id};
use bats_sim::matrix::Cell;
use bytes::Bytes;

const HOPS: usize = 3;
const DELAY: Duration = Duration::from_millis(10);
const INTERVAL: Duration = Duration::from_millis(10);
const MESSAGES: u64 = 2_000;

/// One-way delays of 512-byte messages, in order of size.
fn delays(loss: f64, mode: bats_proto::Mode) -> Vec<Duration> {
    let cell = Cell { seed: 4, delay: DELAY, ..Cell::over(100, 0, loss, 1) };
    let mut line = Line::new(LineConfig {
        links: vec![cell.link(); HOPS],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            also_accepted: vec![mode, bats_proto::Mode::Brtp],
            ..TransportConfig::default()
        },
        seed: 4,
    });
    // Lets the links learn their loss.
    let mut warm = 200;
    let client = line.connect_ends_as(mode);
    let (mut sent, mut next) = (0_u64, None::<Timestamp>);
    let mut found = Vec::new();
    let end = line.now() + Duration::from_secs(60);
    let mut over = None;
    while line.now() < over.unwrap_or(end) {
        line.step(next.unwrap_or(end).min(over.unwrap_or(end)));
        let now = line.now();
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == HOPS => {
                    while let Some(got) = line.node(node).recv(now, handle) {
                        let stamp = u64::from_le_bytes(got[8..16].try_into().expect("8 bytes"));
                        if got[0] == 1 {
                            found.push(now - Timestamp::from_nanos(stamp));
                        }
                    }
                    line.touch(node);
                }
                _ => {}
            }
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![u8::from(warm == 0); 512];
            message[8..16].copy_from_slice(&now.as_nanos().to_le_bytes());
            line.node(0).send(now, client, Bytes::from(message)).expect("room");
            line.touch(0);
            if warm > 0 {
                warm -= 1;
            } else {
                sent += 1;
            }
            next = (sent < MESSAGES).then(|| now + INTERVAL);
            if next.is_none() {
                over = Some(now + Duration::from_secs(3));
            }
        }
    }
    found.sort_unstable();
    found
}

fn percentile(delays: &[Duration], share: f64) -> Duration {
    delays[((delays.len() as f64 * share) as usize).min(delays.len() - 1)]
}

#[test]
fn a_loss_costs_milliseconds_on_three_hops() {
    let base = DELAY * HOPS as u32;
    for mode in [bats_proto::Mode::Brtp, bats_proto::Mode::Btp] {
        let delays = delays(0.05, mode);
        let [half, most, nearly] = [0.5, 0.99, 0.999].map(|share| percentile(&delays, share));
        println!("{mode:?}: {} of {MESSAGES}, {half:?} {most:?} {nearly:?}", delays.len());
        assert!(delays.len() as f64 >= 0.999 * MESSAGES as f64);
        assert!(half < base + Duration::from_millis(1), "{half:?}");
        // Three tenths of the round trip, and half of it.
        assert!(most <= base + base * 2 * 3 / 10, "{most:?}");
        assert!(nearly <= base * 2, "{nearly:?}");
    }
}
