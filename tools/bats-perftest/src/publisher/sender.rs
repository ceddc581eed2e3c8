//! Sends the initialization pings and the samples.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::batch::{Batch, Payload};
use super::pace::Schedule;
use super::peers::Peers;
use crate::cli::PublisherOptions;
use crate::clock::{Clock, now_ns};
use crate::console::{Progress, print};
use crate::signals;
use crate::wire::{Header, NO_ECHO, ping_target};

/// Longest wait for an echo of a transport that loses messages.
const ECHO_LIMIT: Duration = Duration::from_millis(200);
/// Pause between looks at a full send queue.
const QUEUE_PAUSE: Duration = Duration::from_micros(20);
/// Interval of the lines of `-cacheStats`.
const CACHE_STATS_INTERVAL: Duration = Duration::from_secs(1);

/// The sending side of a test.
pub(super) struct Sender<'a> {
    options: &'a PublisherOptions,
    peers: Arc<Peers>,
    batch: Batch,
    samples: u64,
    messages: u64,
    pings: u64,
    /// The message that is being built has its ping.
    has_ping: bool,
    clock: Clock,
    /// An end condition that has come true.
    ended: Option<Ended>,
    cache_stats_shown: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    ByTimer,
    BySignal,
}

impl<'a> Sender<'a> {
    pub(super) fn new(options: &'a PublisherOptions, peers: Arc<Peers>, payload: Payload) -> Self {
        Self {
            options,
            peers,
            batch: Batch::new(payload, options.batching.samples()),
            samples: 0,
            messages: 0,
            pings: 0,
            has_ping: false,
            clock: Clock::start(),
            ended: None,
            cache_stats_shown: Duration::ZERO,
        }
    }

    /// Samples sent.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Sends the initialization pings, which fill the buffers and measure the path.
    pub(super) fn send_pings(&mut self) -> Result<()> {
        let per_message = self.options.batching.samples();
        for n in 1..=self.options.initial_pings {
            let publisher = self.options.common.id;
            let header = Header { publisher, target: ping_target(false), ..Header::default() };
            self.batch.push(header);
            if self.batch.len() == per_message || n == self.options.initial_pings {
                self.send_message()?;
            }
            if self.ended.is_some() {
                break;
            }
        }
        self.batch.take();
        self.messages = 0;
        Ok(())
    }

    /// Sends the samples; returns whether the timer ended it.
    pub(super) fn send_samples(&mut self) -> Result<bool> {
        let schedule = self.options.rate.map(|(rate, pause)| Schedule::new(rate, pause));
        let mut progress = Progress::new(!self.options.common.intervals);
        self.clock = Clock::start();
        while self.samples < self.options.iterations && !self.has_ended()? {
            let due_ns = match &schedule {
                None => None,
                Some(schedule) => {
                    let due_ns = schedule.due_ns(self.samples);
                    if !schedule.wait(due_ns) {
                        continue;
                    }
                    Some(due_ns)
                }
            };
            let ping = self.push_sample(due_ns);
            if ping.is_some() {
                self.pings += 1;
                self.has_ping = true;
            }
            if self.batch.len() < self.options.batching.samples()
                && self.samples < self.options.iterations
            {
                self.pause()?;
                continue;
            }
            self.send_message()?;
            progress.show(self.samples);
            self.show_cache_stats();
            if self.options.latency_test
                && let Some((sequence, target)) = ping
            {
                self.wait_for_echo(sequence, target)?;
            }
            self.pause()?;
        }
        if self.batch.len() > 0 {
            self.send_message()?;
        }
        Ok(self.ended == Some(Ended::ByTimer))
    }

