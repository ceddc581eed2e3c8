//! The receiving half of a channel.

use std::collections::{BTreeMap, VecDeque};

use super::ChannelViolation;
use super::limits::CHANNEL_SHARE;

/// Memory of a part that waits behind a gap, in addition to its content: its entry in a tree with
/// half-filled nodes, and what the allocator adds.
const PART_OVERHEAD: usize = 128;
/// Least capacity of the buffer of a channel with unread bytes.
const MIN_CAPACITY: usize = 32;
/// The size of a channel that has not ended.
const UNKNOWN: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveState {
    Open,
    /// The application reads no more: a STOP frame must be sent.
    StopDue,
    /// The same after that frame; what still arrives is dropped.
    Stopped,
    /// The peer has reset the channel and the application does not know yet.
    Reset,
    Done,
}

/// When a symbol is handed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// After all symbols before it.
    InOrder,
    /// Before a missing one.
    Early,
}

/// State that exists only while bytes are unread or a code must be kept.
#[derive(Debug, Default)]
struct ReceiveBuffer {
    /// Bytes from `read` on.
    ready: VecDeque<u8>,
    /// Parts behind a gap, by offset. They do not overlap.
    parts: BTreeMap<u64, Vec<u8>>,
    /// Memory of `parts`.
    early: usize,
    code: u64,
}

/// The receiving half. Most channels of many are idle, so it has as few fields as possible.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    /// Bytes that the application has read, or that were dropped.
    read: u64,
    /// End of the bytes that the peer has sent, as far as is known.
    highest: u64,
    /// Credit given to the peer.
    granted: u64,
    size: u64,
    buffer: Option<Box<ReceiveBuffer>>,
    state: ReceiveState,
    /// The channel may have this part of the session's free window.
    pub(super) share: u8,
    /// The application knows that it can read.
    pub(super) is_notified: bool,
}

impl ReceiveHalf {
    pub(super) fn new(granted: u64) -> Self {
        Self {
            read: 0,
            highest: 0,
            granted,
            size: UNKNOWN,
            buffer: None,
            state: ReceiveState::Open,
            share: CHANNEL_SHARE,
            is_notified: false,
        }
    }

    pub(super) fn state(&self) -> ReceiveState {
        self.state
    }

    /// Bytes that have arrived in order, read or not.
    pub(super) fn received(&self) -> u64 {
        self.read + self.unread()
    }

    /// Bytes that have arrived in order and were not read.
    pub(super) fn unread(&self) -> u64 {
        self.ready() as u64
    }

