//! Other programs under test, if they are installed; otherwise the tests report that they are
//! skipped.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::support::{
    Case, allowed, batslab, figure, lock_machine, measurement, skipped, skipped_also_in_ci,
    stderr_of, stdout_of,
};

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into()])
        .any(|folder| folder.join(program).exists())
}

/// Whether all programs are installed; reports the test as skipped if not.
fn all_installed(test: &str, programs: &[(&str, &str)]) -> bool {
    let missing: Vec<_> = programs.iter().filter(|(program, _)| !is_installed(program)).collect();
    for (program, package) in &missing {
        skipped(test, &format!("{program} is not installed (Debian: {package})"));
    }
    missing.is_empty()
}

#[test]
fn srt_repairs_a_stream_of_datagrams() {
    const NAME: &str = "srt_repairs_a_stream_of_datagrams";
    if !allowed(NAME) || !all_installed(NAME, &[("srt-live-transmit", "srt-tools")]) {
        return;
    }
    let _alone = lock_machine();
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
    // SRT retransmits lost packets, and drops them when other work on the machine delays the
    // retransmission: one of three attempts must pass.
    let mut attempts = 0;
    let (output, result) = loop {
        let (output, result) = Case::new(yaml).run(&[]);
        attempts += 1;
        if output.status.success() || attempts == 3 {
            break (output, result);
        }
    };
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let rtt_measurement = measurement(&result, "srt", "rtt");
    assert_eq!(rtt_measurement["status"], "unsupported");
    assert!(
        rtt_measurement["reason"].as_str().unwrap().contains("there are no replies"),
        "{rtt_measurement}"
    );
}

