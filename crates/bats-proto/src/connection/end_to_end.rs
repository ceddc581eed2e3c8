//! End-to-end sessions over relays, and links that transport packets for the relay.
//!
//! An admitted *link* asks its [`PacketSource`] for packets when its congestion window and pacer
//! allow, and queues received packets until the endpoint fetches them. An *end-to-end session* is a
//! connection that sends through the relay of its node: handshake and control packets as end-to-end
//! packets, coded packets (with sealed symbols) when a link asks for them. It has no congestion
//! window of its own; the first link's counts.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::pollution::FirstLinkLog;
use super::{Connection, MAX_ACK_DELAY};
use crate::crypto::SymbolKeys;
use crate::flow::PathView;
use crate::relay::{LinkView, PathSetStats};
use crate::wire::batch_rank::BatchRank;
use crate::wire::flow::{FLOW_HEADER_LEN, FlowKey};
use crate::wire::parameters::symbol_size_for;
use crate::wire::short_header::PacketKind;

/// Packets and reports that wait for the endpoint: as many as one datagram can hold, because the
/// endpoint fetches them after each datagram.
const MAX_RELAY_INPUTS: usize = 256;
/// Coded packets held until the handshake is done; more are left to repair.
const MAX_EARLY_CODED: usize = 64;
/// Probe timeouts in a row after which a link counts as unresponsive.
const UNRESPONSIVE_PROBES: u32 = 2;
/// Time without an answer, in probe timeouts, after which a link counts as unresponsive.
const UNRESPONSIVE_TIMEOUTS: u32 = 3;
/// Number of packets with overdue acknowledgements from which on a link is potentially failed (RFC
/// 7829). With a loss of one third in both directions this happens by chance once in 1,000 times.
const OVERDUE_PACKETS: usize = 8;
/// Least delay of the last of these acknowledgements: the larger of this time and this number of
/// acknowledgement intervals.
const OVERDUE_TIME: Duration = Duration::from_millis(10);
const OVERDUE_INTERVALS: u32 = 8;
/// The feedback delay: end-to-end round trips, plus a constant, in which relays repair gaps first.
const FEEDBACK_DELAY_RTTS: f64 = 2.5;
const MIN_FEEDBACK_DELAY: Duration = Duration::from_millis(50);
/// Coded packets between two estimates of the end-to-end loss.
const LOSS_PACKETS: u64 = 1_024;
/// Keep-alives that a pure receiver sends per idle timeout.
const KEEPALIVES_PER_IDLE_TIMEOUT: u32 = 4;
/// Weight of the newest estimate.
const LOSS_GAIN: f64 = 0.25;
/// A sender that has received nothing for a quarter of the idle timeout sends a PING, and repeats
/// it every 16th: modes without feedback have no other evidence that the peer is alive.
const PROBE_PEER_AFTER: u32 = 4;
const PROBE_PEER_EVERY: u32 = 16;
/// While coded packets are sent, a PING measures the round trip this often. Links acknowledge these packets,
/// so nothing else would: the handshake may have given no sample, and routes change.
const RTT_PING_INTERVAL: Duration = Duration::from_secs(1);

/// Where a link gets the packets that it transports for the relay.
pub(crate) trait PacketSource {
    /// Writes the next payload, including the flow header, to `out`; `number` is the packet number.
    fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind>;

    /// Whether [`PacketSource::pull`] would return another packet.
    fn has_more(&mut self, now: Timestamp) -> bool;

    /// Whether packets wait for the link, including those that wait for the next node's credit.
    fn has_backlog(&self) -> bool;

    /// The next report for the neighbour; `mark` is the largest packet number received.
    fn next_report(&mut self, now: Timestamp, mark: u64) -> Option<BatchRank>;

    /// Whether a report is due.
    fn has_report(&self) -> bool;
}

/// A packet or report that a link received for the relay.
#[derive(Debug)]
pub(crate) enum RelayInput {
    Packet(PacketKind, Vec<u8>),
    Report(BatchRank),
}

