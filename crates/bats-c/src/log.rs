//! The library's log: one level and one file for the process.

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

/// 0 trace, 1 debug, 2 info, 3 warn, 4 error.
static LEVEL: AtomicI32 = AtomicI32::new(3);
/// Where lines go; standard error if there is no file.
static FILE: Mutex<Option<File>> = Mutex::new(None);
/// The name of the log in a directory.
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

/// Takes the log over, unless the program has a subscriber of its own.
pub(crate) fn start() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let _ = tracing::subscriber::set_global_default(Log);
    });
}

/// `false` if there is no such level.
pub(crate) fn set_level(level: i32) -> bool {
    if !(0..=4).contains(&level) {
        return false;
    }
    LEVEL.store(level, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
    true
}

/// Appends to this file, or to a file in it if it is a directory or ends like one.
pub(crate) fn set_path(path: &str) -> Result<(), String> {
    let is_directory = path.ends_with('/') || Path::new(path).is_dir();
    let file = if is_directory { Path::new(path).join(FILE_NAME) } else { PathBuf::from(path) };
    if let Some(directory) = file.parent()
        && !directory.as_os_str().is_empty()
    {
        std::fs::create_dir_all(directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
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
        // Nobody is left to be told that the log cannot be written.
        let _ = match &mut *file {
            Some(file) => file.write_all(line.0.as_bytes()),
            None => std::io::stderr().write_all(line.0.as_bytes()),
        };
    }

    // There are no spans here.
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
        // What came from outside starts no line of its own.
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
    fn the_log_goes_to_its_file_from_its_level_on() {
        let directory = std::env::temp_dir().join(format!("openbats-log-{}", std::process::id()));
        start();
        set_path(&format!("{}/", directory.display())).unwrap();
        assert!(set_level(2) && !set_level(5) && !set_level(-1));
        tracing::info!(peer = "a\nb", "seen {}", 1);
        tracing::debug!("not seen");
        set_level(1);
        tracing::debug!("seen 2");
        let text = std::fs::read_to_string(directory.join(FILE_NAME)).unwrap();
        assert!(text.contains("seen 1 peer=a?b\n"), "{text}");
        assert!(text.contains("seen 2\n") && !text.contains("not seen"), "{text}");
        assert!(set_path("/proc/nowhere/x").is_err());
        std::fs::remove_dir_all(directory).unwrap();
    }
}
