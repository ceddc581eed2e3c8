//! A link: one hop with one neighbour. It has handshake, keys, packet numbers, acknowledgements, loss detection,
//! round-trip time, path MTU, congestion control and migration. What it transports is the concern of the
//! session above it, a `LinkSession`, and of the relay, a `PacketSource`.

mod acks;
mod activity;
mod blackout_pacing;
mod closing;
mod congestion;
mod control;
mod counters;
mod early;
mod early_data;
mod establishment;
mod fragments;
mod ids;
#[cfg(test)]
mod link_tests;
/// Loss and burst estimate.
pub mod loss;
/// Path MTU discovery.
pub mod mtu;
mod packet_buffers;
mod path;
mod probing;
mod protection;
mod receive;
/// Replay window and acknowledgement ranges.
pub mod received;
mod relayed;
mod replay_window;
pub(crate) mod report_budget;
mod responsiveness;
/// Round-trip time.
pub mod rtt;
/// Packets in flight and loss detection.
pub mod sent;
#[cfg(test)]
mod sent_tests;
mod session_interface;
mod setup;
mod stall_detector;
mod state;
mod timer;
mod transmit;

use core::net::IpAddr;
use core::time::Duration;
use std::sync::Arc;

use bats_types::{STUCK_TIMER, Timestamp};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub(crate) use relayed::{PacketSource, RelayInput};
pub(crate) use session_interface::{
    LinkCapacity, LinkRtt, LinkSession, SessionFailure, SessionFrame, SessionFrames,
};
pub(crate) use setup::{LinkSetup, Medium, Role};
pub(crate) use timer::take_expired;

use crate::config::{CongestionAlgorithm, TransportConfig};
use crate::error::CloseReason;
use crate::flow::PathView;
use crate::handshake::{Handshake, RetransmitTimers};
use crate::relay::LinkView;
use crate::remote::Remote;
use crate::stats::ConnectionStats;
use crate::wire::flow::NodeId;
use crate::wire::parameters::TransportParameters;
use crate::wire::stateless_reset::RESET_TOKEN_LEN;

use acks::{Acknowledgements, MAX_ACK_DELAY, MIN_ACK_DELAY};
use activity::Activity;
use closing::{CloseText, Closing};
use congestion::Congestion;
use control::LinkControl;
use counters::Counters;
use early::EarlyPackets;
use early_data::EarlyMessages;
use establishment::Establishment;
use fragments::FragmentAssembly;
use ids::ConnectionIds;
use mtu::{BLACK_HOLE_LOSSES, MtuDiscovery};
use packet_buffers::PacketBuffers;
use path::Path;
use probing::{Outstanding, Probing, end_to_end_probe_timeout};
use protection::PacketProtection;
use relayed::Relayed;
use report_budget::RangeBudget;
use responsiveness::Responsiveness;
use rtt::RttEstimator;
use sent::SentPackets;
use state::State;

/// One hop with one neighbour.
#[derive(Debug)]
pub(crate) struct Link {
    role: Role,
    medium: Medium,
    config: Arc<TransportConfig>,
    rng: ChaCha8Rng,
    state: State,
    closing: Closing,
    path: Path,
    ids: ConnectionIds,

    handshake: Handshake,
    protection: Option<PacketProtection>,
    establishment: Establishment,
    early: EarlyPackets,

    sent: SentPackets,
    acks: Acknowledgements,
    range_budget: RangeBudget,
    rtt: RttEstimator,
    mtu: MtuDiscovery,
    congestion: Congestion,
    probing: Probing,
    activity: Activity,

    control: LinkControl,
    buffers: PacketBuffers,
    fragments: FragmentAssembly,
    relayed: Relayed,
    counters: Counters,
}

