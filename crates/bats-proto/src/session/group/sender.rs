//! The source of a flow to a group.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::{GroupOptions, GroupSenderStats, MAX_GROUP_SYMBOL};
use crate::config::PresharedKey;
use crate::crypto::GroupKeys;
use crate::error::SendError;
use crate::flow::{PathView, TimelyParameters, TimelySender};
use crate::session::limits::WINDOW_CAP;
use crate::session::sending::MAX_DEADLINE;
use crate::session::streams::{Sending, TimelyOutgoing};
use crate::wire::announcement::{ANNOUNCEMENT_SALT_LEN, Announcement, AnnouncementHeader};
use crate::wire::flow::{FLOW_HEADER_LEN, FlowKey};
use crate::wire::parameters::symbol_size_for;
use crate::wire::short_header::PacketKind;

/// Time of the second announcement after the first one, which doubles with each further one; then they are sent at the
/// longest interval. Until a member has one it reads nothing.
const FIRST_INTERVAL: Duration = Duration::from_millis(10);
const LONGEST_INTERVAL: Duration = Duration::from_secs(1);
/// Announcements of the end: they are sent within 320 ms.
const END_ANNOUNCEMENTS: u32 = 7;

/// The source of a flow to a group.
#[derive(Debug)]
pub(crate) struct GroupSender {
    flow: FlowKey,
    options: GroupOptions,
    outgoing: TimelyOutgoing,
    keys: GroupKeys,
    salt: [u8; ANNOUNCEMENT_SALT_LEN],
    code_seed: u64,
    instance: u64,
    /// When the next announcement is due.
    announce_at: Timestamp,
    /// Announcements since they were last repeated quickly.
    repeats: u32,
    stats: GroupSenderStats,
    /// Whether a message was refused since the last [`GroupSender::takes_writable`].
    is_blocked: bool,
}

impl GroupSender {
    /// A source of this flow. `salt` and `code_seed` are random, `instance` is that of the endpoint. `None` if the
    /// keys cannot be derived.
    pub(crate) fn new(
        now: Timestamp,
        flow: FlowKey,
        key: &PresharedKey,
        options: GroupOptions,
        (salt, code_seed, instance): ([u8; ANNOUNCEMENT_SALT_LEN], u64, u64),
    ) -> Option<Self> {
        let parameters = TimelyParameters {
            max_symbol_size: usize::from(MAX_GROUP_SYMBOL),
            window_cap: WINDOW_CAP,
            seed: code_seed,
            // Each hop repairs its own losses; the source knows those of the first one only.
            goal: None,
        };
        Some(Self {
            flow,
            options,
            outgoing: TimelyOutgoing::new(TimelySender::new(parameters)),
            keys: GroupKeys::derive(key, &salt, flow)?,
            salt,
            code_seed,
            instance,
            announce_at: now,
            repeats: 0,
            stats: GroupSenderStats::default(),
            is_blocked: false,
        })
    }

    /// The flow that it sends.
    pub(crate) fn flow(&self) -> FlowKey {
        self.flow
    }

    /// Accepts a message.
    pub(crate) fn send(&mut self, now: Timestamp, message: Bytes) -> Result<(), SendError> {
        if self.outgoing.is_finished() {
            return Err(SendError::Finished);
        }
        let (size, limit) = (message.len(), self.options.max_message_size);
        if size > limit {
            return Err(SendError::TooLarge { size, limit });
        }
        // Expired messages make room.
        self.handle_timeout(now);
        let held = self.outgoing.queued_bytes();
        if held > 0 && held.saturating_add(size) > self.options.send_budget {
            self.is_blocked = true;
            return Err(SendError::Blocked(message));
        }
        if self.stats.messages == 0 {
            // The members may have joined since the sender was opened.
            self.announce_soon(now);
        }
        self.stats.messages += 1;
        self.outgoing.push(message, now + self.options.deadline.min(MAX_DEADLINE));
        Ok(())
    }

