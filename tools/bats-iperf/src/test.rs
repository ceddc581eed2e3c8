//! One side of a running throughput test: the threads of the streams, and periodic reports.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use openbats::Connection;

use crate::clock::Clock;
use crate::clock_offset::ClockOffset;
use crate::console::Output;
use crate::control::{Direction, Summary, Totals};
use crate::cpu::CpuTimer;
use crate::error_text;
use crate::interrupt;
use crate::latency::Recorder;
use crate::meter::{Meter, Reading};
use crate::outcome::{Interval, Outcome};
use crate::port_probe::PortProbe;
use crate::rate_limiter::RateLimiter;
use crate::receiver::{self, ReceiverParams};
use crate::report::{Side, json, sender_state, text};
use crate::sender::{self, Budget, MAX_DURATION, SenderParams};
use crate::sender_settings::SenderSettings;
use crate::stream::DataStream;
use crate::transport_stats::TransportStats;

/// How long a test may exceed its duration: data that was sent must arrive.
const GRACE: Duration = Duration::from_secs(90);
/// How often to check the bitrate limit and the signalling connection.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Configuration of this side of a test.
#[derive(Clone, Debug)]
pub(crate) struct TestConfig {
    /// This side's role in each stream.
    pub(crate) sides: Vec<Side>,
    pub(crate) is_client: bool,
    pub(crate) params: SenderParams,
    /// Bytes and messages of each direction that end the test, 0 for no limit.
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
    /// Between reports; zero for none.
    pub(crate) interval: Duration,
    /// Offset to the peer's clock.
    pub(crate) clock: ClockOffset,
    pub(crate) receive_timeout: Duration,
    /// Hello messages that the peer sent on each stream.
    pub(crate) hellos: u64,
    /// Sender settings of this side, if it sends.
    pub(crate) sending: SenderSettings,
    /// Bitrate limit in bits per second of all streams together; exceeding it ends the test.
    pub(crate) limit: Option<u64>,
    /// Detects a server that was killed.
    pub(crate) port_probe: Option<Arc<PortProbe>>,
}

/// The role of this side in each stream. Streams from the client come first.
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

/// Result of a stream's thread.
struct StreamResult {
    at: Duration,
    result: Result<()>,
    one_way: Recorder,
    round_trip: Recorder,
}

/// How long a test may take in total, with the time after the last message in which its data arrives.
fn deadline(config: &TestConfig) -> Duration {
    config.params.time.map_or(MAX_DURATION, |time| time.min(MAX_DURATION)) + GRACE
}

/// The reason to abort all streams, if there is one: the test has passed its deadline, whatever its
/// streams receive, the bitrate limit is exceeded, or the peer has closed the signalling connection.
fn abort_reason(
    control: &Connection,
    data_streams: &[DataStream],
    config: &TestConfig,
    limiter: Option<&RateLimiter>,
    (meters, elapsed): (&[Meter], Duration),
) -> Option<String> {
    if elapsed > deadline(config) {
        return Some("the test did not end in time".to_owned());
    }
    let bytes = || meters.iter().fold(0_u64, |sum, x| sum.saturating_add(x.read().bytes));
    if let Some(limiter) = limiter
        && limiter.is_exceeded(bytes())
    {
        return Some(limiter.error_text());
    }
    let Some(reason) = control.close_reason() else {
        let is_gone = |probe: &Arc<PortProbe>| {
            let all: Vec<&Connection> =
                data_streams.iter().filter_map(DataStream::connection).chain([control]).collect();
            probe.is_closed_and_silent(&all)
        };
        let is_gone = config.port_probe.as_ref().is_some_and(is_gone);
        return is_gone.then(|| {
            let why = "the server has gone: its port is closed";
            // There will be no summary.
            control.close(1, why);
            why.to_owned()
        });
    };
    Some(match (interrupt::requested(), config.is_client) {
        (true, _) => "interrupted".to_owned(),
        (false, true) => format!("the server has left the test: {reason}"),
        (false, false) => format!("the client has left the test: {reason}"),
    })
}

