//! What is sent, and how it is measured and counted.

use std::net::UdpSocket;
use std::time::Duration;

use crate::support::{
    Program, Scratch, announcement, domain, end_mark, hello, message, port, program, run, summary,
};

/// The latencies of a `-latencyFile` in microseconds.
fn latencies(path: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let cells = text.lines().skip(1).map(|line| line.split_once(", ").unwrap());
    let numbered: Vec<(usize, f64)> =
        cells.map(|(n, us)| (n.parse().unwrap(), us.parse().unwrap())).collect();
    assert!(numbered.iter().zip(1..).all(|((n, _), expected)| *n == expected), "{text}");
    numbered.into_iter().map(|(_, us)| us).collect()
}

#[test]
fn latencies_with_a_rate_count_from_the_due_time() {
    let scratch = Scratch::new("due");
    for stops_publisher in [true, false] {
        let (file, domain) = (scratch.path("latencies"), domain());
        let subscriber = Program::start(&domain, "-sub");
        let words = format!(
            "-pub -noPrint -pubRate 100:sleep -numIter 400 -latencyCount 1 -sendQueueSize 1 \
             -latencyFile {file}"
        );
        let publisher = Program::start(&domain, &words);
        subscriber.wait_for("Interval Throughput");
        std::thread::sleep(Duration::from_millis(700));
        let stopped = if stops_publisher { &publisher } else { &subscriber };
        stopped.signal("STOP");
        std::thread::sleep(Duration::from_secs(1));
        stopped.signal("CONT");
        publisher.success();
        subscriber.success();
        let latencies = latencies(&file);
        // The samples that were due in this second waited for its rest, 10 ms apart.
        let late = latencies.iter().filter(|&&us| us > 300_000.0).count();
        assert!(late >= 50, "{late}: {latencies:?}");
        // The first one that could not be sent has waited for the whole second. Of the one before it, if
        // it was in transit, half of the round trip counts.
        let most = latencies.iter().fold(0.0, |most: f64, &us| most.max(us));
        assert!(most >= 900_000.0, "{most}");
        let at = latencies.iter().position(|&us| us == most).unwrap();
        let halves = latencies[..at].iter().filter(|&&us| us > 0.35 * most).count();
        assert!(halves <= 1, "{halves} {:?}", &latencies[at.saturating_sub(5)..=at]);
    }
}

#[test]
fn the_file_of_latencies_agrees_with_the_summary() {
    let scratch = Scratch::new("latencies");
    let file = scratch.path("latencies");
    let words = format!("-latencyTest -numIter 501 -nanosecondResolution -latencyFile {file}");
    let (publisher, _) = run("-noPrint", &words, "");
    let figures = summary(&publisher.output);
    let mut latencies = latencies(&file);
    assert_eq!(latencies.len(), 500);
    let mean = latencies.iter().sum::<f64>() / 500.0;
    latencies.sort_by(f64::total_cmp);
    let near = |figure: f64, exact: f64| (figure - exact).abs() <= 0.002 * exact + 0.002;
    for (figure, exact) in [
        (figures[1], mean),
        (figures[3], latencies[0]),
        (figures[4], latencies[499]),
        (figures[5], latencies[250]),
        (figures[6], latencies[450]),
        (figures[7], latencies[495]),
    ] {
        assert!(near(figure, exact), "{figure} {exact}: {figures:?}");
    }
}

#[test]
fn samples_of_all_sizes_arrive() {
    // The smallest one, the largest of the original's sweep, one above a batch, and the largest.
    for (length, count) in [(28, 5_000), (63_000, 300), (8_193, 1_000), (64 << 20, 3)] {
        let both = format!("-noPrint -dataLen {length}");
        let words = format!("-numIter {count} -latencyCount {} -sendQueueSize 4", count / 3);
        let (publisher, subscriber) = run(&both, &words, "");
        let figures = summary(&subscriber.output);
        let expected = (f64::from(length), f64::from(count), 0.0);
        assert_eq!((figures[0], figures[1], figures[4]), expected, "{subscriber:?}");
        assert_eq!(summary(&publisher.output)[0], f64::from(length));
        assert_eq!(publisher.errors.contains("Disabled"), length > 4_096, "{publisher:?}");
    }
}

/// A publisher over raw UDP that loses, reorders and repeats samples.
#[test]
fn losses_are_exact_under_reordering_and_after_the_end_mark() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint -raw -peer 127.0.0.1");
    subscriber.wait_for_errors("Waiting to discover");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(("127.0.0.1", port(&domain, 12))).unwrap();
    socket.send(&hello(&domain, 0)).unwrap();
    let sample = |sequence: u32| message([0, 0, sequence, 0, 0, -1i32 as u32], &[1; 72]);
    // Of 1000 samples 0, 1 and every tenth one do not arrive; pairs are exchanged, and each third comes twice.
    let is_lost = |n: u32| n < 2 || n.is_multiple_of(10);
    let late = 901..1_000u32;
    for n in (0..901u32).map(|n| n ^ 1).filter(|n| !is_lost(*n)) {
        for _ in 0..1 + u32::from(n % 3 == 0) {
            socket.send(&sample(n)).unwrap();
        }
        if n % 32 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // The end mark overtakes the last hundred.
    socket.send(&end_mark(1_000)).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    late.filter(|n| !is_lost(*n)).for_each(|n| assert!(socket.send(&sample(n)).is_ok()));
    let figures = summary(&subscriber.success().output);
    let lost = f64::from((0..1_000u32).filter(|n| is_lost(*n)).count() as u32);
    assert_eq!((figures[1], figures[4]), (1_000.0 - lost, lost), "{figures:?}");
    assert!((figures[5] - lost / 10.0).abs() < 0.01, "{figures:?}");
}

