//! Pollution attacks on end-to-end sessions: detection, and attribution to a path.
//!
//! A symbol's seal shows pollution, but not which relay caused it. A source symbol takes the path
//! of its batch, and only the sender knows the first link of that path. The receiver therefore
//! reports symbols that only packets of their own batch can have polluted. The sender then avoids
//! that link if there is another one.

use std::collections::VecDeque;

use crate::crypto::SymbolKey;

/// Polluted symbols or packets in a row, without an authentic one between them, after which the
/// session is closed. A path that pollutes a few per mille of its packets never reaches this.
const MAX_POLLUTED_IN_A_ROW: u64 = 256;
/// The same for blocks. One polluted packet makes a block of 512 packets fail. With one polluted packet
/// in 1,000, four blocks in ten are polluted, and 32 in a row with a probability of 10^-12.
const MAX_BLOCKS_IN_A_ROW: u64 = 32;
/// Symbol numbers whose first link the sender remembers: those in flight at 1 Gbit/s and 150 ms.
const FIRST_LINK_LOG_LEN: usize = 16_384;

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
struct FirstLinkLog {
    base: u64,
    links: VecDeque<SentOver>,
}

impl FirstLinkLog {
    fn record(&mut self, number: u64, link: u64) {
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
    fn link_of(&self, number: u64) -> Option<u64> {
        let index = usize::try_from(number.checked_sub(self.base)?).ok()?;
        match self.links.get(index)? {
            SentOver::Link(link) => Some(*link),
            SentOver::NotSent | SentOver::SeveralLinks => None,
        }
    }
}

/// Polluted symbols of an end-to-end session, and the links that its own symbols were sent over.
#[derive(Debug, Default)]
pub(super) struct Pollution {
    /// Polluted symbols, blocks or packets since the last authentic one.
    in_a_row: u64,
    first_links: FirstLinkLog,
    /// The first link of a polluted symbol, to be reported to the relay.
    polluting_link: Option<u64>,
    /// Content of the source symbol that was checked last.
    opened: Vec<u8>,
}

impl Pollution {
    /// Whether a source symbol is authentic. Checked before it can pollute repairs, once there has been
    /// pollution.
    pub(super) fn is_authentic(&mut self, key: &mut SymbolKey, number: u64, symbol: &[u8]) -> bool {
        key.open(number, symbol, &mut self.opened)
    }

    /// This number of polluted symbols, blocks or packets arrived. Returns the number in a row if it
    /// reaches the limit; `are_blocks` selects the one of blocks.
    pub(super) fn on_polluted(&mut self, count: u64, are_blocks: bool) -> Option<u64> {
        self.in_a_row += count;
        let limit = if are_blocks { MAX_BLOCKS_IN_A_ROW } else { MAX_POLLUTED_IN_A_ROW };
        (self.in_a_row >= limit).then_some(self.in_a_row)
    }

    /// An authentic symbol or block arrived.
    pub(super) fn on_authentic(&mut self) {
        self.in_a_row = 0;
    }

    /// Records the link that a symbol or block is sent over.
    pub(super) fn record_first_link(&mut self, number: Option<u64>, link: u64) {
        if let Some(number) = number {
            self.first_links.record(number, link);
        }
    }

    /// The peer reports this symbol or block as polluted.
    pub(super) fn on_report(&mut self, number: u64) {
        self.polluting_link = self.first_links.link_of(number).or(self.polluting_link);
    }

    /// Takes the link that a reported polluted symbol was sent over; each report once.
    pub(super) fn take_polluting_link(&mut self) -> Option<u64> {
        self.polluting_link.take()
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

    #[test]
    fn session_ends_after_pollution_without_an_authentic_symbol() {
        let mut pollution = Pollution::default();
        assert_eq!(pollution.on_polluted(255, false), None);
        pollution.on_authentic();
        assert_eq!(pollution.on_polluted(255, false), None);
        assert_eq!(pollution.on_polluted(2, false), Some(257));
        pollution.on_authentic();
        assert_eq!(pollution.on_polluted(31, true), None);
        assert_eq!(pollution.on_polluted(1, true), Some(32));
    }

    #[test]
    fn reported_symbol_blames_its_link_once() {
        let mut pollution = Pollution::default();
        pollution.record_first_link(Some(3), 7);
        pollution.record_first_link(None, 8);
        pollution.on_report(3);
        pollution.on_report(4);
        assert_eq!(pollution.take_polluting_link(), Some(7));
        assert_eq!(pollution.take_polluting_link(), None);
    }
}
