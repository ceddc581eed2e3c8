//! Servers that go on without their terminal.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::support::{PROGRAM, Scratch, client, eventually, free_port, signal, text};

/// A daemon started in a directory of its own; what is left of it in the end is killed.
struct Daemon {
    scratch: Scratch,
    port: u16,
    /// Its processes, by what it said when it started.
    started: Vec<u32>,
}

impl Daemon {
    fn new(name: &str) -> Self {
        Self { scratch: Scratch::new(name), port: free_port(), started: Vec::new() }
    }

    /// Starts it with files that are named from where it is started.
    fn start(&mut self, options: &[&str]) -> Output {
        let output = Command::new(PROGRAM)
            .args(["-sD", "-I", "lo", "-p", &self.port.to_string()])
            .args(["--pidfile", "pid", "-l", "log", "--directory", "in"])
            .args(options)
            .current_dir(&self.scratch.0)
            .output()
            .unwrap();
        let words = text(&output.stdout);
        self.started.extend(words.trim().rsplit(' ').next().and_then(|x| x.parse::<u32>().ok()));
        output
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.0.join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for &process in &self.started {
            // The number may be another's by now.
            if runs(process) && command(process).contains("--detached") {
                signal("KILL", process);
            }
        }
    }
}

fn command(process: u32) -> String {
    text(&fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default())
}

/// The state, parent and so on of a process (`man 5 proc`), unless it has ended.
fn fields(process: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect::<Vec<_>>();
    // Nobody may have asked yet how it ended.
    (fields[0] != "Z").then_some(fields)
}

fn runs(process: u32) -> bool {
    fields(process).is_some()
}

#[test]
fn a_daemon_leaves_its_terminal_serves_and_ends_by_a_signal() {
    let mut daemon = Daemon::new("daemon");
    let output = daemon.start(&["-L", "protocol"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("certificate fingerprint: "));
    let process = daemon.started[0];
    assert_eq!(fs::read_to_string(daemon.path("pid")).unwrap(), format!("{process}\n"));
    // Of a session of its own, without a terminal; nothing is held open that others need.
    let fields = fields(process).unwrap();
    assert_eq!((fields[3].clone(), fields[4].as_str()), (process.to_string(), "0"));
    let link = |what: &str| fs::read_link(format!("/proc/{process}/{what}")).unwrap();
    assert_eq!(link("cwd"), Path::new("/"));
    for number in 0..3 {
        assert_eq!(link(&format!("fd/{number}")), Path::new("/dev/null"));
    }

    fs::write(daemon.path("file"), "content").unwrap();
    let file = daemon.scratch.path("file");
    let sent = client(daemon.port, &["-f", &file]);
    assert!(sent.status.success(), "{}", text(&sent.stderr));
    assert_eq!(fs::read_to_string(daemon.path("in/file")).unwrap(), "content");

    // Both logs can be rotated.
    for name in ["log", "protocol"] {
        fs::rename(daemon.path(name), daemon.path(&format!("{name}.1"))).unwrap();
    }
    signal("HUP", process);
    eventually("the logs are there again", || {
        daemon.path("log").exists() && daemon.path("protocol").exists()
    });
    assert!(client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success());
    eventually("the report is in the log", || daemon.log().contains("receiver"));
    // What nobody can read on its standard error.
    assert_eq!(client(daemon.port, &["-m", "0", "-f", &file]).status.code(), Some(2));
    fs::write(daemon.path("file"), "other").unwrap();
    assert_eq!(client(daemon.port, &["-f", &file]).status.code(), Some(1));
    eventually("the error is in the log", || daemon.log().contains("bats_iperf: error - file"));

    signal("TERM", process);
    eventually("it ends", || !runs(process));
    assert!(!daemon.path("pid").exists(), "its number has gone with it");
    for name in ["protocol.1", "protocol"] {
        let log = fs::read_to_string(daemon.path(name)).unwrap();
        assert!(log.contains("INFO") && log.contains("test begins"), "{name}: {log}");
    }
}

#[test]
fn a_daemon_that_cannot_start_says_so_where_it_was_started() {
    let mut daemon = Daemon::new("daemon-refused");
    assert!(daemon.start(&[]).status.success());
    let running = fs::read_to_string(daemon.path("pid")).unwrap();
    // The same ports; then other ports, but the same file for its number.
    let again = daemon.start(&[]);
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("cannot listen on port"), "{}", text(&again.stderr));
    let (first, other) = (daemon.port, free_port());
    daemon.port = other;
    let again = daemon.start(&[]);
    daemon.port = first;
    assert_eq!(again.status.code(), Some(1));
    let words = text(&again.stderr);
    assert!(words.contains(&format!("running process {}", running.trim())), "{words}");
    assert_eq!(fs::read_to_string(daemon.path("pid")).unwrap(), running);
    assert_eq!(daemon.start(&["--directory", "in", "-d"]).status.code(), Some(2));
    assert_eq!(client(daemon.port, &["-D"]).status.code(), Some(2));
    assert!(client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success(), "it still serves");
}

#[test]
fn a_daemon_that_was_killed_is_started_again() {
    let mut daemon = Daemon::new("daemon-killed");
    assert!(daemon.start(&[]).status.success());
    signal("KILL", daemon.started[0]);
    eventually("it is gone", || !runs(daemon.started[0]));
    assert!(daemon.path("pid").exists(), "nobody took its number away");
    let output = daemon.start(&["-1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let process = daemon.started[1];
    assert_eq!(fs::read_to_string(daemon.path("pid")).unwrap(), format!("{process}\n"));
    assert!(client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success());
    eventually("it ends after one test", || !runs(process));
    assert!(!daemon.path("pid").exists());
    assert_eq!(daemon.log().matches("Server listening on").count(), 2, "the log is added to");
}
