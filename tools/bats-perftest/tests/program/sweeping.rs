//! The sweep.

use crate::support::{Scratch, domains, program, summary};

#[test]
fn a_sweep_writes_tables_and_a_report() {
    let (scratch, domain) = (Scratch::new("sweep"), domains(8));
    let output = program()
        .args(["sweep", "-executionTime", "1", "-dataLens", "64,1024", "-transports", "brtp,raw"])
        .args(["-directory", &scratch.path("out"), "-domain", &domain, "-busyPoll", "20"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("[8/8] latency, raw, 1024 bytes"), "{errors}");
    for transport in ["brtp", "raw"] {
        for table in ["throughput_sub", "latency_pub"] {
            let name = format!("out/{transport}_{table}_results.csv");
            let table = std::fs::read_to_string(scratch.path(&name)).unwrap();
            // One header, and a row for each size.
            assert_eq!(table.lines().count(), 3, "{name}: {table}");
            assert_eq!(summary(&table)[0], 1_024.0, "{name}");
        }
    }
    let comparison = std::fs::read_to_string(scratch.path("out/comparison.csv")).unwrap();
    assert_eq!(comparison.lines().count(), 3, "{comparison}");
    assert!(comparison.lines().nth(1).unwrap().trim_start().starts_with("brtp,"), "{comparison}");
    let page = std::fs::read_to_string(scratch.path("out/report.html")).unwrap();
    for words in ["<td>brtp</td>", "<td>raw</td>", "RTI Connext (published)", "<svg"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn rounds_of_a_sweep_repeat_every_run() {
    let (scratch, domain) = (Scratch::new("rounds"), domains(4));
    let output = program()
        .args(["sweep", "-executionTime", "1", "-dataLens", "256", "-transports", "raw"])
        .args(["-directory", &scratch.path("out"), "-domain", &domain, "-repeat", "2"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("[4/4] latency, raw, 256 bytes"), "{errors}");
    let name = "out/raw_latency_pub_results.csv";
    let table = std::fs::read_to_string(scratch.path(name)).unwrap();
    // One header, and a row for each round.
    assert_eq!(table.lines().count(), 3, "{table}");
    // Nothing to compare raw UDP with.
    assert!(!std::path::Path::new(&scratch.path("out/comparison.csv")).exists());
}

#[test]
fn the_two_sides_of_a_sweep_can_run_apart_and_replace_older_tables() {
    let (scratch, domain) = (Scratch::new("apart"), domains(4));
    std::fs::create_dir_all(scratch.path("sub")).unwrap();
    let old = scratch.path("sub/brtp_throughput_sub_results.csv");
    std::fs::write(&old, "old\nold\n").unwrap();
    let old_comparison = scratch.path("sub/comparison.csv");
    std::fs::write(&old_comparison, "old\n").unwrap();
    let start = |side: &str| {
        program()
            .args(["sweep", side, "-peer", "127.0.0.1", "-nic", "127.0.0.1", "-domain", &domain])
            .args(["-executionTime", "1", "-dataLens", "64,512", "-transports", "brtp"])
            .args(["-directory", &scratch.path(side.trim_start_matches('-'))])
            .output()
            .unwrap()
    };
    let (publisher, subscriber) = std::thread::scope(|scope| {
        let subscriber = scope.spawn(|| start("-sub"));
        // The user starts the other side later.
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        (start("-pub"), subscriber.join().unwrap())
    });
    for output in [publisher, subscriber] {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let table = std::fs::read_to_string(&old).unwrap();
    assert!(table.starts_with("Sample Size") && table.lines().count() == 3, "{table}");
    assert!(!std::path::Path::new(&old_comparison).exists());
    let table = std::fs::read_to_string(scratch.path("pub/brtp_latency_pub_results.csv")).unwrap();
    assert_eq!(summary(&table)[0], 512.0, "{table}");
}

#[test]
fn a_sweep_has_the_nine_sizes() {
    let (scratch, domain) = (Scratch::new("nine"), domains(18));
    let output = program()
        .args(["sweep", "-executionTime", "1", "-transports", "brtp", "-domain", &domain])
        .args(["-directory", &scratch.path("out")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for table in ["throughput_sub", "latency_pub"] {
        let name = format!("out/brtp_{table}_results.csv");
        let table = std::fs::read_to_string(scratch.path(&name)).unwrap();
        let sizes: Vec<f64> = table.lines().skip(1).map(|line| summary(line)[0]).collect();
        let expected = [64, 256, 512, 1_024, 4_096, 8_192, 16_384, 32_768, 63_000];
        assert_eq!(sizes, expected.map(f64::from), "{name}: {table}");
    }
}