/// Runs the streams until they end or the signalling connection closes, and prints a report for
/// each interval.
pub(crate) fn run(
    output: &Output,
    control: &Connection,
    data_streams: &[DataStream],
    config: &TestConfig,
) -> Outcome {
    output.line(&text::header(&config.sides, output.is_verbose()));
    let cpu_timer = CpuTimer::start();
    let clock = Clock::start();
    let meters: Vec<Meter> = data_streams.iter().map(|_| Meter::default()).collect();
    let budget = Budget::new(config.bytes, config.messages);
    let mut reporter = Reporter::new(output, data_streams, &meters, config);
    let limiter = config.limit.map(RateLimiter::new);
    let mut aborted = None;
    let stream_results: Vec<StreamResult> = thread::scope(|scope| {
        let (done, ends) = channel();
        let threads: Vec<_> = data_streams
            .iter()
            .zip(&meters)
            .zip(&config.sides)
            .map(|((data_stream, meter), side)| {
                let (done, budget) = (done.clone(), &budget);
                scope.spawn(move || {
                    let stream_result = stream(data_stream, meter, *side, config, budget, &clock);
                    if stream_result.result.is_err() {
                        data_stream.close("the test failed");
                    }
                    let _ = done.send(());
                    stream_result
                })
            })
            .collect();
        drop(done);
        let mut running = threads.len();
        let mut next = config.interval;
        while running > 0 {
            let left = match config.interval.is_zero() {
                true => Duration::from_secs(3_600),
                false => next.saturating_sub(clock.elapsed()),
            };
            if aborted.is_none() {
                let progress = (&meters[..], clock.elapsed());
                aborted = abort_reason(control, data_streams, config, limiter.as_ref(), progress);
                if let Some(why) = &aborted {
                    data_streams.iter().for_each(|data_stream| data_stream.close(why));
                }
            }
            let slice = left.min(CHECK_INTERVAL);
            match ends.recv_timeout(slice) {
                Ok(()) => running -= 1,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if config.interval.is_zero() || slice < left => {}
                Err(RecvTimeoutError::Timeout) => {
                    // A sender that only waits for its data to arrive has nothing to report.
                    if config.sides.contains(&Side::Receiver)
                        || config.params.time.is_none_or(|time| next <= time)
                    {
                        reporter.report(clock.elapsed());
                    }
                    next = next_report_at(config.interval, clock.elapsed());
                }
            }
        }
        reporter.report_last(clock.elapsed());
        let lost = || StreamResult {
            at: clock.elapsed(),
            result: Err(anyhow::anyhow!("the stream's thread panicked")),
            one_way: Recorder::new(),
            round_trip: Recorder::new(),
        };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| lost())).collect()
    });
    let (mut one_way, mut round_trip) = (Recorder::new(), Recorder::new());
    let streams = stream_results
        .into_iter()
        .zip(data_streams)
        .zip(meters.iter().zip(&config.sides))
        .map(|((stream_result, data_stream), (meter, side))| {
            one_way.merge(&stream_result.one_way);
            round_trip.merge(&stream_result.round_trip);
            let error = stream_result.result.err().map(|error| error_text::join_causes(&error));
            // A stream that was aborted reports the reason for the abort, not that it was closed.
            let error = error.map(|error| aborted.clone().unwrap_or(error));
            let remote = data_stream.addresses().1;
            tracing::debug!(%remote, ?side, at = ?stream_result.at, error, "stream ended");
            // After the test time a sender only waits.
            let end = match (side, config.params.time) {
                (Side::Sender, Some(time)) => stream_result.at.min(time),
                _ => stream_result.at,
            };
            Totals { transport_stats: data_stream.transport_stats(), ..meter.totals(end, error) }
        })
        .collect();
    Outcome {
        sides: config.sides.clone(),
        is_client: config.is_client,
        intervals: reporter.intervals,
        left_out: reporter.left_out,
        summary: Summary {
            streams,
            processor: cpu_timer.utilization(),
            one_way: one_way.percentiles(config.clock.error_ns),
            round_trip: round_trip.percentiles(0),
            sending: config.sides.contains(&Side::Sender).then(|| config.sending.clone()),
        },
    }
}

