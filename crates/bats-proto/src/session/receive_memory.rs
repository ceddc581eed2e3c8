//! Memory for received data of a connection: little at its start, more with use, and less again.

use core::time::Duration;

use bats_types::Timestamp;

use super::limits::BASE_MEMORY;

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
    /// Bytes that may be held if the endpoint has the memory.
    limit: usize,
    /// The endpoint has less memory than the connection needs.
    is_short: bool,
    /// Since when every data packet has been refused for lack of memory.
    refused_since: Option<Timestamp>,
}

impl ReceiveMemory {
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: BASE_MEMORY, limit, is_short: false, refused_since: None }
    }

    /// Bytes that may be held now.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes that may be held if the endpoint has the memory.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Raises the limit.
    pub(super) fn raise_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// Whether the endpoint has less memory than the connection needs.
    pub(super) fn is_short(&self) -> bool {
        self.is_short
    }

    /// Bytes of memory that are needed to hold `held` bytes and the growth by another packet.
    pub(super) fn for_packet(held: usize, growth: usize) -> usize {
        held + growth + HEADROOM
    }

    /// The memory to ask for when `needed` bytes are needed and `limit` is the most.
    pub(super) fn demand(needed: usize, limit: usize) -> usize {
        needed.next_multiple_of(STEP).clamp(BASE_MEMORY, limit)
    }

    /// Sets the memory; returns whether what waited for it is to be tried again.
    pub(super) fn set(&mut self, bytes: usize, is_short: bool) -> bool {
        let is_retried = bytes > self.bytes || self.is_short != is_short;
        (self.bytes, self.is_short) = (bytes, is_short);
        is_retried
    }

    /// Whether there is enough for `needed` bytes.
    pub(super) fn has_room(&self, needed: usize) -> bool {
        needed <= self.bytes
    }

    /// A packet is taken.
    pub(super) fn on_taken(&mut self) {
        self.refused_since = None;
    }

    /// A packet is refused that needs `needed` bytes. Returns how many were missing if packets have been
    /// refused for too long.
    pub(super) fn on_refused(&mut self, now: Timestamp, needed: usize) -> Option<usize> {
        let since = *self.refused_since.get_or_insert(now);
        (now - since >= MAX_WAIT).then(|| needed - self.bytes)
    }

    /// Bytes that complete messages may occupy when `others` bytes are held, and whether more of them replace
    /// the oldest ones in modes that do not repair everything.
    pub(super) fn inbox_room(&self, others: usize) -> (usize, bool) {
        (self.bytes.saturating_sub(others), self.bytes >= self.limit || self.is_short)
    }

    /// The part of the limit for which no more credit is given while memory is short; `least` bytes always
    /// count.
    pub(super) fn withheld(&self, least: usize) -> usize {
        if self.is_short { self.limit.saturating_sub(self.bytes.max(least)) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn demand_grows_in_steps_between_base_and_limit() {
        assert_eq!(ReceiveMemory::demand(1, MIB), BASE_MEMORY);
        assert_eq!(ReceiveMemory::demand(BASE_MEMORY + 1, MIB), BASE_MEMORY + STEP);
        assert_eq!(ReceiveMemory::demand(2 * MIB, MIB), MIB);
    }

    #[test]
    fn packets_may_be_refused_for_half_a_minute() {
        let mut memory = ReceiveMemory::new(MIB);
        let needed = BASE_MEMORY + 5;
        assert!(!memory.has_room(needed) && memory.has_room(BASE_MEMORY));
        let at = |s: u64| Timestamp::from_millis(s * 1_000);
        assert_eq!(memory.on_refused(at(10), needed), None);
        assert_eq!(memory.on_refused(at(39), needed), None);
        assert_eq!(memory.on_refused(at(40), needed), Some(5));
        memory.on_taken();
        assert_eq!(memory.on_refused(at(41), needed), None);
    }

    #[test]
    fn shortage_withholds_credit_and_lets_new_messages_replace_old_ones() {
        let mut memory = ReceiveMemory::new(MIB);
        assert_eq!(memory.inbox_room(BASE_MEMORY - 10), (10, false));
        assert_eq!(memory.withheld(0), 0);
        assert!(memory.set(BASE_MEMORY, true) && !memory.set(BASE_MEMORY, true));
        assert_eq!(memory.inbox_room(MIB), (0, true));
        assert_eq!(memory.withheld(0), MIB - BASE_MEMORY);
        assert_eq!(memory.withheld(MIB), 0);
        assert!(memory.set(MIB, false) && !memory.set(BASE_MEMORY, false));
        assert!(memory.set(MIB, false));
        assert_eq!(memory.inbox_room(0), (MIB, true), "at the limit");
        memory.raise_limit(2 * MIB);
        assert_eq!(memory.inbox_room(0), (MIB, false));
    }
}
