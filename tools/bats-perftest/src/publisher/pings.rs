//! Pings and the latency of their echoes.

use std::collections::VecDeque;
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

/// A sample that a subscriber must echo.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ping {
    pub(super) sequence: u32,
    /// Time stamp of the sample.
    pub(super) stamp_ns: u64,
    /// When the sample was due, with a rate.
    pub(super) due_ns: Option<u64>,
    /// Index of the subscriber.
    pub(super) target: usize,
}

/// A ping whose echo has not arrived.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    ping: Ping,
    /// When its message was handed over.
    sent_ns: u64,
    is_answered: bool,
}

/// The pings whose echoes are awaited, in the order of their sequence numbers.
#[derive(Debug, Default)]
struct Window(VecDeque<Outstanding>);

impl Window {
    /// Distance of a number from the oldest one. Numbers have the low 32 bits only.
    fn distance(&self, sequence: u32) -> u32 {
        self.0.front().map_or(0, |front| sequence.wrapping_sub(front.ping.sequence))
    }

    /// Notes a ping that is handed over now, or again because the first attempt had to wait.
    fn add(&mut self, ping: Ping, sent_ns: u64) {
        if let Some(last) = self.0.back_mut()
            && last.ping.sequence == ping.sequence
        {
            last.sent_ns = sent_ns;
            return;
        }
        // The order needs numbers that are less than half of their range apart.
        while self.0.len() >= OUTSTANDING || self.distance(ping.sequence) > u32::MAX / 2 {
            self.0.pop_front();
        }
        self.0.push_back(Outstanding { ping, sent_ns, is_answered: false });
    }

    /// The ping of an echo, once.
    fn take(&mut self, header: &Header) -> Option<Outstanding> {
        let distance = self.distance(header.sequence);
        let front = self.0.front()?.ping.sequence;
        let of_one = |one: &Outstanding| one.ping.sequence.wrapping_sub(front);
        let index = self.0.binary_search_by_key(&distance, of_one).ok()?;
        let one = self.0.get_mut(index)?;
        if one.ping.stamp_ns != header.stamp_ns || std::mem::replace(&mut one.is_answered, true) {
            return None;
        }
        let found = *one;
        while self.0.front().is_some_and(|front| front.is_answered) {
            self.0.pop_front();
        }
        Some(found)
    }
}

/// Matches echoes with pings and records the latencies.
pub(super) struct Recorder {
    outstanding: Window,
    /// Only publisher 0 measures, and prints.
    measures: bool,
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
            outstanding: Window::default(),
            measures: options.common.id == 0,
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

    /// Whether the echo of the last ping has not come.
    pub(super) fn awaits(&self, ping: &Ping) -> bool {
        let last = self.outstanding.0.back();
        last.is_some_and(|last| last.ping.sequence == ping.sequence && !last.is_answered)
    }

    /// Number of echoes in the table.
    pub(super) fn rows(&self) -> u64 {
        self.echoes
    }

    /// Notes a ping that is handed over now.
    pub(super) fn on_ping(&mut self, ping: &Ping) {
        self.outstanding.add(*ping, now_ns());
    }

    /// Records the latency of an echo. Each ping counts once: a duplicate or invented echo does not.
    pub(super) fn on_echo(&mut self, header: &Header) {
        let now = now_ns();
        let Some(Outstanding { ping, sent_ns, .. }) = self.outstanding.take(header) else {
            self.unexpected += 1;
            return;
        };
        // The first echo shows only that the test runs: it includes the start of both programs.
        if !std::mem::replace(&mut self.has_echo, true) {
            self.printer.latency_header(self.length);
            return;
        }
        let Some(round_trip) = now.checked_sub(sent_ns) else {
            self.clock_skews += 1;
            return;
        };
        // With a rate the time that the sample waited at the publisher counts in full: otherwise a
        // publisher that is held up would not measure what its application sees. Without one no
        // sample is due, and the publisher goes as fast as it may.
        let waited = ping.due_ns.map_or(0, |due_ns| sent_ns.saturating_sub(due_ns));
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
    ///
    /// # Errors
    /// The file of latencies could not be written.
    pub(super) fn report(&mut self) -> Result<()> {
        if !self.measures {
            return Ok(());
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
        if let Some((file, name)) = &mut self.file {
            let error = self.file_error.take().or(file.flush().err());
            if let Some(error) = error {
                return Err(error).with_context(|| format!("cannot write {name}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ping(sequence: u64) -> Ping {
        Ping { sequence: sequence as u32, stamp_ns: sequence + 1, due_ns: None, target: 0 }
    }

    fn echo(sequence: u64) -> Header {
        Header { sequence: sequence as u32, stamp_ns: sequence + 1, ..Header::default() }
    }

    #[test]
    fn pings_at_any_interval_are_found_once_each() {
        // Also an interval whose multiples have the same low bits, and numbers beyond 32 bits.
        for step in [1, 3, 32_768, 65_536, 10_000_000, 1 << 30] {
            let mut window = Window::default();
            let numbers: Vec<u64> = (0..40).map(|n| n * step).collect();
            for group in numbers.chunks(2) {
                group.iter().for_each(|&number| window.add(ping(number), number));
                // Later ones first.
                for &number in group.iter().rev() {
                    assert_eq!(window.take(&echo(number)).unwrap().sent_ns, number, "{step}");
                    assert!(window.take(&echo(number)).is_none(), "{step}");
                }
            }
            assert!(window.0.is_empty());
        }
    }

    #[test]
    fn echoes_of_other_samples_are_none_and_the_window_is_bounded() {
        let mut window = Window::default();
        assert!(window.take(&echo(0)).is_none());
        for number in 0..3 * OUTSTANDING as u64 {
            window.add(ping(number * 10), 0);
        }
        assert_eq!(window.0.len(), OUTSTANDING);
        let last = (3 * OUTSTANDING as u64 - 1) * 10;
        assert!(window.take(&echo(0)).is_none() && window.take(&echo(last + 10)).is_none());
        assert!(window.take(&echo(last - 5)).is_none());
        let other_stamp = Header { stamp_ns: 7, ..echo(last) };
        assert!(window.take(&other_stamp).is_none() && window.take(&echo(last)).is_some());
    }

    #[test]
    fn a_ping_that_waited_counts_from_the_attempt_that_succeeded() {
        let mut window = Window::default();
        window.add(ping(5), 100);
        window.add(ping(5), 900);
        assert_eq!(window.take(&echo(5)).unwrap().sent_ns, 900);
        assert!(window.0.is_empty());
    }
}