/// Passes packets between 127.0.0.2 and 127.0.0.1; loses and delays some.
fn lossy_path(domain: &str) {
    let listening = UdpSocket::bind(("127.0.0.2", port(domain, 12))).unwrap();
    let to_subscriber = UdpSocket::bind("127.0.0.1:0").unwrap();
    to_subscriber.connect(("127.0.0.1", port(domain, 12))).unwrap();
    let (back, forward) = (listening.try_clone().unwrap(), to_subscriber.try_clone().unwrap());
    let (sender, publisher) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let (mut buffer, mut state, mut held) = ([0; 2_000], 1u64, None::<Vec<u8>>);
        while let Ok((length, from)) = listening.recv_from(&mut buffer) {
            let _ = sender.send(from);
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            match (state >> 33) % 20 {
                0 => {}
                1 => held = Some(buffer[..length].to_vec()),
                _ => {
                    let _ = forward.send(&buffer[..length]);
                    held.take().into_iter().for_each(|late| drop(forward.send(&late)));
                }
            }
        }
    });
    std::thread::spawn(move || {
        let mut buffer = [0; 2_000];
        let mut to = publisher.recv().unwrap();
        while let Ok(length) = to_subscriber.recv(&mut buffer) {
            to = publisher.try_iter().last().unwrap_or(to);
            let _ = back.send_to(&buffer[..length], to);
        }
    });
}

#[test]
fn a_subscriber_counts_by_the_mode_of_its_publisher() {
    // Its own default is reliable.
    for (transport, is_reliable) in [("brtp", true), ("btp", false)] {
        let domain = domain();
        lossy_path(&domain);
        let subscriber = Program::start(&domain, "-sub -noPrint");
        let words = format!(
            "-pub -noPrint -transport {transport} -peer 127.0.0.2 -pubRate 2000:sleep -numIter 4000"
        );
        let publisher = Program::start(&domain, &words).end();
        assert_eq!(publisher.code, Some(0), "{publisher:?}");
        let subscriber = subscriber.success();
        assert!(subscriber.errors.contains("Reliability: as the publisher"), "{subscriber:?}");
        let figures = summary(&subscriber.output);
        assert_eq!(figures[1] + figures[4], 4_000.0, "{transport}: {figures:?}");
        assert!(!is_reliable || figures[4] == 0.0, "{figures:?}");
        assert!(figures[1] > 3_600.0, "repairs replace most losses: {figures:?}");
    }
}

#[test]
fn raw_samples_reach_two_subscribers_of_several_peers() {
    let domain = domain();
    // Ids 0 and 1 of each address are tried; no program has those of the second one.
    let both = "-noPrint -raw -peer 127.0.0.1 -peer 127.0.0.3";
    let subscribers = [0, 1].map(|id| Program::start(&domain, &format!("-sub {both} -sid {id}")));
    let words =
        format!("-pub {both} -numSubscribers 2 -numIter 2000 -pubRate 20000:sleep -cacheStats");
    let publisher = Program::start(&domain, &words).success();
    assert_eq!(summary(&publisher.output).len(), 10);
    for subscriber in subscribers {
        let figures = summary(&subscriber.success().output);
        assert_eq!(figures[1] + figures[4], 2_000.0, "{figures:?}");
        assert!(figures[1] > 1_000.0, "{figures:?}");
    }
}

