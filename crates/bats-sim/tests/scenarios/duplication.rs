//! A network that duplicates most packets: no message is delivered twice, and duplicates are
//! counted. `Transfer::run` and `Messages::run` check every message.

use std::time::Duration;

use crate::common::{link, transfer};
use bats_netem::{Jitter, LinkConfig};
use bats_proto::TransportConfig;
use bats_proto::config::Mode;
use bats_sim::messages::Messages;

fn duplicating() -> LinkConfig {
    let jitter = Jitter { amplitude: Duration::from_millis(5), reorder: true };
    LinkConfig { duplicate: 0.8, jitter: Some(jitter), ..link(50, 20) }
}

#[test]
fn duplicate_packets_are_counted_and_not_delivered() {
    let mut run = transfer(&duplicating(), 30);
    run.total_bytes = Some(8 << 20);
    let outcome = run.run();
    assert!(outcome.finished.is_some(), "{:?}", outcome.closed);
    let received = outcome.receiver.packets.received as f64;
    let share = outcome.receiver.packets.replayed as f64 / received;
    assert!((0.75..=0.85).contains(&share), "{share} of the packets counted as duplicates");
}

#[test]
fn unreliable_messages_are_delivered_once() {
    for mode in [Mode::Btp, Mode::Transparent] {
        let run = Messages {
            hops: vec![duplicating()],
            transport: TransportConfig { mode, ..TransportConfig::default() },
            size: 600,
            interval: Duration::from_millis(1),
            warm_up: 0,
            burst: 0,
            count: 3_000,
            echo: false,
            seed: 1,
        };
        let outcome = run.run();
        assert_eq!((outcome.wrong, outcome.arrived), (0, 3_000), "{mode:?}");
        assert_eq!(outcome.stats[1].messages.received, 3_000, "{mode:?}");
    }
}
