//! Where the report goes: standard output, and a file if asked for.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Mutex;

use anyhow::{Context, Result};

use crate::cli::Options;
use crate::clock::Clock;

/// Prints lines.
pub(crate) struct Console {
    log: Option<Mutex<File>>,
    timestamps: bool,
    /// With JSON the only thing on standard output is the document.
    is_json: bool,
    clock: Clock,
}

impl Console {
    /// # Errors
    /// The log file cannot be written.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let log = match &options.logfile {
            Some(path) => {
                if let Some(parent) = path.parent() {
                    fs::create_dir_all(parent)
                        .with_context(|| format!("cannot make {}", parent.display()))?;
                }
                let file = File::options()
                    .append(true)
                    .create(true)
                    .open(path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                Some(Mutex::new(file))
            }
            None => None,
        };
        Ok(Self {
            log,
            timestamps: options.timestamps,
            is_json: options.json,
            clock: Clock::start(),
        })
    }

    /// A line of the report; none with JSON.
    pub(crate) fn line(&self, text: &str) {
        if self.is_json {
            return;
        }
        if self.timestamps {
            let now = jiff::Zoned::now();
            let passed = self.clock.elapsed();
            self.write(&format!(
                "[{} {:03}]  {}.{:09} {text}",
                now.strftime("%H:%M:%S"),
                now.millisecond(),
                passed.as_secs(),
                passed.subsec_nanos()
            ));
        } else {
            self.write(text);
        }
    }

    /// Something for a human who watches, not part of the report.
    pub(crate) fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{text}");
    }

    /// The JSON document.
    pub(crate) fn document(&self, document: &serde_json::Value) {
        if self.is_json {
            self.write(&format!("{document:#}"));
        }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.is_json
    }

    fn write(&self, text: &str) {
        // A reader that has gone (`| head`) is no reason to end the test.
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
        if let Some(Ok(mut log)) = self.log.as_ref().map(Mutex::lock) {
            let _ = writeln!(log, "{text}");
        }
    }
}