    /// No messages follow. What is queued is sent; then the end is announced.
    pub(crate) fn finish(&mut self, now: Timestamp) {
        self.outgoing.finish();
        self.announce_soon(now);
    }

    /// Whether the end was announced, so that nothing is left to do.
    pub(crate) fn is_over(&self) -> bool {
        self.outgoing.end().is_some() && self.repeats >= END_ANNOUNCEMENTS
    }

    fn announce_soon(&mut self, now: Timestamp) {
        (self.announce_at, self.repeats) = (now, 0);
    }

    /// Whether there may be a packet to send.
    pub(crate) fn has_data(&self) -> bool {
        self.outgoing.has_data()
    }

    /// Whether there is room again after a message was refused; reported once.
    pub(crate) fn takes_writable(&mut self) -> bool {
        let has_room = self.outgoing.queued_bytes() <= self.options.send_budget / 2;
        has_room && core::mem::take(&mut self.is_blocked)
    }

    /// Writes the next coded packet, for packets of `packet` bytes, to `out`.
    pub(crate) fn poll(
        &mut self,
        now: Timestamp,
        packet: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let had_end = self.outgoing.end().is_some();
        let packet = u16::try_from(packet).unwrap_or(u16::MAX);
        let size = symbol_size_for(packet.saturating_sub(FLOW_HEADER_LEN as u16));
        let size = size.min(usize::from(MAX_GROUP_SYMBOL));
        let seal = Some(&mut self.keys.symbols);
        let kind = self.outgoing.poll(now, size, &path(), None, seal, out);
        self.stats.symbols += u64::from(kind.is_some());
        if !had_end && self.outgoing.end().is_some() {
            self.announce_soon(now);
        }
        kind
    }

    /// Writes the announcement that is due.
    pub(crate) fn announcement(&mut self, now: Timestamp) -> Option<Vec<u8>> {
        if self.announce_at > now || self.is_over() {
            return None;
        }
        let interval =
            FIRST_INTERVAL * 2_u32.saturating_pow(self.repeats.saturating_sub(1).min(16));
        self.announce_at = now + interval.min(LONGEST_INTERVAL);
        self.repeats += 1;
        let number = self.stats.announcements;
        self.stats.announcements += 1;
        let position = self.outgoing.position();
        let fields = Announcement {
            instance: self.instance,
            code_seed: self.code_seed,
            max_symbol_size: MAX_GROUP_SYMBOL,
            first_symbol: position.symbols,
            first_message: position.messages,
            is_end: self.outgoing.end().is_some(),
        };
        let mut packet = AnnouncementHeader { salt: self.salt, number }.encode();
        self.keys.seal(number, fields.encode(), &mut packet).then_some(packet)
    }

    /// When [`GroupSender::handle_timeout`] and [`GroupSender::announcement`] are to be called.
    pub(crate) fn next_timeout(&self) -> Timestamp {
        self.outgoing.next_timeout().map_or(self.announce_at, |at| at.min(self.announce_at))
    }

    /// Drops what has expired.
    pub(crate) fn handle_timeout(&mut self, now: Timestamp) {
        let had_end = self.outgoing.end().is_some();
        self.outgoing.on_timeout(now, &path());
        if !had_end && self.outgoing.end().is_some() {
            self.announce_soon(now);
        }
    }

    /// Counters.
    pub(crate) fn stats(&self) -> GroupSenderStats {
        GroupSenderStats { expired: self.outgoing.expired(), ..self.stats }
    }
}

/// The path of a flow without repairs of its own: nothing depends on it.
fn path() -> PathView {
    PathView {
        rate_bytes_per_second: 0,
        smoothed_rtt: Duration::ZERO,
        ack_interval: Duration::ZERO,
        loss: 0.0,
        burst_factor: 1.0,
        loss_packets: 0,
        queue_delay: Duration::ZERO,
    }
}
