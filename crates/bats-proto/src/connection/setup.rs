//! Connection setup: before and after the peer's transport parameters are known.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use bats_code::rows::padded_length;
use bats_code::stream::MAX_WINDOW;
use bats_types::{ReportBudget, Timestamp};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::channels;
use super::control::PendingControl;
use super::early::EarlyPackets;
use super::end_to_end::{EndToEndSession, LinkPacketSource};
use super::fragments::FragmentAssembly;
use super::idle_trim::IdleTrim;
use super::migration::Migration;
use super::protection::PacketProtection;
use super::receive_memory::ReceiveMemory;
use super::stall_detector::StallDetector;
use super::state::State;
use super::streams::{HandedUp, Incoming, Outgoing, Streams, TimelyIncoming};
use super::timers::Timers;
use super::zero_rtt::ZeroRtt;
use super::{Connection, Counters, PendingSample, Role};
use crate::config::{CongestionAlgorithm, Mode, TransportConfig};
use crate::congestion::{self, Controller, Pacer};
use crate::endpoint::Local;
use crate::error::CloseReason;
use crate::event::Event;
use crate::flow::{
    FlowReceiver, FlowSender, RatelessParameters, RatelessReceiver, RatelessSender,
    RatelessSenderParameters, ReceiverParameters, SenderParameters, TimelyParameters,
    TimelyReceiver, TimelySender, credit_of, initial_credit,
};
use crate::handshake::{Handshake, RetransmitTimers};
use crate::link::mtu::{BASE_UDP_PAYLOAD, MtuDiscovery};
use crate::link::received::ReceivedPackets;
use crate::link::report_budget::{RANK_INTERVAL, RangeBudget};
use crate::link::rtt::RttEstimator;
use crate::link::sent::SentPackets;
use crate::session::{DatagramAssembly, DatagramQueue, Inbox, Reassembly, SendQueue};
use crate::wire::flow::FlowKey;
use crate::wire::parameters::{TransportParameters, symbol_size_for};

/// Symbols that one repair can combine.
pub(super) const WINDOW_CAP: u16 = 256;
/// Upper limit of the message size in bytes: messages must fit the memory that both ends grant.
pub(super) const MAX_MESSAGE: usize = 64 << 20;

/// Everything needed to create a connection.
pub(crate) struct Setup {
    pub(crate) role: Role,
    pub(crate) config: Arc<TransportConfig>,
    pub(crate) remote: SocketAddr,
    pub(crate) local: Local,
    pub(crate) local_cid: [u8; 4],
    pub(crate) handshake: Handshake,
    pub(crate) seed: [u8; 32],
    /// Seed of the coefficients of this end's repairs, as in its transport parameters.
    pub(crate) code_seed: u64,
    /// For an end-to-end session: the flow that it sends, and whether this node's relay recodes.
    pub(crate) end_to_end: Option<(FlowKey, bool)>,
}

/// Bytes of the longest coding window: with a smaller budget a repair could not be made or used.
fn window_bytes(config: &TransportConfig) -> usize {
    usize::from(MAX_WINDOW) * padded_length(symbol_size_for(config.max_udp_payload))
}

/// The receive budget, raised to the least that makes progress: a decoding window, a message under
/// reassembly and a window of credit.
pub(crate) fn receive_budget(config: &TransportConfig) -> usize {
    config.receive_budget.max(min_receive_budget(config))
}

/// The least receive budget that makes progress.
///
/// With channels the flow gets at least a fifth of the budget.
pub(crate) fn min_receive_budget(config: &TransportConfig) -> usize {
    let windows = if config.channels.is_some() { 16 } else { 4 };
    windows * window_bytes(config)
}

/// Memory that is charged for the received data of a connection before use. More is charged with use;
/// see `docs/adr/0022-memory-is-charged-when-data-arrive.md`.
pub(crate) const BASE_MEMORY: usize = 256 << 10;

/// The part of the receive budget that bounds the initial credit.
fn flow_budget(config: &TransportConfig) -> usize {
    let budget = receive_budget(config);
    channels::limits(config, budget).map_or(budget, |limits| limits.flow_budget)
}

/// The send budget of the flow, raised to the longest coding window with the symbols cut ahead.
fn send_budget(config: &TransportConfig) -> usize {
    config.send_budget.max(window_bytes(config))
}

