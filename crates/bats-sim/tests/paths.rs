//! Several ways at once: they add up, whatever their rates, delays and losses, and one that ends costs
//! a moment. The bound is the sum of (1 - p) C in UDP payload; one way alone reaches 0.943 of it, which
//! is what headers leave.

use std::time::Duration;

use bats_proto::relay::RelayConfig;
use bats_proto::{Event, TransportConfig};
use bats_sim::line::{Line, LineConfig, node_id};
use bats_sim::paths::{Paths, link};
use bytes::Bytes;

/// At least this share of the bound, and at most so long without progress.
fn assert_reaches(run: &Paths, share: f64, gap: Duration) {
    let figures = run.run();
    assert!(figures.share >= share, "{}: {:.3} of the bound", run.name, figures.share);
    let longest = figures.longest_gap_ms;
    assert!(longest <= gap.as_secs_f64() * 1e3, "{}: {longest} ms without progress", run.name);
}

#[test]
fn ways_of_unlike_rate_and_delay_add_up() {
    for loss in [0.0, 0.05] {
        let links = [link(100.0, 10, loss), link(10.0, 100, loss)];
        assert_reaches(&Paths::parallel("10:1", &links), 0.9, Duration::from_millis(500));
    }
    let links = [link(50.0, 20, 0.1), link(50.0, 20, 0.0)];
    assert_reaches(&Paths::parallel("loss on one", &links), 0.9, Duration::from_millis(500));
}

#[test]
fn four_ways_add_up() {
    let links = [(); 4].map(|()| link(25.0, 20, 0.02));
    assert_reaches(&Paths::parallel("four", &links), 0.9, Duration::from_millis(500));
}

#[test]
fn ways_across_different_relays_add_up() {
    let ways = [
        [link(50.0, 10, 0.05), link(50.0, 10, 0.05)],
        [link(50.0, 30, 0.05), link(50.0, 30, 0.05)],
    ];
    assert_reaches(&Paths::diamond("two relays", &ways), 0.88, Duration::from_millis(500));
}

#[test]
fn a_way_that_ends_costs_a_moment_and_one_that_comes_back_is_used() {
    let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for run in [
        Paths::parallel("the first of two", &two).with_cut(0, 5, None),
        Paths::parallel("the fast one", &[fast.clone(), slow.clone()]).with_cut(0, 5, None),
        Paths::parallel("the slow one", &[fast, slow]).with_cut(1, 5, None),
        Paths::parallel("away for a while", &two).with_cut(1, 3, Some(6)),
    ] {
        assert_reaches(&run, 0.9, Duration::from_millis(700));
    }
}

/// A message of 512 octets each 10 ms: none of them takes the detour of 100 ms.
#[test]
fn little_messages_take_the_fastest_way() {
    let mut line = Line::mesh(
        LineConfig {
            links: vec![link(10.0, 100, 0.0), link(100.0, 10, 0.0)],
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: 1,
        },
        vec![(0, 1); 2],
    );
    let client = line.connect_ends();
    let (mut sent, mut next, mut delays) = (0, None, Vec::new());
    let end = line.now() + Duration::from_secs(10);
    while line.now() < end && delays.len() < 200 {
        line.step(next.unwrap_or(end).min(end));
        let now = line.now();
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected if (node, handle) == (0, client) => next = Some(now),
                Event::Readable if node == 1 => {
                    while let Some(got) = line.node(1).recv(now, handle) {
                        let stamp = u64::from_le_bytes(got[..8].try_into().expect("8 octets"));
                        delays.push(now - bats_proto::Timestamp::from_nanos(stamp));
                    }
                    line.touch(1);
                }
                _ => {}
            }
        }
        if next.is_some_and(|at| at <= now) {
            let mut message = vec![0; 512];
            message[..8].copy_from_slice(&now.as_nanos().to_le_bytes());
            line.node(0).send(now, client, Bytes::from(message)).expect("room");
            line.touch(0);
            sent += 1;
            next = (sent < 200).then(|| now + Duration::from_millis(10));
        }
    }
    assert_eq!(delays.len(), 200, "all arrive");
    let most = delays.iter().max().expect("some");
    assert!(*most < Duration::from_millis(12), "{most:?}");
}
