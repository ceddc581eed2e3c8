//! File transfers: progress, results and summary.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use openbats::file::FileError;
use openbats::file::set::{self, FileReport, FileSet, Outcome, Progress, Receiver, Sender};
use openbats::{Connection, Wait};
use serde_json::{Value, json};

use crate::cli::{Compression, Existing, Options};
use crate::console::Output;
use crate::control::Work;
use crate::port_probe::PortProbe;
use crate::printable::printable;
use crate::progress::ProgressMeter;
use crate::rate_limiter::RateLimiter;
use crate::report::json::{self, TestInfo};
use crate::server::Budgets;
use crate::stream::DataStream;
use crate::transfer_limits::TransferLimits;
use crate::units;

/// Maximum number of progress bars shown at once.
const MAX_BARS: usize = 10;
/// Maximum number of file records that a server keeps: a client may send any number of files.
const MAX_RECORDS: usize = 20_000;
/// Files up to this size have one part and use one stream.
const ONE_STREAM_BYTES: u64 = 4 << 20;
/// How often to check whether a transfer makes progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The files to send.
#[derive(Debug)]
pub(crate) struct OutgoingFiles {
    sender: Sender,
}

impl OutgoingFiles {
    /// Number of files and directories.
    pub(crate) fn count(&self) -> u64 {
        self.sender.set().entries().len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sender.set().bytes()
    }
}

/// The result of one file or directory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileRecord {
    pub(crate) name: String,
    pub(crate) is_directory: bool,
    pub(crate) bytes: u64,
    /// Bytes transferred, without those that the receiver already had.
    pub(crate) sent: u64,
    pub(crate) seconds: f64,
    pub(crate) state: State,
    /// The BLAKE3 hash in hexadecimal.
    pub(crate) hash: Option<String>,
    /// The new name of a renamed file, or the error.
    pub(crate) detail: Option<String>,
}

/// How the transfer of a file ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Stored,
    Renamed,
    Unchanged,
    Skipped,
    Failed,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            Self::Stored => "stored",
            Self::Renamed => "renamed",
            Self::Unchanged => "unchanged",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
}

impl FileRecord {
    fn new(report: &FileReport, seconds: f64) -> Self {
        let (state, detail) = match &report.outcome {
            Outcome::Stored { .. } => (State::Stored, None),
            Outcome::Renamed { to, .. } => (State::Renamed, Some(to.clone())),
            Outcome::Unchanged { .. } => (State::Unchanged, None),
            Outcome::Failed(why) => (State::Failed, Some(why.clone())),
        };
        let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: report.name.clone(),
            is_directory: report.is_directory,
            bytes: report.size,
            sent: report.sent,
            seconds,
            state,
            hash: report.outcome.hash().map(hex),
            detail,
        }
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.state != State::Failed
    }

    /// The report line of this file.
    fn line(&self, word: &str) -> String {
        let name = printable(&self.name);
        let detail = self.detail.as_deref().map(printable).unwrap_or_default();
        let hash = self.hash.as_ref().map(|hash| format!(", BLAKE3 {hash}")).unwrap_or_default();
        match self.state {
            State::Failed => format!("failed {name}: {detail}"),
            State::Skipped => format!("skipped {name}: {detail}"),
            State::Unchanged => format!("unchanged {name}: {}{hash}", units::bytes(self.bytes)),
            State::Stored if self.is_directory => format!("{word} {name}/"),
            State::Stored | State::Renamed => {
                let to = match self.state {
                    State::Renamed => format!(" as {detail}"),
                    _ => String::new(),
                };
                let existing_note = match self.bytes.saturating_sub(self.sent) {
                    0 => String::new(),
                    existing_bytes => format!(" ({} existed)", units::bytes(existing_bytes)),
                };
                format!(
                    "{word} {name}{to}: {}{existing_note} in {:.2} sec, {}{hash}",
                    units::bytes(self.bytes),
                    self.seconds,
                    units::rate(self.sent as f64 * 8.0 / self.seconds.max(1e-9)),
                )
            }
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "bytes": self.bytes,
            "sent_bytes": self.sent,
            "seconds": self.seconds,
            "state": self.state.word(),
            "verified": self.succeeded() && self.state != State::Skipped,
            "blake3": self.hash,
            "stored_as": self.detail.as_ref().filter(|_| self.state == State::Renamed),
            "error": self.detail.as_ref().filter(|_| matches!(self.state, State::Failed | State::Skipped)),
        })
    }
}