impl Link {
    pub(crate) fn new(now: Timestamp, mut setup: LinkSetup) -> Self {
        setup.handshake.set_timers(RetransmitTimers::of(&setup.config));
        let mut rng = ChaCha8Rng::from_seed(setup.seed);
        let skip_phase = rng.next_u64();
        let config = setup.config;
        Self {
            role: setup.role,
            medium: setup.medium,
            rng,
            state: State::new(),
            closing: Closing::default(),
            path: Path::new(setup.remote, setup.local),
            ids: ConnectionIds { local: setup.local_cid, remote: [0; 4] },
            handshake: setup.handshake,
            protection: None,
            establishment: Establishment::default(),
            early: EarlyPackets::default(),
            sent: SentPackets::new(skip_phase),
            acks: Acknowledgements::default(),
            range_budget: RangeBudget::default(),
            rtt: RttEstimator::new(config.initial_rtt),
            mtu: MtuDiscovery::new(config.max_udp_payload),
            congestion: Congestion::new(config.congestion, config.initial_rtt),
            probing: Probing::new(now),
            activity: Activity::new(now, config.idle_timeout),
            control: LinkControl::default(),
            buffers: PacketBuffers::default(),
            fragments: FragmentAssembly::default(),
            relayed: Relayed::default(),
            counters: Counters::default(),
            config,
        }
    }

    /// The handshake and the data of its early part.
    pub(crate) fn handshake(&self) -> &Handshake {
        &self.handshake
    }

