//! A public reader of iperf3's JSON report: `iperf3` of the Python Package Index.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::support::{Server, client, free_port, skipped, text};

/// Reads a report from standard input and prints what it has found.
const SCRIPT: &str = "
import json, sys
from iperf3 import TestResult
result = TestResult(sys.stdin.read())
found = {key: value for key, value in vars(result).items() if isinstance(value, (int, float, str, type(None)))}
found.pop('text', None)
print(json.dumps(found))
";

/// A Python interpreter that has the package.
fn python() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let has_reader = |python: &PathBuf| {
        let mut command = Command::new(python);
        command.args(["-c", "import iperf3"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let install = || {
        let system = PathBuf::from("python3");
        if has_reader(&system) {
            return Some(system);
        }
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("iperf3-reader");
        let own = directory.join("bin/python3");
        if !has_reader(&own) {
            let run = |command: &mut Command| {
                let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
                quiet.status().is_ok_and(|status| status.success())
            };
            let made = run(Command::new("python3").args(["-m", "venv"]).arg(&directory))
                && run(Command::new(&own).args(["-m", "pip", "install", "iperf3==0.1.11"]));
            if !made {
                return None;
            }
        }
        has_reader(&own).then_some(own)
    };
    FOUND.get_or_init(install).clone()
}

fn read(python: &PathBuf, report: &[u8]) -> Value {
    use std::io::Write;
    let mut reader = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    reader.stdin.take().unwrap().write_all(report).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_reader_of_iperf3_reports_finds_its_figures() {
    let Some(python) = python() else {
        return skipped(
            "a_reader_of_iperf3_reports_finds_its_figures",
            "pip cannot install iperf3",
        );
    };
    let port = free_port();
    let _server = Server::start(port, &[]);
    for direction in [&[][..], &["-r"]] {
        for mode in ["0", "1", "2", "3", "10", "11", "12"] {
            let options = ["-m", mode, "-t", "0.6", "-i", "0.2", "-b", "4M", "--iperf3-json"];
            let output = client(port, &[&options[..], direction].concat());
            assert!(output.status.success(), "{mode}: {}", text(&output.stderr));
            crate::json::check("report", &serde_json::from_slice(&output.stdout).unwrap());
            let found = read(&python, &output.stdout);
            assert!(found["error"].is_null(), "{mode}: {found:#}");
            let number = |key: &str| {
                found[key].as_f64().unwrap_or_else(|| panic!("{mode}, {key}: {found:#}"))
            };
            match ["0", "3", "11"].contains(&mode) {
                true => {
                    assert_eq!(found["protocol"], "UDP");
                    assert!(number("bytes") > 100_000.0 && number("packets") > 10.0, "{found:#}");
                    assert!(number("lost_packets") <= number("packets"), "{found:#}");
                    assert!(number("jitter_ms") >= 0.0 && number("seconds") > 0.5, "{found:#}");
                    assert!(number("Mbps") > 1.0 && number("lost_percent") < 100.0, "{found:#}");
                }
                false => {
                    assert_eq!(found["protocol"], "TCP");
                    assert!(number("sent_bytes") > 100_000.0, "{found:#}");
                    assert!(number("received_bytes") > 100_000.0, "{found:#}");
                    assert!(number("retransmits") >= 0.0, "{found:#}");
                    assert!(
                        number("sent_Mbps") > 1.0 && number("received_Mbps") > 1.0,
                        "{found:#}"
                    );
                }
            }
            assert!(number("remote_cpu_total") >= 0.0 && number("num_streams") == 1.0);
        }
    }
}

#[test]
fn reports_have_the_keys_that_scripts_for_iperf3_read() {
    let port = free_port();
    let _server = Server::start(port, &[]);
    for (mode, is_lossy) in [("0", true), ("1", false)] {
        for direction in [&[][..], &["-r"], &["--bidir"]] {
            let options = ["-m", mode, "-t", "0.6", "-i", "0.2", "-b", "4M", "-J"];
            let output = client(port, &[&options[..], direction].concat());
            assert!(output.status.success(), "{}", text(&output.stderr));
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            crate::json::check("report", &report);
            let end = &report["end"];
            for key in ["sum_sent", "sum_received", "sum"] {
                assert!(end[key]["bytes"].as_u64().unwrap() > 0, "{key}: {end:#}");
            }
            assert_eq!(end["sum"]["packets"], end["sum_received"]["packets"]);
            assert!(end["sum_sent"]["retransmits"].is_u64(), "{end:#}");
            for stream in end["streams"].as_array().unwrap() {
                assert_eq!(stream["udp"].is_object(), is_lossy, "{stream:#}");
                let sender = &stream["sender"];
                assert!(sender["retransmits"].is_u64(), "{stream:#}");
                let rtt = |key: &str| sender[key].as_u64().unwrap();
                assert!(0 < rtt("min_rtt") && rtt("mean_rtt") <= rtt("max_rtt"), "{sender:#}");
            }
            let interval = &report["intervals"][1];
            let sending = interval["streams"].as_array().unwrap();
            for stream in sending.iter().filter(|stream| stream["sender"] == true) {
                for key in ["retransmits", "rtt", "snd_cwnd", "pmtu"] {
                    assert!(stream[key].is_u64(), "{key}: {stream:#}");
                }
            }
        }
    }
}
