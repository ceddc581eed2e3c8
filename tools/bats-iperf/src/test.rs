//! One side of a running throughput test: the streams' threads, and reports in between.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use openbats::Connection;

use crate::carrier::Pipe;
use crate::clock::Clock;
use crate::console::Output;
use crate::control::{ClockOffset, Direction, Summary, Totals};
use crate::latency::Recorder;
use crate::limit::Allowance;
use crate::meter::{Meter, Reading};
use crate::processor::Processor;
use crate::receiver::{self, Reception};
use crate::report::{Side, json, text};
use crate::sender::{self, Budget, LONGEST, Pace};
use crate::sending::Sending;
use crate::sentence;
use crate::signals;
use crate::transport::Transport;

/// How long a test may take beyond its time: what a sender has sent must arrive.
const GRACE: Duration = Duration::from_secs(90);
/// How often it is looked whether more comes than is allowed, and whether the other side is there.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Which end this is of each stream.
    pub(crate) sides: Vec<Side>,
    pub(crate) is_client: bool,
    pub(crate) pace: Pace,
    /// Bytes and messages of each direction, 0 for no such end.
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    /// Between reports; zero for none.
    pub(crate) interval: Duration,
    /// The other side's clock.
    pub(crate) clock: ClockOffset,
    pub(crate) receive_timeout: Duration,
    /// Messages of each stream from the other side that only greet.
    pub(crate) greetings: u64,
    /// How this side sends, where it does.
    pub(crate) sending: Sending,
    /// Bits a second of all streams together that end the test when there are more.
    pub(crate) limit: Option<u64>,
}

/// Figures between two times.
#[derive(Clone, Debug)]
pub(crate) struct Interval {
    /// Seconds from the beginning.
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// It does not count.
    pub(crate) is_omitted: bool,
    pub(crate) streams: Vec<Reading>,
    /// The connections at its beginning and end.
    pub(crate) transports: Vec<Option<(Transport, Transport)>>,
}

/// What came of a test on this side.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) sides: Vec<Side>,
    pub(crate) is_client: bool,
    pub(crate) intervals: Vec<Interval>,
    /// Intervals that were not kept, as they were too many.
    pub(crate) left_out: u64,
    pub(crate) summary: Summary,
}

impl Outcome {
    /// The first thing that went wrong.
    pub(crate) fn error(&self) -> Option<&str> {
        self.summary.streams.iter().find_map(|totals| totals.error.as_deref())
    }
}

/// Which end this is of each stream: those from the client come first.
pub(crate) fn sides(direction: Direction, streams: u16, is_client: bool) -> Vec<Side> {
    let streams = usize::from(streams);
    let (first, second) = match is_client {
        true => (Side::Sender, Side::Receiver),
        false => (Side::Receiver, Side::Sender),
    };
    match direction {
        Direction::Forward => vec![first; streams],
        Direction::Reverse => vec![second; streams],
        Direction::Both => [vec![first; streams], vec![second; streams]].concat(),
    }
}

/// What a stream's thread brings home.
struct Ended {
    at: Duration,
    result: Result<()>,
    one_way: Recorder,
    round_trip: Recorder,
}

/// Why all streams shall end although none has ended by itself, if they shall: more came than is
/// allowed, or the other side has left, whatever becomes of the data connections.
fn verdict(
    control: &Connection,
    plan: &Plan,
    allowance: Option<&Allowance>,
    meters: &[Meter],
) -> Option<String> {
    let bytes = || meters.iter().fold(0_u64, |sum, x| sum.saturating_add(x.read().bytes));
    if let Some(allowance) = allowance
        && allowance.is_exceeded(bytes())
    {
        return Some(allowance.words());
    }
    let reason = control.close_reason()?;
    Some(match (signals::requested(), plan.is_client) {
        (true, _) => "interrupted".to_owned(),
        (false, true) => format!("the server has left the test: {reason}"),
        (false, false) => format!("the client has left the test: {reason}"),
    })
}

