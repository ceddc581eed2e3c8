//! The backend netns: real programs over emulated links.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::support::{
    Case, allowed, batslab, figure, leftovers, lock_machine, measurement, run, skipped,
    skipped_also_in_ci, stderr_of, stdout_of,
};

#[test]
fn tools_and_protocols_run_over_a_chain() {
    if !allowed("tools_and_protocols_run_over_a_chain") {
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
      link: { rate: 30M, delay: 5ms }
      links: [{ loss: 2% }, { jitter: 1ms }]
    target_protocols: [brtp, tcp-cubic, tcp-next, udp, udp-next, quic]
    route: static_route
    test_tools:
      iperf: { interval: 0.5, interval_num: 4 }
      rtt: { interval: 0.01, packet_count: 50, packet_size: 200 }
    sample_interval: 0.05
    assertions:
      - { figure: rtt_p50_ms, tool: rtt, at_least: 18 }
      # A busy machine loses more than the links do; by how much is not bounded.
      - { figure: loss_percent, protocol: udp, tool: iperf, at_least: 0.2 }
      - { figure: loss_percent, protocol: udp-next, tool: iperf, at_least: 0.2 }
  others:
    topology: { topology_type: linear, nodes: 2, link: { rate: 30M, delay: 5ms } }
    target_protocols: [tcp-reno]
    test_tools:
      ping: { interval: 0.01, interval_num: 30 }
      rtt_first: { packet_count: 1 }
      sh: { args: [-c, \"exit\"], interval: 0.2, interval_num: 2 }
      no-such-program: {}
    capture: true
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    // Only the program that is not installed fails.
    assert_eq!(output.status.code(), Some(1));
    let failed: Vec<_> = result["cases"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|case| case["measurements"].as_array().unwrap())
        .filter(|one| one["status"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0]["reason"].as_str().unwrap().contains("`no-such-program` is not installed"));
    assert_eq!(result["cases"][0]["passed"], true, "{}", stdout_of(&output));
    let commands = measurement(&result, "udp-next", "iperf")["commands"].to_string();
    assert!(commands.contains("bats_iperf") && commands.contains("-m 11"), "{commands}");
    // TCP over the SDK's transport reports the kernel's congestion control.
    let next = measurement(&result, "tcp-next", "iperf");
    let (commands, warnings) = (next["commands"].to_string(), next["warnings"].to_string());
    assert!(commands.contains("bats_iperf -c") && commands.contains("-m 10"), "{commands}");
    assert!(warnings.contains("the default congestion control of the kernel: "), "{warnings}");
    for protocol in ["brtp", "tcp-cubic", "tcp-next", "quic", "udp", "udp-next"] {
        let rate = figure(&result, protocol, "iperf", "throughput_mbps");
        assert!(rate > 0.1 && rate < 31.0, "{protocol}: {rate}");
        let time = figure(&result, protocol, "rtt", "rtt_p50_ms");
        // How long answers take over this depends on the machine; the simulator's tests check it.
        let path = figure(&result, protocol, "rtt", "path_rtt_ms");
        assert!(time > 0.9 * path && path == 20.0, "{protocol}: {time} of {path}");
    }
    let series = |protocol: &str, name: &str| {
        let one = measurement(&result, protocol, "iperf")["series"].as_array().unwrap();
        one.iter()
            .any(|series| series["name"] == name && series["points"].as_array().unwrap().len() > 1)
    };
    for name in ["throughput", "cwnd", "smoothed RTT", "delivery rate", "pacing rate"] {
        assert!(series("brtp", name), "brtp has no {name}");
        assert!(series("tcp-cubic", name), "tcp has no {name}");
        assert!(series("tcp-next", name), "tcp-next has no {name}");
    }
    assert!(series("tcp-cubic", "retransmissions") && series("udp", "queue"));
    assert!(figure(&result, "tcp-reno", "ping", "rtt_p50_ms") >= 10.0);
    assert!(figure(&result, "tcp-reno", "rtt_first", "first_rtt_ms") >= 10.0);
    assert!(figure(&result, "tcp-reno", "rtt_first", "first_rtt_connect_ms") >= 20.0);
    assert_eq!(figure(&result, "tcp-reno", "sh", "exit_code"), 0.0);
    let folder = measurement(&result, "tcp-reno", "ping")["folder"].as_str().unwrap();
    let capture = std::fs::read(case.out().join(folder).join("capture.pcapng")).unwrap();
    assert!(capture.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) && capture.len() > 1_000);
    // The emulator itself is verified, or the report says that it is not.
    let rows = result["cases"][0]["verification"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["over"] == "topology-0, node 0 to 2"), "{rows:?}");
    for what in ["round trip", "rate a to b", "rate b to a", "loss a to b", "emulator CPU"] {
        let starts_with_name =
            |row: &&serde_json::Value| row["what"].as_str().unwrap().starts_with(what);
        let row =
            rows.iter().find(starts_with_name).unwrap_or_else(|| panic!("no {what}: {rows:?}"));
        assert!(row["value"].is_number() && !row["measured"].as_str().unwrap().is_empty());
    }
    let page = std::fs::read_to_string(case.out().join("report.html")).unwrap();
    for text in ["no-such-program", "Verification of the emulator", "the test sets `verify: false`"]
    {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn flows_compete_over_a_mesh_at_the_same_time() {
    if !allowed("flows_compete_over_a_mesh_at_the_same_time") {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(
        "
tests:
  dumbbell:
    topology:
      topology_type: mesh
      nodes: 6
      link: { rate: 20M, delay: 2ms }
      links: [{ between: [0, 2] }, { between: [1, 2] }, { between: [2, 3] }, { between: [3, 4] }, { between: [3, 5] }]
    target_protocols: [brtp, tcp-cubic]
    execution_mode: parallel
    test_tools: { iperf: { interval: 0.5, interval_num: 8, client_host: 0, server_host: 4 } }
    competition_flows:
      - { flow_type: tcp-reno, client_host: 1, server_host: 5, delay: 1, duration: 3 }
    events: [{ at: 2, link: 3, set: { rate: 10M } }]
    verify: false
",
    );
    let (output, result) = case.run(&[]);
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    for protocol in ["brtp", "tcp-cubic"] {
        let one = measurement(&result, protocol, "iperf");
        let rates: Vec<_> = one["series"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|series| series["name"] == "throughput")
            .collect();
        assert_eq!(rates.len(), 2, "{one}");
        let competing =
            rates.iter().find(|series| series["of"].as_str().unwrap().contains("1 to 5")).unwrap();
        // The competing flow has not started yet.
        assert_eq!(competing["points"][0][1], 0.0);
        assert!(competing["points"].as_array().unwrap().len() > 2);
        let state = one["series"].as_array().unwrap().iter().find(|series| {
            series["name"] == "cwnd" && series["of"].as_str().unwrap().contains("RENO")
        });
        assert!(state.is_some(), "{protocol}: the competing flow has no congestion window");
        // The table lists the figures of the competing flow next to those of the tool, too.
        let flow = &one["flows"][0];
        assert_eq!(flow["label"], "TCP RENO 1 to 5", "{one}");
        let share = |figures: &serde_json::Value| figures["share_percent"].as_f64().unwrap();
        let sum = share(&one["figures"]) + share(&flow["figures"]);
        assert!((sum - 100.0).abs() < 1e-6, "{sum}");
        for figure in
            ["throughput_mbps", "rate_p50_mbps", "cwnd_p50_kb", "srtt_p50_ms", "retransmissions"]
        {
            assert!(
                flow["figures"][figure].as_f64().is_some_and(|value| value >= 0.0),
                "{figure}: {flow}"
            );
        }
        let head = format!("TCP RENO 1 to 5, competing with {}", one["label"].as_str().unwrap());
        assert!(stdout_of(&output).contains(&head), "{}", stdout_of(&output));
    }
}

/// Cross-validation of simulator and laboratory: within 5 % in three cases.
///
/// Other work on the machine can only reduce the figures in real time, so one attempt that agrees is
/// enough. Where none agrees, only attempts that the machine left alone contradict the simulator.
#[test]
fn simulator_and_laboratory_agree() {
    const NAME: &str = "simulator_and_laboratory_agree";
    const ATTEMPTS: usize = 6;
    /// Largest scheduling delay of an attempt that counts: chosen, not measured.
    const HARMLESS_DELAY_MS: f64 = 3.0;
    if !allowed(NAME) {
        return;
    }
    let _alone = lock_machine();
    for (rate, delay, loss) in [("50M", "5ms", "0%"), ("40M", "15ms", "5%"), ("30M", "10ms", "10%")]
    {
        let yaml = format!(
            "
tests:
  shared:
    topology: {{ topology_type: linear, nodes: 2, link: {{ rate: {rate}, delay: {delay}, loss: {loss} }} }}
    target_protocols: [brtp]
    test_tools: {{ iperf: {{ interval: 0.5, interval_num: 10 }} }}
    verify: false
"
        );
        let measure = |backend: &str| {
            let (output, result) = Case::new(&yaml).run(&["--backend", backend]);
            assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
            result
        };
        let steady = |result: &_| figure(result, "brtp", "iperf", "steady_mbps");
        let computed = steady(&measure("sim"));
        let mut attempts = Vec::new();
        let agrees = (0..ATTEMPTS).any(|_| {
            let result = measure("netns");
            let seen = steady(&result);
            let delay_ms = figure(&result, "brtp", "iperf", "scheduling_delay_max_ms");
            let is_disturbed = measurement(&result, "brtp", "iperf")["machine_bound"] == true
                || delay_ms > HARMLESS_DELAY_MS;
            attempts.push((seen, is_disturbed));
            (0.95..=1.05).contains(&(seen / computed))
        });
        let seen =
            format!("{rate} {delay} {loss}: {computed} and (Mbit/s, disturbed) {attempts:?}");
        if !agrees && attempts.iter().all(|&(_, is_disturbed)| is_disturbed) {
            skipped_also_in_ci(NAME, &format!("other work disturbed each attempt: {seen}"));
        } else {
            assert!(agrees, "{seen}");
        }
    }
}

#[test]
fn a_terminal_shows_the_remaining_time() {
    const NAME: &str = "a_terminal_shows_the_remaining_time";
    if !allowed(NAME) {
        return;
    }
    if Command::new("script").arg("--version").output().is_err() {
        return skipped(NAME, "no `script` to create a terminal (Debian: bsdutils)");
    }
    let _alone = lock_machine();
    let case = Case::new(
        "
tests:
  shown:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 5, interval: 0.5, interval_num: 4 } }
    verify: false
",
    );
    let batslab_command = batslab();
    let (program, out) = (batslab_command.get_program().to_string_lossy().into_owned(), case.out());
    let text = format!("'{program}' run '{}' -o '{}'", case.file(), out.display());
    let shown = Command::new("script")
        .args(["-qec", &text, "/dev/null"])
        .stdin(Stdio::null())
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let text = stdout_of(&shown);
    assert!(shown.status.success(), "{text}");
    for expected in ["UDP iperf", " s left", "Mbit/s", "report: "] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    // Without a terminal the output has lines and no progress bar.
    let again = batslab()
        .args(["run", &case.file(), "-o"])
        .arg(case.folder.path().join("again"))
        .output()
        .unwrap();
    let text = stderr_of(&again);
    assert!(text.contains("shown topology-0 UDP iperf") && !text.contains(" left"), "{text}");
}

/// An emulator that is stopped for a while affects the figures, and the report says so.
#[test]
fn a_delayed_emulator_is_reported() {
    if !allowed("a_delayed_emulator_is_reported") {
        return;
    }
    let _alone = lock_machine();
    let case = Case::new(
        "
tests:
  held:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 5, interval: 0.5, interval_num: 6 } }
    assertions: [{ figure: loss_percent, at_most: 100 }]
    verify: false
",
    );
    let out = case.out();
    let mut child = batslab()
        .args(["run", &case.file(), "-q", "-o"])
        .arg(&out)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("run-{}-0", child.id());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !out.join("held/topology-0/udp_iperf_0/client.out").exists() {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "the run did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = run(&["status", "--name", &name, "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    let emulator = status[0]["emulator"]["pid"].as_u64().unwrap().to_string();
    for (signal, time) in [("-STOP", 700), ("-CONT", 0)] {
        std::thread::sleep(Duration::from_millis(300));
        let sent = Command::new("kill").args([signal, &emulator]).status().unwrap();
        assert!(sent.success());
        std::thread::sleep(Duration::from_millis(time));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stdout_of(&output));
    assert!(
        stdout_of(&output).contains("host overload may have limited"),
        "{}",
        stdout_of(&output)
    );
    let result = std::fs::read(out.join("result.json")).unwrap();
    let result: serde_json::Value = serde_json::from_slice(&result).unwrap();
    let one = measurement(&result, "udp", "iperf");
    assert_eq!(one["machine_bound"], true, "{one}");
    assert!(one["figures"]["emulator_late_percent"].as_f64().unwrap() > 5.0, "{one}");
    assert!(one["warnings"].to_string().contains("emulator overload: it delivered"), "{one}");
    let verdict = result["cases"][0]["assertions"][0]["measured"].as_str().unwrap();
    assert!(verdict.contains("host overload may have limited it"), "{verdict}");
}

/// Processes of a run, found by an environment variable that all of them inherit.
fn processes_with(variable: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|word| word == variable.as_bytes())
        })
        .map(|process| {
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            format!("{} {}", process.file_name().to_string_lossy(), name.trim())
        })
        .collect()
}

