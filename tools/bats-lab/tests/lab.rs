//! Labs on the real kernel. On machines without namespaces each test reports that it is skipped.
#![allow(clippy::disallowed_methods, reason = "tests in real time wait for real events")]

#[path = "../../../crates/openbats/tests/common/skip.rs"]
mod skip;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use skip::skipped;

fn batslab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_batslab")).args(arguments).output().unwrap()
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", stderr_of(output)))
}

/// Whether this machine allows labs; reports the test as skipped if not.
fn allowed(test: &str) -> bool {
    let doctor = batslab(&["doctor", "--json"]);
    if doctor.status.success() {
        return true;
    }
    let findings = json_of(&doctor);
    let reasons: Vec<&str> = findings
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["needed"] == true && finding["good"] == false)
        .filter_map(|finding| finding["found"].as_str())
        .collect();
    skipped(test, &reasons.join("; "));
    false
}

/// A lab that is removed when dropped.
struct Lab(String);

impl Lab {
    fn up(tag: &str, options: &[&str]) -> Self {
        let lab = Self(format!("test-{tag}-{}", std::process::id()));
        let mut arguments = vec!["up", "--name", &lab.0];
        arguments.extend(options);
        let up = batslab(&arguments);
        assert!(up.status.success(), "{}", stderr_of(&up));
        lab
    }

    fn report(&self) -> Value {
        let status = batslab(&["status", "--name", &self.0, "--json"]);
        assert!(status.status.success(), "{}", stderr_of(&status));
        json_of(&status)[0].clone()
    }

    fn verify(&self, packets: &str) -> Vec<Value> {
        let name = self.0.as_str();
        let verify =
            batslab(&["verify", "--name", name, "--packets", packets, "--seconds", "4", "--json"]);
        json_of(&verify).as_array().unwrap().clone()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        batslab(&["down", "--name", &self.0]);
    }
}

fn row<'a>(rows: &'a [Value], what: &str) -> &'a Value {
    rows.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no row {what}"))
}

fn value(rows: &[Value], what: &str) -> f64 {
    row(rows, what)["value"].as_f64().unwrap()
}

/// Waits for at most 10 s until `done` returns true.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether nothing is left of a lab: its namespaces (visible to root) and its state directory.
fn is_gone(name: &str) -> bool {
    !["a", "b", "emulator"]
        .iter()
        .any(|host| Path::new(&format!("/run/netns/{name}-{host}")).exists())
        && stderr_of(&batslab(&["status", "--name", name])).contains("there is no lab")
}

