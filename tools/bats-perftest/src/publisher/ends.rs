//! When a test ends, the wait of all its phases, and sends, which can wait.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;

use super::peers::Peers;
use super::pings::Ping;
use crate::channel::Sent;
use crate::clock::Clock;
use crate::console::print;
use crate::signals;

/// Longest pause before a wait looks at peers, signals and time again.
const MAX_WAIT: Duration = Duration::from_millis(50);
/// After a signal the subscribers have this time to confirm the end.
const INTERRUPTED_LIMIT: Duration = Duration::from_secs(3);
/// After the last sample the subscribers must take something within this time.
const STALLED_LIMIT: Duration = Duration::from_secs(30);
/// Interval at which the progress of the subscribers is looked at.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Timer,
    Signal,
    Count,
}

/// The end conditions of a test.
#[derive(Debug)]
pub(super) struct Ends {
    execution_time: Option<Duration>,
    /// Since the first sample.
    clock: Option<Clock>,
    ended: Option<Ended>,
    since_signal: Option<Clock>,
    /// The last progress of the subscribers after the end.
    progress: Option<(u64, Clock)>,
    looked: Option<Clock>,
}

impl Ends {
    pub(super) fn new(execution_time: Option<Duration>) -> Self {
        Self {
            execution_time,
            clock: None,
            ended: None,
            since_signal: None,
            progress: None,
            looked: None,
        }
    }

    /// The execution time begins.
    pub(super) fn start(&mut self) {
        self.clock = Some(Clock::start());
    }

    /// All samples have been sent.
    pub(super) fn complete(&mut self) {
        self.ended.get_or_insert(Ended::Count);
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// Waits for at most `limit`, zero to look only, and returns whether the test goes on. Handles what
    /// arrives meanwhile. All waits of a publisher are made of this one, so that each of them notices
    /// what ends a test.
    ///
    /// # Errors
    /// A subscriber has died or left, or does not let the test end.
    pub(super) fn wait(&mut self, peers: &Peers, limit: Duration) -> Result<bool> {
        peers.wait(limit.min(MAX_WAIT))?;
        if self.since_signal.is_none() && signals::requested() {
            print("Interrupted.");
            self.since_signal = Some(Clock::start());
            self.ended.get_or_insert(Ended::Signal);
        }
        if self.ended.is_none()
            && let (Some(clock), Some(time)) = (&self.clock, self.execution_time)
            && clock.elapsed() >= time
        {
            self.ended = Some(Ended::Timer);
        }
        if self.ended.is_some() {
            self.check_progress(peers)?;
        }
        Ok(self.ended.is_none())
    }

    /// Sends a message to every subscriber, with the ping that it contains; waits as long as one of them
    /// takes no more. Returns whether it was sent: it is not if the test ends before the first one
    /// has taken it, unless it is the end mark.
    ///
    /// # Errors
    /// As those of [`wait`](Self::wait).
    pub(super) fn send(
        &mut self,
        peers: &Peers,
        message: &Bytes,
        ping: Option<&Ping>,
    ) -> Result<bool> {
        for (index, channel) in peers.channels.iter().enumerate() {
            // The latency of a ping counts from when its subscriber could have it.
            let ping = ping.filter(|ping| peers.subscribers[ping.target].channel == index);
            let on_attempt = || ping.into_iter().for_each(|ping| peers.recorder().on_ping(ping));
            loop {
                match channel.send(message, on_attempt) {
                    Ok(Sent::Done) => break,
                    Ok(Sent::Blocked) => {
                        let goes_on = self.wait(peers, Duration::ZERO)?;
                        if !goes_on && index == 0 && !peers.is_ending.load(Ordering::Acquire) {
                            return Ok(false);
                        }
                    }
                    Err(_) if peers.has_left_channel(index) => break,
                    Err(error) => bail!("{}: {error}", peers.name_of(index)),
                }
            }
        }
        peers.on_sent();
        Ok(true)
    }

    /// Fails if the subscribers do not let the test end.
    fn check_progress(&mut self, peers: &Peers) -> Result<()> {
        if self.since_signal.is_some_and(|signal| signal.elapsed() > INTERRUPTED_LIMIT) {
            bail!("interrupted, and {} did not confirm the end", peers.missing());
        }
        if self.looked.is_some_and(|looked| looked.elapsed() < PROGRESS_INTERVAL) {
            return Ok(());
        }
        self.looked = Some(Clock::start());
        let now = peers.progress();
        match &self.progress {
            Some((before, since)) if *before == now => {
                if since.elapsed() > STALLED_LIMIT {
                    bail!(
                        "{} has taken nothing for {} s and did not confirm the end",
                        peers.missing(),
                        STALLED_LIMIT.as_secs()
                    );
                }
            }
            _ => self.progress = Some((now, Clock::start())),
        }
        Ok(())
    }
}
