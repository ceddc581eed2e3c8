//! One connection: joins handshake, link, flow and session, and keeps their clocks.
//!
//! The order of work is the same everywhere: an input changes the parts, then [`Connection::poll`]
//! asks them what is to be sent, in order of urgency, until only a time-out is left.

mod blackout_pacing;
mod carried;
mod control;
mod deadlines;
mod early;
mod fragments;
mod idle_trim;
mod migration;
mod pollution;
mod protection;
mod receive;
mod setup;
mod stall_detector;
mod state;
mod streams;
mod transmit;
mod zero_rtt;

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bats_types::Timestamp;
use bytes::Bytes;
use rand_chacha::ChaCha8Rng;

use crate::config::{Mode, PeerLimits, TransportConfig};
use crate::congestion::{Controller, Pacer};
use crate::error::{CloseReason, SendError};
use crate::event::Event;
use crate::handshake::Handshake;
use crate::link::mtu::MtuDiscovery;
use crate::link::received::ReceivedPackets;
use crate::link::rtt::RttEstimator;
use crate::link::sent::SentPackets;
use crate::stats::ConnectionStats;
use crate::wire::short_header::PacketKind;

use blackout_pacing::BlackoutPacing;
use carried::{EndToEndSession, LinkPacketSource};
use control::PendingControl;
use deadlines::Deadlines;
use early::EarlyPackets;
use fragments::FragmentAssembly;
use idle_trim::IdleTrim;
use migration::Migration;
use protection::PacketProtection;
use stall_detector::StallDetector;
use state::State;
use streams::{Outgoing, Streams};
use zero_rtt::ZeroRtt;

pub(crate) use carried::{Arrived, FirstLink, PacketSource};
pub(crate) use setup::{Setup, least_budget, local_parameters, max_message, receive_budget};

/// Least and most time that an acknowledgement is held back; between them a 32nd of the
/// round-trip time, so that a rate change shows within a small part of a round.
const MIN_ACK_DELAY: Duration = Duration::from_micros(500);
const MAX_ACK_DELAY: Duration = Duration::from_millis(3);
/// Longest time that a closed connection answers late packets. Otherwise a peer that withholds
/// acknowledgements, which looks like a long round trip, could keep it for minutes.
const MAX_LINGER: Duration = Duration::from_secs(10);
/// Congestion windows that the send window holds. One of them is two bandwidth-delay products or
/// so, of which a loss that is repaired by a top-up keeps two and what is under way a third.
const WINDOWS_HELD: usize = 2;
/// Bytes that the send window never falls below, unless the budget is less, before anything is known
/// of the path, so that a start-up does not wait for the application, and afterwards: slow paths
/// would have to carry for minutes what was taken in an instant.
const FIRST_SEND_WINDOW: usize = 4 << 20;
const LEAST_SEND_WINDOW: usize = 128 << 10;
/// Bytes acknowledged after which something is known.
const KNOWN_PATH_BYTES: u64 = 64 << 10;

/// Longest deadline of a message: nobody waits so long, and sums with it cannot overflow.
const MAX_DEADLINE: Duration = Duration::from_secs(3_600);

/// Which end of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// Counters of a connection that no part keeps itself.
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
    /// Carried packets and reports of a peer that may not have any carried.
    uncarried: u64,
    /// Symbols that somebody has altered on the way.
    symbols_altered: u64,
    /// Challenges replaced by newer ones before they were answered.
    challenges_dropped: u64,
    probe_timeouts: u64,
    messages_sent: u64,
    message_bytes_sent: u64,
    messages_received: u64,
    message_bytes_received: u64,
}

/// Acknowledgements that arrived without a rate sample; their sums go into the next one.
#[derive(Debug, Default)]
struct PendingSample {
    acked_bytes: u64,
    acked_packets: u64,
    lost_bytes: u64,
    lost_packets: u64,
    lost_sent_at: Timestamp,
    ce_packets: u64,
    after_blackout: bool,
}

#[derive(Debug)]
pub(crate) struct Connection {
    role: Role,
    config: Arc<TransportConfig>,
    rng: ChaCha8Rng,
    state: State,
    remote: SocketAddr,
    local_ip: Option<IpAddr>,
    migration: Migration,
    stalls: StallDetector,
    idle_trim: IdleTrim,
    /// Largest UDP payload that both ends take.
    max_udp_payload: u16,
    local_cid: [u8; 4],
    remote_cid: [u8; 4],
    code_seed: u64,

    handshake: Handshake,
    protection: Option<PacketProtection>,
    /// Bytes received and sent before the peer's address is proved (RFC 9000, section 8).
    unvalidated_received: u64,
    unvalidated_sent: u64,

