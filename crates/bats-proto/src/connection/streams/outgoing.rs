//! From the application to the peer: messages become symbols, and reports become repairs.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::Totals;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, FlowSender, PathView, RatelessSender, SenderCounters, TimelySender};
use crate::session::{DatagramQueue, SendQueue};
use crate::wire::coding::{RepairHeader, SourceHeader};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Reader;

/// From the application to the peer.
#[derive(Debug)]
pub(in crate::connection) enum Outgoing {
    /// BRTP: everything, in order.
    Reliable { queue: SendQueue, flow: FlowSender },
    /// BRCTP: everything, in order, in blocks.
    Rateless { queue: SendQueue, flow: RatelessSender },
    /// BTP: in time or not at all.
    Timely { queue: DatagramQueue, flow: TimelySender, end_acknowledged: bool },
}

impl Outgoing {
    pub(in crate::connection) fn is_finished(&self) -> bool {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.is_finished(),
            Self::Timely { queue, .. } => queue.is_finished(),
        }
    }

    /// Declares the end.
    pub(in crate::connection) fn finish(&mut self) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.finish(),
            Self::Timely { queue, .. } => queue.finish(),
        }
    }

    /// What the flow had, if its end is to be told now apart from the data.
    pub(in crate::connection) fn end(&self) -> Option<Totals> {
        match self {
            Self::Timely { queue, flow, .. } if queue.is_finished() && queue.is_empty() => {
                Some(Totals { symbols: flow.symbols(), messages: queue.messages() })
            }
            _ => None,
        }
    }

    /// Takes a message that is worth something until `expires`, where that counts.
    pub(in crate::connection) fn push(&mut self, message: Bytes, expires: Timestamp) {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.push(message),
            Self::Timely { queue, .. } => queue.push(message, expires),
        }
    }

    /// The first `count` messages have gone with the first flight.
    pub(in crate::connection) fn skip(&mut self, count: u64) {
        if let Self::Timely { queue, .. } = self {
            queue.skip(count);
        }
    }

    /// Bytes that wait to be sent or to be acknowledged. What is kept for the repair of messages with
    /// deadlines waits for nothing.
    pub(in crate::connection) fn waiting_bytes(&self) -> usize {
        match self {
            Self::Timely { queue, .. } => queue.bytes_held(),
            _ => self.bytes_held(),
        }
    }

    /// Bytes that wait and bytes kept for repair.
    pub(in crate::connection) fn bytes_held(&self) -> usize {
        match self {
            Self::Reliable { queue, .. } | Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
        .saturating_add(self.flow_bytes())
    }

    pub(in crate::connection) fn flow_bytes(&self) -> usize {
        match self {
            Self::Reliable { flow, .. } => flow.bytes_held(),
            Self::Rateless { flow, .. } => flow.bytes_held(),
            Self::Timely { flow, .. } => flow.bytes_held(),
        }
    }

    /// Bytes that were not sent yet.
    pub(in crate::connection) fn unsent_bytes(&self) -> usize {
        match self {
            Self::Reliable { queue, flow } => queue.bytes_held() + flow.unsent_bytes(),
            Self::Rateless { queue, .. } => queue.bytes_held(),
            Self::Timely { queue, .. } => queue.bytes_held(),
        }
    }

    /// Packets are for this link from now on, one of several; `None`: there is but one.
    pub(in crate::connection) fn set_link(&mut self, link: Option<u64>) {
        match self {
            Self::Reliable { flow, .. } => flow.set_link(link),
            Self::Rateless { flow, .. } => flow.set_link(link),
            Self::Timely { .. } => {}
        }
    }

    /// See [`FlowSender::has_share_of`].
    pub(in crate::connection) fn has_share_of(&self, link: u64) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.has_share_of(link),
            Self::Rateless { flow, .. } => flow.has_share_of(link),
            Self::Timely { .. } => false,
        }
    }

    /// See [`FlowSender::release_share`].
    pub(in crate::connection) fn release_share(&mut self, link: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.release_share(link),
            Self::Rateless { flow, .. } => flow.release_share(link),
            Self::Timely { .. } => {}
        }
    }

    /// The peer knows the end that was told apart from the data.
    pub(in crate::connection) fn on_end_acknowledged(&mut self) {
        if let Self::Timely { end_acknowledged, .. } = self {
            *end_acknowledged = true;
        }
    }

    /// Whether the peer has everything, or it is too late for the rest; and knows the end, if there
    /// is one.
    pub(in crate::connection) fn is_all_acknowledged(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Rateless { queue, flow } => queue.is_empty() && flow.all_acknowledged(),
            Self::Timely { queue, flow, end_acknowledged } => {
                queue.is_empty() && flow.is_idle() && (*end_acknowledged || !queue.is_finished())
            }
        }
    }

    pub(in crate::connection) fn has_data(&self) -> bool {
        match self {
            Self::Reliable { queue, flow } => !queue.is_empty() || flow.wants_to_send(),
            Self::Rateless { queue, flow } => !queue.is_empty() || flow.wants_to_send(),
            Self::Timely { queue, flow, .. } => !queue.is_empty() || flow.wants_to_send(),
        }
    }

    /// The next coded payload into `out`. Symbols are cut as late as possible, so that small
    /// messages share them and the size follows the path.
    pub(in crate::connection) fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        mut seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        match self {
            Self::Reliable { queue, flow } => {
                while flow.wants_symbol() && !queue.is_empty() {
                    let number = flow.next_symbol();
                    let pushed = flow.push_symbol(symbol_size, |bytes| match &mut seal {
                        None => queue.fill_symbol(bytes),
                        Some(key) => key.seal(number, bytes, |bytes| queue.fill_symbol(bytes)),
                    });
                    if !pushed {
                        break;
                    }
                }
                flow.poll(now, path, !queue.is_empty(), out)
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
                        None => queue.fill_symbol(bytes),
                        Some(key) => {
                            let mut expires = now;
                            let len = key.seal(number, bytes, |bytes| {
                                let (len, at) = queue.fill_symbol(bytes);
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

    pub(in crate::connection) fn next_timeout(&self) -> Option<Timestamp> {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => None,
            Self::Timely { flow, .. } => flow.next_timeout(),
        }
    }

    pub(in crate::connection) fn on_timeout(&mut self, now: Timestamp, path: &PathView) {
        if let Self::Timely { queue, flow, .. } = self {
            queue.expire(now);
            flow.on_timeout(now, path);
        }
    }

    /// Nothing was heard for long: whether there is something to say again.
    pub(in crate::connection) fn on_probe_timeout(&mut self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.on_probe_timeout(),
            Self::Rateless { flow, .. } => flow.on_probe_timeout(),
            Self::Timely { flow, .. } => flow.wants_to_send(),
        }
    }

    /// What was under way is gone with its path, as far as no report names it.
    pub(in crate::connection) fn on_path_lost(&mut self, now: Timestamp, path: &PathView) {
        match self {
            Self::Reliable { flow, .. } => flow.on_path_lost(now, path),
            Self::Rateless { flow, .. } => _ = flow.on_probe_timeout(),
            // Of what was late already, more is not worth sending.
            Self::Timely { .. } => {}
        }
    }

    pub(in crate::connection) fn awaits_decoding(&self) -> bool {
        match self {
            Self::Reliable { flow, .. } => flow.awaits_decoding(),
            Self::Rateless { flow, .. } => !flow.all_acknowledged(),
            Self::Timely { .. } => false,
        }
    }

    pub(in crate::connection) fn on_rank_feedback(
        &mut self,
        now: Timestamp,
        feedback: &RankFeedback,
        path: &PathView,
    ) -> Result<(), FlowError> {
        match self {
            Self::Reliable { flow, .. } => flow.on_rank_feedback(now, feedback, path),
            Self::Rateless { flow, .. } => flow.on_rank_feedback(0, now, feedback, path),
            // Told at the end of a connection only; there is nothing to be done about it.
            Self::Timely { .. } => Ok(()),
        }
    }

    pub(in crate::connection) fn on_credit(&mut self, symbols: u64) {
        match self {
            Self::Reliable { flow, .. } => flow.on_credit(symbols),
            Self::Rateless { flow, .. } => flow.on_credit(symbols),
            Self::Timely { .. } => {}
        }
    }

    pub(in crate::connection) fn counters(&self) -> SenderCounters {
        match self {
            Self::Reliable { flow, .. } => flow.counters(),
            Self::Rateless { flow, .. } => flow.counters(),
            Self::Timely { flow, .. } => flow.counters(),
        }
    }

    pub(in crate::connection) fn expired(&self) -> u64 {
        match self {
            Self::Reliable { .. } | Self::Rateless { .. } => 0,
            Self::Timely { queue, .. } => queue.expired(),
        }
    }

    /// The number by which the peer can tell which way a packet took: that of its symbol, or of its
    /// block.
    pub(in crate::connection) fn number_of(&self, kind: PacketKind, payload: &[u8]) -> Option<u64> {
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

    /// What was sent was altered on the way.
    pub(in crate::connection) fn on_altered(&mut self) {
        if let Self::Rateless { flow, .. } = self {
            flow.on_altered();
        }
    }

    /// Takes out of a report what was not sent.
    pub(in crate::connection) fn limit(&self, feedback: &mut RankFeedback) {
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

    /// Whether messages are worth something for a while only.
    pub(in crate::connection) fn is_timely(&self) -> bool {
        matches!(self, Self::Timely { .. })
    }

    /// Sets how long the repair of gaps is left to relays.
    pub(in crate::connection) fn set_feedback_delay(&mut self, patience: Duration) {
        if let Self::Rateless { flow, .. } = self {
            flow.set_feedback_delay(patience);
        }
    }
}
