//! The sending direction: cuts messages into symbols and makes repairs after feedback.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::totals::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, FlowSender, PathView, RatelessSender, SenderCounters, TimelySender};
use crate::session::channel::Channels;
use crate::session::{DatagramQueue, SendQueue};
use crate::wire::coding::{RepairHeader, SourceHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// The sending direction of a session, by mode.
#[derive(Debug)]
pub(in crate::session) enum Outgoing {
    /// BRTP: reliable and ordered.
    Reliable { queue: SendQueue, flow: FlowSender },
    /// BRCTP: reliable and ordered, coded in blocks.
    Rateless { queue: SendQueue, flow: RatelessSender },
    /// BTP: messages with deadlines.
    Timely { queue: DatagramQueue, flow: TimelySender, end_acknowledged: bool },
}

impl Outgoing {
    pub(in crate::session) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.is_finished(),
            Self::Timely { queue, .. } => queue.is_finished(),
        }
    }

    /// Frees memory that only a busy flow needs.
    pub(in crate::session) fn trim(&mut self) {
        match self {
            Self::Reliable { flow, .. } => flow.trim(),
            Self::Timely { flow, .. } => flow.trim(),
            Self::Rateless { flow, .. } => flow.trim(),
        }
    }

    /// Ends the flow.
    pub(in crate::session) fn finish(&mut self) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.finish(),
            Self::Timely { queue, .. } => queue.finish(),
        }
    }

    /// The totals for the END frame, if the flow has ended and the mode uses that frame.
    pub(in crate::session) fn end(&self) -> Option<Totals> {
        match self {
            Self::Timely { queue, flow, .. } if queue.is_finished() && queue.is_empty() => {
                Some(Totals { symbols: flow.symbols(), messages: queue.messages() })
            }
            _ => None,
        }
    }

    /// Sets the credit for messages; only a session with channels has it.
    pub(in crate::session) fn set_message_credit(&mut self, credit: u64) {
        if let Self::Reliable { queue, .. } = self {
            queue.set_credit(credit);
        }
    }

    /// Queues a message; in modes with deadlines it expires at `expires`.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(in crate::session) fn push(&mut self, message: Bytes, expires: Timestamp) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.push(message),
            Self::Timely { queue, .. } => queue.push(message, expires),
        }
    }

    /// Skips the numbers of the first `count` messages, which were sent as early data.
    pub(in crate::session) fn skip(&mut self, count: u64) {
        if let Self::Timely { queue, .. } = self {
            queue.skip(count);
        }
    }

    /// Bytes not yet sent or not yet acknowledged. In modes with deadlines, symbols kept for repair
    /// do not count.
    pub(in crate::session) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Timely { queue, .. } => queue.bytes_held(),
            _ => self.bytes_held(),
        }
    }

    /// Queued bytes and bytes kept for repair.
    pub(in crate::session) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
        .saturating_add(self.flow_bytes())
    }

    pub(in crate::session) fn flow_bytes(&self) -> usize {
        match self {
            Self::Reliable { flow, .. } => flow.bytes_held(),
            Self::Rateless { flow, .. } => flow.bytes_held(),
            Self::Timely { flow, .. } => flow.bytes_held(),
        }
    }

    /// Bytes not yet sent.
    pub(in crate::session) fn unsent_bytes(&self) -> usize {
        match self {
            Self::Reliable { queue, flow } => queue.bytes_held() + flow.unsent_bytes(),
            Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
    }

    /// Sets the link that the next packets are for; `None` if there is only one.
    pub(in crate::session) fn set_link(&mut self, link: Option<u64>) {
        match self {
            Self::Reliable { flow, .. } => flow.set_link(link),
            Self::Rateless { flow, .. } => flow.set_link(link),
            Self::Timely { .. } => {}
        }
    }

    /// See [`FlowSender::has_assigned`].
    pub(in crate::session) fn has_assigned(&self, link: u64) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.has_assigned(link),
            Self::Rateless { flow, .. } => flow.has_assigned(link),
            Self::Timely { .. } => false,
        }
    }

    /// See [`FlowSender::release_assigned`].
    pub(in crate::session) fn release_assigned(&mut self, link: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.release_assigned(link),
            Self::Rateless { flow, .. } => flow.release_assigned(link),
            Self::Timely { .. } => {}
        }
    }

    /// The peer has acknowledged the END frame.
    pub(in crate::session) fn on_end_acknowledged(&mut self) {
        if let Self::Timely { end_acknowledged, .. } = self {
            *end_acknowledged = true;
        }
    }

    /// Whether every message is acknowledged or expired, and the end of the flow too, if it ended.
    pub(in crate::session) fn is_all_acknowledged(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Rateless { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Timely { queue, flow, end_acknowledged } => {
                queue.is_empty() && flow.is_idle() && (*end_acknowledged || !queue.is_finished())
            }
        }
    }

    pub(in crate::session) fn has_data(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => queue.is_sendable() || flow.wants_to_send(),
            Self::Rateless { queue, flow } => !queue.is_empty() || flow.wants_to_send(),
            Self::Timely { queue, flow, .. } => !queue.is_empty() || flow.wants_to_send(),
        }
    }

    /// Writes the next coded payload to `out`. Symbols are cut as late as possible, so that small
    /// messages share a symbol and the symbol size follows the path MTU.
    pub(in crate::session) fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        mut channels: Option<&mut Channels>,
        mut seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        match self {
            Self::Reliable { queue, flow } => {
                let has_more = |queue: &SendQueue, channels: &Option<&mut Channels>| {
                    queue.is_sendable() || channels.as_ref().is_some_and(|c| c.is_sendable())
                };
                while flow.wants_symbol() && has_more(queue, &channels) {
                    let number = flow.next_symbol();
                    let mut fill = |bytes: &mut [u8]| match &mut channels {
                        None => queue.fill_symbol(bytes),
                        Some(channels) => channels.fill_symbol(queue, bytes),
                    };
                    let pushed = flow.push_symbol(symbol_size, |bytes| match &mut seal {
                        None => fill(bytes),
                        Some(key) => key.seal(number, bytes, fill),
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, path, has_more(queue, &channels), out)
            }
            Self::Rateless { queue, flow } => {
                while flow.wants_block() && !queue.is_empty() {
                    let number = flow.next_number();
                    let pushed = flow.push_block(symbol_size, path, |bytes| {
                        let len = match &mut seal {
                            None => queue.fill_symbol(bytes),
                            Some(key) => key.seal_block(number, bytes, |o| queue.fill_symbol(o)),
                        };
                        (len, !queue.is_empty())
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, out)
            }
            Self::Timely { queue, flow, .. } => {
                queue.expire(now);
                while flow.wants_symbol() && !queue.is_empty() {
                    let number = flow.symbols();
                    let pushed = flow.push_symbol(symbol_size, |bytes| match &mut seal {
                        None => queue.fill_symbol(now, bytes),
                        Some(key) => {
                            let mut expires = now;
                            let len = key.seal(number, bytes, |bytes| {
                                let (len, at) = queue.fill_symbol(now, bytes);
                                expires = at;
                                len
                            });
                            (len, expires)
                        }
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, path, !queue.is_empty(), out)
            }
        }
    }

    pub(in crate::session) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { flow, .. } => flow.next_timeout(),
            Self::Rateless { .. } => None,
            Self::Timely { flow, .. } => flow.next_timeout(),
        }
    }

    pub(in crate::session) fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        match self {
            Self::Reliable { flow, .. } => flow.on_timeout(now),
            Self::Rateless { .. } => {}
            Self::Timely { queue, flow, .. } => {
                queue.expire(now);
                flow.on_timeout(now, path);
            }
        }
    }

    /// The probe timeout expired: returns whether there is data to retransmit. In a blackout,
    /// `blackout_packets` may be sent until the next one.
    pub(in crate::session) fn on_probe_timeout(&mut self, blackout_packets: u64) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.on_probe_timeout(blackout_packets),
            Self::Rateless { flow, .. } => flow.on_probe_timeout(),
            Self::Timely { flow, .. } => flow.wants_to_send(),
        }
    }

    /// The path was abandoned: everything in flight that is not reported as received is lost.
    pub(in crate::session) fn on_path_lost(
        &mut self,
        now: Timestamp,
        path: &PathView,
        is_limited: bool,
    ) {
        match self {
            Self::Reliable { flow, .. } => flow.on_path_lost(now, path, is_limited),
            Self::Rateless { flow, .. } => _ = flow.on_probe_timeout(),
            // These symbols would arrive too late.
            Self::Timely { .. } => {}
        }
    }

    pub(in crate::session) fn awaits_decoding(&self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.awaits_decoding(),
            Self::Rateless { flow, .. } => !flow.all_acknowledged(),
            Self::Timely { .. } => false,
        }
    }

    pub(in crate::session) fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        match self {
            Self::Reliable { flow, .. } => flow.on_rank_feedback(now, feedback, path),
            Self::Rateless { flow, .. } => flow.on_rank_feedback(0, now, feedback, path),
            // Sent only at the end of a connection, when it has no effect.
            Self::Timely { .. } => Ok(()),
        }
    }

    pub(in crate::session) fn on_credit(&mut self, symbols: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.on_credit(symbols),
            Self::Rateless { flow, .. } => flow.on_credit(symbols),
            Self::Timely { .. } => {}
        }
    }

    pub(in crate::session) fn counters(&self) -> SenderCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely { flow, .. } => flow.counters(),
        }
    }

    pub(in crate::session) fn expired(&self) -> u64 {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => 0,
            Self::Timely { queue, .. } => queue.expired(),
        }
    }

    /// The number of the packet's symbol or block, by which the peer can attribute pollution.
    pub(in crate::session) fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64> {
        let mut reader = Reader::new(payload);
        match self {
            Self::Reliable { flow, .. } if kind == PacketKind::Source => {
                Some(SourceHeader::decode(&mut reader)?.number(flow.next_symbol()))
            }
            Self::Timely { flow, .. } if kind == PacketKind::Source => {
                Some(SourceHeader::decode(&mut reader)?.number(flow.symbols()))
            }
            Self::Rateless { flow, .. } => {
                Some(RepairHeader::decode(&mut reader)?.first_symbol(flow.next_number()))
            }
            Self::Reliable { .. } | Self::Timely { .. } => None,
        }
    }

    /// The peer reported pollution.
    pub(in crate::session) fn on_polluted(&mut self) {
        if let Self::Rateless { flow, .. } = self {
            flow.on_polluted();
        }
    }

    /// Removes symbols that were never sent from a report.
    pub(in crate::session) fn limit(&self, feedback: &mut RankFeedback) {
        let end = match self {
            Self::Reliable { flow, .. } => flow.sent_end(),
            Self::Rateless { flow, .. } => flow.next_number(),
            Self::Timely { .. } => return,
        };
        if feedback.seen_end > end {
            feedback.seen_end = end;
            feedback.entries.retain(|entry| entry.first.saturating_add(entry.span) <= end);
        }
    }

    /// Whether messages have deadlines.
    pub(in crate::session) fn is_timely(&self) -> bool {
        matches!(self, Self::Timely { .. })
    }

    /// Sets how long the receiver leaves the repair of gaps to relays.
    pub(in crate::session) fn set_feedback_delay(&mut self, delay: Duration) {
        if let Self::Rateless { flow, .. } = self {
            flow.set_feedback_delay(delay);
        }
    }
}