/// Runs the streams to their end, or until the signalling connection ends, and prints a line for each
/// interval.
pub(crate) fn run(output: &Output, control: &Connection, pipes: &[Pipe], plan: &Plan) -> Outcome {
    output.line(&text::header(&plan.sides, output.is_verbose()));
    let processor = Processor::start();
    let clock = Clock::start();
    let meters: Vec<Meter> = pipes.iter().map(|_| Meter::default()).collect();
    let budget = Budget::new(plan.bytes, plan.messages);
    let mut reporter = Reporter::new(output, pipes, &meters, plan);
    let allowance = plan.limit.map(Allowance::new);
    let mut broken = None;
    let ended: Vec<Ended> = thread::scope(|scope| {
        let (done, ends) = channel();
        let threads: Vec<_> = pipes
            .iter()
            .zip(&meters)
            .zip(&plan.sides)
            .map(|((pipe, meter), side)| {
                let (done, budget) = (done.clone(), &budget);
                scope.spawn(move || {
                    let ended = stream(pipe, meter, *side, plan, budget, &clock);
                    if ended.result.is_err() {
                        pipe.close("the test failed");
                    }
                    let _ = done.send(());
                    ended
                })
            })
            .collect();
        drop(done);
        let mut running = threads.len();
        let mut next = plan.interval;
        while running > 0 {
            let left = match plan.interval.is_zero() {
                true => Duration::from_secs(3_600),
                false => next.saturating_sub(clock.elapsed()),
            };
            if broken.is_none() {
                broken = verdict(control, plan, allowance.as_ref(), &meters);
                if let Some(why) = &broken {
                    pipes.iter().for_each(|pipe| pipe.close(why));
                }
            }
            let slice = left.min(LOOK_EVERY);
            match ends.recv_timeout(slice) {
                Ok(()) => running -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if plan.interval.is_zero() || slice < left => {}
                Err(RecvTimeoutError::Timeout) => {
                    // A sender that only waits for its data to arrive has nothing to report.
                    if plan.sides.contains(&Side::Receiver)
                        || plan.pace.time.is_none_or(|time| next <= time)
                    {
                        reporter.report(clock.elapsed());
                    }
                    next = following(plan.interval, clock.elapsed());
                }
            }
        }
        reporter.report_rest(clock.elapsed());
        let lost = || Ended {
            at: clock.elapsed(),
            result: Err(anyhow::anyhow!("the stream's thread panicked")),
            one_way: Recorder::new(),
            round_trip: Recorder::new(),
        };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
    });
    let (mut one_way, mut round_trip) = (Recorder::new(), Recorder::new());
    let streams = ended
        .into_iter()
        .zip(pipes)
        .zip(meters.iter().zip(&plan.sides))
        .map(|((ended, pipe), (meter, side))| {
            one_way.merge(&ended.one_way);
            round_trip.merge(&ended.round_trip);
            let error = ended.result.err().map(|error| sentence::of(&error));
            // That it was closed is no reason, but has one.
            let error = error.map(|error| broken.clone().unwrap_or(error));
            let remote = pipe.addresses().1;
            tracing::debug!(%remote, ?side, at = ?ended.at, error, "stream ended");
            // What a sender does after the time is to wait.
            let end = match (side, plan.pace.time) {
                (Side::Sender, Some(time)) => ended.at.min(time),
                _ => ended.at,
            };
            Totals { transport: pipe.transport(), ..meter.totals(end, error) }
        })
        .collect();
    Outcome {
        sides: plan.sides.clone(),
        is_client: plan.is_client,
        intervals: reporter.intervals,
        left_out: reporter.left_out,
        summary: Summary {
            streams,
            processor: processor.utilization(),
            one_way: one_way.percentiles(plan.clock.error_ns),
            round_trip: round_trip.percentiles(0),
            sending: plan.sides.contains(&Side::Sender).then(|| plan.sending.clone()),
        },
    }
}

/// When the next report is due: at a whole number of intervals, at least half of one from now. A
/// process that stood still leaves out what it has missed.
fn following(interval: Duration, now: Duration) -> Duration {
    let soonest = now.saturating_add(interval / 2).as_nanos();
    let periods = soonest.div_ceil(interval.as_nanos().max(1));
    interval.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
}

fn stream(
    pipe: &Pipe,
    meter: &Meter,
    side: Side,
    plan: &Plan,
    budget: &Budget,
    clock: &Clock,
) -> Ended {
    let (mut one_way, mut round_trip) = (Recorder::new(), Recorder::new());
    let has_ended = AtomicBool::new(false);
    let result = match side {
        Side::Sender if plan.pace.latency => thread::scope(|scope| {
            let echoes = scope.spawn(|| sender::echoes(pipe, &has_ended));
            let result = sender::send(pipe, meter, &plan.pace, budget);
            has_ended.store(true, Ordering::Release);
            if result.is_err() {
                pipe.close("the test failed");
            }
            if let Ok(times) = echoes.join() {
                meter.answer(times.count());
                round_trip = times;
            }
            result
        }),
        Side::Sender => sender::send(pipe, meter, &plan.pace, budget),
        Side::Receiver => {
            // The offset is that of the server's clock against the client's.
            let offset = plan.clock.offset_ns;
            let reception = Reception {
                shift_ns: if plan.is_client { offset.saturating_neg() } else { offset },
                latency: plan.pace.latency,
                timeout: plan.receive_timeout,
                greetings: plan.greetings,
                deadline: plan.pace.time.map_or(LONGEST, |time| time + GRACE),
            };
            receiver::receive(pipe, meter, reception, &mut one_way)
        }
    };
    Ended { at: clock.elapsed(), result, one_way, round_trip }
}