#[test]
fn an_interrupt_leaves_no_processes_or_files() {
    if !allowed("an_interrupt_leaves_no_processes_or_files") {
        return;
    }
    let case = Case::new(
        "
tests:
  long:
    topology: { topology_type: linear, nodes: 2, link: { rate: 10M, delay: 5ms } }
    target_protocols: [tcp-cubic, brtp]
    execution_mode: parallel
    test_tools: { iperf: { interval_num: 60 } }
    capture: true
    verify: false
",
    );
    let out = case.out();
    let temporary = case.folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let variable = format!("BATSLAB_TEST_MARK={}", temporary.display());
    let mut child = batslab()
        .args(["run", &case.file(), "-q", "-o"])
        .arg(&out)
        .env("BATSLAB_TEST_MARK", &temporary)
        .env("TMPDIR", &temporary)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let name = format!("run-{}-", child.id());
    let deadline = Instant::now() + Duration::from_secs(30);
    let runs = |protocol: &str| {
        out.join(format!("long/topology-0/{protocol}_iperf_0/client.out")).exists()
    };
    while !(runs("tcp-cubic") && runs("brtp")) {
        assert!(
            Instant::now() < deadline && child.try_wait().unwrap().is_none(),
            "the run did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    // batslab, two emulators, two clients and two servers.
    let mut running = processes_with(&variable);
    while running.len() < 7 {
        assert!(Instant::now() < deadline, "{running:?}");
        std::thread::sleep(Duration::from_millis(20));
        running = processes_with(&variable);
    }
    let sent = Command::new("kill").arg("-INT").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr_of(&output).contains("interrupted"), "{}", stderr_of(&output));
    assert_eq!(processes_with(&variable), Vec::<String>::new(), "processes are left");
    assert!(!out.exists(), "the results folder is left");
    let files: Vec<_> = std::fs::read_dir(&temporary).unwrap().flatten().collect();
    assert!(files.is_empty(), "{files:?}");
    assert_eq!(leftovers(&name), Vec::<std::path::PathBuf>::new());
}

#[test]
fn doctor_reports_every_backend() {
    let output = run(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    for backend in ["backend sim", "backend netns", "backend netem", "backend ssh"] {
        let finding = findings.as_array().unwrap().iter().find(|one| one["what"] == backend);
        let finding = finding.unwrap_or_else(|| panic!("no {backend}"));
        let found = finding["found"].as_str().unwrap();
        assert!(!found.is_empty(), "{backend}");
        // The reason, and what to do.
        let reasons = ["use the backend netns", "not installed", "needs", "allow"];
        assert!(
            finding["good"] == true || reasons.iter().any(|word| found.contains(word)),
            "{found}"
        );
    }
}

/// Also runs tests as an ordinary user, in user namespaces, if this test runs as root.
#[test]
fn an_ordinary_user_runs_tests_in_user_namespaces() {
    const NAME: &str = "an_ordinary_user_runs_tests_in_user_namespaces";
    let skip = |why: &str| skipped(NAME, why);
    let case = Case::new(
        "
tests:
  user:
    topology: { topology_type: linear, nodes: 2, link: { rate: 20M, delay: 5ms } }
    target_protocols: [udp]
    test_tools: { iperf: { packet_type: udp, bitrate: 2, interval: 0.5, interval_num: 4 } }
    verify: false
    assertions:
      - { figure: loss_percent, protocol: udp, at_most: 50 }
",
    );
    // The user needs write access to the folder.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(case.folder.path(), open).unwrap();
    let as_user = |arguments: &[&str]| {
        let batslab_command = batslab();
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.env("HOME", case.folder.path());
        command
            .env("XDG_RUNTIME_DIR", case.folder.path())
            .arg(batslab_command.get_program())
            .args(arguments);
        command.output()
    };
    let doctor = match as_user(&["doctor", "--json"]) {
        Ok(output) if !output.stdout.is_empty() => output,
        other => {
            return skip(&format!("cannot run this program as another user: {other:?}"));
        }
    };
    let findings: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let namespaces =
        findings.as_array().unwrap().iter().find(|one| one["what"] == "network namespaces");
    if namespaces.is_none_or(|one| one["good"] != true) {
        return skip("this machine does not allow namespaces for users");
    }
    let _alone = lock_machine();
    let out = case.out();
    let output = as_user(&["run", &case.file(), "-q", "-o", out.to_str().unwrap()]).unwrap();
    assert!(output.status.success(), "{}{}", stdout_of(&output), stderr_of(&output));
    assert!(out.join("report.html").exists());
    // No labs of the user are left, either.
    let labs = case.folder.path().join("openbats-lab");
    let leftovers: Vec<_> = std::fs::read_dir(&labs).unwrap().flatten().collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}
