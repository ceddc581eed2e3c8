//! A session: mode, messages, channels, and their representation in symbols. What transports its coded packets is
//! the concern of the link below, which knows it as a `LinkSession`.

pub mod channel;
mod control;
mod datagram_assembly;
mod datagram_queue;
mod delivered;
mod end_to_end;
mod error;
pub mod group;
mod inbox;
mod limits;
mod notifications;
#[cfg(test)]
mod order_tests;
mod partial;
mod pollution;
#[cfg(test)]
mod queue_tests;
mod reassembly;
mod receive_memory;
mod receiving;
mod send_queue;
mod sending;
#[cfg(test)]
mod session_tests;
mod streams;
mod transport;

use core::time::Duration;
use std::sync::Arc;

use bats_types::{ReportBudget, Timestamp};

pub use datagram_assembly::DatagramAssembly;
pub use datagram_queue::DatagramQueue;
pub(crate) use end_to_end::FirstLink;
pub use error::SessionError;
pub use inbox::{Inbox, MESSAGE_OVERHEAD};
pub(crate) use limits::{local_parameters, max_message, min_receive_budget, receive_budget};
pub use reassembly::Reassembly;
pub use send_queue::SendQueue;

use crate::config::{CongestionAlgorithm, Mode, PeerLimits, TransportConfig};
use crate::crypto::SymbolKeys;
use crate::error::CloseReason;
use crate::event::Event;
use crate::flow::PathView;
use crate::link::report_budget::RANK_INTERVAL;
use crate::link::{
    LinkCapacity, LinkRtt, LinkSession, SessionFailure, SessionFrame, SessionFrames,
};
use crate::stats::ConnectionStats;
use crate::wire::flow::FlowKey;
use crate::wire::parameters::{TransportParameters, symbol_size_for};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

use channel::{ChannelError, ChannelEvent, Channels};
use control::SessionControl;
use end_to_end::EndToEnd;
use limits::channel_limits;
use notifications::Notifications;
use receive_memory::ReceiveMemory;
use streams::{Receiving, Sending, StreamSetup, Streams, Totals};
use transport::SessionTransport;

/// Bytes of a coded packet in addition to the symbol, at most.
const CODING_OVERHEAD: usize = 64;

/// Counters of a session that none of its parts keeps.
#[derive(Debug, Default)]
struct Counters {
    messages_sent: u64,
    message_bytes_sent: u64,
    messages_received: u64,
    message_bytes_received: u64,
    /// Messages of early data, sent or delivered.
    early_messages: u64,
    /// Client: how many of them the server had when the handshake completed.
    early_accepted: u64,
    refused_for_memory: u64,
    /// Symbols that failed authentication.
    symbols_polluted: u64,
    /// Coded packets that could not be parsed.
    malformed: u64,
}

/// Messages and channels between two ends.
#[derive(Debug)]
pub(crate) struct Session {
    config: Arc<TransportConfig>,
    /// Seed of the coefficients of this end's repairs, as in its transport parameters.
    code_seed: u64,
    transport: SessionTransport,
    /// Agreed by both ends when the session was established.
    mode: Option<Mode>,
    streams: Option<Streams>,
    memory: ReceiveMemory,
    control: SessionControl,
    /// Rank feedback that the peer may cause work with.
    rank_budget: ReportBudget,
    notifications: Notifications,
    counters: Counters,
}

impl Session {
    /// `end_to_end` is the flow that the session sends, and whether this node's relay recodes, for a session over
    /// relays.
    pub(crate) fn new(
        config: Arc<TransportConfig>,
        code_seed: u64,
        end_to_end: Option<(FlowKey, bool)>,
    ) -> Self {
        Self {
            memory: ReceiveMemory::new(receive_budget(&config)),
            config,
            code_seed,
            transport: SessionTransport::new(end_to_end),
            mode: None,
            streams: None,
            control: SessionControl::default(),
            rank_budget: ReportBudget::new(RANK_INTERVAL),
            notifications: Notifications::new(),
            counters: Counters::default(),
        }
    }

    pub(crate) fn config(&self) -> &TransportConfig {
        &self.config
    }

    pub(crate) fn mode(&self) -> Option<Mode> {
        self.mode
    }

