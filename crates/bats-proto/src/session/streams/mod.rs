//! Sending and receiving of messages, by mode.

mod handed_up;
mod incoming;
mod mode;
mod outgoing;
mod rateless;
mod reliable;
mod taken;
mod timely;
mod totals;

use core::time::Duration;

use bats_types::Timestamp;

pub(super) use incoming::Incoming;
pub(super) use mode::{Receiving, Sending};
pub(super) use outgoing::Outgoing;
pub(super) use totals::Totals;

use super::channel::{ChannelLimits, Channels};
use super::datagram_assembly::DatagramAssembly;
use super::error::SessionError;
use super::inbox::Inbox;
use super::limits::{WINDOW_CAP, flow_budget, max_message, receive_budget, send_budget};
use super::reassembly::Reassembly;
use super::send_queue::SendQueue;
use crate::config::{Mode, TransportConfig};
use crate::crypto::SymbolKey;
use crate::flow::{
    FlowReceiver, FlowSender, PathView, RatelessParameters, RatelessReceiver, RatelessSender,
    RatelessSenderParameters, ReceiverParameters, SenderParameters, TimelyParameters,
    TimelyReceiver, TimelySender, credit_of, initial_credit,
};
use crate::wire::parameters::{TransportParameters, symbol_size_for};
use crate::wire::short_header::PacketKind;
use rateless::{RatelessIncoming, RatelessOutgoing};
use reliable::{ReliableIncoming, ReliableOutgoing};
use taken::Taken;
pub(super) use timely::{TimelyIncoming, TimelyOutgoing};

/// What both directions depend on.
#[derive(Debug)]
pub(super) struct StreamSetup<'a> {
    pub(super) config: &'a TransportConfig,
    pub(super) mode: Mode,
    pub(super) peer: &'a TransportParameters,
    /// Seed of the coefficients of this end's repairs.
    pub(super) code_seed: u64,
    /// Links of the relay transport the session.
    pub(super) over_relays: bool,
    /// Symbols and blocks are sealed end to end.
    pub(super) is_sealed: bool,
    pub(super) channels: Option<Box<Channels>>,
}

/// Both directions of a session; created when the peer's parameters are known.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    /// Set in modes BRTP and BRCTP if both ends have channels.
    pub(super) channels: Option<Box<Channels>>,
    /// Complete messages that the application has not taken.
    pub(super) inbox: Inbox,
    /// Largest message that the peer accepts.
    pub(super) peer_max_message: usize,
    /// Bits from the peer's upper layer; see
    /// [`TransportConfig::application`](crate::TransportConfig::application).
    pub(super) peer_application: u8,
    /// Largest symbol in bytes that both ends accept.
    pub(super) max_symbol_size: usize,
}

impl Streams {
    pub(super) fn new(setup: StreamSetup<'_>) -> Self {
        let StreamSetup { config, mode, peer, code_seed, over_relays, is_sealed, channels } = setup;
        let own = symbol_size_for(config.max_udp_payload);
        let window_cap = WINDOW_CAP.min(peer.window_cap);
        let max_symbol_size = own.min(usize::from(peer.max_symbol_size));
        let reliable_budget = match channels {
            Some(_) => flow_budget(config),
            None => receive_budget(config),
        };
        let mut queue = SendQueue::new();
        if let Some(channels) = &channels {
            queue.set_credit(channels.message_credit());
        }
        let (outgoing, incoming) = match mode {
            // The others use another transport binding and are never agreed on here.
            Mode::Brtp | Mode::Tcp | Mode::Udp | Mode::Quic => {
                let sender = SenderParameters {
                    max_symbol_size,
                    window_cap,
                    seed: code_seed,
                    initial_credit: peer.initial_credit,
                    goal: config.goal,
                    budget: send_budget(config),
                };
                let receiver = ReceiverParameters {
                    max_symbol_size,
                    seed: peer.code_seed,
                    receive_budget: reliable_budget,
                    initial_credit: initial_credit(own, flow_budget(config)),
                };
                (
                    Outgoing::Reliable(ReliableOutgoing::new(queue, FlowSender::new(sender))),
                    Incoming::Reliable(ReliableIncoming::new(
                        FlowReceiver::new(receiver),
                        Reassembly::new(max_message(config)),
                    )),
                )
            }
            Mode::Brctp => {
                let sender = RatelessSenderParameters {
                    max_symbol_size,
                    initial_credit: credit_of(peer.initial_credit),
                    goal: config.goal,
                    budget: send_budget(config),
                    receivers: 1,
                    over_relays,
                };
                let receiver = RatelessParameters {
                    max_symbol_size,
                    receive_budget: reliable_budget,
                    initial_credit: initial_credit(own, flow_budget(config)),
                    over_relays,
                    receivers: 1,
                };
                let receiver = RatelessReceiver::new(receiver);
                let receiver = if is_sealed { receiver } else { receiver.without_seals() };
                (
                    Outgoing::Rateless(RatelessOutgoing::new(queue, RatelessSender::new(sender))),
                    Incoming::Rateless(RatelessIncoming::new(
                        receiver,
                        Reassembly::new(max_message(config)),
                    )),
                )
            }
            Mode::Btp | Mode::Transparent => {
                let sender = TimelyParameters {
                    max_symbol_size,
                    window_cap,
                    seed: code_seed,
                    goal: (mode == Mode::Btp).then_some(config.goal),
                };
                let flow = TimelyReceiver::new(max_symbol_size, peer.code_seed);
                let assembly = DatagramAssembly::new(max_message(config), receive_budget(config));
                (
                    Outgoing::Timely(TimelyOutgoing::new(TimelySender::new(sender))),
                    Incoming::Timely(TimelyIncoming::new(flow, assembly)),
                )
            }
        };
        Self {
            outgoing,
            incoming,
            channels,
            inbox: Inbox::default(),
            peer_max_message: peer.max_message_size as usize,
            peer_application: peer.application,
            max_symbol_size,
        }
    }

