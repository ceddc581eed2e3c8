//! The maximum number of streams. Runs apart from the other tests because it needs the whole
//! machine.

#[path = "program/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the program")]
mod support;

use serde_json::Value;

use support::{Server, client, free_port, run, text};

#[test]
fn the_maximum_number_of_streams_has_a_sum() {
    let (report, text) = run(&[], &["-P", "128", "-b", "100k", "-t", "1", "-i", "0.5"]);
    assert_eq!(report["end"]["streams"].as_array().unwrap().len(), 128);
    let sum: u64 = report["end"]["streams"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stream| stream["receiver"]["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(report["end"]["sum_received"]["bytes"], sum);
    let lines = |word: &str| text.lines().filter(|line| line.ends_with(word)).count();
    assert_eq!((lines("receiver"), lines("sender")), (129, 129), "{text}");
    assert!(text.lines().any(|line| line.starts_with("[128]")), "{text}");
}

/// 128 streams with ten reports per second exceed the maximum length of a server report.
#[test]
fn a_long_server_report_omits_its_last_intervals() {
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    // It prints more than a pipe holds, so a thread reads it meanwhile.
    let server = std::thread::spawn(move || server.finish());
    let options = ["-P", "128", "-b", "50k", "-t", "5", "-i", "0.1", "--get-server-output", "-J"];
    let output = client(port, &options);
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(server.join().unwrap().0, 0);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let far = &report["server_output_json"];
    assert!(!far["intervals"].as_array().unwrap().is_empty());
    let left_out = far["intervals_left_out"].as_u64().unwrap();
    assert!(left_out > 0 && far["end"]["sum_received"].is_object());
    assert!(errors.contains(&format!("omits {left_out} of its intervals")), "{errors}");
}
