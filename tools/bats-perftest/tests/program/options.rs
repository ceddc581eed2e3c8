//! Options that change how a test runs.

use crate::support::{Program, domain, program, run, summary};

#[test]
fn affinity_applies_to_all_threads() {
    let domain = domain();
    let allowed = |words: &str| -> Vec<String> {
        let program = Program::start(&domain, words);
        program.wait_for_errors("Waiting to discover");
        // The I/O thread and the accepting thread have started.
        let tasks = std::fs::read_dir(format!("/proc/{}/task", program.id())).unwrap();
        let status =
            |task: std::path::PathBuf| std::fs::read_to_string(task.join("status")).unwrap();
        let line = |status: String| {
            let line = status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        tasks.map(|task| line(status(task.unwrap().path()))).collect()
    };
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let first: String = own.chars().take_while(char::is_ascii_digit).collect();
    let pinned = allowed(&format!("-sub -threadCPUAffinity {first}"));
    assert!(pinned.len() >= 3, "{pinned:?}");
    assert!(pinned.iter().all(|list| *list == first), "{pinned:?}");
    let free = allowed("-sub -sidMultiSubTest 1");
    assert!(free.iter().all(|list| list == own), "{free:?}");
    let ended = Program::start(&domain, "-sub -threadCPUAffinity 4000").end();
    assert_eq!(ended.code, Some(255));
    assert!(ended.errors.contains("CPU"), "{ended:?}");
}

#[test]
fn rates_limit_the_samples_of_a_time() {
    for publisher in ["-pubRate 500:sleep", "-pubRatebps 400000:spin", "-sleep 2"] {
        let words = format!("-executionTime 1 {publisher}");
        let (ended, subscriber) = run("-noPrint -dataLen 100", &words, "-noOutputHeaders");
        let figures = summary(&subscriber.output);
        // A busy machine sends later ones of them after the end. Missed ones are made up for with a rate.
        let least = if publisher.contains("-pubRate") { 250.0 } else { 1.0 };
        assert!((least..=501.0).contains(&figures[1]), "{figures:?}");
        assert_eq!(subscriber.output.lines().count(), 1, "no header: {}", subscriber.output);
        assert!(ended.errors.contains("due to timer"), "{}", ended.errors);
    }
}

#[test]
fn the_send_queue_bounds_the_messages_that_are_not_taken() {
    for (option, limit) in [("-cacheStats", 7), ("-writerStats", 50)] {
        let publisher = format!("-numIter 20000 -batchSize 0 {option} -sendQueueSize {limit}");
        let (publisher, _) = run("-noPrint", &publisher, "");
        let line = publisher.errors.lines().rfind(|line| line.starts_with("Send queue:")).unwrap();
        let most = line.split(", ").find_map(|part| part.strip_suffix(" at most")).unwrap();
        assert!((1..=limit).contains(&most.parse().unwrap()), "{line}");
        let pings = format!("Sending {limit} initialization pings");
        assert!(publisher.errors.contains(&pings), "{}", publisher.errors);
    }
}

#[test]
fn a_ping_pong_has_one_message_in_flight() {
    let publisher = "-latencyTest -numIter 300 -cacheStats -sendQueueSize 4";
    let (publisher, subscriber) = run("-noPrint", publisher, "");
    let line = publisher.errors.lines().rfind(|line| line.starts_with("Send queue:")).unwrap();
    // Pings, samples and the end mark, which has no echo.
    assert!(line.contains("305 messages sent, 1 not taken"), "{line}");
    assert_eq!(summary(&subscriber.output)[1], 300.0);
}

#[test]
fn initial_pings_are_not_counted() {
    let (publisher, subscriber) = run("-noPrint", "-numIter 100 -initialBurstSize 321", "");
    assert!(publisher.errors.contains("Sending 321 initialization pings"), "{publisher:?}");
    assert_eq!(summary(&subscriber.output)[1], 100.0);
}

#[test]
fn one_instance_can_be_written_and_filtered() {
    let both = "-noPrint -keyed -instances 8";
    for (filter, expected) in [("-cft 3", 500.0), ("-cft 4:7", 0.0)] {
        let (_, subscriber) = run(both, "-numIter 500 -writeInstance 3", filter);
        assert_eq!(summary(&subscriber.output)[1], expected, "{filter}");
    }
}

#[test]
fn receivers_can_poll_busily_and_in_groups() {
    for both in [
        "-busyPoll 50",
        "-busyPoll 50 -bestEffort -goal latency",
        "-busyPoll 50 -rawTransport -peer 127.0.0.1",
        "-noBlockingSockets -rawTransport -peer 127.0.0.1",
        "-useReadThread -waitsetDelayUsec 10 -waitsetEventCount 2",
    ] {
        let both = format!("-noPrint {both}");
        let (publisher, subscriber) = run(&both, "-latencyTest -numIter 300", "");
        assert_eq!(summary(&publisher.output).len(), 10, "{both}: {publisher:?}");
        let figures = summary(&subscriber.output);
        assert_eq!(figures[1] + figures[4], 300.0, "{both}: {subscriber:?}");
    }
}

#[test]
fn a_group_waits_for_its_size_or_its_delay() {
    for both in ["", "-rawTransport -peer 127.0.0.1"] {
        let latencies = |subscriber: &str| {
            let both = format!("-noPrint {both}");
            let (publisher, _) = run(&both, "-latencyTest -numIter 8", subscriber);
            summary(&publisher.output)
        };
        // No further sample comes before the echo, so it waits for the delay of 0.1 s, of which the latency is
        // half. (Over raw UDP a keep-alive may have begun some of the groups.)
        let figures = latencies("-useReadThread -waitsetDelayUsec 100000 -waitsetEventCount 1000");
        assert!(figures[5] >= 50_000.0, "the median: {figures:?}");
        // A group of one is complete at once, whatever its delay.
        let figures = latencies("-useReadThread -waitsetDelayUsec 1000000 -waitsetEventCount 1");
        assert!(figures[5] < 50_000.0, "the median: {figures:?}");
    }
}

#[test]
fn the_low_resolution_clock_averages_over_the_whole_time() {
    let publisher = "-latencyTest -numIter 300 -lowResolutionClock -nanosecondResolution";
    let (publisher, _) = run("-noPrint", publisher, "");
    let figures = summary(&publisher.output);
    // Half the time per sample includes what passes between an echo and the next ping.
    assert!(figures[1] >= figures[3], "{figures:?}");
    assert!(
        publisher.output.lines().next_back().unwrap().matches('.').count() == 9,
        "{publisher:?}"
    );
}

#[test]
fn interfaces_are_chosen_by_name_and_address() {
    for (option, value) in [("-nic", "lo"), ("-allowInterfaces", "127.0.0.1")] {
        let domain = domain();
        let start = |role: &str| {
            let words = ["-domain", &domain, option, value, "-noPrint"];
            program().args(words).args(role.split_whitespace()).output().unwrap()
        };
        let (subscriber, publisher) = std::thread::scope(|scope| {
            let subscriber = scope.spawn(|| start("-sub"));
            let publisher = start("-pub -numIter 100 -peer 127.0.0.1");
            (subscriber.join().unwrap(), publisher)
        });
        assert!(publisher.status.success() && subscriber.status.success(), "{publisher:?}");
        assert_eq!(summary(&String::from_utf8_lossy(&subscriber.stdout))[1], 100.0);
    }
}

#[test]
fn verbosity_selects_the_log_and_version_prints_it() {
    let log = |level: u32| {
        let both = format!("-noPrint -verbosity {level}");
        run(&both, "-numIter 10", "").0.errors
    };
    let has_log = |errors: &str| errors.contains("DEBUG") || errors.contains("INFO");
    assert!(has_log(&log(3)));
    assert!(!has_log(&log(0)));
    let version = Program::start(&domain(), "-version").success();
    assert_eq!(version.output, format!("bats_perftest {}\n", env!("CARGO_PKG_VERSION")));
}
