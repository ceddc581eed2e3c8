//! End-to-end sessions: sessions over the links of relays.
//!
//! A direct session is one with a neighbour, over the links between both nodes alone. These authenticate the neighbour and
//! protect each packet, so that its handshake is an exchange of transport parameters, and its symbols are not sealed.
//!
//! An end-to-end session sends through the relay of its node: handshake and control packets as end-to-end
//! packets, coded packets (with sealed symbols) when a link asks for them. It has no congestion
//! window of its own; the first link's counts.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::pollution::Pollution;
use crate::crypto::{SymbolKey, SymbolKeys};
use crate::flow::PathView;
use crate::relay::{LinkView, PathSetStats};
use crate::wire::flow::{FLOW_HEADER_LEN, FlowKey};
use crate::wire::short_header::PacketKind;

/// Coded packets held until the handshake is done; more are left to repair.
const MAX_EARLY_CODED: usize = 64;
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

impl FirstLink {
    /// The number of the link, if there are several.
    pub(super) fn of_several(&self) -> Option<u64> {
        (self.path_set.links > 1).then_some(self.link)
    }

    /// Bytes that a packet of the link has for a coded payload.
    pub(super) fn room(&self) -> u16 {
        let packet = u16::try_from(self.view.packet).unwrap_or(u16::MAX);
        packet.saturating_sub(FLOW_HEADER_LEN as u16)
    }
}

