//! Paths of several links in virtual time, with all modes of this project.

use serde_json::Value;

use super::support::{Case, figure, measurement, stderr_of, stdout_of};

fn run_passing(yaml: &str) -> (Value, Case) {
    let case = Case::new(yaml);
    let (output, result) = case.run(&["--backend", "sim"]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    (result, case)
}

/// With recoding relays the throughput is bounded by one lossy hop; without them the losses of all
/// hops add up.
/// The goal for `brtp` is 0.9 of the bound; 0.891 is measured.
#[test]
fn three_hops_with_relays_reach_the_bound_of_one_hop() {
    let (result, case) = run_passing(
        "
tests:
  hops:
    topology: { topology_type: linear, nodes: 4, link: { rate: 20M, delay: 10ms, loss: 10% } }
    target_protocols: [brtp, brtp-forward, brtp-direct, brctp, btp]
    test_tools:
      iperf: { interval: 0.5, interval_num: 16 }
      rtt: { interval: 0.01, packet_count: 200, packet_size: 512 }
    assertions:
      - { figure: efficiency, protocol: brtp, tool: iperf, at_least: 0.88, at_most: 1.0 }
      - { figure: steady_mbps, protocol: brtp, tool: iperf, at_least: 1.15, relative_to: brtp-direct }
",
    );
    let of = |protocol: &str, name: &str| figure(&result, protocol, "iperf", name);
    let full = 20.0 * 1472.0 / 1514.0;
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-6;
    assert!(near(of("brtp", "bound_mbps"), full * 0.9));
    assert!(near(of("brtp", "forwarding_bound_mbps"), full * 0.729));
    // Only repair within the path can exceed this bound.
    assert!(of("brtp", "steady_mbps") > of("brtp", "forwarding_bound_mbps"));
    for (protocol, least) in [("brctp", 0.75), ("btp", 0.6)] {
        assert!(near(of(protocol, "bound_mbps"), full * 0.9), "{protocol}");
        let efficiency = of(protocol, "efficiency");
        assert!((least..=1.0).contains(&efficiency), "{protocol}: {efficiency}");
    }
    for protocol in ["brtp-forward", "brtp-direct"] {
        assert!(near(of(protocol, "bound_mbps"), full * 0.729), "{protocol}");
        let efficiency = of(protocol, "efficiency");
        assert!((0.75..=1.0).contains(&efficiency), "{protocol}: {efficiency}");
    }
    let has_relays = |protocol: &str| {
        measurement(&result, protocol, "iperf")["figures"]["relay_kib"].as_f64().is_some()
    };
    assert!(["brtp", "brtp-forward", "brctp", "btp"].into_iter().all(has_relays));
    assert!(!has_relays("brtp-direct"));
    for protocol in ["brtp", "brtp-forward", "brtp-direct", "brctp", "btp"] {
        let time = figure(&result, protocol, "rtt", "rtt_p50_ms");
        assert!((60.0..90.0).contains(&time), "{protocol}: {time}");
    }
    let page = std::fs::read_to_string(case.out().join("report.html")).unwrap();
    assert!(page.contains("bound without recoding") && page.contains("BRTP-DIRECT"));
}

/// Residual loss at a loss rate of 20 %: none with coding, 20 % without.
#[test]
fn residual_loss_is_counted_over_time() {
    let (result, _case) = run_passing(
        "
tests:
  residual:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 10ms, loss: 20% } }
    target_protocols: [btp, transparent]
    test_tools:
      iperf: { packet_type: udp, bitrate: 4, interval: 0.5, interval_num: 12 }
    assertions:
      - { figure: loss_percent, protocol: btp, at_most: 1 }
      - { figure: loss_percent, protocol: transparent, at_least: 17, at_most: 23 }
",
    );
    for (protocol, least) in [("btp", 3.9), ("transparent", 3.0)] {
        let rate = figure(&result, protocol, "iperf", "steady_mbps");
        assert!((least..4.1).contains(&rate), "{protocol}: {rate}");
        assert!(figure(&result, protocol, "iperf", "jitter_ms") < 20.0);
        let all = measurement(&result, protocol, "iperf")["series"].as_array().unwrap();
        let find = |name: &str| all.iter().find(|series| series["name"] == name);
        // Without a congestion window there is no series of it.
        assert_eq!(find("cwnd").is_some(), protocol == "btp");
        for name in ["residual loss", "jitter", "smoothed RTT", "queue"] {
            let points = find(name).and_then(|series| series["points"].as_array());
            assert!(points.is_some_and(|points| points.len() > 5), "{protocol} has no {name}");
        }
    }
}

