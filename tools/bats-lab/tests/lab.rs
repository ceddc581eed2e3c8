//! Labs on the real kernel. Where namespaces are not allowed each test says so loudly.
#![allow(clippy::disallowed_methods, reason = "tests of real time wait for real things")]

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn batslab(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_batslab")).args(arguments).output().unwrap()
}

fn error_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", error_of(output)))
}

/// Whether this machine allows labs; says so if not.
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
    // Not by a macro of printing, whose output of tests that pass is kept back.
    let skipped = format!("\nSKIPPED lab test {test}: {}\n", reasons.join("; "));
    std::io::stderr().write_all(skipped.as_bytes()).unwrap();
    false
}

/// A lab that goes when the test does, however it ends.
struct Lab(String);

impl Lab {
    fn up(tag: &str, options: &[&str]) -> Self {
        let lab = Self(format!("test-{tag}-{}", std::process::id()));
        let mut arguments = vec!["up", "--name", &lab.0];
        arguments.extend(options);
        let up = batslab(&arguments);
        assert!(up.status.success(), "{}", error_of(&up));
        lab
    }

    fn report(&self) -> Value {
        let status = batslab(&["status", "--name", &self.0, "--json"]);
        assert!(status.status.success(), "{}", error_of(&status));
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

/// Waits until `done`, for at most ten seconds.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What is there of a lab of that name: its namespaces (root's are visible) and its directory.
fn is_gone(name: &str) -> bool {
    !["a", "b", "emulator"]
        .iter()
        .any(|host| Path::new(&format!("/run/netns/{name}-{host}")).exists())
        && error_of(&batslab(&["status", "--name", name])).contains("there is no lab")
}

fn signal(signal: &str, pid: u64) {
    let done = Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_lab_does_what_it_was_asked_for() {
    if !allowed("a_lab_does_what_it_was_asked_for") {
        return;
    }
    let lab = Lab::up("does", &["--rate", "50M", "--delay", "20ms", "--loss", "10%/0"]);
    let rows = lab.verify("10000");
    // Wide bounds: the machine may be busy. `batslab verify` itself is stricter.
    let round_trip = value(&rows, "round trip");
    assert!((39.9..80.0).contains(&round_trip), "{rows:?}");
    assert!((8.5..11.5).contains(&value(&rows, "loss a to b")), "{rows:?}");
    assert!(value(&rows, "loss b to a") < 1.0, "{rows:?}");
    let rate = value(&rows, "rate a to b");
    assert!((40e6..60e6).contains(&rate), "{rows:?}");

    let set = batslab(&["set", "--name", &lab.0, "--loss", "50%", "--delay", "5ms"]);
    assert!(set.status.success(), "{}", error_of(&set));
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
    // 1 - 0.8^3
    assert!((44.0..54.0).contains(&value(&rows, "loss a to b")), "{rows:?}");
    assert!((29.9..70.0).contains(&value(&rows, "round trip")), "{rows:?}");
}

#[test]
fn commands_run_on_hosts_and_say_how_they_ended() {
    if !allowed("commands_run_on_hosts_and_say_how_they_ended") {
        return;
    }
    let lab = Lab::up("exec", &["--loss", "0"]);
    let name = lab.0.as_str();
    let shown = batslab(&["exec", "--name", name, "b", "--", "cat", "/proc/net/fib_trie"]);
    assert!(shown.status.success(), "{}", error_of(&shown));
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(text.contains("10.77.1.2") && !text.contains("10.77.1.1\n"), "{text}");
    let code = batslab(&["exec", "--name", name, "a", "--", "sh", "-c", "exit 7"]).status.code();
    assert_eq!(code, Some(7));
    let missing = batslab(&["exec", "--name", name, "a", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(1));
    let stranger = batslab(&["exec", "--name", name, "c", "--", "true"]);
    assert_eq!(stranger.status.code(), Some(1));
    assert!(error_of(&stranger).contains("has no host `c`; it has a, b"));
    let again = batslab(&["up", "--name", name]);
    assert_eq!(again.status.code(), Some(1));
    assert!(error_of(&again).contains("is up already"), "{}", error_of(&again));
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
        error_of(&status).contains("has died; what was left of it is cleaned up")
    });
    assert!(is_gone(&lab.0));
}

/// Starts a measurement that takes long, in a lab of its own, and waits until it is up.
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
fn a_lab_goes_with_the_process_that_was_killed() {
    if !allowed("a_lab_goes_with_the_process_that_was_killed") {
        return;
    }
    let (mut child, name) = long_measurement();
    child.kill().unwrap();
    child.wait().unwrap();
    eventually("the clean-up", || is_gone(&name));
}

#[test]
fn an_interrupt_takes_the_lab_down() {
    if !allowed("an_interrupt_takes_the_lab_down") {
        return;
    }
    let (mut child, name) = long_measurement();
    signal("-INT", u64::from(child.id()));
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(is_gone(&name));
}

#[test]
fn bad_options_are_refused_with_two() {
    for arguments in [
        &["up", "--rate", "fast"][..],
        &["up", "--loss", "101%"],
        &["up", "--delay", "an hour"],
        &["up", "--hops", "0"],
        &["up", "--name", "../x"],
        &["up", "--mtu", "20"],
        &["exec", "a"],
        &["demo", "--protocols", "udp"],
        &["no-such-command"],
    ] {
        let output = batslab(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn errors_are_one_sentence_and_one() {
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
        let error = error_of(&output);
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
}

/// Real programs over a real link: a file, BRTP, TCP, the table and the report.
#[test]
fn the_demo_shows_brtp_beside_tcp() {
    if !allowed("the_demo_shows_brtp_beside_tcp") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (page, picture) = (directory.path().join("r.html"), directory.path().join("p.svg"));
    let mut demo = Command::new(env!("CARGO_BIN_EXE_batslab"));
    if Path::new(env!("CARGO_BIN_EXE_batslab")).with_file_name("bats_iperf").exists() {
        // Built by the same command as this test; without this variable it is taken as it is.
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
    assert!(output.status.success(), "{}", error_of(&output));
    let figures = json_of(&output);
    assert_eq!(figures["simulated"], false);
    assert_eq!(figures["file"]["bytes"], 2 << 20);
    assert_eq!(figures["file"]["verified"], true);
    let rate = |index: usize| figures["runs"][index]["goodput_mbps_10s"].as_f64().unwrap();
    assert_eq!(figures["runs"][0]["protocol"], "BRTP");
    // A ratio within one run; CUBIC collapses at 5 % whatever the machine does.
    assert!(rate(0) > 2.0 * rate(1), "{} and {} Mbit/s", rate(0), rate(1));
    assert!(std::fs::read_to_string(&page).unwrap().contains("<polyline"));
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
}
