//! One connection: joins handshake, link, flow and session, and keeps their timers.
//!
//! Every input updates these parts first. Then `Connection::poll_transmit` asks them for data to
//! send, most urgent first, until only a timer is left.

mod blackout_pacing;
mod channels;
mod control;
mod early;
mod end_to_end;
mod fragments;
mod idle_trim;
mod migration;
mod pollution;
mod protection;
mod receive;
mod receive_memory;
mod setup;
mod stall_detector;
mod state;
mod stateless_reset;
mod streams;
mod timeouts;
mod timers;
mod transmit;
mod unreachable_port;
mod zero_rtt;

use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU32;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bats_types::{ReportBudget, Timestamp};
use bytes::Bytes;
use rand_chacha::ChaCha8Rng;

use crate::config::{Mode, PeerLimits, TransportConfig};
use crate::congestion::{Controller, Pacer};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::handshake::Handshake;
use crate::link::mtu::MtuDiscovery;
use crate::link::received::ReceivedPackets;
use crate::link::report_budget::RangeBudget;
use crate::link::rtt::RttEstimator;
use crate::link::sent::SentPackets;
use crate::stats::ConnectionStats;
use crate::wire::short_header::PacketKind;

use blackout_pacing::BlackoutPacing;
use control::PendingControl;
use early::EarlyPackets;
use end_to_end::{EndToEndSession, LinkPacketSource};
use fragments::FragmentAssembly;
use idle_trim::IdleTrim;
use migration::Migration;
use protection::PacketProtection;
use receive_memory::ReceiveMemory;
use stall_detector::StallDetector;
use state::State;
use streams::{Outgoing, Streams};
use timers::Timers;
use zero_rtt::ZeroRtt;

pub(crate) use end_to_end::{FirstLink, PacketSource, RelayInput};
pub(crate) use setup::{Setup, local_parameters, max_message, min_receive_budget, receive_budget};

/// Bounds of the acknowledgement delay. Between them it is 1/48 of the minimum RTT, so that a rate
/// change shows within a small part of a round trip.
const MIN_ACK_DELAY: Duration = Duration::from_micros(500);
const MAX_ACK_DELAY: Duration = Duration::from_millis(3);
/// Longest time that a closed connection answers late packets. Without this bound, a peer that
/// withholds acknowledgements (which inflates the RTT estimate) could keep it open for minutes.
const MAX_LINGER: Duration = Duration::from_secs(10);
/// Size of the send window in congestion windows. A congestion window is about two BDP. Data whose
/// loss a top-up repairs stays held for two BDP, and data in flight needs a third.
const SEND_WINDOW_CWNDS: usize = 2;
/// Lower bounds of the send window in bytes, unless the budget is less. The initial one applies
/// before the path is measured, so that Startup does not wait for the application. The later one
/// is smaller, because a slow path would need minutes to send what was accepted at once.
const INITIAL_SEND_WINDOW: usize = 4 << 20;
const MIN_SEND_WINDOW: usize = 128 << 10;
/// Bytes acknowledged after which the path counts as measured.
const MEASURED_PATH_BYTES: u64 = 64 << 10;

/// Longest deadline of a message. Chosen so that sums of times cannot overflow.
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Counters of the connection that none of its parts keeps.
#[derive(Debug, Default)]
struct Counters {
    established: Option<Timestamp>,
    bytes_sent: u64,
    packets_sent: u64,
    bytes_received: u64,
    packets_received: u64,
    forged: u64,
    replayed: u64,
    malformed: u64,
    /// Packets and reports for the relay from a peer that is not admitted.
    relayed_refused: u64,
    refused_for_memory: u64,
    /// Symbols that failed authentication.
    symbols_polluted: u64,
    /// Path challenges replaced by newer ones before they were answered.
    challenges_dropped: u64,
    probe_timeouts: u64,
    messages_sent: u64,
    message_bytes_sent: u64,
    messages_received: u64,
    message_bytes_received: u64,
}

