//! A shell on a remote host. It keeps the directory of a measurement, answers requests, and cleans
//! up however the connection ends.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// The script that runs on the host.
const SCRIPT: &str = include_str!("remote_shell.sh");
/// Time limit for an answer. Connecting has its own limit of 10 s in `ssh`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit of the cleanup.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a line of an answer, in bytes.
const MAX_LINE_BYTES: u64 = 4096;
/// Exit code of `ssh` for its own errors (ssh(1)).
const SSH_FAILED: i32 = 255;

/// The local end of [`SCRIPT`] on one host.
pub(super) struct RemoteShell {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Name of the host, for messages.
    name: String,
    /// The directory that it created.
    pub(super) folder: String,
    /// The output of `uname -m`.
    pub(super) arch: String,
}

impl RemoteShell {
    /// Starts the script on the host. `ssh` is a command that takes the script as its last
    /// argument.
    ///
    /// # Errors
    /// If the login fails, or no directory can be created.
    pub(super) fn begin(mut ssh: Command, name: &str) -> Result<Self> {
        ssh.arg(format!("exec sh -c {}", super::quote(SCRIPT)));
        let mut child = ssh
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own process group, so that signals of the terminal do not reach it: it cleans
            // up and ends when its input is closed.
            .process_group(0)
            .spawn()
            .context("cannot run ssh")?;
        let stdin = child.stdin.take();
        let (sender, lines) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut output = BufReader::new(output);
                loop {
                    let mut line = String::new();
                    match output.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
                        Ok(1..) if sender.send(line.trim_end().to_owned()).is_ok() => {}
                        _ => break,
                    }
                }
            });
        }
        let name = name.to_owned();
        let mut remote =
            Self { child, stdin, lines, name, folder: String::new(), arch: String::new() };
        remote.folder = remote.line("folder ")?;
        remote.arch = remote.line("arch ")?;
        if !remote.folder.starts_with('/') {
            bail!("{} answered with an invalid directory: `{}`", remote.name, remote.folder);
        }
        Ok(remote)
    }

    /// The remainder of the next line with this prefix. Skips output of the login shell before it.
    fn line(&mut self, prefix: &str) -> Result<String> {
        let begin = Instant::now();
        loop {
            let line = self.next(begin)?;
            if let Some(rest) = line.strip_prefix(prefix) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// The next line, if it comes in time after `begin`.
    fn next(&mut self, begin: Instant) -> Result<String> {
        loop {
            interrupt::check()?;
            if begin.elapsed() > ANSWER_TIMEOUT {
                bail!("{} does not answer", self.name);
            }
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.failure()),
            }
        }
    }

    /// The reason why it ended.
    fn failure(&mut self) -> anyhow::Error {
        let status = self.child.wait();
        let mut text = String::new();
        if let Some(errors) = self.child.stderr.take() {
            let _ = errors.take(64 << 10).read_to_string(&mut text);
        }
        let last = text.lines().last().unwrap_or("no error message").trim();
        match status.ok().and_then(|status| status.code()) {
            Some(SSH_FAILED) => anyhow::anyhow!("cannot log in to {}: {last}", self.name),
            _ => anyhow::anyhow!("cannot create a directory on {}: {last}", self.name),
        }
    }

    /// Runs a command of the script and returns its answer.
    ///
    /// # Errors
    /// If the host does not answer, or the user interrupts.
    pub(super) fn request(&mut self, command: &str) -> Result<Vec<String>> {
        let Some(stdin) = &mut self.stdin else {
            bail!("the connection to {} is closed", self.name)
        };
        let written =
            stdin.write_all(format!("{command}\n").as_bytes()).and_then(|()| stdin.flush());
        if written.is_err() {
            return Err(self.failure());
        }
        let begin = Instant::now();
        let mut answer = Vec::new();
        loop {
            let line = self.next(begin)?;
            if line.strip_prefix("done ").is_some_and(|done| command.starts_with(done)) {
                return Ok(answer);
            }
            answer.push(line);
        }
    }

    /// Offset of the clock of the host from the local clock and its uncertainty, in seconds: the
    /// best of three measurements.
    pub(super) fn clock(&mut self) -> Result<(f64, f64)> {
        let own = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..3 {
            let before = own();
            let answer = self.request("clock")?;
            let after = own();
            let time = answer.iter().find_map(|line| line.strip_prefix("clock "));
            // A `date` without nanoseconds prints the letter N instead.
            let time = time
                .and_then(|time| time.trim_end_matches(".N").trim_end_matches('N').parse().ok());
            let Some(time): Option<f64> = time else { bail!("{} reports no time", self.name) };
            let (offset, uncertainty) = (time - (before + after) / 2.0, (after - before) / 2.0);
            if best.is_none_or(|best| uncertainty < best.1) {
                best = Some((offset, uncertainty));
            }
        }
        best.context("the clock was not measured")
    }

    /// Starts the cleanup. [`Drop`] waits for it.
    pub(super) fn start_cleanup(&mut self) {
        self.stdin = None;
    }
}

impl Drop for RemoteShell {
    fn drop(&mut self) {
        self.start_cleanup();
        let begin = Instant::now();
        while begin.elapsed() < CLEANUP_TIMEOUT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A remote shell on this machine, without ssh.
    fn here(folder: &std::path::Path) -> RemoteShell {
        // Under nohup SIGHUP is ignored, and a shell cannot change that. sshd starts shells with the
        // default action.
        let mut shell = Command::new("env");
        shell.env("TMPDIR", folder).args(["--default-signal=HUP", "sh", "-c"]);
        RemoteShell::begin(shell, "here").unwrap()
    }

    #[test]
    fn directory_is_private_and_removed_with_the_started_processes() {
        let directory = tempfile::tempdir().unwrap();
        let mut remote = here(directory.path());
        let folder = std::path::PathBuf::from(&remote.folder);
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let mut sleeping = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        fs::write(folder.join("pids"), format!("{}\n", sleeping.id())).unwrap();
        remote.request("settle").unwrap();
        assert!(!sleeping.wait().unwrap().success());
        let mut sleeping = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        fs::write(folder.join("pids"), format!("{}\n", sleeping.id())).unwrap();
        drop(remote);
        assert!(!sleeping.wait().unwrap().success());
        assert!(!folder.exists());
    }

    #[test]
    fn cleans_up_when_the_connection_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let mut remote = here(directory.path());
        remote.request("clock").unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        let pid = nix::unistd::Pid::from_raw(remote.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_dir(directory.path()).unwrap().count() > 0 {
            assert!(Instant::now() < deadline, "the directory remains");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn answers_requests() {
        let directory = tempfile::tempdir().unwrap();
        let mut remote = here(directory.path());
        assert_eq!(remote.request("program sh").unwrap(), Vec::<String>::new());
        assert_eq!(remote.request("program no-such-program").unwrap(), ["missing no-such-program"]);
        assert_eq!(remote.request("interface lo9").unwrap(), ["missing interface lo9"]);
        let answer = remote.request("congestion no-such").unwrap();
        assert!(
            answer.len() == 1 && answer[0].starts_with("missing no-such in net."),
            "{answer:?}"
        );
        let (offset, uncertainty) = remote.clock().unwrap();
        assert!(offset.abs() <= uncertainty + 0.01, "{offset} {uncertainty}");
        let mut shell = Command::new("sh");
        shell.env("TMPDIR", "/no/such/folder").arg("-c");
        let error = RemoteShell::begin(shell, "there").err().unwrap().to_string();
        assert!(error.contains("cannot create a directory on there: mktemp"), "{error}");
    }
}
