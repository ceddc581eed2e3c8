//! The sweep.

use crate::support::{Scratch, program, summary};

#[test]
fn a_sweep_writes_tables_and_a_report() {
    let scratch = Scratch::new("sweep");
    let output = program()
        .args(["sweep", "-executionTime", "1", "-dataLens", "64,1024", "-transports", "brtp,raw"])
        .args(["-directory", &scratch.path("out"), "-domain", "90", "-busyPoll", "20"])
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
    let scratch = Scratch::new("rounds");
    let output = program()
        .args(["sweep", "-executionTime", "1", "-dataLens", "256", "-transports", "raw"])
        .args(["-directory", &scratch.path("out"), "-domain", "110", "-repeat", "2"])
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
