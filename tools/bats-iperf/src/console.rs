//! Output of the report: standard output, an optional file, and a copy for the peer if requested.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::cli::Options;
use crate::clock::Clock;
use crate::control::MAX_OUTPUT;
use crate::error_text;
use crate::printable::printable;
use crate::truncate::{self, LimitedText};

/// Maximum number of stream samples kept for a document: a day of one stream at 1 s intervals. The
/// limit bounds memory, as clients choose the interval.
const MAX_SAMPLES: usize = 100_000;
/// Maximum number kept only for the copy for the peer, which accepts about [`MAX_OUTPUT`] bytes.
const MAX_COPIED_SAMPLES: usize = 8_000;

/// Format of standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Text,
    Document,
    Stream,
}

/// The output of the process.
#[derive(Debug)]
pub(crate) struct Console {
    log: Option<(PathBuf, Mutex<File>)>,
    /// Empty for the timestamp format of the original.
    timestamps: Option<String>,
    format: Format,
    title: Option<String>,
    extra_data: Option<String>,
    is_verbose: bool,
    /// Standard output is not connected: the process is a daemon.
    is_detached: bool,
    /// An HTML report will be written.
    has_report: bool,
    /// The JSON document was printed. A second one would make the output invalid.
    has_document: AtomicBool,
    clock: Clock,
    /// The first write error other than a closed pipe.
    write_error: Mutex<Option<io::Error>>,
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
        let log = match &options.output.logfile {
            Some(path) => Some((path.clone(), Mutex::new(open_log(path)?))),
            None => None,
        };
        let format = match (options.output.json, options.output.json_stream) {
            (true, _) => Format::Document,
            (_, true) => Format::Stream,
            _ => Format::Text,
        };
        Ok(Arc::new(Self {
            log,
            timestamps: options.output.timestamps.clone(),
            format,
            title: options.output.title.clone(),
            extra_data: options.output.extra_data.clone(),
            is_verbose: options.output.verbose,
            is_detached: options.service.detached,
            has_report: options.test.report.is_some(),
            has_document: AtomicBool::new(false),
            clock: Clock::start(),
            write_error: Mutex::new(None),
        }))
    }

    pub(crate) fn has_log(&self) -> bool {
        self.log.is_some()
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.is_detached
    }

    /// Reopens the log file by its name: it may have been renamed or removed.
    pub(crate) fn reopen(&self) {
        let Some((path, log)) = &self.log else { return };
        match open_log(path) {
            Ok(file) => {
                if let Ok(mut log) = log.lock() {
                    *log = file;
                }
            }
            // The old file stays in use.
            Err(error) => self.note(&format!("bats_iperf: {}", error_text::join_causes(&error))),
        }
    }

    /// Prints a note for a user on standard error; it is not part of the report. A daemon also
    /// writes it to its log file, unless the log is in JSON.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
        if self.is_detached && self.format == Format::Text {
            self.write_log(&self.with_prefix(None, text));
        }
    }

    /// Prints a failure on standard error, as [`note`](Self::note).
    pub(crate) fn failure(&self, text: &str) {
        if let Some(line) = error_text::failure(text) {
            self.note(&line);
        }
    }

    /// Prints an error in the format of standard output.
    pub(crate) fn error(&self, text: &str) {
        match self.format {
            Format::Text => {}
            Format::Document if self.has_document.load(Ordering::Acquire) => {}
            Format::Document => self.write(&format!("{:#}", json!({ "error": text }))),
            Format::Stream => self.write(&json!({ "event": "error", "data": text }).to_string()),
        }
    }

    fn with_prefix(&self, title: Option<&str>, text: &str) -> String {
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
        // The format was checked when the options were parsed.
        let time = jiff::fmt::strtime::format(format, &now).unwrap_or_default();
        format!("{time} {title}{text}")
    }

    fn write(&self, text: &str) {
        if !self.is_detached {
            // A reader that closes the pipe (`| head`) does not end the test.
            let mut out = std::io::stdout().lock();
            self.record_error(writeln!(out, "{text}").and_then(|()| out.flush()));
        }
        self.write_log(text);
    }

    fn write_log(&self, text: &str) {
        if let Some(Ok(mut log)) = self.log.as_ref().map(|(_, log)| log.lock()) {
            self.record_error(writeln!(log, "{text}"));
        }
    }

    fn record_error(&self, written: io::Result<()>) {
        if let Err(error) = written
            && error.kind() != io::ErrorKind::BrokenPipe
            && let Ok(mut write_error) = self.write_error.lock()
        {
            write_error.get_or_insert(error);
        }
    }

    /// The first error of writing the report, if there was one.
    pub(crate) fn take_write_error(&self) -> Option<anyhow::Error> {
        let error = self.write_error.lock().ok()?.take()?;
        Some(anyhow::Error::new(error).context("cannot write the report"))
    }
}

