//! Different kinds of flows between several hosts in virtual time, with models of TCP.

use serde_json::Value;

use super::support::{Case, figure, measurement, run, stderr_of, stdout_of};

fn run_passing(yaml: &str) -> (Value, Case) {
    let case = Case::new(yaml);
    let (output, result) = case.run(&["--backend", "sim"]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    (result, case)
}

fn number_of(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or_else(|| panic!("no {name}: {figures}"))
}

const DUMBBELL: &str = "
tests:
  dumbbell:
    topology:
      topology_type: mesh
      nodes: 6
      link: { rate: 40M, delay: 2ms }
      links:
        - { between: [0, 2] }
        - { between: [1, 2] }
        - { between: [2, 3], rate: 10M, delay: 10ms }
        - { between: [3, 4] }
        - { between: [3, 5] }
    target_protocols: [brtp, tcp-bbr, transparent]
    test_tools: { iperf: { interval: 0.5, interval_num: 16, client_host: 0, server_host: 4 } }
    competition_flows:
      - { flow_type: tcp-cubic, client_host: 1, server_host: 5, delay: 1, duration: 7 }
      - { flow_type: udp, client_host: 5, server_host: 0, delay: 2, duration: 3 }
    seed: 3
";

/// The flows together do not exceed the bottleneck's capacity in one direction, and each has its
/// figures.
#[test]
fn competing_flows_share_the_bottleneck() {
    let (result, case) = run_passing(DUMBBELL);
    for protocol in ["brtp", "tcp-bbr", "transparent"] {
        let one = measurement(&result, protocol, "iperf");
        let labels: Vec<&str> = one["flows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["label"].as_str().unwrap())
            .collect();
        assert_eq!(labels, ["TCP CUBIC (model) 1 to 5", "UDP 5 to 0"]);
        let (cubic, udp) = (&one["flows"][0]["figures"], &one["flows"][1]["figures"]);
        for (name, least, most) in [
            ("cwnd_p50_kb", 1.0, 500.0),
            ("srtt_p50_ms", 27.9, 200.0),
            // TRANSPARENT overloads the link.
            ("retransmitted_percent", 0.0, 90.0),
            ("share_percent", 0.1, 99.0),
        ] {
            let value = number_of(cubic, name);
            assert!((least..=most).contains(&value), "{protocol}: {name} {value}");
        }
        // The opposite direction has no other flow: 10 Mbit/s of messages are 10.5 Mbit/s of
        // frames, on a link of 10 Mbit/s.
        assert!(number_of(udp, "throughput_mbps") > 8.0, "{protocol}: {udp}");
        let series = |flow: &str| -> Vec<f64> {
            let all = one["series"].as_array().unwrap();
            let fits = |one: &&Value| one["name"] == "throughput" && one["of"] == flow;
            let points = all.iter().find(fits).unwrap_or_else(|| panic!("no throughput of {flow}"));
            let points = points["points"].as_array().unwrap();
            points.iter().map(|point| point[1].as_f64().unwrap()).collect()
        };
        let own = series(one["label"].as_str().unwrap());
        let competing = series(labels[0]);
        assert_eq!(competing[..2], [0.0, 0.0], "{protocol}: it has not started");
        // From second 2 on both flows are active and share the bottleneck.
        let full = 10.0 * 1472.0 / 1514.0;
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        for (own, competing) in own[4..].iter().zip(&competing[4..]) {
            sum += own + competing;
            least = least.min(own + competing);
        }
        let mean = sum / own[4..].len() as f64;
        assert!(mean < full * 1.01 && mean > full * 0.75, "{protocol}: {mean} of {full}");
        // TRANSPARENT sends at the link's rate without congestion control and leaves almost
        // nothing.
        let least = if protocol == "transparent" { 0.0 } else { 0.3 };
        assert!(number_of(cubic, "throughput_mbps") > least, "{protocol}: {cubic}");
        let warnings = one["warnings"].to_string();
        assert!(warnings.contains("TCP is a model here"), "{warnings}");
        // Relays recode only flows between the same two hosts; a warning says that there are no
        // relays.
        assert_eq!(warnings.contains("end to end"), protocol == "brtp", "{warnings}");
        let bound = number_of(&one["figures"], "bound_mbps");
        assert!((bound - full).abs() < 1e-6, "{bound}");
    }
    assert_eq!(measurement(&result, "tcp-bbr", "iperf")["label"], "TCP BBR (model)");
    let page = std::fs::read_to_string(case.out().join("report.html")).unwrap();
    assert!(page.contains("TCP CUBIC (model) 1 to 5"));
    // The same seed gives the same series.
    let (again, _case) = run_passing(DUMBBELL);
    for protocol in ["brtp", "tcp-bbr", "transparent"] {
        let (one, two) =
            (measurement(&result, protocol, "iperf"), measurement(&again, protocol, "iperf"));
        assert_eq!(one["series"], two["series"], "{protocol}");
    }
}

/// The models behave as published: CUBIC reduces its rate on every loss, BBR does not. Over a chain
/// of routers the losses of all links add up.
#[test]
fn tcp_models_react_to_loss_like_tcp() {
    let yaml = "
tests:
  clean:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 10ms } }
    target_protocols: [tcp-cubic, tcp-bbr]
    test_tools: { iperf: { interval: 0.5, interval_num: 24, parallel: 2 } }
  lossy:
    topology: { topology_type: linear, nodes: 4, link: { rate: 20M, delay: 10ms, loss: 1% } }
    target_protocols: [tcp-cubic, tcp-bbr]
    test_tools: { iperf: { interval: 0.5, interval_num: 24 } }
    events: [{ at: 9, link: 2, set: { down: true } }]
";
    let (result, _case) = run_passing(yaml);
    let steady = |case: usize, protocol: &str| {
        let all = result["cases"][case]["measurements"].as_array().unwrap();
        let one = all.iter().find(|one| one["protocol"] == protocol).unwrap();
        (number_of(&one["figures"], "steady_mbps"), one)
    };
    let full = 20.0 * 1448.0 / 1514.0;
    for protocol in ["tcp-cubic", "tcp-bbr"] {
        let (rate, _) = steady(0, protocol);
        assert!(rate > 0.9 * full && rate <= full * 1.001, "{protocol}: {rate} of {full}");
        // No packet passes a link that is down.
        let (_, one) = steady(1, protocol);
        let points = one["series"][0]["points"].as_array().unwrap();
        let after = points.iter().filter(|point| point[0].as_f64().unwrap() > 10.0);
        assert!(after.clone().count() > 2 && after.clone().all(|point| point[1] == 0.0), "{one}");
    }
    let mean = |protocol: &str| {
        let points = steady(1, protocol).1["series"][0]["points"].as_array().unwrap();
        let inside = |point: &&Value| (2.0..9.0).contains(&point[0].as_f64().unwrap());
        let rates: Vec<f64> =
            points.iter().filter(inside).map(|point| point[1].as_f64().unwrap()).collect();
        rates.iter().sum::<f64>() / rates.len() as f64
    };
    // Mathis et al., "The macroscopic behavior of the TCP congestion avoidance algorithm", 1997:
    // with an RTT of 60 ms and 3 % loss, Reno gets one segment per RTT times 1.22 over the square
    // root of 3 %, or 1.4 Mbit/s, a third less with delayed acknowledgements, and less with the time-outs
    // of windows of five segments.
    let (cubic, bbr) = (mean("tcp-cubic"), mean("tcp-bbr"));
    assert!((0.5..4.0).contains(&cubic), "{cubic}");
    assert!(bbr > 0.7 * full && bbr < full, "{bbr}");
    let retransmitted = number_of(&steady(1, "tcp-bbr").1["figures"], "retransmitted_percent");
    // 3 % are lost, and at the end whole windows are retransmitted over a link that is down.
    assert!((3.0..20.0).contains(&retransmitted), "{retransmitted} % retransmitted");
}