struct Reporter<'a> {
    output: &'a Output,
    pipes: &'a [Pipe],
    meters: &'a [Meter],
    plan: &'a Plan,
    last: Vec<(Reading, Option<Transport>)>,
    last_at: Duration,
    intervals: Vec<Interval>,
    left_out: u64,
}

impl<'a> Reporter<'a> {
    fn new(output: &'a Output, pipes: &'a [Pipe], meters: &'a [Meter], plan: &'a Plan) -> Self {
        let last = pipes.iter().map(|pipe| (Reading::default(), pipe.transport())).collect();
        let last_at = Duration::ZERO;
        Self { output, pipes, meters, plan, last, last_at, intervals: Vec::new(), left_out: 0 }
    }

    fn report(&mut self, now: Duration) {
        let readings: Vec<(Reading, Option<Transport>)> = self
            .meters
            .iter()
            .zip(self.pipes)
            .map(|(x, pipe)| (x.read(), pipe.transport()))
            .collect();
        let streams =
            readings.iter().zip(&self.last).map(|(now, last)| now.0.since(last.0)).collect();
        let transports = readings
            .iter()
            .zip(&self.last)
            .map(|(now, last)| last.1.clone().zip(now.1.clone()))
            .collect();
        let interval = Interval {
            start: self.last_at.as_secs_f64(),
            end: now.as_secs_f64(),
            is_omitted: self.last_at < self.plan.pace.omit,
            streams,
            transports,
        };
        let (sides, is_client) = (&self.plan.sides, self.plan.is_client);
        for line in text::interval(&interval, sides, is_client, self.output.is_verbose()) {
            self.output.line(&line);
        }
        self.output.event("interval", || json::interval(&interval, sides));
        let most = self.output.samples_kept();
        if most > 0 {
            match self.intervals.len() * self.pipes.len() < most {
                true => self.intervals.push(interval),
                false => self.left_out += 1,
            }
        }
        (self.last, self.last_at) = (readings, now);
    }

    /// What came after the last whole interval, if it is worth a line.
    fn report_rest(&mut self, now: Duration) {
        if self.plan.interval.is_zero() {
            return;
        }
        let end = match self.plan.pace.time {
            Some(time) if !self.plan.sides.contains(&Side::Receiver) => now.min(time),
            _ => now,
        };
        let gained = self
            .meters
            .iter()
            .zip(&self.last)
            .any(|(meter, last)| meter.read().bytes > last.0.bytes);
        if gained && end.saturating_sub(self.last_at) > self.plan.interval / 20 {
            self.report(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standstill_makes_one_long_interval_and_no_short_ones() {
        let ms = Duration::from_millis;
        for interval in [ms(100), ms(300), ms(1_000)] {
            // Every eleventh report comes late, by anything from nothing to more than four intervals.
            for late in (0..=1_350).step_by(15).map(|percent| interval * percent / 300) {
                let (mut last, mut next) = (Duration::ZERO, interval);
                for report in 0..40 {
                    let now =
                        next + if report % 11 == 5 { late } else { Duration::from_micros(60) };
                    assert!(now - last >= interval / 2, "{interval:?} {late:?}: {last:?} {now:?}");
                    (last, next) = (now, following(interval, now));
                    assert!(next - now <= interval * 3 / 2, "{interval:?} {late:?}: {next:?}");
                    assert!((next.as_nanos() % interval.as_nanos()) == 0, "{next:?}");
                }
            }
        }
    }

    #[test]
    fn reports_that_are_in_time_leave_nothing_out() {
        let interval = Duration::from_millis(100);
        for number in 1..1_000 {
            let now = interval * number + Duration::from_micros(number.into());
            assert_eq!(following(interval, now), interval * (number + 1));
        }
        let ages = Duration::from_secs(u64::MAX);
        assert!(following(interval, ages) >= interval, "and nothing overflows");
        assert_eq!(following(Duration::ZERO, interval), Duration::ZERO);
    }
}
