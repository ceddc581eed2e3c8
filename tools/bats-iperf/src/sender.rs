//! The sending end of a stream.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::carrier::{Pipe, Received};
use crate::clock::{Clock, stamp_ns};
use crate::latency::Recorder;
use crate::message::{Head, MIN_LENGTH};
use crate::meter::Meter;

/// Bytes of a message unless asked otherwise.
pub(crate) const DEFAULT_LENGTH: u32 = 64 << 10;
/// Bytes of a message where times are measured.
const LATENCY_LENGTH: u32 = 1_024;
/// Messages a second of which the times are sampled at most.
const SAMPLES_PER_SECOND: f64 = 1_000.0;
/// The longest sleep without a look at the end of the test.
const NAP: Duration = Duration::from_millis(200);
/// How long echoes may follow the last message.
const LAST_ECHO: Duration = Duration::from_secs(5);
/// How long a test without a time may take.
pub(crate) const LONGEST: Duration = Duration::from_secs(86_400);
/// Bytes between two looks at the backlog.
const LOOK: usize = 64 << 10;

/// How a stream sends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Pace {
    /// How long, unless a budget is the end.
    pub(crate) time: Option<Duration>,
    /// How much of it at the beginning does not count.
    pub(crate) omit: Duration,
    /// Bits a second, 0 for no limit.
    pub(crate) bandwidth: u64,
    /// Bytes of a message.
    pub(crate) length: u32,
    /// Whether messages ask for echoes.
    pub(crate) latency: bool,
    /// How long there may be no room for a message.
    pub(crate) timeout: Duration,
    /// How long a message is of use, where that counts.
    pub(crate) deadline: Option<Duration>,
}

/// The length of messages where none was asked for: ten milliseconds of a limited stream, so that
/// slow streams are smooth.
pub(crate) fn default_length(bandwidth: u64, latency: bool) -> u32 {
    let most = if latency { LATENCY_LENGTH } else { DEFAULT_LENGTH };
    if bandwidth == 0 {
        return most;
    }
    u32::try_from(bandwidth / 8 / 100).unwrap_or(u32::MAX).clamp(1_024, most.max(1_024))
}

/// What all streams of one direction may still send.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: AtomicU64,
    messages: AtomicU64,
}

impl Budget {
    /// 0 is no limit.
    pub(crate) fn new(bytes: u64, messages: u64) -> Self {
        let limit = |count| AtomicU64::new(if count == 0 { u64::MAX } else { count });
        Self { bytes: limit(bytes), messages: limit(messages) }
    }

    /// The length of the next message, `None` when the budget is used up.
    fn take(&self, length: u32) -> Option<usize> {
        let take = |left: &AtomicU64, wanted: u64| {
            let update = |left: u64| match left {
                u64::MAX => Some(u64::MAX),
                0 => None,
                left => Some(left.saturating_sub(wanted)),
            };
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update).ok()
        };
        take(&self.messages, 1)?;
        let left = take(&self.bytes, u64::from(length))?;
        // The last message may be short, but a message it must be.
        let length = u64::from(length).min(left).max(u64::from(MIN_LENGTH));
        usize::try_from(length).ok()
    }
}

/// Sends for as long as the pace and the budget say, then waits until all has arrived. Messages
/// of a limited stream are due at fixed times: when one had to wait, the next do not move, and those
/// that never had their turn are counted.
pub(crate) fn send(pipe: &Pipe, meter: &Meter, pace: &Pace, budget: &Budget) -> Result<()> {
    let clock = Clock::start();
    let mut number = 0;
    let result = send_all(pipe, meter, (pace, budget), &clock, &mut number);
    if let Some(time) = pace.time.filter(|_| pace.latency) {
        meter.set_unsent(unsent(step(pace), pace.omit, time.min(clock.elapsed()), number));
    }
    result.and_then(|()| pipe.finish())
}

