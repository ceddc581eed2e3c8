//! Servers, clients and directories for the tests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_bats_iperf");

/// The program, with a state directory of this test run: servers share an identity in it, and
/// clients record them.
pub(crate) fn program() -> Command {
    static STATE: OnceLock<PathBuf> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("state-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    });
    let mut command = Command::new(PROGRAM);
    command.env("XDG_STATE_HOME", state);
    command
}

/// Finds two adjacent free ports and returns the higher one, for data.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    for _ in 0..1_000 {
        let step = NEXT.fetch_add(2, Ordering::Relaxed);
        // Below the ephemeral ports of the system.
        let base = 10_000 + (std::process::id() % 5_000) as u16 * 4;
        let port = base.wrapping_add(step).clamp(10_000, 60_000);
        // A server uses both UDP and TCP.
        let free = |port: u16| {
            UdpSocket::bind(("127.0.0.1", port)).is_ok()
                && TcpListener::bind(("127.0.0.1", port)).is_ok()
        };
        if free(port - 1) && free(port) {
            return port;
        }
    }
    panic!("no two free ports");
}

/// A server that listens; killed when dropped.
pub(crate) struct Server {
    child: Child,
    lines: Vec<String>,
    /// Reads standard output to its end.
    output: Option<JoinHandle<String>>,
}

impl Server {
    pub(crate) fn start(port: u16, options: &[&str]) -> Self {
        let has = |option| options.contains(&option);
        let own: &[&str] = if has("-I") { &[] } else { &["-I", "lo"] };
        // The reserve of 5 % may be more than this machine has free.
        let reserve: &[&str] =
            if has("--directory") && !has("--reserve") { &["--reserve", "0"] } else { &[] };
        Self::start_anywhere(port, &[own, reserve, options].concat())
    }

    /// Listens on all addresses unless the options name one.
    pub(crate) fn start_anywhere(port: u16, options: &[&str]) -> Self {
        let mut command = program();
        command.args(["-s", "-p", &port.to_string()]).args(options);
        Self::of(command)
    }

    /// Runs a prepared command and waits until the server listens.
    pub(crate) fn of(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The fingerprint is the last line printed before the server accepts clients.
        let mut errors = BufReader::new(child.stderr.take().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(errors.read_line(&mut line).unwrap() > 0, "the server ended: {lines:?}");
            lines.push(line.trim().to_owned());
            if lines.last().unwrap().starts_with("certificate fingerprint") {
                break;
            }
        }
        // Drain both pipes so that the server never blocks: its reports fill one of 64 KiB.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        let mut reports = child.stdout.take().unwrap();
        let output = std::thread::spawn(move || {
            let mut output = Vec::new();
            // What was read before an error is still of use.
            let _ = reports.read_to_end(&mut output);
            text(&output)
        });
        Self { child, lines, output: Some(output) }
    }

    pub(crate) fn fingerprint(&self) -> &str {
        self.lines.last().unwrap().rsplit(' ').next().unwrap()
    }

    /// Notes that it printed about its command line.
    pub(crate) fn notes(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str).filter(|line| line.starts_with("note: "))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end of a server started with `-1`; returns its exit code and output.
    pub(crate) fn finish(mut self) -> (i32, String) {
        let output = self.output.take().unwrap().join().unwrap();
        (self.child.wait().unwrap().code().unwrap(), output)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a client, in mode 1 unless the options name another.
pub(crate) fn client(port: u16, options: &[&str]) -> Output {
    program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string()])
        .args(if options.contains(&"-m") { &[][..] } else { &["-m", "1"] })
        .args(options)
        .output()
        .unwrap()
}

/// Starts a client in mode 1 that needs 3.2 s for 8 MB; its output is read at its end.
pub(crate) fn slow_client(port: u16, options: &[&str]) -> Child {
    program()
        .args(["-c", "127.0.0.1", "-p", &port.to_string(), "-m", "1", "--congestion", "20M"])
        .args(options)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs one successful test between a client and its own server; returns the client's document and
/// the server's text.
pub(crate) fn run(server: &[&str], options: &[&str]) -> (Value, String) {
    let port = free_port();
    let server = Server::start(port, &[server, &["-1"]].concat());
    let output = client(port, &[options, &["-J"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (code, report) = server.finish();
    assert_eq!(code, 0, "{report}");
    (serde_json::from_slice(&output.stdout).unwrap(), report)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A temporary directory; removed when dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        Self::new_in(&std::env::temp_dir(), name)
    }

    /// Its file system has more than the given number of bytes free: the server refuses files that
    /// exceed it, whether they have holes or not.
    pub(crate) fn with_free_space(name: &str, bytes: u64) -> Self {
        let places = [std::env::temp_dir(), "/dev/shm".into(), "/var/tmp".into()];
        let has_room = |place: &&PathBuf| {
            nix::sys::statvfs::statvfs(place.as_path())
                .is_ok_and(|status| status.blocks_available() * status.fragment_size() > bytes)
        };
        let place = places.iter().find(has_room);
        Self::new_in(place.expect("no folder for temporary files has enough free space"), name)
    }

    fn new_in(place: &Path, name: &str) -> Self {
        let path = place.join(format!("bats-iperf-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(path.join("in")).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A small file system; unmounted when dropped.
pub(crate) struct Tmpfs<'a>(&'a Path);

impl<'a> Tmpfs<'a> {
    /// `None` if this user cannot mount one, which skips the test.
    pub(crate) fn mount(test: &str, path: &'a Path, size: &str) -> Option<Self> {
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(path);
        if command.status().is_ok_and(|status| status.success()) {
            return Some(Self(path));
        }
        skipped(test, "cannot mount tmpfs");
        None
    }

    /// Bytes that other users than root may still use.
    pub(crate) fn free(&self) -> u64 {
        let status = nix::sys::statvfs::statvfs(self.0).unwrap();
        status.blocks_available() * status.fragment_size()
    }
}

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// Sends a signal to a process of the test.
pub(crate) fn signal(name: &str, process: u32) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.unwrap().success());
}

/// Waits up to 15 s until a condition holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..1_500 {
        if condition() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{what}");
}

/// Reports that a test is skipped, and why. Where nothing may be skipped (`OPENBATS_NO_SKIP=1`, as in CI), it fails.
pub(crate) fn skipped(test: &str, why: &str) {
    let is_forbidden = std::env::var_os("OPENBATS_NO_SKIP").is_some_and(|value| value == "1");
    assert!(!is_forbidden, "OPENBATS_NO_SKIP=1, but {test} cannot run: {why}");
    // Not with a print macro, whose output is captured for tests that pass.
    let line = format!("\nSKIPPED {test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Pseudo-random bytes.
pub(crate) fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    (0..size)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect()
}
