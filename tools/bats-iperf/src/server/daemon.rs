//! A server that goes on without its terminal (`-D`).
//!
//! The program starts itself once more, in a session of its own, and waits until that process
//! listens: what keeps it from it is told where it was started, with its exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result};

/// What the process says on its standard output when it listens.
const READY: &[u8] = b"ready\n";
/// The option that tells it what it is.
const DETACHED: &str = "--detached";

/// Starts the server and waits until it listens or ends.
///
/// # Errors
/// It cannot be started. Whatever goes wrong later is its exit code.
pub(crate) fn start() -> Result<ExitCode> {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| "bats_iperf".into());
    let program = std::env::current_exe().context("cannot find this program itself")?;
    let mut child = Command::new(program)
        .arg0(name)
        .args(words)
        .arg(DETACHED)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start the server")?;
    // It lets go of this pipe when it listens.
    if let Some(mut errors) = child.stderr.take() {
        let _ = io::copy(&mut errors, &mut io::stderr());
    }
    let mut word = Vec::new();
    if let Some(output) = child.stdout.take() {
        // To its end: by then the process has let go of this pipe, too.
        let _ = output.take(READY.len() as u64 + 1).read_to_end(&mut word);
    }
    if word == READY {
        let _ = writeln!(io::stdout(), "Server running as process {}", child.id());
        return Ok(ExitCode::SUCCESS);
    }
    let code = child.wait().context("cannot wait for the server")?.code();
    // Success without a word is none.
    let code = code.and_then(|code| u8::try_from(code).ok()).filter(|code| *code > 0);
    Ok(ExitCode::from(code.unwrap_or(1)))
}

/// Leaves the terminal. To be called while the process has one thread.
///
/// # Errors
/// The process leads a session already: nobody but [`start`] shall call it.
pub(crate) fn leave_terminal() -> Result<()> {
    rustix::process::setsid().context("--detached is for -D only")?;
    // No file system shall be kept from being unmounted.
    std::env::set_current_dir("/").context("cannot leave the directory")
}

/// Lets go of whoever started this process: it listens.
///
/// # Errors
/// There is no `/dev/null`.
pub(crate) fn ready() -> Result<()> {
    let nothing = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .context("cannot open /dev/null")?;
    rustix::stdio::dup2_stderr(&nothing).context("cannot leave standard error")?;
    let mut out = io::stdout().lock();
    // Whoever started it may have gone.
    let _ = out.write_all(READY).and_then(|()| out.flush());
    rustix::stdio::dup2_stdout(&nothing).context("cannot leave standard output")
}
