//! The subscriber: receives samples, echoes pings, and counts.

mod meter;
mod raw;
mod replies;
mod sessions;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::beacon::Announcer;
use crate::cli::{SubscriberOptions, Transport};
use crate::clock::{Clock, now_ns};
use crate::console::{self, Progress, print};
use crate::cpu::CpuMeter;
use crate::output::{Printer, ThroughputRow, ThroughputSummary};
use crate::wire::Announcement;
use crate::{ports, process_number, signals};
use meter::{Meter, Totals};

/// Interval of the rows.
const ROW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which the end conditions are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Time for the publishers to take the goodbye.
const LINGER: Duration = Duration::from_secs(2);

/// Runs a subscriber.
///
/// # Errors
/// The test could not be completed.
pub(crate) fn run(options: &SubscriberOptions) -> Result<()> {
    console::subscriber(options);
    let printer = Printer::new(&options.common)?;
    let result = test(options, &printer);
    let error = result.as_ref().err().map(|error| format!("{error:#}"));
    let written = printer.finish(error.as_deref());
    result.and(written)
}

/// What receives: an endpoint or sockets.
enum Receiver {
    Sessions(sessions::Receiver),
    Raw(raw::Receiver),
}

fn test(options: &SubscriberOptions, printer: &Printer) -> Result<()> {
    let common = &options.common;
    let announcement = Announcement {
        domain: common.domain,
        subscriber: common.id,
        process: process_number()?,
        port: ports::subscriber(common.domain, common.id)?,
    };
    let meter = Arc::new(Meter::new(options, announcement));
    let mut receiver = match common.transport {
        Transport::Session(mode) => {
            Receiver::Sessions(sessions::Receiver::start(common, mode, Arc::clone(&meter))?)
        }
        Transport::Raw => Receiver::Raw(raw::Receiver::start(common, Arc::clone(&meter))?),
    };
    print(&format!("Waiting to discover {} publishers ...", common.peers_expected));
    let announcer = match receiver {
        Receiver::Sessions(_) => Some(Announcer::new(common, announcement)?),
        Receiver::Raw(_) => None,
    };
    let outcome = follow(options, printer, &meter, announcer.as_ref());
    meter.is_over.store(true, Ordering::Release);
    match &mut receiver {
        Receiver::Sessions(receiver) => receiver.stop(outcome.is_ok().then_some(LINGER)),
        Receiver::Raw(receiver) => receiver.stop(outcome.is_ok()),
    }
    outcome?;
    print("Finishing test...");
    print("Test ended.");
    Ok(())
}

/// Prints rows until all publishers have ended, then the summary.
fn follow(
    options: &SubscriberOptions,
    printer: &Printer,
    meter: &Meter,
    announcer: Option<&Announcer>,
) -> Result<()> {
    let mut rows = Rows::new(options);
    let (mut announced, mut is_waiting) = (None::<Clock>, true);
    loop {
        let publishers = meter.publishers();
        let is_complete = publishers >= options.common.peers_expected;
        if !is_complete && announced.is_none_or(|last| last.elapsed() >= crate::beacon::INTERVAL) {
            announced = Some(Clock::start());
            announcer.into_iter().for_each(Announcer::announce);
        }
        if is_complete && is_waiting {
            print("Waiting for data ...");
            is_waiting = false;
        }
        let totals = meter.totals();
        rows.update(printer, &totals, now_ns());
        let failure = meter.failure();
        if meter.is_complete() || signals::requested() || failure.is_some() {
            if signals::requested() {
                print("Interrupted.");
                meter.leave_early();
            }
            rows.finish(printer, &meter.totals());
            return match failure {
                Some(failure) if !meter.is_complete() => bail!("{failure}"),
                _ => Ok(()),
            };
        }
        meter.find_dead();
        thread::sleep(CHECK_INTERVAL);
    }
}

/// The rows of the intervals.
struct Rows {
    length: usize,
    cpu: CpuMeter,
    /// End of the last interval.
    last_ns: u64,
    before: Totals,
    /// Sums of the interval values, for their running means.
    sums: (f64, f64),
    rows: u64,
    has_header: bool,
    has_data: bool,
    progress: Progress,
}