/// Between two messages of a limited stream; zero without a limit.
fn step(pace: &Pace) -> Duration {
    match pace.bandwidth {
        0 => Duration::ZERO,
        bandwidth => Duration::from_secs_f64(f64::from(pace.length) * 8.0 / bandwidth as f64),
    }
}

/// Messages that were due from `omit` to before `end` and are not among the first `sent`.
fn unsent(step: Duration, omit: Duration, end: Duration, sent: u64) -> u64 {
    let due_before = |time: Duration| {
        let count = time.as_nanos().div_ceil(step.as_nanos().max(1));
        u64::try_from(count).unwrap_or(u64::MAX)
    };
    if step.is_zero() {
        return 0;
    }
    due_before(end).saturating_sub(sent.max(due_before(omit)))
}

fn send_all(
    pipe: &Pipe,
    meter: &Meter,
    (pace, budget): (&Pace, &Budget),
    clock: &Clock,
    number: &mut u64,
) -> Result<()> {
    let start_ns = stamp_ns();
    let step = step(pace);
    let rate = 1.0 / step.as_secs_f64().max(1e-9);
    let echo_every = if pace.latency { (rate / SAMPLES_PER_SECOND).ceil().max(1.0) } else { 0.0 };
    let echo_every = echo_every as u64;
    let look_every = (LOOK as u64 / u64::from(pace.length.max(1))).max(1);
    let time = pace.time.unwrap_or(Duration::MAX);
    let mut silence = Silence::default();
    let mut due = Duration::ZERO;
    let mut counts = pace.omit.is_zero();
    loop {
        let now = clock.elapsed();
        if now >= time {
            return Ok(());
        }
        if pace.time.is_none() && now >= LONGEST {
            bail!("the test does not come to an end");
        }
        if due > now {
            let wait = due - now;
            thread::sleep(wait.min(NAP).min(time - now));
            if wait > NAP {
                // Whoever has gone would not be missed before the next message.
                if let Some(why) = pipe.end() {
                    bail!("cannot send: {why}");
                }
                silence.check(pipe.look().heard, clock.elapsed(), pace.timeout)?;
            }
            continue;
        }
        if number.is_multiple_of(look_every) {
            let look = pipe.look();
            silence.check(look.heard, now, pace.timeout)?;
            if look.is_backlogged && !wait_for_room(pipe, clock, time, pace.timeout)? {
                return Ok(());
            }
        }
        let now = clock.elapsed();
        if !counts && now >= pace.omit {
            meter.set_base(now);
            counts = true;
        }
        let Some(length) = budget.take(pace.length) else { return Ok(()) };
        let sent_ns = stamp_ns();
        let head = Head {
            number: *number,
            due_ns: if step.is_zero() { sent_ns } else { start_ns + due.as_nanos() as u64 },
            sent_ns,
            wants_echo: echo_every > 0 && number.is_multiple_of(echo_every),
            is_omitted: !counts,
        };
        let left = time.saturating_sub(now);
        if !pipe.send(head.message(length), left.min(pace.timeout), pace.deadline)? {
            if clock.elapsed() >= time {
                return Ok(());
            }
            bail!("nothing could be sent for {} s", pace.timeout.as_secs_f64());
        }
        meter.count(length);
        if head.wants_echo && counts {
            meter.ask();
        }
        *number += 1;
        due += step;
    }
}

/// How long the other side has been silent although it has something to say. A connection that probes
/// for it takes more data from time to time, so that a full one is no sign.
#[derive(Debug, Default)]
struct Silence {
    packets: u64,
    since: Duration,
}

