//! Sender of a stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::{Clock, stamp_ns};
use crate::latency::Recorder;
use crate::message::{Header, MIN_LENGTH};
use crate::meter::Meter;
use crate::path_fit;
use crate::stream::{DataStream, PathState, Received};

/// Maximum rate of messages that ask for an echo, per second.
const SAMPLES_PER_SECOND: f64 = 1_000.0;
/// Maximum time between checks for the end of the test.
const MAX_SLEEP: Duration = Duration::from_millis(200);
/// How long to wait for echoes after the stream has ended.
const LAST_ECHO: Duration = Duration::from_secs(5);
/// Maximum duration of a test without a time limit.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(86_400);
/// Bytes sent between two checks of the backlog.
const BACKLOG_CHECK_BYTES: usize = 64 << 10;

/// Parameters of a sending stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SenderParams {
    /// Duration, unless a number of bytes or messages ends the test.
    pub(crate) time: Option<Duration>,
    /// Initial part of it that is omitted from the results.
    pub(crate) omit: Duration,
    /// Bits per second, 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Length of a message in bytes.
    pub(crate) length: u32,
    /// Length, at most `length`, and deadline follow the path.
    pub(crate) is_fitted: bool,
    /// Whether messages ask for echoes.
    pub(crate) latency: bool,
    /// How long sending may block before the test fails.
    pub(crate) timeout: Duration,
    /// Deadline of a message, in modes that have one.
    pub(crate) deadline: Option<Duration>,
}

/// The bytes and messages that all streams of one direction may still send.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Budget {
    /// 0 means no limit.
    pub(crate) fn new(bytes: u64, messages: u64) -> Self {
        let limit = |count| AtomicU64::new(if count == 0 { u64::MAX } else { count });
        Self { bytes: limit(bytes), messages: limit(messages) }
    }

    /// Takes the next message from the budget: its length, or `None` when the budget is used up.
    fn take(&self, length: u32) -> Option<usize> {
        let take = |remaining: &AtomicU64, wanted: &dyn Fn(u64) -> u64| {
            let update = |remaining: u64| match remaining {
                u64::MAX => Some(u64::MAX),
                0 => None,
                remaining => Some(remaining.saturating_sub(wanted(remaining))),
            };
            remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()
        };
        let next = |remaining| next_length(u64::from(length), remaining);
        take(&self.messages, &|_| 1)?;
        let remaining = take(&self.bytes, &next)?;
        usize::try_from(next(remaining)).ok()
    }
}

/// The length of the next message of at most `length` bytes. A message is not shorter than its
/// header, so the last but one is shortened if it would leave less for the last.
fn next_length(length: u64, remaining: u64) -> u64 {
    let min = u64::from(MIN_LENGTH);
    match remaining.saturating_sub(length) {
        0 => remaining.max(min),
        rest if rest < min => (remaining - min).max(min),
        _ => length.max(min),
    }
}

/// Sends until the time or the budget is used up, then waits until all data has arrived. Messages
/// of a limited stream are sent on a fixed schedule: a delayed message does not shift the following
/// ones, and messages that were due but not sent are counted.
pub(crate) fn send(
    data_stream: &DataStream,
    meter: &Meter,
    params: &SenderParams,
    budget: &Budget,
) -> Result<()> {
    let clock = Clock::start();
    let mut number = 0;
    let result = send_all(data_stream, meter, (params, budget), &clock, &mut number);
    if let Some(time) = params.time.filter(|_| params.latency) {
        meter.set_unsent(unsent(
            send_interval(params),
            params.omit,
            time.min(clock.elapsed()),
            number,
        ));
    }
    result.and_then(|()| data_stream.finish())
}

/// The time between two messages of a limited stream; zero without a limit.
fn send_interval(params: &SenderParams) -> Duration {
    match params.bandwidth {
        0 => Duration::ZERO,
        bandwidth => Duration::from_secs_f64(f64::from(params.length) * 8.0 / bandwidth as f64),
    }
}

