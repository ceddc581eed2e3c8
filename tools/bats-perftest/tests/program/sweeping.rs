//! The sweep.

use std::process::Command;

use crate::support::{PROGRAM, Scratch, summary};

#[test]
fn a_sweep_writes_tables_and_a_report() {
    let scratch = Scratch::new("sweep");
    let output = Command::new(PROGRAM)
        .args(["sweep", "-executionTime", "1", "-dataLens", "64,1024", "-transports", "brtp,raw"])
        .args(["-directory", &scratch.path("out"), "-domain", "90"])
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
    let page = std::fs::read_to_string(scratch.path("out/report.html")).unwrap();
    for words in ["<td>brtp</td>", "<td>raw</td>", "RTI Connext (published)", "<svg"] {
        assert!(page.contains(words), "{words}");
    }
}
