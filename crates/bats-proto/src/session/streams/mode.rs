//! The interface of a mode: what its directions do. What has a default is a matter of some modes only.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::taken::{Taken, TakenEarly};
use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, PathView, ReceiverCounters, ResidualStats, SenderCounters};
use crate::session::channel::Channels;
use crate::session::{Inbox, SessionError};
use crate::wire::coding::SourceHeader;
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// The sending direction of a mode.
pub(in crate::session) trait Sending {
    fn is_finished(&self) -> bool;

    /// Frees memory that only a busy flow needs.
    fn trim(&mut self);

    /// Ends the flow.
    fn finish(&mut self);

    /// The totals for the END frame, if the flow has ended and the mode uses that frame.
    fn end(&self) -> Option<Totals> {
        None
    }

    /// Sets the credit for messages; only a session with channels has it.
    fn set_message_credit(&mut self, _credit: u64) {}

    /// Queues a message; in modes with deadlines it expires at `expires`.
    fn push(&mut self, message: Bytes, expires: Timestamp);

    /// Skips the numbers of the first `count` messages, which were sent as early data.
    fn skip(&mut self, _count: u64) {}

    /// Bytes of messages that no symbol has yet.
    fn queued_bytes(&self) -> usize;

    /// Bytes kept for repair.
    fn flow_bytes(&self) -> usize;

    /// Queued bytes and bytes kept for repair.
    fn bytes_held(&self) -> usize {
        self.queued_bytes().saturating_add(self.flow_bytes())
    }

    /// Bytes not yet sent or not yet acknowledged. In modes with deadlines, symbols kept for repair
    /// do not count.
    fn waiting_bytes(&self) -> usize {
        self.bytes_held()
    }

    /// Bytes not yet sent.
    fn unsent_bytes(&self) -> usize {
        self.queued_bytes()
    }

    /// Sets the link that the next packets are for; `None` if there is only one.
    fn set_link(&mut self, _link: Option<u64>) {}

    /// Whether unsent symbols are reserved for this link.
    fn has_assigned(&self, _link: u64) -> bool {
        false
    }

    /// Lets other links send the symbols that were reserved for this one.
    fn release_assigned(&mut self, _link: u64) {}

    /// The peer has acknowledged the END frame.
    fn on_end_acknowledged(&mut self) {}

    /// Whether every message is acknowledged or expired, and the end of the flow too, if it ended.
    fn is_all_acknowledged(&self) -> bool;

    fn has_data(&self) -> bool;

    /// Writes the next coded payload to `out`. Symbols are cut as late as possible, so that small
    /// messages share a symbol and the symbol size follows the path MTU.
    fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        channels: Option<&mut Channels>,
        seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind>;

    /// When to call [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<Timestamp>;

    fn on_timeout(&mut self, now: Timestamp, path: &PathView);

    /// The probe timeout expired: returns whether there is data to retransmit. In a blackout,
    /// `blackout_packets` may be sent until the next one.
    fn on_probe_timeout(&mut self, blackout_packets: u64) -> bool;

    /// The path was abandoned: everything in flight that is not reported as received is lost. In modes with
    /// deadlines these symbols would arrive too late.
    fn on_path_lost(&mut self, now: Timestamp, path: &PathView, is_limited: bool);

    /// Whether packets are in flight of which the peer has not reported that it can decode them.
    fn awaits_decoding(&self) -> bool;

    fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError>;

    fn on_credit(&mut self, symbols: u64);

    fn counters(&self) -> SenderCounters;

    /// Messages that expired before they were sent.
    fn expired(&self) -> u64 {
        0
    }

    /// The number of the packet's symbol or block, by which the peer can attribute pollution.
    fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64>;

    /// The peer reported pollution.
    fn on_polluted(&mut self) {}

    /// One more than the newest symbol or block that was sent, if the peer reports ranks.
    fn sent_end(&self) -> Option<u64>;

    /// Removes symbols that were never sent from a report.
    fn limit(&self, feedback: &mut RankFeedback) {
        let Some(end) = self.sent_end() else { return };
        if feedback.seen_end > end {
            feedback.seen_end = end;
            feedback.entries.retain(|entry| entry.first.saturating_add(entry.span) <= end);
        }
    }

    /// Whether messages have deadlines.
    fn is_timely(&self) -> bool {
        false
    }