/// Results of all files and directories of a transfer.
#[derive(Debug, Default)]
pub(crate) struct TransferResult {
    /// Kept records, in the order in which the files were offered.
    files: Vec<FileRecord>,
    /// Number of records that were not kept.
    left_out: u64,
    /// Counts over all files except skipped ones: files, successful files, their bytes, and bytes
    /// transferred.
    attempted: u64,
    successful: u64,
    /// Directories and failed directories.
    directories: u64,
    failed_directories: u64,
    bytes: u64,
    sent: u64,
    /// The first file that failed: its number, name and error.
    failed: Option<(u32, String, String)>,
}

impl TransferResult {
    fn add(&mut self, id: u32, file: &FileRecord) {
        if file.state == State::Skipped {
            return;
        }
        let (all, good) = match file.is_directory {
            true => (&mut self.directories, None),
            false => (&mut self.attempted, Some(&mut self.successful)),
        };
        *all += 1;
        if file.succeeded() {
            if let Some(good) = good {
                *good += 1;
            }
            self.bytes = self.bytes.saturating_add(file.bytes);
            self.sent = self.sent.saturating_add(file.sent);
            return;
        }
        self.failed_directories += u64::from(file.is_directory);
        if self.failed.as_ref().is_none_or(|(first, ..)| id < *first) {
            let why = file.detail.clone().unwrap_or_default();
            self.failed = Some((id, file.name.clone(), why));
        }
    }

    /// Whether all of `count` files and directories were transferred successfully.
    pub(crate) fn succeeded(&self, count: u64) -> bool {
        self.has_no_failures() && self.attempted + self.directories == count
    }

    fn has_no_failures(&self) -> bool {
        self.successful == self.attempted && self.failed_directories == 0
    }
}

/// Collects the files to send, `None` if there are none.
///
/// # Errors
/// None of the files exists, or two have the same name.
pub(crate) fn collect(options: &Options) -> Result<Option<OutgoingFiles>> {
    if options.outgoing.files.is_empty() {
        return Ok(None);
    }
    let set = FileSet::collect(&options.outgoing.files)?;
    if set.entries().is_empty() {
        let reason = set.skipped().first().map_or("nothing to send", |skipped| &skipped.reason);
        bail!("{reason}");
    }
    let compression = options.outgoing.compress.map(|compression| match compression {
        Compression::Zstd => set::Compression::Zstd,
        Compression::Lz4 => set::Compression::Lz4,
    });
    Ok(Some(OutgoingFiles { sender: Sender::new(set).compression(compression) }))
}

/// A file that is being transferred.
struct FileProgress {
    /// Since the start of the transfer.
    began: Duration,
    size: u64,
    bar: Option<ProgressBar>,
}

/// Shows the progress of a transfer and records its results.
struct TransferMonitor<'a> {
    output: &'a Output,
    /// `sent` or `received`.
    word: &'static str,
    bars: Option<MultiProgress>,
    files: Mutex<BTreeMap<u32, FileProgress>>,
    /// When each stream finished a file last, since the start of the transfer.
    finished_at: Mutex<BTreeMap<usize, Duration>>,
    done: Mutex<(Vec<(u32, FileRecord)>, TransferResult)>,
    /// Maximum number of file records to keep.
    max_records: usize,
    total: u64,
    transferred: AtomicU64,
    progress: ProgressMeter,
    /// Interval between progress lines without a terminal; zero for none.
    line_interval: Duration,
    next_line: Mutex<Duration>,
}

impl<'a> TransferMonitor<'a> {
    fn new(
        output: &'a Output,
        word: &'static str,
        total: u64,
        options: &Options,
        max_records: usize,
    ) -> Self {
        let (line_interval, debug) = (options.interval, options.output.debug);
        let shows_bars = !output.is_json() && !debug && std::io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr();
        Self {
            output,
            word,
            bars: shows_bars.then(|| MultiProgress::with_draw_target(target)),
            files: Mutex::default(),
            finished_at: Mutex::default(),
            done: Mutex::default(),
            max_records,
            total,
            transferred: AtomicU64::new(0),
            progress: ProgressMeter::start(),
            line_interval,
            next_line: Mutex::new(line_interval),
        }
    }