/// Links of a chain differ: per direction, in order, changed by events, with several flows.
#[test]
fn links_of_a_chain_may_differ() {
    let (result, _case) = run_passing(
        "
tests:
  chain:
    topology:
      topology_type: linear
      nodes: 4
      link: { rate: 20M, delay: 5ms }
      links: [{ loss: 5% }, { loss: 'ge:1%,19%', delay: 15ms/1ms }, { rate: 10M/20M }]
    target_protocols: [brtp, brtp-direct]
    test_tools:
      iperf: { interval: 0.5, interval_num: 20, parallel: 2, client_host: 0, server_host: 3 }
    competition_flows:
      - { flow_type: brtp-direct, client_host: 0, server_host: 3, delay: 2, duration: 3 }
  backwards:
    topology:
      topology_type: linear
      nodes: 3
      links: [{ rate: 20M/5M, delay: 1ms }, { rate: 20M/20M, delay: 1ms }]
    target_protocols: [brtp]
    test_tools:
      iperf: { interval: 0.5, interval_num: 12, client_host: 2, server_host: 0 }
    events:
      - { at: 3, link: 1, set: { rate: 20M/2M } }
",
    );
    // Next to an end-to-end flow, all flows are end-to-end and have that bound; a warning says so.
    let competing = measurement(&result, "brtp", "iperf");
    assert!(competing["warnings"].to_string().contains("all flows are end to end"), "{competing}");
    assert!(competing["figures"]["forwarding_bound_mbps"].is_null(), "{competing}");
    let direct = measurement(&result, "brtp-direct", "iperf");
    let series = |name: &str, of: &str| -> Vec<(f64, f64)> {
        let all = direct["series"].as_array().unwrap().iter();
        let mut fitting = all.filter(|one| {
            one["name"] == name && one["of"].as_str().is_some_and(|text| text.starts_with(of))
        });
        let one = fitting.next().unwrap_or_else(|| panic!("no {name} of {of}"));
        let points = one["points"].as_array().unwrap().iter();
        points.map(|point| (point[0].as_f64().unwrap(), point[1].as_f64().unwrap())).collect()
    };
    let other = series("throughput", "BRTP-DIRECT 0 to 3");
    let sum = |from: f64, to: f64| -> f64 {
        other.iter().filter(|point| point.0 > from && point.0 <= to).map(|point| point.1).sum()
    };
    // Nothing before its start, something while it runs, nothing after the last packets have
    // arrived.
    assert!(sum(0.0, 2.0) == 0.0 && sum(2.0, 5.0) > 0.0 && sum(8.0, 10.0) == 0.0, "{other:?}");
    let bound = direct["figures"]["bound_mbps"].as_f64().unwrap();
    let expected = 10.0 * 0.95 * 0.95 * 1472.0 / 1514.0;
    assert!((bound / expected - 1.0).abs() < 1e-6, "{bound} {expected}");
    let points = result["cases"][1]["measurements"][0]["series"][0]["points"].as_array().unwrap();
    let at = |index: usize| points[index][1].as_f64().unwrap();
    assert!((3.5..5.0).contains(&at(4)), "before: {}", at(4));
    assert!((1.0..2.0).contains(&at(11)), "after: {}", at(11));
}
