//! Which side's `--congestion` and `--goal` apply to which direction, between two processes.

use serde_json::Value;

use crate::json::check;
use crate::support;

/// Runs a test; returns the client's document and the server's text.
fn run(server: &[&str], options: &[&str]) -> (Value, String) {
    let options = [options, &["-t", "0.4", "-b", "2M"]].concat();
    let (near, report) = support::run(&[server, &["-V"]].concat(), &options);
    check("report", &near);
    (near, report)
}

#[test]
fn each_side_sets_its_own_direction() {
    let (near, far) = run(
        &["--congestion", "none", "--goal", "throughput"],
        &["--bidir", "--congestion", "8M", "--goal", "latency"],
    );
    let sending = &near["end"]["sending"];
    let settings = |direction: &str| {
        let sending = &sending[direction];
        assert!(sending["note"].is_null(), "{sending}");
        (sending["congestion"].as_str().unwrap(), sending["goal"].as_str().unwrap())
    };
    assert_eq!(settings("forward"), ("fixed:8000000", "latency"));
    assert_eq!(settings("reverse"), ("none", "throughput"));
    // Not only reported: these controllers ran.
    let streams = near["end"]["streams"].as_array().unwrap();
    let states: Vec<&Value> =
        streams.iter().map(|x| &x["openbats"]["sender"]["controller_state"]).collect();
    assert_eq!(states, ["fixed", "none"], "{near:#}");
    assert!(
        far.contains("Sender forward: congestion control fixed:8000000, goal latency"),
        "{far}"
    );
    assert!(far.contains("Sender reverse: congestion control none, goal throughput"), "{far}");
    // In one direction only: the receiving side's options have no effect and are not reported.
    let (near, _) = run(&["--congestion", "none"], &["--congestion", "cubic"]);
    let sending = &near["end"]["sending"];
    assert_eq!(sending["forward"]["congestion"], "cubic");
    assert!(sending["reverse"].is_null(), "{sending}");
}

/// A server accepts any mode: if its options have no effect, both reports say so.
#[test]
fn server_options_that_a_mode_does_not_support_are_noted() {
    for (mode, congestion, state) in
        [("3", "none", "none"), ("10", "kernel", "kernel"), ("12", "cubic", "quic cubic")]
    {
        let server = ["--congestion", "gcc", "--goal", "latency"];
        let (near, far) = run(&server, &["-m", mode, "-r"]);
        let sending = &near["end"]["sending"]["reverse"];
        assert_eq!(sending["congestion"], congestion, "{mode}");
        assert!(sending["goal"].is_null(), "{mode}: {sending}");
        let note = sending["note"].as_str().unwrap();
        assert!(note.starts_with("--congestion and --goal not in effect in mode"), "{note}");
        assert!(far.contains(&format!("Note on sender reverse: {note}")), "{far}");
        let sender = &near["end"]["streams"][0]["openbats"]["sender"];
        assert_eq!(sender["controller_state"], state, "{mode}");
    }
    // Options that the mode supports are in effect.
    let (near, far) = run(&["--congestion", "bbr"], &["-m", "12", "-r"]);
    assert_eq!(near["end"]["sending"]["reverse"]["congestion"], "bbr");
    let sender = &near["end"]["streams"][0]["openbats"]["sender"];
    assert_eq!(sender["controller_state"], "quic bbr");
    assert!(!far.contains("Note on"), "{far}");
}