#[test]
fn scp_copies_files_over_tcp_and_through_a_tunnel() {
    const NAME: &str = "scp_copies_files_over_tcp_and_through_a_tunnel";
    let programs =
        [("sshd", "openssh-server"), ("scp", "openssh-client"), ("kcptun-client", "kcptun")];
    if !allowed(NAME) || !all_installed(NAME, &programs) {
        return;
    }
    let _alone = lock_machine();
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
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
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
fn missing_tools_are_reported() {
    const NAME: &str = "missing_tools_are_reported";
    if !allowed(NAME) {
        return;
    }
    if is_installed("sshping") {
        skipped_also_in_ci(NAME, "sshping is installed");
        return;
    }
    let _alone = lock_machine();
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

/// A competing flow gets its own tunnel; a flow without figures is a failure.
#[test]
fn competing_flows_use_tunnels_and_must_run() {
    const NAME: &str = "competing_flows_use_tunnels_and_must_run";
    if !allowed(NAME) || !all_installed(NAME, &[("kcptun-client", "kcptun")]) {
        return;
    }
    let _alone = lock_machine();
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
  competing:
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
    assert_eq!(output.status.code(), Some(1), "{}", stdout_of(&output));
    let measurement_at = |case: usize, index: usize| &result["cases"][case]["measurements"][index];
    let ran = measurement_at(0, 0);
    assert_eq!(ran["status"], "passed", "{ran}");
    let flow = ran["series"].as_array().unwrap().iter().find(|series| {
        series["name"] == "throughput" && series["of"].as_str().unwrap().contains("KCP")
    });
    let points = flow.unwrap_or_else(|| panic!("no flow: {ran}"))["points"].as_array().unwrap();
    assert!(points.iter().any(|point| point[1].as_f64().unwrap() > 1.0), "{points:?}");
    // One node cannot use the same ports twice.
    assert_eq!(measurement_at(0, 1)["status"], "unsupported", "{}", measurement_at(0, 1));
    let broken = measurement_at(1, 0);
    assert_eq!(broken["status"], "failed", "{broken}");
    assert!(broken["reason"].as_str().unwrap().contains("NOWHERE"), "{broken}");
}

const WIREGUARD: &str = "
tests:
  wireguard:
    topology: { topology_type: linear, nodes: 3, link: { rate: 20M, delay: 5ms } }
    target_protocols: [wireguard-go]
    test_tools:
      iperf: { interval: 0.5, interval_num: 6 }
      rtt: { interval: 0.01, packet_count: 50, packet_size: 200 }
      ping: { interval: 0.01, packet_count: 50 }
    verify: false
  competing:
    topology: { topology_type: linear, nodes: 3, link: { rate: 20M, delay: 5ms } }
    target_protocols: [wireguard-go]
    test_tools: { iperf: { interval: 0.5, interval_num: 6, client_host: 0, server_host: 1 } }
    competition_flows:
      - { flow_type: wireguard-go, client_host: 2, server_host: 0, delay: 0, duration: 2 }
    verify: false
";

/// Sockets of wireguard-go.
fn wireguard_sockets() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir("/var/run/wireguard").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

#[test]
fn wireguard_go_tunnels_the_built_in_tools() {
    const NAME: &str = "wireguard_go_tunnels_the_built_in_tools";
    // `go install` names it `wireguard`.
    let has_it =
        is_installed("wireguard") || all_installed(NAME, &[("wireguard-go", "wireguard-go")]);
    if !allowed(NAME) || !has_it {
        return;
    }
    if std::fs::create_dir_all("/var/run/wireguard").is_err() || !Path::new("/dev/net/tun").exists()
    {
        skipped(NAME, "wireguard-go needs root and /dev/net/tun");
        return;
    }
    let _alone = lock_machine();
    let before = wireguard_sockets();
    let (output, result) = Case::new(WIREGUARD).run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    let rate = figure(&result, "wireguard-go", "iperf", "throughput_mbps");
    assert!(rate > 5.0 && rate < 20.0, "{rate}");
    for tool in ["rtt", "ping"] {
        let time = figure(&result, "wireguard-go", tool, "rtt_p50_ms");
        assert!(time >= 20.0, "{tool}: {time}");
    }
    // The programs at both ends are counted, and per second as per GB.
    let used = figure(&result, "wireguard-go", "iperf", "helper_processors");
    let per_gb = figure(&result, "wireguard-go", "iperf", "helper_seconds_per_gb");
    assert!(used > 0.0 && (0.5..2.0).contains(&(per_gb * rate / 8e3 / used)), "{used} {per_gb}");
    let commands = measurement(&result, "wireguard-go", "iperf")["commands"].to_string();
    assert!(commands.contains("-c 10.67.0.3"), "{commands}");
    let names: BTreeSet<&str> =
        commands.split(" -f ").skip(1).filter_map(|rest| rest.get(..14)).collect();
    assert_eq!((commands.matches(" -f wg").count(), names.len()), (2, 2), "{commands}");
    assert!(!commands.contains("node 1:"), "the host between needs no program: {commands}");
    assert!(result["versions"]["wireguard-go"].is_string(), "{}", result["versions"]);
    // A flow between other hosts: three ends.
    let competing = &result["cases"][1]["measurements"][0];
    let figures = &competing["figures"];
    assert!(
        figures["helper_seconds_per_gb"].is_null() && figures["share_percent"].is_number(),
        "{figures}"
    );
    assert_eq!(competing["commands"].to_string().matches(" -f wg").count(), 3);
    assert_eq!(wireguard_sockets(), before, "sockets are left");
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut running = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    assert!(
        !running
            .any(|words| names.iter().any(|name| String::from_utf8_lossy(&words).contains(name))),
        "a program is left"
    );
}

/// Also a machine that has it can be without it in PATH.
#[test]
fn missing_wireguard_go_is_reported_with_what_to_install() {
    const NAME: &str = "missing_wireguard_go_is_reported_with_what_to_install";
    let case = Case::new(WIREGUARD);
    let empty = tempfile::tempdir().unwrap();
    if ["/usr/sbin", "/sbin"].iter().any(|folder| {
        ["wireguard-go", "wireguard"].iter().any(|name| Path::new(folder).join(name).exists())
    }) {
        skipped_also_in_ci(NAME, "wireguard-go is in a folder that is always searched");
        return;
    }
    let without = |arguments: &[&str]| {
        let mut command = batslab();
        command.args(arguments).env("PATH", empty.path()).output().unwrap()
    };
    let wanted = "go install golang.zx2c4.com/wireguard@latest";
    let doctor = stdout_of(&without(&["doctor"]));
    assert!(doctor.contains(wanted), "{doctor}");
    let checked = stdout_of(&without(&["check", &case.file()]));
    assert!(
        checked.contains("wireguard-go: the program `wireguard-go`") && checked.contains(wanted),
        "{checked}"
    );
    if !allowed(NAME) {
        return;
    }
    let _alone = lock_machine();
    let out = case.out();
    let output = without(&["run", &case.file(), "--quiet", "-o", &out.to_string_lossy()]);
    assert_eq!(output.status.code(), Some(1), "{}", stdout_of(&output));
    let result = std::fs::read_to_string(out.join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_str(&result).unwrap();
    let one = measurement(&result, "wireguard-go", "iperf");
    assert_eq!(one["status"], "failed", "{one}");
    assert!(one["reason"].as_str().unwrap().contains(wanted), "{one}");
}