/// The link that asks a session for a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstLink {
    /// Its number.
    pub(crate) link: u64,
    pub(crate) view: LinkView,
    /// The other end of the link repairs its losses by recoding.
    pub(crate) recoded: bool,
    /// All links that lead to the same node, including this one.
    pub(crate) path_set: PathSetStats,
}

/// State of a link that transports packets for the relay.
#[derive(Debug, Default)]
pub(super) struct LinkPacketSource {
    pub(super) admitted: bool,
    /// The packet source had a packet when last asked, or has signalled one since.
    pub(super) ready: bool,
    relay_inputs: VecDeque<RelayInput>,
}

/// State of an end-to-end session in addition to a connection's.
#[derive(Debug)]
pub(super) struct EndToEndSession {
    pub(super) key: FlowKey,
    pub(super) symbols: Option<SymbolKeys>,
    /// Rate of the first links in bytes per second.
    rate: u64,
    /// Longest RTT of the first links, and of the links that the peer's packets arrive over.
    slowest: Duration,
    slowest_inbound: Duration,
    /// The other end of the first link reports ranks, so losses are repaired hop by hop.
    recoded: bool,
    loss: EndToEndLoss,
    /// When the last PING was sent to probe whether the peer is alive.
    peer_probed_at: Timestamp,
    /// When the last PING was sent to measure the round trip.
    rtt_measured_at: Option<Timestamp>,
    /// Polluted symbols, blocks or packets since the last authentic one.
    pub(super) polluted_in_a_row: u64,
    pub(super) first_links: FirstLinkLog,
    /// The first link of a polluted symbol, to be reported to the relay.
    pub(super) polluting_link: Option<u64>,
    /// Content of the source symbol that was checked last.
    pub(super) opened: Vec<u8>,
    /// Coded packets that arrived before the handshake was complete.
    early: Vec<(PacketKind, Vec<u8>)>,
    /// When this end sent its last keep-alive as a receiver.
    keepalive_at: Option<Timestamp>,
}

/// End-to-end loss where no relay repairs it, from the peer's packet counts.
#[derive(Debug, Default)]
struct EndToEndLoss {
    sent: u64,
    /// (Time, packets sent by then) at each report of about the last round trip.
    history: VecDeque<(Timestamp, u64)>,
    last: (u64, u64),
    estimate: f64,
    packets: u64,
}

impl EndToEndLoss {
    fn on_report(&mut self, now: Timestamp, received: u64, rtt: Duration) {
        self.history.push_back((now, self.sent));
        let mut sent = 0;
        while let Some(&(at, then)) = self.history.front()
            && (at + rtt <= now || self.history.len() > 1_024)
        {
            sent = then;
            self.history.pop_front();
        }
        let (sent_before, received_before) = self.last;
        if sent < sent_before + LOSS_PACKETS {
            return;
        }
        let arrived = received.saturating_sub(received_before) as f64;
        let loss = (1.0 - arrived / (sent - sent_before) as f64).clamp(0.0, 0.95);
        let gain = if self.packets == 0 { 1.0 } else { LOSS_GAIN };
        self.estimate += gain * (loss - self.estimate);
        self.packets += sent - sent_before;
        self.last = (sent, received);
    }
}

impl EndToEndSession {
    pub(super) fn new(key: FlowKey, recoded: bool) -> Self {
        Self {
            key,
            symbols: None,
            rate: 0,
            slowest: Duration::ZERO,
            slowest_inbound: Duration::ZERO,
            recoded,
            loss: EndToEndLoss::default(),
            peer_probed_at: Timestamp::ZERO,
            rtt_measured_at: None,
            polluted_in_a_row: 0,
            first_links: FirstLinkLog::default(),
            polluting_link: None,
            opened: Vec::new(),
            early: Vec::new(),
            keepalive_at: None,
        }
    }