/// State of a session over relays.
#[derive(Debug)]
pub(super) struct EndToEnd {
    key: FlowKey,
    symbols: Option<SymbolKeys>,
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
    pollution: Pollution,
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

impl EndToEnd {
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
            pollution: Pollution::default(),
            early: Vec::new(),
            keepalive_at: None,
        }
    }

    /// The flow that this session sends.
    pub(super) fn key(&self) -> FlowKey {
        self.key
    }

    /// Sets the keys of symbols when the handshake is complete. Returns the coded packets that arrived before,
    /// and the longest RTT of the links that they arrived over.
    pub(super) fn set_keys(
        &mut self,
        keys: Option<SymbolKeys>,
    ) -> (Vec<(PacketKind, Vec<u8>)>, Duration) {
        self.symbols = keys;
        (core::mem::take(&mut self.early), self.slowest_inbound)
    }

    /// Whether coded packets may be sent: symbols can be sealed, or the links of a direct session seal each packet.
    pub(super) fn may_send(&self) -> bool {
        !self.seals_symbols() || self.symbols.is_some()
    }

    /// Whether symbols are sealed, so that pollution is detected.
    pub(super) fn seals_symbols(&self) -> bool {
        !self.key.is_direct()
    }

    /// Seals symbols. Those of a direct session are not sealed.
    pub(super) fn sealer(&mut self) -> Option<&mut SymbolKey> {
        self.symbols.as_mut().map(|keys| &mut keys.seal)
    }

    /// Opens symbols, as [`Self::sealer`] seals them.
    pub(super) fn opener(&mut self) -> Option<&mut SymbolKey> {
        self.symbols.as_mut().map(|keys| &mut keys.open)
    }

    /// Whether a source symbol is authentic, as far as there are keys to say so.
    pub(super) fn is_authentic(&mut self, number: u64, symbol: &[u8]) -> bool {
        let Some(keys) = &mut self.symbols else { return true };
        self.pollution.is_authentic(&mut keys.open, number, symbol)
    }

    /// Polluted symbols, and the links that are to blame.
    pub(super) fn pollution(&mut self) -> &mut Pollution {
        &mut self.pollution
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

    /// How long the receiver leaves the repair of gaps to relays.
    pub(super) fn feedback_delay(&self, measured: Duration) -> Duration {
        if self.recoded {
            self.round_trip(measured).mul_f64(FEEDBACK_DELAY_RTTS) + MIN_FEEDBACK_DELAY
        } else {
            Duration::ZERO
        }
    }

    /// The end-to-end path's properties for the flow, from those that end-to-end packets measure.
    pub(super) fn view(&self, measured: &PathView) -> PathView {
        PathView {
            rate_bytes_per_second: self.rate,
            smoothed_rtt: self.round_trip(measured.smoothed_rtt),
            loss: if self.recoded { 0.0 } else { self.loss.estimate },
            burst_factor: 1.0,
            loss_packets: self.loss.packets.clamp(1, 16 * LOSS_PACKETS),
            ..*measured
        }
    }

    /// A link asks for a packet.
    pub(super) fn on_polled(&mut self, first: &FirstLink) {
        let several = first.of_several().is_some();
        self.rate = if several { first.path_set.rate } else { first.view.rate };
        self.slowest = if several { first.path_set.slowest } else { Duration::ZERO };
        self.recoded = first.recoded;
    }

    /// A coded packet is sent. `last_received_at` and `idle_timeout` are those of end-to-end packets. Returns
    /// whether the peer must answer, because it has been silent or the round trip is to be measured.
    pub(super) fn on_sent(
        &mut self,
        now: Timestamp,
        (last_received_at, idle_timeout): (Timestamp, Duration),
    ) -> bool {
        let mut wants_answer = false;
        if now - last_received_at >= idle_timeout / PROBE_PEER_AFTER
            && self.peer_probed_at + idle_timeout / PROBE_PEER_EVERY <= now
        {
            // Check whether a peer that sends nothing is alive.
            self.peer_probed_at = now;
            wants_answer = true;
        }
        if self.rtt_measured_at.is_none_or(|at| at + RTT_PING_INTERVAL <= now) {
            self.rtt_measured_at = Some(now);
            wants_answer = true;
        }
        self.loss.sent += 1;
        wants_answer
    }

    /// Sets the longest RTT of the links that the peer's packets arrive over; returns whether it has changed.
    pub(super) fn set_slowest_inbound(&mut self, slowest: Duration) -> bool {
        core::mem::replace(&mut self.slowest_inbound, slowest) != slowest
    }

    /// Holds a coded packet until the handshake is complete, if there is room.
    pub(super) fn hold(&mut self, kind: PacketKind, payload: &[u8]) {
        if self.early.len() < MAX_EARLY_CODED {
            self.early.push((kind, payload.to_vec()));
        }
    }

    /// A coded packet arrived. Returns whether a keep-alive is due: links acknowledge coded packets,
    /// end-to-end sessions do not, and without keep-alives a sender whose flow has no reports would
    /// receive nothing and time out.
    pub(super) fn takes_keep_alive(&mut self, now: Timestamp, idle_timeout: Duration) -> bool {
        let last = *self.keepalive_at.get_or_insert(now);
        let is_due = now >= last + idle_timeout / KEEPALIVES_PER_IDLE_TIMEOUT;
        if is_due {
            self.keepalive_at = Some(now);
        }
        is_due
    }

    /// The peer reports that it has received this number of coded packets.
    pub(super) fn on_report(&mut self, now: Timestamp, received: u64, rtt: Duration) {
        self.loss.on_report(now, received, rtt);
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

    fn session(recoded: bool) -> EndToEnd {
        let node = crate::wire::flow::NodeId(1);
        EndToEnd::new(FlowKey { destination: node, source: node, flow: 0 }, recoded)
    }

    #[test]
    fn feedback_waits_for_relays_that_recode_on_the_slowest_link() {
        let ms = Duration::from_millis;
        let mut relayed = session(true);
        assert_eq!(relayed.feedback_delay(ms(100)), ms(300));
        assert!(relayed.set_slowest_inbound(ms(200)) && !relayed.set_slowest_inbound(ms(200)));
        assert_eq!(relayed.feedback_delay(ms(100)), ms(550));
        assert_eq!(session(false).feedback_delay(ms(100)), Duration::ZERO);
    }

    #[test]
    fn silent_peer_is_probed_and_the_round_trip_measured_each_second() {
        let at = Timestamp::from_millis;
        let idle = Duration::from_secs(16);
        let mut sender = session(true);
        let mut probes = |heard: fn(u64) -> u64| -> Vec<u64> {
            (100..200)
                .filter(|&ds| sender.on_sent(at(ds * 100), (at(heard(ds) * 100), idle)))
                .collect()
        };
        assert_eq!(probes(|ds| ds), (100..200).step_by(10).collect::<Vec<_>>());
        let mut silent = session(true);
        silent.rtt_measured_at = Some(at(1_000_000));
        let asked = (100..200).filter(|&ds| silent.on_sent(at(ds * 100), (at(10_000), idle)));
        assert_eq!(asked.collect::<Vec<_>>(), [140, 150, 160, 170, 180, 190]);
    }

    #[test]
    fn receiver_sends_four_keep_alives_in_an_idle_timeout() {
        let mut receiver = session(true);
        let idle = Duration::from_secs(8);
        let sent =
            (0..8).filter(|&s| receiver.takes_keep_alive(Timestamp::from_millis(s * 1_000), idle));
        assert_eq!(sent.collect::<Vec<_>>(), [2, 4, 6]);
    }

    #[test]
    fn packets_before_the_keys_are_held_up_to_the_limit() {
        let mut receiver = session(true);
        (0..100).for_each(|number| receiver.hold(PacketKind::Source, &[number]));
        let (held, _) = receiver.set_keys(None);
        assert_eq!(held.len(), MAX_EARLY_CODED);
        assert!(receiver.set_keys(None).0.is_empty());
    }
}
