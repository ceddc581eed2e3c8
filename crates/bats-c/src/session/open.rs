//! An open connection: events in order, until the last.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::acks::Acks;
use super::{Session, lock};
use crate::event::Event;
use crate::link::{How, Incoming, Link, Loss};

/// Messages delivered before others get a turn.
const MOST_AT_ONCE: usize = 64;
/// How often the path's size is looked at.
const TICK: Duration = Duration::from_secs(1);
/// The first looks come sooner: the path's size is found in the first round trips.
const FIRST_TICK: Duration = Duration::from_millis(50);
/// What a stopped connection gives data that is still on its way, if its time-out is longer.
const LINGER: Duration = Duration::from_secs(1);

/// Why the loop was left.
enum End {
    Stopped,
    Finished,
    Lost(Loss),
}

impl Session {
    /// Waits for a callback before anything is read, so that nothing is lost.
    pub(crate) async fn run_accepted(self: Arc<Self>, link: Link) {
        let mut tick = interval(TICK);
        while !self.has_callback() {
            if self.is_ended() {
                return;
            }
            if self.stop_wanted.load(Ordering::SeqCst) || link.has_ended() {
                self.end();
                return;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                _ = tick.tick() => {}
            }
        }
        self.run(link).await;
    }

    /// From ESTABLISHED to the last event.
    pub(super) async fn run(self: &Arc<Self>, link: Link) {
        self.emit(Event::Established).await;
        self.emit(Event::Writable).await;
        let files = tokio::spawn(self.clone().run_files(link.clone()));
        let end = self.serve(&link).await;
        files.abort();
        match end {
            End::Stopped => {
                let patience = LINGER.min(self.config.timeout);
                let _ = timeout(patience, link.finish()).await;
                link.close();
                self.fail("closed by this program");
                self.emit(Event::Closed).await;
            }
            End::Finished => {
                self.fail("closed by the peer");
                self.emit(Event::ShutdownByPeer).await;
            }
            End::Lost(loss) => {
                self.fail(&loss.text);
                let unheard = link.stats().send_buffer_bytes > 0;
                match loss.how {
                    How::Peer => self.emit(Event::ShutdownByPeer).await,
                    // Silence of a peer that should have answered.
                    How::Idle if unheard => self.emit(Event::ShutdownByPeer).await,
                    How::Here | How::Idle => self.emit(Event::Closed).await,
                    How::TimedOut | How::Broken => {
                        self.emit(Event::Error).await;
                        self.emit(Event::Closed).await;
                    }
                }
            }
        }
        tracing::debug!(reason = self.error(), "connection ended");
        self.end();
    }

    async fn serve(self: &Arc<Self>, link: &Link) -> End {
        let mut acks = Acks::Clean;
        let mut is_full = false;
        // The count of messages at the last SEND_COMPLETE.
        let mut complete_at = None;
        let mut tick = interval(FIRST_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0u32;
        let mut delivered = 0;
        loop {
            if self.stop_wanted.load(Ordering::SeqCst) || self.is_ended() {
                return End::Stopped;
            }
            if self.refused.load(Ordering::SeqCst) && !is_full {
                is_full = true;
                self.emit(Event::BufferFull).await;
                continue;
            }
            if acks != Acks::Wanted && self.dirty.swap(false, Ordering::SeqCst) {
                acks = Acks::Wanted;
            }
            let file_result = lock(&self.details).file_results.pop_front();
            if let Some(result) = file_result {
                match result {
                    Ok(()) => {
                        complete_at = Some(self.sent.load(Ordering::SeqCst));
                        self.emit(Event::SendComplete).await;
                    }
                    Err(text) => {
                        self.fail(&text);
                        self.emit(Event::SendDataError).await;
                    }
                }
                continue;
            }
            if delivered >= MOST_AT_ONCE {
                delivered = 0;
                tokio::task::yield_now().await;
            }
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                _ = tick.tick() => {
                    ticks += 1;
                    if ticks == 40 {
                        tick = interval(TICK);
                        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
                    }
                    self.look_at_path(link).await;
                }
                () = link.writable(), if is_full => {
                    is_full = false;
                    self.refused.store(false, Ordering::SeqCst);
                    self.emit(Event::Writable).await;
                }
                () = sleep_until(acks.until().unwrap_or_else(tokio::time::Instant::now)),
                    if acks.until().is_some() =>
                {
                    let sent = self.sent.load(Ordering::SeqCst);
                    if !lock(&self.details).files.is_empty() {
                        // The pause is the disk's: more follows.
                        acks = Acks::all_acknowledged(sent);
                        continue;
                    }
                    let (next, tell) = acks.time_is_over(sent);
                    acks = next;
                    if let Some(first) = tell {
                        if first && complete_at.replace(sent) != Some(sent) {
                            self.emit(Event::SendComplete).await;
                        }
                        if link.is_reliable() {
                            self.emit(Event::AllDataAcked).await;
                        }
                    }
                }
                // What is lost shows in what comes in.
                true = link.flush(), if acks == Acks::Wanted => {
                    acks = Acks::all_acknowledged(self.sent.load(Ordering::SeqCst));
                }
                incoming = link.recv() => match incoming {
                    Incoming::Message(message) => delivered += self.deliver(link, message).await,
                    Incoming::Finished => return End::Finished,
                    Incoming::Lost(loss) => return End::Lost(loss),
                },
            }
        }
    }

    /// Delivers a message and those that are there already; how many.
    async fn deliver(self: &Arc<Self>, link: &Link, first: Bytes) -> usize {
        let mut next = Some(first);
        let mut count = 0;
        while let Some(message) = next {
            let length = c_int::try_from(message.len()).unwrap_or(c_int::MAX);
            self.emit_with(Event::DataReceived, Some(message), length).await;
            count += 1;
            let goes_on = count < MOST_AT_ONCE && !self.stop_wanted.load(Ordering::SeqCst);
            next = if goes_on { link.try_recv() } else { None };
        }
        count
    }

    async fn look_at_path(self: &Arc<Self>, link: &Link) {
        let ideal = link.ideal_length();
        if self.ideal.swap(ideal, Ordering::Relaxed) != ideal {
            self.emit_with(Event::IdealBufferLength, None, ideal as c_int).await;
        }
    }
}