/// The longest message accepted. One longer than half of the budget would leave no room for credit
/// and could never be completed.
pub(crate) fn max_message(config: &TransportConfig) -> usize {
    let budget = receive_budget(config);
    let most = channels::limits(config, budget).map_or(budget / 2, |limits| limits.max_message());
    config.max_message_size.min(MAX_MESSAGE).min(most)
}

/// This end's transport parameters.
pub(crate) fn local_parameters(config: &TransportConfig, code_seed: u64) -> TransportParameters {
    TransportParameters {
        mode: config.mode as u8,
        max_message_size: max_message(config) as u64,
        max_symbol_size: symbol_size_for(config.max_udp_payload) as u16,
        initial_credit: initial_credit(
            symbol_size_for(config.max_udp_payload),
            flow_budget(config),
        ),
        idle_timeout: config.idle_timeout,
        window_cap: WINDOW_CAP,
        code_seed,
        max_udp_payload: config.max_udp_payload,
        application: config.application,
        channels: channels::limits(config, receive_budget(config)).map(|own| own.parameters()),
        ..TransportParameters::default()
    }
}

impl Connection {
    pub(crate) fn new(now: Timestamp, mut setup: Setup) -> Self {
        setup.handshake.set_timers(RetransmitTimers::of(&setup.config));
        let mut rng = ChaCha8Rng::from_seed(setup.seed);
        let skip_phase = rng.next_u64();
        let idle_timeout = setup.config.idle_timeout;
        Self {
            role: setup.role,
            rng,
            state: State::new(),
            remote: setup.remote,
            local_ip: setup.local.ip,
            interface: setup.local.interface,
            migration: Migration::default(),
            stalls: StallDetector::default(),
            idle_trim: IdleTrim::default(),
            max_udp_payload: setup.config.max_udp_payload,
            local_cid: setup.local_cid,
            remote_cid: [0; 4],
            handshake: setup.handshake,
            protection: None,
            unvalidated_received: 0,
            unvalidated_sent: 0,
            sent: SentPackets::new(skip_phase),
            received: ReceivedPackets::default(),
            rtt: RttEstimator::new(setup.config.initial_rtt),
            mtu: MtuDiscovery::new(setup.config.max_udp_payload),
            controller: congestion::build(
                setup.config.congestion,
                setup.config.initial_rtt,
                BASE_UDP_PAYLOAD,
                0,
            ),
            pacer: Pacer::new(u64::MAX),
            pending_sample: PendingSample::default(),
            app_limited: true,
            ce_received: 0,
            ce_reported: 0,
            early: EarlyPackets::default(),
            zero_rtt: ZeroRtt::default(),
            streams: None,
            mode: None,
            memory: ReceiveMemory::new(),
            fragments: FragmentAssembly::default(),
            next_fragment_id: 0,
            control: PendingControl::default(),
            timers: Timers { idle: Some(now + idle_timeout), ..Timers::default() },
            probe_count: 0,
            small_probes_acked: 0,
            coded_at: now,
            rank_budget: ReportBudget::new(RANK_INTERVAL),
            range_budget: RangeBudget::default(),
            blackout: None,
            unanswered_since: None,
            probes_allowed: 0,
            datagrams_since_close: 0,
            last_received_at: now,
            unreachable_since: None,
            last_sent_at: now,
            idle_timeout,
            stash: Vec::new(),
            scratch: Vec::new(),
            unsplit: None,
            ranges: Vec::new(),
            events: VecDeque::new(),
            readable_notified: false,
            writable_wanted: true,
            expired_notified: 0,
            refused_bytes: 0,
            acknowledged_notified: true,
            counters: Counters::default(),
            packet_source: LinkPacketSource::default(),
            end_to_end: setup
                .end_to_end
                .map(|(key, recoded)| Box::new(EndToEndSession::new(key, recoded))),
            code_seed: setup.code_seed,
            config: setup.config,
        }
    }

    pub(crate) fn config(&self) -> &TransportConfig {
        &self.config
    }

    /// Raises the limit of the memory of an established connection.
    pub(crate) fn raise_receive_budget(&mut self, now: Timestamp, bytes: usize) {
        let config = TransportConfig { receive_budget: bytes, ..(*self.config).clone() };
        self.config = Arc::new(config);
        if let Some(streams) = &mut self.streams {
            match (&mut streams.channels, channels::limits(&self.config, bytes)) {
                (Some(channels), Some(limits)) => {
                    streams.incoming.raise_budget(limits.flow_budget);
                    channels.raise_limits(limits);
                }
                _ => streams.incoming.raise_budget(bytes),
            }
        }
        self.update_credit(now);
    }