/// With ideal clocks, senders can synchronise with the queue so that it is full for all but one of
/// them.
#[test]
fn competing_flows_are_not_locked_out() {
    let (result, _case) = run_passing(
        "
tests:
  alike:
    topology: { config_name: complex_mesh_net }
    target_protocols: [tcp-bbr, tcp-cubic]
    test_tools: { iperf: { interval: 0.5, interval_num: 40, client_host: 0, server_host: 5 } }
    competition_flows:
      - { flow_type: tcp-bbr, client_host: 1, server_host: 6, delay: 2, duration: 18 }
",
    );
    let share = |protocol: &str| {
        number_of(&measurement(&result, protocol, "iperf")["flows"][0]["figures"], "share_percent")
    };
    let (share_with_bbr, share_with_cubic) = (share("tcp-bbr"), share("tcp-cubic"));
    assert!((15.0..85.0).contains(&share_with_bbr), "{share_with_bbr}");
    // With a queue of a third of the BDP, BBR version 1 takes as much as it can.
    assert!((30.0..99.9).contains(&share_with_cubic), "{share_with_cubic}");
}

/// Plain datagrams: losses of the links are not repaired, and duplicates count once.
#[test]
fn plain_datagrams_have_the_loss_of_the_links() {
    let (result, _case) = run_passing(
        "
tests:
  plain:
    topology:
      topology_type: linear
      nodes: 3
      link: { rate: 20M, delay: 5ms, loss: 10%, duplicate: 5%, corrupt: 1% }
    target_protocols: [udp, udp-next]
    test_tools: { iperf: { packet_type: udp, bitrate: 4, interval: 0.5, interval_num: 16 } }
",
    );
    for protocol in ["udp", "udp-next"] {
        let lost = figure(&result, protocol, "iperf", "loss_percent");
        // 1 - (0.9 x 0.99) squared is 20.6 %, less the corrupted ones whose duplicate arrives.
        assert!((17.0..24.0).contains(&lost), "{protocol}: {lost}");
        let rate = figure(&result, protocol, "iperf", "steady_mbps");
        assert!((3.0..3.4).contains(&rate), "{protocol}: {rate}");
    }
}