/// When the next report is due: at a multiple of the interval, at least half an interval from now.
/// A process that was suspended skips the reports that it missed.
fn next_report_at(interval: Duration, now: Duration) -> Duration {
    let soonest = now.saturating_add(interval / 2).as_nanos();
    let periods = soonest.div_ceil(interval.as_nanos().max(1));
    interval.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
}

fn stream(
    data_stream: &DataStream,
    meter: &Meter,
    side: Side,
    config: &TestConfig,
    budget: &Budget,
    clock: &Clock,
) -> StreamResult {
    let (mut one_way, mut round_trip) = (Recorder::new(), Recorder::new());
    let has_ended = AtomicBool::new(false);
    let result = match side {
        Side::Sender if config.params.latency => thread::scope(|scope| {
            let echoes = scope.spawn(|| sender::receive_echoes(data_stream, &has_ended));
            let result = sender::send(data_stream, meter, &config.params, budget);
            has_ended.store(true, Ordering::Release);
            if result.is_err() {
                data_stream.close("the test failed");
            }
            if let Ok(times) = echoes.join() {
                meter.count_echoes(times.count());
                round_trip = times;
            }
            result
        }),
        Side::Sender => sender::send(data_stream, meter, &config.params, budget),
        Side::Receiver => {
            // The offset is the server's clock minus the client's.
            let offset = config.clock.offset_ns;
            let receiver_params = ReceiverParams {
                shift_ns: if config.is_client { offset.saturating_neg() } else { offset },
                latency: config.params.latency,
                timeout: config.receive_timeout,
                hellos: config.hellos,
            };
            receiver::receive(data_stream, meter, receiver_params, &mut one_way)
        }
    };
    StreamResult { at: clock.elapsed(), result, one_way, round_trip }
}

struct Reporter<'a> {
    output: &'a Output,
    data_streams: &'a [DataStream],
    meters: &'a [Meter],
    config: &'a TestConfig,
    last: Vec<(Reading, Option<TransportStats>)>,
    last_at: Duration,
    intervals: Vec<Interval>,
    left_out: u64,
}

impl<'a> Reporter<'a> {
    fn new(
        output: &'a Output,
        data_streams: &'a [DataStream],
        meters: &'a [Meter],
        config: &'a TestConfig,
    ) -> Self {
        let last = data_streams
            .iter()
            .map(|data_stream| (Reading::default(), data_stream.transport_stats()))
            .collect();
        let last_at = Duration::ZERO;
        Self {
            output,
            data_streams,
            meters,
            config,
            last,
            last_at,
            intervals: Vec::new(),
            left_out: 0,
        }
    }

    fn report(&mut self, now: Duration) {
        let readings: Vec<(Reading, Option<TransportStats>)> = self
            .meters
            .iter()
            .zip(self.data_streams)
            .map(|(x, data_stream)| (x.read(), data_stream.transport_stats()))
            .collect();
        let streams =
            readings.iter().zip(&self.last).map(|(now, last)| now.0.since(last.0)).collect();
        let transport_stats = readings
            .iter()
            .zip(&self.last)
            .map(|(now, last)| last.1.clone().zip(now.1.clone()))
            .collect();
        let interval = Interval {
            start: self.last_at.as_secs_f64(),
            end: now.as_secs_f64(),
            is_omitted: self.last_at < self.config.params.omit,
            streams,
            transport_stats,
        };
        let (sides, is_client) = (&self.config.sides, self.config.is_client);
        for line in text::interval(&interval, sides, is_client, self.output.is_verbose()) {
            self.output.line(&line);
        }
        if self.output.is_verbose() {
            for line in sender_state::lines(&interval, sides) {
                self.output.line(&line);
            }
        }
        self.output.event("interval", || json::interval(&interval, sides));
        let max_samples = self.output.samples_kept();
        if max_samples > 0 {
            match self.intervals.len() * self.data_streams.len() < max_samples {
                true => self.intervals.push(interval),
                false => self.left_out += 1,
            }
        }
        (self.last, self.last_at) = (readings, now);
    }

