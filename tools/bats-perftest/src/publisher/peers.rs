//! The subscribers of a publisher.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;

use super::pings::Recorder;
use crate::channel::{Channel, DEAD_AFTER, Sent};
use crate::clock::now_ns;
use crate::console::print;
use crate::wire::{Control, next_sample, ping_target};

/// Longest wait of a receiving thread before it looks whether the test is over.
const RECEIVE_LIMIT: Duration = Duration::from_millis(100);

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
    /// The test is over: the threads end.
    pub(super) is_over: AtomicBool,
    has_failed: AtomicBool,
    failure: Mutex<Option<String>>,
    messages_sent: AtomicU64,
    most_outstanding: AtomicU64,
}

impl Peers {
    pub(super) fn new(
        (channels, subscribers): (Vec<Channel>, Vec<Subscriber>),
        recorder: Recorder,
    ) -> Self {
        Self {
            channels,
            subscribers,
            recorder: Mutex::new(recorder),
            is_over: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
            failure: Mutex::default(),
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

    /// Fails if a subscriber has died or left.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) {
            let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            bail!("{}", failure.as_deref().unwrap_or("a subscriber failed"));
        }
        Ok(())
    }

    /// As [`check`](Self::check); of a subscriber that has said goodbye nothing is expected.
    pub(super) fn check_alive(&self) -> Result<()> {
        if self.all_left() { Ok(()) } else { self.check() }
    }

    /// Sends a message to every subscriber. Waits as long as one of them takes no more.
    pub(super) fn send(&self, message: &Bytes) -> Result<()> {
        for (index, channel) in self.channels.iter().enumerate() {
            loop {
                match channel.send(message) {
                    Ok(Sent::Done) => break,
                    Ok(Sent::Blocked) => self.check()?,
                    Err(_) if self.has_left_channel(index) => break,
                    Err(error) => bail!("{}: {error}", self.name_of(index)),
                }
            }
        }
        self.messages_sent.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Messages sent that a subscriber has not taken.
    pub(super) fn outstanding(&self) -> u64 {
        let taken = self.subscribers.iter().map(|one| one.taken.load(Ordering::Acquire)).min();
        let sent = self.messages_sent.load(Ordering::Relaxed);
        let outstanding = sent.saturating_sub(taken.unwrap_or(sent));
        self.most_outstanding.fetch_max(outstanding, Ordering::Relaxed);
        outstanding
    }

    fn name_of(&self, channel: usize) -> String {
        match self.subscribers.iter().find(|one| one.channel == channel) {
            Some(subscriber) => format!("subscriber {}", subscriber.id),
            None => "subscriber".to_owned(),
        }
    }

    fn has_left_channel(&self, channel: usize) -> bool {
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

    /// Receives a message from a channel, if one arrives within `limit`; returns whether it was the
    /// echo of this sample.
    pub(super) fn receive_echo(
        &self,
        channel: usize,
        limit: Duration,
        sequence: u32,
    ) -> Result<bool> {
        let Some(message) = self.take(channel, limit)? else { return Ok(false) };
        let is_echo = next_sample(&mut &message[..])
            .is_some_and(|(header, _)| header.target >= 0 && header.sequence == sequence);
        self.handle(channel, &message);
        Ok(is_echo)
    }

    fn receive(&self, channel: usize, limit: Duration) -> Result<()> {
        if let Some(message) = self.take(channel, limit)? {
            self.handle(channel, &message);
        }
        Ok(())
    }

    fn take(&self, channel: usize, limit: Duration) -> Result<Option<Bytes>> {
        self.channels[channel].receive(limit).inspect_err(|error| {
            if !self.is_over.load(Ordering::Acquire) && !self.has_left_channel(channel) {
                self.fail(format!("{}: {error:#}", self.name_of(channel)));
            }
        })
    }

    /// Handles what has arrived on all channels; waits up to `limit` for it.
    pub(super) fn receive_all(&self, limit: Duration) -> Result<()> {
        for channel in 0..self.channels.len() {
            // After a goodbye the connection may be closed.
            if let Err(error) = self.receive(channel, limit)
                && !self.has_left_channel(channel)
            {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Handles a message of a subscriber.
    fn handle(&self, channel: usize, message: &[u8]) {
        let Some((header, body)) = next_sample(&mut &message[..]) else { return };
        if header.target >= 0 {
            let id = header.target as u32;
            if let Some(one) = self.find(channel, id) {
                one.heard_ns.store(now_ns(), Ordering::Relaxed);
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
            Control::Goodbye { early: true, .. } => {
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
                    stats.send_buffer_bytes,
                    stats.in_flight_bytes,
                    stats.packets_sent,
                    stats.packets_lost,
                    stats.smoothed_rtt.as_secs_f64() * 1e3,
                    stats.messages_expired
                ));
            }
        }
    }

    /// Closes all connections.
    pub(super) fn close(&self) {
        self.channels.iter().for_each(Channel::close);
    }
}
