//! One-way traffic over an end-to-end session: it stays open although one end has no data to send.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::relay::RelayConfig;
use bats_proto::{Event, Mode, TransportConfig};
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

const HOPS: usize = 3;
const IDLE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(5);

/// Sends messages in one direction for four idle time-outs. The session must stay open, and
/// 99 per cent of the messages must arrive.
fn assert_stays_open(mode: Mode) {
    let link = LinkConfig {
        rate_bps: Some(20_000_000),
        delay: Duration::from_millis(10),
        loss: Loss::Iid(0.02),
        ..LinkConfig::default()
    };
    let mut network = RelayNetwork::new(RelayNetworkConfig {
        links: vec![link; HOPS],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            idle_timeout: IDLE,
            also_accepted: vec![mode, Mode::Brtp],
            ..TransportConfig::default()
        },
        seed: 6,
    });
    let client = network.connect_ends_in(mode);
    let end = network.now() + 4 * IDLE;
    let (mut next, mut sent, mut arrived) = (None, 0_u64, 0_u64);
    while network.now() < end {
        network.step(next.unwrap_or(end).min(end));
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Closed(reason) => panic!("{mode:?}, node {node}: {reason:?}"),
                Event::Readable if node == HOPS => {
                    while network.node(node).recv(now, handle).is_some() {
                        arrived += 1;
                    }
                    network.wake(node);
                }
                _ => {}
            }
        }
        if let Some(due) = next.filter(|&due| due <= now) {
            network.node(0).send(now, client, Bytes::from(vec![7; 500])).expect("room");
            network.wake(0);
            sent += 1;
            next = Some(due + INTERVAL);
        }
    }
    assert!(sent > 2_000 && arrived * 100 >= (sent - 100) * 99, "{mode:?}: {arrived} of {sent}");
}

#[test]
fn a_one_way_btp_session_outlasts_the_idle_timeout() {
    assert_stays_open(Mode::Btp);
}

#[test]
fn a_one_way_brtp_session_outlasts_the_idle_timeout() {
    assert_stays_open(Mode::Brtp);
}
