//! The sending half of a channel.

use std::collections::VecDeque;

use super::ChannelError;
use crate::wire::channel::{data_overhead, encode_data};
use crate::wire::varint::Writer;

/// Least number of bytes of a part, unless fewer are left.
pub(super) const MIN_PART: usize = 16;
/// Bytes per unit of weight that a channel may send before it is the next one's turn.
const QUANTUM: u32 = 128;
/// The weight of a channel unless it is set: a turn is about a symbol.
pub(super) const DEFAULT_WEIGHT: u8 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Open,
    /// The end follows the queued bytes.
    Finishing,
    /// A RESET frame must be sent.
    ResetDue,
    /// The peer stopped reading, and a RESET frame must be sent.
    StopDue,
    /// The same after that frame.
    Stopped,
    Done,
}

/// State that exists only while bytes are queued or a code must be kept.
#[derive(Debug, Default)]
struct SendBuffer {
    bytes: VecDeque<u8>,
    /// Bytes that the channel may send in this turn or the next one.
    deficit: u32,
    code: u64,
}

/// Outcome of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The channel can send nothing now.
    Idle,
    /// The turn of the next channel begins.
    Over,
    /// The symbol is full.
    Full,
}

/// The sending half. Most channels of many are idle, so it has as few fields as possible.
#[derive(Debug)]
pub(super) struct SendHalf {
    /// Bytes that are in symbols.
    sent: u64,
    /// The peer's credit.
    credit: u64,
    buffer: Option<Box<SendBuffer>>,
    state: SendState,
    pub(super) weight: u8,
    /// The channel has a place in the order of turns.
    pub(super) is_active: bool,
    /// A write was refused.
    pub(super) is_blocked: bool,
}

impl SendHalf {
    pub(super) fn new(credit: u64) -> Self {
        Self {
            sent: 0,
            credit,
            buffer: None,
            state: SendState::Open,
            weight: DEFAULT_WEIGHT,
            is_active: false,
            is_blocked: false,
        }
    }

