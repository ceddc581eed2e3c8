//! Messages that are sent back, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_proto::{ConnectionHandle, Event, Mode, SendError, Timestamp};
use bats_sim::capture::Capture;
use bytes::Bytes;

use super::carrier::Carrier;
use super::flow::{Glimpse, PATIENCE};
use super::world::{Between, End, World};
use crate::protocol::reading::{Reading, of_round_trips};

/// How long the last answer may take where it may be lost.
const LOSSY_PATIENCE: Duration = Duration::from_secs(2);

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) mode: Mode,
    pub(super) count: u64,
    pub(super) size: usize,
    pub(super) interval: Duration,
    /// Measures the first message of so many connections.
    pub(super) rounds: Option<u32>,
}

/// Virtual time between two glimpses.
const GLIMPSE: Duration = Duration::from_millis(500);

/// Measures `count` messages, `interval` apart; with `rounds` the first one of so many connections. What
/// can be seen meanwhile is told to `tell`, by virtual time.
///
/// # Errors
/// Where no connection comes about or nothing comes back.
pub(super) fn measure(
    between: &Between,
    question: Question,
    mut capture: Option<Capture>,
    of: &str,
    tell: &dyn Fn(Glimpse),
) -> Result<Reading> {
    let (mut times, mut connects, mut sent, mut elapsed) = (Vec::new(), Vec::new(), 0, 0.0);
    for round in 0..question.rounds.unwrap_or(1) {
        let seed = between.seed.wrapping_add(u64::from(round));
        let between = Between { seed, ..between.clone() };
        let mut run = Run::new(World::new(&between, capture.take())?, question)?;
        let connect = run.go(tell);
        elapsed += run.world.now().as_secs_f64();
        run.world.finish_capture()?;
        sent += question.count;
        let Some(connect) = connect else {
            if question.rounds.is_some() {
                continue;
            }
            bail!(
                "no connection came about over this way in {} simulated seconds",
                PATIENCE.as_secs()
            );
        };
        connects.push(connect);
        if question.rounds.is_some() {
            let first = run.times.first().map(|time| connect + time.1);
            times.extend(first.map(|time| (f64::from(round), time)));
            if first.is_some() {
                let (at, mbps, queue_kilobytes) = (elapsed, 0.0, 0.0);
                tell(Glimpse { at, mbps, rtt_ms: first, queue_kilobytes });
            }
        } else {
            times = run.times;
        }
    }
    of_round_trips(times, &connects, sent as f64, question.rounds.is_some(), of)
}

struct Run {
    world: World,
    question: Question,
    client: ConnectionHandle,
    sent: u64,
    /// Echoes that the server could not hand over yet.
    waiting: VecDeque<Bytes>,
    established: Option<Timestamp>,
    is_closed: bool,
    times: Vec<(f64, f64)>,
    /// When it was last told of, and how many answers there were.
    glimpsed: (Timestamp, usize),
}

impl Run {
    fn new(mut world: World, question: Question) -> Result<Self> {
        let client = world.connect(question.mode)?;
        Ok(Self {
            world,
            question,
            client,
            sent: 0,
            waiting: VecDeque::new(),
            established: None,
            is_closed: false,
            times: Vec::new(),
            glimpsed: (Timestamp::ZERO, 0),
        })
    }

    /// What has come back since the last glimpse, where it is time for another.
    fn glimpse(&mut self) -> Option<Glimpse> {
        let (now, start) = (self.world.now(), self.established?);
        let since = self.glimpsed.0.max(start);
        if self.question.rounds.is_some() || now - since < GLIMPSE {
            return None;
        }
        let new = self.times.get(self.glimpsed.1..).unwrap_or_default();
        if new.is_empty() {
            return None;
        }
        let bytes = new.len() * self.question.size.max(8);
        let sum: f64 = new.iter().map(|time| time.1).sum();
        let rtt_ms = Some(sum / new.len() as f64);
        let mbps = bytes as f64 * 8e-6 / (now - since).as_secs_f64();
        let queues = self.world.queues();
        let queue_kilobytes = queues.iter().max().map_or(0.0, |&bytes| bytes as f64 / 1e3);
        self.glimpsed = (now, self.times.len());
        Some(Glimpse { at: (now - start).as_secs_f64(), mbps, rtt_ms, queue_kilobytes })
    }

