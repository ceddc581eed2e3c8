//! The task of an open connection, which reports its events in order.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use super::ack_state::AckState;
use super::files::send_file;
use super::{CLOSING, OPEN, Session};
use crate::connection::{CloseCause, CloseKind, Connection, Incoming};
use crate::event::Event;

/// Messages delivered before other tasks run.
const MAX_PER_TURN: usize = 64;
/// Interval at which the ideal length is updated from the path MTU.
const TICK: Duration = Duration::from_secs(1);
/// Interval of the first 40 updates: path MTU discovery completes in the first round trips.
const FIRST_TICK: Duration = Duration::from_millis(50);
/// Maximum time that a stopped connection gives data in flight to arrive.
const LINGER: Duration = Duration::from_secs(1);

/// Why the event loop ended.
enum End {
    Stopped,
    Finished,
    Closed(CloseCause),
}

impl Session {
    /// Runs an accepted connection. Waits for a callback before it reads, so that no message is
    /// lost.
    pub(crate) async fn run_accepted(self: Arc<Self>, connection: Connection) {
        let mut tick = interval(TICK);
        while !self.has_callback() {
            if self.is_ended() {
                return;
            }
            if self.stop_requested.load(Ordering::SeqCst) || connection.has_ended() {
                self.end();
                return;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                _ = tick.tick() => {}
            }
        }
        self.run(connection).await;
    }

    /// Runs an established connection from ESTABLISHED to the last event.
    pub(super) async fn run(self: &Arc<Self>, connection: Connection) {
        self.emit(Event::Established).await;
        self.emit(Event::Writable).await;
        let files = tokio::spawn(self.clone().run_files(connection.clone()));
        let end = self.serve(&connection).await;
        files.abort();
        // The last event says that nothing can be sent any more: that must be true in its callback, too.
        let _ = self.state.compare_exchange(OPEN, CLOSING, Ordering::SeqCst, Ordering::SeqCst);
        // No event of a channel follows the last event of its connection.
        self.channels.end();
        match end {
            End::Stopped => {
                let linger = LINGER.min(self.config.timeout);
                let _ = timeout(linger, connection.finish()).await;
                connection.close();
                self.fail("closed by this program");
                self.emit(Event::Closed).await;
            }
            End::Finished => {
                self.fail("closed by the peer");
                self.emit(Event::ShutdownByPeer).await;
            }
            End::Closed(cause) => {
                self.fail(&cause.text);
                let has_unacknowledged = connection.stats().buffers.send_bytes > 0;
                match cause.kind {
                    CloseKind::Peer => self.emit(Event::ShutdownByPeer).await,
                    // The peer did not acknowledge data, so it is gone.
                    CloseKind::Idle if has_unacknowledged => self.emit(Event::ShutdownByPeer).await,
                    CloseKind::Local | CloseKind::Idle => self.emit(Event::Closed).await,
                    CloseKind::TimedOut | CloseKind::Untrusted | CloseKind::Error => {
                        self.emit(Event::Error).await;
                        self.emit(Event::Closed).await;
                    }
                }
            }
        }
        tracing::debug!(reason = self.error(), "connection ended");
        self.end();
    }

    /// Sends the queued files one after the other.
    async fn run_files(self: Arc<Self>, connection: Connection) {
        loop {
            let path = self.files.next().await;
            let result =
                send_file(&connection, path, || self.ideal_length(), || self.note_sent()).await;
            let is_sent = result.is_ok();
            self.files.complete(result);
            if is_sent {
                // An empty file must be reported as acknowledged too.
                self.has_new_data.store(true, Ordering::SeqCst);
            }
            self.wake.notify_one();
        }
    }

    async fn serve(self: &Arc<Self>, connection: &Connection) -> End {
        let mut ack_state = AckState::Idle;
        let mut is_full = false;
        // Number of messages sent at the last SEND_COMPLETE.
        let mut complete_at = None;
        let mut tick = interval(FIRST_TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ticks = 0u32;
        let mut delivered = 0;
        loop {
            if self.stop_requested.load(Ordering::SeqCst) || self.is_ended() {
                return End::Stopped;
            }
            if self.is_blocked.load(Ordering::SeqCst) && !is_full {
                is_full = true;
                self.emit(Event::BufferFull).await;
                continue;
            }
            if ack_state != AckState::Waiting && self.has_new_data.swap(false, Ordering::SeqCst) {
                ack_state = AckState::Waiting;
            }
            let file_result = self.files.pop_result();
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
            if delivered >= MAX_PER_TURN {
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
                    self.update_ideal_length(connection).await;
                }
                () = connection.writable(), if is_full => {
                    is_full = false;
                    self.is_blocked.store(false, Ordering::SeqCst);
                    self.emit(Event::Writable).await;
                }
                () = sleep_until(ack_state.until().unwrap_or_else(tokio::time::Instant::now)),
                    if ack_state.until().is_some() =>
                {
                    let sent = self.sent.load(Ordering::SeqCst);
                    if !self.files.is_empty() {
                        // The sender waits for the disk, and more messages follow.
                        ack_state = AckState::all_acknowledged(sent);
                        continue;
                    }
                    let (next, report) = ack_state.on_delay_over(sent);
                    ack_state = next;
                    if let Some(first) = report {
                        if first && complete_at.replace(sent) != Some(sent) {
                            self.emit(Event::SendComplete).await;
                        }
                        if connection.is_reliable() {
                            self.emit(Event::AllDataAcked).await;
                        }
                    }
                }
                // If `flush` fails, `recv` returns the reason.
                true = connection.flush(), if ack_state == AckState::Waiting => {
                    ack_state = AckState::all_acknowledged(self.sent.load(Ordering::SeqCst));
                }
                incoming = connection.recv() => match incoming {
                    Incoming::Message(message) =>
                        delivered += self.deliver(connection, message).await,
                    Incoming::Finished => return End::Finished,
                    Incoming::Closed(cause) => return End::Closed(cause),
                },
            }
        }
    }

    /// Delivers a message and those that have already arrived. Returns their number.
    async fn deliver(self: &Arc<Self>, connection: &Connection, first: Bytes) -> usize {
        let mut next = Some(first);
        let mut count = 0;
        while let Some(message) = next {
            let length = c_int::try_from(message.len()).unwrap_or(c_int::MAX);
            self.emit_with(Event::DataReceived, Some(message), length).await;
            count += 1;
            let goes_on = count < MAX_PER_TURN && !self.stop_requested.load(Ordering::SeqCst);
            next = if goes_on { connection.try_recv() } else { None };
        }
        count
    }

    async fn update_ideal_length(self: &Arc<Self>, connection: &Connection) {
        let ideal = connection.ideal_length();
        if self.ideal.swap(ideal, Ordering::Relaxed) != ideal {
            self.emit_with(Event::IdealBufferLength, None, ideal as c_int).await;
        }
    }
}
