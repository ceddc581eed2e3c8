//! How tests end: errors, signals, and peers that die.

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{Program, domain, end_mark, hello, message, port, program, summary};

#[test]
fn errors_are_one_line_and_exit_code_255() {
    for (words, problem) in [
        ("-pub -dataLen 27", "out of range"),
        ("-nonsense", "unknown option '-nonsense'"),
        ("-pub -durability 1", "-durability is not supported"),
        ("-raw", "needs -peer"),
        ("-pub -outputFile /nowhere/file", "cannot write /nowhere/file"),
        ("-pub -loadDataFromFile /nowhere/file", "cannot read /nowhere/file"),
        ("sweep -transports pigeon", "pigeon is unknown"),
    ] {
        let output = program().args(words.split(' ')).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(255), "{words}: {errors}");
        assert!(errors.contains(problem), "{words}: {errors}");
        assert!(output.stdout.is_empty());
    }
    let help = program().arg("-h").output().unwrap();
    assert!(help.status.success() && !help.stdout.is_empty() && help.stderr.is_empty());
}

/// Waits until the subscriber has received samples.
fn let_run(subscriber: &Program) {
    subscriber.wait_for("Interval Throughput");
}

#[test]
fn a_peer_that_dies_ends_the_test_with_an_error() {
    for both in ["", "-raw -peer 127.0.0.1", "-transport tcp", "-transport quic", "-bestEffort"] {
        for kills_publisher in [false, true] {
            let domain = domain();
            let mut subscriber = Program::start(&domain, &format!("-sub {both}"));
            let mut publisher = Program::start(
                &domain,
                &format!("-pub {both} -noPrint -exec 100 -pubRate 1000:sleep"),
            );
            let_run(&subscriber);
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
            let ended = survivor.end();
            assert_eq!(ended.code, Some(255), "{both} {kills_publisher}: {ended:?}");
            assert!(ended.errors.contains("error - "), "{ended:?}");
            // The summary of what was measured is still printed.
            assert!(ended.output.contains("Sample Size"), "{ended:?}");
        }
    }
}

#[test]
fn an_interrupt_ends_both_sides_with_a_summary() {
    for words in ["", "-latencyTest"] {
        let domain = domain();
        let subscriber = Program::start(&domain, "-sub");
        let publisher =
            Program::start(&domain, &format!("-pub -noPrint -latencyCount 1 -sleep 1 {words}"));
        let_run(&subscriber);
        publisher.signal("INT");
        let publisher = publisher.success();
        assert!(publisher.errors.contains("Interrupted."), "{publisher:?}");
        assert_eq!(summary(&publisher.output).len(), 10, "{publisher:?}");
        let figures = summary(&subscriber.success().output);
        assert!(figures[1] > 0.0 && figures[4] == 0.0, "{figures:?}");
    }
}

#[test]
fn an_interrupted_subscriber_ends_the_publisher_with_an_error() {
    for both in ["", "-raw -peer 127.0.0.1"] {
        let domain = domain();
        let subscriber = Program::start(&domain, &format!("-sub {both}"));
        let publisher =
            Program::start(&domain, &format!("-pub -noPrint -pubRate 1000:sleep {both}"));
        let_run(&subscriber);
        subscriber.signal("TERM");
        let subscriber = subscriber.success();
        assert!(summary(&subscriber.output)[1] > 0.0, "{subscriber:?}");
        let publisher = publisher.end();
        assert_eq!(publisher.code, Some(255), "{publisher:?}");
    }
}

/// A goodbye can be lost: the publisher repeats its end mark.
#[test]
fn a_raw_subscriber_answers_end_marks_for_two_seconds() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint -raw -peer 127.0.0.1");
    subscriber.wait_for_errors("Waiting to discover");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port(&domain, 12))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let awaits = |target: i32| {
        let mut buffer = [0; 2_000];
        loop {
            let length = socket.recv(&mut buffer).unwrap();
            assert!(length >= 28);
            if i32::from_le_bytes(buffer[20..24].try_into().unwrap()) == target {
                return;
            }
        }
    };
    let (announced, goodbye) = (-3, -7);
    socket.send(&hello(&domain, 0)).unwrap();
    awaits(announced);
    socket.send(&message([0, 0, 0, 0, 0, -1i32 as u32], &[1; 72])).unwrap();
    socket.send(&end_mark(1)).unwrap();
    awaits(goodbye);
    // For longer than a second; a busy machine may take longer for a round.
    for _ in 0..11 {
        std::thread::sleep(Duration::from_millis(100));
        socket.send(&end_mark(1)).unwrap();
        awaits(goodbye);
    }
    let figures = summary(&subscriber.success().output);
    assert_eq!((figures[1], figures[4]), (1.0, 0.0), "{figures:?}");
}

#[test]
fn an_interrupt_before_the_test_ends_the_wait() {
    for role in ["-pub", "-sub", "-pub -raw -peer 127.0.0.1"] {
        let program = Program::start(&domain(), role);
        std::thread::sleep(Duration::from_millis(700));
        program.signal("INT");
        assert_eq!(program.end().code, Some(0), "{role}");
    }
}