/// Messages that were due from `omit` to before `end` and are not among the first `sent`.
fn unsent(send_interval: Duration, omit: Duration, end: Duration, sent: u64) -> u64 {
    let due_before = |time: Duration| {
        let count = time.as_nanos().div_ceil(send_interval.as_nanos().max(1));
        u64::try_from(count).unwrap_or(u64::MAX)
    };
    if send_interval.is_zero() {
        return 0;
    }
    due_before(end).saturating_sub(sent.max(due_before(omit)))
}

fn send_all(
    data_stream: &DataStream,
    meter: &Meter,
    (params, budget): (&SenderParams, &Budget),
    clock: &Clock,
    number: &mut u64,
) -> Result<()> {
    let start_ns = stamp_ns();
    let send_interval = send_interval(params);
    let rate = 1.0 / send_interval.as_secs_f64().max(1e-9);
    let echo_every = if params.latency { (rate / SAMPLES_PER_SECOND).ceil().max(1.0) } else { 0.0 };
    let echo_every = echo_every as u64;
    let backlog_check_every = match params.is_fitted {
        true => 1,
        false => (BACKLOG_CHECK_BYTES as u64 / u64::from(params.length.max(1))).max(1),
    };
    let mut path = PathState::default();
    let time = params.time.unwrap_or(Duration::MAX);
    let mut ack_timeout = AckTimeout::default();
    let mut due = Duration::ZERO;
    let mut counts = params.omit.is_zero();
    loop {
        let now = clock.elapsed();
        if now >= time {
            return Ok(());
        }
        if params.time.is_none() && now >= MAX_DURATION {
            bail!("the test did not end within the maximum duration");
        }
        if due > now {
            let wait = due - now;
            thread::sleep(wait.min(MAX_SLEEP).min(time - now));
            if wait > MAX_SLEEP {
                // Detect a closed stream now, not only at the next message.
                if let Some(why) = data_stream.end_reason() {
                    bail!("cannot send: {why}");
                }
                ack_timeout.check(
                    data_stream.send_state().peer_packets,
                    clock.elapsed(),
                    params.timeout,
                )?;
            }
            continue;
        }
        if number.is_multiple_of(backlog_check_every) {
            let send_state = data_stream.send_state();
            ack_timeout.check(send_state.peer_packets, now, params.timeout)?;
            path = send_state.path;
            if send_state.is_backlogged && !wait_for_room(data_stream, clock, time, params.timeout)?
            {
                return Ok(());
            }
        }
        let now = clock.elapsed();
        if !counts && now >= params.omit {
            meter.start_counting(now);
            counts = true;
        }
        let wanted = match params.is_fitted {
            true => path_fit::length(path).min(params.length),
            false => params.length,
        };
        let Some(length) = budget.take(wanted) else { return Ok(()) };
        let fitted = params.is_fitted.then(|| path_fit::deadline(path, length));
        let sent_ns = stamp_ns();
        let header = Header {
            number: *number,
            due_ns: if send_interval.is_zero() {
                sent_ns
            } else {
                start_ns + due.as_nanos() as u64
            },
            sent_ns,
            wants_echo: echo_every > 0 && number.is_multiple_of(echo_every),
            is_omitted: !counts,
        };
        let remaining = time.saturating_sub(now);
        if !data_stream.send(
            header.message(length),
            remaining.min(params.timeout),
            params.deadline.or(fitted),
        )? {
            if clock.elapsed() >= time {
                return Ok(());
            }
            bail!("sending was blocked for {} s", params.timeout.as_secs_f64());
        }
        meter.count(length);
        if header.wants_echo && counts {
            meter.expect_echo();
        }
        *number += 1;
        due += send_interval;
    }
}

/// Detects a peer that stops acknowledging. A full connection is no sign of that: one that probes
/// the peer still accepts data from time to time.
#[derive(Debug, Default)]
struct AckTimeout {
    packets: u64,
    since: Duration,
}

impl AckTimeout {
    /// `peer_packets` is the number of packets received from the peer, `None` when nothing waits
    /// for an acknowledgement.
    fn check(&mut self, peer_packets: Option<u64>, now: Duration, limit: Duration) -> Result<()> {
        match peer_packets {
            Some(packets) if packets == self.packets => {
                if now.saturating_sub(self.since) > limit {
                    bail!("nothing was acknowledged for {} s", limit.as_secs_f64());
                }
            }
            Some(packets) => *self = Self { packets, since: now },
            None => self.since = now,
        }
        Ok(())
    }
}