    /// Whether the rate is known, because a link has asked for packets.
    pub(super) fn has_rate(&self) -> bool {
        self.rate > 0
    }

    /// Bytes that the first links send in `time`.
    pub(super) fn bytes_in(&self, time: Duration) -> u64 {
        (self.rate as f64 * time.as_secs_f64()) as u64
    }

    /// Bytes that the first links send within the feedback delay, in which relays repair.
    pub(super) fn path_window(&self, rtt: Duration) -> u64 {
        let time = rtt.mul_f64(FEEDBACK_DELAY_RTTS) + MIN_FEEDBACK_DELAY;
        (self.rate as f64 * time.as_secs_f64()) as u64
    }

    /// The round trip over the slowest of several links. The measured one is that of end-to-end
    /// packets, which take the fastest link.
    pub(super) fn round_trip(&self, measured: Duration) -> Duration {
        measured.max(self.slowest).max(self.slowest_inbound)
    }
}

impl Connection {
    /// Allows this link to transport packets for the relay.
    pub(crate) fn admit(&mut self) {
        self.packet_source.admitted = true;
    }

    /// Whether the link is established and admitted.
    pub(crate) fn is_admitted(&self) -> bool {
        self.packet_source.admitted && self.is_established()
    }

    /// Whether the peer reports batch ranks.
    pub(crate) fn peer_reports_batches(&self) -> bool {
        self.handshake.peer_parameters().is_some_and(|parameters| parameters.batch_ranks)
    }

    /// The packet source has a packet for this link.
    pub(crate) fn wake_packet_source(&mut self) {
        self.packet_source.ready = true;
    }

    /// Takes the next packet or report for the relay.
    pub(crate) fn pop_relay_input(&mut self) -> Option<RelayInput> {
        self.packet_source.relay_inputs.pop_front()
    }

    pub(super) fn push_relay_input(&mut self, input: RelayInput) {
        if self.packet_source.admitted && self.packet_source.relay_inputs.len() < MAX_RELAY_INPUTS {
            self.packet_source.relay_inputs.push_back(input);
        } else {
            self.counters.relayed_refused += 1;
        }
    }

    /// This link's measurements for the relay.
    pub(crate) fn link_view(&self, now: Timestamp) -> LinkView {
        LinkView {
            rate: self.controller.bandwidth(),
            smoothed_rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            alive: self.is_responsive(now),
            potentially_failed: self.potentially_failed_at().is_some_and(|at| at <= now),
            loss: self.sent.loss.estimate(),
            burst_factor: self.sent.loss.burst_factor(),
            packet: u64::from(self.mtu.current()),
        }
    }

    /// Whether the other end answers. A link that sends all the time never has a probe timeout, so
    /// the time since its first unanswered packet counts as well.
    fn is_responsive(&self, now: Timestamp) -> bool {
        let timeout = self.rtt.probe_timeout(MAX_ACK_DELAY) * UNRESPONSIVE_TIMEOUTS;
        self.probe_count < UNRESPONSIVE_PROBES
            && self.unanswered_since.is_none_or(|since| since + timeout > now)
    }

    /// When the link becomes potentially failed (RFC 7829): several acknowledgements are overdue,
    /// unless one arrives before. This is too early to abandon the link, but early enough to prefer
    /// another one.
    pub(super) fn potentially_failed_at(&self) -> Option<Timestamp> {
        if !self.is_admitted() {
            return None;
        }
        let late = OVERDUE_TIME.max(self.ack_interval() * OVERDUE_INTERVALS);
        Some(self.sent.unanswered(OVERDUE_PACKETS)? + self.rtt.probe_timeout(late))
    }

    /// The flow that this session sends, if it is an end-to-end session.
    pub(crate) fn flow_key(&self) -> Option<FlowKey> {
        self.end_to_end.as_ref().map(|end_to_end| end_to_end.key)
    }

