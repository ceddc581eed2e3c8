//! Files: the client's streams take them from a common queue, the server stores them.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, Result, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use openbats::file::{self, FileError, Receiver};
use openbats::{Connection, Wait};

use crate::cli::Options;
use crate::clock::Clock;
use crate::console::Console;
use crate::units;

/// What happened to one file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transferred {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// The BLAKE3 hash in hexadecimal, or why it did not arrive.
    pub(crate) result: Result<String, String>,
}

/// Files to be sent, in the order given, each once.
///
/// # Errors
/// One is missing, unreadable or no regular file, or two have the same name.
pub(crate) fn collect(options: &Options) -> Result<Vec<(PathBuf, u64)>> {
    let mut files: Vec<(PathBuf, u64)> = Vec::new();
    for path in &options.files {
        let metadata =
            std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
        if !metadata.is_file() {
            bail!("{} is not a regular file", path.display());
        }
        if files.iter().any(|(other, _)| other == path) {
            continue;
        }
        if let Some((other, _)) =
            files.iter().find(|(other, _)| other.file_name() == path.file_name())
        {
            bail!(
                "{} and {} have the same name and would replace each other",
                other.display(),
                path.display()
            );
        }
        files.push((path.clone(), metadata.len()));
    }
    Ok(files)
}

/// Bars on a terminal; nothing elsewhere.
fn bars(console: &Console, debug: bool) -> MultiProgress {
    let shown = !console.is_json() && !debug;
    let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    MultiProgress::with_draw_target(target)
}

fn bar(bars: &MultiProgress, what: &str, name: &str, size: u64) -> ProgressBar {
    let style = "{percent:>3}% [{bar:30}] {decimal_bytes}/{decimal_total_bytes} \
                 {decimal_bytes_per_sec} {elapsed} {msg}";
    let bar = bars.add(ProgressBar::new(size));
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(format!("{what} {name}"));
    bar
}

fn report(console: &Console, word: &str, file: &Transferred) {
    let Transferred { name, bytes, seconds, result } = file;
    match result {
        Ok(hash) => console.line(&format!(
            "{word} {name}: {} in {seconds:.2} sec, {}, BLAKE3 {hash}",
            units::bytes(*bytes),
            units::rate(*bytes as f64 * 8.0 / seconds.max(1e-9)),
        )),
        Err(error) => console.note(&format!("{name}: {error}")),
    }
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// Sends the files over the connections; what became of each.
pub(crate) fn send(
    console: &Console,
    connections: &[Connection],
    files: Vec<(PathBuf, u64)>,
    debug: bool,
) -> Vec<Transferred> {
    let bars = bars(console, debug);
    let queue = Mutex::new(VecDeque::from(files));
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    let mut all: Vec<Transferred> = thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter()
            .map(|connection| {
                let (bars, next) = (&bars, &next);
                scope.spawn(move || {
                    let mut done = Vec::new();
                    while let Some((path, size)) = next() {
                        let name = path.display().to_string();
                        let bar = bar(bars, "sending", &name, size);
                        let clock = Clock::start();
                        let result =
                            file::send(connection, &path, |sent, _| bar.set_position(sent)).wait();
                        bar.finish_and_clear();
                        let failed = result.is_err();
                        let bytes = result.as_ref().map_or(size, |sent| sent.size);
                        let result =
                            result.map(|sent| hex(&sent.hash)).map_err(|error| error.to_string());
                        let seconds = clock.elapsed().as_secs_f64();
                        let file = Transferred { name, bytes, seconds, result };
                        report(console, "sent", &file);
                        done.push(file);
                        // After a refusal the stream is at an end; others go on.
                        if failed {
                            break;
                        }
                    }
                    // The server waits for the end of each stream; a broken one has ended.
                    let _ = connection.finish().wait();
                    done
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    });
    // What no stream was left for.
    while let Some((path, bytes)) = next() {
        let result = Err("not sent: the streams had ended".to_owned());
        let file = Transferred { name: path.display().to_string(), bytes, seconds: 0.0, result };
        report(console, "sent", &file);
        all.push(file);
    }
    all
}

/// Receives files from the connections until all have finished; what became of each.
pub(crate) fn receive(
    console: &Console,
    connections: &[Connection],
    receiver: &Receiver,
    debug: bool,
) -> Vec<Transferred> {
    let bars = bars(console, debug);
    thread::scope(|scope| {
        let threads: Vec<_> = connections
            .iter()
            .map(|connection| {
                let bars = &bars;
                scope.spawn(move || receive_all(console, connection, receiver, bars))
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    })
}

fn receive_all(
    console: &Console,
    connection: &Connection,
    receiver: &Receiver,
    bars: &MultiProgress,
) -> Vec<Transferred> {
    let mut done = Vec::new();
    loop {
        let mut shown: Option<(ProgressBar, String, Clock)> = None;
        let result = receiver.receive(connection, |name, received, size| {
            let (bar, _, _) = shown.get_or_insert_with(|| {
                (bar(bars, "receiving", name, size), name.to_owned(), Clock::start())
            });
            bar.set_position(received);
        });
        let result = result.wait();
        let (name, seconds) = match &shown {
            Some((bar, name, clock)) => {
                bar.finish_and_clear();
                (name.clone(), clock.elapsed().as_secs_f64())
            }
            None => ("a file".to_owned(), 0.0),
        };
        match result {
            Ok(None) => return done,
            Ok(Some(file)) => {
                let name = file.path.display().to_string();
                let result = Ok(hex(&file.hash));
                let file = Transferred { name, bytes: file.size, seconds, result };
                report(console, "received", &file);
                done.push(file);
            }
            Err(error) => {
                // The reason must arrive before the connection goes.
                if !matches!(error, FileError::Receive(_) | FileError::Send(_)) {
                    let _ = connection.finish().wait();
                }
                let result = Err(error.to_string());
                let file = Transferred { name, bytes: 0, seconds, result };
                report(console, "received", &file);
                done.push(file);
                return done;
            }
        }
    }
}