    /// The mode of the session: the client's, if the server accepts it.
    pub(crate) fn agreed_mode(&self, is_server: bool, peers: u8) -> Option<Mode> {
        let theirs = Mode::from_number(peers)?;
        let own = self.config.mode;
        if !is_server {
            // The server's parameters carry its preferred mode; accepting the connection counts.
            return Some(own);
        }
        let is_accepted = theirs == own || self.config.also_accepted.contains(&theirs);
        (theirs.is_own() && is_accepted).then_some(theirs)
    }

    /// The congestion controller that a link needs for a mode of this session.
    pub(crate) fn algorithm(&self, mode: Mode) -> CongestionAlgorithm {
        // Over relays, the first link's controller applies.
        if self.transport.is_relays() || mode.is_uncontrolled() {
            return CongestionAlgorithm::None;
        }
        self.config.congestion
    }

    /// The peer's parameters are known.
    pub(crate) fn establish(&mut self, mode: Mode, peer: &TransportParameters, is_server: bool) {
        self.mode = Some(mode);
        self.streams = Some(Streams::new(StreamSetup {
            config: &self.config,
            mode,
            peer,
            code_seed: self.code_seed,
            over_relays: self.transport.is_relays(),
            is_sealed: self.transport.may_pollute(),
            channels: self.agreed_channels(mode, peer, is_server),
        }));
        self.notifications.on_established();
    }

    /// The channels of an established session, if both ends have them.
    fn agreed_channels(
        &self,
        mode: Mode,
        peer: &TransportParameters,
        is_server: bool,
    ) -> Option<Box<Channels>> {
        let own = channel_limits(&self.config, self.memory_limit())?;
        let peer = peer.channels.filter(|_| mode.has_channels())?;
        Some(Box::new(Channels::new(is_server, own, peer)))
    }

    /// Installs the keys of an end-to-end session when the handshake is complete. Returns the coded packets that
    /// arrived before, and the longest RTT of the links that they arrived over.
    pub(crate) fn establish_end_to_end(
        &mut self,
        keys: Option<SymbolKeys>,
        smoothed_rtt: Duration,
    ) -> (Vec<(PacketKind, Vec<u8>)>, Duration) {
        let Some(end_to_end) = self.transport.end_to_end_mut() else { return Default::default() };
        let early = end_to_end.set_keys(keys);
        self.update_feedback_delay(smoothed_rtt);
        early
    }

    /// Adapts the feedback delay to the round-trip time.
    fn update_feedback_delay(&mut self, smoothed_rtt: Duration) {
        let Some(end_to_end) = self.transport.end_to_end() else { return };
        let delay = end_to_end.feedback_delay(smoothed_rtt);
        if let Some(streams) = &mut self.streams {
            streams.incoming.set_feedback_delay(delay);
            streams.outgoing.set_feedback_delay(delay);
        }
    }

    /// The flow that this session sends, if it is an end-to-end session.
    pub(crate) fn flow_key(&self) -> Option<FlowKey> {
        self.transport.end_to_end().map(EndToEnd::key)
    }

    pub(crate) fn peer_limits(&self) -> Option<PeerLimits> {
        let streams = self.streams.as_ref()?;
        Some(PeerLimits {
            max_message_size: streams.peer_max_message,
            application: streams.peer_application,
        })
    }

    /// Channels of an established session.
    pub(crate) fn channels(&mut self) -> Result<&mut Channels, ChannelError> {
        let channels = self.streams.as_mut().and_then(|streams| streams.channels.as_deref_mut());
        channels.ok_or(ChannelError::Unsupported)
    }

    /// Something was written to a channel, or a channel was ended.
    pub(crate) fn on_channel_used(&mut self) {
        self.notifications.on_sending();
    }

    pub(crate) fn push_event(&mut self, event: Event) {
        self.notifications.push(event);
    }

    /// The next event; those of channels only while the connection `is_open`.
    pub(crate) fn pop_event(&mut self, is_open: bool) -> Option<Event> {
        self.notifications.pop().or_else(|| if is_open { self.pop_channel_event() } else { None })
    }

    fn pop_channel_event(&mut self) -> Option<Event> {
        Some(match self.channels().ok()?.pop_event()? {
            ChannelEvent::Incoming => Event::ChannelIncoming,
            ChannelEvent::Available => Event::ChannelAvailable,
            ChannelEvent::Readable(id) => Event::ChannelReadable(id),
            ChannelEvent::Writable(id) => Event::ChannelWritable(id),
        })
    }

    /// Whether events wait for the application, those of channels not counted.
    pub(crate) fn has_events(&self) -> bool {
        !self.notifications.is_empty()
    }