/// Acknowledgements that gave no rate sample; their sums go into the next sample.
#[derive(Debug, Default)]
struct PendingSample {
    acked_bytes: u64,
    acked_packets: u64,
    lost_bytes: u64,
    lost_packets: u64,
    lost_sent_at: Timestamp,
    ce_packets: u64,
}

#[derive(Debug)]
pub(crate) struct Connection {
    role: Role,
    config: Arc<TransportConfig>,
    rng: ChaCha8Rng,
    state: State,
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    /// The only interface to send through; a client's stays the same.
    interface: Option<NonZeroU32>,
    migration: Migration,
    stalls: StallDetector,
    idle_trim: IdleTrim,
    /// Largest UDP payload that both ends accept.
    max_udp_payload: u16,
    local_cid: [u8; 4],
    remote_cid: [u8; 4],
    code_seed: u64,

    handshake: Handshake,
    protection: Option<PacketProtection>,
    /// Bytes received and sent before the peer's address is validated (RFC 9000, section 8).
    unvalidated_received: u64,
    unvalidated_sent: u64,

    sent: SentPackets,
    received: ReceivedPackets,
    rtt: RttEstimator,
    mtu: MtuDiscovery,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    pending_sample: PendingSample,
    /// The sender ran out of data or credit before it ran out of congestion window.
    app_limited: bool,
    /// CE marks received here, and CE marks that the peer reported.
    ce_received: u64,
    ce_reported: u64,

    early: EarlyPackets,
    zero_rtt: ZeroRtt,
    streams: Option<Streams>,
    /// Agreed by both ends when the connection was established.
    mode: Option<Mode>,
    memory: ReceiveMemory,
    fragments: FragmentAssembly,
    next_fragment_id: u64,

    control: PendingControl,
    timers: Timers,
    probe_count: u32,
    /// Acknowledgements in a row, after probe timeouts, of packets without coded data only.
    small_probes_acked: u32,
    /// When coded data was last sent or last reported by the peer.
    coded_at: Timestamp,
    /// Rank feedback that the peer may cause work with.
    rank_budget: ReportBudget,
    range_budget: RangeBudget,
    /// Set during a blackout: from a probe timeout to the next answer.
    blackout: Option<BlackoutPacing>,
    /// When the first packet since the last acknowledgement was sent.
    unanswered_since: Option<Timestamp>,
    /// Packets that may be sent now regardless of congestion window and pacing.
    probes_allowed: u32,
    /// Datagrams received after the connection was closed locally.
    datagrams_since_close: u32,
    last_received_at: Timestamp,
    /// First of the "port unreachable" errors since the last packet of the peer.
    unreachable_since: Option<Timestamp>,
    last_sent_at: Timestamp,
    idle_timeout: Duration,

    /// A sealed packet that did not fit the last burst; it is sent first next time.
    stash: Vec<u8>,
    /// The coded payload that is being sent.
    scratch: Vec<u8>,
    /// Set if `scratch` is too long for the path MTU and must be fragmented.
    unsplit: Option<(PacketKind, bool)>,
    ranges: Vec<(u64, u64)>,

    /// State of a link that transports packets for the relay.
    packet_source: LinkPacketSource,
    /// Set if this is an end-to-end session over relays, not a link.
    end_to_end: Option<Box<EndToEndSession>>,

    events: VecDeque<Event>,
    readable_notified: bool,
    writable_wanted: bool,
    /// Number of expired messages when the application was last notified of free space.
    expired_notified: u64,
    /// Length of the message that was refused last.
    refused_bytes: usize,
    acknowledged_notified: bool,
    counters: Counters,
}