    /// Refuses the peer because the endpoint's memory budget is used up.
    pub(crate) fn close_for_lack_of_memory(&mut self, now: Timestamp) {
        let text = "no memory left for another connection";
        self.begin_close(now, false, 5, text, CloseReason::Handshake(text.to_owned()));
    }

    pub(crate) fn local_cid(&self) -> [u8; 4] {
        self.local_cid
    }

    /// Takes a datagram with long headers.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn handle_handshake_datagram(&mut self, now: Timestamp, datagram: &mut [u8]) {
        if let Err(error) = self.handshake.handle_datagram(now, datagram) {
            if self.state.is_handshaking() || self.is_provisional() {
                let text = error.to_string();
                self.begin_close(now, false, 2, &text, error.into());
            }
            return;
        }
        self.progress_handshake(now);
    }

    /// Installs keys and establishes the connection as far as the handshake allows.
    fn progress_handshake(&mut self, now: Timestamp) {
        if self.protection.is_none()
            && let Some(keys) = self.handshake.take_one_rtt_keys()
        {
            self.protection = PacketProtection::new(now, keys, &mut self.handshake, &self.config);
            // For a CLOSE frame if the handshake fails now.
            self.remote_cid = self.handshake.peer_cid().unwrap_or(self.remote_cid);
        }
        if self.is_provisional() && self.state.is_established() {
            if self.handshake.is_complete() {
                self.confirm_provisional(now);
            }
            return self.take_early_data(now);
        }
        let is_ready = self.handshake.is_complete() || self.may_be_provisional();
        if !self.state.is_handshaking() || !is_ready {
            return;
        }
        let (Some(parameters), Some(remote_cid)) =
            (self.handshake.peer_parameters().cloned(), self.handshake.peer_cid())
        else {
            return self
                .close_silently(CloseReason::Handshake("peer sent no parameters".to_owned()));
        };
        self.remote_cid = remote_cid;
        self.establish(now, &parameters);
        self.take_early_data(now);
    }

    /// The mode of the connection: the client's, if the server accepts it.
    pub(super) fn agreed_mode(&self, peers: u8) -> Option<Mode> {
        let theirs = Mode::from_number(peers)?;
        if self.role == Role::Server && !theirs.is_own() {
            return None;
        }
        let own = self.config.mode;
        match self.role {
            // The server's parameters carry its preferred mode; accepting the connection counts.
            Role::Client => Some(own),
            Role::Server => {
                (theirs == own || self.config.also_accepted.contains(&theirs)).then_some(theirs)
            }
        }
    }

    /// A controller for a path about which only the round-trip time is known.
    pub(super) fn new_controller(&self) -> Box<dyn Controller> {
        let seed = u64::from(u32::from_le_bytes(self.local_cid));
        congestion::build(self.algorithm(), self.rtt.smoothed(), BASE_UDP_PAYLOAD, seed)
    }

    /// The congestion controller for the connection's mode.
    pub(super) fn algorithm(&self) -> CongestionAlgorithm {
        match self.mode.unwrap_or_default() {
            // The first link's controller applies.
            _ if self.end_to_end.is_some() => CongestionAlgorithm::None,
            Mode::Transparent => CongestionAlgorithm::None,
            _ => self.config.congestion,
        }
    }

    fn streams_for(
        &self,
        mode: Mode,
        peer: &TransportParameters,
        max_symbol_size: usize,
    ) -> Streams {
        let config = &self.config;
        let own = symbol_size_for(config.max_udp_payload);
        let window_cap = WINDOW_CAP.min(peer.window_cap);
        let channels = self.agreed_channels(mode, peer);
        let (outgoing, incoming) = match mode {
            // The others use another transport binding and are never agreed on here.
            Mode::Brtp | Mode::Tcp | Mode::Udp | Mode::Quic => {
                let sender = SenderParameters {
                    max_symbol_size,
                    window_cap,
                    seed: self.code_seed,
                    initial_credit: peer.initial_credit,
                    goal: config.goal,
                    budget: send_budget(config),
                };
                let receiver = ReceiverParameters {
                    max_symbol_size,
                    seed: peer.code_seed,
                    receive_budget: match channels {
                        Some(_) => flow_budget(config),
                        None => receive_budget(config),
                    },
                    initial_credit: initial_credit(own, flow_budget(config)),
                };
                let mut queue = SendQueue::new();
                if let Some(channels) = &channels {
                    queue.set_credit(channels.message_credit());
                }
                (
                    Outgoing::Reliable { queue, flow: FlowSender::new(sender) },
                    Incoming::Reliable {
                        flow: FlowReceiver::new(receiver),
                        reassembly: Reassembly::new(max_message(config)),
                        early: HandedUp::default(),
                    },
                )
            }
            Mode::Brctp => {
                let sender = RatelessSenderParameters {
                    max_symbol_size,
                    initial_credit: credit_of(peer.initial_credit),
                    goal: config.goal,
                    budget: send_budget(config),
                    receivers: 1,
                    over_relays: self.end_to_end.is_some(),
                };
                let receiver = RatelessParameters {
                    max_symbol_size,
                    receive_budget: receive_budget(config),
                    initial_credit: initial_credit(own, flow_budget(config)),
                    over_relays: self.end_to_end.is_some(),
                    receivers: 1,
                };
                (
                    Outgoing::Rateless {
                        queue: SendQueue::new(),
                        flow: RatelessSender::new(sender),
                    },
                    Incoming::Rateless {
                        flow: RatelessReceiver::new(receiver),
                        reassembly: Reassembly::new(max_message(config)),
                    },
                )
            }
            Mode::Btp | Mode::Transparent => {
                let sender = TimelyParameters {
                    max_symbol_size,
                    window_cap,
                    seed: self.code_seed,
                    goal: (mode == Mode::Btp).then_some(config.goal),
                };
                let flow = TimelyReceiver::new(max_symbol_size, peer.code_seed);
                let assembly = DatagramAssembly::new(max_message(config), receive_budget(config));
                (
                    Outgoing::Timely {
                        queue: DatagramQueue::default(),
                        flow: TimelySender::new(sender),
                        end_acknowledged: false,
                    },
                    Incoming::Timely(TimelyIncoming::new(flow, assembly)),
                )
            }
        };
        Streams {
            outgoing,
            incoming,
            channels,
            inbox: Inbox::default(),
            peer_max_message: peer.max_message_size as usize,
            peer_application: peer.application,
            max_symbol_size,
        }
    }

    fn establish(&mut self, now: Timestamp, peer: &TransportParameters) {
        let Some(mode) = self.agreed_mode(peer.mode) else {
            let text = format!("mode {} is not offered here", peer.mode);
            return self.begin_close(now, false, 3, &text, CloseReason::Handshake(text.clone()));
        };
        if let Some(rtt) = self.handshake.rtt_sample() {
            self.rtt.on_sample(now, rtt, Duration::ZERO);
        }
        let own = symbol_size_for(self.config.max_udp_payload);
        let max_symbol_size = own.min(usize::from(peer.max_symbol_size));
        let max_payload = self.config.max_udp_payload.min(peer.max_udp_payload);
        self.mtu = MtuDiscovery::new(max_payload);
        self.idle_timeout = self.config.idle_timeout.min(peer.idle_timeout);
        (self.mode, self.max_udp_payload) = (Some(mode), max_payload);
        self.controller = self.new_controller();
        self.streams = Some(self.streams_for(mode, peer, max_symbol_size));
        self.state.establish();
        self.last_received_at = now;
        self.timers.idle = Some(now + self.idle_timeout);
        self.counters.established = Some(now);
        self.writable_wanted = self.zero_rtt.refused;
        self.zero_rtt.provisional = !self.handshake.is_complete();
        if self.role == Role::Server {
            self.events.push_back(Event::Accepted);
            if self.is_provisional() {
                return;
            }
            self.control.handshake_done = true;
            self.control.crypto = !self.handshake.post_handshake_data().is_empty();
            self.close_early_data();
        } else {
            self.resend_unaccepted_early(now);
            // Shows the server at once that the client has 1-RTT keys, even if the Finished is
            // lost.
            self.control.ping = true;
            if !self.handshake.awaits_acceptance() {
                self.events.push_back(Event::Connected);
            }
        }
        self.establish_end_to_end(now);
        self.handshake.release_session(false);
        self.handle_early(now);
    }
}
