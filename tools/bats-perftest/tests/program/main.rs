//! The program as users run it: processes on loopback.

mod dying;
mod ends;
mod hostile;
mod options;
mod samples;
mod support;
mod sweeping;
mod trust;

use support::{Program, Scratch, domain, run, summary};

#[test]
fn tables_go_to_standard_output_and_phases_to_standard_error() {
    let (publisher, subscriber) = run("-dataLen 100", "-numIter 100000 -latencyCount 100", "");
    let phases = [
        "Mode: THROUGHPUT TEST",
        "Perftest Configuration:",
        "Batching: 8192 Bytes",
        "Waiting to discover 1 subscribers ...",
        "Waiting for subscribers announcement ...",
        "Sending 4050 initialization pings ...",
        "Sending data ...",
        "Finishing test...",
        "Test ended.",
    ];
    let mut rest = publisher.errors.as_str();
    for phase in phases {
        let at = rest.find(phase).unwrap_or_else(|| panic!("{phase}: {}", publisher.errors));
        rest = &rest[at..];
    }
    for phase in ["Waiting to discover 1 publishers ...", "Waiting for data ...", "Test ended."] {
        assert!(subscriber.errors.contains(phase), "{phase}: {}", subscriber.errors);
    }
    let output = &publisher.output;
    assert!(
        output.starts_with("\nIntervals One-Way Latency for 100 Bytes:\nLength (Bytes), "),
        "{output}"
    );
    assert!(output.contains("\n\nOne-way Latency Summary:\nSample Size (Bytes), Ave"), "{output}");
    // 100,000 samples are 1235 batches with 13 pings, of which the first only starts the table.
    let rows = output.lines().filter(|line| line.starts_with("           100,")).count();
    assert_eq!(rows, 12, "{output}");
    let figures = summary(&subscriber.output);
    assert_eq!((figures[0], figures[1], figures[4]), (100.0, 100_000.0, 0.0));
    assert!(subscriber.output.contains("\nThroughput Summary:\n"), "{}", subscriber.output);
}

#[test]
fn latency_tests_work_over_every_transport() {
    for transport in ["brtp", "btp", "brctp", "transparent", "tcp", "quic"] {
        let both = format!("-transport {transport} -noPrint");
        let (publisher, subscriber) = run(&both, "-latencyTest -numIter 200 -dataLen 500", "");
        let lines: Vec<&str> = publisher.output.lines().collect();
        assert_eq!(lines.len(), 2, "{transport}: {}", publisher.output);
        let figures = summary(&publisher.output);
        assert_eq!((figures.len(), figures[0]), (10, 500.0), "{transport}");
        assert!(figures[3] <= figures[5] && figures[5] <= figures[9], "{transport} {figures:?}");
        assert!(publisher.errors.contains("Mode: LATENCY TEST"), "{}", publisher.errors);
        assert_eq!(summary(&subscriber.output)[1], 200.0, "{transport}");
    }
    let both = "-rawTransport -peer 127.0.0.1 -noPrint";
    let (publisher, _) = run(both, "-latencyTest -numIter 200", "");
    assert_eq!(summary(&publisher.output).len(), 10);
}

#[test]
fn several_publishers_and_subscribers_find_each_other() {
    let domain = domain();
    let start = |words: &str| Program::start(&domain, &format!("-noPrint {words}"));
    let subscribers: Vec<_> =
        (0..2).map(|id| start(&format!("-sub -numPublishers 2 -sid {id}"))).collect();
    let publishers: Vec<_> = (0..2)
        .map(|id| start(&format!("-pub -pid {id} -numSub 2 -numIter 5000 -latencyCount 5")))
        .collect();
    let publishers: Vec<_> = publishers.into_iter().map(Program::success).collect();
    assert_eq!(summary(&publishers[0].output).len(), 10, "{:?}", publishers[0]);
    // Only publisher 0 measures the latency.
    assert_eq!(publishers[1].output, "");
    for subscriber in subscribers {
        let figures = summary(&subscriber.success().output);
        assert_eq!((figures[1], figures[4]), (10_000.0, 0.0));
    }
}

#[test]
fn peers_are_found_by_address_and_raw_transport_by_group() {
    for (both, publisher, subscriber) in [
        ("", "-peer 127.0.0.1", ""),
        ("", "", "-peer 127.0.0.1"),
        ("", "-peer 127.0.0.1:2", "-sid 2"),
        ("-raw -peer 127.0.0.1", "", ""),
        ("-raw -multicast", "", ""),
        ("-raw -multicastAddr 239.1.2.3 -useReadThread", "-batchSize 1000", ""),
        ("-bestEffort", "", "-useReadThread -waitsetEventCount 3"),
    ] {
        let publisher = format!("-numIter 3000 -pubRate 30000:sleep {publisher}");
        let (_, subscriber) = run(&format!("-noPrint {both}"), &publisher, subscriber);
        let figures = summary(&subscriber.output);
        assert_eq!(figures[1] + figures[4], 3_000.0, "{both}: {subscriber:?}");
    }
}

#[test]
fn domains_keep_tests_apart() {
    let (one, other) = (domain(), domain());
    let bystander = Program::start(&other, "-sub -noPrint");
    let subscriber = Program::start(&one, "-sub -noPrint");
    Program::start(&one, "-pub -noPrint -numIter 100").success();
    assert_eq!(summary(&subscriber.success().output)[1], 100.0);
    Program::start(&other, "-pub -noPrint -numIter 50").success();
    assert_eq!(summary(&bystander.success().output)[1], 50.0);
}

#[test]
fn keys_files_and_json() {
    let scratch = Scratch::new("files");
    std::fs::write(scratch.path("data"), "payload").unwrap();
    let (latencies, tables) = (scratch.path("latencies"), scratch.path("tables"));
    let publisher = format!(
        "-numIter 1000 -latencyCount 10 -batchSize 0 -loadDataFromFile {} -latencyFile {latencies} \
         -outputFile {tables} -showSerializationTime -cacheStats",
        scratch.path("data")
    );
    let both = "-keyed -instances 10 -outputFormat json -cpu";
    let (publisher, subscriber) = run(both, &publisher, "-cft 3:4");
    assert_eq!(publisher.output, "");
    let schema = include_str!("../../schema/perftest.schema.json");
    let schema = jsonschema::validator_for(&serde_json::from_str(schema).unwrap()).unwrap();
    let document = |text: &str| {
        let document: serde_json::Value = serde_json::from_str(text).unwrap();
        assert!(schema.is_valid(&document), "{text}");
        document
    };
    let table = document(&std::fs::read_to_string(&tables).unwrap());
    let test = &table["perftest"][0];
    assert_eq!(test["summary"]["latency_count"], 99);
    assert!(test["summary"]["serialize"].is_number() && test["summary"]["CPU"].is_number());
    assert_eq!(test["intervals"].as_array().unwrap().len(), 99);
    let raw = std::fs::read_to_string(&latencies).unwrap();
    assert_eq!(raw.lines().count(), 100);
    assert!(raw.starts_with("Sample Number, Value\n1, "), "{raw}");
    let counted = document(&subscriber.output);
    // Two of the ten keys.
    assert_eq!(counted["perftest"][0]["summary"]["packets"], 200);
    assert_eq!(counted["perftest"][0]["summary"]["lost"], 0);
    assert!(publisher.errors.contains(" messages sent, "), "{}", publisher.errors);
}