    /// Whether this is an end-to-end session with coded packets to send.
    pub(crate) fn has_end_to_end_data(&self) -> bool {
        self.end_to_end.is_some() && self.state.is_established() && self.has_data()
    }

    /// Sets up symbol protection when the handshake is complete.
    pub(super) fn establish_end_to_end(&mut self, now: Timestamp) {
        let keys = self.handshake.symbol_keys();
        let Some(end_to_end) = &mut self.end_to_end else { return };
        end_to_end.symbols = keys;
        let early = core::mem::take(&mut end_to_end.early);
        let slowest = end_to_end.slowest_inbound;
        self.update_feedback_delay();
        for (kind, payload) in early {
            self.handle_flow_packet(now, kind, &payload, slowest);
        }
    }

    /// Adapts the feedback delay to the round-trip time.
    pub(super) fn update_feedback_delay(&mut self) {
        let Some(end_to_end) = &self.end_to_end else { return };
        let delay = if end_to_end.recoded {
            end_to_end.round_trip(self.rtt.smoothed()).mul_f64(FEEDBACK_DELAY_RTTS)
                + MIN_FEEDBACK_DELAY
        } else {
            Duration::ZERO
        };
        if let Some(streams) = &mut self.streams {
            streams.incoming.set_feedback_delay(delay);
            streams.outgoing.set_feedback_delay(delay);
        }
    }

    /// Bytes that an end-to-end session has not handed to a link yet.
    pub(crate) fn end_to_end_backlog(&self) -> u64 {
        self.streams.as_ref().map_or(0, |streams| streams.outgoing.unsent_bytes() as u64)
    }

