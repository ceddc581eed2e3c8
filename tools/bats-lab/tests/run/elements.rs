//! Elements of links over the same file on both backends.

use super::support::{Case, allowed, figure, lock_machine, stderr_of};

/// A policer of 5 Mbit/s in front of 20 Mbit/s for datagrams of 10 Mbit/s, and a recorded rate of
/// 6 Mbit/s.
const YAML: &str = "
topologies:
  - name: policed
    topology_type: linear
    nodes: 2
    link: { rate: 20M, delay: 5ms, forward: { policer: { rate: 5M, burst: 20k } } }
  - name: recorded
    topology_type: linear
    nodes: 2
    link: { delay: 5ms, queue: 20k, forward: { rate_schedule: { trace: down.trace } } }
tests:
  policed: &test
    topology: { config_name: policed }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 10, interval: 0.5, interval_num: 8 } }
    verify: false
  recorded:
    <<: *test
    topology: { config_name: recorded }
";

fn measure(backend: &str) {
    let case = Case::new(YAML);
    std::fs::write(case.folder.path().join("down.trace"), "2\n4\n").unwrap();
    let (output, result) = case.run(&["--backend", backend]);
    assert!(output.status.success(), "{}", stderr_of(&output));
    let of = |index: usize| {
        let one = serde_json::json!({ "cases": [result["cases"][index]] });
        figure(&one, "udp", "iperf", "steady_mbps")
    };
    // Frames count, and figures are of payload. A busy machine is late for opportunities to send.
    let (policed, recorded) = (of(0), of(1));
    let late = if backend == "sim" { 1.0 } else { 0.5 };
    assert!((4.2 * late..5.2).contains(&policed), "{backend}: {policed}");
    assert!((5.1 * late..6.2).contains(&recorded), "{backend}: {recorded}");
}

#[test]
fn policers_and_traces_limit_datagrams_in_virtual_time() {
    measure("sim");
}

#[test]
fn policers_and_traces_limit_datagrams_between_hosts() {
    if !allowed("policers_and_traces_limit_datagrams_between_hosts") {
        return;
    }
    let _machine = lock_machine();
    measure("netns");
}