impl Connection {
    /// Accepts a message for sending; see [`crate::Endpoint::send`].
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        message: Bytes,
        deadline: Option<Duration>,
    ) -> Result<(), SendError> {
        if !self.state.is_open() {
            return Err(SendError::Closed);
        }
        let Some(streams) = &mut self.streams else {
            return self.send_early(now, message, deadline);
        };
        let path_window = path_window(&*self.controller, self.end_to_end.as_deref(), &self.rtt);
        if streams.outgoing.is_finished() {
            return Err(SendError::Finished);
        }
        if message.len() > streams.peer_max_message {
            return Err(SendError::TooLarge {
                size: message.len(),
                limit: streams.peer_max_message,
            });
        }
        let held = streams.outgoing.bytes_held();
        let end_to_end = self.end_to_end.as_deref();
        let acked = self.sent.bytes_acked();
        let record = self.sent.record_bytes();
        let (window, budget) = (
            send_window(&self.config, path_window, &streams.outgoing, acked, end_to_end),
            self.config.send_budget,
        );
        // Accept one message larger than the budget when nothing else is held, so that every
        // message that the peer accepts can be sent.
        let is_full = held > 0 && (held >= window || held + record + message.len() > budget);
        if is_full || record >= budget {
            self.writable_wanted = true;
            self.refused_bytes = message.len();
            return Err(SendError::Blocked(message));
        }
        self.counters.messages_sent += 1;
        self.counters.message_bytes_sent += message.len() as u64;
        let deadline = deadline.unwrap_or(self.config.deadline).min(MAX_DEADLINE);
        streams.outgoing.push(message, now + deadline);
        self.acknowledged_notified = false;
        Ok(())
    }

    /// Ends the sending direction; see [`crate::Endpoint::finish`].
    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        match &mut self.streams {
            Some(streams) if self.state.is_open() => {
                streams.outgoing.finish();
                self.control.end = streams.outgoing.end().is_some();
                self.acknowledged_notified = false;
                Ok(())
            }
            _ => Err(SendError::Closed),
        }
    }

    /// Next message in order; see [`crate::Endpoint::recv`].
    pub(crate) fn recv(&mut self, now: Timestamp) -> Option<Bytes> {
        let Some(message) = self.streams.as_mut()?.inbox.pop() else {
            // Do not notify the application of the end twice.
            self.readable_notified = self.is_finished();
            return None;
        };
        if let Some(channels) = self.streams.as_mut().and_then(|s| s.channels.as_deref_mut()) {
            channels.on_message_taken(message.len());
        }
        self.take_symbols(now);
        Some(message)
    }

    /// Whether the peer has finished and the application has read every message.
    pub(crate) fn is_finished(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.incoming.is_finished() && s.inbox.is_empty())
    }

    /// Whether the peer has acknowledged everything.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        self.streams.as_ref().is_some_and(Streams::is_all_acknowledged)
    }

    /// Closes the connection locally.
    pub(crate) fn close(&mut self, now: Timestamp, code: u64, reason: &str) {
        self.begin_close(now, true, code, reason, CloseReason::Local);
    }

    fn begin_close(
        &mut self,
        now: Timestamp,
        application: bool,
        code: u64,
        text: &str,
        reason: CloseReason,
    ) {
        if !self.state.is_open() {
            return;
        }
        self.control.close = Some((application, code, text.to_owned()));
        self.state.close(now + self.linger());
        self.events.push_back(Event::Closed(reason));
    }

    /// How long a closed connection answers late packets (RFC 9000, section 10.2).
    fn linger(&self) -> Duration {
        (self.rtt.probe_timeout(MAX_ACK_DELAY) * 3).min(MAX_LINGER)
    }

    /// Closes the connection without sending a CLOSE frame.
    fn close_silently(&mut self, reason: CloseReason) {
        if self.state.is_open() {
            self.events.push_back(Event::Closed(reason));
        }
        self.state.die();
    }

    /// Ends the connection at once.
    #[cfg(test)]
    pub(crate) fn die_for_test(&mut self) {
        self.close_silently(CloseReason::Local);
    }

    /// Whether the connection is closed and has no more events, so that it can be dropped.
    pub(crate) fn is_dead(&self) -> bool {
        self.state.is_dead() && self.events.is_empty()
    }

    /// Whether the handshake is done.
    pub(crate) fn is_established(&self) -> bool {
        self.counters.established.is_some() && !self.is_provisional()
    }

    pub(crate) fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.local_ip
    }

    pub(crate) fn mode(&self) -> Option<Mode> {
        self.mode
    }

    pub(crate) fn peer_limits(&self) -> Option<PeerLimits> {
        let streams = self.streams.as_ref()?;
        Some(PeerLimits {
            max_message_size: streams.peer_max_message,
            application: streams.peer_application,
        })
    }

    pub(crate) fn peer_fingerprint(&self) -> Option<[u8; 32]> {
        self.handshake.peer_fingerprint()
    }

    pub(crate) fn pop_event(&mut self) -> Option<Event> {
        self.events.pop_front().or_else(|| self.pop_channel_event())
    }

    /// How long this end delays acknowledgements.
    fn ack_interval(&self) -> Duration {
        (self.rtt.min() / 48).clamp(MIN_ACK_DELAY, MAX_ACK_DELAY)
    }

    /// Queues the events that result from the current state.
    fn update_application(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let readable = !streams.inbox.is_empty() || streams.incoming.is_finished();
        if readable && !self.readable_notified {
            self.readable_notified = true;
            self.events.push_back(Event::Readable);
        }
        let held = streams.outgoing.bytes_held();
        let window = send_window(
            &self.config,
            path_window(&*self.controller, self.end_to_end.as_deref(), &self.rtt),
            &streams.outgoing,
            self.sent.bytes_acked(),
            self.end_to_end.as_deref(),
        );
        let (record, budget) = (self.sent.record_bytes(), self.config.send_budget);
        let fits = record < budget && (held == 0 || held + record + self.refused_bytes <= budget);
        if self.writable_wanted && held <= window / 4 * 3 && fits {
            self.writable_wanted = false;
            self.events.push_back(Event::Writable);
        }
        let all_acknowledged = streams.is_all_acknowledged();
        if !self.acknowledged_notified && all_acknowledged {
            self.acknowledged_notified = true;
            self.events.push_back(Event::AllAcknowledged);
        }
    }

    /// Bytes received that the application has not read.
    pub(crate) fn receive_buffer_bytes(&self) -> usize {
        let held = |streams: &Streams| {
            let channels = streams.channels.as_ref().map_or(0, |channels| channels.bytes_held());
            streams.incoming.bytes_held() + streams.inbox.bytes_held() + channels
        };
        self.streams.as_ref().map_or(0, held)
    }

    /// A sample of the connection's statistics.
    pub(crate) fn stats(&self, now: Timestamp) -> ConnectionStats {
        let mut stats = ConnectionStats {
            time: now,
            established: self.counters.established,
            controller_state: self.controller.state(),
            cwnd_bytes: self.controller.window(),
            in_flight_bytes: self.sent.bytes_in_flight(),
            pacing_bps: self.controller.pacing_rate().saturating_mul(8),
            delivery_bps: self.controller.bandwidth().saturating_mul(8),
            smoothed_rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            queue_delay: self.controller.queue_delay(),
            loss_estimate: self.sent.loss.estimate(),
            own_loss: self.controller.own_loss(),
            limited_by: self.controller.limited_by(),
            burst_factor: self.sent.loss.burst_factor(),
            code_rate: 1.0,
            path_mtu: self.mtu.current(),
            bytes_sent: self.counters.bytes_sent,
            packets_sent: self.counters.packets_sent,
            bytes_received: self.counters.bytes_received,
            packets_received: self.counters.packets_received,
            packets_lost: self.sent.lost,
            packets_spuriously_lost: u64::from(self.sent.spurious),
            messages_sent: self.counters.messages_sent,
            message_bytes_sent: self.counters.message_bytes_sent,
            messages_received: self.counters.messages_received,
            message_bytes_received: self.counters.message_bytes_received,
            packets_forged: self.counters.forged,
            packets_replayed: self.counters.replayed,
            packets_malformed: self.counters.malformed,
            relayed_packets_refused: self.counters.relayed_refused,
            symbols_polluted: self.counters.symbols_polluted,
            early_packets_dropped: self.early.dropped(),
            fragments_dropped: self.fragments.dropped(),
            challenges_dropped: self.counters.challenges_dropped,
            acks_shortened: self.received.shortened(),
            probe_timeouts: self.counters.probe_timeouts,
            ecn_ce: self.ce_reported,
            path_changes: self.migration.changes,
            resumed: self.is_established() && self.handshake.is_resumed(),
            early_messages: self.zero_rtt.messages,
            early_messages_accepted: self.zero_rtt.accepted,
            early_packets_refused: self.handshake.early_refused(),
            ..ConnectionStats::default()
        };
        if let Some(end_to_end) = &self.end_to_end {
            // An end-to-end session has no congestion control of its own; its first links do.
            stats.controller_state = "links";
            stats.cwnd_bytes = end_to_end.bytes_in(end_to_end.round_trip(self.rtt.smoothed()));
            stats.pacing_bps = end_to_end.bytes_in(Duration::from_secs(8));
            stats.delivery_bps = stats.pacing_bps;
        }
        if let Some(protection) = &self.protection {
            stats.key_updates = protection.updates();
        }
        if let Some(streams) = &self.streams {
            let sender = streams.outgoing.counters();
            stats.source_packets_sent = sender.source_packets;
            stats.proactive_packets_sent = sender.proactive_packets;
            stats.top_up_packets_sent = sender.top_up_packets;
            let coded = sender.source_packets + sender.proactive_packets + sender.top_up_packets;
            if coded > 0 {
                stats.code_rate = sender.source_packets as f64 / coded as f64;
            }
            let receiver = streams.incoming.counters();
            stats.coded_packets_received = receiver.coded_received;
            stats.wasted_packets_received = receiver.wasted;
            stats.packets_refused = receiver.refused + self.counters.refused_for_memory;
            stats.symbols_decoded = receiver.symbols_decoded;
            let queued = streams.channels.as_ref().map_or(0, |channels| channels.queued_bytes());
            stats.send_buffer_bytes = (streams.outgoing.waiting_bytes() + queued) as u64;
            stats.sent_record_bytes = self.sent.bytes_held() as u64;
            stats.receive_buffer_bytes = self.receive_buffer_bytes() as u64;
            stats.messages_expired = streams.outgoing.expired();
            let residual = streams.incoming.residual();
            stats.messages_received -= residual.messages_overflowed;
            stats.messages_lost = residual.messages_lost;
            stats.symbols_lost = residual.symbols_lost;
            stats.symbols_repaired = residual.symbols_repaired;
            stats.repair_delay = residual.repair_delay;
            stats.longest_repair_delay = residual.longest_repair_delay;
        }
        stats
    }
}

