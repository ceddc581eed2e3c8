//! The node as a protocol: batsd on every host, tools through its TUN device or a forward.

use super::support::{Case, allowed, figure, lock_machine, measurement, stdout_of};

#[test]
fn tools_run_through_nodes_with_relays_without_them_and_over_two_paths() {
    if !allowed("tools_run_through_nodes_with_relays_without_them_and_over_two_paths") {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(
        "
tests:
  chain:
    topology:
      topology_type: linear
      nodes: 3
      link: { rate: 20M, delay: 5ms, loss: 5% }
    target_protocols: [node, node-direct, node-forward]
    test_tools:
      iperf: { interval: 0.5, interval_num: 6 }
      rtt: { interval: 0.01, packet_count: 50, packet_size: 200 }
      ping: { interval: 0.01, packet_count: 50 }
    verify: false
  diamond:
    topology:
      topology_type: mesh
      nodes: 4
      link: { rate: 10M, delay: 5ms }
      links: [{ between: [0, 1] }, { between: [1, 3] }, { between: [0, 2] }, { between: [2, 3] }]
    target_protocols: [node]
    test_tools:
      iperf: { interval: 0.5, interval_num: 8, client_host: 0, server_host: 3 }
    competition_flows:
      - { flow_type: node, client_host: 3, server_host: 0, delay: 0, duration: 2 }
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}", stdout_of(&output));
    for protocol in ["node", "node-direct"] {
        let rate = figure(&result, protocol, "iperf", "throughput_mbps");
        assert!(rate > 0.5 && rate < 20.0, "{protocol}: {rate}");
        for tool in ["rtt", "ping"] {
            let time = figure(&result, protocol, tool, "rtt_p50_ms");
            assert!(time >= 20.0, "{protocol}, {tool}: {time}");
        }
        // Keeper and worker of each host are counted.
        assert!(figure(&result, protocol, "iperf", "helper_processors") > 0.0);
        assert!(figure(&result, protocol, "iperf", "helper_seconds_per_gb") > 0.0);
        let commands = measurement(&result, protocol, "iperf")["commands"].to_string();
        assert_eq!(commands.matches("batsd --config").count(), 3, "{commands}");
        assert!(commands.contains("iperf3 -c 10.66.0.3"), "{commands}");
    }
    let rate = figure(&result, "node-forward", "iperf", "throughput_mbps");
    assert!(rate > 0.5 && rate < 20.0, "{rate}");
    assert!(figure(&result, "node-forward", "rtt", "rtt_p50_ms") >= 20.0);
    let commands = measurement(&result, "node-forward", "iperf")["commands"].to_string();
    assert!(commands.contains("iperf3 -c 127.0.0.1"), "{commands}");
    let ping = measurement(&result, "node-forward", "ping").to_string();
    assert!(ping.contains("forwards TCP to the port of the built-in tools only"), "{ping}");
    let bound = |protocol| figure(&result, protocol, "iperf", "bound_mbps");
    // With relays each hop repairs its own losses.
    assert!((bound("node") * 0.95 / bound("node-direct") - 1.0).abs() < 1e-6);
    let two_paths = &result["cases"][1]["measurements"][0];
    let rate = two_paths["figures"]["steady_mbps"].as_f64().unwrap();
    // One path carries less than this.
    assert!(rate > 10.0, "{rate}");
    assert!(two_paths["figures"].get("bound_mbps").is_none(), "{two_paths}");
}
