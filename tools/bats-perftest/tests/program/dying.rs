//! Peers that die or stop, at any time of a test, and signals at any time.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::support::{Program, domain, port, run, summary};

/// Within this time of the death of its peer a program ends: a peer counts as dead after 2.5 s, looked at
/// every 0.5 s; the rest is for a busy machine.
const NOTICED: Duration = Duration::from_secs(3 + 5);

/// Asserts that a program ends with an error in time.
#[track_caller]
fn notices(survivor: Program) -> crate::support::Ended {
    let ended = survivor.end_within(NOTICED);
    assert_eq!(ended.code, Some(255), "{ended:?}");
    assert!(ended.errors.contains("error - ") && ended.output.contains("Sample Size"), "{ended:?}");
    ended
}

#[test]
fn a_latency_test_notices_a_dead_subscriber_in_a_pause() {
    for both in ["", "-transport tcp", "-bestEffort", "-raw -peer 127.0.0.1"] {
        let domain = domain();
        let mut subscriber = Program::start(&domain, &format!("-sub {both}"));
        let pauses = format!("-pub {both} -noPrint -latencyTest -sleep 60000");
        let publisher = Program::start(&domain, &pauses);
        subscriber.wait_for("Interval Throughput");
        subscriber.kill();
        notices(publisher);
    }
}

#[test]
fn a_raw_latency_test_with_long_pauses_goes_on() {
    // Longer than a peer may be silent.
    let both = "-noPrint -raw -peer 127.0.0.1";
    let (publisher, subscriber) = run(both, "-latencyTest -sleep 3000 -numIter 3", "");
    assert_eq!(summary(&publisher.output).len(), 10);
    assert_eq!(summary(&subscriber.output)[1], 3.0);
}

#[test]
fn a_stopped_peer_ends_the_test() {
    for both in ["", "-transport tcp", "-transport quic", "-bestEffort", "-raw -peer 127.0.0.1"] {
        for stops_publisher in [false, true] {
            let domain = domain();
            let subscriber = Program::start(&domain, &format!("-sub {both}"));
            let publisher = format!("-pub {both} -noPrint -exec 100 -pubRate 1000:sleep");
            let publisher = Program::start(&domain, &publisher);
            subscriber.wait_for("Interval Throughput");
            let (stopped, survivor) = match stops_publisher {
                true => (publisher, subscriber),
                false => (subscriber, publisher),
            };
            stopped.signal("STOP");
            notices(survivor);
        }
    }
}

#[test]
fn a_subscriber_that_hangs_after_the_samples_ends_the_test() {
    // The publisher waits for the confirmation of its end mark, and nothing else.
    for (both, queue) in
        [("", "-sendQueueSize 5000"), ("-bestEffort", ""), ("-raw -peer 127.0.0.1", "")]
    {
        let domain = domain();
        let subscriber = Program::start(&domain, &format!("-sub {both}"));
        let words = format!("-pub {both} {queue} -noPrint -numIter 1300 -pubRate 1000:sleep");
        let publisher = Program::start(&domain, &words);
        subscriber.wait_for("Interval Throughput");
        std::thread::sleep(Duration::from_millis(900));
        subscriber.signal("STOP");
        notices(publisher);
    }
}

#[test]
fn the_cpu_time_is_reported_after_an_error() {
    for kills_publisher in [false, true] {
        let domain = domain();
        let mut subscriber = Program::start(&domain, "-sub -cpu");
        let mut publisher = Program::start(&domain, "-pub -cpu -noPrint -exec 100");
        subscriber.wait_for("Interval Throughput");
        // The summary has one more column with the CPU.
        let columns = if kills_publisher { 7 } else { 11 };
        let survivor = match kills_publisher {
            true => {
                publisher.kill();
                subscriber
            }
            false => {
                subscriber.kill();
                publisher
            }
        };
        let ended = notices(survivor);
        assert!(ended.output.lines().rev().nth(1).unwrap().contains("CPU (%)"), "{ended:?}");
        let figures = summary(&ended.output);
        assert_eq!(figures.len(), columns, "{ended:?}");
        assert!(figures[columns - 1] > 0.0, "{ended:?}");
    }
}

#[test]
fn one_of_two_subscribers_that_dies_ends_the_test() {
    let domain = domain();
    let subscribers = [0, 1].map(|id| Program::start(&domain, &format!("-sub -sid {id}")));
    let words = "-pub -noPrint -numSubscribers 2 -latencyTest -sleep 60000";
    let publisher = Program::start(&domain, words);
    let [first, mut second] = subscribers;
    for subscriber in [&first, &second] {
        subscriber.wait_for("Interval Throughput");
    }
    second.kill();
    let ended = notices(publisher);
    assert!(ended.errors.contains("subscriber 1"), "{ended:?}");
    assert_eq!(first.end().code, Some(255));
}

#[test]
fn a_subscriber_that_dies_before_the_others_came_is_replaced() {
    let domain = domain();
    let mut first = Program::start(&domain, "-sub -noPrint");
    let publisher = Program::start(&domain, "-pub -noPrint -numSubscribers 2 -numIter 100");
    first.wait_for_errors("Waiting for data");
    first.kill();
    let subscribers = [0, 1].map(|id| {
        publisher.wait_for_errors("subscriber 0 left");
        Program::start(&domain, &format!("-sub -noPrint -sid {id}"))
    });
    publisher.success();
    for subscriber in subscribers {
        assert_eq!(summary(&subscriber.success().output)[1], 100.0);
    }
}

#[test]
fn an_interrupt_ends_initialization_pings() {
    for both in ["", "-raw -peer 127.0.0.1"] {
        let domain = domain();
        let subscriber = Program::start(&domain, &format!("-sub -noPrint {both}"));
        let words = format!("-pub -noPrint {both} -initialBurstSize 100000000 -dataLen 1000");
        let publisher = Program::start(&domain, &words);
        publisher.wait_for_errors("initialization pings");
        std::thread::sleep(Duration::from_millis(500));
        publisher.signal("INT");
        let ended = publisher.end_within(NOTICED);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.errors.contains("Interrupted."), "{ended:?}");
        assert_eq!(summary(&ended.output).len(), 10, "{ended:?}");
        assert_eq!(summary(&subscriber.success().output)[1], 0.0);
    }
}

#[test]
fn an_interrupt_ends_the_wait_for_room_in_the_queue() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub");
    let publisher = Program::start(&domain, "-pub -noPrint -sendQueueSize 4");
    subscriber.wait_for("Interval Throughput");
    subscriber.signal("STOP");
    // Less than the time after which a subscriber is dead.
    std::thread::sleep(Duration::from_millis(500));
    publisher.signal("INT");
    let ended = notices(publisher);
    assert!(ended.errors.contains("Interrupted."), "{ended:?}");
}

#[test]
fn an_interrupt_ends_the_search_for_many_peers() {
    let domain = domain();
    // No program answers: one after the other they would take long.
    let silent: Vec<_> = (1..=100)
        .flat_map(|host| [12, 14].map(|offset| (host, port(&domain, offset))))
        .map(|(host, port)| UdpSocket::bind(SocketAddr::from(([127, 0, 1, host], port))).unwrap())
        .collect();
    let peers: Vec<String> = (1..=100).map(|host| format!("-peer 127.0.1.{host}")).collect();
    let words = format!("-pub -noPrint -numSubscribers 2 {}", peers.join(" "));
    let publisher = Program::start(&domain, &words);
    publisher.wait_for_errors("Waiting to discover");
    std::thread::sleep(Duration::from_millis(300));
    publisher.signal("INT");
    let ended = publisher.end_within(NOTICED);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    drop(silent);
}