    /// Whether there is data to send.
    pub(super) fn has_data(&self) -> bool {
        self.outgoing.has_data() || self.channels.as_ref().is_some_and(|c| c.is_sendable())
    }

    /// Whether every message and every byte of the channels is acknowledged or expired.
    pub(super) fn is_all_acknowledged(&self) -> bool {
        let is_queued = |channels: &Channels| channels.is_sendable() || channels.queued_bytes() > 0;
        self.outgoing.is_all_acknowledged()
            && !self.channels.as_ref().is_some_and(|channels| is_queued(channels))
    }

    /// Frees memory that only a busy session needs.
    pub(super) fn trim(&mut self) {
        self.outgoing.trim();
        self.incoming.trim();
        self.inbox.trim();
    }

    /// Bytes received that the application has not read.
    pub(super) fn receive_buffer_bytes(&self) -> usize {
        let channels = self.channels.as_ref().map_or(0, |channels| channels.bytes_held());
        self.incoming.bytes_held() + self.inbox.bytes_held() + channels
    }

    /// Bytes that are queued for sending.
    pub(super) fn send_buffer_bytes(&self) -> usize {
        let queued = self.channels.as_ref().map_or(0, |channels| channels.queued_bytes());
        self.outgoing.waiting_bytes() + queued
    }

    /// Whether something, or the end, can be read.
    pub(super) fn is_readable(&self) -> bool {
        !self.inbox.is_empty() || self.incoming.is_finished()
    }

    /// Raises the memory for received data; `limits` are those of the channels.
    pub(super) fn raise_budget(&mut self, bytes: usize, limits: Option<ChannelLimits>) {
        match (&mut self.channels, limits) {
            (Some(channels), Some(limits)) => {
                self.incoming.raise_budget(limits.flow_budget);
                channels.raise_limits(limits);
            }
            _ => self.incoming.raise_budget(bytes),
        }
    }

    /// Bytes of memory that are needed for what is held, `for_packet` with another packet; `limit` is the
    /// most.
    pub(super) fn memory_needed(&self, for_packet: usize, limit: usize) -> usize {
        match self.incoming.holds_blocks(&self.inbox) {
            // A block needs much more while it is solved than when its packets arrive.
            Some(true) => limit,
            // Structures of batches, and bytes of channels, which `for_packet` includes.
            Some(false) => for_packet,
            None => for_packet + self.incoming.bytes_missing(),
        }
    }

    /// See [`Receiving::free_some`].
    pub(super) fn free_some(&mut self) -> bool {
        self.incoming.free_some(&mut self.inbox)
    }

    /// Whether to announce credit; `withheld` bytes are not available.
    pub(super) fn update_credit(&mut self, now: Timestamp, rtt: Duration, withheld: usize) -> bool {
        // Messages and channels have credit of their own.
        let elsewhere = self.channels.is_none().then_some(withheld);
        self.incoming.update_credit(now, rtt, &self.inbox, elsewhere)
    }

    /// See [`Sending::poll`].
    pub(super) fn poll(
        &mut self,
        now: Timestamp,
        symbol_size: usize,
        path: &PathView,
        seal: Option<&mut SymbolKey>,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        let channels = self.channels.as_deref_mut();
        self.outgoing.poll(now, symbol_size, path, channels, seal, out)
    }

    /// See [`Receiving::take`].
    pub(super) fn take(
        &mut self,
        room: (usize, bool),
        open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let channels = self.channels.as_deref_mut();
        let taken = self.incoming.take(&mut self.inbox, channels, room, open)?;
        if let Some(channels) = &self.channels {
            self.outgoing.set_message_credit(channels.message_credit());
        }
        Ok(taken)
    }
}
