//! Real processes over a lab link: two network namespaces connected by an emulated link of
//! `batslab` that delays and loses frames. Without permission for namespaces each test prints that
//! it was skipped.

#[path = "program/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the program")]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use support::{PROGRAM, Scratch, noise, skipped, text, wait_until};

const PORT: &str = "5201";
/// Address of the host on the right end of the first link.
const SERVER: &str = "10.77.1.2";
const SERVER6: &str = "fd00:ba75:0:1::2";

/// The `batslab` binary next to the program. The workspace's test command builds it; if another
/// command did not, it is built here.
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
            assert!(built.is_ok_and(|status| status.success()), "cannot build batslab");
        }
        place
    })
}

fn run(arguments: &[&str]) -> Output {
    Command::new(batslab()).args(arguments).output().unwrap()
}

/// Whether this machine can run labs; prints the reason if not.
fn labs_allowed(test: &str) -> bool {
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

/// A lab; removed when dropped.
struct Lab {
    name: String,
    scratch: Scratch,
}

/// A process on a lab host; killed when dropped.
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
    /// Creates two hosts connected by a link with these parameters.
    fn up(tag: &str, link: &[&str]) -> Self {
        let lab = Self {
            name: format!("iperf-{tag}-{}", std::process::id()),
            scratch: Scratch::new(&format!("lab-{tag}")),
        };
        let up = run(&[&["up", "--name", &lab.name], link].concat());
        assert!(up.status.success(), "{}", text(&up.stderr));
        lab
    }

    /// A command that runs the program on a host.
    fn program(&self, host: &str, options: &[&str]) -> Command {
        let mut command = Command::new(batslab());
        command.args(["exec", "--name", &self.name, host, "--", PROGRAM]).args(options);
        command
    }

    /// Starts a server on the right host and waits until it listens.
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
        wait_until("the server listens", || fs::read_to_string(&pid).is_ok_and(|x| x == number));
        running
    }

    /// Runs a client on the left host.
    fn client(&self, options: &[&str]) -> Output {
        let host = if options.contains(&"-6") { SERVER6 } else { SERVER };
        self.program("a", &[&["-c", host, "-p", PORT], options].concat()).output().unwrap()
    }

    /// Runs a client and returns its JSON report.
    fn report(&self, options: &[&str]) -> Value {
        let output = self.client(&[options, &["-J"]].concat());
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Number of frames that the link has lost.
    fn lost(&self) -> u64 {
        let status = run(&["status", "--name", &self.name, "--json"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap();
        ["forward", "backward"]
            .map(|direction| status[0]["links"][0][direction]["lost"].as_u64().unwrap())
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
fn options_work_in_both_directions_over_a_lossy_link() {
    if !labs_allowed("options_work_in_both_directions_over_a_lossy_link") {
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
            // The receiver's count includes lost messages.
            let [near, far] = [sent, received].map(|sum| count(sum, "packets"));
            assert_eq!(near, far, "{options:?}: {end:#}");
            if has("3") {
                assert!(
                    count(received, "lost_packets") > 0,
                    "the link must lose messages: {end:#}"
                );
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
        // 10 ms in each direction.
        assert!(sender["rtt_us"].as_u64().is_none_or(|rtt| rtt >= 19_900), "{sender:#}");
    }
    assert!(lab.lost() > 100, "the link must lose packets");

    // A byte limit ends the test exactly, in spite of loss.
    let report = lab.report(&["-m", "1", "-n", "1M", "-r"]);
    assert_eq!(bytes(&report["end"]["sum_received"]), 1_000_000);
    // The kernel's TCP over the same link, from the given local address.
    let report = lab.report(&["-m", "1", "-t", "1", "--baseline", "tcp", "-I", "10.77.1.1"]);
    assert!(bytes(&report["baselines"][0]["end"]["sum_received"]) > 10_000);
    // No server at that address.
    let unreachable = lab
        .program("a", &["-c", "10.77.1.9", "-p", PORT, "--connect-timeout", "300"])
        .output()
        .unwrap();
    assert_eq!(unreachable.status.code(), Some(1));
}

/// 128 connections to a server with 400 ms RTT are not opened one at a time.
#[test]
fn many_streams_connect_to_a_distant_server() {
    if !labs_allowed("many_streams_connect_to_a_distant_server") {
        return;
    }
    let lab = Lab::up("far", &["--rate", "100M", "--delay", "200ms", "--loss", "1%"]);
    let _server = lab.server(&["-1"]);
    let report = lab.report(&["-m", "1", "-P", "128", "-b", "20k", "-t", "1"]);
    let end = &report["end"];
    assert_eq!(end["streams"].as_array().unwrap().len(), 128);
    assert_eq!(bytes(&end["sum_sent"]), bytes(&end["sum_received"]));
    assert!(bytes(&end["sum_sent"]) >= 128 * 1_024, "each stream must send: {end:#}");
}

#[test]
fn files_of_all_sizes_arrive_over_a_lossy_link() {
    if !labs_allowed("files_of_all_sizes_arrive_over_a_lossy_link") {
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
        // In the last round the receiver has everything already.
        let existing = if number == 1 { "overwrite" } else { "refuse" };
        if number == 1 {
            fs::remove_dir_all(lab.scratch.path("in/tree")).unwrap();
        }
        let _server = lab.server(&["-1", "--merge", "--existing", existing]);
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
                // Small files are sent before the sender learns that the receiver has them.
                assert!(file["sent_bytes"].as_u64().unwrap() < 100_000, "{file}");
            }
        }
    }
}

#[test]
fn a_killed_transfer_resumes_over_a_lossy_link() {
    if !labs_allowed("a_killed_transfer_resumes_over_a_lossy_link") {
        return;
    }
    const SIZE: u64 = 24_000_000;
    let lab = Lab::up("resume", &["--rate", "60M", "--delay", "10ms", "--loss", "5%"]);
    fs::write(lab.scratch.0.join("large"), noise(SIZE as usize, 4)).unwrap();
    let (file, partial) =
        (lab.scratch.path("large"), lab.scratch.0.join("in/.large.openbats.part"));
    let server = lab.server(&[]);
    let first = lab
        .program("a", &["-c", SERVER, "-p", PORT, "-f", &file])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let first = Running(first);
    // Allocated blocks, not the file length.
    let arrived = || {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&partial).map_or(0, |metadata| metadata.blocks() * 512)
    };
    wait_until("half of it has arrived", || arrived() > SIZE / 2);
    first.kill();
    // Kill the server, too, so that only the partial file remains.
    server.kill();
    assert!(partial.exists() && !lab.scratch.0.join("in/large").exists());
    let _server = lab.server(&["-1"]);
    let report = lab.report(&["-P", "2", "-f", &file]);
    let sent = report["files"][0]["sent_bytes"].as_u64().unwrap();
    // Some 4 MiB parts may have been incomplete.
    assert!(sent <= SIZE - 4_000_000, "{sent}");
    assert!(fs::read(&file).unwrap() == fs::read(lab.scratch.path("in/large")).unwrap());
    assert!(!partial.exists());
}
