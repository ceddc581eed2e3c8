//! Latency, the emulated link, baselines and the HTML page.

use std::fs;

use serde_json::Value;

use crate::support::{self, Scratch, Server, client, free_port, text};

fn run(options: &[&str]) -> Value {
    support::run(&[], options).0
}

#[test]
fn an_emulated_delay_is_measured_one_way_and_round_trip() {
    let report = run(&["-t", "1.5", "-O", "0.3", "--latency", "--emulate", "delay=25ms"]);
    let found = &report["end"]["latency"]["forward"];
    let median = |kind: &str| found[kind]["p50_us"].as_f64().unwrap();
    let error = found["one_way"]["clock_error_us"].as_f64().unwrap();
    // No message can be faster than the link; a busy machine may delay it.
    assert!(median("one_way") >= 25_000.0 - error - 1.0, "{found:#}");
    assert!(median("round_trip") >= 50_000.0, "{found:#}");
    assert!(median("one_way") < median("round_trip") + error, "{found:#}");
    let count = found["round_trip"]["count"].as_u64().unwrap();
    assert!((50..=160).contains(&count), "the first 0.3 s must be omitted: {found:#}");
    let own = &report["intervals"][0]["streams"][0]["openbats"];
    assert!(own["min_rtt_us"].as_u64().unwrap() >= 50_000, "{own:#}");
}

/// A blocked sender keeps its schedule: waiting shows in the times.
#[test]
fn latency_counts_from_the_due_time_of_a_message() {
    // The link has half of the rate, so the last messages wait half of the test.
    let report =
        run(&["-t", "2", "--latency", "-b", "4M", "--emulate", "rate=2M,delay=5ms,queue=20k"]);
    let found = &report["end"]["latency"]["forward"]["one_way"];
    assert!(found["max_us"].as_f64().unwrap() > 500_000.0, "{found:#}");
    // 4 Mbit/s are due for 2 s: unsent messages are reported, and nothing else is missing.
    let missing = &report["end"]["latency"]["forward"]["missing"];
    let (sent, unsent) = (&report["end"]["sum_sent"]["packets"], &missing["unsent"]);
    let due = sent.as_u64().unwrap() + unsent.as_u64().unwrap();
    assert!(unsent.as_u64().unwrap() > 50, "{missing:#}");
    assert!((970..=980).contains(&due), "{due}: {report:#}");
    assert_eq!(missing["lost"], 0);
}

/// Lost messages have no latency and are reported.
#[test]
fn lost_messages_are_reported_with_the_latency() {
    let link = ["--emulate", "loss=20%,delay=2ms,seed=4"];
    let options = ["-m", "3", "-t", "1.5", "--latency", "-b", "2M"];
    let report = run(&[&options[..], &link].concat());
    let found = &report["end"]["latency"]["forward"];
    let count = |value: &Value| value.as_u64().unwrap();
    let (missing, sent) = (&found["missing"], count(&report["end"]["sum_sent"]["packets"]));
    assert_eq!(count(&found["one_way"]["count"]) + count(&missing["lost"]), sent, "{found:#}");
    assert!(count(&missing["lost"]) * 10 > sent, "{found:#}");
    let (answered, unanswered) =
        (count(&found["round_trip"]["count"]), count(&missing["unanswered"]));
    assert_eq!(
        answered + unanswered,
        sent,
        "below 1,000 per second each asks for an echo: {found:#}"
    );
    assert!(unanswered > count(&missing["lost"]), "echoes must be lost, too: {found:#}");
}

#[test]
fn path_loss_is_measured_and_repaired() {
    let report =
        run(&["-t", "2", "-b", "10M", "--goal", "throughput", "--emulate", "loss=10%,delay=5ms"]);
    let end = &report["end"];
    assert_eq!(end["sum_received"]["bytes"], end["sum_sent"]["bytes"]);
    assert_eq!(end["sum_received"]["lost_packets"], 0);
    let sender = &end["streams"][0]["openbats"]["sender"];
    let loss = sender["loss_percent"].as_f64().unwrap();
    assert!((3.0..25.0).contains(&loss), "{sender:#}");
    assert!(sender["repair_packets_sent"].as_u64().unwrap() > 0, "{sender:#}");
}

#[test]
fn a_fixed_rate_limits_the_sender() {
    let report = run(&["-t", "1.5", "--congestion", "20M"]);
    let rate = report["end"]["sum_received"]["bits_per_second"].as_f64().unwrap();
    assert!((2e6..21e6).contains(&rate), "{rate}");
}

#[test]
fn baselines_are_compared_in_the_table_and_the_page() {
    let scratch = Scratch::new("page");
    let page = scratch.path("report.html");
    let port = free_port();
    let server = Server::start(port, &["-1"]);
    let options = ["-t", "0.6", "-i", "0.2", "-b", "20M", "-P", "2", "--baseline", "tcp,udp"];
    let output = client(port, &[&options[..], &["--bidir", "-V", "--report", &page]].concat());
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    assert_eq!(server.finish().0, 0);
    let table: Vec<&str> =
        report.lines().skip_while(|line| !line.starts_with("Transport")).collect();
    for protocol in ["BRTP", "TCP", "UDP"] {
        let rows = table.iter().filter(|line| line.starts_with(protocol));
        assert_eq!(rows.count(), 2, "both directions of {protocol}: {report}");
    }
    assert!(report.contains("Residual") && report.contains("CPU Utilization: local/"), "{report}");
    let page = fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("<polyline"), "{page}");
    let data = page.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    let document: Value = serde_json::from_str(data).unwrap();
    assert_eq!(document["baselines"][1]["protocol"], "UDP");
    assert!(!page.contains("http"), "the page must be self-contained");
}
