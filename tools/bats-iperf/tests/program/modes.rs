//! Transport modes, some of them over a lossy emulated link.

use serde_json::Value;

use super::support::{self, Server, client, free_port, text};

/// Runs a test; returns the documents of client and server.
fn run(server: &[&str], options: &[&str]) -> (Value, Value) {
    let (near, far) = support::run(&[server, &["-J"]].concat(), options);
    (near, serde_json::from_str(&far).unwrap())
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value:#} is no count"))
}

/// Checks that every sent message of each stream was received or counted as lost.
fn assert_accounted_for(report: &Value) {
    for stream in report["end"]["streams"].as_array().unwrap() {
        let (sent, received) = (&stream["sender"], &stream["receiver"]);
        assert_eq!(received["packets"], sent["packets"], "{stream:#}");
        assert_eq!(received["duplicates"], 0, "{stream:#}");
    }
}

#[test]
fn btp_repairs_most_losses_and_counts_the_others() {
    let link = ["-b", "4M", "--length", "1000", "--emulate", "loss=10%,delay=5ms,seed=3"];
    for (mode, name) in [("btp", "BTP"), ("3", "TRANSPARENT")] {
        let options = ["-m", mode, "-t", "2", "-i", "0.5", "-P", "2"];
        let (near, far) = run(&[], &[&options[..], &link].concat());
        for report in [&near, &far] {
            assert_eq!(report["start"]["test_start"]["protocol"], name);
            assert_accounted_for(report);
        }
        let end = &near["end"];
        let lost = count(&end["sum_received"]["lost_packets"]);
        let percent = end["sum_received"]["lost_percent"].as_f64().unwrap();
        let receiver = &end["streams"][0]["openbats"]["receiver"];
        if name == "BTP" {
            assert!(percent < 3.0, "{end:#}");
            assert!(count(&receiver["symbols_repaired"]) > 20, "{end:#}");
            let longest = count(&receiver["longest_repair_delay_us"]);
            assert!(count(&receiver["repair_delay_us"]) >= longest && longest > 0, "{end:#}");
        } else {
            assert!(lost > 50 && percent < 25.0, "{end:#}");
            assert_eq!(receiver["symbols_repaired"], 0, "{end:#}");
        }
    }
}

/// All sent data arrives, and no loss is reported.
#[test]
fn reliable_modes_deliver_everything_in_both_directions() {
    for (mode, name) in [("1", "BRTP"), ("brctp", "BRCTP"), ("10", "TCP+TLS"), ("12", "QUIC")] {
        let options = ["-m", mode, "-t", "0.6", "-i", "0.3", "-P", "2", "--bidir", "-b", "20M"];
        let (near, far) = run(&[], &options);
        for report in [&near, &far] {
            assert_eq!(report["start"]["test_start"]["protocol"], name);
            assert_accounted_for(report);
            for stream in report["end"]["streams"].as_array().unwrap() {
                assert_eq!(stream["receiver"]["lost_packets"], 0, "{name}: {stream:#}");
                assert!(count(&stream["receiver"]["packets"]) > 0, "{name}: {stream:#}");
            }
        }
    }
}

#[test]
fn bidirectional_latency_works_in_an_unreliable_mode() {
    let link = "loss=5%,delay=5ms";
    let options = ["-m", "0", "-t", "1.5", "--bidir", "--latency", "--emulate", link];
    let (near, far) = run(&[], &options);
    assert_accounted_for(&near);
    assert_accounted_for(&far);
    for direction in ["forward", "reverse"] {
        let found = &near["end"]["latency"][direction];
        assert!(count(&found["round_trip"]["count"]) > 20, "{found:#}");
        assert!(found["one_way"]["p50_us"].as_f64().unwrap() > 0.0, "{found:#}");
    }
}

/// The link has a quarter of the needed rate: messages that wait longer than the deadline are not
/// sent.
#[test]
fn messages_past_the_deadline_are_not_sent() {
    let options = ["-m", "0", "-t", "2", "-b", "8M", "--length", "1000", "--congestion", "2M"];
    for reverse in [false, true] {
        let direction: &[&str] = if reverse { &["-r"] } else { &[] };
        let (options, server): (Vec<&str>, &[&str]) = match reverse {
            // The sender sets the congestion control.
            true => (options[..8].to_vec(), &["--congestion", "2M"]),
            false => (options.to_vec(), &[]),
        };
        let (near, _) = run(server, &[&options[..], direction, &["--deadline", "20"]].concat());
        assert_eq!(near["start"]["test_start"]["deadline_ms"], 20);
        assert_accounted_for(&near);
        let sender = &near["end"]["streams"][0]["openbats"]["sender"];
        let sent = count(&near["end"]["sum_sent"]["packets"]);
        assert!(count(&sender["messages_expired"]) * 10 > sent, "{reverse}: {sender:#}");
    }
    // With a long deadline all messages wait until they are sent.
    let (near, _) = run(&[], &[&options[..], &["--deadline", "60000"]].concat());
    let sender = &near["end"]["streams"][0]["openbats"]["sender"];
    assert_eq!(sender["messages_expired"], 0, "{sender:#}");
}

