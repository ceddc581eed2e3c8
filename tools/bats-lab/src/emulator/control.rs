//! The control socket: one line of JSON per request and answer.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::report::{Answer, HopReport, Request};
use crate::shortage::{ACCEPT_PAUSE, is_temporary_accept};

/// Longest line in bytes.
const MAX_LINE_BYTES: u64 = 64 * 1024;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Sends a request to the emulator at `socket` and returns its answer.
pub(crate) fn ask(socket: &Path, request: &Request) -> Result<Answer> {
    let mut stream =
        UnixStream::connect(socket).context("the emulator of the lab does not answer")?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line).context("cannot send to the emulator of the lab")?;
    let mut answer = String::new();
    BufReader::new(stream)
        .read_line(&mut answer)
        .context("the emulator of the lab does not answer")?;
    match serde_json::from_str(&answer).context("the emulator of the lab sent an invalid answer")? {
        Answer::Error(error) => bail!("{error}"),
        answer => Ok(answer),
    }
}

/// The reports of all links of the lab at `socket`.
pub(crate) fn report(socket: &Path) -> Result<Vec<HopReport>> {
    match ask(socket, &Request::Report)? {
        Answer::Report(hops) => Ok(hops),
        _ => bail!("the emulator of the lab sent an unexpected answer"),
    }
}

/// Answers requests until `stopped` returns true, checked ten times a second.
pub(crate) fn serve(
    listener: &UnixListener,
    stopped: impl Fn() -> bool,
    mut answer: impl FnMut(Request) -> Answer,
) -> Result<()> {
    listener.set_nonblocking(true)?;
    while !stopped() {
        match listener.accept() {
            Ok((stream, _)) => {
                // A client that hangs up or sends garbage affects only itself.
                let _ = handle_connection(stream, &mut answer);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                wait_readable(listener, Duration::from_millis(100));
            }
            Err(error) if is_temporary_accept(&error) => std::thread::sleep(ACCEPT_PAUSE),
            Err(error) => return Err(error).context("the control socket failed"),
        }
    }
    Ok(())
}

fn wait_readable(listener: &UnixListener, time: Duration) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
    // A signal may end the wait early, which is fine.
    let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
}

fn handle_connection(stream: UnixStream, answer: &mut impl FnMut(Request) -> Answer) -> Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(MAX_LINE_BYTES)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answer(request),
        Err(error) => Answer::Error(format!("invalid request: {error}")),
    };
    let mut line = serde_json::to_vec(&reply)?;
    line.push(b'\n');
    (&stream).write_all(&line)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn requests_are_answered_and_invalid_ones_refused() {
        let path = std::env::temp_dir().join(format!("batslab-control-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                serve(
                    &listener,
                    || stop.load(Ordering::Relaxed),
                    |request| match request {
                        Request::Report => Answer::Report(vec![HopReport::default()]),
                        _ => Answer::Error("no such link".to_owned()),
                    },
                )
                .unwrap();
            });
            assert_eq!(report(&path).unwrap(), [HopReport::default()]);
            assert_eq!(
                ask(&path, &Request::ResetLateness).unwrap_err().to_string(),
                "no such link"
            );
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.write_all(b"nonsense\n").unwrap();
            let mut reply = String::new();
            stream.read_to_string(&mut reply).unwrap();
            assert!(reply.contains("invalid request"), "{reply}");
            stop.store(true, Ordering::Relaxed);
        });
        std::fs::remove_file(path).unwrap();
    }
}