    /// Queues the events that result from the current state.
    pub(crate) fn update_application(&mut self, capacity: &LinkCapacity) {
        let Some(streams) = &self.streams else { return };
        let is_readable = streams.is_readable();
        let all_acknowledged = streams.is_all_acknowledged();
        let is_writable = self.notifications.awaits_space() && self.is_writable(streams, capacity);
        if is_readable {
            self.notifications.notify_readable();
        }
        if is_writable {
            self.notifications.notify_writable();
        }
        if all_acknowledged {
            self.notifications.notify_acknowledged();
        }
    }

    /// When a timer of the streams expires; without those of sending unless `may_send`.
    fn next_stream_timeout(&self, may_send: bool) -> Option<Timestamp> {
        let streams = self.streams.as_ref()?;
        let outgoing = streams.outgoing.next_timeout().filter(|_| may_send);
        Timestamp::earlier(outgoing, streams.incoming.next_timeout())
    }

    /// Adds what the session counts to a sample of statistics, which the link has begun.
    pub(crate) fn add_stats(&self, stats: &mut ConnectionStats) {
        stats.messages.sent = self.counters.messages_sent;
        stats.messages.bytes_sent = self.counters.message_bytes_sent;
        stats.messages.received = self.counters.messages_received;
        stats.messages.bytes_received = self.counters.message_bytes_received;
        stats.coding.symbols_polluted = self.counters.symbols_polluted;
        stats.early.messages = self.counters.early_messages;
        stats.early.messages_accepted = self.counters.early_accepted;
        stats.packets.malformed += self.counters.malformed;
        stats.coding.code_rate = 1.0;
        if let Some(end_to_end) = self.transport.end_to_end() {
            // An end-to-end session has no congestion control of its own; its first links do.
            stats.congestion.controller_state = "links";
            stats.congestion.cwnd_bytes =
                end_to_end.bytes_in(end_to_end.round_trip(stats.path.smoothed_rtt));
            stats.congestion.pacing_bps = end_to_end.bytes_in(Duration::from_secs(8));
            stats.congestion.delivery_bps = stats.congestion.pacing_bps;
        }
        let Some(streams) = &self.streams else { return };
        let sender = streams.outgoing.counters();
        stats.coding.source_packets_sent = sender.source_packets;
        stats.coding.proactive_packets_sent = sender.proactive_packets;
        stats.coding.top_up_packets_sent = sender.top_up_packets;
        let coded = sender.source_packets + sender.proactive_packets + sender.top_up_packets;
        if coded > 0 {
            stats.coding.code_rate = sender.source_packets as f64 / coded as f64;
        }
        let receiver = streams.incoming.counters();
        stats.coding.coded_packets_received = receiver.coded_received;
        stats.coding.wasted_packets_received = receiver.wasted;
        stats.packets.refused = receiver.refused + self.counters.refused_for_memory;
        stats.coding.symbols_decoded = receiver.symbols_decoded;
        stats.buffers.send_bytes = streams.send_buffer_bytes() as u64;
        stats.buffers.receive_bytes = streams.receive_buffer_bytes() as u64;
        stats.messages.expired = streams.outgoing.expired();
        let residual = streams.incoming.residual();
        stats.messages.lost = residual.messages_lost;
        stats.coding.symbols_lost = residual.symbols_lost;
        stats.coding.symbols_repaired = residual.symbols_repaired;
        stats.coding.repair_delay = residual.repair_delay;
        stats.coding.longest_repair_delay = residual.longest_repair_delay;
    }
}

impl LinkSession for Session {
    fn has_data(&self) -> bool {
        self.streams.as_ref().is_some_and(Streams::has_data)
    }

