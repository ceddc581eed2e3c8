//! Messages that are sent back, in virtual time.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_proto::{ConnectionHandle, Event, Mode, SendError, Timestamp};
use bats_sim::capture::Capture;
use bytes::Bytes;

use super::flow::{PATIENCE, is_reliable};
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

/// Measures `count` messages, `interval` apart; with `rounds` the first one of so many connections.
///
/// # Errors
/// Where no connection comes about or nothing comes back.
pub(super) fn measure(
    between: &Between,
    question: Question,
    mut capture: Option<Capture>,
    of: &str,
) -> Result<Reading> {
    let (mut times, mut connects, mut sent) = (Vec::new(), Vec::new(), 0);
    for round in 0..question.rounds.unwrap_or(1) {
        let seed = between.seed.wrapping_add(u64::from(round));
        let between = Between { seed, ..between.clone() };
        let mut run = Run::new(World::new(&between, capture.take())?, question)?;
        let connect = run.go();
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
            times.extend(run.times.first().map(|time| (f64::from(round), connect + time.1)));
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
        })
    }

    /// Returns the milliseconds to the connection.
    fn go(&mut self) -> Option<f64> {
        let Question { mode, count, interval, .. } = self.question;
        let begin = self.world.now();
        let mut end = begin + PATIENCE;
        while self.world.now() < end && (self.times.len() as u64) < count && !self.is_closed {
            // What found no room waits for an event.
            let due = self.due().filter(|&due| due > self.world.now());
            for (side, handle, event) in self.world.step(due.unwrap_or(end).min(end)) {
                match (side, event) {
                    (End::Client, Event::Connected) => {
                        let now = self.world.now();
                        self.established = Some(now);
                        let last = if is_reliable(mode) { PATIENCE } else { LOSSY_PATIENCE };
                        end = now + interval * u32::try_from(count).unwrap_or(u32::MAX) + last;
                    }
                    (End::Client, Event::Readable) => self.arrived(),
                    (End::Client, Event::Closed(_)) => self.is_closed = true,
                    (End::Server, Event::Readable | Event::Writable) => self.echo(handle),
                    _ => {}
                }
            }
            self.send();
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
            match self.world.endpoint(End::Client).send(now, self.client, message.into()) {
                Ok(()) => self.sent += 1,
                // There is no room: the next answer makes some. Its time counts from when it was due.
                Err(SendError::Blocked(_)) => break,
                Err(_) => {
                    self.is_closed = true;
                    break;
                }
            }
        }
        self.world.touch(End::Client);
    }

    fn echo(&mut self, handle: ConnectionHandle) {
        let now = self.world.now();
        while let Some(message) = self.world.endpoint(End::Server).recv(now, handle) {
            self.waiting.push_back(message);
        }
        while let Some(message) = self.waiting.front().cloned() {
            if self.world.endpoint(End::Server).send(now, handle, message).is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        self.world.touch(End::Server);
    }

    fn arrived(&mut self) {
        let now = self.world.now();
        while let Some(message) = self.world.endpoint(End::Client).recv(now, self.client) {
            let number =
                message.get(..8).and_then(|octets| octets.try_into().ok()).map(u64::from_le_bytes);
            let (Some(number), Some(start)) = (number, self.established) else { continue };
            let due = self.question.interval * u32::try_from(number).unwrap_or(u32::MAX);
            let time = (now - (start + due)).as_secs_f64() * 1e3;
            self.times.push((due.as_secs_f64(), time));
        }
        self.world.touch(End::Client);
    }
}

#[cfg(test)]
mod tests {
    use bats_netem::LinkConfig;

    use super::*;

    fn median(hops: usize, mode: Mode, recoding: Option<bool>) -> f64 {
        let link = LinkConfig { delay: Duration::from_millis(10), ..LinkConfig::default() };
        let between = Between { links: vec![[link.clone(), link]; hops], recoding, seed: 1 };
        let interval = Duration::from_millis(10);
        let question = Question { mode, count: 50, size: 512, interval, rounds: None };
        let reading = measure(&between, question, None, "x").unwrap();
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