    fn ready(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.ready.len())
    }

    /// Memory of the parts behind gaps.
    pub(super) fn early_bytes(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.early)
    }

    /// Memory that a part needs which waits behind a gap; 0 if it does not wait. An empty one is not stored: the end of
    /// a channel needs no memory.
    pub(super) fn early_cost(&self, offset: u64, len: usize) -> usize {
        let waits = self.state == ReceiveState::Open && len > 0 && offset > self.received();
        if waits { len.saturating_add(PART_OVERHEAD) } else { 0 }
    }

    /// Whether a call of the application would not be blocked.
    pub(super) fn is_readable(&self) -> bool {
        match self.state {
            ReceiveState::Open => self.ready() > 0 || self.read == self.size,
            ReceiveState::Reset => true,
            ReceiveState::StopDue | ReceiveState::Stopped | ReceiveState::Done => false,
        }
    }

    /// Bytes by which `end` exceeds what the peer has sent before.
    ///
    /// # Errors
    ///
    /// The channel may not have so many bytes.
    pub(super) fn fresh(&self, id: u64, end: u64, is_end: bool) -> Result<u64, ChannelViolation> {
        let is_consistent = if is_end {
            end >= self.highest && (self.size == UNKNOWN || self.size == end)
        } else {
            end <= self.size
        };
        if !is_consistent {
            return Err(ChannelViolation::Size(id));
        }
        if end > self.granted {
            return Err(ChannelViolation::BeyondCredit(id));
        }
        Ok(end.saturating_sub(self.highest))
    }

    /// Takes a part that [`fresh`](Self::fresh) allows. Returns the number of bytes that were
    /// dropped because the application reads no more.
    pub(super) fn on_data(
        &mut self,
        id: u64,
        offset: u64,
        data: &[u8],
        is_end: bool,
        order: Order,
    ) -> Result<u64, ChannelViolation> {
        let end = offset + data.len() as u64;
        let before = self.highest;
        self.highest = before.max(end);
        if is_end {
            self.size = end;
        }
        match self.state {
            ReceiveState::Open => {
                self.insert(id, offset, data, order)?;
                Ok(0)
            }
            ReceiveState::StopDue | ReceiveState::Stopped => {
                self.read = self.highest;
                if self.size != UNKNOWN {
                    self.finish();
                }
                Ok(self.highest - before)
            }
            // After a reset all bytes count as dropped.
            ReceiveState::Reset | ReceiveState::Done => Ok(0),
        }
    }

    fn insert(
        &mut self,
        id: u64,
        offset: u64,
        data: &[u8],
        order: Order,
    ) -> Result<(), ChannelViolation> {
        let next = self.read + self.ready() as u64;
        // A sender cuts the bytes of a channel into symbols in order, and each byte once.
        let is_in_sequence = match order {
            Order::InOrder => offset == next,
            Order::Early => offset >= next,
        };
        if !is_in_sequence {
            return Err(ChannelViolation::Sequence(id));
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        let buffer = self.buffer.get_or_insert_default();
        let before = buffer.parts.range(..end).next_back();
        if before.is_some_and(|(&start, part)| start + part.len() as u64 > offset) {
            return Err(ChannelViolation::Sequence(id));
        }
        if offset > next {
            let part = data.to_vec();
            buffer.early += part.capacity() + PART_OVERHEAD;
            buffer.parts.insert(offset, part);
            return Ok(());
        }
        append(&mut buffer.ready, data);
        let mut next = end;
        while let Some(entry) = buffer.parts.first_entry()
            && *entry.key() == next
        {
            let part = entry.remove();
            buffer.early -= part.capacity() + PART_OVERHEAD;
            next += part.len() as u64;
            append(&mut buffer.ready, &part);
        }
        Ok(())
    }

    /// Copies unread bytes to `out`; returns their number.
    pub(super) fn read(&mut self, out: &mut [u8]) -> usize {
        let Some(buffer) = &mut self.buffer else { return 0 };
        let (first, second) = buffer.ready.as_slices();
        let of_first = first.len().min(out.len());
        let of_second = second.len().min(out.len() - of_first);
        out[..of_first].copy_from_slice(&first[..of_first]);
        out[of_first..of_first + of_second].copy_from_slice(&second[..of_second]);
        let len = of_first + of_second;
        buffer.ready.drain(..len);
        self.read += len as u64;
        if buffer.ready.is_empty() {
            if buffer.parts.is_empty() {
                self.buffer = None;
            } else {
                buffer.ready = VecDeque::new();
            }
        }
        len
    }

    /// Whether the application has read everything and nothing follows.
    pub(super) fn is_at_end(&self) -> bool {
        self.state == ReceiveState::Open && self.read == self.size
    }

    /// The application knows the end or the reset.
    pub(super) fn finish(&mut self) {
        self.state = ReceiveState::Done;
        self.buffer = None;
    }

    /// Takes a reset whose size [`fresh`](Self::fresh) allows. Returns the number of bytes that are
    /// dropped.
    pub(super) fn on_reset(&mut self, code: u64, size: u64) -> u64 {
        let is_complete = self.read + self.ready() as u64 == self.size;
        let before = self.highest;
        self.highest = size;
        match self.state {
            // Nothing is missing: the reset came too late.
            ReceiveState::Open if is_complete => 0,
            ReceiveState::Open => {
                let dropped = size - self.read;
                (self.read, self.size) = (size, size);
                self.state = ReceiveState::Reset;
                self.buffer = Some(Box::new(ReceiveBuffer { code, ..ReceiveBuffer::default() }));
                dropped
            }
            ReceiveState::StopDue | ReceiveState::Stopped => {
                self.size = size;
                self.finish();
                size - before
            }
            ReceiveState::Reset | ReceiveState::Done => 0,
        }
    }

    /// The application reads no more. Returns the number of bytes that are dropped.
    pub(super) fn stop(&mut self, code: u64) -> u64 {
        match self.state {
            ReceiveState::Open => {
                let dropped = self.highest - self.read;
                self.read = self.highest;
                if self.size == UNKNOWN {
                    self.state = ReceiveState::StopDue;
                    let buffer = ReceiveBuffer { code, ..ReceiveBuffer::default() };
                    self.buffer = Some(Box::new(buffer));
                } else {
                    self.finish();
                }
                dropped
            }
            ReceiveState::Reset => {
                self.finish();
                0
            }
            ReceiveState::StopDue | ReceiveState::Stopped | ReceiveState::Done => 0,
        }
    }

    /// The code of a reset by the peer, or of a stop by this end.
    pub(super) fn code(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.code)
    }

    /// Whether a STOP frame must be sent.
    pub(super) fn is_stop_due(&self) -> bool {
        self.state == ReceiveState::StopDue
    }

    /// The STOP frame was written.
    pub(super) fn on_stop_sent(&mut self) {
        self.state = ReceiveState::Stopped;
        self.buffer = None;
    }

    /// The credit to give with this window, if it is worth a frame.
    pub(super) fn credit_due(&self, window: u64) -> Option<u64> {
        if self.state != ReceiveState::Open || self.size != UNKNOWN {
            return None;
        }
        let credit = self.read + window;
        (credit >= self.granted + (window / 4).max(1)).then_some(credit)
    }

    /// The peer gets this credit.
    pub(super) fn grant(&mut self, credit: u64) {
        self.granted = self.granted.max(credit);
    }
}