impl Silence {
    /// `heard` are the other side's packets so far, `None` where none is due.
    fn check(&mut self, heard: Option<u64>, now: Duration, limit: Duration) -> Result<()> {
        match heard {
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

/// Waits until the connection has no long backlog; `false` when the time was over first.
fn wait_for_room(pipe: &Pipe, clock: &Clock, time: Duration, limit: Duration) -> Result<bool> {
    let begin = clock.elapsed();
    while pipe.look().is_backlogged {
        let now = clock.elapsed();
        if now >= time {
            return Ok(false);
        }
        if now - begin > limit {
            bail!("nothing could be sent for {} s", limit.as_secs_f64());
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(clock.elapsed() < time)
}

/// Takes the echoes of a stream until it ends; round-trip times from when each was due.
pub(crate) fn echoes(pipe: &Pipe, has_ended: &AtomicBool) -> Recorder {
    let mut recorder = Recorder::new();
    let mut silence = Duration::ZERO;
    while silence < LAST_ECHO {
        match pipe.recv(NAP) {
            Ok(Received::Message(message)) => {
                if let Ok(head) = Head::of_echo(&message)
                    && !head.is_omitted
                {
                    recorder.record(stamp_ns().saturating_sub(head.due_ns));
                }
            }
            Ok(Received::Nothing) if has_ended.load(Ordering::Acquire) => silence += NAP,
            Ok(Received::Nothing) => {}
            // What broke, the sender reports.
            Ok(Received::End) | Err(_) => break,
        }
    }
    recorder
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_streams_have_small_messages() {
        assert_eq!(default_length(0, false), DEFAULT_LENGTH);
        assert_eq!(default_length(64_000, false), 1_024);
        assert_eq!(default_length(8_000_000, false), 10_000);
        assert_eq!(default_length(u64::MAX, false), DEFAULT_LENGTH);
        assert_eq!(default_length(u64::MAX, true), 1_024);
    }

    #[test]
    fn what_was_due_and_not_sent_is_counted() {
        let ms = Duration::from_millis;
        // Due at 0, 10, ... 990 ms.
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 100), 0);
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 99), 1);
        assert_eq!(unsent(ms(10), ms(0), ms(1_001), 100), 1);
        assert_eq!(unsent(ms(10), ms(0), ms(1_000), 0), 100);
        // Those of the beginning do not count: the first that does is due at 300 ms.
        assert_eq!(unsent(ms(10), ms(300), ms(1_000), 0), 70);
        assert_eq!(unsent(ms(10), ms(300), ms(1_000), 60), 40);
        assert_eq!(unsent(ms(10), ms(300), ms(200), 0), 0);
        assert_eq!(unsent(Duration::ZERO, ms(0), ms(1_000), 0), 0);
        assert_eq!(unsent(Duration::from_nanos(1), ms(0), Duration::MAX, 0), u64::MAX);
    }

    #[test]
    fn silence_counts_while_an_answer_is_due() {
        let (at, limit) = (Duration::from_secs, Duration::from_secs(5));
        let mut silence = Silence::default();
        assert!(silence.check(None, at(100), limit).is_ok());
        assert!(silence.check(Some(7), at(200), limit).is_ok());
        assert!(silence.check(Some(7), at(205), limit).is_ok());
        assert!(silence.check(Some(8), at(206), limit).is_ok());
        // Nothing was due meanwhile.
        assert!(silence.check(None, at(300), limit).is_ok());
        assert!(silence.check(Some(8), at(304), limit).is_ok());
        let error = silence.check(Some(8), at(306), limit).unwrap_err().to_string();
        assert_eq!(error, "nothing was acknowledged for 5 s");
    }

    #[test]
    fn a_budget_is_spent_exactly_and_shared() {
        let budget = Budget::new(2_500, 0);
        let lengths: Vec<usize> = std::iter::from_fn(|| budget.take(1_000)).collect();
        assert_eq!(lengths, [1_000, 1_000, 500]);
        let budget = Budget::new(1_001, 0);
        let lengths: Vec<usize> = std::iter::from_fn(|| budget.take(1_000)).collect();
        assert_eq!(lengths, [1_000, MIN_LENGTH as usize]);
        let budget = Budget::new(0, 3);
        assert_eq!(std::iter::from_fn(|| budget.take(1_000)).count(), 3);
        let unlimited = Budget::new(0, 0);
        assert_eq!(std::iter::from_fn(|| unlimited.take(u32::MAX)).take(100).count(), 100);
    }
}
