//! The subscribers of a publisher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;

use super::pings::Recorder;
use crate::channel::{Channel, DEAD_AFTER, wait_for_datagram};
use crate::cli::PublisherOptions;
use crate::clock::now_ns;
use crate::console::print;
use crate::wire::{Control, next_sample, ping_target};

/// Longest wait of a receiving thread before it looks whether the test is over.
const RECEIVE_LIMIT: Duration = Duration::from_millis(100);
/// Longest wait for a message of one of several connections.
const SHARED_WAIT: Duration = Duration::from_millis(2);
/// Shortest time between two looks at what has arrived, without a wait.
const LOOK_INTERVAL_NS: u64 = 10_000_000;
/// Messages of a channel that are handled before others have their turn.
pub(super) const MAX_READ: usize = 64;

/// A subscriber.
#[derive(Debug)]
pub(super) struct Subscriber {
    pub(super) id: u32,
    /// Its channel.
    pub(super) channel: usize,
    /// Messages that it has taken.
    taken: AtomicU64,
    /// It has said goodbye.
    has_left: AtomicBool,
    heard_ns: AtomicU64,
}

impl Subscriber {
    pub(super) fn new(id: u32, channel: usize) -> Self {
        Self {
            id,
            channel,
            taken: AtomicU64::new(0),
            has_left: AtomicBool::new(false),
            heard_ns: AtomicU64::new(now_ns()),
        }
    }
}

/// All subscribers with their channels.
pub(super) struct Peers {
    pub(super) channels: Vec<Channel>,
    pub(super) subscribers: Vec<Subscriber>,
    recorder: Mutex<Recorder>,
    /// A thread receives from each channel; without them those that wait do it.
    pub(super) has_threads: bool,
    /// An echo says that its subscriber has taken all messages.
    is_ping_pong: bool,
    /// The end mark has been sent: a goodbye is expected.
    pub(super) is_ending: AtomicBool,
    /// The test is over: the threads end.
    pub(super) is_over: AtomicBool,
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
    /// When what has arrived was looked at last, without a wait.
    looked_ns: AtomicU64,
    messages_sent: AtomicU64,
    most_outstanding: AtomicU64,
}

impl Peers {
    pub(super) fn new(
        (channels, subscribers): (Vec<Channel>, Vec<Subscriber>),
        recorder: Recorder,
        options: &PublisherOptions,
    ) -> Self {
        Self {
            channels,
            subscribers,
            recorder: Mutex::new(recorder),
            // In a latency test the sender itself receives, without the time to wake another thread.
            has_threads: !options.latency_test,
            is_ping_pong: options.is_ping_pong(),
            is_ending: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
            looked_ns: AtomicU64::new(0),
            messages_sent: AtomicU64::new(0),
            most_outstanding: AtomicU64::new(0),
        }
    }

