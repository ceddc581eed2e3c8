//! Sessions across relays: what was altered on the way, and which way that was.
//!
//! Seals show what was altered, not by whom. But a source symbol comes by the way that its batch
//! took, and only the sender knows which link that began with. So the receiver names the symbols
//! that nothing but packets of their own batch can have spoilt, and the sender leaves that link to
//! others, if there are any.

use std::collections::VecDeque;

use bats_types::Timestamp;

use super::Connection;
use super::carried::EndToEndSession;
use crate::error::CloseReason;
use crate::event::Event;
use crate::wire::short_header::PacketKind;

/// Symbols or packets refused one after the other, none genuine between them, after which the session
/// ends: an honest way of a few per mille of lies never comes near.
pub(super) const MAX_ALTERED_IN_A_ROW: u64 = 256;
/// The same for blocks, of which one altered packet spoils 512: at one lie in 1,000 packets four in ten
/// are spoilt, and 32 in a row in one case of 10^12.
pub(super) const MAX_BLOCKS_IN_A_ROW: u64 = 32;
/// Numbers of which the sender remembers the link: those under way at 1 Gbit/s and 150 ms.
const REMEMBERED: usize = 16_384;
/// The protocol's code of a CLOSE for this reason.
const CLOSE_CODE: u64 = 4;

/// By which link a number has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Never,
    By(u64),
    /// More than one: it proves nothing.
    BySeveral,
}

/// Which link each of the newest numbers has left by.
#[derive(Debug, Default)]
pub(super) struct SentBy {
    base: u64,
    links: VecDeque<Left>,
}

impl SentBy {
    pub(super) fn note(&mut self, number: u64, link: u64) {
        let Some(mut index) = number.checked_sub(self.base) else { return };
        if index >= 2 * REMEMBERED as u64 {
            self.links.clear();
            (self.base, index) = (number, 0);
        }
        while self.links.len() as u64 <= index {
            self.links.push_back(Left::Never);
        }
        let left = &mut self.links[index as usize];
        *left = match *left {
            Left::Never => Left::By(link),
            Left::By(other) if other == link => Left::By(link),
            _ => Left::BySeveral,
        };
        while self.links.len() > REMEMBERED {
            self.links.pop_front();
            self.base += 1;
        }
    }

    /// The only link that a number has left by.
    pub(super) fn link_of(&self, number: u64) -> Option<u64> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.links.get(index)? {
            Left::By(link) => Some(*link),
            Left::Never | Left::BySeveral => None,
        }
    }
}

impl EndToEndSession {
    /// Takes note of the link that a coded packet leaves by.
    pub(super) fn note_sent(&mut self, number: Option<u64>, link: u64) {
        if let Some(number) = number {
            self.sent_by.note(number, link);
        }
    }
}

impl Connection {
    /// Whether a source symbol is genuine; once something was altered each is looked at as it comes,
    /// before it can spoil others.
    pub(super) fn is_genuine(&mut self, kind: PacketKind, payload: &[u8]) -> Result<(), u64> {
        if self.counters.symbols_altered == 0 || kind != PacketKind::Source {
            return Ok(());
        }
        let (Some(carried), Some(streams)) = (&mut self.carried, &self.streams) else {
            return Ok(());
        };
        let Some((number, symbol)) = streams.incoming.source(payload) else { return Ok(()) };
        let Some(keys) = &mut carried.symbols else { return Ok(()) };
        if keys.open.open(number, symbol, &mut carried.opened) { Ok(()) } else { Err(number) }
    }

    /// Something of the flow was altered on the way; `certain` is its number if nothing but packets
    /// of its own batch can have spoilt it.
    pub(super) fn on_altered(&mut self, now: Timestamp, count: u64, certain: Option<u64>) {
        if count == 0 {
            return;
        }
        if self.counters.symbols_altered == 0 {
            self.events.push_back(Event::Altered);
        }
        self.counters.symbols_altered += count;
        let Some(carried) = &mut self.carried else { return };
        carried.altered_in_a_row += count;
        if certain.is_some() {
            self.control.altered = certain;
        }
        let limit = match &self.streams {
            Some(streams) if streams.incoming.is_of_blocks() => MAX_BLOCKS_IN_A_ROW,
            _ => MAX_ALTERED_IN_A_ROW,
        };
        if carried.altered_in_a_row >= limit {
            let reason = CloseReason::Altered(carried.altered_in_a_row);
            self.begin_close(now, false, CLOSE_CODE, &reason.to_string(), reason);
        }
    }

    /// Something genuine has come.
    pub(super) fn on_genuine(&mut self) {
        if let Some(carried) = &mut self.carried {
            carried.altered_in_a_row = 0;
        }
    }

    /// The peer says that a symbol or block was altered by the way it took.
    pub(super) fn on_altered_told(&mut self, now: Timestamp, number: u64) {
        let Some(carried) = &mut self.carried else {
            return self.misbehaved(now, "a link that carries itself was said to alter");
        };
        carried.liar = carried.sent_by.link_of(number).or(carried.liar);
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_altered();
        }
    }

    /// The link that what was altered has left by, once each.
    pub(crate) fn take_liar(&mut self) -> Option<u64> {
        self.carried.as_mut()?.liar.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_numbers_are_remembered_and_those_sent_twice_prove_nothing() {
        let mut sent = SentBy::default();
        for number in 0..40_000 {
            sent.note(number, number / 16 % 2);
        }
        assert_eq!(sent.link_of(39_999), Some(1));
        assert_eq!(sent.link_of(39_980), Some(0));
        assert_eq!(sent.link_of(40_000 - REMEMBERED as u64 - 1), None);
        assert_eq!(sent.link_of(40_000), None);
        sent.note(39_999, 1);
        assert_eq!(sent.link_of(39_999), Some(1));
        sent.note(39_999, 0);
        assert_eq!(sent.link_of(39_999), None);
        // Out of order within what is remembered, and far ahead.
        sent.note(40_005, 3);
        sent.note(40_002, 4);
        assert_eq!((sent.link_of(40_002), sent.link_of(40_003)), (Some(4), None));
        sent.note(1 << 40, 5);
        assert_eq!((sent.link_of(1 << 40), sent.links.len()), (Some(5), 1));
    }
}