/// Bytes that the path takes, about two BDP: the congestion window, or, over relays, the bytes that
/// the first links send until the peer's feedback arrives.
fn path_window(
    controller: &dyn Controller,
    end_to_end: Option<&EndToEndSession>,
    rtt: &RttEstimator,
) -> u64 {
    end_to_end.map_or_else(
        || controller.window(),
        |end_to_end| end_to_end.path_window(end_to_end.round_trip(rtt.smoothed())),
    )
}

/// Bytes that may be held for sending now.
///
/// Accepting more than a few BDP would only let data age here, and the application's counters would
/// run ahead of the network. Data kept for repair does not count against new data.
fn send_window(
    config: &TransportConfig,
    path_window: u64,
    outgoing: &Outgoing,
    acked: u64,
    end_to_end: Option<&EndToEndSession>,
) -> usize {
    let path_window = usize::try_from(path_window).unwrap_or(usize::MAX);
    let with_repairs = outgoing.flow_bytes().saturating_add(path_window);
    let window = path_window.saturating_mul(SEND_WINDOW_CWNDS).max(with_repairs);
    // Over relays the ends acknowledge almost nothing, so the first link's rate counts.
    let is_measured =
        acked >= MEASURED_PATH_BYTES || end_to_end.is_some_and(EndToEndSession::has_rate);
    let min_window = if is_measured { MIN_SEND_WINDOW } else { INITIAL_SEND_WINDOW };
    let timely = end_to_end.filter(|end_to_end| outgoing.is_timely() && end_to_end.has_rate());
    // Do not accept data that would expire in the queue.
    let in_time = timely.map(|end_to_end| end_to_end.bytes_in(config.deadline / 2));
    let max_window = in_time.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(outgoing.flow_bytes())
    });
    window.min(max_window).max(min_window).min(config.send_budget)
}
