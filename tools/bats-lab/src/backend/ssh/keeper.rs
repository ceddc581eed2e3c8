//! A shell on a host that keeps the folder of a measurement, answers questions, and cleans up however the
//! connection ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};

use crate::interrupt;

/// What runs on the host.
const SCRIPT: &str = include_str!("keeper.sh");
/// How long an answer may take; logging in has its own limit of ten seconds for connecting.
const ANSWER: Duration = Duration::from_secs(30);
/// How long the clean-up may take.
const END: Duration = Duration::from_secs(10);
/// Longest line of an answer.
const LONGEST: u64 = 4096;
/// Ends the code of `ssh` itself.
const SSH_FAILED: i32 = 255;

/// The other end of [`SCRIPT`] on one host.
pub(super) struct Keeper {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<String>,
    /// Who it is, for words.
    name: String,
    /// The folder that it made.
    pub(super) folder: String,
    /// What `uname -m` says there.
    pub(super) arch: String,
}

impl Keeper {
    /// Begins on the host that `ssh` reaches, which gets a script as its last word.
    ///
    /// # Errors
    /// Where nobody can log in there, or no folder can be made.
    pub(super) fn begin(mut ssh: Command, name: &str) -> Result<Self> {
        ssh.arg(format!("exec sh -c {}", super::quote(SCRIPT)));
        let mut child = ssh
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Out of reach of the terminal's signals: it ends when it is told to, having cleaned up.
            .process_group(0)
            .spawn()
            .context("cannot run ssh")?;
        let to = child.stdin.take();
        let (sender, from) = channel();
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut output = BufReader::new(output);
                loop {
                    let mut line = String::new();
                    match output.by_ref().take(LONGEST).read_line(&mut line) {
                        Ok(1..) if sender.send(line.trim_end().to_owned()).is_ok() => {}
                        _ => break,
                    }
                }
            });
        }
        let name = name.to_owned();
        let mut keeper = Self { child, to, from, name, folder: String::new(), arch: String::new() };
        keeper.folder = keeper.line("folder ")?;
        keeper.arch = keeper.line("arch ")?;
        if !keeper.folder.starts_with('/') {
            bail!("{} made no folder but `{}`", keeper.name, keeper.folder);
        }
        Ok(keeper)
    }

    /// The rest of the next line that begins so; what a login shell says before is none.
    fn line(&mut self, begin: &str) -> Result<String> {
        let deadline = Instant::now() + ANSWER;
        loop {
            let line = self.next(deadline)?;
            if let Some(rest) = line.strip_prefix(begin) {
                return Ok(rest.to_owned());
            }
        }
    }

    fn next(&mut self, deadline: Instant) -> Result<String> {
        loop {
            interrupt::check()?;
            if Instant::now() > deadline {
                bail!("{} does not answer", self.name);
            }
            match self.from.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.why()),
            }
        }
    }

    /// Why it has ended.
    fn why(&mut self) -> anyhow::Error {
        let status = self.child.wait();
        let mut text = String::new();
        if let Some(errors) = self.child.stderr.take() {
            let _ = errors.take(64 << 10).read_to_string(&mut text);
        }
        let last = text.lines().last().unwrap_or("it said nothing").trim();
        match status.ok().and_then(|status| status.code()) {
            Some(SSH_FAILED) => anyhow::anyhow!("cannot log in to {}: {last}", self.name),
            _ => anyhow::anyhow!("cannot keep a folder on {}: {last}", self.name),
        }
    }

    /// Gives a command of the script; returns what it answers.
    ///
    /// # Errors
    /// Where the host does not answer, or the user interrupts.
    pub(super) fn ask(&mut self, command: &str) -> Result<Vec<String>> {
        let Some(to) = &mut self.to else { bail!("{} is not listening", self.name) };
        let written = to.write_all(format!("{command}\n").as_bytes()).and_then(|()| to.flush());
        if written.is_err() {
            return Err(self.why());
        }
        let deadline = Instant::now() + ANSWER;
        let mut answer = Vec::new();
        loop {
            let line = self.next(deadline)?;
            if line.strip_prefix("done ").is_some_and(|done| command.starts_with(done)) {
                return Ok(answer);
            }
            answer.push(line);
        }
    }

    /// How far the host's clock is ahead of this one's, and how wrong that may be, in seconds: the best of
    /// three.
    pub(super) fn clock(&mut self) -> Result<(f64, f64)> {
        let own = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut best: Option<(f64, f64)> = None;
        for _ in 0..3 {
            let before = own();
            let answer = self.ask("clock")?;
            let after = own();
            let told = answer.iter().find_map(|line| line.strip_prefix("clock "));
            // A `date` without fractions ends in the letter N.
            let told = told
                .and_then(|told| told.trim_end_matches(".N").trim_end_matches('N').parse().ok());
            let Some(told): Option<f64> = told else { bail!("{} tells no time", self.name) };
            let (ahead, wrong) = (told - (before + after) / 2.0, (after - before) / 2.0);
            if best.is_none_or(|best| wrong < best.1) {
                best = Some((ahead, wrong));
            }
        }
        best.context("no time was told")
    }

    /// Lets it clean up; waits for that only in [`Drop`].
    pub(super) fn end(&mut self) {
        self.to = None;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
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

    /// A keeper on this machine, as a shell that ssh would start.
    fn here(folder: &std::path::Path) -> Keeper {
        let mut shell = Command::new("sh");
        shell.env("TMPDIR", folder).arg("-c");
        Keeper::begin(shell, "here").unwrap()
    }

    #[test]
    fn it_keeps_a_private_folder_until_it_ends_and_ends_what_was_started() {
        let place = tempfile::tempdir().unwrap();
        let mut keeper = here(place.path());
        let folder = std::path::PathBuf::from(&keeper.folder);
        assert_eq!(folder.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let mut sleeper = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        fs::write(folder.join("pids"), format!("{}\n", sleeper.id())).unwrap();
        keeper.ask("settle").unwrap();
        assert!(!sleeper.wait().unwrap().success());
        let mut sleeper = Command::new("sleep").arg("100").process_group(0).spawn().unwrap();
        fs::write(folder.join("pids"), format!("{}\n", sleeper.id())).unwrap();
        drop(keeper);
        assert!(!sleeper.wait().unwrap().success());
        assert!(!folder.exists());
    }

    #[test]
    fn it_cleans_up_where_its_connection_was_killed() {
        let place = tempfile::tempdir().unwrap();
        let mut keeper = here(place.path());
        keeper.ask("clock").unwrap();
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);
        let pid = nix::unistd::Pid::from_raw(keeper.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_dir(place.path()).unwrap().count() > 0 {
            assert!(Instant::now() < deadline, "the folder is left");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn it_answers_questions() {
        let place = tempfile::tempdir().unwrap();
        let mut keeper = here(place.path());
        assert_eq!(keeper.ask("program sh").unwrap(), Vec::<String>::new());
        assert_eq!(keeper.ask("program no-such-program").unwrap(), ["missing no-such-program"]);
        assert_eq!(keeper.ask("interface lo9").unwrap(), ["missing interface lo9"]);
        let answer = keeper.ask("congestion no-such").unwrap();
        assert!(
            answer.len() == 1 && answer[0].starts_with("missing no-such in net."),
            "{answer:?}"
        );
        let (ahead, wrong) = keeper.clock().unwrap();
        assert!(ahead.abs() <= wrong + 0.01, "{ahead} {wrong}");
        let mut shell = Command::new("sh");
        shell.env("TMPDIR", "/no/such/folder").arg("-c");
        let error = Keeper::begin(shell, "there").err().unwrap().to_string();
        assert!(error.contains("cannot keep a folder on there: mktemp"), "{error}");
    }
}