/// Waits until the backlog of the connection is short; `false` if the test time ended first.
fn wait_for_room(
    data_stream: &DataStream,
    clock: &Clock,
    time: Duration,
    limit: Duration,
) -> Result<bool> {
    let begin = clock.elapsed();
    while data_stream.send_state().is_backlogged {
        let now = clock.elapsed();
        if now >= time {
            return Ok(false);
        }
        if now - begin > limit {
            bail!("sending was blocked for {} s", limit.as_secs_f64());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(clock.elapsed() < time)
}

/// Receives the echoes of a stream until it ends, and records round-trip times from each message's
/// due time.
pub(crate) fn receive_echoes(data_stream: &DataStream, has_ended: &AtomicBool) -> Recorder {
    let mut recorder = Recorder::new();
    // From the end of the stream on: a peer that goes on sending must not extend the wait.
    let mut ended: Option<Clock> = None;
    while ended.as_ref().is_none_or(|ended| ended.elapsed() < LAST_ECHO) {
        match data_stream.recv(MAX_SLEEP) {
            Ok(Received::Message(message)) => {
                if let Ok(header) = Header::from_echo(&message)
                    && !header.is_omitted
                {
                    recorder.record(stamp_ns().saturating_sub(header.due_ns));
                }
            }
            Ok(Received::Nothing) => {}
            // The sending thread reports errors.
            Ok(Received::End) | Err(_) => break,
        }
        if ended.is_none() && has_ended.load(Ordering::Acquire) {
            ended = Some(Clock::start());
        }
    }
    recorder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_due_but_not_sent_are_counted() {
        let ms = Duration::from_millis;
        // Due at 0, 10, ... 990 ms.
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 100), 0);
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 99), 1);
        assert_eq!(unsent(ms(10), ms(0), ms(1_001), 100), 1);
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 0), 100);
        // Messages of the omitted beginning do not count: the first that counts is due at 300 ms.
        assert_eq!(unsent(ms(10), ms(300), ms(1_000), 0), 70);
        assert_eq!(unsent(ms(10), ms(300), ms(1_000), 60), 40);
        assert_eq!(unsent(ms(10), ms(300), ms(200), 0), 0);
        assert_eq!(unsent(Duration::ZERO, ms(0), ms(1_000), 0), 0);
        assert_eq!(unsent(Duration::from_nanos(1), ms(0), Duration::MAX, 0), u64::MAX);
    }

    #[test]
    fn the_ack_timeout_runs_only_while_an_acknowledgement_is_due() {
        let (at, limit) = (Duration::from_secs, Duration::from_secs(5));
        let mut ack_timeout = AckTimeout::default();
        assert!(ack_timeout.check(None, at(100), limit).is_ok());
        assert!(ack_timeout.check(Some(7), at(200), limit).is_ok());
        assert!(ack_timeout.check(Some(7), at(205), limit).is_ok());
        assert!(ack_timeout.check(Some(8), at(206), limit).is_ok());
        // Meanwhile nothing was due.
        assert!(ack_timeout.check(None, at(300), limit).is_ok());
        assert!(ack_timeout.check(Some(8), at(304), limit).is_ok());
        let error = ack_timeout.check(Some(8), at(306), limit).unwrap_err().to_string();
        assert_eq!(error, "nothing was acknowledged for 5 s");
    }

    #[test]
    fn a_budget_is_spent_exactly() {
        let budget = Budget::new(2_500, 0);
        let lengths: Vec<usize> = std::iter::from_fn(|| budget.take(1_000)).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
        let budget = Budget::new(1_001, 0);
        let lengths: Vec<usize> = std::iter::from_fn(|| budget.take(1_000)).collect();
        assert_eq!(lengths, [1_001 - MIN_LENGTH as usize, MIN_LENGTH as usize]);
        let budget = Budget::new(0, 3);
        assert_eq!(std::iter::from_fn(|| budget.take(1_000)).count(), 3);
        let unlimited = Budget::new(0, 0);
        assert_eq!(std::iter::from_fn(|| unlimited.take(u32::MAX)).take(100).count(), 100);
    }
}
