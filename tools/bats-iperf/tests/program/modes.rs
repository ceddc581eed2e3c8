//! Modes that may lose messages, over an emulated link that does.

use serde_json::Value;

use super::support::{self, Server, client, free_port, text};

/// A client's document and the server's.
fn run(server: &[&str], options: &[&str]) -> (Value, Value) {
    let (near, far) = support::run(&[server, &["-J"]].concat(), options);
    (near, serde_json::from_str(&far).unwrap())
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value:#} is no count"))
}

/// Every message that was sent was received or is counted as lost, in each stream.
fn is_accounted_for(report: &Value) {
    for stream in report["end"]["streams"].as_array().unwrap() {
        let (sent, received) = (&stream["sender"], &stream["receiver"]);
        assert_eq!(received["packets"], sent["packets"], "{stream:#}");
        assert_eq!(received["duplicates"], 0, "{stream:#}");
    }
}

#[test]
fn btp_repairs_most_and_counts_the_rest() {
    let link = ["-b", "4M", "--length", "1000", "--emulate", "loss=10%,delay=5ms,seed=3"];
    for (mode, name) in [("btp", "BTP"), ("3", "TRANSPARENT")] {
        let options = ["-m", mode, "-t", "2", "-i", "0.5", "-P", "2"];
        let (near, far) = run(&[], &[&options[..], &link].concat());
        for report in [&near, &far] {
            assert_eq!(report["start"]["test_start"]["protocol"], name);
            is_accounted_for(report);
        }
        let end = &near["end"];
        let lost = count(&end["sum_received"]["lost_packets"]);
        let share = end["sum_received"]["lost_percent"].as_f64().unwrap();
        let receiver = &end["streams"][0]["openbats"]["receiver"];
        if name == "BTP" {
            assert!(share < 3.0, "{end:#}");
            assert!(count(&receiver["symbols_repaired"]) > 20, "{end:#}");
            let longest = count(&receiver["longest_repair_delay_us"]);
            assert!(count(&receiver["repair_delay_us"]) >= longest && longest > 0, "{end:#}");
        } else {
            assert!(lost > 50 && share < 25.0, "{end:#}");
            assert_eq!(receiver["symbols_repaired"], 0, "{end:#}");
        }
    }
}

/// All that was sent arrives, and nothing is said to be lost.
#[test]
fn reliable_modes_carry_everything_both_ways() {
    for (mode, name) in [("1", "BRTP"), ("brctp", "BRCTP"), ("10", "TCP+TLS"), ("12", "QUIC")] {
        let options = ["-m", mode, "-t", "0.6", "-i", "0.3", "-P", "2", "--bidir", "-b", "20M"];
        let (near, far) = run(&[], &options);
        for report in [&near, &far] {
            assert_eq!(report["start"]["test_start"]["protocol"], name);
            is_accounted_for(report);
            for stream in report["end"]["streams"].as_array().unwrap() {
                assert_eq!(stream["receiver"]["lost_packets"], 0, "{name}: {stream:#}");
                assert!(count(&stream["receiver"]["packets"]) > 0, "{name}: {stream:#}");
            }
        }
    }
}

#[test]
fn both_directions_and_times_work_in_a_mode_that_loses() {
    let link = "loss=5%,delay=5ms";
    let options = ["-m", "0", "-t", "1.5", "--bidir", "--latency", "--emulate", link];
    let (near, far) = run(&[], &options);
    is_accounted_for(&near);
    is_accounted_for(&far);
    for direction in ["forward", "reverse"] {
        let found = &near["end"]["latency"][direction];
        assert!(count(&found["round_trip"]["count"]) > 20, "{found:#}");
        assert!(found["one_way"]["p50_us"].as_f64().unwrap() > 0.0, "{found:#}");
    }
}