/// A subscriber over raw UDP that looks at the payloads.
#[test]
fn payloads_are_those_of_the_file() {
    let (scratch, domain) = (Scratch::new("payload"), domain());
    let data: Vec<u8> = (0..1_000u32).map(|n| (n * 7 % 251) as u8).collect();
    std::fs::write(scratch.path("data"), &data).unwrap();
    let socket = UdpSocket::bind(("127.0.0.1", port(&domain, 12))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let words = format!(
        "-pub -noPrint -raw -peer 127.0.0.1 -numIter 50 -dataLen 100 -loadDataFromFile {}",
        scratch.path("data")
    );
    let publisher = Program::start(&domain, &words);
    let (mut buffer, mut samples) = ([0; 2_000], 0);
    loop {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        let target = i32::from_le_bytes(buffer[20..24].try_into().unwrap());
        match target {
            -2 => {
                let answer = announcement(&domain, 0, 1, port(&domain, 12));
                socket.send_to(&answer, from).unwrap();
            }
            -6 => {
                let goodbye = message([0, 0, 0, 0, 0, -7i32 as u32], &[]);
                socket.send_to(&goodbye, from).unwrap();
                break;
            }
            -1.. => {
                // The initialization ping took the first piece.
                samples += 1;
                let expected = data.iter().cycle().skip(72 * samples).take(72);
                assert!(buffer[28..length].iter().eq(expected), "sample {samples}");
            }
            _ => {}
        }
    }
    assert_eq!(samples, 50);
    publisher.success();
}

#[test]
fn only_regular_files_of_a_bounded_size_are_loaded() {
    let scratch = Scratch::new("load");
    let pipe = scratch.path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let large = scratch.path("large");
    std::fs::File::create(&large).unwrap().set_len((256 << 20) + 1).unwrap();
    for (file, problem) in [
        ("/dev/zero", "no regular file"),
        (&pipe, "no regular file"),
        (&scratch.path(""), "no regular file"),
        (&large, "too large"),
    ] {
        let words = format!("-pub -loadDataFromFile {file}");
        let ended = Program::start(&domain(), &words).end_within(Duration::from_secs(20));
        assert_eq!(ended.code, Some(255), "{file}: {ended:?}");
        assert!(ended.errors.contains(problem), "{file}: {ended:?}");
    }
}

#[test]
fn files_that_cannot_be_written_are_errors() {
    let (publisher, scratch) = ("-numIter 3000 -latencyCount 1 -batchSize 0", Scratch::new("full"));
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -noPrint");
    let words = format!("-pub -noPrint {publisher} -latencyFile /dev/full");
    let ended = Program::start(&domain, &words).end();
    assert_eq!(ended.code, Some(255), "{ended:?}");
    assert!(ended.errors.contains("error - cannot write /dev/full"), "{ended:?}");
    subscriber.end();
    // A second JSON document in a file would be invalid.
    let tables = scratch.path("tables.json");
    std::fs::write(&tables, "{\"perftest\":[]}\n").unwrap();
    let output =
        program().args(["-outputFormat", "json", "-outputFile", &tables]).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert!(String::from_utf8_lossy(&output.stderr).contains("would make its JSON invalid"));
    assert_eq!(std::fs::read_to_string(&tables).unwrap(), "{\"perftest\":[]}\n");
}

#[test]
fn only_publisher_0_prints_tables() {
    let domain = domain();
    let subscriber = Program::start(&domain, "-sub -numPublishers 2");
    let publishers = [0, 1].map(|id| {
        Program::start(&domain, &format!("-pub -pid {id} -numIter 20000 -latencyCount 10"))
    });
    let [first, second] = publishers.map(Program::success);
    assert!(first.output.contains("Intervals One-Way Latency"), "{first:?}");
    assert_eq!(second.output, "", "{second:?}");
    subscriber.success();
}

#[test]
fn long_tests_show_that_they_go_on() {
    // Every 10 s if standard error is no terminal. Without echoes the publisher has no rows.
    let words = "-executionTime 12 -pubRate 500:sleep -latencyCount 100000";
    let (publisher, subscriber) = run("", words, "-noPrint");
    for ended in [publisher, subscriber] {
        let line = ended.errors.lines().find(|line| line.contains(" s: ")).unwrap();
        let (seconds, samples) = line.split_once(" s: ").unwrap();
        assert!((10..=12).contains(&seconds.parse::<u32>().unwrap()), "{line}");
        assert!(samples.trim_end_matches(" samples").parse::<u32>().unwrap() >= 1_000, "{line}");
    }
}

#[test]
fn publishers_that_do_not_fit_are_refused_with_the_reason() {
    let raw = "-raw -peer 127.0.0.1";
    for (both, first, second, reason) in [
        ("", "-pub -noPrint -pubRate 100:sleep", "-pub", "another publisher with id 0"),
        ("", "", "-pub -keyed", "the publisher has -keyed"),
        ("", "", "-pub -keyed -instances 4", "the publisher has -keyed"),
        ("-keyed", "", "-pub -instances 4", "the subscriber has -instances 1"),
        (raw, "-pub -noPrint -pubRate 100:sleep", "-pub", "another publisher with id 0"),
        (raw, "", "-pub -keyed", "the publisher has -keyed"),
    ] {
        let domain = domain();
        let count = if first.is_empty() { "" } else { "-numPublishers 2" };
        let subscriber = Program::start(&domain, &format!("-sub {both} {count}"));
        subscriber.wait_for_errors("Waiting to discover");
        let first = (!first.is_empty()).then(|| {
            let first = Program::start(&domain, &format!("{first} {both}"));
            subscriber.wait_for("Interval Throughput");
            first
        });
        let refused = Program::start(&domain, &format!("{second} {both} -peer 127.0.0.1"));
        refused.wait_for_errors(reason);
        subscriber.wait_for_errors(reason);
        drop(first);
    }
}