impl Rows {
    fn new(options: &SubscriberOptions) -> Self {
        Self {
            length: options.common.data_length,
            cpu: CpuMeter::start(),
            last_ns: 0,
            before: Totals::default(),
            sums: (0.0, 0.0),
            rows: 0,
            has_header: false,
            has_data: false,
            progress: Progress::new(!options.common.intervals),
        }
    }

    fn header(&mut self, printer: &Printer, totals: &Totals) {
        if totals.length > 0 {
            self.length = totals.length;
        }
        if !std::mem::replace(&mut self.has_header, true) {
            printer.throughput_header(self.length);
        }
    }

    /// Prints a row if an interval has passed since the first sample.
    fn update(&mut self, printer: &Printer, totals: &Totals, now: u64) {
        let Some(first_ns) = totals.first_ns else { return };
        self.header(printer, totals);
        if !std::mem::replace(&mut self.has_data, true) {
            // The first interval begins with the first sample, which came before this look.
            (self.last_ns, self.cpu) = (first_ns, CpuMeter::start());
        }
        self.progress.show(totals.samples);
        let elapsed = Duration::from_nanos(now.saturating_sub(self.last_ns));
        if elapsed < ROW_INTERVAL || totals.ended_ns.is_some() {
            return;
        }
        self.last_ns = now;
        let seconds = elapsed.as_secs_f64();
        let rate = (totals.samples - self.before.samples) as f64 / seconds;
        let mbps = (totals.bytes - self.before.bytes) as f64 * 8e-6 / seconds;
        self.before = *totals;
        self.rows += 1;
        self.sums = (self.sums.0 + rate, self.sums.1 + mbps);
        printer.throughput_row(&ThroughputRow {
            length: self.length,
            samples: totals.samples,
            received: totals.received,
            rate,
            rate_ave: self.sums.0 / self.rows as f64,
            mbps,
            mbps_ave: self.sums.1 / self.rows as f64,
            lost: totals.lost,
            cpu: self.cpu.interval_percent(),
        });
    }

    fn finish(&mut self, printer: &Printer, totals: &Totals) {
        self.header(printer, totals);
        if totals.received == 0 {
            print("No samples arrived: see the publisher.");
        }
        let seconds = totals.seconds();
        let per_second = |value: f64| if seconds > 0.0 { value / seconds } else { 0.0 };
        printer.throughput_summary(&ThroughputSummary {
            length: self.length,
            samples: totals.samples,
            received: totals.received,
            rate: per_second(totals.samples as f64),
            mbps: per_second(totals.bytes as f64 * 8e-6),
            lost: totals.lost,
            duplicates: totals.duplicates,
            cpu: self.cpu.total_percent(),
            cpu_ns_per_sample: self.cpu.total().as_nanos() as f64 / totals.samples.max(1) as f64,
        });
        if totals.malformed > 0 {
            print(&format!("{} malformed messages ignored.", totals.malformed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse_line};

    #[test]
    fn the_first_interval_begins_with_the_first_sample() {
        let name = format!("bats-perftest-rows-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        let line = format!("-sub -noOutputHeaders -outputFile {}", path.display());
        let Command::Subscribe(options) = parse_line(&line).unwrap() else { panic!("{line}") };
        let printer = Printer::new(&options.common).unwrap();
        let mut rows = Rows::new(&options);
        let at = |ms: u64, samples: u64| {
            let first_ns = (samples > 0).then_some(5_000_000_000);
            let totals = Totals {
                samples,
                received: samples,
                bytes: samples * 100,
                first_ns,
                ..Totals::default()
            };
            (totals, 5_000_000_000 + ms * 1_000_000)
        };
        // No sample for long, then 1000 per second; the first look comes 20 ms after the first sample.
        for (totals, now) in [
            at(0, 0),
            at(20, 20),
            at(999, 999),
            at(1_000, 1_000),
            at(1_999, 1_999),
            at(2_000, 2_000),
        ] {
            rows.update(&printer, &totals, now);
        }
        printer.finish(None).unwrap();
        let table = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let column = |number: usize| -> Vec<f64> {
            let cell = |line: &str| line.split(',').nth(number).unwrap().trim().parse().unwrap();
            table.lines().map(cell).collect()
        };
        assert_eq!(column(1), [1_000.0, 2_000.0], "{table}");
        assert_eq!(column(2), [1_000.0, 1_000.0], "samples per second: {table}");
    }
}