    pub(super) fn recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, text: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(text);
        self.has_failed.store(true, Ordering::Release);
    }

    /// Waits for at most `limit`, and handles what arrives.
    ///
    /// # Errors
    /// A subscriber has died or left.
    pub(super) fn wait(&self, limit: Duration) -> Result<()> {
        match self.has_threads {
            true if limit.is_zero() => {}
            true => thread::sleep(limit),
            false if limit.is_zero() && !self.is_look_due() => {}
            false => self.receive_all(limit)?,
        }
        // Of subscribers that have said goodbye nothing is expected.
        if self.has_failed.load(Ordering::Acquire) && !self.all_left() {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            bail!("{}", failure.as_deref().unwrap_or("a subscriber failed"));
        }
        Ok(())
    }

    /// Notes a message that every subscriber has got.
    pub(super) fn on_sent(&self) {
        self.messages_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether it is time to look at what has arrived. Between an echo and the next ping of a latency test
    /// each look would delay the ping.
    fn is_look_due(&self) -> bool {
        let now = now_ns();
        let is_due = now.saturating_sub(self.looked_ns.load(Ordering::Relaxed)) >= LOOK_INTERVAL_NS;
        if is_due {
            self.looked_ns.store(now, Ordering::Relaxed);
        }
        is_due
    }

    /// A number that changes as long as subscribers take messages.
    pub(super) fn progress(&self) -> u64 {
        let taken = self.subscribers.iter().map(|one| one.taken.load(Ordering::Acquire));
        let buffered = self.channels.iter().map(|channel| match channel {
            Channel::Session(connection) => connection.stats().buffers.send_bytes,
            Channel::Datagrams { .. } => 0,
        });
        taken.chain(buffered).fold(0, u64::wrapping_add)
    }

    /// Names a subscriber that has not said goodbye.
    pub(super) fn missing(&self) -> String {
        match self.subscribers.iter().find(|one| !one.has_left.load(Ordering::Acquire)) {
            Some(one) => format!("subscriber {}", one.id),
            None => "a subscriber".to_owned(),
        }
    }

    /// Messages sent that a subscriber has not taken.
    pub(super) fn outstanding(&self) -> u64 {
        let taken = self.subscribers.iter().map(|one| one.taken.load(Ordering::Acquire)).min();
        let sent = self.messages_sent.load(Ordering::Relaxed);
        let outstanding = sent.saturating_sub(taken.unwrap_or(sent));
        self.most_outstanding.fetch_max(outstanding, Ordering::Relaxed);
        outstanding
    }

    pub(super) fn name_of(&self, channel: usize) -> String {
        match self.subscribers.iter().find(|one| one.channel == channel) {
            Some(subscriber) => format!("subscriber {}", subscriber.id),
            None => "subscriber".to_owned(),
        }
    }

    pub(super) fn has_left_channel(&self, channel: usize) -> bool {
        let mut of_channel = self.subscribers.iter().filter(|one| one.channel == channel);
        of_channel.all(|one| one.has_left.load(Ordering::Acquire))
    }

    pub(super) fn all_left(&self) -> bool {
        self.subscribers.iter().all(|one| one.has_left.load(Ordering::Acquire))
    }

    /// Receives from a channel in a thread of its own.
    pub(super) fn receive_until_over(&self, channel: usize) {
        while !self.is_over.load(Ordering::Acquire) {
            if self.receive(channel, RECEIVE_LIMIT).is_err() {
                return;
            }
        }
    }

    /// Handles a message of a channel, if one arrives within `limit`; returns whether one did.
    pub(super) fn receive(&self, channel: usize, limit: Duration) -> Result<bool> {
        let message = self.take(channel, limit)?;
        if let Some(message) = &message {
            self.handle(channel, message);
        }
        Ok(message.is_some())
    }

    fn take(&self, channel: usize, limit: Duration) -> Result<Option<Bytes>> {
        self.channels[channel].receive(limit).inspect_err(|error| {
            if !self.is_over.load(Ordering::Acquire) && !self.has_left_channel(channel) {
                self.fail(format!("{}: {error:#}", self.name_of(channel)));
            }
        })
    }

    /// Handles what has arrived on all channels; waits up to `limit` for it.
    fn receive_all(&self, limit: Duration) -> Result<()> {
        let is_raw = self.channels.iter().any(Channel::is_raw);
        let mut limit = if self.channels.len() > 1 { limit.min(SHARED_WAIT) } else { limit };
        if is_raw && !limit.is_zero() {
            wait_for_datagram(&self.channels, limit);
            limit = Duration::ZERO;
        }
        for channel in 0..self.channels.len() {
            for _ in 0..MAX_READ {
                match self.receive(channel, std::mem::take(&mut limit)) {
                    Ok(true) => {}
                    Ok(false) => break,
                    // After a goodbye the connection may be closed.
                    Err(_) if self.has_left_channel(channel) => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Handles a message of a subscriber.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn handle(&self, channel: usize, message: &[u8]) {
        let Some((header, body)) = next_sample(&mut &message[..]) else { return };
        if header.target >= 0 {
            let id = header.target as u32;
            if let Some(one) = self.find(channel, id) {
                one.heard_ns.store(now_ns(), Ordering::Relaxed);
                if self.is_ping_pong {
                    one.taken.store(self.messages_sent.load(Ordering::Relaxed), Ordering::Release);
                }
            }
            self.recorder().on_echo(&header);
            return;
        }
        // The answer to a ping names no subscriber.
        if header.target == ping_target(true) {
            return;
        }
        let (id, control) = match Control::decode(&header, body) {
            Some(control @ Control::Announcement(announcement)) => {
                (announcement.subscriber, control)
            }
            Some(
                control @ (Control::Goodbye { subscriber, .. }
                | Control::KeepAlive { subscriber }
                | Control::Taken { subscriber, .. }),
            ) => (subscriber, control),
            _ => return,
        };
        let Some(subscriber) = self.find(channel, id) else { return };
        subscriber.heard_ns.store(now_ns(), Ordering::Relaxed);
        match control {
            Control::Taken { messages, .. } => {
                subscriber.taken.fetch_max(messages, Ordering::Release);
            }
            Control::Goodbye { early, .. } if early || !self.is_ending.load(Ordering::Acquire) => {
                self.fail(format!("subscriber {id} has ended the test"));
            }
            Control::Goodbye { .. } => subscriber.has_left.store(true, Ordering::Release),
            _ => {}
        }
    }

    fn find(&self, channel: usize, id: u32) -> Option<&Subscriber> {
        self.subscribers.iter().find(|one| one.id == id && one.channel == channel)
    }

    /// Fails the test if a subscriber on UDP has been silent for too long.
    pub(super) fn find_dead(&self) {
        let limit = DEAD_AFTER.as_nanos() as u64;
        let now = now_ns();
        for subscriber in &self.subscribers {
            let silent = now.saturating_sub(subscriber.heard_ns.load(Ordering::Relaxed));
            let has_left = subscriber.has_left.load(Ordering::Acquire);
            if silent > limit && !has_left && self.channels[subscriber.channel].is_raw() {
                self.fail(format!(
                    "subscriber {}: nothing received for {:.1} s",
                    subscriber.id,
                    DEAD_AFTER.as_secs_f64()
                ));
            }
        }
    }

    /// Prints the state of the send queue and the connections.
    pub(super) fn print_cache_stats(&self) {
        print(&format!(
            "Send queue: {} messages sent, {} not taken now, {} at most",
            self.messages_sent.load(Ordering::Relaxed),
            self.outstanding(),
            self.most_outstanding.load(Ordering::Relaxed)
        ));
        for (index, channel) in self.channels.iter().enumerate() {
            if let Channel::Session(connection) = channel {
                let stats = connection.stats();
                print(&format!(
                    "{}: {} bytes in the send buffer, {} in flight, {} packets sent, {} lost, RTT \
                     {:.3} ms, {} messages expired",
                    self.name_of(index),
                    stats.buffers.send_bytes,
                    stats.congestion.in_flight_bytes,
                    stats.packets.sent,
                    stats.packets.lost,
                    stats.path.smoothed_rtt.as_secs_f64() * 1e3,
                    stats.messages.expired
                ));
            }
        }
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.channels.iter().for_each(Channel::close);
    }
}
