//! Tables of results: CSV, JSON or the legacy format, on standard output or in a file.

mod csv;
mod json;
mod legacy;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use crate::cli::{Common, OutputFormat};
use crate::latency::LatencyFigures;

/// A row of a publisher: one echo.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatencyRow {
    pub(crate) length: usize,
    pub(crate) latency_ns: u64,
    pub(crate) figures: LatencyFigures,
    pub(crate) cpu: f64,
}

/// The summary of a publisher.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LatencySummary {
    pub(crate) length: usize,
    pub(crate) figures: LatencyFigures,
    pub(crate) percentiles: [u64; 5],
    /// 99.9th percentile in nanoseconds, which only JSON has.
    pub(crate) p99_9: u64,
    /// Nanoseconds to build and to parse a sample.
    pub(crate) serialization: Option<(f64, f64)>,
    pub(crate) cpu: f64,
    pub(crate) cpu_ns_per_sample: f64,
    pub(crate) samples_per_message: usize,
}

/// A row of a subscriber: an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThroughputRow {
    pub(crate) length: usize,
    pub(crate) samples: u64,
    /// With the samples that a filter leaves out.
    pub(crate) received: u64,
    pub(crate) rate: f64,
    pub(crate) rate_ave: f64,
    pub(crate) mbps: f64,
    pub(crate) mbps_ave: f64,
    pub(crate) lost: u64,
    pub(crate) cpu: f64,
}

/// The summary of a subscriber.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ThroughputSummary {
    pub(crate) length: usize,
    pub(crate) samples: u64,
    /// With the samples that a filter leaves out.
    pub(crate) received: u64,
    pub(crate) rate: f64,
    pub(crate) mbps: f64,
    pub(crate) lost: u64,
    pub(crate) duplicates: u64,
    pub(crate) cpu: f64,
    pub(crate) cpu_ns_per_sample: f64,
}

/// Per cent of the samples that were lost.
pub(crate) fn lost_percent(lost: u64, received: u64) -> f64 {
    match lost.saturating_add(received) {
        0 => 0.0,
        sent => 100.0 * lost as f64 / sent as f64,
    }
}

/// Format of the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) format: OutputFormat,
    pub(crate) headers: bool,
    pub(crate) intervals: bool,
    pub(crate) cpu: bool,
    /// Latencies in CSV have three decimals.
    pub(crate) nanoseconds: bool,
}

/// Prints tables.
pub(crate) struct Printer {
    style: Style,
    out: Mutex<Out>,
}

struct Out {
    sink: Box<dyn Write + Send>,
    json: json::State,
    error: Option<io::Error>,
}

impl Printer {
    /// Opens the output.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn new(options: &Common) -> Result<Self> {
        let sink: Box<dyn Write + Send> = match &options.output_file {
            None => Box::new(io::stdout()),
            Some(path) => {
                if options.output_format == OutputFormat::Json
                    && std::fs::metadata(path).is_ok_and(|file| file.len() > 0)
                {
                    bail!(
                        "{} exists: a second document would make its JSON invalid; remove it, or use \
                         another -outputFile",
                        path.display()
                    );
                }
                let file = File::options().append(true).create(true).open(path);
                Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
            }
        };
        let style = Style {
            format: options.output_format,
            headers: options.headers,
            intervals: options.intervals,
            cpu: options.cpu,
            nanoseconds: options.nanoseconds,
        };
        Ok(Self::to(style, sink))
    }

    pub(crate) fn to(style: Style, sink: Box<dyn Write + Send>) -> Self {
        let out = Out { sink, json: json::State::default(), error: None };
        Self { style, out: Mutex::new(out) }
    }

    fn write(&self, text: impl FnOnce(&Style, &mut json::State) -> String) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let text = text(&self.style, &mut out.json);
        let written = out.sink.write_all(text.as_bytes()).and_then(|()| out.sink.flush());
        if let Err(error) = written {
            out.error.get_or_insert(error);
        }
    }

    /// The title and header of a publisher's intervals.
    pub(crate) fn latency_header(&self, length: usize) {
        self.write(|style, json| match style.format {
            OutputFormat::Csv => csv::latency_header(style, length),
            OutputFormat::Json => json.open(length),
            OutputFormat::Legacy => String::new(),
        });
    }

    pub(crate) fn latency_row(&self, row: &LatencyRow) {
        if self.style.intervals {
            self.write(|style, json| match style.format {
                OutputFormat::Csv => csv::latency_row(style, row),
                OutputFormat::Json => json.interval(json::latency_row(style, row)),
                OutputFormat::Legacy => legacy::latency_row(style, row),
            });
        }
    }

    pub(crate) fn latency_summary(&self, summary: &LatencySummary) {
        self.write(|style, json| match style.format {
            OutputFormat::Csv => csv::latency_summary(style, summary),
            OutputFormat::Json => {
                json.summary(summary.length, json::latency_summary(style, summary))
            }
            OutputFormat::Legacy => legacy::latency_summary(style, summary),
        });
    }

    /// The title and header of a subscriber's intervals.
    pub(crate) fn throughput_header(&self, length: usize) {
        self.write(|style, json| match style.format {
            OutputFormat::Csv => csv::throughput_header(style, length),
            OutputFormat::Json => json.open(length),
            OutputFormat::Legacy => String::new(),
        });
    }

    pub(crate) fn throughput_row(&self, row: &ThroughputRow) {
        if self.style.intervals {
            self.write(|style, json| match style.format {
                OutputFormat::Csv => csv::throughput_row(style, row),
                OutputFormat::Json => json.interval(json::throughput_row(style, row)),
                OutputFormat::Legacy => legacy::throughput_row(style, row),
            });
        }
    }

    pub(crate) fn throughput_summary(&self, summary: &ThroughputSummary) {
        self.write(|style, json| match style.format {
            OutputFormat::Csv => csv::throughput_summary(style, summary),
            OutputFormat::Json => {
                json.summary(summary.length, json::throughput_summary(style, summary))
            }
            OutputFormat::Legacy => legacy::throughput_summary(style, summary),
        });
    }

    /// Ends the document. With an error a JSON document contains it.
    ///
    /// # Errors
    /// A table could not be written.
    pub(crate) fn finish(&self, error: Option<&str>) -> Result<()> {
        self.write(|style, json| match style.format {
            OutputFormat::Json => json.close(error),
            _ => String::new(),
        });
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        match out.error.take() {
            Some(error) => Err(error).context("cannot write the tables"),
            None => Ok(()),
        }
    }
}
