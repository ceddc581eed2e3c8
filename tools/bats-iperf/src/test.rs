//! One side of a running throughput test: the streams' threads, and reports in between.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use openbats::{Connection, ConnectionStats};

use crate::clock::Clock;
use crate::console::Console;
use crate::control::Totals;
use crate::meter::{Meter, Reading};
use crate::processor::{Processor, Utilization};
use crate::report::{self, Side, Subject};
use crate::stream::{self, Pace};

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) side: Side,
    pub(crate) pace: Pace,
    pub(crate) interval: Duration,
}

/// Figures between two times.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Seconds from the beginning.
    pub(crate) start: f64,
    pub(crate) end: f64,
    pub(crate) streams: Vec<Reading>,
    /// The connections at the end of the interval.
    pub(crate) stats: Vec<ConnectionStats>,
}

/// What came of a test on this side.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) side: Side,
    pub(crate) intervals: Vec<Interval>,
    pub(crate) streams: Vec<Totals>,
    pub(crate) stats: Vec<ConnectionStats>,
    pub(crate) processor: Utilization,
}

impl Outcome {
    /// The first thing that went wrong.
    pub(crate) fn error(&self) -> Option<&str> {
        self.streams.iter().find_map(|totals| totals.error.as_deref())
    }
}

/// Runs the streams to their end and prints a line for each interval.
pub(crate) fn run(console: &Console, connections: &[Connection], plan: Plan) -> Outcome {
    console.line(&report::header(plan.side));
    let processor = Processor::start();
    let clock = Clock::start();
    let meters: Vec<Meter> = connections.iter().map(|_| Meter::default()).collect();
    let mut reporter = Reporter::new(console, connections, &meters);
    let streams = thread::scope(|scope| {
        let (done, ended) = channel();
        let threads: Vec<_> = connections
            .iter()
            .zip(&meters)
            .map(|(connection, meter)| {
                let done = done.clone();
                scope.spawn(move || {
                    let result = match plan.side {
                        Side::Sender => stream::send(connection, meter, plan.pace),
                        Side::Receiver => stream::receive(connection, meter),
                    };
                    if result.is_err() {
                        connection.close(1, "the test failed");
                    }
                    let _ = done.send(());
                    (clock.elapsed(), result)
                })
            })
            .collect();
        drop(done);
        let mut running = threads.len();
        let mut next = plan.interval;
        while running > 0 {
            match ended.recv_timeout(next.saturating_sub(clock.elapsed())) {
                Ok(()) => running -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    // A sender that only waits for its data to arrive has nothing to report.
                    if plan.side == Side::Receiver || next <= plan.pace.time {
                        reporter.report(clock.elapsed());
                    }
                    next += plan.interval;
                }
            }
        }
        reporter.report_rest(clock.elapsed(), plan);
        threads
            .into_iter()
            .zip(&meters)
            .map(|(thread, meter)| {
                let (ended, error) = match thread.join() {
                    Ok((ended, result)) => (ended, result.err().map(|error| format!("{error:#}"))),
                    Err(_) => (clock.elapsed(), Some("the stream's thread panicked".into())),
                };
                let ended = match plan.side {
                    Side::Sender => ended.min(plan.pace.time),
                    Side::Receiver => ended,
                };
                meter.totals(ended.as_secs_f64(), error)
            })
            .collect()
    });
    Outcome {
        side: plan.side,
        intervals: reporter.intervals,
        streams,
        stats: connections.iter().map(Connection::stats).collect(),
        processor: processor.utilization(),
    }
}

struct Reporter<'a> {
    console: &'a Console,
    connections: &'a [Connection],
    meters: &'a [Meter],
    last: Vec<Reading>,
    last_at: Duration,
    intervals: Vec<Interval>,
}

impl<'a> Reporter<'a> {
    fn new(console: &'a Console, connections: &'a [Connection], meters: &'a [Meter]) -> Self {
        let last = vec![Reading::default(); meters.len()];
        Self { console, connections, meters, last, last_at: Duration::ZERO, intervals: Vec::new() }
    }

    fn report(&mut self, now: Duration) {
        let readings: Vec<Reading> = self.meters.iter().map(Meter::read).collect();
        let streams: Vec<Reading> =
            readings.iter().zip(&self.last).map(|(&now, &last)| now.since(last)).collect();
        let (start, end) = (self.last_at.as_secs_f64(), now.as_secs_f64());
        for (index, &gained) in streams.iter().enumerate() {
            self.console.line(&report::line(Subject::Stream(index), start, end, gained));
        }
        if streams.len() > 1 {
            self.console.line(&report::line(Subject::Sum, start, end, report::sum(&streams)));
        }
        let stats = self.connections.iter().map(Connection::stats).collect();
        self.intervals.push(Interval { start, end, streams, stats });
        (self.last, self.last_at) = (readings, now);
    }

    /// What came after the last whole interval, if it is worth a line.
    fn report_rest(&mut self, now: Duration, plan: Plan) {
        let end = match plan.side {
            Side::Sender => now.min(plan.pace.time),
            Side::Receiver => now,
        };
        let gained =
            self.meters.iter().zip(&self.last).any(|(meter, last)| meter.read().bytes > last.bytes);
        if gained && end.saturating_sub(self.last_at) > plan.interval / 20 {
            self.report(end);
        }
    }
}