    fn on(&self, stream: usize, progress: Progress<'_>) {
        self.progress.on(progress);
        let Ok(mut files) = self.files.lock() else { return };
        match progress {
            Progress::Begin { id, name, size } => {
                let shown = files.values().filter(|file| file.bar.is_some()).count();
                let bar = match &self.bars {
                    Some(bars) if shown < MAX_BARS && size > 0 => {
                        Some(new_bar(bars, &printable(name), size))
                    }
                    _ => None,
                };
                files.insert(id, FileProgress { began: self.progress.elapsed(), size, bar });
            }
            Progress::Bytes { id, bytes } => {
                if let Some(FileProgress { bar: Some(bar), .. }) = files.get(&id) {
                    bar.inc(bytes);
                }
                drop(files);
                let transferred =
                    self.transferred.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
                self.line(transferred);
            }
            Progress::Checking { .. } => {}
            Progress::End { id, report } => {
                let seconds = match files.remove(&id) {
                    Some(file) => {
                        if let Some(bar) = &file.bar {
                            bar.finish_and_clear();
                        }
                        self.time_of(stream, &file).as_secs_f64()
                    }
                    None => 0.0,
                };
                drop(files);
                self.end(id, FileRecord::new(report, seconds));
            }
        }
    }

    /// The time that a file took, which ends now. A stream sends small files without waiting for
    /// the receiver, one after the other: each begins when the previous one has ended.
    fn time_of(&self, stream: usize, file: &FileProgress) -> Duration {
        let now = self.progress.elapsed();
        let previous = match self.finished_at.lock() {
            Ok(mut finished_at) => finished_at.insert(stream, now),
            Err(_) => None,
        };
        // A large file has parts on several streams, which transfer others meanwhile.
        let previous = previous.filter(|_| file.size <= ONE_STREAM_BYTES);
        now.saturating_sub(previous.unwrap_or_default().max(file.began))
    }

    fn end(&self, id: u32, file: FileRecord) {
        let line = file.line(self.word);
        self.print(&line);
        self.output.event("file", || file.json());
        if let Ok(mut done) = self.done.lock() {
            done.1.add(id, &file);
            match done.0.len() < self.max_records {
                true => done.0.push((id, file)),
                false => done.1.left_out += 1,
            }
        }
    }

    fn print(&self, line: &str) {
        match &self.bars {
            Some(bars) => bars.suspend(|| self.output.line(line)),
            None => self.output.line(line),
        }
    }

    /// Prints a progress line at intervals if there is no terminal.
    fn line(&self, transferred: u64) {
        if self.bars.is_some() || self.line_interval.is_zero() {
            return;
        }
        let now = self.progress.elapsed();
        let Ok(mut next) = self.next_line.lock() else { return };
        if now < *next {
            return;
        }
        *next = now + self.line_interval;
        let percent = 100.0 * transferred as f64 / self.total.max(1) as f64;
        self.output.line(&format!(
            "{percent:>3.0}%  {} of {}  {}",
            units::bytes(transferred),
            units::bytes(self.total),
            units::rate(transferred as f64 * 8.0 / now.as_secs_f64().max(1e-9))
        ));
    }

    /// Returns all results, in the order in which the files were offered.
    fn finish(self) -> TransferResult {
        let (mut done, totals) = self.done.into_inner().unwrap_or_default();
        done.sort_by_key(|(id, _)| *id);
        TransferResult { files: done.into_iter().map(|(_, file)| file).collect(), ..totals }
    }
}

fn new_bar(bars: &MultiProgress, name: &str, size: u64) -> ProgressBar {
    let style = "{percent:>3}% [{bar:30}] {decimal_bytes}/{decimal_total_bytes} \
                 {decimal_bytes_per_sec} {elapsed} eta {eta} {msg}";
    let bar = bars.add(ProgressBar::new(size));
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_message(name.to_owned());
    bar
}

/// Bytes of all messages that have arrived, compressed or not.
fn arrived(data_streams: &[DataStream]) -> u64 {
    data_streams
        .iter()
        .filter_map(DataStream::bytes_received)
        .fold(0_u64, |sum, x| sum.saturating_add(x))
}

/// Runs one thread for each connection, and closes all connections when the transfer exceeds `limits`.
fn run_all(
    data_streams: &[DataStream],
    monitor: &TransferMonitor<'_>,
    limits: TransferLimits,
    probe: Option<&PortProbe>,
    run: impl Fn(usize, &Connection) -> Result<(), FileError> + Sync,
) {
    let connections: Vec<&Connection> =
        data_streams.iter().filter_map(DataStream::connection).collect();
    thread::scope(|scope| {
        let (done, ended) = channel();
        for (stream, connection) in connections.iter().enumerate() {
            let (run, done) = (&run, done.clone());
            scope.spawn(move || {
                if let Err(error) = run(stream, connection) {
                    monitor.output.failure(&error.to_string());
                    connection.close(1, "the transfer failed");
                }
                let _ = done.send(());
            });
        }
        drop(done);
        let mut running = connections.len();
        while running > 0 {
            match ended.recv_timeout(CHECK_INTERVAL) {
                Ok(()) => running -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(why) = limits.exceeded(&monitor.progress, arrived(data_streams)) {
                        connections.iter().for_each(|x| x.close(1, &why));
                    } else if probe.is_some_and(|probe| probe.is_closed_and_silent(&connections)) {
                        let why = "the server has gone: its port is closed";
                        connections.iter().for_each(|x| x.close(1, why));
                    }
                }
            }
        }
    });
}