/// The link carries a quarter of what is due: what waits longer than the deadline is not sent.
#[test]
fn a_deadline_decides_what_is_sent() {
    let options = ["-m", "0", "-t", "2", "-b", "8M", "--length", "1000", "--congestion", "2M"];
    for reverse in [false, true] {
        let direction: &[&str] = if reverse { &["-r"] } else { &[] };
        let (options, server): (Vec<&str>, &[&str]) = match reverse {
            // The sender decides on its congestion control.
            true => (options[..8].to_vec(), &["--congestion", "2M"]),
            false => (options.to_vec(), &[]),
        };
        let (near, _) = run(server, &[&options[..], direction, &["--deadline", "20"]].concat());
        assert_eq!(near["start"]["test_start"]["deadline_ms"], 20);
        is_accounted_for(&near);
        let sender = &near["end"]["streams"][0]["openbats"]["sender"];
        let sent = count(&near["end"]["sum_sent"]["packets"]);
        assert!(count(&sender["messages_expired"]) * 10 > sent, "{reverse}: {sender:#}");
    }
    // With a long deadline everything waits for its turn.
    let (near, _) = run(&[], &[&options[..], &["--deadline", "60000"]].concat());
    let sender = &near["end"]["streams"][0]["openbats"]["sender"];
    assert_eq!(sender["messages_expired"], 0, "{sender:#}");
}

#[test]
fn a_server_takes_any_mode_or_the_only_one_that_it_was_told() {
    // As with the original, -m decides nothing at a server.
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

/// Without a rate of its own it would only fill queues.
#[test]
fn the_transparent_mode_does_not_flood() {
    let (near, _) = run(&[], &["-m", "3", "-t", "1", "-P", "2"]);
    assert_eq!(near["start"]["test_start"]["target_bitrate"], 1_000_000);
    let rate = near["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap();
    assert!(rate < 2.2e6, "{rate}");
    let (near, _) = run(&[], &["-m", "3", "-t", "0.5", "-b", "0"]);
    assert_eq!(near["start"]["test_start"]["target_bitrate"], 0);
    assert!(near["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap() > 5e6, "{near:#}");
}

/// All that the link carries, without a rate that was asked for and without standing still.
#[test]
fn btp_fills_a_slow_link() {
    let link = ["--emulate", "rate=10M,delay=20ms"];
    let options = ["-m", "0", "-t", "4", "-O", "1", "-i", "0.5"];
    let (near, _) = run(&[], &[&options[..], &link].concat());
    let received = &near["end"]["sum_received"];
    let share = received["bits_per_second"].as_f64().unwrap() / 10e6;
    assert!(share > 0.5 && share < 1.0, "{share}: {received:#}");
    let still = near["intervals"].as_array().unwrap().iter().filter(|interval| {
        interval["sum"]["seconds"].as_f64().unwrap() > 0.4 && interval["sum"]["bytes"] == 0
    });
    assert_eq!(still.count(), 0, "{near:#}");
}

/// Plain datagrams: what the link loses is lost, and all of it is counted, the last ones too.
#[test]
fn udp_counts_what_it_loses() {
    let link = "loss=10%,delay=2ms,seed=3";
    for (options, streams) in
        [(&["-u"][..], 1), (&["-m", "11", "-r"], 1), (&["-m", "udp", "--bidir", "-P", "2"], 4)]
    {
        let options = [options, &["-b", "4M", "--length", "1000", "-t", "1", "-i", "0.5"]].concat();
        // What the tests' client would add is left out.
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
            is_accounted_for(report);
            let sum = &report["end"]["sum_received"];
            let share = sum["lost_percent"].as_f64().unwrap();
            assert!(share > 4.0 && share < 18.0, "{sum:#}");
            assert!(sum["jitter_ms"].as_f64().unwrap() > 0.0, "{sum:#}");
            let rate = report["end"]["sum_sent"]["bits_per_second"].as_f64().unwrap();
            assert!(rate < 1.1 * 4e6 * streams as f64, "{rate}");
        }
    }
}

#[test]
fn udp_has_a_rate_of_its_own_and_may_be_all_that_a_server_takes() {
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
    // Times of single messages, in a datagram each.
    let output = client(port, &["-m", "11", "-t", "0.5", "--latency", "-J"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = &report["end"]["latency"]["forward"]["round_trip"];
    assert!(count(&found["count"]) > 10, "{found:#}");
}
