//! Pollution attacks on end-to-end sessions: detection, and attribution to a path.
//!
//! A symbol's seal shows pollution, but not which relay caused it. A source symbol takes the path
//! of its batch, and only the sender knows the first link of that path. The receiver therefore
//! reports symbols that only packets of their own batch can have polluted. The sender then avoids
//! that link if there is another one.

use std::collections::VecDeque;

use bats_types::Timestamp;

use super::Connection;
use super::end_to_end::EndToEndSession;
use crate::error::CloseReason;
use crate::event::Event;
use crate::wire::short_header::PacketKind;

/// Polluted symbols or packets in a row, without an authentic one between them, after which the
/// session is closed. A path that pollutes a few per mille of its packets never reaches this.
pub(super) const MAX_POLLUTED_IN_A_ROW: u64 = 256;
/// The same for blocks. One polluted packet makes a block of 512 packets fail. With one polluted packet
/// in 1,000, four blocks in ten are polluted, and 32 in a row with a probability of 10^-12.
pub(super) const MAX_BLOCKS_IN_A_ROW: u64 = 32;
/// Symbol numbers whose first link the sender remembers: those in flight at 1 Gbit/s and 150 ms.
const FIRST_LINK_LOG_LEN: usize = 16_384;
/// Error code of the CLOSE frame.
const CLOSE_CODE: u64 = 4;

/// The first link of a symbol or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentOver {
    NotSent,
    Link(u64),
    /// More than one link, so that pollution cannot be attributed.
    SeveralLinks,
}

/// The first links of the newest symbol numbers.
#[derive(Debug, Default)]
pub(super) struct FirstLinkLog {
    base: u64,
    links: VecDeque<SentOver>,
}

impl FirstLinkLog {
    pub(super) fn record(&mut self, number: u64, link: u64) {
        let Some(mut index) = number.checked_sub(self.base) else { return };
        if index >= 2 * FIRST_LINK_LOG_LEN as u64 {
            self.links.clear();
            (self.base, index) = (number, 0);
        }
        while self.links.len() as u64 <= index {
            self.links.push_back(SentOver::NotSent);
        }
        let entry = &mut self.links[index as usize];
        *entry = match *entry {
            SentOver::NotSent => SentOver::Link(link),
            SentOver::Link(other) if other == link => SentOver::Link(link),
            _ => SentOver::SeveralLinks,
        };
        while self.links.len() > FIRST_LINK_LOG_LEN {
            self.links.pop_front();
            self.base += 1;
        }
    }

    /// The first link of a number, if there is exactly one.
    pub(super) fn link_of(&self, number: u64) -> Option<u64> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.links.get(index)? {
            SentOver::Link(link) => Some(*link),
            SentOver::NotSent | SentOver::SeveralLinks => None,
        }
    }
}

impl EndToEndSession {
    /// Records the link that a coded packet is sent over.
    pub(super) fn record_first_link(&mut self, number: Option<u64>, link: u64) {
        if let Some(number) = number {
            self.first_links.record(number, link);
        }
    }
}

impl Connection {
    /// Checks a source symbol on arrival, before it can pollute repairs. This happens only after
    /// the first pollution.
    ///
    /// # Errors
    ///
    /// The number of the symbol, if it is polluted.
    pub(super) fn check_source_symbol(
        &mut self,
        kind: PacketKind,
        payload: &[u8],
    ) -> Result<(), u64> {
        if self.counters.symbols_polluted == 0 || kind != PacketKind::Source {
            return Ok(());
        }
        let (Some(end_to_end), Some(streams)) = (&mut self.end_to_end, &self.streams) else {
            return Ok(());
        };
        let Some((number, symbol)) = streams.incoming.source(payload) else { return Ok(()) };
        let Some(keys) = &mut end_to_end.symbols else { return Ok(()) };
        if keys.open.open(number, symbol, &mut end_to_end.opened) { Ok(()) } else { Err(number) }
    }

    /// Counts polluted symbols, blocks or packets; `attributable` is the number of one that only
    /// packets of its own batch can have polluted.
    pub(super) fn on_polluted(&mut self, now: Timestamp, count: u64, attributable: Option<u64>) {
        if count == 0 {
            return;
        }
        if self.counters.symbols_polluted == 0 {
            self.events.push_back(Event::PollutionDetected);
        }
        self.counters.symbols_polluted += count;
        let Some(end_to_end) = &mut self.end_to_end else { return };
        end_to_end.polluted_in_a_row += count;
        if attributable.is_some() {
            self.control.polluted = attributable;
        }
        let limit = match &self.streams {
            Some(streams) if streams.incoming.seals_blocks() => MAX_BLOCKS_IN_A_ROW,
            _ => MAX_POLLUTED_IN_A_ROW,
        };
        if end_to_end.polluted_in_a_row >= limit {
            let reason = CloseReason::Pollution(end_to_end.polluted_in_a_row);
            self.begin_close(now, false, CLOSE_CODE, &reason.to_string(), reason);
        }
    }

    /// An authentic symbol or block arrived.
    pub(super) fn on_authentic_symbol(&mut self) {
        if let Some(end_to_end) = &mut self.end_to_end {
            end_to_end.polluted_in_a_row = 0;
        }
    }

    /// The peer reports a polluted symbol or block.
    pub(super) fn on_pollution_report(&mut self, now: Timestamp, number: u64) {
        let Some(end_to_end) = &mut self.end_to_end else {
            return self
                .on_protocol_violation(now, "pollution report outside an end-to-end session");
        };
        end_to_end.polluting_link =
            end_to_end.first_links.link_of(number).or(end_to_end.polluting_link);
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_polluted();
        }
    }

    /// Takes the link that a reported polluted symbol was sent over; each report once.
    pub(crate) fn take_polluting_link(&mut self) -> Option<u64> {
        self.end_to_end.as_mut()?.polluting_link.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_numbers_are_logged_and_numbers_sent_over_two_links_are_ambiguous() {
        let mut sent = FirstLinkLog::default();
        for number in 0..40_000 {
            sent.record(number, number / 16 % 2);
        }
        assert_eq!(sent.link_of(39_999), Some(1));
        assert_eq!(sent.link_of(39_980), Some(0));
        assert_eq!(sent.link_of(40_000 - FIRST_LINK_LOG_LEN as u64 - 1), None);
        assert_eq!(sent.link_of(40_000), None);
        sent.record(39_999, 1);
        assert_eq!(sent.link_of(39_999), Some(1));
        sent.record(39_999, 0);
        assert_eq!(sent.link_of(39_999), None);
        // Out of order within the log, and far ahead of it.
        sent.record(40_005, 3);
        sent.record(40_002, 4);
        assert_eq!((sent.link_of(40_002), sent.link_of(40_003)), (Some(4), None));
        sent.record(1 << 40, 5);
        assert_eq!((sent.link_of(1 << 40), sent.links.len()), (Some(5), 1));
    }
}
