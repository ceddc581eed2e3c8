//! Where the report goes: standard output, a file if asked for, and the other side if it asks.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cli::Options;
use crate::clock::Clock;
use crate::control::{MAX_OUTPUT, printable};
use crate::excerpt::{self, Lines};
use crate::sentence;

/// Samples of streams kept for a document: a day of one stream at 1 s, less of more. A client may ask
/// for more than memory holds.
const MAX_SAMPLES: usize = 100_000;
/// Those kept for the other side alone, which takes no more than some [`MAX_OUTPUT`] bytes.
const MAX_COPIED_SAMPLES: usize = 8_000;

/// What is written to standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Document,
    Stream,
}

/// The process's output.
#[derive(Debug)]
pub(crate) struct Console {
    log: Option<(PathBuf, Mutex<File>)>,
    /// Empty for the format of the original.
    timestamps: Option<String>,
    format: Format,
    title: Option<String>,
    extra_data: Option<String>,
    is_verbose: bool,
    /// Nobody reads standard output.
    is_detached: bool,
    /// There will be a report with pictures.
    has_report: bool,
    /// The JSON document was printed: a second one would make both unreadable.
    has_document: AtomicBool,
    clock: Clock,
    /// The first write that failed for another reason than a reader that has gone.
    lost: Mutex<Option<io::Error>>,
}

fn open_log(path: &Path) -> Result<File> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    File::options()
        .append(true)
        .create(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

impl Console {
    /// # Errors
    /// The log file cannot be written.
    pub(crate) fn new(options: &Options) -> Result<Arc<Self>> {
        let log = match &options.logfile {
            Some(path) => Some((path.clone(), Mutex::new(open_log(path)?))),
            None => None,
        };
        let format = match (options.json, options.json_stream) {
            (true, _) => Format::Document,
            (_, true) => Format::Stream,
            _ => Format::Text,
        };
        Ok(Arc::new(Self {
            log,
            timestamps: options.timestamps.clone(),
            format,
            title: options.title.clone(),
            extra_data: options.extra_data.clone(),
            is_verbose: options.verbose,
            is_detached: options.detached,
            has_report: options.report.is_some(),
            has_document: AtomicBool::new(false),
            clock: Clock::start(),
            lost: Mutex::new(None),
        }))
    }

    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// Opens the log file by its name again: it may have been renamed or removed.
    pub(crate) fn reopen(&self) {
        let Some((path, log)) = &self.log else { return };
        match open_log(path) {
            Ok(file) => {
                if let Ok(mut log) = log.lock() {
                    *log = file;
                }
            }
            // The old one goes on.
            Err(error) => self.note(&format!("bats_iperf: {}", sentence::of(&error))),
        }
    }

    /// Something for a human who watches, not part of the report. Nobody watches a daemon: its log
    /// has it, unless programs read that.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
        if self.is_detached && self.format == Format::Text {
            self.write_log(&self.decorated(None, text));
        }
    }

    /// An error, for whoever reads standard output.
    pub(crate) fn error(&self, text: &str) {
        match self.format {
            Format::Text => {}
            Format::Document if self.has_document.load(Ordering::Acquire) => {}
            Format::Document => self.write(&format!("{:#}", json!({ "error": text }))),
            Format::Stream => self.write(&json!({ "event": "error", "data": text }).to_string()),
        }
    }

    fn decorated(&self, title: Option<&str>, text: &str) -> String {
        let title = title.map(|title| format!("{title}:  ")).unwrap_or_default();
        let Some(format) = &self.timestamps else { return format!("{title}{text}") };
        let now = jiff::Zoned::now();
        if format.is_empty() {
            let passed = self.clock.elapsed();
            return format!(
                "[{} {:03}]  {}.{:09} {title}{text}",
                now.strftime("%H:%M:%S"),
                now.millisecond(),
                passed.as_secs(),
                passed.subsec_nanos()
            );
        }
        // Checked when the options were read.
        let time = jiff::fmt::strtime::format(format, &now).unwrap_or_default();
        format!("{time} {title}{text}")
    }

    fn write(&self, text: &str) {
        if !self.is_detached {
            // A reader that has gone (`| head`) is no reason to end the test.
            let mut out = std::io::stdout().lock();
            self.keep_error(writeln!(out, "{text}").and_then(|()| out.flush()));
        }
        self.write_log(text);
    }

    fn write_log(&self, text: &str) {
        if let Some(Ok(mut log)) = self.log.as_ref().map(|(_, log)| log.lock()) {
            self.keep_error(writeln!(log, "{text}"));
        }
    }

    fn keep_error(&self, written: io::Result<()>) {
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
            && let Ok(mut lost) = self.lost.lock()
        {
            lost.get_or_insert(error);
        }
    }

    /// Why part of the report was lost, if it was.
    pub(crate) fn take_lost(&self) -> Option<anyhow::Error> {
        let error = self.lost.lock().ok()?.take()?;
        Some(anyhow::Error::new(error).context("cannot write the report"))
    }
}