    /// Adds a sample to the batch; returns its sequence number and the subscriber to echo it, if
    /// one must.
    fn push_sample(&mut self, due_ns: Option<u64>) -> Option<(u32, usize)> {
        let sequence = self.samples as u32;
        let common = &self.options.common;
        let key = match self.options.only_instance {
            Some(key) => key,
            None => (self.samples % u64::from(common.instances)) as u32,
        };
        let target = self.ping_target();
        let stamp_ns = match (due_ns, target) {
            (Some(due_ns), _) => due_ns,
            (None, Some(_)) => now_ns(),
            // The stamps of other samples are not used: reading the clock costs as much as
            // building a small sample.
            (None, None) => 0,
        };
        if target.is_some() {
            let sent_ns = if due_ns.is_some() { now_ns() } else { stamp_ns };
            self.peers.recorder().on_ping(sequence, stamp_ns, sent_ns);
        }
        let subscriber = target.map(|index| self.peers.subscribers[index].id as i32);
        self.batch.push(Header {
            key,
            publisher: common.id,
            sequence,
            stamp_ns,
            target: subscriber.unwrap_or(NO_ECHO),
            length: 0,
        });
        self.samples += 1;
        target.map(|index| (sequence, index))
    }

    /// The subscriber that must echo the next sample, by its index. Every `latencyCount` messages
    /// one sample is a ping, in a batch at a position that moves on; the subscribers take turns.
    fn ping_target(&self) -> Option<usize> {
        let is_due = self.messages.is_multiple_of(self.options.latency_count);
        if self.options.common.id != 0 || self.has_ping || !is_due {
            return None;
        }
        let position = self.pings % self.options.batching.samples() as u64;
        let is_last = self.samples + 1 == self.options.iterations;
        if self.batch.len() as u64 != position && !is_last {
            return None;
        }
        Some((self.pings % self.peers.subscribers.len() as u64) as usize)
    }

    /// Sends the batch when the queue has room for it.
    fn send_message(&mut self) -> Result<()> {
        while self.options.send_queue.is_some_and(|limit| self.peers.outstanding() >= limit) {
            match self.options.latency_test {
                true => self.peers.receive_all(Duration::from_millis(1))?,
                false => thread::sleep(QUEUE_PAUSE),
            }
            self.peers.check()?;
        }
        let message = self.batch.take();
        self.messages += 1;
        self.has_ping = false;
        self.peers.send(&message)
    }

    fn wait_for_echo(&mut self, sequence: u32, target: usize) -> Result<()> {
        let channel = self.peers.subscribers[target].channel;
        let waiting = Clock::start();
        let is_reliable = self.options.common.is_reliable();
        loop {
            let left = ECHO_LIMIT.saturating_sub(waiting.elapsed());
            if left.is_zero() && !is_reliable {
                return Ok(());
            }
            let limit = if is_reliable { ECHO_LIMIT } else { left };
            if self.peers.receive_echo(channel, limit, sequence)? {
                return Ok(());
            }
            self.peers.check()?;
            if self.has_ended()? && (is_reliable || self.ended == Some(Ended::BySignal)) {
                return Ok(());
            }
        }
    }

    /// Waits between two samples, also of one message.
    fn pause(&mut self) -> Result<()> {
        let Some(pause) = self.options.pause else { return Ok(()) };
        let clock = Clock::start();
        while clock.elapsed() < pause && !self.has_ended()? {
            thread::sleep((pause - clock.elapsed().min(pause)).min(Duration::from_millis(50)));
        }
        Ok(())
    }

    /// Whether the test must end now.
    fn has_ended(&mut self) -> Result<bool> {
        // Once for each message is enough.
        let is_paced = self.options.rate.is_some() || self.options.pause.is_some();
        if self.batch.len() > 0 && !is_paced {
            return Ok(false);
        }
        if self.ended.is_none() {
            self.peers.check()?;
            if signals::requested() {
                print("Interrupted.");
                self.ended = Some(Ended::BySignal);
            } else if self.options.execution_time.is_some_and(|end| self.clock.elapsed() >= end) {
                self.ended = Some(Ended::ByTimer);
            }
        }
        Ok(self.ended.is_some())
    }

    fn show_cache_stats(&mut self) {
        if self.options.cache_stats
            && self.clock.elapsed() >= self.cache_stats_shown + CACHE_STATS_INTERVAL
        {
            self.cache_stats_shown = self.clock.elapsed();
            self.peers.print_cache_stats();
        }
    }
}
