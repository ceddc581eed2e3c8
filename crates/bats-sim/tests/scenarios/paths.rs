//! Multipath: paths with any rates, delays and losses add up, and the failure of one stops the
//! transfer only briefly. The bound is the sum of (1 - p) C in UDP payload. A single path reaches
//! 0.943 of it, because of headers.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::relay::RelayConfig;
use bats_proto::{Event, TransportConfig};
use bats_sim::paths::{Paths, link};
use bats_sim::relay_network::{RelayNetwork, RelayNetworkConfig, node_id};
use bytes::Bytes;

/// Asserts at least this share of the bound, and at most this time without progress.
fn assert_reaches(run: &Paths, share: f64, gap: Duration) {
    let figures = run.run();
    println!("{}: {:.3} of the bound", run.name, figures.share);
    assert!(figures.share >= share, "{}: {:.3} of the bound", run.name, figures.share);
    let longest = figures.longest_gap_ms;
    assert!(longest <= gap.as_secs_f64() * 1e3, "{}: {longest} ms without progress", run.name);
}

#[test]
fn two_paths_with_different_rates_delays_or_losses_reach_90_per_cent_of_the_sum() {
    for loss in [0.0, 0.05] {
        let links = [link(100.0, 10, loss), link(10.0, 100, loss)];
        assert_reaches(&Paths::parallel("10:1", &links), 0.9, Duration::from_millis(500));
    }
    let links = [link(50.0, 20, 0.1), link(50.0, 20, 0.0)];
    assert_reaches(&Paths::parallel("loss on one", &links), 0.9, Duration::from_millis(500));
}

#[test]
fn four_equal_paths_reach_90_per_cent_of_the_sum() {
    // The goal; 0.933 is measured.
    let links = [(); 4].map(|()| link(25.0, 20, 0.02));
    assert_reaches(&Paths::parallel("four", &links), 0.9, Duration::from_millis(500));
}

#[test]
fn two_paths_over_different_relays_reach_88_per_cent_of_the_sum() {
    let paths = [
        [link(50.0, 10, 0.05), link(50.0, 10, 0.05)],
        [link(50.0, 30, 0.05), link(50.0, 30, 0.05)],
    ];
    assert_reaches(&Paths::diamond("two relays", &paths), 0.88, Duration::from_millis(500));
}

#[test]
fn a_path_failure_stops_the_transfer_for_at_most_700_ms_and_a_restored_path_is_used() {
    let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for run in [
        Paths::parallel("the first of two", &two).with_cut(0, 5, None),
        Paths::parallel("the fast one", &[fast.clone(), slow.clone()]).with_cut(0, 5, None),
        Paths::parallel("the slow one", &[fast, slow]).with_cut(1, 5, None),
        Paths::parallel("one fails for a while", &two).with_cut(1, 3, Some(6)),
    ] {
        assert_reaches(&run, 0.9, Duration::from_millis(700));
    }
}

/// A message of 512 bytes every 10 ms: none takes the path with a delay of 100 ms.
#[test]
fn sparse_small_messages_take_the_path_with_the_lowest_delay() {
    let mut network = RelayNetwork::mesh(
        RelayNetworkConfig {
            links: vec![link(10.0, 100, 0.0), link(100.0, 10, 0.0)],
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: 1,
        },
        vec![(0, 1); 2],
    );
    let client = network.connect_ends();
    let (mut sent, mut next, mut delays) = (0, None, Vec::new());
    let end = network.now() + Duration::from_secs(10);
    while network.now() < end && delays.len() < 200 {
        network.step(next.unwrap_or(end).min(end));
        let now = network.now();
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == 1 => {
                    while let Some(got) = network.node(1).recv(now, handle) {
                        let stamp = u64::from_le_bytes(got[..8].try_into().expect("8 bytes"));
                        delays.push(now - bats_proto::Timestamp::from_nanos(stamp));
                    }
                    network.wake(1);
                }
                _ => {}
            }
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![0; 512];
            message[..8].copy_from_slice(&now.as_nanos().to_le_bytes());
            network.node(0).send(now, client, Bytes::from(message)).expect("room");
            network.wake(0);
            sent += 1;
            next = (sent < 200).then(|| now + Duration::from_millis(10));
        }
    }
    assert_eq!(delays.len(), 200, "all messages arrive");
    let most = delays.iter().max().expect("some");
    assert!(*most < Duration::from_millis(12), "{most:?}");
}

