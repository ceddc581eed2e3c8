//! Real processes over a lab link: two network namespaces joined by an emulated link of `batslab`
//! that delays and loses frames. Where namespaces are not allowed each test says so loudly.

#[path = "program/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the program")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use support::{PROGRAM, Scratch, eventually, noise, skipped, text};

const PORT: &str = "5201";
/// The address of the host on the right of the first link.
const SERVER: &str = "10.77.1.2";
const SERVER6: &str = "fd00:ba75:0:1::2";

/// `batslab` beside the program. The workspace's test command has built it; other commands do not,
/// so it is built here.
fn batslab() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        let place = Path::new(PROGRAM).with_file_name("batslab");
        if !place.exists() {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--quiet", "-p", "bats-lab", "--bin", "batslab"]);
            if place.parent().is_some_and(|directory| directory.ends_with("release")) {
                cargo.arg("--release");
            }
            let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
            assert!(built.is_ok_and(|status| status.success()), "batslab cannot be built");
        }
        place
    })
}

fn run(arguments: &[&str]) -> Output {
    Command::new(batslab()).args(arguments).output().unwrap()
}

/// Whether this machine allows labs; says so if not.
fn allowed(test: &str) -> bool {
    let doctor = run(&["doctor", "--json"]);
    if doctor.status.success() {
        return true;
    }
    let findings: Value = serde_json::from_slice(&doctor.stdout).unwrap();
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

/// A lab that goes when the test does, however it ends.
struct Lab {
    name: String,
    scratch: Scratch,
}

/// A process on a host of the lab; ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Lab {
    /// Two hosts with a bad link between them.
    fn up(tag: &str, link: &[&str]) -> Self {
        let lab = Self {
            name: format!("iperf-{tag}-{}", std::process::id()),
            scratch: Scratch::new(&format!("lab-{tag}")),
        };
        let up = run(&[&["up", "--name", &lab.name], link].concat());
        assert!(up.status.success(), "{}", text(&up.stderr));
        lab
    }

    /// The program on a host.
    fn program(&self, host: &str, options: &[&str]) -> Command {
        let mut command = Command::new(batslab());
        command.args(["exec", "--name", &self.name, host, "--", PROGRAM]).args(options);
        command
    }

    /// A server on the right, once it listens.
    fn server(&self, options: &[&str]) -> Running {
        let (pid, directory) = (self.scratch.path("pid"), self.scratch.path("in"));
        let words = ["-s", "-p", PORT, "--directory", &directory, "--pidfile", &pid];
        let child = self
            .program("b", &[&words, options].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let running = Running(child);
        let number = format!("{}\n", running.0.id());
        eventually("the server listens", || fs::read_to_string(&pid).is_ok_and(|x| x == number));
        running
    }

    /// A client on the left.
    fn client(&self, options: &[&str]) -> Output {
        let host = if options.contains(&"-6") { SERVER6 } else { SERVER };
        self.program("a", &[&["-c", host, "-p", PORT], options].concat()).output().unwrap()
    }

    /// What a client reports as JSON.
    fn report(&self, options: &[&str]) -> Value {
        let output = self.client(&[options, &["-J"]].concat());
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Frames that the link has lost.
    fn lost(&self) -> u64 {
        let status = run(&["status", "--name", &self.name, "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        ["forward", "backward"]
            .map(|way| status[0]["links"][0][way]["lost"].as_u64().unwrap())
            .iter()
            .sum()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        run(&["down", "--name", &self.name]);
    }
}

fn bytes(sum: &Value) -> u64 {
    sum["bytes"].as_u64().unwrap()
}

#[test]
fn options_work_in_both_directions_over_a_bad_link() {
    if !allowed("options_work_in_both_directions_over_a_bad_link") {
        return;
    }
    let link = ["--rate", "100M", "--delay", "10ms", "--loss", "5%"];
    let lab = Lab::up("options", &link);
    let _server = lab.server(&[]);
    let short = ["-t", "1", "-b", "8M", "-i", "0.5"];
    for options in [
        &["-m", "1"][..],
        &["-m", "1", "-r"],
        &["-m", "1", "--bidir", "-P", "2"],
        &["-m", "1", "-P", "8"],
        &["-m", "1", "-6", "-V"],
        &["-m", "0", "--latency"],
        &["-m", "0", "-r", "--deadline", "100"],
        &["-m", "3"],
        &["-m", "1", "-O", "0.4", "--get-server-output"],
    ] {
        let report = lab.report(&[&short[..], options].concat());
        let (start, end) = (&report["start"]["test_start"], &report["end"]);
        let has = |option: &str| options.contains(&option);
        let is_reliable = start["protocol"] == "BRTP";
        for key in ["", "_bidir_reverse"] {
            let [sent, received] =
                [format!("sum_sent{key}"), format!("sum_received{key}")].map(|key| &end[key]);
            if sent.is_null() {
                assert!(!has("--bidir"), "{end:#}");
                continue;
            }
            assert!(bytes(sent) > 100_000, "{options:?}: {end:#}");
            if is_reliable {
                assert_eq!(bytes(sent), bytes(received), "{options:?}: {end:#}");
            }
            let count = |sum: &Value, key: &str| sum[key].as_u64().unwrap();
            // Those of the receiver are what came and what did not.
            let [near, far] = [sent, received].map(|sum| count(sum, "packets"));
            assert_eq!(near, far, "{options:?}: {end:#}");
            if has("3") {
                assert!(count(received, "lost_packets") > 0, "the link loses: {end:#}");
            }
        }
        if has("--latency") {
            let times = &end["latency"]["forward"];
            let at = |times: &Value, key: &str| times[key].as_f64().unwrap();
            assert!(at(&times["round_trip"], "p50_us") >= 20_000.0, "{times:#}");
            assert!(at(&times["one_way"], "p50_us") >= 9_000.0, "{times:#}");
        }
        let streams = end["streams"].as_array().unwrap();
        let sender = &streams[0]["openbats"]["sender"];
        // There and back, 10 ms each.
        assert!(sender["rtt_us"].as_u64().is_none_or(|rtt| rtt >= 19_900), "{sender:#}");
    }
    assert!(lab.lost() > 100, "the link was as bad as it should be");

    // Bytes that end a test, whatever is lost.
    let report = lab.report(&["-m", "1", "-n", "1M", "-r"]);
    assert_eq!(bytes(&report["end"]["sum_received"]), 1_000_000);
    // The kernel's TCP over the same link, from the address asked for.
    let report = lab.report(&["-m", "1", "-t", "1", "--baseline", "tcp", "-I", "10.77.1.1"]);
    assert!(bytes(&report["baselines"][0]["end"]["sum_received"]) > 10_000);
    // Nobody is at that address.
    let nobody = lab
        .program("a", &["-c", "10.77.1.9", "-p", PORT, "--connect-timeout", "300"])
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(1));
}

/// 128 connections to a server 400 ms away are not opened one by one.
#[test]
fn many_streams_reach_a_far_server() {
    if !allowed("many_streams_reach_a_far_server") {
        return;
    }
    let lab = Lab::up("far", &["--rate", "100M", "--delay", "200ms", "--loss", "1%"]);
    let _server = lab.server(&["-1"]);
    let report = lab.report(&["-m", "1", "-P", "128", "-b", "20k", "-t", "1"]);
    let end = &report["end"];
    assert_eq!(end["streams"].as_array().unwrap().len(), 128);
    assert_eq!(bytes(&end["sum_sent"]), bytes(&end["sum_received"]));
    assert!(bytes(&end["sum_sent"]) >= 128 * 1_024, "each stream has sent: {end:#}");
}

#[test]
fn a_matrix_of_files_arrives_over_a_bad_link() {
    if !allowed("a_matrix_of_files_arrives_over_a_bad_link") {
        return;
    }
    let lab = Lab::up("files", &["--rate", "200M", "--delay", "5ms", "--loss", "5%"]);
    let tree = lab.scratch.0.join("tree");
    fs::create_dir_all(tree.join("deep/empty")).unwrap();
    let text_of = "a line of text that compresses well\n".repeat(30_000);
    fs::write(tree.join("text"), &text_of).unwrap();
    for (name, size) in [("nothing", 0), ("one", 1), ("deep/small", 12_345), ("large", 16 << 20)] {
        fs::write(tree.join(name), noise(size, size as u64)).unwrap();
    }
    let tree = tree.to_str().unwrap();
    for (number, options) in [&["-P", "8"][..], &["-C"], &["-P", "2"]].into_iter().enumerate() {
        // Everything is there already at the last time.
        let existing = if number == 1 { "overwrite" } else { "refuse" };
        if number == 1 {
            fs::remove_dir_all(lab.scratch.path("in/tree")).unwrap();
        }
        let _server = lab.server(&["-1", "--existing", existing]);
        let report = lab.report(&[options, &["-f", tree]].concat());
        let files = report["files"].as_array().unwrap();
        // Five files, three directories.
        assert_eq!(files.len(), 8, "{report:#}");
        for file in files {
            let name = file["name"].as_str().unwrap();
            assert_eq!(file["verified"], true, "{file}");
            let Some(hash) = file["blake3"].as_str() else { continue };
            let [near, far] =
                [lab.scratch.0.join(name), lab.scratch.0.join("in").join(name)].map(fs::read);
            let far = far.unwrap();
            assert!(near.unwrap() == far, "{name}");
            assert_eq!(hash, blake3::hash(&far).to_hex().as_str());
            if number == 2 {
                assert_eq!(file["state"], "unchanged", "{file}");
                // Small files are sent before the other side knows them.
                assert!(file["sent_bytes"].as_u64().unwrap() < 100_000, "{file}");
            }
        }
    }
}

#[test]
fn a_killed_transfer_goes_on_over_a_bad_link() {
    if !allowed("a_killed_transfer_goes_on_over_a_bad_link") {
        return;
    }
    const SIZE: u64 = 24_000_000;
    let lab = Lab::up("resume", &["--rate", "60M", "--delay", "10ms", "--loss", "5%"]);
    fs::write(lab.scratch.0.join("large"), noise(SIZE as usize, 4)).unwrap();
    let (file, partial) = (lab.scratch.path("large"), lab.scratch.0.join("in/.large.part"));
    let server = lab.server(&[]);
    let first = lab
        .program("a", &["-c", SERVER, "-p", PORT, "-f", &file])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let first = Running(first);
    // What is on the disk, not the length.
    let arrived = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&partial).map_or(0, |metadata| metadata.blocks() * 512)
    };
    eventually("half of it has arrived", || arrived() > SIZE / 2);
    first.kill();
    // The server is killed, too: nothing but the file is left.
    server.kill();
    assert!(partial.exists() && !lab.scratch.0.join("in/large").exists());
    let _server = lab.server(&["-1"]);
    let report = lab.report(&["-P", "2", "-f", &file]);
    let sent = report["files"][0]["sent_bytes"].as_u64().unwrap();
    // Some parts of 4 MiB may not have been whole.
    assert!(sent <= SIZE - 4_000_000, "{sent}");
    assert!(fs::read(&file).unwrap() == fs::read(lab.scratch.path("in/large")).unwrap());
    assert!(!partial.exists());
}