/// The output of one test.
#[derive(Debug)]
pub(crate) struct Output {
    console: Arc<Console>,
    title: Option<String>,
    /// The copy for the peer.
    copy: Option<Mutex<LimitedText>>,
    /// Whether the copy is JSON.
    copies_json: bool,
    has_events: bool,
}

impl Output {
    /// The output of a client, or of a server whose client does not want a copy.
    pub(crate) fn new(console: Arc<Console>) -> Self {
        let title = console.title.clone();
        Self { console, title, copy: None, copies_json: false, has_events: true }
    }

    /// Sets the line prefix, unless this side has its own.
    pub(crate) fn title(mut self, title: Option<String>) -> Self {
        self.title = self.title.or(title);
        self
    }

    /// Suppresses the events of line-delimited JSON: the intervals of a baseline would look like
    /// those of the test.
    pub(crate) fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Keeps a copy of the report for the peer.
    pub(crate) fn copy(mut self, as_json: bool) -> Self {
        (self.copy, self.copies_json) = (Some(Mutex::default()), as_json);
        self
    }

    pub(crate) fn is_verbose(&self) -> bool {
        self.console.is_verbose
    }

    /// Whether standard output is JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.console.format != Format::Text
    }

    /// Maximum number of stream samples to keep for the final report.
    pub(crate) fn samples_kept(&self) -> usize {
        match self.console.format == Format::Document || self.console.has_report {
            true => MAX_SAMPLES,
            false if self.copies_json => MAX_COPIED_SAMPLES,
            false => 0,
        }
    }

    /// Prints a line of the report.
    pub(crate) fn line(&self, text: &str) {
        if self.console.format == Format::Text {
            self.console.write(&self.console.with_prefix(self.title.as_deref(), text));
        }
        if !self.copies_json {
            self.copy_text(text);
        }
    }

    fn copy_text(&self, text: &str) {
        if let Some(Ok(mut copy)) = self.copy.as_ref().map(Mutex::lock) {
            copy.push(text, MAX_OUTPUT);
        }
    }

    /// Prints a failure on standard error.
    pub(crate) fn failure(&self, text: &str) {
        self.console.failure(text);
    }

    pub(crate) fn note(&self, text: &str) {
        self.console.note(text);
    }

    /// Prints an event of line-delimited JSON.
    pub(crate) fn event(&self, name: &str, data: impl FnOnce() -> Value) {
        if self.console.format == Format::Stream && self.has_events {
            self.console.write(&json!({ "event": name, "data": data() }).to_string());
        }
    }

    /// Prints the JSON document, with title and extra data.
    pub(crate) fn document(&self, document: &mut Value) {
        if let Some(title) = &self.title {
            document["title"] = title.as_str().into();
        }
        if let Some(extra) = &self.console.extra_data {
            document["extra_data"] = extra.as_str().into();
        }
        if self.copies_json {
            self.copy_text(&truncate::document(document, MAX_OUTPUT - 1_000));
        }
        if self.console.format == Format::Document {
            self.console.has_document.store(true, Ordering::Release);
            self.console.write(&format!("{document:#}"));
        }
    }

    /// Prints the report of the peer.
    pub(crate) fn server_output(&self, document: &mut Value, text: &str) {
        if self.is_json() {
            let (key, value) = match serde_json::from_str::<Value>(text) {
                Ok(value) => ("server_output_json", value),
                Err(_) => ("server_output_text", text.into()),
            };
            if let Some(note_text) = truncate::omission_note(&value) {
                self.note(&note_text);
            }
            self.event(key, || value.clone());
            document[key] = value;
        } else {
            self.line("");
            self.line("Server output:");
            text.lines().for_each(|line| self.line(&printable(line)));
        }
    }

    /// The copy of the report so far.
    pub(crate) fn copied(&self) -> String {
        let copy = self.copy.as_ref().and_then(|copy| copy.lock().ok());
        copy.map(|copy| copy.finish()).unwrap_or_default()
    }
}