    fn awaits_decoding(&self) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.outgoing.awaits_decoding())
    }

    fn next_coded(
        &mut self,
        now: Timestamp,
        path_mtu: u16,
        view: &PathView,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let streams = self.streams.as_mut()?;
        let symbol_size = symbol_size_for(path_mtu).min(streams.max_symbol_size);
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.poll(now, symbol_size, view, None, out);
        // The last message has been cut into symbols: the totals for the END frame are known.
        self.control.announce_end(had_end, streams.outgoing.end().is_some());
        kind
    }

    fn is_control_due(&mut self, now: Timestamp) -> bool {
        let feedback_at = self.streams.as_ref().and_then(|s| s.incoming.feedback_at());
        if feedback_at.is_some_and(|at| at <= now) {
            self.control.report_ranks();
        }
        self.control.is_due()
    }

    fn is_end_due(&self) -> bool {
        self.control.is_end_due()
    }

    fn next_control(&mut self, now: Timestamp, rtt: LinkRtt) -> SessionFrames {
        let rtt = self.transport.report_rtt(rtt);
        self.control.take(now, self.streams.as_mut(), rtt)
    }

    fn last_feedback(&mut self, now: Timestamp, rtt: LinkRtt) -> Option<RankFeedback> {
        let rtt = self.transport.report_rtt(rtt);
        self.streams.as_mut()?.incoming.feedback(now, rtt)
    }

    fn on_nothing_sent(&mut self, capacity: impl FnOnce() -> LinkCapacity) {
        if !self.notifications.awaits_space() {
            return;
        }
        let Some(streams) = &self.streams else { return };
        // Expired messages free send-buffer space without an acknowledgement, so notify the
        // application here. Do so only when more have expired: otherwise notifications could
        // repeat endlessly at one instant.
        let is_new = self.notifications.on_expired(streams.outgoing.expired());
        if is_new || streams.outgoing.bytes_held() == 0 {
            self.update_application(&capacity());
        }
    }

    fn may_take_packet(&mut self, now: Timestamp) -> Result<bool, SessionFailure> {
        self.make_room(now)
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_coded(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: LinkRtt,
    ) -> Result<(), SessionFailure> {
        self.take_coded(now, kind, payload, rtt)
    }

    fn max_payload(&self) -> usize {
        self.streams.as_ref().map_or(0, |streams| streams.max_symbol_size + CODING_OVERHEAD)
    }

    fn may_read_ranks(&self, now: Timestamp) -> bool {
        self.rank_budget.has_left(now)
    }

    fn on_frame(&mut self, now: Timestamp, frame: SessionFrame) -> Result<(), SessionFailure> {
        match frame {
            SessionFrame::Rank(feedback, view) => return self.on_rank(now, feedback, &view),
            SessionFrame::SymbolPolluted(number) => return self.on_pollution_report(number),
            SessionFrame::Credit(symbols) => {
                if let Some(streams) = &mut self.streams {
                    streams.outgoing.on_credit(symbols);
                }
            }
            SessionFrame::End { symbols, messages } => {
                let until = now + self.config.deadline;
                if let Some(streams) = &mut self.streams {
                    streams.incoming.on_end(Totals { symbols, messages }, until);
                    streams.incoming.on_timeout(now);
                }
            }
        }
        Ok(())
    }

    fn on_end_acknowledged(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_end_acknowledged();
        }
    }

    fn on_lost(&mut self, credit: bool, end: bool) {
        self.control.on_lost(credit, end);
    }

    fn on_probe_timeout(&mut self, packets: u64) -> bool {
        self.streams.as_mut().is_some_and(|streams| streams.outgoing.on_probe_timeout(packets))
    }

    fn on_path_lost(&mut self, now: Timestamp, view: &PathView, is_limited: bool) {
        let view = self.transport.view(view);
        if let Some(streams) = &mut self.streams {
            streams.outgoing.on_path_lost(now, &view, is_limited);
        }
    }

    fn report_soon(&mut self) {
        self.control.report_ranks();
    }

    fn handle_timeout(&mut self, now: Timestamp, view: &PathView) {
        self.control.handle_timeout(now);
        let view = self.transport.view(view);
        if let Some(streams) = &mut self.streams {
            let had_end = streams.outgoing.end().is_some();
            streams.outgoing.on_timeout(now, &view);
            streams.incoming.on_timeout(now);
            self.control.announce_end(had_end, streams.outgoing.end().is_some());
        }
    }

    fn next_timeout(&self, may_send: bool) -> Option<Timestamp> {
        Timestamp::earlier(self.control.next_timeout(), self.next_stream_timeout(may_send))
    }

    fn trim(&mut self) {
        self.notifications.trim();
        if let Some(streams) = &mut self.streams {
            streams.trim();
        }
    }

    fn on_accepted(&mut self) {
        self.notifications.push(Event::Connected);
    }

    fn on_closed_by_peer(&mut self) {
        if let Some(streams) = &mut self.streams {
            streams.incoming.on_closed();
        }
    }

    fn on_closed(&mut self, reason: CloseReason) {
        self.notifications.push(Event::Closed(reason));
    }
}