/// The output of one test.
#[derive(Debug)]
pub(crate) struct Output {
    console: Arc<Console>,
    title: Option<String>,
    /// What the other side wants to have.
    copy: Option<Mutex<Lines>>,
    /// ... as JSON.
    copies_json: bool,
    has_events: bool,
}

impl Output {
    /// Of a client, or of a server whose client does not ask.
    pub(crate) fn new(console: Arc<Console>) -> Self {
        let title = console.title.clone();
        Self { console, title, copy: None, copies_json: false, has_events: true }
    }

    /// Lines begin with this title unless this side has one of its own.
    pub(crate) fn title(mut self, title: Option<String>) -> Self {
        self.title = self.title.or(title);
        self
    }

    /// Leaves intervals out of a stream of JSON objects: those of a baseline would be taken for
    /// the test's.
    pub(crate) fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Keeps a copy of the report.
    pub(crate) fn copy(mut self, as_json: bool) -> Self {
        (self.copy, self.copies_json) = (Some(Mutex::default()), as_json);
        self
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.console.is_verbose
    }

    /// Whether anyone will read a JSON document.
    pub(crate) fn is_json(&self) -> bool {
        self.console.format != Format::Text
    }

    /// How many samples of streams are kept for the end.
    pub(crate) fn samples_kept(&self) -> usize {
        match self.console.format == Format::Document || self.console.has_report {
            true => MAX_SAMPLES,
            false if self.copies_json => MAX_COPIED_SAMPLES,
            false => 0,
        }
    }

    /// A line of the report.
    pub(crate) fn line(&self, text: &str) {
        if self.console.format == Format::Text {
            self.console.write(&self.console.decorated(self.title.as_deref(), text));
        }
        if !self.copies_json {
            self.keep(text);
        }
    }

    fn keep(&self, text: &str) {
        if let Some(Ok(mut copy)) = self.copy.as_ref().map(Mutex::lock) {
            copy.push(text, MAX_OUTPUT);
        }
    }

    pub(crate) fn note(&self, text: &str) {
        self.console.note(text);
    }

    /// An object of a stream of JSON objects.
    pub(crate) fn event(&self, name: &str, data: impl FnOnce() -> Value) {
        if self.console.format == Format::Stream && self.has_events {
            self.console.write(&json!({ "event": name, "data": data() }).to_string());
        }
    }

    /// The JSON document, with title and extra data.
    pub(crate) fn document(&self, document: &mut Value) {
        if let Some(title) = &self.title {
            document["title"] = title.as_str().into();
        }
        if let Some(extra) = &self.console.extra_data {
            document["extra_data"] = extra.as_str().into();
        }
        if self.copies_json {
            self.keep(&excerpt::document(document, MAX_OUTPUT - 1_000));
        }
        if self.console.format == Format::Document {
            self.console.has_document.store(true, Ordering::Release);
            self.console.write(&format!("{document:#}"));
        }
    }

    /// The other side's report.
    pub(crate) fn server_output(&self, document: &mut Value, text: &str) {
        if self.is_json() {
            let (key, value) = match serde_json::from_str::<Value>(text) {
                Ok(value) => ("server_output_json", value),
                Err(_) => ("server_output_text", text.into()),
            };
            if let Some(words) = excerpt::lacks(&value) {
                self.note(&words);
            }
            self.event(key, || value.clone());
            document[key] = value;
        } else {
            self.line("");
            self.line("Server output:");
            text.lines().for_each(|line| self.line(&printable(line)));
        }
    }

    /// The report so far, for the other side.
    pub(crate) fn copied(&self) -> String {
        let copy = self.copy.as_ref().and_then(|copy| copy.lock().ok());
        copy.map(|copy| copy.whole()).unwrap_or_default()
    }
}
