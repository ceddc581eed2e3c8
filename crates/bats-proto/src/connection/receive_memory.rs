//! Memory for received data of a connection: little at its start, more with use, and less again.

use core::time::Duration;

use bats_types::Timestamp;

use super::Connection;
use super::setup::{BASE_MEMORY, min_receive_budget, receive_budget};
use super::streams::Streams;
use crate::error::CloseReason;

/// The memory of a connection is a multiple of this, so that not every packet changes it.
const STEP: usize = 64 << 10;
/// Memory that is free before a packet is taken: more than a symbol of an MTU of 1500 bytes takes as
/// 470 messages of three bytes on the wire, or as an equation.
const HEADROOM: usize = 64 << 10;
/// Time for which the packets of a peer may be refused for lack of memory. It is the default idle
/// timeout: an application expects to be notified of a failure within it.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Memory that the endpoint has charged for received data of a connection.
#[derive(Debug)]
pub(super) struct ReceiveMemory {
    /// Bytes that may be held now.
    bytes: usize,
    /// The endpoint has less memory than the connection needs.
    is_short: bool,
    /// Since when every data packet has been refused for lack of memory.
    refused_since: Option<Timestamp>,
}

impl ReceiveMemory {
    pub(super) fn new() -> Self {
        Self { bytes: BASE_MEMORY, is_short: false, refused_since: None }
    }
}

impl Connection {
    /// Bytes of received data that the connection may hold now.
    pub(crate) fn memory(&self) -> usize {
        self.memory.bytes
    }

    /// Bytes of received data that the connection may hold if there is memory. Its credit is for
    /// these.
    pub(crate) fn memory_limit(&self) -> usize {
        receive_budget(&self.config)
    }

    /// Whether the endpoint has less memory than the connection needs.
    pub(crate) fn is_short_of_memory(&self) -> bool {
        self.memory.is_short
    }

    /// Bytes of memory that the connection needs for what it holds, the rest of the message under
    /// assembly, and the next packet; `None` before it is established.
    pub(crate) fn memory_demand(&self) -> Option<usize> {
        let streams = self.streams.as_ref().filter(|_| self.is_established())?;
        let limit = self.memory_limit();
        let needed = match streams.incoming.holds_blocks(&streams.inbox) {
            // A block needs much more while it is solved than when its packets arrive.
            Some(true) => limit,
            // Only structures of batches are held.
            Some(false) => self.memory_for_packet(),
            None => self.memory_for_packet() + streams.incoming.bytes_missing(),
        };
        Some(needed.next_multiple_of(STEP).clamp(BASE_MEMORY, limit))
    }

    /// Sets the memory of the connection.
    pub(crate) fn set_memory(&mut self, now: Timestamp, bytes: usize, is_short: bool) {
        let is_retried = bytes > self.memory.bytes || self.memory.is_short != is_short;
        self.memory.bytes = bytes;
        self.memory.is_short = is_short;
        if is_retried {
            // Symbols may have waited for room, and the credit may have been limited.
            self.take_symbols(now);
            self.update_application();
        }
    }

    /// What is held when another packet has been taken.
    fn memory_for_packet(&self) -> usize {
        let growth = self.streams.as_ref().map_or(0, |streams| streams.incoming.growth());
        self.receive_buffer_bytes() + growth + HEADROOM
    }

    /// Whether there is memory for a data packet. Otherwise the caller treats it as lost: the peer
    /// sends it again and slows down. Credit alone does not ensure memory, because the credit of
    /// all connections together exceeds the endpoint's memory.
    pub(super) fn has_memory_for_packet(&mut self, now: Timestamp) -> bool {
        // At its limit the connection is limited by credit alone.
        if self.memory.bytes >= self.memory_limit() || self.streams.is_none() {
            return true;
        }
        while self.memory_for_packet() > self.memory.bytes {
            let streams = self.streams.as_mut();
            if !streams.is_some_and(|streams| streams.incoming.free_some(&mut streams.inbox)) {
                return self.refuse_packet(now);
            }
        }
        self.memory.refused_since = None;
        true
    }

    fn refuse_packet(&mut self, now: Timestamp) -> bool {
        self.counters.refused_for_memory += 1;
        self.last_received_at = now;
        let since = *self.memory.refused_since.get_or_insert(now);
        // An application that does not read is itself the cause.
        let is_unread = self.streams.as_ref().is_some_and(|streams| !streams.inbox.is_empty());
        if now - since >= MAX_WAIT && !is_unread && self.state.is_open() {
            let missing = self.memory_for_packet() - self.memory.bytes;
            let reason = CloseReason::Memory(missing);
            self.begin_close(now, false, 5, &reason.to_string(), reason);
        }
        false
    }

    /// Bytes that complete messages may occupy, and whether more of them replace the oldest ones in
    /// modes that do not repair everything.
    pub(super) fn inbox_room(&self) -> (usize, bool) {
        let limit = self.memory_limit();
        let unread = self.streams.as_ref().map_or(0, |streams| streams.inbox.bytes_held());
        let is_at_limit = self.memory.bytes >= limit;
        // Symbols may wait within the credit that was given before the messages took memory.
        let others = self.receive_buffer_bytes() - unread;
        (self.memory.bytes.saturating_sub(others), is_at_limit || self.memory.is_short)
    }

    /// Whether symbols wait although there is room.
    pub(super) fn has_room_for_ready(&self) -> bool {
        let (room, _) = self.inbox_room();
        let has_room =
            |streams: &Streams| streams.incoming.has_ready() && streams.inbox.has_room(room);
        self.streams.as_ref().is_some_and(has_room)
    }

    /// Whether symbols wait for room although the endpoint may have more memory.
    pub(crate) fn waits_for_charge(&self) -> bool {
        let (_, is_final) = self.inbox_room();
        !is_final && self.streams.as_ref().is_some_and(|streams| streams.incoming.has_ready())
    }

    /// The part of the limit for which no more credit is given while memory is short.
    pub(super) fn withheld_memory(&self) -> usize {
        let usable = self.memory.bytes.max(min_receive_budget(&self.config));
        if self.memory.is_short { self.memory_limit().saturating_sub(usable) } else { 0 }
    }
}