/// Message size in bytes: one message per symbol, so that a stall ends with the next symbol.
const SMALL: usize = 1_200;

/// Sends `count` messages over parallel links, of which link `failed` fails at time `at`, or before
/// the session starts if `at` is zero. Returns the duration of the handshake, and the longest time
/// without progress after the failure. All messages must arrive in order.
fn with_link_failure(
    links: &[LinkConfig],
    failed: usize,
    at: Duration,
    count: u64,
) -> (Duration, Duration) {
    let mut network = RelayNetwork::mesh(
        RelayNetworkConfig {
            links: links.to_vec(),
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: 1,
        },
        vec![(0, 1); links.len()],
    );
    let mut failure = Some(network.now() + at);
    let cut = |network: &mut RelayNetwork| {
        network.set_link(failed, &LinkConfig { black_hole: true, ..links[failed].clone() });
    };
    if at.is_zero() {
        cut(&mut network);
        failure = None;
    }
    let start = network.now();
    let client = network.connect_ends();
    let (mut sent, mut got) = (0, 0);
    let (mut connected, mut last, mut longest) = (None, start + at, Duration::ZERO);
    let end = start + Duration::from_secs(60);
    while got < count && network.now() < end {
        network.step(failure.unwrap_or(end));
        let now = network.now();
        if failure.is_some_and(|failure| failure <= now) {
            failure = None;
            cut(&mut network);
        }
        for (node, handle, event) in core::mem::take(&mut network.events) {
            match event {
                Event::Connected | Event::Writable if (node, handle) == (0, client) => {
                    connected.get_or_insert(now - start);
                    while sent < count {
                        let mut message = vec![0; SMALL];
                        message[..8].copy_from_slice(&sent.to_le_bytes());
                        if network.node(0).send(now, client, message.into()).is_err() {
                            break;
                        }
                        sent += 1;
                    }
                    network.wake(0);
                }
                Event::Readable if node == 1 => {
                    while let Some(message) = network.node(1).recv(now, handle) {
                        let number = u64::from_le_bytes(message[..8].try_into().expect("8 bytes"));
                        assert_eq!((number, message.len()), (got, SMALL), "all messages in order");
                        got += 1;
                        if now > last && !at.is_zero() {
                            longest = longest.max(now - last);
                            last = now;
                        }
                    }
                    network.wake(1);
                }
                Event::Closed(reason) if (node, handle) == (0, client) => panic!("{reason:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(got, count, "no message is lost");
    (connected.expect("connected"), longest)
}

/// The stall lasts about one round trip of the remaining path. It begins with the last packet of
/// the failed path, half a round trip after the failure. The sender detects the failure half a
/// round trip later, plus the detection time. Retransmitted data take half a round trip of the
/// remaining path. For two equal paths the sum is one round trip plus 10 ms.
#[test]
fn failure_of_one_of_two_paths_stalls_the_transfer_briefly_and_loses_nothing() {
    let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for (name, links, failed, count, most) in [
        ("the first of two equal paths", two.to_vec(), 0, 10_000, 1.87),
        ("the second of two equal paths", two.to_vec(), 1, 10_000, 1.87),
        ("the fast path", vec![fast.clone(), slow.clone()], 0, 8_000, 1.0),
        ("the slow path", vec![fast, slow], 1, 14_000, 4.5),
    ] {
        let remaining_rtt = links[1 - failed].delay * 2;
        let (_, stall) = with_link_failure(&links, failed, Duration::from_millis(700), count);
        let trips = stall.as_secs_f64() / remaining_rtt.as_secs_f64();
        println!("{name} fails: stall of {stall:?}, {trips:.2} round trips of the remaining path");
        assert!(stall > Duration::from_millis(20), "{name}: the transfer ended before the failure");
        assert!(trips <= most, "{name}: {trips} round trips of the remaining path");
    }
}

/// The failed path is the one that the first packets take, or the one for which the first symbols
/// of the session are reserved.
#[test]
fn a_session_is_established_within_500_ms_if_one_of_two_paths_has_failed() {
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for failed in [0, 1] {
        let (connected, _) = with_link_failure(&two, failed, Duration::ZERO, 1_000);
        println!("path {failed} failed: connected after {connected:?}");
        assert!(connected <= Duration::from_millis(500), "path {failed}: {connected:?}");
    }
}