    /// The messages of the handshake's early part.
    pub(crate) fn early_messages(&mut self) -> EarlyMessages<'_> {
        EarlyMessages::new(&mut self.handshake)
    }

    /// Frees the TLS session if it is not needed any more.
    pub(crate) fn release_tls_session(&mut self) {
        self.handshake.release_session(false);
    }

    pub(crate) fn role(&self) -> Role {
        self.role
    }

    /// Installs the keys for data packets when the handshake has made them.
    pub(crate) fn install_keys(&mut self, now: Timestamp) {
        if self.protection.is_none()
            && let Some(keys) = self.handshake.take_one_rtt_keys()
        {
            self.protection = PacketProtection::new(now, keys, &mut self.handshake, &self.config);
            // For a CLOSE frame if the handshake fails now.
            self.ids.remote = self.handshake.peer_cid().unwrap_or(self.ids.remote);
        }
    }

    /// Whether there are keys for data packets.
    pub(crate) fn has_keys(&self) -> bool {
        self.protection.is_some()
    }

    /// The peer's parameters and connection ID, for [`Self::establish`].
    pub(crate) fn peer(&self) -> Option<(TransportParameters, [u8; 4])> {
        Some((self.handshake.peer_parameters().cloned()?, self.handshake.peer_cid()?))
    }

    /// Sets the peer's connection ID.
    pub(crate) fn set_remote_cid(&mut self, remote_cid: [u8; 4]) {
        self.ids.remote = remote_cid;
    }

    /// The peer's parameters are known: the link can transport data. A server does that before the client is
    /// validated if it accepts early data.
    pub(crate) fn establish(
        &mut self,
        now: Timestamp,
        peer: &TransportParameters,
        algorithm: CongestionAlgorithm,
    ) {
        if let Some(rtt) = self.handshake.rtt_sample() {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
        }
        self.mtu = MtuDiscovery::new(self.config.max_udp_payload.min(peer.max_udp_payload));
        self.activity.set_idle_timeout(self.config.idle_timeout.min(peer.idle_timeout));
        self.congestion.set_algorithm(algorithm);
        self.restart_congestion_control();
        self.state.establish();
        self.activity.restart_idle_timer(now);
        self.establishment.establish(now, self.handshake.is_complete());
    }

    /// A client's link is established. Shows the server at once that the client has 1-RTT keys, even if the
    /// Finished is lost.
    pub(crate) fn confirm_to_server(&mut self) {
        self.control.ping();
    }

    /// The client of this server is validated.
    pub(crate) fn confirm_to_client(&mut self) {
        self.control.confirm_handshake(!self.handshake.post_handshake_data().is_empty());
    }

    /// The client is validated after early data. There is no RTT sample before.
    pub(crate) fn confirm_provisional(&mut self, now: Timestamp) {
        self.establishment.validate();
        if let Some(rtt) = self.handshake.rtt_sample() {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
            self.restart_congestion_control();
            self.congestion.on_sent(now, self.sent.bytes_sent(), 0);
        }
        self.confirm_to_client();
        self.handshake.release_session(false);
        self.activity.restart_idle_timer(now);
    }

    /// Replaces the congestion controller: only the round-trip time of the path is known.
    fn restart_congestion_control(&mut self) {
        let seed = u64::from(u32::from_le_bytes(self.ids.local));
        self.congestion.restart(self.rtt.smoothed(), seed);
    }

    /// Closes the link and the session.
    pub(crate) fn begin_close(
        &mut self,
        now: Timestamp,
        application: bool,
        code: u64,
        text: &str,
        reason: CloseReason,
        session: &mut impl LinkSession,
    ) {
        if !self.state.is_open() {
            return;
        }
        self.closing.begin(CloseText { application, code, text: text.to_owned() });
        self.state.close(now + closing::linger(&self.rtt));
        session.on_closed(reason);
    }

    /// Closes the link without sending a CLOSE frame.
    pub(crate) fn close_silently(&mut self, reason: CloseReason, session: &mut impl LinkSession) {
        if self.state.is_open() {
            session.on_closed(reason);
        }
        self.state.die();
    }

    /// The session cannot go on: closes the connection and reports the reason.
    pub(crate) fn fail(
        &mut self,
        now: Timestamp,
        failure: SessionFailure,
        session: &mut impl LinkSession,
    ) {
        let (code, text, reason) = failure.close();
        self.begin_close(now, false, code, &text, reason, session);
    }

    /// The peer violated the protocol: closes the connection and reports the rule.
    pub(crate) fn on_protocol_violation(
        &mut self,
        now: Timestamp,
        rule: &str,
        session: &mut impl LinkSession,
    ) {
        self.fail(now, SessionFailure::Violation(rule.to_owned()), session);
    }

    /// Whether the handshake goes on.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.state.is_handshaking()
    }

    /// Whether data can be sent and received, maybe before the client is validated.
    pub(crate) fn is_active(&self) -> bool {
        self.state.is_established()
    }

    /// Whether the link is set up but the client is not validated yet.
    pub(crate) fn is_provisional(&self) -> bool {
        self.establishment.is_provisional()
    }

    /// Whether the handshake is done, even if the link was closed later.
    pub(crate) fn was_validated(&self) -> bool {
        self.establishment.was_validated()
    }

    /// Whether the link is not closed.
    pub(crate) fn is_open(&self) -> bool {
        self.state.is_open()
    }

    /// Whether the link is closed and answers no late packets any more.
    pub(crate) fn is_dead(&self) -> bool {
        self.state.is_dead()
    }

    pub(crate) fn remote(&self) -> Remote {
        self.path.remote()
    }

    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.path.local_ip()
    }

    pub(crate) fn local_cid(&self) -> [u8; 4] {
        self.ids.local
    }

    /// When the last packet of the peer arrived, and after how long without one the connection ends.
    pub(crate) fn idle_time(&self) -> (Timestamp, Duration) {
        (self.activity.last_received_at(), self.activity.idle_timeout())
    }

    /// Round-trip times for the session.
    pub(crate) fn rtt(&self) -> LinkRtt {
        LinkRtt { smoothed: self.rtt.smoothed(), min: self.rtt.min() }
    }

    /// What the link takes, for the session.
    pub(crate) fn capacity(&self) -> LinkCapacity {
        LinkCapacity {
            window: self.congestion.controller().window(),
            smoothed_rtt: self.rtt.smoothed(),
            bytes_acked: self.sent.bytes_acked(),
            record_bytes: self.sent.record_bytes(),
        }
    }

    /// The link's properties for the flow.
    pub(crate) fn path_view(&self) -> PathView {
        PathView {
            rate_bytes_per_second: self.congestion.controller().bandwidth(),
            smoothed_rtt: self.rtt.smoothed(),
            ack_interval: self.ack_interval(),
            loss: self.sent.loss.estimate(),
            burst_factor: self.sent.loss.burst_factor(),
            loss_packets: self.sent.loss.packets(),
            queue_delay: self.congestion.controller().queue_delay(),
        }
    }

    /// How long this end delays acknowledgements.
    fn ack_interval(&self) -> Duration {
        (self.rtt.min() / 48).clamp(MIN_ACK_DELAY, MAX_ACK_DELAY)
    }

    /// Allows this link to transport packets for the relay.
    pub(crate) fn admit(&mut self) {
        self.relayed.admit();
    }

    /// Whether the link is established and admitted.
    pub(crate) fn is_admitted(&self) -> bool {
        self.relayed.is_admitted() && self.was_validated()
    }

    /// The packet source has a packet for this link.
    pub(crate) fn wake_packet_source(&mut self) {
        self.relayed.set_ready(true);
    }

    /// Takes the next packet or report for the relay.
    pub(crate) fn pop_relay_input(&mut self) -> Option<RelayInput> {
        self.relayed.pop()
    }

    /// This link's measurements for the relay.
    pub(crate) fn link_view(&self, now: Timestamp) -> LinkView {
        LinkView {
            rate: self.congestion.controller().bandwidth(),
            smoothed_rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            alive: self.responsiveness().is_responsive(now),
            potentially_failed: self.is_admitted()
                && self.responsiveness().is_potentially_failed(now),
            loss: self.sent.loss.estimate(),
            burst_factor: self.sent.loss.burst_factor(),
            packet: u64::from(self.mtu.current()),
        }
    }

    /// Adds what the link counts and measures to a sample of statistics.
    pub(crate) fn add_stats(&self, stats: &mut ConnectionStats) {
        stats.established = self.establishment.since();
        stats.resumed = self.was_validated() && self.handshake.is_resumed();
        stats.key_updates = self.protection.as_ref().map_or(0, PacketProtection::updates);
        stats.early.packets_refused = self.handshake.early_refused();
        self.congestion.add_stats(&mut stats.congestion);
        stats.congestion.in_flight_bytes = self.sent.bytes_in_flight();
        stats.congestion.probe_timeouts = self.probing.total();
        stats.path.smoothed_rtt = self.rtt.smoothed();
        stats.path.min_rtt = self.rtt.min();
        stats.path.loss_estimate = self.sent.loss.estimate();
        stats.path.burst_factor = self.sent.loss.burst_factor();
        stats.path.queue_delay = self.congestion.controller().queue_delay();
        stats.path.mtu = self.mtu.current();
        stats.path.changes = self.path.changes();
        stats.path.challenges_dropped = self.control.challenges_dropped();
        self.counters.add_stats(&mut stats.packets);
        stats.packets.lost = self.sent.lost;
        stats.packets.spuriously_lost = u64::from(self.sent.spurious);
        stats.packets.relayed_refused = self.relayed.refused();
        stats.packets.early_dropped = self.early.dropped();
        stats.packets.fragments_dropped = self.fragments.dropped();
        stats.packets.acks_shortened = self.acks.shortened();
        if stats.established.is_some() {
            stats.buffers.sent_record_bytes = self.sent.bytes_held() as u64;
        }
    }

    /// Whether the other end answers.
    fn responsiveness(&self) -> Responsiveness<'_> {
        Responsiveness {
            sent: &self.sent,
            probing: &self.probing,
            rtt: &self.rtt,
            ack_interval: self.ack_interval(),
        }
    }

    /// When the link becomes potentially failed, if it may transport packets for the relay.
    fn potentially_failed_at(&self) -> Option<Timestamp> {
        if self.is_admitted() { self.responsiveness().potentially_failed_at() } else { None }
    }

    /// The token that ends a stateless reset of this connection (RFC 9000, section 10.3), at a client.
    pub(crate) fn reset_token(&self) -> Option<&[u8; RESET_TOKEN_LEN]> {
        if self.role == Role::Server || !self.was_validated() {
            return None;
        }
        self.handshake.peer_parameters()?.reset_token.as_ref()
    }

    /// Instance of the authenticated peer, if it announces one.
    pub(crate) fn peer_instance(&self) -> Option<u64> {
        let instance = self.handshake.peer_parameters()?.instance;
        (instance > 0 && self.was_validated()).then_some(instance)
    }

    /// Whether an ICMP error that quotes this UDP payload answers a packet of this link.
    pub(crate) fn is_quoted(&self, payload: &[u8]) -> bool {
        self.ids.are_quoted(payload, self.state.is_established())
    }

    /// Whether this is a client that no server has answered yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.role == Role::Client
            && self.state.is_handshaking()
            && self.handshake.peer_cid().is_none()
    }

    /// A relay has no route to the peer of this end-to-end session. Routes change, and the
    /// session cannot authenticate the relay. So an established session goes on, and an attempt ends
    /// when the route is missing for some time.
    pub(crate) fn handle_no_route(
        &mut self,
        now: Timestamp,
        relay: NodeId,
        destination: NodeId,
        session: &mut impl LinkSession,
    ) {
        if self.is_unanswered() && self.activity.on_no_route(now) {
            let text = format!("{relay} has no route to {destination}");
            self.close_silently(CloseReason::Lost(text), session);
        }
    }

    /// The peer's port is unreachable: an ICMP error (RFC 8085, section 5.2; RFC 5927 for forged ones). A client
    /// without an answer fails at once. Otherwise the connection ends when errors persist.
    pub(crate) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        session: &mut impl LinkSession,
    ) {
        if self.medium == Medium::Relays || !self.state.is_open() {
            return;
        }
        if self.is_unanswered() {
            return self.close_silently(CloseReason::Refused, session);
        }
        if self.activity.on_unreachable_port(now, self.rtt.probe_timeout(MAX_ACK_DELAY)) {
            let text = "the peer has gone: its port is closed".to_owned();
            self.close_silently(CloseReason::Lost(text), session);
        }
    }

    /// Handles all expired timers, also those of the session. Returns whether the link goes on.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Timestamp,
        session: &mut impl LinkSession,
    ) -> bool {
        if self.state.is_dead() {
            return false;
        }
        if let Some(until) = self.state.closing_until() {
            if until > now {
                return false;
            }
            // The first CLOSE frame is still to be sent if the process was not scheduled
            // meanwhile. `poll_transmit` always sends it, so this prolongs the state once.
            match self.closing.is_unsent() {
                true => self.state.linger(now + closing::linger(&self.rtt)),
                false => self.state.die(),
            }
            return false;
        }
        self.trim_if_idle(now, session);
        self.handshake.handle_timeout(now);
        let is_open = self.state.is_handshaking() || self.is_provisional();
        if is_open && self.handshake.has_timed_out(now) {
            self.close_silently(CloseReason::HandshakeTimeout, session);
            return false;
        }
        if self.activity.has_timed_out(now, self.state.is_handshaking()) {
            let reason = CloseReason::IdleTimeout(self.activity.idle_timeout());
            self.close_silently(reason, session);
            return false;
        }
        self.acks.handle_timeout(now);
        if let Some(protection) = &mut self.protection {
            protection.handle_timeout(now);
        }
        if self.activity.take_keep_alive(now) {
            self.control.ping();
        }
        if let Some(padded) = self.activity.take_stall(now) {
            self.control.ping_padded(padded);
            if padded > 0 {
                session.report_soon();
            }
        }
        self.congestion.handle_timeout(now);
        session.handle_timeout(now, &self.path_view());
        if self.probing.take_expired(now) {
            self.on_probe_timeout(now, session);
        }
        true
    }

    /// Frees unused memory, also that of the session, if the link has been idle long enough.
    fn trim_if_idle(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        if !self.state.is_established() || !self.activity.take_trim(now, self.rtt.smoothed()) {
            return;
        }
        self.sent.trim();
        self.handshake.trim();
        self.handshake.release_session(true);
        self.fragments.trim();
        self.buffers.trim();
        self.acks.trim();
        session.trim();
    }

    fn on_probe_timeout(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        if self.medium == Medium::Relays {
            // Links will ask for the repair; until then one probe is enough.
            self.probing.on_coded(now);
        }
        self.probing.on_timeout();
        self.congestion.on_probe_timeout(now, self.probing.count());
        let lost = self.sent.abandon_in_flight();
        self.retransmit_control(lost.contents, session);
        let blackout = self.probing.enter_blackout(now, self.probe_timeout());
        let controller = self.congestion.controller();
        let (rate, window) = (controller.pacing_rate(), controller.window());
        let packets = blackout.packets(rate, window, u64::from(self.mtu.current()));
        if session.on_probe_timeout(packets) || self.has_data(session) {
            self.probing.allow();
        } else {
            self.control.ping();
        }
        if self.probing.needs_small_probe() || lost.large_lost >= BLACK_HOLE_LOSSES {
            self.control.ping();
        }
    }

    /// The probe timeout without backoff.
    fn probe_timeout(&self) -> Duration {
        let base = self.rtt.probe_timeout(MAX_ACK_DELAY);
        match self.medium {
            Medium::Network => base,
            Medium::Relays => end_to_end_probe_timeout(base, self.activity.idle_timeout()),
        }
    }

    /// Arms the probe timeout (RFC 9002, section 6.2).
    fn arm_probe(&mut self, now: Timestamp, session: &impl LinkSession) {
        let is_undecoded = session.awaits_decoding();
        let outstanding = (self.sent.expects_ack() || is_undecoded).then(|| Outstanding {
            last_eliciting_at: self.sent.last_eliciting_at(),
            // Over relays, data that waits for a link is not in flight yet.
            is_undecoded: is_undecoded
                && (self.medium == Medium::Network || !self.has_data(session)),
        });
        self.probing.arm(now, outstanding, self.probe_timeout());
    }

    /// When to call [`Link::handle_timeout`] at the latest.
    pub(crate) fn next_timeout(
        &self,
        now: Timestamp,
        session: &impl LinkSession,
    ) -> Option<Timestamp> {
        if self.state.is_dead() {
            return None;
        }
        if let Some(until) = self.state.closing_until() {
            return Some(until);
        }
        let timers = [
            self.acks.next_timeout(),
            self.probing.next_timeout(),
            self.congestion.next_timeout(),
            self.activity.next_timeout(),
            self.protection.as_ref().and_then(PacketProtection::next_timeout),
            self.handshake.next_timeout(),
        ];
        let mut next = timers.into_iter().fold(None, Timestamp::earlier);
        if self.state.is_established() {
            let may_send = !self.path.awaits_validation(self.mtu.current());
            if self.medium == Medium::Network && !self.is_provisional() {
                next = Timestamp::earlier(next, self.mtu.next_timeout().filter(|_| may_send));
                next = Timestamp::earlier(next, self.path.next_timeout());
            }
            next = Timestamp::earlier(next, self.activity.stalled_at());
            next = Timestamp::earlier(next, self.potentially_failed_at().filter(|&at| at > now));
            next = Timestamp::earlier(next, self.activity.trim_at(self.rtt.smoothed()));
            next = Timestamp::earlier(next, session.next_timeout(may_send));
        }
        next
    }

    /// A timer stays due although it was handled: closes the connection instead of spinning.
    pub(crate) fn on_stuck_timer(&mut self, now: Timestamp, session: &mut impl LinkSession) {
        if self.state.is_open() {
            let reason = CloseReason::Internal(STUCK_TIMER.to_owned());
            self.begin_close(now, false, 4, STUCK_TIMER, reason, session);
        } else {
            self.state.die();
        }
    }
}

#[cfg(test)]
impl Link {
    /// Arms a timer that nothing handles.
    pub(crate) fn arm_stuck_timer(&mut self, at: Timestamp) {
        self.activity.arm_stuck_timer(at);
    }

    /// See [`PacketProtection::leave_forged_packets`].
    pub(crate) fn leave_forged_packets(&mut self, left: u64) {
        let protection = self.protection.as_mut().expect("the handshake is complete");
        protection.leave_forged_packets(left);
    }

    /// See [`PacketProtection::leave_sealed_packets`].
    pub(crate) fn leave_sealed_packets(&mut self, left: u64, update: bool) {
        let protection = self.protection.as_mut().expect("the handshake is complete");
        protection.leave_sealed_packets(left, update);
    }
}