#[test]
fn unsupported_combinations_are_reported() {
    let case = Case::new(
        "
tests:
  cannot:
    backend: sim
    topology: { topology_type: linear, nodes: 3, link: { rate: 10M, delay: 5ms } }
    target_protocols: [brtp-forward, tcp-bbr, quic, tcp-next, udp]
    test_tools:
      iperf: { interval_num: 2 }
      iperf-slow: { interval_num: 2, bitrate: 1 }
      rtt: { interval: 0.01, packet_count: 10 }
    competition_flows: [{ flow_type: tcp-cubic, client_host: 0, server_host: 1, delay: 0, duration: 2 }]
    capture: true
",
    );
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    for (protocol, tool, text) in [
        ("brtp-forward", "iperf", "same `relays`"),
        ("tcp-bbr", "iperf-slow", "omit `bitrate`"),
        ("tcp-bbr", "rtt", "throughput only"),
        ("quic", "iperf", "models of tcp-cubic, tcp-reno and tcp-bbr, not quic"),
        ("tcp-next", "iperf", "not tcp-next"),
    ] {
        let one = measurement(&result, protocol, tool);
        let reason = one["reason"].as_str().unwrap_or_default();
        assert!(one["status"] == "unsupported" && reason.contains(text), "{one}");
    }
    let warnings = measurement(&result, "tcp-bbr", "iperf")["warnings"].to_string();
    assert!(
        warnings.contains("cannot capture packets of flows of different protocols"),
        "{warnings}"
    );
    assert_eq!(measurement(&result, "udp", "iperf")["status"], "passed");
}

/// Without a queue and with rare losses, throughput depends on loss and delay alone.
#[test]
fn tcp_reno_follows_the_mathis_formula() {
    let (result, _) = run_passing(
        "
tests:
  reno:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 100M, delay: 25ms, loss: 1%/0% } }
    target_protocols: [tcp-reno, tcp-cubic]
    test_tools: { iperf: { interval_num: 60 } }
    assertions:
      - { figure: throughput_mbps, protocol: tcp-reno, at_least: 0.5, relative_to: tcp-cubic }
",
    );
    let reno = measurement(&result, "tcp-reno", "iperf");
    assert_eq!(reno["label"], "TCP RENO (model)");
    // Mathis: 1448 bytes in 50 ms, times the square root of 1.5 / 0.01.
    let mathis = 1448.0 * 8.0 / 0.05 * f64::sqrt(1.5 / 0.01) / 1e6;
    let ratio = figure(&result, "tcp-reno", "iperf", "throughput_mbps") / mathis;
    assert!((0.75..1.25).contains(&ratio), "{ratio} of {mathis}");
    // A comparison of two models is judged.
    assert_eq!(result["cases"][0]["assertions"][0]["holds"], true, "{result}");
}

