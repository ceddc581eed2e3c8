//! A failed baseline does not affect the report and results of the test itself.

use std::fs;
use std::process::{Command, Output};

use crate::json::{check, document, events};
use crate::support::{PROGRAM, Scratch, Server, free_port, text};

/// Runs a client with fewer file descriptors than the TCP baseline has streams. OpenBATS needs one
/// socket.
fn starved_client(port: u16, options: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", r#"ulimit -n 40 && exec "$0" "$@""#, PROGRAM])
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-m", "1"])
        .args(["-P", "48", "-b", "100k", "-t", "0.6", "-i", "0.2", "--baseline", "tcp,udp"])
        .args(options)
        .output()
        .unwrap()
}

#[test]
fn a_baseline_that_cannot_start_does_not_affect_the_report() {
    let scratch = Scratch::new("baseline");
    let page = scratch.path("page.html");
    let port = free_port();
    // Nothing reads its output, which must fit into a pipe.
    let _server = Server::start(port, &["-i", "0"]);
    let output = starved_client(port, &["-J", "--report", &page]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let report = document(&output.stdout);
    check("report", &report);
    assert!(report["end"]["sum_received"]["bytes"].as_u64().unwrap() > 0, "{report:#}");
    let baselines = report["baselines"].as_array().unwrap();
    assert_eq!(baselines.len(), 1, "the UDP baseline must not run: {baselines:#?}");
    assert_eq!(baselines[0]["protocol"], "TCP");
    let why = baselines[0]["error"].as_str().unwrap();
    assert!(why.contains("cannot open a TCP socket"), "{why}");
    assert_eq!(report["error"], format!("baseline TCP: {why}"));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("<svg") && page.contains("baseline TCP: "), "{page}");

    let output = starved_client(port, &["--json-stream"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let events = events(&output.stdout);
    let [.., (end, figures), (error, words)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((end.as_str(), error.as_str()), ("end", "error"));
    assert!(figures["baselines"][0]["error"].is_string(), "{figures:#}");
    assert_eq!(*words, report["error"]);
}