/// Sends the files over the connections and returns the results.
pub(crate) fn send(
    output: &Output,
    data_streams: &[DataStream],
    files_to_send: &OutgoingFiles,
    options: &Options,
    probe: Option<&PortProbe>,
) -> TransferResult {
    let sender = &files_to_send.sender;
    let monitor = TransferMonitor::new(output, "sent", sender.set().bytes(), options, usize::MAX);
    for (id, skipped) in (0..).zip(sender.set().skipped()) {
        let file = FileRecord {
            name: skipped.path.display().to_string(),
            is_directory: false,
            bytes: 0,
            sent: 0,
            seconds: 0.0,
            state: if skipped.is_failure { State::Failed } else { State::Skipped },
            hash: None,
            detail: Some(skipped.reason.clone()),
        };
        monitor.end(id, file);
    }
    let limits = TransferLimits::of_client(options);
    run_all(data_streams, &monitor, limits, probe, |stream, connection| {
        sender.run(connection, |event| monitor.on(stream, event)).wait()
    });
    monitor.finish()
}

/// Receives files from the connections until all have finished, and returns the results.
pub(crate) fn receive(
    output: &Output,
    data_streams: &[DataStream],
    options: &Options,
    test_info: &TestInfo,
    budgets: Budgets,
) -> TransferResult {
    let (Work::Files { count, bytes }, Some(directory)) =
        (&test_info.request.work, &options.service.incoming.directory)
    else {
        return TransferResult::default();
    };
    let (count, bytes) = (*count, *bytes);
    output.line(&format!("{count} files and directories, {}", units::bytes(bytes)));
    let existing = match options.service.incoming.existing {
        Existing::Refuse => set::Existing::Refuse,
        Existing::Overwrite => set::Existing::Overwrite,
        Existing::Rename => set::Existing::Rename,
    };
    let receiver = Receiver::new(directory)
        .existing(existing)
        .merge(options.service.incoming.merge)
        .budget(budgets.storage)
        .read_budget(budgets.reads)
        .reserve(options.service.incoming.reserve)
        .max_entries(usize::try_from(count).unwrap_or(usize::MAX))
        .without_reports();
    let monitor = TransferMonitor::new(output, "received", bytes, options, MAX_RECORDS);
    let limiter = options.service.server_bitrate_limit.map(RateLimiter::new);
    let limits = TransferLimits::of_server(options);
    run_all(data_streams, &monitor, limits, None, |stream, connection| {
        let observe = |event: Progress<'_>| {
            monitor.on(stream, event);
            if let (Some(limiter), Progress::Bytes { .. }) = (&limiter, event) {
                limiter.throttle(|| arrived(data_streams));
            }
        };
        receiver.run(connection, observe).wait()
    });
    // Files that were incomplete when the connections ended had no event.
    for report in receiver.reports() {
        monitor.end(u32::MAX, FileRecord::new(&report, 0.0));
    }
    monitor.finish()
}

