//! Files: what is sent or received is shown, reported and concluded.

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

use crate::carrier::Pipe;
use crate::cli::{Compression, Existing, Options};
use crate::clock::Clock;
use crate::console::Output;
use crate::control::{Work, printable};
use crate::limit::Allowance;
use crate::report::json::{self, About};
use crate::units;

/// Bars at a time; more would not fit.
const MAX_BARS: usize = 10;
/// Files of a transfer of which a server keeps more than the sum: a client may send any number.
const MAX_KEPT: usize = 20_000;
/// How often it is looked whether a transfer still moves.
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// Files to be sent.
#[derive(Debug)]
pub(crate) struct Outgoing {
    sender: Sender,
}

impl Outgoing {
    /// Files and directories.
    pub(crate) fn count(&self) -> u64 {
        self.sender.set().entries().len() as u64
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.sender.set().bytes()
    }
}

/// What happened to one file or directory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transferred {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    /// Bytes that were not there already.
    pub(crate) sent: u64,
    pub(crate) seconds: f64,
    pub(crate) state: State,
    /// The BLAKE3 hash in hexadecimal.
    pub(crate) hash: Option<String>,
    /// The name that it got, or what went wrong.
    pub(crate) words: Option<String>,
}

/// How it ended.
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

impl Transferred {
    fn new(report: &FileReport, seconds: f64) -> Self {
        let (state, words) = match &report.outcome {
            Outcome::Stored { .. } => (State::Stored, None),
            Outcome::Renamed { to, .. } => (State::Renamed, Some(to.clone())),
            Outcome::Unchanged { .. } => (State::Unchanged, None),
            Outcome::Failed(why) => (State::Failed, Some(why.clone())),
        };
        let hex = |hash: &[u8; 32]| hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self {
            name: report.name.clone(),
            bytes: report.size,
            sent: report.sent,
            seconds,
            state,
            hash: report.outcome.hash().map(hex),
            words,
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.state != State::Failed
    }

    /// A line about it.
    fn line(&self, word: &str) -> String {
        let name = printable(&self.name);
        let words = self.words.as_deref().map(printable).unwrap_or_default();
        let hash = self.hash.as_ref().map(|hash| format!(", BLAKE3 {hash}")).unwrap_or_default();
        match self.state {
            State::Failed => format!("failed {name}: {words}"),
            State::Skipped => format!("skipped {name}: {words}"),
            State::Unchanged => format!("unchanged {name}: {}{hash}", units::bytes(self.bytes)),
            State::Stored if self.hash.is_none() => format!("{word} {name}/"),
            State::Stored | State::Renamed => {
                let to = match self.state {
                    State::Renamed => format!(" as {words}"),
                    _ => String::new(),
                };
                let rest = match self.bytes.saturating_sub(self.sent) {
                    0 => String::new(),
                    there => format!(" ({} were there)", units::bytes(there)),
                };
                format!(
                    "{word} {name}{to}: {}{rest} in {:.2} sec, {}{hash}",
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
            "verified": self.is_good() && self.state != State::Skipped,
            "blake3": self.hash,
            "stored_as": self.words.as_ref().filter(|_| self.state == State::Renamed),
            "error": self.words.as_ref().filter(|_| matches!(self.state, State::Failed | State::Skipped)),
        })
    }
}

/// What became of all files and directories of a transfer.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// In the order in which they were offered, as far as they were kept.
    files: Vec<Transferred>,
    /// Those that were not.
    left_out: u64,
    /// Of all: how many, skipped ones aside; those of them that are good; their bytes, and those
    /// that were sent.
    counted: u64,
    good: u64,
    bytes: u64,
    sent: u64,
    /// The first that failed.
    failed: Option<(u32, String, String)>,
}

impl Account {
    fn add(&mut self, id: u32, file: &Transferred) {
        if file.state == State::Skipped {
            return;
        }
        self.counted += 1;
        if file.is_good() {
            self.good += 1;
            self.bytes = self.bytes.saturating_add(file.bytes);
            self.sent = self.sent.saturating_add(file.sent);
        } else if self.failed.as_ref().is_none_or(|(first, ..)| id < *first) {
            let why = file.words.clone().unwrap_or_default();
            self.failed = Some((id, file.name.clone(), why));
        }
    }