    /// Returns the milliseconds to the connection.
    fn go(&mut self, tell: &dyn Fn(Glimpse)) -> Option<f64> {
        let Question { mode, count, interval, .. } = self.question;
        let begin = self.world.now();
        let mut end = begin + PATIENCE;
        while self.world.now() < end && (self.times.len() as u64) < count && !self.is_closed {
            // What found no room waits for an event.
            let due = self.due().filter(|&due| due > self.world.now());
            for (_, side, handle, event) in self.world.step(due.unwrap_or(end).min(end)) {
                match (side, event) {
                    (End::Client, Event::Connected) => {
                        let now = self.world.now();
                        self.established = Some(now);
                        let last = if Carrier::Ours(mode).is_reliable() {
                            PATIENCE
                        } else {
                            LOSSY_PATIENCE
                        };
                        end = now + interval * u32::try_from(count).unwrap_or(u32::MAX) + last;
                    }
                    (End::Client, Event::Readable) => self.arrived(),
                    (End::Client, Event::Closed(_)) => self.is_closed = true,
                    (End::Server, Event::Readable | Event::Writable) => self.echo(handle),
                    _ => {}
                }
            }
            self.send();
            if let Some(glimpse) = self.glimpse() {
                tell(glimpse);
            }
        }
        self.established.map(|at| (at - begin).as_secs_f64() * 1e3)
    }

    /// When the next message is due.
    fn due(&self) -> Option<Timestamp> {
        let start = self.established.filter(|_| self.sent < self.question.count)?;
        Some(start + self.question.interval * u32::try_from(self.sent).unwrap_or(u32::MAX))
    }

    fn send(&mut self) {
        let now = self.world.now();
        while self.due().is_some_and(|due| due <= now) {
            let mut message = vec![0; self.question.size.max(8)];
            message[..8].copy_from_slice(&self.sent.to_le_bytes());
            let Some(client) = self.world.endpoint(0, End::Client) else { return };
            match client.send(now, self.client, message.into()) {
                Ok(()) => self.sent += 1,
                // There is no room: the next answer makes some. Its time counts from when it was due.
                Err(SendError::Blocked(_)) => break,
                Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.world.touch(0, End::Client);
    }

    fn echo(&mut self, handle: ConnectionHandle) {
        let now = self.world.now();
        let Some(server) = self.world.endpoint(0, End::Server) else { return };
        while let Some(message) = server.recv(now, handle) {
            self.waiting.push_back(message);
        }
        while let Some(message) = self.waiting.front().cloned() {
            if server.send(now, handle, message).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        self.world.touch(0, End::Server);
    }

    fn arrived(&mut self) {
        let now = self.world.now();
        let Some(client) = self.world.endpoint(0, End::Client) else { return };
        while let Some(message) = client.recv(now, self.client) {
            let number =
                message.get(..8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
            let (Some(number), Some(start)) = (number, self.established) else { continue };
            let due = self.question.interval * u32::try_from(number).unwrap_or(u32::MAX);
            let time = (now - (start + due)).as_secs_f64() * 1e3;
            self.times.push((due.as_secs_f64(), time));
        }
        self.world.touch(0, End::Client);
    }
}

#[cfg(test)]
mod tests {
    use bats_netem::LinkConfig;

    use super::*;

    fn median(hops: usize, mode: Mode, recoding: Option<bool>) -> f64 {
        let link = LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
        let links = vec![[link.clone(), link]; hops];
        let between = Between { links, recoding, seed: 1, ways: Vec::new() };
        let interval = Duration::from_millis(10);
        let question = Question { mode, count: 50, size: 512, interval, rounds: None };
        let seen = std::cell::RefCell::new(Vec::new());
        let tell = |glimpse: Glimpse| seen.borrow_mut().push(glimpse);
        let reading = measure(&between, question, None, "x", &tell).unwrap();
        // Half a second of messages is seen once.
        let seen = seen.borrow();
        assert!(seen.len() == 1 && (0.5..0.6).contains(&seen[0].at), "{mode:?}: {seen:?}");
        let shown = seen[0].rtt_ms.unwrap();
        assert!((shown / reading.figures["rtt_p50_ms"] - 1.0).abs() < 0.1, "{mode:?}: {shown}");
        assert!(seen[0].mbps > 0.3, "{mode:?}: {seen:?}");
        assert_eq!(reading.figures["unanswered_percent"], 0.0, "{mode:?}");
        reading.figures["rtt_p50_ms"]
    }

    #[test]
    fn without_loss_a_round_trip_is_the_links() {
        for mode in [Mode::Btp, Mode::Brtp, Mode::Brctp, Mode::Transparent] {
            let one = median(1, mode, Some(true));
            assert!((20.0..25.0).contains(&one), "{mode:?}: {one}");
            let three = median(3, mode, None);
            assert!((60.0..66.0).contains(&three), "{mode:?}: {three}");
        }
        for mode in [Mode::Btp, Mode::Brtp] {
            for recoding in [true, false] {
                let relayed = median(3, mode, Some(recoding));
                assert!((60.0..66.0).contains(&relayed), "{mode:?} {recoding}: {relayed}");
            }
        }
    }
}