    /// Whether bytes or the end may still be sent.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, SendState::Open | SendState::Finishing)
    }

    /// Bytes that are in symbols.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Bytes for which the peer's credit is left.
    pub(super) fn credit_left(&self) -> u64 {
        self.credit.saturating_sub(self.sent)
    }

    pub(super) fn queued(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.bytes.len())
    }

    /// The code of a reset.
    pub(super) fn code(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.code)
    }

    /// Whether nothing more will be sent.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.state, SendState::Stopped | SendState::Done)
    }

    /// Whether a RESET frame must be sent.
    pub(super) fn is_reset_due(&self) -> bool {
        matches!(self.state, SendState::ResetDue | SendState::StopDue)
    }

    /// Why the application cannot write, if it cannot.
    pub(super) fn refusal(&self) -> Option<ChannelError> {
        match self.state {
            SendState::Open => None,
            SendState::StopDue | SendState::Stopped => {
                Some(ChannelError::Stopped { code: self.code() })
            }
            SendState::Finishing | SendState::ResetDue | SendState::Done => {
                Some(ChannelError::Finished)
            }
        }
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn push(&mut self, data: &[u8]) {
        self.buffer.get_or_insert_default().bytes.extend(data);
    }

    /// Ends the channel after the queued bytes.
    pub(super) fn finish(&mut self) {
        if self.state == SendState::Open {
            self.state = SendState::Finishing;
        }
    }

    /// Drops the queued bytes and gives up; `state` says for whom. Returns their number.
    pub(super) fn reset(&mut self, code: u64, state: SendState) -> usize {
        if !self.is_open() {
            return 0;
        }
        let dropped = self.queued();
        self.state = state;
        self.buffer = Some(Box::new(SendBuffer { code, ..SendBuffer::default() }));
        dropped
    }

    /// The RESET frame was written. After a stop the code is kept for the application.
    pub(super) fn on_reset_sent(&mut self) {
        if self.state == SendState::StopDue {
            self.state = SendState::Stopped;
        } else {
            self.state = SendState::Done;
            self.buffer = None;
        }
    }

    pub(super) fn on_credit(&mut self, credit: u64) {
        self.credit = self.credit.max(credit);
    }

    fn is_only_end_left(&self) -> bool {
        self.state == SendState::Finishing && self.queued() == 0
    }

    /// Whether the channel has something to send and credit for it.
    pub(super) fn is_sendable(&self) -> bool {
        self.is_open()
            && (self.is_only_end_left() || (self.queued() > 0 && self.sent < self.credit))
    }

    /// Begins a turn.
    pub(super) fn begin_turn(&mut self) {
        let quantum = u32::from(self.weight.max(1)) * QUANTUM;
        let buffer = self.buffer.get_or_insert_default();
        buffer.deficit = buffer.deficit.saturating_add(quantum);
    }

    /// Writes a part of at most `session_room` bytes. Returns its length and how the turn goes on.
    pub(super) fn write_part(
        &mut self,
        id: u64,
        session_room: u64,
        writer: &mut Writer<'_>,
    ) -> (usize, Turn) {
        if !self.is_sendable() {
            return (0, Turn::Idle);
        }
        let room = writer.remaining().checked_sub(data_overhead(id, self.sent, writer.remaining()));
        let Some(room) = room else { return (0, Turn::Full) };
        let credit = (self.credit - self.sent).min(session_room);
        let Some(buffer) = &mut self.buffer else { return (0, Turn::Idle) };
        let queued = buffer.bytes.len();
        let left = usize::try_from(credit).unwrap_or(usize::MAX).min(queued);
        if left == 0 && queued > 0 {
            return (0, Turn::Full);
        }
        let in_turn = left.min(buffer.deficit as usize);
        let part = in_turn.min(room);
        if part < left.min(MIN_PART) {
            return (0, if in_turn < left.min(MIN_PART) { Turn::Over } else { Turn::Full });
        }
        let is_end = self.state == SendState::Finishing && part == queued;
        let (first, second) = buffer.bytes.as_slices();
        let of_first = part.min(first.len());
        let parts = [&first[..of_first], &second[..part - of_first]];
        if encode_data(writer, id, self.sent, parts, is_end).is_none() {
            return (0, Turn::Full);
        }
        buffer.bytes.drain(..part);
        buffer.deficit -= part as u32;
        let is_spent = (buffer.deficit as usize) < MIN_PART;
        self.sent += part as u64;
        if is_end {
            self.state = SendState::Done;
        }
        if part == queued {
            self.buffer = None;
        }
        let turn = match (self.is_sendable(), is_spent) {
            (false, _) => Turn::Idle,
            (true, true) => Turn::Over,
            (true, false) => Turn::Full,
        };
        (part, turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: u64 = 2;

    fn half(weight: u8, credit: u64, queued: usize) -> SendHalf {
        let mut half = SendHalf { weight, ..SendHalf::new(credit) };
        half.push(&vec![7; queued]);
        half.begin_turn();
        half
    }

    /// Writes a part into a symbol with this number of free bytes.
    fn write(half: &mut SendHalf, session_room: u64, free: usize) -> (usize, Turn) {
        let mut symbol = vec![0; free];
        half.write_part(ID, session_room, &mut Writer::new(&mut symbol))
    }

    /// 128 bytes for each unit of the weight.
    #[test]
    fn turn_ends_when_its_bytes_are_sent() {
        let mut light = half(1, 10_000, 1_000);
        for turn in 1..=3 {
            assert_eq!(write(&mut light, 10_000, 2_000), (128, Turn::Over));
            assert_eq!((light.sent(), light.queued()), (turn * 128, 1_000 - turn as usize * 128));
            light.begin_turn();
        }
        assert_eq!(write(&mut half(0, 10_000, 1_000), 10_000, 2_000), (128, Turn::Over));
        assert_eq!(write(&mut half(16, 10_000, 1_000), 10_000, 2_000), (1_000, Turn::Idle));
        // 15 bytes of the turn that are left are for the next one; with 16 it goes on.
        for (first, turn) in [(112, Turn::Full), (113, Turn::Over)] {
            let mut light = half(1, 10_000, 1_000);
            assert_eq!(write(&mut light, first, 2_000), (first as usize, turn));
            light.begin_turn();
            assert_eq!(write(&mut light, 999, 2_000), (256 - first as usize, Turn::Over));
        }
    }

    #[test]
    fn parts_are_within_the_credit_of_channel_and_session() {
        let mut limited = half(16, 50, 100);
        assert_eq!((limited.credit_left(), limited.is_sendable()), (50, true));
        assert_eq!(write(&mut limited, 10_000, 2_000), (50, Turn::Idle));
        assert_eq!((limited.credit_left(), limited.is_sendable()), (0, false));
        assert_eq!(write(&mut limited, 10_000, 2_000), (0, Turn::Idle));
        limited.on_credit(51);
        limited.on_credit(40);
        assert_eq!(write(&mut limited, 10_000, 2_000), (1, Turn::Idle));
        limited.on_credit(1_000);
        assert_eq!(write(&mut limited, 0, 2_000), (0, Turn::Full), "the session waits");
        assert_eq!(write(&mut limited, 20, 2_000), (20, Turn::Full));
        assert_eq!((write(&mut limited, 99, 2_000), limited.queued()), ((29, Turn::Idle), 0));
    }

    #[test]
    fn part_has_16_bytes_unless_fewer_are_left() {
        let least = (0..99).find(|&free| {
            let overhead = data_overhead(ID, 0, free);
            free >= overhead + MIN_PART
        });
        let least = least.unwrap();
        assert_eq!(write(&mut half(16, 10_000, 100), 10_000, least - 1), (0, Turn::Full));
        assert_eq!(write(&mut half(16, 10_000, 100), 10_000, least), (16, Turn::Full));
        assert_eq!(write(&mut half(16, 10_000, 15), 10_000, least - 1), (15, Turn::Idle));
        assert_eq!(write(&mut half(16, 10_000, 16), 10_000, least - 1), (0, Turn::Full));
        assert_eq!(write(&mut half(16, 10_000, 100), 10_000, 0), (0, Turn::Full));
        // So much of the turn is left.
        for (deficit, written) in [(15, (0, Turn::Over)), (16, (16, Turn::Over))] {
            let mut half = half(16, 10_000, 100);
            half.buffer.as_mut().unwrap().deficit = deficit;
            assert_eq!(write(&mut half, 10_000, 2_000), written);
        }
    }

    #[test]
    fn end_follows_the_last_byte() {
        let mut ending = half(16, 10_000, 100);
        ending.finish();
        assert_eq!(ending.refusal(), Some(ChannelError::Finished));
        assert_eq!(write(&mut ending, 60, 2_000), (60, Turn::Full));
        assert!(ending.is_open() && !ending.is_done());
        assert_eq!(write(&mut ending, 99, 2_000), (40, Turn::Idle));
        assert!(ending.is_done() && !ending.is_open());
        assert_eq!((ending.sent(), ending.queued(), ending.code()), (100, 0, 0));
        // Without bytes it needs no credit.
        let mut empty = SendHalf::new(0);
        assert!(!empty.is_sendable());
        empty.finish();
        assert!(empty.is_sendable());
        empty.begin_turn();
        assert_eq!((write(&mut empty, 0, 99), empty.is_done()), ((0, Turn::Idle), true));
    }

    #[test]
    fn reset_drops_the_queued_bytes_and_keeps_a_code() {
        for (state, refusal, code) in [
            (SendState::ResetDue, ChannelError::Finished, 0),
            (SendState::StopDue, ChannelError::Stopped { code: 9 }, 9),
        ] {
            let mut half = half(16, 10_000, 100);
            assert_eq!((half.reset(9, state), half.reset(8, state), half.queued()), (100, 0, 0));
            assert!(half.is_reset_due() && !half.is_sendable() && !half.is_done());
            assert_eq!((half.code(), half.refusal()), (9, Some(refusal)));
            half.on_reset_sent();
            assert!(!half.is_reset_due() && half.is_done());
            assert_eq!(half.code(), code, "for the application");
        }
    }
}
