//! A session across relays that only ever sends: the other end has nothing to acknowledge, and is there
//! all the same.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::relay::RelayConfig;
use bats_proto::{Event, Mode, TransportConfig};
use bats_sim::line::{Line, LineConfig, node_id};
use bytes::Bytes;

const HOPS: usize = 3;
const IDLE: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_millis(5);

/// Messages that arrive in four idle time-outs.
fn lives(mode: Mode) {
    let link = LinkConfig {
        rate_bps: Some(20_000_000),
        delay: Duration::from_millis(10),
        loss: Loss::Iid(0.02),
        ..LinkConfig::default()
    };
    let mut line = Line::new(LineConfig {
        links: vec![link; HOPS],
        relay: RelayConfig::new(node_id(0)),
        transport: TransportConfig {
            idle_timeout: IDLE,
            also_accepted: vec![mode, Mode::Brtp],
            ..TransportConfig::default()
        },
        seed: 6,
    });
    let client = line.connect_ends_as(mode);
    let end = line.now() + 4 * IDLE;
    let (mut next, mut sent, mut arrived) = (None, 0_u64, 0_u64);
    while line.now() < end {
        line.step(next.unwrap_or(end).min(end));
        let now = line.now();
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Closed(reason) => panic!("{mode:?}, node {node}: {reason:?}"),
                Event::Readable if node == HOPS => {
                    while line.node(node).recv(now, handle).is_some() {
                        arrived += 1;
                    }
                    line.touch(node);
                }
                _ => {}
            }
        }
        if let Some(due) = next.filter(|&due| due <= now) {
            line.node(0).send(now, client, Bytes::from(vec![7; 500])).expect("room");
            line.touch(0);
            sent += 1;
            next = Some(due + INTERVAL);
        }
    }
    assert!(sent > 2_000 && arrived * 100 >= (sent - 100) * 99, "{mode:?}: {arrived} of {sent}");
}

#[test]
fn a_stream_of_messages_that_may_be_lost_goes_on() {
    lives(Mode::Btp);
}

#[test]
fn a_stream_of_reliable_messages_goes_on() {
    lives(Mode::Brtp);
}
