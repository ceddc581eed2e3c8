//! Pings and the latency of their echoes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::cli::PublisherOptions;
use crate::clock::now_ns;
use crate::console::print;
use crate::cpu::CpuMeter;
use crate::latency::Latencies;
use crate::output::{LatencyRow, Printer};
use crate::wire::Header;

/// Pings whose echoes can be outstanding; the echo of an older one is ignored.
const OUTSTANDING: usize = 1 << 16;

/// A ping whose echo has not arrived.
#[derive(Clone, Copy, Debug)]
struct Ping {
    sequence: u32,
    /// When the sample was due; without a rate the time at which it was sent.
    due_ns: u64,
    sent_ns: u64,
}

/// Matches echoes with pings and records the latencies.
pub(super) struct Recorder {
    outstanding: Vec<Option<Ping>>,
    latencies: Latencies,
    printer: Arc<Printer>,
    cpu: Option<CpuMeter>,
    file: Option<(BufWriter<File>, String)>,
    file_error: Option<std::io::Error>,
    length: usize,
    has_echo: bool,
    echoes: u64,
    unexpected: u64,
    clock_skews: u64,
}

impl Recorder {
    pub(super) fn new(options: &PublisherOptions, printer: Arc<Printer>) -> Result<Self> {
        let file = match &options.latency_file {
            None => None,
            Some(path) => {
                let name = path.display().to_string();
                let file = File::create(path).with_context(|| format!("cannot write {name}"))?;
                let mut file = BufWriter::new(file);
                writeln!(file, "Sample Number, Value")
                    .with_context(|| format!("cannot write {name}"))?;
                Some((file, name))
            }
        };
        Ok(Self {
            outstanding: vec![None; OUTSTANDING],
            latencies: Latencies::new()?,
            printer,
            cpu: options.common.cpu.then(CpuMeter::start),
            file,
            file_error: None,
            length: options.common.data_length,
            has_echo: false,
            echoes: 0,
            unexpected: 0,
            clock_skews: 0,
        })
    }

    pub(super) fn latencies(&self) -> &Latencies {
        &self.latencies
    }

    /// Notes a ping that is sent now.
    pub(super) fn on_ping(&mut self, sequence: u32, due_ns: u64, sent_ns: u64) {
        self.outstanding[sequence as usize % OUTSTANDING] =
            Some(Ping { sequence, due_ns, sent_ns });
    }

    /// Records the latency of an echo. Each ping counts once: a duplicate or invented echo does not.
    pub(super) fn on_echo(&mut self, header: &Header) {
        let now = now_ns();
        let slot = &mut self.outstanding[header.sequence as usize % OUTSTANDING];
        let Some(ping) =
            slot.filter(|ping| ping.sequence == header.sequence && ping.due_ns == header.stamp_ns)
        else {
            self.unexpected += 1;
            return;
        };
        *slot = None;
        // The first echo shows only that the test runs: it includes the start of both programs.
        if !std::mem::replace(&mut self.has_echo, true) {
            self.printer.latency_header(self.length);
            return;
        }
        let Some(round_trip) = now.checked_sub(ping.sent_ns) else {
            self.clock_skews += 1;
            return;
        };
        // With a rate the time that the sample waited at the publisher counts in full: otherwise a
        // publisher that is held up would not measure what its application sees.
        let waited = ping.sent_ns.saturating_sub(ping.due_ns);
        let latency_ns = waited + round_trip / 2;
        self.latencies.record(latency_ns);
        self.echoes += 1;
        if let Some((file, _)) = &mut self.file {
            let us = latency_ns as f64 / 1e3;
            if let Err(error) = writeln!(file, "{}, {us:.3}", self.echoes) {
                self.file_error.get_or_insert(error);
            }
        }
        let cpu = self.cpu.as_mut().map_or(0.0, CpuMeter::interval_percent);
        let figures = self.latencies.figures();
        self.printer.latency_row(&LatencyRow { length: self.length, latency_ns, figures, cpu });
    }

    /// Completes the file and reports what went wrong.
    pub(super) fn report(&mut self) {
        if let Some((file, name)) = &mut self.file {
            let error = self.file_error.take().or(file.flush().err());
            if let Some(error) = error {
                print(&format!("cannot write {name}: {error}"));
            }
        }
        if !self.has_echo {
            self.printer.latency_header(self.length);
        }
        if self.clock_skews > 0 {
            print(&format!(
                "Clock skew: {} echoes with negative latency ignored.",
                self.clock_skews
            ));
        }
        if self.unexpected > 0 {
            print(&format!("{} unexpected or duplicate echoes ignored.", self.unexpected));
        }
    }
}