    /// Sets how long the receiver leaves the repair of gaps to relays.
    fn set_feedback_delay(&mut self, _delay: Duration) {}
}

/// The receiving direction of a mode.
pub(in crate::session) trait Receiving {
    /// Frees memory that only a busy flow needs.
    fn trim(&mut self);

    /// Passes a coded packet to the flow.
    fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError>;

    /// Reassembles messages from received symbols. Reliable modes deliver in order, as far as the
    /// room suffices. BTP delivers at once; if `replace_oldest` (the second part of `room`) is set, it drops
    /// the oldest messages for which there is no room.
    ///
    /// With a key, symbols are opened first. Polluted ones are dropped; reliable modes treat them
    /// as missing again.
    fn take(
        &mut self,
        inbox: &mut Inbox,
        channels: Option<&mut Channels>,
        room: (usize, bool),
        open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError>;

    /// Takes a payload of early data: message frames as in a symbol.
    ///
    /// # Errors
    ///
    /// The mode has no early data, the frames are malformed, or a message number is beyond the limit for early
    /// data.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn take_early(
        &mut self,
        _payload: &[u8],
        _inbox: &mut Inbox,
        _budget: usize,
    ) -> Result<TakenEarly, SessionError> {
        Err(SessionError::Sequence)
    }

    /// Marks messages (a bit mask) that another connection has already delivered.
    fn record_early(&mut self, _delivered: u32) {}

    /// When to send rank feedback.
    fn feedback_at(&self) -> Option<Timestamp>;

    /// The rank feedback to send now.
    fn feedback(&mut self, now: Timestamp, rtt: Duration) -> Option<RankFeedback>;

    /// Raises the memory that this direction may hold.
    fn raise_budget(&mut self, bytes: usize);

    /// Whether a symbol or block is ready for the session.
    fn has_ready(&self) -> bool;

    /// Whether the flow holds anything, if it consists of blocks.
    fn holds_blocks(&self, _inbox: &Inbox) -> Option<bool> {
        None
    }

    /// Bytes that may be held in addition when a packet fills a gap.
    fn growth(&self) -> usize {
        0
    }

    /// Bytes of the message under assembly that are still to come.
    fn bytes_missing(&self) -> usize {
        0
    }

    /// Frees what can be spared: the oldest message if the mode does not repair everything, or what only saves work.
    /// Returns whether it did.
    fn free_some(&mut self, _inbox: &mut Inbox) -> bool {
        false
    }

    /// Whether to send a CREDIT frame now. `elsewhere` bytes are not available; `None` if
    /// messages and channels have credit of their own.
    fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
        elsewhere: Option<usize>,
    ) -> bool;

    /// The credit for the CREDIT frame.
    fn credit(&mut self) -> Option<u64>;

    /// The peer's flow ends with `totals`; missing symbols are awaited until `until`.
    fn on_end(&mut self, _totals: Totals, _until: Timestamp) {}

    /// When to call [`on_timeout`](Self::on_timeout).
    fn next_timeout(&self) -> Option<Timestamp>;

    /// Completes the flow when nothing is missing, or when the time for missing symbols is over.
    fn on_timeout(&mut self, now: Timestamp);

    /// The peer has closed the connection: if its END frame has arrived, the flow is complete, and
    /// missing symbols will not arrive any more.
    fn on_closed(&mut self) {}

    /// Whether no more messages will become readable.
    fn is_finished(&self) -> bool;

    fn bytes_held(&self) -> usize;

    fn counters(&self) -> ReceiverCounters;

    /// Residual loss and repair delay.
    fn residual(&self) -> ResidualStats {
        ResidualStats::default()
    }

    /// Sets how long the receiver leaves the repair of gaps to relays before it reports them.
    fn set_feedback_delay(&mut self, _delay: Duration) {}

    /// Whether whole blocks are sealed instead of symbols.
    fn seals_blocks(&self) -> bool {
        false
    }

    /// One more than the newest symbol that is known to exist, if source packets have symbols.
    fn seen_end(&self) -> Option<u64>;

    /// Symbol number and symbol of a source packet.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn source<'a>(&self, payload: &'a [u8]) -> Option<(u64, &'a [u8])> {
        let seen_end = self.seen_end()?;
        let mut reader = Reader::new(payload);
        let number = SourceHeader::decode(&mut reader)?.number(seen_end);
        Some((number, reader.rest()))
    }
}
