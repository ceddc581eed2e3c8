//! A server that runs as a daemon (`-D`).
//!
//! The program starts itself again in a new process session and waits until that process listens.
//! The starting process prints the daemon's errors and exits with its exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

/// Printed on standard output by the daemon when it listens.
const READY: &[u8] = b"ready\n";
/// The option that marks the daemon process.
const DETACHED: &str = "--detached";

/// Starts the daemon and waits until it listens or exits.
///
/// # Errors
/// The daemon cannot be started. Later failures are reported by the exit code.
pub(crate) fn start() -> Result<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "bats_iperf".into());
    let program = std::env::current_exe().context("cannot find this program itself")?;
    let mut child = Command::new(program)
        .arg0(name)
        .args(arguments)
        .arg(DETACHED)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    // The daemon closes this pipe when it listens.
    if let Some(mut errors) = child.stderr.take() {
        let _ = io::copy(&mut errors, &mut io::stderr());
    }
    let mut output_word = Vec::new();
    if let Some(output) = child.stdout.take() {
        // Read to the end: by then the daemon has closed this pipe, too.
        let _ = output.take(READY.len() as u64 + 1).read_to_end(&mut output_word);
    }
    if output_word == READY {
        let _ = writeln!(io::stdout(), "Server running as process {}", child.id());
        return Ok(ExitCode::SUCCESS);
    }
    let code = child.wait().context("cannot wait for the server")?.code();
    // A daemon that exits with 0 but never became ready has failed.
    let code = code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Detaches from the terminal. Must be called while the process has one thread.
///
/// # Errors
/// The process is a session leader already: only [`start`] may start such a process.
pub(crate) fn detach() -> Result<()> {
    rustix::process::setsid().context("--detached is for -D only")?;
    // A daemon must not keep a file system from being unmounted.
    std::env::set_current_dir("/").context("cannot change to the root directory")
}

/// Notifies the starting process that the daemon listens, and closes its output.
///
/// # Errors
/// There is no `/dev/null`.
pub(crate) fn ready() -> Result<()> {
    let nothing = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .context("cannot open /dev/null")?;
    rustix::stdio::dup2_stderr(&nothing).context("cannot redirect standard error")?;
    let mut out = io::stdout().lock();
    // The starting process may have ended.
    let _ = out.write_all(READY).and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(&nothing).context("cannot redirect standard output")
}