/// Prints the summary of a transfer; returns whether all succeeded.
pub(crate) fn print_summary(
    output: &Output,
    test_info: &TestInfo,
    totals: &TransferResult,
    word: &str,
    seconds: f64,
    server_output: Option<&str>,
) -> ExitCode {
    let TransferResult { attempted, successful, directories, bytes, sent, .. } = *totals;
    let rate = sent as f64 * 8.0 / seconds.max(1e-9);
    let with_directories = match directories {
        0 => String::new(),
        1 => " and 1 directory".to_owned(),
        count => format!(" and {count} directories"),
    };
    output.line(&format!(
        "{successful} of {attempted} files{with_directories} {word}, {} in {seconds:.2} sec, {}",
        units::bytes(bytes),
        units::rate(rate)
    ));
    let sum = json!({
        "start": 0.0,
        "end": seconds,
        "seconds": seconds,
        "bytes": bytes,
        "sent_bytes": sent,
        "bits_per_second": rate,
        "files": attempted,
        "directories": directories,
        "files_verified": successful,
    });
    let end = json!({ "sum_sent": sum, "sum_received": sum });
    output.event("end", || end.clone());
    let mut document = json!({
        "start": json::start(test_info),
        "files": totals.files.iter().map(FileRecord::json).collect::<Vec<_>>(),
        "end": end,
    });
    if totals.left_out > 0 {
        document["files_left_out"] = totals.left_out.into();
    }
    if let Some((_, name, why)) = &totals.failed {
        document["error"] = format!("{name}: {why}").into();
        output.failure(&format!("{}: {}", printable(name), printable(why)));
    }
    if let Some(text) = server_output {
        output.server_output(&mut document, text);
    }
    output.document(&mut document);
    match totals.has_no_failures() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;
    use crate::console::Console;

    #[test]
    fn checking_a_file_counts_as_progress() {
        let options = cli::parse(["bats_iperf", "-c", "host", "-f", "x"]).unwrap().0;
        let output = Output::new(Console::new(&options).unwrap());
        let monitor = TransferMonitor::new(&output, "sent", 1 << 40, &options, usize::MAX);
        let pause = Duration::from_millis(50);
        thread::sleep(pause);
        let before = monitor.progress.idle_time();
        assert!(before >= pause);
        monitor.on(0, Progress::Checking { id: 0, bytes: 1 });
        assert!(monitor.progress.idle_time() < before);
    }

    /// Small files are queued at once and end one after the other.
    #[test]
    fn the_time_of_a_small_file_does_not_include_earlier_files() {
        let options = cli::parse(["bats_iperf", "-c", "host", "-f", "x"]).unwrap().0;
        let output = Output::new(Console::new(&options).unwrap());
        let monitor = TransferMonitor::new(&output, "sent", 1 << 40, &options, usize::MAX);
        let report = |name: &str| FileReport {
            name: name.to_owned(),
            size: 1_000,
            is_directory: false,
            sent: 1_000,
            outcome: Outcome::Stored { hash: Some([0; 32]) },
        };
        for id in 0..4 {
            monitor.on(id as usize / 3, Progress::Begin { id, name: "f", size: 1_000 });
        }
        let pause = Duration::from_millis(60);
        for id in 0..4 {
            thread::sleep(pause);
            monitor.on(id as usize / 3, Progress::End { id, report: &report("f") });
        }
        let times: Vec<f64> = monitor.finish().files.iter().map(|file| file.seconds).collect();
        let (own, all) = (pause.as_secs_f64(), pause.as_secs_f64() * 4.0);
        assert!(times.iter().all(|&time| time >= own), "{times:?}");
        assert!(times[..3].iter().sum::<f64>() < times[3], "{times:?}");
        assert!(times[3] >= all, "the first file of another stream: {times:?}");
    }

    #[test]
    fn totals_count_all_files_and_records_are_limited() {
        let options = cli::parse(["bats_iperf", "-s", "-J"]).unwrap().0;
        let output = Output::new(Console::new(&options).unwrap());
        let monitor = TransferMonitor::new(&output, "received", 9, &options, 2);
        let file = |name: &str, state| FileRecord {
            name: name.into(),
            is_directory: false,
            bytes: 10,
            sent: 4,
            seconds: 0.0,
            state,
            hash: None,
            detail: (state == State::Failed).then(|| "why".to_owned()),
        };
        for (id, name, state) in [
            (3, "d", State::Failed),
            (0, "a", State::Skipped),
            (1, "b", State::Stored),
            (2, "c", State::Failed),
            (4, "e", State::Unchanged),
        ] {
            monitor.end(id, file(name, state));
        }
        let totals = monitor.finish();
        let kept: Vec<&str> = totals.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((kept, totals.left_out), (vec!["a", "d"], 3));
        assert_eq!((totals.attempted, totals.successful, totals.bytes, totals.sent), (4, 2, 20, 8));
        assert_eq!(totals.failed.as_ref().unwrap().1, "c", "the first in the order offered");
        assert!(!totals.succeeded(4));
        let tree = TransferResult {
            attempted: 2,
            successful: 2,
            directories: 3,
            ..TransferResult::default()
        };
        assert!(tree.succeeded(5) && !tree.succeeded(2));
        let failed = TransferResult { failed_directories: 1, ..tree };
        assert!(!failed.succeeded(5));
        let successful =
            TransferResult { attempted: 2, successful: 2, ..TransferResult::default() };
        assert!(successful.succeeded(2) && !successful.succeeded(3));
    }
}