    /// Whether so many were to be transferred, and all were.
    pub(crate) fn is_good(&self, count: u64) -> bool {
        self.good == self.counted && self.counted == count
    }
}

/// Files to be sent, `None` if none were asked for.
///
/// # Errors
/// None of them is there, or two have the same name.
pub(crate) fn collect(options: &Options) -> Result<Option<Outgoing>> {
    if options.files.is_empty() {
        return Ok(None);
    }
    let set = FileSet::collect(&options.files)?;
    if set.entries().is_empty() {
        let reason = set.skipped().first().map_or("nothing to send", |skipped| &skipped.reason);
        bail!("{reason}");
    }
    let compression = options.compress.map(|compression| match compression {
        Compression::Zstd => set::Compression::Zstd,
        Compression::Lz4 => set::Compression::Lz4,
    });
    Ok(Some(Outgoing { sender: Sender::new(set).compression(compression) }))
}

/// What is seen of a transfer while it runs.
struct View<'a> {
    output: &'a Output,
    /// `sent` or `received`.
    word: &'static str,
    bars: Option<MultiProgress>,
    files: Mutex<BTreeMap<u32, (Clock, Option<ProgressBar>)>>,
    done: Mutex<(Vec<(u32, Transferred)>, Account)>,
    /// How many of them are kept.
    most: usize,
    total: u64,
    moved: AtomicU64,
    clock: Clock,
    /// Between two lines of progress where there is no terminal; zero for none.
    every: Duration,
    next_line: Mutex<Duration>,
    /// When something happened, in milliseconds.
    moved_at: AtomicU64,
}

