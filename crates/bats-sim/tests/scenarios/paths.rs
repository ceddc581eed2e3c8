//! Several ways at once: they add up, whatever their rates, delays and losses, and one that ends costs
//! a moment. The bound is the sum of (1 - p) C in UDP payload; one way alone reaches 0.943 of it, which
//! is what headers leave.

use std::time::Duration;

use bats_netem::LinkConfig;
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

/// A message of 512 bytes each 10 ms: none of them takes the detour of 100 ms.
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
                        let stamp = u64::from_le_bytes(got[..8].try_into().expect("8 bytes"));
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

/// Bytes of a message of which a symbol holds one, so that a stop shows when it ends.
const SMALL: usize = 1_200;

/// Sends so many messages over links side by side, of which one dies at a time, before the session begins
/// if that is zero: when the session was there, and the longest time without progress from the death on.
/// All arrive, in order.
fn with_a_death(
    links: &[LinkConfig],
    dead: usize,
    at: Duration,
    count: u64,
) -> (Duration, Duration) {
    let mut line = Line::mesh(
        LineConfig {
            links: links.to_vec(),
            relay: RelayConfig::new(node_id(0)),
            transport: TransportConfig::default(),
            seed: 1,
        },
        vec![(0, 1); links.len()],
    );
    let mut death = Some(line.now() + at);
    let kill = |line: &mut Line| {
        line.set_link(dead, &LinkConfig { black_hole: true, ..links[dead].clone() });
    };
    if at.is_zero() {
        kill(&mut line);
        death = None;
    }
    let start = line.now();
    let client = line.connect_ends();
    let (mut sent, mut got) = (0, 0);
    let (mut connected, mut last, mut longest) = (None, start + at, Duration::ZERO);
    let end = start + Duration::from_secs(60);
    while got < count && line.now() < end {
        line.step(death.unwrap_or(end));
        let now = line.now();
        if death.is_some_and(|death| death <= now) {
            death = None;
            kill(&mut line);
        }
        for (node, handle, event) in core::mem::take(&mut line.events) {
            match event {
                Event::Connected | Event::Writable if (node, handle) == (0, client) => {
                    connected.get_or_insert(now - start);
                    while sent < count {
                        let mut message = vec![0; SMALL];
                        message[..8].copy_from_slice(&sent.to_le_bytes());
                        if line.node(0).send(now, client, message.into()).is_err() {
                            break;
                        }
                        sent += 1;
                    }
                    line.touch(0);
                }
                Event::Readable if node == 1 => {
                    while let Some(message) = line.node(1).recv(now, handle) {
                        let number = u64::from_le_bytes(message[..8].try_into().expect("8 bytes"));
                        assert_eq!((number, message.len()), (got, SMALL), "in order, all of them");
                        got += 1;
                        if now > last && !at.is_zero() {
                            longest = longest.max(now - last);
                            last = now;
                        }
                    }
                    line.touch(1);
                }
                Event::Closed(reason) if (node, handle) == (0, client) => panic!("{reason:?}"),
                _ => {}
            }
        }
    }
    assert_eq!(got, count, "0 lost bytes");
    (connected.expect("connected"), longest)
}

/// Row 19 of the goals: a round trip of the survivor. The stop begins when the last packet arrives, half a
/// round trip of the dead way after its death; the sender can know of it half a round trip later, and
/// some time of silence; and what it sends again takes half a round trip of the survivor: one round
/// trip and 10 ms of two ways alike.
#[test]
fn the_death_of_one_of_two_stops_for_some_round_trips_and_loses_nothing() {
    let (fast, slow) = (link(100.0, 10, 0.0), link(10.0, 100, 0.0));
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for (name, links, dead, count, most) in [
        ("two alike", two.to_vec(), 0, 10_000, 1.5),
        ("two alike, the other", two.to_vec(), 1, 10_000, 1.5),
        ("the fast one", vec![fast.clone(), slow.clone()], 0, 8_000, 1.0),
        ("the slow one", vec![fast, slow], 1, 14_000, 4.5),
    ] {
        let survivor = links[1 - dead].delay * 2;
        let (_, stall) = with_a_death(&links, dead, Duration::from_millis(700), count);
        let trips = stall.as_secs_f64() / survivor.as_secs_f64();
        println!("{name}: {stall:?} without progress, {trips:.2} round trips of the survivor");
        assert!(stall > Duration::from_millis(20), "{name}: it was over before");
        assert!(trips <= most, "{name}: {trips} round trips of the survivor");
    }
}

/// The way over which the first packets go has died and nobody knows it; or the other one, and the session's
/// first symbols are set aside for it.
#[test]
fn a_session_comes_about_whichever_way_is_dead() {
    let two = [link(50.0, 20, 0.0), link(50.0, 20, 0.0)];
    for dead in [0, 1] {
        let (connected, _) = with_a_death(&two, dead, Duration::ZERO, 1_000);
        println!("{dead} dead: connected after {connected:?}");
        assert!(connected <= Duration::from_millis(500), "{dead} dead: {connected:?}");
    }
}
