//! Programs of others under test, where they are installed; what is not there is told of loudly.

use super::support::{Case, allowed, alone, error_of, figure, measurement, said, skipped};

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|folder| folder.join(program).exists())
}

/// Whether all are there; says so if not.
fn are_there(test: &str, programs: &[(&str, &str)]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|(program, _)| !is_there(program)).collect();
    for (program, package) in &missing {
        skipped(test, &format!("there is no {program} (Debian: {package})"));
    }
    missing.is_empty()
}

#[test]
fn srt_repairs_a_stream_of_datagrams() {
    const NAME: &str = "srt_repairs_a_stream_of_datagrams";
    if !allowed(NAME) || !are_there(NAME, &[("srt-live-transmit", "srt-tools")]) {
        return;
    }
    let _alone = alone();
    let yaml = "
tests:
  srt:
    topology: { topology_type: linear, nodes: 2, link: { rate: 30M, delay: 10ms, loss: 5% } }
    target_protocols: [srt, udp]
    test_tools:
      iperf: { packet_type: udp, bitrate: 4, interval: 0.5, interval_num: 8 }
      rtt: { interval: 0.01, packet_count: 20 }
    verify: false
    assertions:
      - { figure: loss_percent, protocol: udp, tool: iperf, at_least: 2 }
      - { figure: loss_percent, protocol: srt, tool: iperf, at_most: 1.5 }
      - { figure: throughput_mbps, protocol: srt, tool: iperf, at_least: 3 }
";
    // SRT asks again for what was lost, and gives it up where other work on the machine makes the answer
    // late: of three tries one has to pass.
    let mut tries = 0;
    let (output, result) = loop {
        let (output, result) = Case::new(yaml).run(&[]);
        tries += 1;
        if output.status.success() || tries == 3 {
            break (output, result);
        }
    };
    assert!(output.status.success(), "{}{}", said(&output), error_of(&output));
    let way_back = measurement(&result, "srt", "rtt");
    assert_eq!(way_back["status"], "unsupported");
    assert!(way_back["reason"].as_str().unwrap().contains("nothing comes back"), "{way_back}");
}

#[test]
fn a_file_passes_by_scp_over_tcp_and_through_a_tunnel() {
    const NAME: &str = "a_file_passes_by_scp_over_tcp_and_through_a_tunnel";
    let programs =
        [("sshd", "openssh-server"), ("scp", "openssh-client"), ("kcptun-client", "kcptun")];
    if !allowed(NAME) || !are_there(NAME, &programs) {
        return;
    }
    let _alone = alone();
    let keys = || {
        let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        entries.filter(|one| one.file_name().to_string_lossy().starts_with("batslab-scp-")).count()
    };
    let before = keys();
    let case = Case::new(
        "
tests:
  files:
    topology: { topology_type: linear, nodes: 3, link: { rate: 50M, delay: 2ms, loss: 0.2% } }
    target_protocols: [tcp-cubic, kcp, brctp]
    test_tools: { scp: { file_size: 1 } }
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}{}", said(&output), error_of(&output));
    for protocol in ["tcp-cubic", "kcp"] {
        let seconds = figure(&result, protocol, "scp", "file_seconds");
        // 8 Mbit over 50 Mbit/s, and a handshake of several round trips.
        assert!((0.17..30.0).contains(&seconds), "{protocol}: {seconds}");
    }
    assert_eq!(measurement(&result, "brctp", "scp")["status"], "unsupported");
    assert_eq!(keys(), before, "keys are left");
    let folder = measurement(&result, "tcp-cubic", "scp")["folder"].as_str().unwrap();
    let names: Vec<_> = std::fs::read_dir(case.out().join(folder)).unwrap().flatten().collect();
    assert!(names.iter().all(|one| !one.file_name().to_string_lossy().contains("key")));
}

#[test]
fn a_tool_that_is_not_installed_is_told_of() {
    const NAME: &str = "a_tool_that_is_not_installed_is_told_of";
    if !allowed(NAME) {
        return;
    }
    if is_there("sshping") {
        skipped(NAME, "sshping is installed");
        return;
    }
    let _alone = alone();
    let case = Case::new(
        "
tests:
  missing:
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M } }
    target_protocols: [tcp-cubic]
    test_tools: { sshping: { args: [\"%s\"], interval_num: 2 } }
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    assert_eq!(output.status.code(), Some(1));
    let one = measurement(&result, "tcp-cubic", "sshping");
    assert_eq!(one["status"], "failed");
    assert!(one["reason"].as_str().unwrap().contains("`sshping` is not installed"), "{one}");
}

/// What carries a flow is started as what carries the tool's; one that gives no figures is a failure.
#[test]
fn a_flow_beside_the_tools_has_its_tunnel_and_must_run() {
    const NAME: &str = "a_flow_beside_the_tools_has_its_tunnel_and_must_run";
    if !allowed(NAME) || !are_there(NAME, &[("kcptun-client", "kcptun")]) {
        return;
    }
    let _alone = alone();
    let case = Case::new(
        "
protocols:
  - name: nowhere
    type: none_distributed
    port: 7100
    protocols:
      - { name: near, bin: sleep, args: [60] }
      - { name: far, bin: sleep, args: [60] }
tests:
  beside:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 2ms } }
    target_protocols: [udp, kcp]
    test_tools: { iperf: { bitrate: 2, interval: 0.5, interval_num: 6 } }
    competition_flows: [{ flow_type: kcp, client_host: 0, server_host: 1, delay: 0, duration: 2 }]
    verify: false
  broken:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 2ms } }
    target_protocols: [udp]
    test_tools: { iperf: { bitrate: 2, interval: 0.5, interval_num: 4 } }
    competition_flows: [{ flow_type: nowhere, client_host: 0, server_host: 1, delay: 0, duration: 1 }]
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let of = |case: usize, index: usize| &result["cases"][case]["measurements"][index];
    let ran = of(0, 0);
    assert_eq!(ran["status"], "passed", "{ran}");
    let flow = ran["series"].as_array().unwrap().iter().find(|series| {
        series["name"] == "throughput" && series["of"].as_str().unwrap().contains("KCP")
    });
    let points = flow.unwrap_or_else(|| panic!("no flow: {ran}"))["points"].as_array().unwrap();
    assert!(points.iter().any(|point| point[1].as_f64().unwrap() > 1.0), "{points:?}");
    // The same ports are not to be had twice on a node.
    assert_eq!(of(0, 1)["status"], "unsupported", "{}", of(0, 1));
    let broken = of(1, 0);
    assert_eq!(broken["status"], "failed", "{broken}");
    assert!(broken["reason"].as_str().unwrap().contains("NOWHERE"), "{broken}");
}
