//! Servers that run as daemons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{Scratch, client, free_port, program, signal, text, wait_until};

/// A daemon in its own directory; remaining processes are killed when dropped.
struct Daemon {
    scratch: Scratch,
    port: u16,
    /// Process IDs, from the output of each start.
    started: Vec<u32>,
}

impl Daemon {
    fn new(name: &str) -> Self {
        Self { scratch: Scratch::new(name), port: free_port(), started: Vec::new() }
    }

    /// Starts the daemon with file names relative to its directory.
    fn start(&mut self, options: &[&str]) -> Output {
        let output = program()
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
            // The process ID may have been reused.
            if runs(process) && command(process).contains("--detached") {
                signal("KILL", process);
            }
        }
    }
}

fn command(process: u32) -> String {
    text(&fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default())
}

/// The state, parent and further fields of a process (`man 5 proc`), unless it has ended.
fn fields(process: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect::<Vec<_>>();
    // A zombie has ended, too.
    (fields[0] != "Z").then_some(fields)
}

fn runs(process: u32) -> bool {
    fields(process).is_some()
}

#[test]
fn a_daemon_detaches_serves_and_ends_by_a_signal() {
    let mut daemon = Daemon::new("daemon");
    let output = daemon.start(&["-L", "protocol"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("certificate fingerprint: "));
    let process = daemon.started[0];
    assert_eq!(fs::read_to_string(daemon.path("pid")).unwrap(), format!("{process}\n"));
    // It has its own process session without a terminal, and keeps no directory or pipe open.
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
    wait_until("the logs are there again", || {
        daemon.path("log").exists() && daemon.path("protocol").exists()
    });
    assert!(client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success());
    wait_until("the report is in the log", || daemon.log().contains("receiver"));
    // Its notes and errors go to the log because it has no standard error.
    assert_eq!(client(daemon.port, &["-m", "0", "-f", &file]).status.code(), Some(2));
    fs::write(daemon.path("file"), "other").unwrap();
    assert_eq!(client(daemon.port, &["-f", &file]).status.code(), Some(1));
    wait_until("the error is in the log", || daemon.log().contains("bats_iperf: error - file"));

    signal("TERM", process);
    wait_until("it ends", || !runs(process));
    assert!(!daemon.path("pid").exists(), "the PID file must be removed");
    for name in ["protocol.1", "protocol"] {
        let log = fs::read_to_string(daemon.path(name)).unwrap();
        assert!(log.contains("INFO") && log.contains("test started"), "{name}: {log}");
    }
}

#[test]
fn a_daemon_that_cannot_start_reports_the_error_to_the_caller() {
    let mut daemon = Daemon::new("daemon-refused");
    assert!(daemon.start(&[]).status.success());
    let running = fs::read_to_string(daemon.path("pid")).unwrap();
    // First the same ports; then other ports but the same PID file.
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
    assert!(
        client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success(),
        "it must still serve"
    );
}

#[test]
fn a_killed_daemon_can_be_restarted() {
    let mut daemon = Daemon::new("daemon-killed");
    assert!(daemon.start(&[]).status.success());
    signal("KILL", daemon.started[0]);
    wait_until("it is gone", || !runs(daemon.started[0]));
    // The kernel may close the sockets of a killed process after its end.
    wait_until("its port is free", || {
        std::net::UdpSocket::bind(("127.0.0.1", daemon.port)).is_ok()
    });
    assert!(daemon.path("pid").exists(), "the PID file must remain");
    let output = daemon.start(&["-1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let process = daemon.started[1];
    assert_eq!(fs::read_to_string(daemon.path("pid")).unwrap(), format!("{process}\n"));
    assert!(client(daemon.port, &["-t", "0.3", "-b", "1M"]).status.success());
    wait_until("it ends after one test", || !runs(process));
    assert!(!daemon.path("pid").exists());
    assert_eq!(
        daemon.log().matches("Server listening on").count(),
        2,
        "the log must be appended to"
    );
}
