//! Sends the initialization pings and the samples.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::batch::{Batch, Payload};
use super::ends::Ends;
use super::pace::Schedule;
use super::peers::Peers;
use super::pings::Ping;
use crate::cli::{Pause, PublisherOptions};
use crate::clock::{Clock, now_ns};
use crate::console::Progress;
use crate::wire::{Header, NO_ECHO, ping_target};

/// Longest wait for an echo of a transport that loses messages.
const ECHO_LIMIT: Duration = Duration::from_millis(200);
/// Pause between looks at a full send queue.
const QUEUE_PAUSE: Duration = Duration::from_micros(20);
/// Time that a paced publisher spins before it looks at the end conditions.
const SPIN_NS: u64 = 1_000_000;
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
    /// The ping of the message that is being built.
    ping: Option<Ping>,
    ends: Ends,
    progress: Progress,
    /// Rows when the progress was looked at.
    rows: u64,
    clock: Clock,
    cache_stats_shown: Duration,
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
            ping: None,
            ends: Ends::new(options.execution_time),
            progress: Progress::new(true),
            rows: 0,
            clock: Clock::start(),
            cache_stats_shown: Duration::ZERO,
        }
    }

    /// Samples sent.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// The end conditions, for the phases after the last sample.
    pub(super) fn ends(&mut self) -> &mut Ends {
        &mut self.ends
    }

    /// Waits for at most `limit`; returns whether the test goes on.
    fn wait(&mut self, limit: Duration) -> Result<bool> {
        self.ends.wait(&self.peers, limit)
    }

    /// Waits for this time; returns whether the test goes on.
    pub(super) fn pause(&mut self, time: Duration) -> Result<bool> {
        let clock = Clock::start();
        while self.wait(time.saturating_sub(clock.elapsed()))? {
            if clock.elapsed() >= time {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends the initialization pings, which fill the buffers and measure the path.
    pub(super) fn send_pings(&mut self) -> Result<()> {
        let per_message = self.options.batching.samples();
        for n in 1..=self.options.initial_pings {
            let publisher = self.options.common.id;
            let header = Header { publisher, target: ping_target(false), ..Header::default() };
            self.batch.push(header);
            let is_full = self.batch.len() == per_message || n == self.options.initial_pings;
            if is_full && !(self.wait(Duration::ZERO)? && self.send_message()?) {
                break;
            }
        }
        self.batch.take();
        self.messages = 0;
        Ok(())
    }

    /// Sends the samples.
    pub(super) fn send_samples(&mut self) -> Result<()> {
        let schedule = self.options.rate.map(|(rate, pause)| (Schedule::new(rate), pause));
        self.clock = Clock::start();
        self.ends.start();
        while self.samples < self.options.iterations {
            let mut due_ns = None;
            if let Some((schedule, pause)) = &schedule {
                let due = schedule.due_ns(self.samples);
                if !self.wait_until(due, *pause)? {
                    break;
                }
                due_ns = Some(due);
            } else if self.batch.len() == 0 && !self.wait(Duration::ZERO)? {
                // Once for each message is enough.
                break;
            }
            self.push_sample(due_ns);
            let is_full = self.batch.len() == self.options.batching.samples();
            if is_full || self.samples == self.options.iterations {
                let ping = self.ping;
                if !self.send_message()? {
                    break;
                }
                self.show_progress();
                self.show_cache_stats();
                if let Some(ping) = ping.filter(|_| self.options.latency_test)
                    && !self.wait_for_echo(&ping)?
                {
                    break;
                }
            }
            if let Some(pause) = self.options.pause
                && !self.pause(pause)?
            {
                break;
            }
        }
        // A batch that a pause or a rate left open at the end of the time.
        if self.batch.len() > 0 {
            self.flush()?;
        }
        self.ends.complete();
        Ok(())
    }

    /// Waits until a sample is due; returns whether the test goes on.
    fn wait_until(&mut self, due_ns: u64, pause: Pause) -> Result<bool> {
        loop {
            let now = now_ns();
            let left = due_ns.saturating_sub(now);
            let limit = match pause {
                Pause::Sleep => left,
                Pause::Spin => {
                    while now_ns() < now.saturating_add(left.min(SPIN_NS)) {
                        std::hint::spin_loop();
                    }
                    0
                }
            };
            if !self.wait(Duration::from_nanos(limit))? {
                return Ok(false);
            }
            if now_ns() >= due_ns {
                return Ok(true);
            }
        }
    }

    /// Adds a sample to the batch.
    fn push_sample(&mut self, due_ns: Option<u64>) {
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
        let mut subscriber = NO_ECHO;
        if let Some(target) = target {
            self.ping = Some(Ping { sequence, stamp_ns, due_ns, target });
            self.pings += 1;
            subscriber = self.peers.subscribers[target].id as i32;
        }
        self.batch.push(Header {
            key,
            publisher: common.id,
            sequence,
            stamp_ns,
            target: subscriber,
            length: 0,
        });
        self.samples += 1;
    }

    /// The subscriber that must echo the next sample, by its index. Every `latencyCount` messages
    /// one sample is a ping, in a batch at a position that moves on; the subscribers take turns.
    fn ping_target(&self) -> Option<usize> {
        let is_due = self.messages.is_multiple_of(self.options.latency_count);
        if self.options.common.id != 0 || self.ping.is_some() || !is_due {
            return None;
        }
        let position = self.pings % self.options.batching.samples() as u64;
        let is_last = self.samples + 1 == self.options.iterations;
        if self.batch.len() as u64 != position && !is_last {
            return None;
        }
        Some((self.pings % self.peers.subscribers.len() as u64) as usize)
    }

    /// Sends the batch when the queue has room for it; returns whether it was sent. It is not if the
    /// test ends before that, and its samples do not count then.
    fn send_message(&mut self) -> Result<bool> {
        while self.is_queue_full() {
            if !self.wait(QUEUE_PAUSE)? {
                return Ok(self.drop_batch());
            }
        }
        self.flush()
    }

    fn is_queue_full(&self) -> bool {
        self.options.queue_limit().is_some_and(|limit| self.peers.outstanding() >= limit)
    }

    /// Sends the batch; see [`send_message`](Self::send_message).
    fn flush(&mut self) -> Result<bool> {
        let samples = self.batch.len() as u64;
        let message = self.batch.take();
        self.messages += 1;
        let ping = self.ping.take();
        let is_sent = self.ends.send(&self.peers, &message, ping.as_ref())?;
        if !is_sent {
            self.samples = self.samples.saturating_sub(samples);
        }
        Ok(is_sent)
    }

    /// Drops the batch, which is not sent.
    fn drop_batch(&mut self) -> bool {
        // Initialization pings are no samples.
        self.samples = self.samples.saturating_sub(self.batch.len() as u64);
        self.batch.take();
        self.ping = None;
        false
    }

    /// Waits for the echo of a ping; returns whether the test goes on.
    fn wait_for_echo(&mut self, ping: &Ping) -> Result<bool> {
        let channel = self.peers.subscribers[ping.target].channel;
        let waiting = Clock::start();
        let is_reliable = self.options.common.is_reliable();
        // An echo can have come in a wait for room to send to further subscribers.
        while self.peers.recorder().awaits(ping) {
            let left = ECHO_LIMIT.saturating_sub(waiting.elapsed());
            if left.is_zero() && !is_reliable {
                return Ok(true);
            }
            let limit = if is_reliable { ECHO_LIMIT } else { left };
            self.peers.receive(channel, limit)?;
            // Other messages, such as reports of the queue, come between.
            if self.peers.recorder().awaits(ping) && !self.wait(Duration::ZERO)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Shows that the test goes on, unless rows of echoes do.
    fn show_progress(&mut self) {
        if self.progress.is_due() {
            let rows = if self.options.common.intervals { self.peers.recorder().rows() } else { 0 };
            match std::mem::replace(&mut self.rows, rows) == rows {
                true => self.progress.show(self.samples),
                false => self.progress.skip(),
            }
        }
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