fn signal(signal: &str, pid: u64) {
    let done = Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_lab_loses_nothing_unless_asked() {
    if !allowed("a_lab_loses_nothing_unless_asked") {
        return;
    }
    let lab = Lab::up("lossless", &["--delay", "1ms"]);
    let status = batslab(&["status", "--name", &lab.0]);
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(text.contains("one-way delay 1 ms, loss 0 %"), "{text}");
    lab.verify("1000");
    let link = &lab.report()["links"][0];
    for direction in ["forward", "backward"] {
        let counters = &link[direction];
        assert!(counters["frames_in"].as_u64().unwrap() >= 1_000, "{counters}");
        assert_eq!(counters["lost"], 0, "{counters}");
    }
}

#[test]
fn a_lab_emulates_the_requested_link() {
    if !allowed("a_lab_emulates_the_requested_link") {
        return;
    }
    let lab = Lab::up("does", &["--rate", "50M", "--delay", "20ms", "--loss", "10%/0"]);
    let rows = lab.verify("10000");
    // Wide bounds, because the machine may be busy. `batslab verify` itself is stricter.
    let round_trip = value(&rows, "round trip");
    assert!((39.9..80.0).contains(&round_trip), "{rows:?}");
    assert!((8.5..11.5).contains(&value(&rows, "loss a to b")), "{rows:?}");
    assert!(value(&rows, "loss b to a") < 1.0, "{rows:?}");
    let rate = value(&rows, "rate a to b");
    assert!((25e6..100e6).contains(&rate), "{rows:?}");

    let set = batslab(&["set", "--name", &lab.0, "--loss", "50%", "--delay", "5ms"]);
    assert!(set.status.success(), "{}", stderr_of(&set));
    let rows = lab.verify("4000");
    assert!((45.0..55.0).contains(&value(&rows, "loss a to b")), "{rows:?}");
    assert!((9.9..35.0).contains(&value(&rows, "round trip")), "{rows:?}");
    let report = lab.report();
    assert!(report["links"][0]["forward"]["lost"].as_u64().unwrap() > 1000, "{report}");
}

#[test]
fn a_chain_forwards_through_its_relays() {
    if !allowed("a_chain_forwards_through_its_relays") {
        return;
    }
    let options = ["--hops", "3", "--rate", "50M", "--delay", "5ms", "--loss", "20%/0"];
    let lab = Lab::up("chain", &options);
    let rows = lab.verify("5000");
    // 1 - 0.8^3, and what the queue drops when a busy machine sends in bursts.
    assert!((44.0..100.0).contains(&value(&rows, "loss a to b")), "{rows:?}");
    assert!((29.9..100.0).contains(&value(&rows, "round trip")), "{rows:?}");
    let report = lab.report();
    for link in report["links"].as_array().unwrap() {
        let count = |of: &str| link["forward"][of].as_f64().unwrap();
        let lost = count("lost") / (count("frames_in") - count("queue_drops"));
        assert!((0.17..0.23).contains(&lost), "{report}");
        assert_eq!(link["backward"]["lost"], 0, "{report}");
    }
    assert_eq!(report["links"].as_array().unwrap().len(), 3);
}

#[test]
fn commands_run_on_hosts_and_return_their_exit_codes() {
    if !allowed("commands_run_on_hosts_and_return_their_exit_codes") {
        return;
    }
    let lab = Lab::up("exec", &["--loss", "0"]);
    let name = lab.0.as_str();
    let shown = batslab(&["exec", "--name", name, "b", "--", "cat", "/proc/net/fib_trie"]);
    assert!(shown.status.success(), "{}", stderr_of(&shown));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("10.77.1.2") && !text.contains("10.77.1.1\n"), "{text}");
    let code = batslab(&["exec", "--name", name, "a", "--", "sh", "-c", "exit 7"]).status.code();
    assert_eq!(code, Some(7));
    let missing = batslab(&["exec", "--name", name, "a", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(1));
    let unknown = batslab(&["exec", "--name", name, "c", "--", "true"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr_of(&unknown).contains("has no host `c`; it has a, b"));
    let again = batslab(&["up", "--name", name]);
    assert_eq!(again.status.code(), Some(1));
    assert!(stderr_of(&again).contains("is running already"), "{}", stderr_of(&again));
    assert_eq!(lab.report()["name"], name);

    assert!(batslab(&["down", "--name", name]).status.success());
    assert!(is_gone(name));
    assert_eq!(batslab(&["down", "--name", name]).status.code(), Some(1));
    assert_eq!(batslab(&["exec", "--name", name, "a", "--", "true"]).status.code(), Some(1));
}

#[test]
fn a_lab_whose_emulator_was_killed_is_cleaned_up() {
    if !allowed("a_lab_whose_emulator_was_killed_is_cleaned_up") {
        return;
    }
    let lab = Lab::up("killed", &[]);
    signal("-KILL", lab.report()["emulator"]["pid"].as_u64().unwrap());
    eventually("the death of the emulator", || {
        let status = batslab(&["status", "--name", &lab.0]);
        stderr_of(&status).contains("has died; its remains were removed")
    });
    assert!(is_gone(&lab.0));
}

/// Starts a long measurement in its own lab and waits until the lab is up.
fn long_measurement() -> (Child, String) {
    let child = Command::new(env!("CARGO_BIN_EXE_batslab"))
        .args(["verify", "--rate", "1M", "--delay", "1ms", "--packets", "100000"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let name = format!("verify-{}", child.id());
    eventually("the lab", || batslab(&["status", "--name", &name]).status.success());
    (child, name)
}

#[test]
fn a_lab_is_removed_when_its_process_is_killed() {
    if !allowed("a_lab_is_removed_when_its_process_is_killed") {
        return;
    }
    let (mut child, name) = long_measurement();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the clean-up", || is_gone(&name));
}

#[test]
fn an_interrupt_removes_the_lab() {
    if !allowed("an_interrupt_removes_the_lab") {
        return;
    }
    let (mut child, name) = long_measurement();
    signal("-INT", u64::from(child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(is_gone(&name));
}

#[test]
fn invalid_options_exit_with_code_two() {
    for arguments in [
        &["up", "--rate", "fast"][..],
        &["up", "--loss", "101%"],
        &["up", "--delay", "an hour"],
        &["up", "--hops", "0"],
        &["up", "--name", "../x"],
        &["up", "--mtu", "20"],
        &["exec", "a"],
        &["demo", "--protocols", "udp"],
        &["demo", "--runs", "0"],
        &["no-such-command"],
    ] {
        let output = batslab(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn errors_are_one_line_with_exit_code_one() {
    for arguments in [
        &["status", "--name", "no-such-lab"][..],
        &["down", "--name", "no-such-lab"],
        &["exec", "--name", "no-such-lab", "a", "--", "true"],
        &["set", "--name", "no-such-lab", "--loss", "1%"],
        &["verify", "--name", "no-such-lab"],
        &["demo", "--out", "/no/such/directory/report.html"],
    ] {
        let output = batslab(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let error = stderr_of(&output);
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
}

/// Runs the real programs over an emulated link: a file transfer, BRTP, TCP, the table and the
/// report.
#[test]
fn the_demo_compares_brtp_with_tcp() {
    if !allowed("the_demo_compares_brtp_with_tcp") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (page, picture) = (directory.path().join("r.html"), directory.path().join("p.svg"));
    let mut demo = Command::new(env!("CARGO_BIN_EXE_batslab"));
    if Path::new(env!("CARGO_BIN_EXE_batslab")).with_file_name("bats_iperf").exists() {
        // The same command has built bats_iperf. With this variable, batslab would build it again.
        demo.env_remove("CARGO_MANIFEST_DIR");
    }
    let output = demo
        .args(["demo", "--json", "--protocols", "brtp,cubic", "--seconds", "4", "--file-mib", "2"])
        .args(["--rate", "40M", "--delay", "15ms", "--loss", "5%"])
        .arg("--out")
        .arg(&page)
        .arg("--picture")
        .arg(&picture)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr_of(&output));
    let figures = json_of(&output);
    assert_eq!(figures["simulated"], false);
    assert_eq!(figures["file"]["bytes"], 2 << 20);
    assert_eq!(figures["file"]["verified"], true);
    let rate = |index: usize| figures["runs"][index]["goodput_mbps_10s"].as_f64().unwrap();
    assert_eq!(figures["runs"][0]["protocol"], "BRTP");
    let of_protocol = &figures["protocols"][0];
    assert_eq!((&of_protocol["protocol"], &of_protocol["runs"]), (&"BRTP".into(), &1.into()));
    // Both are the same number, of which JSON may round the last digit.
    let median = of_protocol["goodput_mbps_10s"]["median"].as_f64().unwrap();
    assert!((median / rate(0) - 1.0).abs() < 1e-12, "{median} and {}", rate(0));
    // A ratio within one run: CUBIC collapses at 5 % loss on any machine.
    assert!(rate(0) > 2.0 * rate(1), "{} and {} Mbit/s", rate(0), rate(1));
    assert!(std::fs::read_to_string(&page).unwrap().contains("<polyline"));
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
}
