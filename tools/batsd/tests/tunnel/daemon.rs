//! A `batsd` process on a host of the test.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::wan::{Wan, run};

pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) config: PathBuf,
}

/// Makes the identity of a host and returns its fingerprint.
pub(crate) fn identity(path: &std::path::Path) -> String {
    let output = run(Command::new(env!("CARGO_BIN_EXE_batsctl")).arg("keygen").arg(path));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

impl Daemon {
    pub(crate) fn start(wan: &Wan, host: usize, config: PathBuf) -> Self {
        Self::start_by(wan.command(host), config, &[env!("CARGO_BIN_EXE_batsd")])
    }

    /// Starts the daemon by another program, whose last argument it is.
    pub(crate) fn start_by(mut command: Command, config: PathBuf, program: &[&str]) -> Self {
        command.args(program).arg("--config").arg(&config);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first = lines.next().and_then(Result::ok).unwrap_or_default();
        assert_eq!(first, "state: started", "the error of batsd is above");
        // A worker that is started later prints to the same file.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, config }
    }

    /// Runs batsctl with these words; the error is its output.
    pub(crate) fn ctl(&self, call: &str) -> Result<Value, String> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        let output =
            run(command.arg("--config").arg(&self.config).arg("--json").args(call.split(' ')));
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
            false => Err(String::from_utf8(output.stderr).unwrap()),
        }
    }

    /// The findings of `batsctl doctor`, and whether it found nothing wrong.
    pub(crate) fn doctor(&self) -> (String, bool) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_batsctl"));
        let output = run(command.arg("--config").arg(&self.config).arg("doctor"));
        (String::from_utf8(output.stdout).unwrap(), output.status.success())
    }

    pub(crate) fn worker(&self) -> Option<rustix::process::Pid> {
        let pid = self.ctl("status").ok()?["status"]["worker_pid"].as_i64()?;
        rustix::process::Pid::from_raw(i32::try_from(pid).ok()?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