/// Appends with a growth of a quarter: the unread bytes of a session are bounded, and twice as much
/// would be reserved for nothing.
fn append(ready: &mut VecDeque<u8>, data: &[u8]) {
    let wanted = ready.len() + data.len();
    if wanted > ready.capacity() {
        let capacity = wanted.max(ready.capacity() / 4 * 5).max(MIN_CAPACITY);
        ready.reserve_exact(capacity - ready.len());
    }
    ready.extend(data);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 2;

    /// Takes a part after checking it, as a session does; returns the fresh and the dropped bytes.
    fn take(
        half: &mut ReceiveHalf,
        offset: u64,
        len: usize,
        is_end: bool,
        order: Order,
    ) -> Result<(u64, u64), ChannelViolation> {
        let fresh = half.fresh(ID, offset + len as u64, is_end)?;
        let dropped = half.on_data(ID, offset, &vec![7; len], is_end, order)?;
        Ok((fresh, dropped))
    }

    fn in_order(
        half: &mut ReceiveHalf,
        offset: u64,
        len: usize,
    ) -> Result<(u64, u64), ChannelViolation> {
        take(half, offset, len, false, Order::InOrder)
    }

    #[test]
    fn bytes_are_within_the_credit_and_the_size() {
        let mut half = ReceiveHalf::new(100);
        assert_eq!(half.fresh(ID, 101, false), Err(ChannelViolation::BeyondCredit(ID)));
        assert_eq!(half.fresh(ID, 100, false), Ok(100));
        assert_eq!(in_order(&mut half, 0, 60), Ok((60, 0)));
        assert_eq!((half.fresh(ID, 60, false), half.fresh(ID, 80, false)), (Ok(0), Ok(20)));
        assert_eq!(half.fresh(ID, 59, true), Err(ChannelViolation::Size(ID)));
        assert_eq!(take(&mut half, 60, 20, true, Order::InOrder), Ok((20, 0)));
        assert_eq!(half.fresh(ID, 80, true), Ok(0));
        for (end, is_end) in [(81, false), (81, true), (79, true)] {
            assert_eq!(half.fresh(ID, end, is_end), Err(ChannelViolation::Size(ID)));
        }
        assert_eq!((half.received(), half.unread()), (80, 80));
    }

    #[test]
    fn parts_behind_gaps_wait_and_are_charged_with_their_overhead() {
        let mut half = ReceiveHalf::new(1_000);
        let sequence = Err(ChannelViolation::Sequence(ID));
        assert_eq!(in_order(&mut half, 1, 5), sequence, "a gap");
        for (offset, len, early) in [(50, 10, 138), (80, 20, 286), (60, 20, 434)] {
            take(&mut half, offset, len, false, Order::Early).unwrap();
            assert_eq!((half.early_bytes(), half.unread()), (early, 0));
            assert!(!half.is_readable());
        }
        for (offset, len) in [(55, 1), (45, 6), (99, 9)] {
            assert_eq!(take(&mut half, offset, len, false, Order::Early), sequence, "an overlap");
        }
        assert_eq!(in_order(&mut half, 0, 40), Ok((0, 0)));
        assert_eq!((half.early_bytes(), half.unread(), half.is_readable()), (434, 40, true));
        assert_eq!(half.read(&mut [0; 30]), 30);
        assert_eq!(half.read(&mut [0; 30]), 10);
        assert_eq!((half.received(), half.unread(), half.is_readable()), (40, 0, false));
        // The gap is filled.
        assert_eq!(in_order(&mut half, 40, 10), Ok((0, 0)));
        assert_eq!((half.early_bytes(), half.unread()), (0, 60));
        let mut out = [0; 99];
        assert_eq!((half.read(&mut out), out[59], out[60]), (60, 7, 0));
        assert_eq!(take(&mut half, 99, 1, false, Order::Early), sequence, "bytes that were read");
        assert!(half.buffer.is_none());
    }

    /// It grows by a quarter, and to 32 bytes at least.
    #[test]
    fn buffer_of_unread_bytes_grows_slowly() {
        let mut ready = VecDeque::new();
        for (len, capacity) in [(1, 32), (31, 32), (1, 40), (7, 40), (1, 50), (100, 141)] {
            append(&mut ready, &vec![7; len]);
            assert_eq!(ready.capacity(), capacity, "{} bytes", ready.len());
        }
    }

    /// A frame is worth a quarter of the window.
    #[test]
    fn credit_is_due_when_a_quarter_of_the_window_was_read() {
        for (window, read, due) in [
            (100, 24, None),
            (100, 25, Some(125)),
            (3, 0, None),
            (3, 1, Some(4)),
            (200, 0, Some(200)),
        ] {
            let mut half = ReceiveHalf::new(u64::min(window, 100));
            in_order(&mut half, 0, usize::min(window as usize, 100)).unwrap();
            half.read(&mut vec![0; read]);
            assert_eq!(half.credit_due(window), due, "{read} of {window}");
            if let Some(credit) = due {
                half.grant(credit);
                half.grant(credit - 1);
                assert_eq!((half.granted, half.credit_due(window)), (credit, None));
            }
        }
        // None is needed once the end is known, or nothing is read.
        let mut ended = ReceiveHalf::new(100);
        take(&mut ended, 0, 50, true, Order::InOrder).unwrap();
        ended.read(&mut [0; 50]);
        let mut stopped = ReceiveHalf::new(100);
        in_order(&mut stopped, 0, 50).unwrap();
        assert_eq!(stopped.stop(9), 50);
        assert_eq!((ended.credit_due(100), stopped.credit_due(100)), (None, None));
        assert!(ended.is_at_end() && !stopped.is_at_end());
    }

    #[test]
    fn stopped_channel_drops_what_arrives_until_its_end() {
        let mut half = ReceiveHalf::new(1_000);
        in_order(&mut half, 0, 50).unwrap();
        take(&mut half, 70, 10, false, Order::Early).unwrap();
        half.read(&mut [0; 20]);
        assert_eq!(half.stop(9), 60, "all but 20 of 80 bytes");
        assert_eq!((half.stop(8), half.code(), half.early_bytes()), (0, 9, 0));
        assert!(half.is_stop_due() && !half.is_readable());
        assert_eq!(in_order(&mut half, 80, 30), Ok((30, 30)));
        half.on_stop_sent();
        assert_eq!((half.is_stop_due(), half.state()), (false, ReceiveState::Stopped));
        assert_eq!(take(&mut half, 110, 5, true, Order::InOrder), Ok((5, 5)));
        assert_eq!(half.state(), ReceiveState::Done);
        // With a known end no STOP frame is needed.
        let mut half = ReceiveHalf::new(1_000);
        take(&mut half, 0, 50, true, Order::InOrder).unwrap();
        assert_eq!((half.stop(9), half.state()), (50, ReceiveState::Done));
    }

    #[test]
    fn reset_drops_what_was_not_read_unless_it_comes_too_late() {
        let mut half = ReceiveHalf::new(1_000);
        in_order(&mut half, 0, 50).unwrap();
        half.read(&mut [0; 20]);
        assert_eq!(half.on_reset(9, 90), 70);
        assert_eq!((half.state(), half.code(), half.is_readable()), (ReceiveState::Reset, 9, true));
        assert_eq!((half.on_reset(8, 90), half.stop(7), half.state()), (0, 0, ReceiveState::Done));
        // All bytes and the end have arrived.
        let mut half = ReceiveHalf::new(1_000);
        take(&mut half, 0, 50, true, Order::InOrder).unwrap();
        half.read(&mut [0; 20]);
        assert_eq!((half.on_reset(9, 50), half.unread()), (0, 30));
        assert_eq!(half.state(), ReceiveState::Open);
        // After a stop.
        let mut half = ReceiveHalf::new(1_000);
        in_order(&mut half, 0, 50).unwrap();
        half.stop(9);
        assert_eq!((half.on_reset(8, 60), half.state()), (10, ReceiveState::Done));
    }
}