    /// Reports what happened after the last whole interval, unless it is very short.
    fn report_last(&mut self, now: Duration) {
        if self.config.interval.is_zero() {
            return;
        }
        let end = match self.config.params.time {
            Some(time) if !self.config.sides.contains(&Side::Receiver) => now.min(time),
            _ => now,
        };
        let gained = self
            .meters
            .iter()
            .zip(&self.last)
            .any(|(meter, last)| meter.read().bytes > last.0.bytes);
        if gained && end.saturating_sub(self.last_at) > self.config.interval / 20 {
            self.report(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use openbats::Wait;

    use super::*;

    #[test]
    fn a_delayed_report_makes_one_long_interval_and_no_short_ones() {
        let ms = Duration::from_millis;
        for interval in [ms(100), ms(300), ms(1_000)] {
            // Every eleventh report is late, by zero to more than four intervals.
            for late in (0..=1_350).step_by(15).map(|percent| interval * percent / 300) {
                let (mut last, mut next) = (Duration::ZERO, interval);
                for report in 0..40 {
                    let now =
                        next + if report % 11 == 5 { late } else { Duration::from_micros(60) };
                    assert!(now - last >= interval / 2, "{interval:?} {late:?}: {last:?} {now:?}");
                    (last, next) = (now, next_report_at(interval, now));
                    assert!(next - now <= interval * 3 / 2, "{interval:?} {late:?}: {next:?}");
                    assert!((next.as_nanos() % interval.as_nanos()) == 0, "{next:?}");
                }
            }
        }
    }

    /// Whatever arrives: the streams are not asked.
    #[test]
    fn a_test_is_aborted_after_its_deadline() {
        let identity = openbats::Identity::generate(&["localhost"]).unwrap();
        let trust = openbats::Trust::fingerprint(identity.fingerprint());
        let server = openbats::Endpoint::builder()
            .bind(([127, 0, 0, 1], 0).into())
            .server(openbats::ServerOptions::new(identity))
            .start()
            .unwrap();
        let client = openbats::Endpoint::builder().start().unwrap();
        let options = openbats::ClientOptions::new(trust);
        let control = client.connect(server.local_addr(), "localhost", options).wait().unwrap();
        let params = SenderParams {
            time: Some(Duration::from_secs(10)),
            omit: Duration::ZERO,
            bandwidth: 0,
            length: 1_000,
            is_fitted: false,
            latency: false,
            timeout: Duration::ZERO,
            deadline: None,
        };
        let config = TestConfig {
            sides: vec![Side::Receiver],
            is_client: false,
            params,
            bytes: 0,
            messages: 0,
            interval: Duration::ZERO,
            clock: ClockOffset::default(),
            receive_timeout: Duration::ZERO,
            hellos: 0,
            sending: SenderSettings::default(),
            limit: None,
            port_probe: None,
        };
        let reason_at = |elapsed| abort_reason(&control, &[], &config, None, (&[], elapsed));
        let limit = Duration::from_secs(10) + GRACE;
        assert_eq!(reason_at(limit), None);
        assert!(reason_at(limit + CHECK_INTERVAL).unwrap().contains("did not end in time"));
    }

    #[test]
    fn reports_in_time_skip_no_interval() {
        let interval = Duration::from_millis(100);
        for number in 1..1_000 {
            let now = interval * number + Duration::from_micros(number.into());
            assert_eq!(next_report_at(interval, now), interval * (number + 1));
        }
        let ages = Duration::from_secs(u64::MAX);
        assert!(next_report_at(interval, ages) >= interval, "must not overflow");
        assert_eq!(next_report_at(Duration::ZERO, interval), Duration::ZERO);
    }
}
