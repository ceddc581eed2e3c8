//! The log of the library: one level and one file for the process.

use std::fmt::{self, Write as _};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};

/// Minimum level: 0 trace, 1 debug, 2 info, 3 warn, 4 error.
static LEVEL: AtomicI32 = AtomicI32::new(3);
/// The log file; standard error if there is none.
static FILE: Mutex<Option<File>> = Mutex::new(None);
/// Name of the log file in a directory.
const FILE_NAME: &str = "openbats.log";

fn severity(level: &Level) -> i32 {
    match *level {
        Level::TRACE => 0,
        Level::DEBUG => 1,
        Level::INFO => 2,
        Level::WARN => 3,
        Level::ERROR => 4,
    }
}

/// Installs the log as the global `tracing` subscriber, unless the program has installed one.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = tracing::subscriber::set_global_default(Log);
    });
}

/// Sets the minimum level; `false` if it does not exist.
pub(crate) fn set_level(level: i32) -> bool {
    if !(0..=4).contains(&level) {
        return false;
    }
    LEVEL.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    true
}

/// Sets the log file. Appends to this file, or to `openbats.log` in it if the path is a directory
/// or ends with a slash.
pub(crate) fn set_path(path: &str) -> Result<(), String> {
    let is_directory = path.ends_with('/') || Path::new(path).is_dir();
    let file = if is_directory { Path::new(path).join(FILE_NAME) } else { PathBuf::from(path) };
    if let Some(directory) = file.parent()
        && !directory.as_os_str().is_empty()
    {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot create {}: {error}", directory.display()))?;
    }
    let opened = OpenOptions::new().create(true).append(true).open(&file);
    let opened = opened.map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    *FILE.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened);
    Ok(())
}

struct Log;

impl Subscriber for Log {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && severity(metadata.level()) >= LEVEL.load(Ordering::Relaxed)
    }

    fn event(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut line = Line(String::with_capacity(120));
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let _ = write!(
            line.0,
            "{}.{:06} {:5} {}:",
            time.tv_sec,
            time.tv_nsec / 1_000,
            metadata.level(),
            metadata.target()
        );
        event.record(&mut line);
        line.0.push('\n');
        let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure to write the log cannot be reported.
        let _ = match &mut *file {
            Some(file) => file.write_all(line.0.as_bytes()),
            None => std::io::stderr().write_all(line.0.as_bytes()),
        };
    }

    // The library uses no spans.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line(String);

impl Line {
    fn text(&mut self, name: &str, value: fmt::Arguments<'_>) {
        let start = self.0.len();
        let _ = match name {
            "message" => write!(self.0, " {value}"),
            _ => write!(self.0, " {name}={value}"),
        };
        // Text from peers must not start a new log line.
        if self.0[start..].contains(char::is_control) {
            let clean = self.0[start..].replace(char::is_control, "?");
            self.0.truncate(start);
            self.0.push_str(&clean);
        }
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_from_the_minimum_level_on_are_written_to_the_log_file() {
        let directory = std::env::temp_dir().join(format!("openbats-log-{}", std::process::id()));
        start();
        set_path(&format!("{}/", directory.display())).unwrap();
        assert!(set_level(2) && !set_level(5) && !set_level(-1));
        tracing::info!(peer = "a\nb", "logged {}", 1);
        tracing::debug!("below the level");
        set_level(1);
        tracing::debug!("logged 2");
        let text = std::fs::read_to_string(directory.join(FILE_NAME)).unwrap();
        assert!(text.contains("logged 1 peer=a?b\n"), "{text}");
        assert!(text.contains("logged 2\n") && !text.contains("below the level"), "{text}");
        assert!(set_path("/proc/nowhere/x").is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