/// The live stream has round trips while they are measured, and `compare` compares competing flows.
#[test]
fn round_trips_are_live_and_competing_flows_are_compared() {
    let yaml = "
tests:
  competition:
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 10ms, queue: 1bdp } }
    target_protocols: [brtp]
    test_tools:
      iperf: { interval: 0.5, interval_num: 10 }
      rtt: { interval: 0.01, packet_count: 300, packet_size: 200 }
      rtt_first: { packet_count: 1 }
    competition_flows: [{ flow_type: tcp-cubic, client_host: 0, server_host: 1, delay: 0, duration: 5 }]
    repetitions: 2
";
    let (_, one) = run_passing(yaml);
    let (_, two) = run_passing(&yaml.replace("repetitions: 2", "repetitions: 2\n    seed: 77"));
    let live = std::fs::read_to_string(one.out().join("live.jsonl")).unwrap();
    let samples: Vec<Value> =
        live.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let times = |what: &str| -> Vec<f64> {
        let mine = samples.iter().filter(|one| one["event"] == "sample" && one["what"] == what);
        mine.filter_map(|one| one["rtt_ms"].as_f64()).collect()
    };
    // 3 s of messages, two samples per second, in two repetitions; fifteen connections each.
    let round_trips = times("BRTP rtt");
    assert!((10..=14).contains(&round_trips.len()), "{live}");
    assert!(round_trips.iter().all(|time| (20.0..40.0).contains(time)), "{round_trips:?}");
    assert_eq!(times("BRTP rtt_first").len(), 30, "{live}");
    assert!(times("BRTP iperf").is_empty());
    let (a, b) = (one.out(), two.out());
    let output = run(&["compare", a.to_str().unwrap(), b.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let mine = |row: &&Value| row["protocol"] == "TCP CUBIC (model) 0 to 1, competing with BRTP";
    let competing_rows: Vec<&Value> = rows.iter().filter(mine).collect();
    for figure in ["throughput", "throughput share", "retransmitted segments", "smoothed RTT p50"] {
        let row = competing_rows.iter().find(|row| row["figure"] == figure);
        let row = row.unwrap_or_else(|| panic!("no {figure}: {competing_rows:?}"));
        assert!(row["a"]["count"] == 2 && row["a"]["half_width"].is_number(), "{row}");
    }
    assert!(rows.iter().any(|row| row["protocol"] == "BRTP" && row["figure"] == "RTT p50"));
    // Compared with a run on hosts, both names are given, because a model is not the kernel.
    let path = b.join("result.json");
    let result = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, result.replace("TCP CUBIC (model)", "TCP CUBIC")).unwrap();
    let output = run(&["compare", a.to_str().unwrap(), b.to_str().unwrap()]);
    let name = "TCP CUBIC (model) 0 to 1 / TCP CUBIC 0 to 1, competing with BRTP";
    assert!(stdout_of(&output).contains(name), "{}", stdout_of(&output));
}

/// A corrupted datagram is lost, whichever field is corrupted; on an idle link there is no jitter.
#[test]
fn corrupted_datagrams_are_lost_and_a_clean_link_has_no_jitter() {
    let (result, _case) = run_passing(
        "
tests:
  changed:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms, corrupt: 50% } }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 4, interval: 0.5, interval_num: 8 } }
",
    );
    let lost = figure(&result, "udp", "iperf", "loss_percent");
    assert!((44.0..56.0).contains(&lost), "{lost}");
    let (result, _case) = run_passing(
        "
tests:
  clean:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 4, interval: 0.5, interval_num: 8 } }
",
    );
    let jitter = figure(&result, "udp", "iperf", "jitter_ms");
    assert!(jitter < 0.01, "{jitter}");
}

/// A TCP model over a link without a rate limit would run without end.
#[test]
fn a_link_without_a_rate_is_refused_in_virtual_time() {
    let case = Case::new(
        "
tests:
  endless:
    backend: sim
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    events: [{ at: 1, set: { rate: none } }]
    target_protocols: [tcp-cubic]
    test_tools: { iperf: { interval: 0.5, interval_num: 8 } }
",
    );
    let (output, _) = case.run(&[]);
    assert!(
        stdout_of(&output).contains("is unbounded"),
        "{}{}",
        stdout_of(&output),
        stderr_of(&output)
    );
}