    sent: SentPackets,
    received: ReceivedPackets,
    rtt: RttEstimator,
    mtu: MtuDiscovery,
    controller: Box<dyn Controller>,
    pacer: Pacer,
    pending_sample: PendingSample,
    /// The sender ran out of data (or credit) before it ran out of window.
    app_limited: bool,
    /// CE marks seen here, and reported by the peer.
    ce_received: u64,
    ce_reported: u64,

    early: EarlyPackets,
    zero_rtt: ZeroRtt,
    streams: Option<Streams>,
    /// Agreed by both ends when the connection was established.
    mode: Option<Mode>,
    fragments: FragmentAssembly,
    next_fragment_id: u64,

    control: PendingControl,
    deadlines: Deadlines,
    probe_count: u32,
    /// When coded data were sent or the peer reported of them last.
    coded_at: Timestamp,
    /// Nothing has been heard for several probe time-outs: what was found then.
    blackout: Option<BlackoutPacing>,
    /// When the first packet that no acknowledgement has followed was sent.
    unanswered_since: Option<Timestamp>,
    /// Packets that may leave now regardless of window and pacing.
    probes_allowed: u32,
    /// Datagrams that came after the connection was closed here.
    heard_since_close: u32,
    last_received_at: Timestamp,
    last_sent_at: Timestamp,
    idle_timeout: Duration,

    /// A packet that was made but did not fit the burst; leaves first next time.
    stash: Vec<u8>,
    /// The coded payload at hand.
    scratch: Vec<u8>,
    /// `scratch` is too long for the path and must be split.
    unsplit: Option<(PacketKind, bool)>,
    ranges: Vec<(u64, u64)>,

    /// What the link carries for others.
    carriage: LinkPacketSource,
    /// Set if this is a session that crosses relays, not a link.
    carried: Option<Box<EndToEndSession>>,

    events: VecDeque<Event>,
    readable_told: bool,
    writable_wanted: bool,
    /// Messages that had become too old when room was last looked for.
    expired_told: u64,
    /// Bytes of the message that was refused last.
    refused_bytes: usize,
    acknowledged_told: bool,
    counters: Counters,
}