impl<'a> View<'a> {
    fn new(
        output: &'a Output,
        word: &'static str,
        total: u64,
        options: &Options,
        most: usize,
    ) -> Self {
        let (every, debug) = (options.interval, options.debug);
        let is_shown = !output.is_json() && !debug && std::io::stderr().is_terminal();
        let target = ProgressDrawTarget::stderr();
        Self {
            output,
            word,
            bars: is_shown.then(|| MultiProgress::with_draw_target(target)),
            files: Mutex::default(),
            done: Mutex::default(),
            most,
            total,
            moved: AtomicU64::new(0),
            clock: Clock::start(),
            every,
            next_line: Mutex::new(every),
            moved_at: AtomicU64::new(0),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// How long nothing has happened.
    fn stillness(&self) -> Duration {
        let moved_at = self.moved_at.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(moved_at))
    }

    fn on(&self, progress: Progress<'_>) {
        self.moved_at.store(self.now_ms(), Ordering::Relaxed);
        let Ok(mut files) = self.files.lock() else { return };
        match progress {
            Progress::Begin { id, name, size } => {
                let shown = files.values().filter(|(_, bar)| bar.is_some()).count();
                let bar = match &self.bars {
                    Some(bars) if shown < MAX_BARS && size > 0 => {
                        Some(new_bar(bars, &printable(name), size))
                    }
                    _ => None,
                };
                files.insert(id, (Clock::start(), bar));
            }
            Progress::Bytes { id, bytes } => {
                if let Some((_, Some(bar))) = files.get(&id) {
                    bar.inc(bytes);
                }
                drop(files);
                let moved = self.moved.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
                self.line(moved);
            }
            // Something moves at one of the ends, which is all there is to know.
            Progress::Checking { .. } => {}
            Progress::End { id, report } => {
                let seconds = match files.remove(&id) {
                    Some((clock, bar)) => {
                        if let Some(bar) = bar {
                            bar.finish_and_clear();
                        }
                        clock.elapsed().as_secs_f64()
                    }
                    None => 0.0,
                };
                drop(files);
                self.end(id, Transferred::new(report, seconds));
            }
        }
    }

    fn end(&self, id: u32, file: Transferred) {
        let line = file.line(self.word);
        self.print(&line);
        self.output.event("file", || file.json());
        if let Ok(mut done) = self.done.lock() {
            done.1.add(id, &file);
            match done.0.len() < self.most {
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

    /// Where there is no terminal, a line from time to time.
    fn line(&self, moved: u64) {
        if self.bars.is_some() || self.every.is_zero() {
            return;
        }
        let now = self.clock.elapsed();
        let Ok(mut next) = self.next_line.lock() else { return };
        if now < *next {
            return;
        }
        *next = now + self.every;
        let percent = 100.0 * moved as f64 / self.total.max(1) as f64;
        self.output.line(&format!(
            "{percent:>3.0}%  {} of {}  {}",
            units::bytes(moved),
            units::bytes(self.total),
            units::rate(moved as f64 * 8.0 / now.as_secs_f64().max(1e-9))
        ));
    }

    /// Everything, in the order in which it was offered.
    fn finish(self) -> Account {
        let (mut done, account) = self.done.into_inner().unwrap_or_default();
        done.sort_by_key(|(id, _)| *id);
        Account { files: done.into_iter().map(|(_, file)| file).collect(), ..account }
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

/// Runs one thread for each connection, and ends them all when nothing moves for too long.
fn on_all(
    pipes: &[Pipe],
    view: &View<'_>,
    limit: Duration,
    run: impl Fn(&Connection) -> Result<(), FileError> + Sync,
) {
    let connections: Vec<&Connection> = pipes
        .iter()
        .filter_map(|pipe| match pipe {
            Pipe::Bats { connection, .. } => Some(connection),
            Pipe::Tcp(_) | Pipe::Udp(_) => None,
        })
        .collect();
    thread::scope(|scope| {
        let (done, ended) = channel();
        for connection in &connections {
            let (run, done) = (&run, done.clone());
            scope.spawn(move || {
                if let Err(error) = run(connection) {
                    view.output.note(&format!("bats_iperf: error - {error}"));
                    connection.close(1, "the transfer failed");
                }
                let _ = done.send(());
            });
        }
        drop(done);
        let mut running = connections.len();
        while running > 0 {
            match ended.recv_timeout(WATCH_EVERY) {
                Ok(()) => running -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if view.stillness() > limit => {
                    connections.iter().for_each(|x| x.close(1, "the transfer stood still"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    });
}

/// Sends the files over the connections; what became of each.
pub(crate) fn send(
    output: &Output,
    pipes: &[Pipe],
    outgoing: &Outgoing,
    options: &Options,
) -> Account {
    let sender = &outgoing.sender;
    let view = View::new(output, "sent", sender.set().bytes(), options, usize::MAX);
    for (id, skipped) in (0..).zip(sender.set().skipped()) {
        let file = Transferred {
            name: skipped.path.display().to_string(),
            bytes: 0,
            sent: 0,
            seconds: 0.0,
            state: if skipped.is_failure { State::Failed } else { State::Skipped },
            hash: None,
            words: Some(skipped.reason.clone()),
        };
        view.end(id, file);
    }
    on_all(pipes, &view, options.rcv_timeout, |connection| {
        sender.run(connection, |event| view.on(event)).wait()
    });
    view.finish()
}

/// Receives files from the connections until all have finished; what became of each.
pub(crate) fn receive(
    output: &Output,
    pipes: &[Pipe],
    options: &Options,
    about: &About,
) -> Account {
    let Work::Files { count, bytes } = about.request.work else { return Account::default() };
    output.line(&format!("{count} files and directories, {}", units::bytes(bytes)));
    let existing = match options.existing {
        Existing::Refuse => set::Existing::Refuse,
        Existing::Overwrite => set::Existing::Overwrite,
        Existing::Rename => set::Existing::Rename,
    };
    let receiver = Receiver::new(&options.directory)
        .existing(existing)
        .max_entries(usize::try_from(count).unwrap_or(usize::MAX))
        .without_reports();
    let view = View::new(output, "received", bytes, options, MAX_KEPT);
    let allowance = options.server_bitrate_limit.map(Allowance::new);
    let arrived = || {
        pipes.iter().filter_map(Pipe::bytes_received).fold(0_u64, |sum, x| sum.saturating_add(x))
    };
    on_all(pipes, &view, options.rcv_timeout, |connection| {
        let observe = |event: Progress<'_>| {
            view.on(event);
            if let (Some(allowance), Progress::Bytes { .. }) = (&allowance, event) {
                allowance.wait(arrived);
            }
        };
        receiver.run(connection, observe).wait()
    });
    // What was not settled when the connections ended has no event.
    for report in receiver.reports() {
        view.end(u32::MAX, Transferred::new(&report, 0.0));
    }
    view.finish()
}

/// Prints the end of a transfer; whether all went well.
pub(crate) fn conclude(
    output: &Output,
    about: &About,
    account: &Account,
    word: &str,
    seconds: f64,
    server_output: Option<&str>,
) -> ExitCode {
    let Account { counted, good, bytes, sent, .. } = *account;
    let rate = sent as f64 * 8.0 / seconds.max(1e-9);
    output.line(&format!(
        "{good} of {counted} files {word}, {} in {seconds:.2} sec, {}",
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
        "files": counted,
        "files_verified": good,
    });
    let end = json!({ "sum_sent": sum, "sum_received": sum });
    output.event("end", || end.clone());
    let mut document = json!({
        "start": json::start(about),
        "files": account.files.iter().map(Transferred::json).collect::<Vec<_>>(),
        "end": end,
    });
    if account.left_out > 0 {
        document["files_left_out"] = account.left_out.into();
    }
    if let Some((_, name, why)) = &account.failed {
        document["error"] = format!("{name}: {why}").into();
        output.note(&format!("bats_iperf: error - {}: {}", printable(name), printable(why)));
    }
    if let Some(text) = server_output {
        output.server_output(&mut document, text);
    }
    output.document(&mut document);
    match good == counted {
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
    fn who_reads_a_file_does_not_stand_still() {
        let options = cli::parse(["bats_iperf", "-c", "host", "-f", "x"]).unwrap().0;
        let output = Output::new(Console::new(&options).unwrap());
        let view = View::new(&output, "sent", 1 << 40, &options, usize::MAX);
        let pause = Duration::from_millis(50);
        thread::sleep(pause);
        let before = view.stillness();
        assert!(before >= pause);
        view.on(Progress::Checking { id: 0, bytes: 1 });
        assert!(view.stillness() < before);
    }

    #[test]
    fn an_account_sums_all_and_keeps_so_many() {
        let options = cli::parse(["bats_iperf", "-s", "-J"]).unwrap().0;
        let output = Output::new(Console::new(&options).unwrap());
        let view = View::new(&output, "received", 9, &options, 2);
        let file = |name: &str, state| Transferred {
            name: name.into(),
            bytes: 10,
            sent: 4,
            seconds: 0.0,
            state,
            hash: None,
            words: (state == State::Failed).then(|| "why".to_owned()),
        };
        for (id, name, state) in [
            (3, "d", State::Failed),
            (0, "a", State::Skipped),
            (1, "b", State::Stored),
            (2, "c", State::Failed),
            (4, "e", State::Unchanged),
        ] {
            view.end(id, file(name, state));
        }
        let account = view.finish();
        let kept: Vec<&str> = account.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!((kept, account.left_out), (vec!["a", "d"], 3));
        assert_eq!((account.counted, account.good, account.bytes, account.sent), (4, 2, 20, 8));
        assert_eq!(account.failed.as_ref().unwrap().1, "c", "the first as they were offered");
        assert!(!account.is_good(4));
        let good = Account { counted: 2, good: 2, ..Account::default() };
        assert!(good.is_good(2) && !good.is_good(3));
    }
}