#[test]
fn a_server_accepts_any_mode_or_only_the_given_one() {
    // As in the original, -m has no effect at a server.
    let port = free_port();
    let server = Server::start(port, &["-m", "3"]);
    assert_eq!(server.notes().filter(|note| note.contains("-m is ignored")).count(), 1);
    for mode in ["0", "1"] {
        let output = client(port, &["-m", mode, "-t", "0.3", "-b", "5"]);
        assert!(output.status.success(), "{mode}: {}", text(&output.stderr));
    }
    drop(server);
    let port = free_port();
    let server = Server::start(port, &["--only-mode", "3"]);
    assert_eq!(server.notes().count(), 0);
    let output = client(port, &["-m", "0", "-t", "0.3", "-b", "5"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("mode TRANSPARENT only"), "{}", text(&output.stderr));
    let output = client(port, &["-m", "transparent", "-t", "0.3", "-b", "5", "-V"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{report}{}", text(&output.stderr));
    for column in ["Residual", "Expired", "Repair"] {
        assert!(report.contains(column), "{report}");
    }
}

/// An unlimited rate would only fill queues.
#[test]
fn the_transparent_mode_has_a_default_rate() {
    let (near, _) = run(&[], &["-m", "3", "-t", "1", "-P", "2"]);
    assert_eq!(near["start"]["test_start"]["target_bitrate"], 1_000_000);
    let rate = near["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap();
    assert!(rate < 2.2e6, "{rate}");
    let (near, _) = run(&[], &["-m", "3", "-t", "0.5", "-b", "0"]);
    assert_eq!(near["start"]["test_start"]["target_bitrate"], 0);
    assert!(near["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap() > 5e6, "{near:#}");
}

/// Without a target rate BTP uses the capacity of the link and does not stall.
#[test]
fn btp_fills_a_slow_link() {
    let link = ["--emulate", "rate=10M,delay=20ms"];
    let options = ["-m", "0", "-t", "4", "-O", "1", "-i", "0.5"];
    let (near, _) = run(&[], &[&options[..], &link].concat());
    let received = &near["end"]["sum_received"];
    let utilization = received["bits_per_second"].as_f64().unwrap() / 10e6;
    assert!(utilization > 0.5 && utilization < 1.0, "{utilization}: {received:#}");
    let stalled = near["intervals"].as_array().unwrap().iter().filter(|interval| {
        interval["sum"]["seconds"].as_f64().unwrap() > 0.4 && interval["sum"]["bytes"] == 0
    });
    assert_eq!(stalled.count(), 0, "{near:#}");
}

/// Plain datagrams: lost ones are not repaired, and all of them are counted, including the last
/// ones.
#[test]
fn udp_counts_lost_messages() {
    let link = "loss=10%,delay=2ms,seed=3";
    for (options, streams) in
        [(&["-u"][..], 1), (&["-m", "11", "-r"], 1), (&["-m", "udp", "--bidir", "-P", "2"], 4)]
    {
        let options = [options, &["-b", "4M", "--length", "1000", "-t", "1", "-i", "0.5"]].concat();
        // Without the default mode of the `client` function.
        let options = [&options[..], &["--emulate", link]].concat();
        let port = free_port();
        let server = Server::start(port, &["-1", "-J"]);
        let output = std::process::Command::new(super::support::PROGRAM)
            .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-J"])
            .args(&options)
            .output()
            .unwrap();
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        let (code, far) = server.finish();
        assert_eq!(code, 0, "{far}");
        let near: Value = serde_json::from_slice(&output.stdout).unwrap();
        crate::json::check("report", &near);
        let far: Value = serde_json::from_str(&far).unwrap();
        for report in [&near, &far] {
            assert_eq!(report["start"]["test_start"]["protocol"], "UDP");
            assert_eq!(report["end"]["streams"].as_array().unwrap().len(), streams);
            assert_accounted_for(report);
            let sum = &report["end"]["sum_received"];
            let percent = sum["lost_percent"].as_f64().unwrap();
            assert!(percent > 4.0 && percent < 18.0, "{sum:#}");
            assert!(sum["jitter_ms"].as_f64().unwrap() > 0.0, "{sum:#}");
            let rate = report["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap();
            assert!(rate < 1.1 * 4e6 * streams as f64, "{rate}");
        }
    }
}

#[test]
fn udp_has_a_default_rate_and_can_be_the_only_mode() {
    let port = free_port();
    let _server = Server::start(port, &["--only-mode", "udp"]);
    let output = client(port, &["-m", "11", "-t", "0.5", "-J"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let test = &report["start"]["test_start"];
    assert_eq!((&test["target_bitrate"], &test["protocol"]), (&1_000_000.into(), &"UDP".into()));
    assert_eq!(report["end"]["sum_received"]["lost_packets"], 0);
    assert_eq!(report["end"]["sending"]["forward"]["congestion"], "none");
    let output = client(port, &["-m", "1", "-t", "0.5", "-b", "1M"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("mode UDP only"), "{}", text(&output.stderr));
    // Latency of single messages, one per datagram.
    let output = client(port, &["-m", "11", "-t", "0.5", "--latency", "-J"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = &report["end"]["latency"]["forward"]["round_trip"];
    assert!(count(&found["count"]) > 10, "{found:#}");
}