impl Connection {
    /// Takes a message; see [`crate::Endpoint::send`].
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
        let products = products(&*self.controller, self.carried.as_deref(), &self.rtt);
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
        let carried = self.carried.as_deref();
        let acked = self.sent.bytes_acked();
        let full = held >= send_window(&self.config, products, &streams.outgoing, acked, carried)
            || held + message.len() > self.config.send_budget;
        // One message larger than the budget may pass when nothing else is held, so that every
        // message the peer accepts can be sent at all.
        if held > 0 && full {
            self.writable_wanted = true;
            self.refused_bytes = message.len();
            return Err(SendError::Blocked(message));
        }
        self.counters.messages_sent += 1;
        self.counters.message_bytes_sent += message.len() as u64;
        let deadline = deadline.unwrap_or(self.config.deadline).min(MAX_DEADLINE);
        streams.outgoing.push(message, now + deadline);
        self.acknowledged_told = false;
        Ok(())
    }

    /// Marks the end of the messages; see [`crate::Endpoint::finish`].
    pub(crate) fn finish(&mut self) -> Result<(), SendError> {
        match &mut self.streams {
            Some(streams) if self.state.is_open() => {
                streams.outgoing.finish();
                self.control.end = streams.outgoing.end().is_some();
                self.acknowledged_told = false;
                Ok(())
            }
            _ => Err(SendError::Closed),
        }
    }

    /// Next message in order; see [`crate::Endpoint::recv`].
    pub(crate) fn recv(&mut self, now: Timestamp) -> Option<Bytes> {
        let Some(message) = self.streams.as_mut()?.inbox.pop() else {
            // Who has been told of the end need not be told again.
            self.readable_told = self.is_finished();
            return None;
        };
        self.take_symbols(now);
        Some(message)
    }

    /// Whether the peer has finished and every message was taken.
    pub(crate) fn is_finished(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.incoming.is_finished() && s.inbox.is_empty())
    }

    /// Whether the peer has everything.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        self.streams.as_ref().is_some_and(|s| s.outgoing.is_all_acknowledged())
    }

    /// Ends the connection from this side.
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
        let linger = (self.rtt.probe_timeout(MAX_ACK_DELAY) * 3).min(MAX_LINGER);
        self.state.close(now + linger);
        self.events.push_back(Event::Closed(reason));
    }

    /// Ends the connection without a word to the peer.
    fn vanish(&mut self, reason: CloseReason) {
        if self.state.is_open() {
            self.events.push_back(Event::Closed(reason));
        }
        self.state.die();
    }

    /// Whether nothing is left to be done and the connection can be forgotten.
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
        self.events.pop_front()
    }

    /// How long acknowledgements are held back here.
    fn ack_interval(&self) -> Duration {
        (self.rtt.min() / 48).clamp(MIN_ACK_DELAY, MAX_ACK_DELAY)
    }

    /// Tells the application what changed for it.
    fn update_application(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let readable = !streams.inbox.is_empty() || streams.incoming.is_finished();
        if readable && !self.readable_told {
            self.readable_told = true;
            self.events.push_back(Event::Readable);
        }
        let held = streams.outgoing.bytes_held();
        let window = send_window(
            &self.config,
            products(&*self.controller, self.carried.as_deref(), &self.rtt),
            &streams.outgoing,
            self.sent.bytes_acked(),
            self.carried.as_deref(),
        );
        let fits = held == 0 || held + self.refused_bytes <= self.config.send_budget;
        if self.writable_wanted && held <= window / 4 * 3 && fits {
            self.writable_wanted = false;
            self.events.push_back(Event::Writable);
        }
        let all_acknowledged = streams.outgoing.is_all_acknowledged();
        if !self.acknowledged_told && all_acknowledged {
            self.acknowledged_told = true;
            self.events.push_back(Event::AllAcknowledged);
        }
    }

    /// Bytes that have arrived and that nobody has taken.
    pub(crate) fn receive_buffer_bytes(&self) -> usize {
        let held = |streams: &Streams| streams.incoming.bytes_held() + streams.inbox.bytes_held();
        self.streams.as_ref().map_or(0, held)
    }

    /// A sample of everything that can be seen.
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
            burst_factor: self.sent.loss.burst_factor(),
            code_rate: 1.0,
            path_mtu: self.mtu.current(),
            bytes_sent: self.counters.bytes_sent,
            packets_sent: self.counters.packets_sent,
            bytes_received: self.counters.bytes_received,
            packets_received: self.counters.packets_received,
            packets_lost: self.sent.lost,
            packets_spuriously_lost: self.sent.spurious,
            messages_sent: self.counters.messages_sent,
            message_bytes_sent: self.counters.message_bytes_sent,
            messages_received: self.counters.messages_received,
            message_bytes_received: self.counters.message_bytes_received,
            packets_forged: self.counters.forged,
            packets_replayed: self.counters.replayed,
            packets_malformed: self.counters.malformed,
            packets_uncarried: self.counters.uncarried,
            symbols_altered: self.counters.symbols_altered,
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
        if let Some(carried) = &self.carried {
            // Its own controller lets everything pass: what counts are the links that it leaves by.
            stats.controller_state = "links";
            stats.cwnd_bytes = carried.bytes_in(carried.round_trip(self.rtt.smoothed()));
            stats.pacing_bps = carried.bytes_in(Duration::from_secs(8));
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
            stats.packets_refused = receiver.refused;
            stats.symbols_decoded = receiver.symbols_decoded;
            stats.send_buffer_bytes = streams.outgoing.waiting_bytes() as u64;
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

/// About two bandwidth-delay products: what the congestion window allows, or, across relays, what
/// the first link carries until the other end has answered.
fn products(
    controller: &dyn Controller,
    carried: Option<&EndToEndSession>,
    rtt: &RttEstimator,
) -> u64 {
    carried.map_or_else(
        || controller.window(),
        |carried| carried.products(carried.round_trip(rtt.smoothed())),
    )
}

/// Bytes that may be held for sending now. What the application hands over beyond some bandwidth-
/// delay products waits here for nothing: it only ages, and the sender's figures run ahead of what
/// the network carries. What is sent and waits for repair does not count against fresh data.
fn send_window(
    config: &TransportConfig,
    products: u64,
    outgoing: &Outgoing,
    acked: u64,
    carried: Option<&EndToEndSession>,
) -> usize {
    let products = usize::try_from(products).unwrap_or(usize::MAX);
    let with_repairs = outgoing.flow_bytes().saturating_add(products);
    let window = products.saturating_mul(WINDOWS_HELD).max(with_repairs);
    // Across relays the ends acknowledge next to nothing: there the first link knows the path.
    let is_known = acked >= KNOWN_PATH_BYTES || carried.is_some_and(EndToEndSession::has_rate);
    let least = if is_known { LEAST_SEND_WINDOW } else { FIRST_SEND_WINDOW };
    let timely = carried.filter(|carried| outgoing.is_timely() && carried.has_rate());
    // What would wait beyond its deadline is not worth taking.
    let in_time = timely.map(|carried| carried.bytes_in(config.deadline / 2));
    let most = in_time.map_or(usize::MAX, |bytes| {
        usize::try_from(bytes).unwrap_or(usize::MAX).saturating_add(outgoing.flow_bytes())
    });
    window.min(most).max(least).min(config.send_budget)
}