    /// Whether symbols are reserved for this link.
    pub(crate) fn has_assigned(&self, link: u64) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.outgoing.has_assigned(link))
    }

    /// Lets other links send the symbols that were reserved for this one.
    pub(crate) fn release_assigned(&mut self, link: u64) {
        if let Some(streams) = &mut self.streams {
            streams.outgoing.release_assigned(link);
        }
    }

    /// Writes the next coded packet of an end-to-end session for a link.
    pub(crate) fn poll_end_to_end(
        &mut self,
        now: Timestamp,
        first: &FirstLink,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        if !self.state.is_established() {
            return None;
        }
        let end_to_end = self.end_to_end.as_mut()?;
        let several = first.path_set.links > 1;
        end_to_end.rate = if several { first.path_set.rate } else { first.view.rate };
        end_to_end.slowest = if several { first.path_set.slowest } else { Duration::ZERO };
        end_to_end.recoded = first.recoded;
        let view = &first.view;
        let path = self.path_view();
        let end_to_end = self.end_to_end.as_mut()?;
        let streams = self.streams.as_mut()?;
        let packet = u16::try_from(view.packet).unwrap_or(u16::MAX);
        let room = packet.saturating_sub(FLOW_HEADER_LEN as u16);
        let size = symbol_size_for(room).min(streams.max_symbol_size);
        let seal = &mut end_to_end.symbols.as_mut()?.seal;
        streams.outgoing.set_link(several.then_some(first.link));
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.poll(now, size, &path, Some(seal), out);
        // The remaining messages may have expired: then there is an end but no packet.
        self.control.end |= !had_end && streams.outgoing.end().is_some();
        if self.writable_wanted {
            // Without acknowledgements only sending frees send-buffer space.
            self.update_application();
        }
        let (kind, streams) = (kind?, self.streams.as_mut()?);
        let end_to_end = self.end_to_end.as_mut()?;
        if several {
            end_to_end.record_first_link(streams.outgoing.number_of(kind, out), first.link);
        }
        let since_received = now - self.last_received_at;
        if since_received >= self.idle_timeout / PROBE_PEER_AFTER
            && end_to_end.peer_probed_at + self.idle_timeout / PROBE_PEER_EVERY <= now
        {
            // Check whether a peer that sends nothing is alive.
            end_to_end.peer_probed_at = now;
            self.control.ping = true;
        }
        if end_to_end.rtt_measured_at.is_none_or(|at| at + RTT_PING_INTERVAL <= now) {
            end_to_end.rtt_measured_at = Some(now);
            self.control.ping = true;
        }
        end_to_end.loss.sent += 1;
        self.coded_at = now;
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += out.len() as u64;
        if self.timers.probe.is_none() {
            self.arm_probe(now);
        }
        Some(kind)
    }

    /// The RTT that sets how often ranks are reported. Over relays the minimum RTT is not
    /// representative, and frequent reports could fill a slow link.
    pub(super) fn report_rtt(&self) -> Duration {
        let end_to_end = self.end_to_end.as_deref();
        end_to_end.map_or_else(|| self.rtt.min(), |c| c.round_trip(self.rtt.smoothed()))
    }

    /// The end-to-end path's properties for the flow.
    pub(super) fn end_to_end_view(&self, end_to_end: &EndToEndSession) -> PathView {
        let loss = if end_to_end.recoded { 0.0 } else { end_to_end.loss.estimate };
        PathView {
            rate_bytes_per_second: end_to_end.rate,
            smoothed_rtt: end_to_end.round_trip(self.rtt.smoothed()),
            ack_interval: self.ack_interval(),
            loss,
            burst_factor: 1.0,
            loss_packets: end_to_end.loss.packets.clamp(1, 16 * LOSS_PACKETS),
            queue_delay: self.controller.queue_delay(),
        }
    }

    /// Takes a coded packet that the relay delivers; `slowest` is the longest RTT of the links that
    /// these packets arrive over.
    pub(crate) fn handle_flow_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        slowest: Duration,
    ) {
        let Some(end_to_end) = &mut self.end_to_end else { return };
        if end_to_end.slowest_inbound != slowest {
            end_to_end.slowest_inbound = slowest;
            self.update_feedback_delay();
        }
        let Some(end_to_end) = &mut self.end_to_end else { return };
        if !self.state.is_established() {
            if self.state.is_handshaking() && end_to_end.early.len() < MAX_EARLY_CODED {
                end_to_end.early.push((kind, payload.to_vec()));
            }
            return;
        }
        // Links acknowledge coded packets, end-to-end sessions do not. Without keep-alives a sender
        // whose flow has no reports would receive nothing and time out.
        let keepalive_at = *end_to_end.keepalive_at.get_or_insert(now);
        if now >= keepalive_at + self.idle_timeout / KEEPALIVES_PER_IDLE_TIMEOUT {
            end_to_end.keepalive_at = Some(now);
            self.control.ping = true;
        }
        if !self.has_memory_for_packet(now) {
            return;
        }
        self.last_received_at = now;
        self.counters.packets_received += 1;
        self.counters.bytes_received += payload.len() as u64;
        self.handle_coded(now, kind, payload);
        self.update_application();
    }

    /// Feedback of the peer arrived: updates the loss estimate and ends a blackout.
    pub(super) fn on_end_to_end_report(&mut self, now: Timestamp, received: u64) {
        let rtt = self.rtt.smoothed();
        let Some(end_to_end) = &mut self.end_to_end else { return };
        end_to_end.loss.on_report(now, received, rtt);
        self.probe_count = 0;
        self.blackout = None;
        self.arm_probe(now);
        self.update_feedback_delay();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_to_end_loss_is_estimated_from_the_peers_counts() {
        let mut loss = EndToEndLoss::default();
        let rtt = Duration::from_millis(100);
        let mut now = Timestamp::from_millis(1);
        for _ in 0..200 {
            now += Duration::from_millis(10);
            loss.sent += 100;
            // The peer has received three quarters of what was sent one round trip ago.
            loss.on_report(now, loss.sent.saturating_sub(1_000) * 3 / 4, rtt);
        }
        assert!((loss.estimate - 0.25).abs() < 0.02, "{}", loss.estimate);
    }
}
