//! Connections and relays: links that carry the flows of others, and sessions that are carried.
//!
//! A *link* that was admitted asks its [`PacketSource`] for packets when its window and pacer allow,
//! and keeps what arrives until the endpoint fetches it. A *carried session* is a connection whose
//! packets leave through the relay of its node: handshake and control packets as end-to-end
//! packets, coded packets, with sealed symbols, when a link asks for them. It has no window of its
//! own; the first link's counts.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::pollution::SentBy;
use super::{Connection, MAX_ACK_DELAY};
use crate::crypto::SymbolKeys;
use crate::flow::PathView;
use crate::relay::{LinkView, PathSetStats};
use crate::wire::batch_rank::BatchRank;
use crate::wire::flow::{FLOW_HEADER_LEN, FlowKey};
use crate::wire::parameters::symbol_size_for;
use crate::wire::short_header::PacketKind;

/// Carried packets and reports that wait for the endpoint, which fetches them after each datagram:
/// as many as one can hold.
const MAX_ARRIVED: usize = 256;
/// Coded packets kept until the handshake is done; more are left to repair.
const MAX_EARLY: usize = 64;
/// Probe time-outs in a row after which a link counts as silent.
const SILENT_PROBES: u32 = 2;
/// Probe time-outs without an answer after which it does, too.
const SILENT_TIMEOUTS: u32 = 3;
/// So many packets without an answer, each of which should have one by now, make a link quiet: where a
/// third is lost both ways, that happens by chance once in 1,000 times.
const QUIET_PACKETS: usize = 8;
/// How late the answer to the last of them is, at least: this, and intervals between acknowledgements.
const QUIET_TIME: Duration = Duration::from_millis(10);
const QUIET_INTERVALS: u32 = 8;
/// Round trips between the ends for which gaps are left to the relays, and a share of a second.
const PATIENCE_RTTS: f64 = 2.5;
const LEAST_PATIENCE: Duration = Duration::from_millis(50);
/// Coded packets between two estimates of the loss between the ends.
const LOSS_PACKETS: u64 = 1_024;
/// Who only receives says that it is there so many times in an idle time-out.
const KEEPALIVES_PER_IDLE_TIMEOUT: u32 = 4;
/// Weight of the newest estimate.
const LOSS_GAIN: f64 = 0.25;
/// Who sends and hears nothing for this part of the idle time-out asks, and again at this part: modes
/// without feedback have no other sign that the peer lives.
const ASKED_AFTER: u32 = 4;
const ASKED_EVERY: u32 = 16;

/// What a link may carry for others.
pub(crate) trait PacketSource {
    /// The next payload, flow header included, in `out`; `number` is that of the packet.
    fn pull(
        &mut self,
        now: Timestamp,
        view: &LinkView,
        number: u64,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind>;

    /// Whether [`PacketSource::pull`] would give another one.
    fn has_more(&mut self, now: Timestamp) -> bool;

    /// Whether anything waits for the link, be it for the next node's credit.
    fn has_backlog(&self) -> bool;

    /// The next report for the neighbour; `mark` is the largest packet number received.
    fn next_report(&mut self, now: Timestamp, mark: u64) -> Option<BatchRank>;

    /// Whether a report is due.
    fn has_report(&self) -> bool;
}

/// What came over a link for the relay.
#[derive(Debug)]
pub(crate) enum Arrived {
    Packet(PacketKind, Vec<u8>),
    Report(BatchRank),
}

/// The link that asks a session for a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FirstLink {
    /// Its number.
    pub(crate) link: u64,
    pub(crate) view: LinkView,
    /// Its losses are repaired at its other end.
    pub(crate) recoded: bool,
    /// The links that lead to the same node, this one among them.
    pub(crate) way: PathSetStats,
}

/// What a link keeps about the flows that it carries.
#[derive(Debug, Default)]
pub(super) struct LinkPacketSource {
    pub(super) admitted: bool,
    /// The carriage had something when it was asked last, or told since that it has.
    pub(super) ready: bool,
    arrived: VecDeque<Arrived>,
}

/// What a carried session has beyond a connection.
#[derive(Debug)]
pub(super) struct EndToEndSession {
    pub(super) key: FlowKey,
    pub(super) symbols: Option<SymbolKeys>,
    /// Bytes a second that the first links carry.
    rate: u64,
    /// Longest round trip of the first links, and of those that the other end's packets come over.
    slowest: Duration,
    slowest_inbound: Duration,
    /// The first link's other end reports ranks: losses are repaired hop by hop.
    recoded: bool,
    loss: EndToEndLoss,
    /// When the peer was asked whether it is there.
    asked_at: Timestamp,
    /// What was altered since something was genuine.
    pub(super) altered_in_a_row: u64,
    pub(super) sent_by: SentBy,
    /// The link that something altered has left by.
    pub(super) liar: Option<u64>,
    /// The content of a symbol that was looked at.
    pub(super) opened: Vec<u8>,
    /// Coded packets that overtook the end of the handshake.
    early: Vec<(PacketKind, Vec<u8>)>,
    /// When this end last showed that it is there.
    shown_at: Option<Timestamp>,
}

/// Loss between the ends where no relay repairs it, from what the peer counts.
#[derive(Debug, Default)]
struct EndToEndLoss {
    sent: u64,
    /// Packets sent, and when, at the reports of about a round trip.
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
            asked_at: Timestamp::ZERO,
            altered_in_a_row: 0,
            sent_by: SentBy::default(),
            liar: None,
            opened: Vec::new(),
            early: Vec::new(),
            shown_at: None,
        }
    }

    /// Whether a link has asked for packets, so that its rate is known.
    pub(super) fn has_rate(&self) -> bool {
        self.rate > 0
    }

    /// Bytes that the first links carry in this time.
    pub(super) fn bytes_in(&self, time: Duration) -> u64 {
        (self.rate as f64 * time.as_secs_f64()) as u64
    }

    /// Bytes that the first link carries in the time that relays may take for repairs.
    pub(super) fn products(&self, rtt: Duration) -> u64 {
        let time = rtt.mul_f64(PATIENCE_RTTS) + LEAST_PATIENCE;
        (self.rate as f64 * time.as_secs_f64()) as u64
    }

    /// The round trip over the slowest of several links. What comes between the ends apart from the
    /// data takes the fastest.
    pub(super) fn round_trip(&self, measured: Duration) -> Duration {
        measured.max(self.slowest).max(self.slowest_inbound)
    }
}

impl Connection {
    /// Lets this link carry the flows of others.
    pub(crate) fn admit(&mut self) {
        self.carriage.admitted = true;
    }

    /// Whether the link is up and may carry.
    pub(crate) fn is_admitted(&self) -> bool {
        self.carriage.admitted && self.is_established()
    }

    /// Whether both ends of the link report ranks, if `own` does.
    pub(crate) fn peer_reports_batches(&self) -> bool {
        self.handshake.peer_parameters().is_some_and(|parameters| parameters.batch_ranks)
    }

    /// There is something to be carried.
    pub(crate) fn wake_carriage(&mut self) {
        self.carriage.ready = true;
    }

    /// The next thing that came for the relay.
    pub(crate) fn pop_arrived(&mut self) -> Option<Arrived> {
        self.carriage.arrived.pop_front()
    }

    pub(super) fn push_arrived(&mut self, arrived: Arrived) {
        if self.carriage.admitted && self.carriage.arrived.len() < MAX_ARRIVED {
            self.carriage.arrived.push_back(arrived);
        } else {
            self.counters.uncarried += 1;
        }
    }

    /// How this link looks to the relay.
    pub(crate) fn link_view(&self, now: Timestamp) -> LinkView {
        LinkView {
            rate: self.controller.bandwidth(),
            smoothed_rtt: self.rtt.smoothed(),
            min_rtt: self.rtt.min(),
            alive: self.is_heard(now),
            quiet: self.quiet_at().is_some_and(|at| at <= now),
            loss: self.sent.loss.estimate(),
            burst_factor: self.sent.loss.burst_factor(),
            packet: u64::from(self.mtu.current()),
        }
    }

    /// Whether the other end answers, as far as it is asked. Who sends all the time never sees a probe
    /// time-out: for that there is the time since the first packet that has had no answer.
    fn is_heard(&self, now: Timestamp) -> bool {
        let patience = self.rtt.probe_timeout(MAX_ACK_DELAY) * SILENT_TIMEOUTS;
        self.probe_count < SILENT_PROBES
            && self.unanswered_since.is_none_or(|since| since + patience > now)
    }

    /// When several answers are overdue, if none comes until then. It is too soon to give a link up, and
    /// soon enough to use another one.
    pub(super) fn quiet_at(&self) -> Option<Timestamp> {
        if !self.is_admitted() {
            return None;
        }
        let late = QUIET_TIME.max(self.ack_interval() * QUIET_INTERVALS);
        Some(self.sent.unanswered(QUIET_PACKETS)? + self.rtt.probe_timeout(late))
    }

    /// The flow that this session sends, if it is a carried one.
    pub(crate) fn carried_key(&self) -> Option<FlowKey> {
        self.carried.as_ref().map(|carried| carried.key)
    }

    /// Whether a carried session has coded packets to send.
    pub(crate) fn has_carried_data(&self) -> bool {
        self.carried.is_some() && self.state.is_established() && self.has_data()
    }

    /// The handshake is done: from now on symbols are sealed.
    pub(super) fn establish_carried(&mut self, now: Timestamp) {
        let keys = self.handshake.symbol_keys();
        let Some(carried) = &mut self.carried else { return };
        carried.symbols = keys;
        let early = core::mem::take(&mut carried.early);
        let slowest = carried.slowest_inbound;
        self.update_patience();
        for (kind, payload) in early {
            self.handle_carried(now, kind, &payload, slowest);
        }
    }

    /// How long gaps are left to the relays follows the round trip.
    pub(super) fn update_patience(&mut self) {
        let Some(carried) = &self.carried else { return };
        let patience = if carried.recoded {
            carried.round_trip(self.rtt.smoothed()).mul_f64(PATIENCE_RTTS) + LEAST_PATIENCE
        } else {
            Duration::ZERO
        };
        if let Some(streams) = &mut self.streams {
            streams.incoming.set_feedback_delay(patience);
            streams.outgoing.set_feedback_delay(patience);
        }
    }

    /// Bytes that a carried session has not handed to a link yet.
    pub(crate) fn carried_backlog(&self) -> u64 {
        self.streams.as_ref().map_or(0, |streams| streams.outgoing.unsent_bytes() as u64)
    }

    /// Whether symbols are set aside for this link.
    pub(crate) fn has_share_of(&self, link: u64) -> bool {
        self.streams.as_ref().is_some_and(|streams| streams.outgoing.has_share_of(link))
    }

    /// What is set aside for this link is for any other.
    pub(crate) fn release_share(&mut self, link: u64) {
        if let Some(streams) = &mut self.streams {
            streams.outgoing.release_share(link);
        }
    }

    /// The next coded packet of a carried session for a link.
    pub(crate) fn poll_carried(
        &mut self,
        now: Timestamp,
        first: &FirstLink,
        out: &mut Vec<u8>,
    ) -> Option<PacketKind> {
        if !self.state.is_established() {
            return None;
        }
        let carried = self.carried.as_mut()?;
        let several = first.way.links > 1;
        carried.rate = if several { first.way.rate } else { first.view.rate };
        carried.slowest = if several { first.way.slowest } else { Duration::ZERO };
        carried.recoded = first.recoded;
        let view = &first.view;
        let path = self.path_view();
        let carried = self.carried.as_mut()?;
        let streams = self.streams.as_mut()?;
        let packet = u16::try_from(view.packet).unwrap_or(u16::MAX);
        let room = packet.saturating_sub(FLOW_HEADER_LEN as u16);
        let size = symbol_size_for(room).min(streams.max_symbol_size);
        let seal = &mut carried.symbols.as_mut()?.seal;
        streams.outgoing.set_link(several.then_some(first.link));
        let had_end = streams.outgoing.end().is_some();
        let kind = streams.outgoing.poll(now, size, &path, Some(seal), out);
        // What was left may have been too old, so that there is an end and no packet.
        self.control.end |= !had_end && streams.outgoing.end().is_some();
        if self.writable_wanted {
            // Where nothing is acknowledged, nothing but the sending itself makes room.
            self.update_application();
        }
        let (kind, streams) = (kind?, self.streams.as_mut()?);
        let carried = self.carried.as_mut()?;
        if several {
            carried.note_sent(streams.outgoing.number_of(kind, out), first.link);
        }
        let unheard = now - self.last_received_at;
        if unheard >= self.idle_timeout / ASKED_AFTER
            && carried.asked_at + self.idle_timeout / ASKED_EVERY <= now
        {
            // A peer that has nothing to say is asked whether it is there.
            carried.asked_at = now;
            self.control.ping = true;
        }
        carried.loss.sent += 1;
        self.coded_at = now;
        self.counters.packets_sent += 1;
        self.counters.bytes_sent += out.len() as u64;
        if self.deadlines.probe.is_none() {
            self.arm_probe(now);
        }
        Some(kind)
    }

    /// The round trip that sets how often ranks are reported. Across relays the shortest one says
    /// little, and reports may fill a slow link.
    pub(super) fn report_rtt(&self) -> Duration {
        let carried = self.carried.as_deref();
        carried.map_or_else(|| self.rtt.min(), |c| c.round_trip(self.rtt.smoothed()))
    }

    /// How the way to the other end looks to the flow of a carried session.
    pub(super) fn carried_view(&self, carried: &EndToEndSession) -> PathView {
        let loss = if carried.recoded { 0.0 } else { carried.loss.estimate };
        PathView {
            rate_bytes_per_second: carried.rate,
            smoothed_rtt: carried.round_trip(self.rtt.smoothed()),
            ack_interval: self.ack_interval(),
            loss,
            burst_factor: 1.0,
            loss_packets: carried.loss.packets.clamp(1, 16 * LOSS_PACKETS),
        }
    }

    /// Takes a coded packet that the relay delivers; `slowest` is the longest round trip of the links
    /// that such packets come over.
    pub(crate) fn handle_carried(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        slowest: Duration,
    ) {
        let Some(carried) = &mut self.carried else { return };
        if carried.slowest_inbound != slowest {
            carried.slowest_inbound = slowest;
            self.update_patience();
        }
        let Some(carried) = &mut self.carried else { return };
        if !self.state.is_established() {
            if self.state.is_handshaking() && carried.early.len() < MAX_EARLY {
                carried.early.push((kind, payload.to_vec()));
            }
            return;
        }
        // Links acknowledge coded packets, ends do not: a flow without reports would be silence to the
        // other end.
        let shown_at = *carried.shown_at.get_or_insert(now);
        if now >= shown_at + self.idle_timeout / KEEPALIVES_PER_IDLE_TIMEOUT {
            carried.shown_at = Some(now);
            self.control.ping = true;
        }
        self.last_received_at = now;
        self.counters.packets_received += 1;
        self.counters.bytes_received += payload.len() as u64;
        self.handle_coded(now, kind, payload);
        self.update_application();
    }

    /// The other end has told what it has: the silence is over.
    pub(super) fn on_carried_report(&mut self, now: Timestamp, received: u64) {
        let rtt = self.rtt.smoothed();
        let Some(carried) = &mut self.carried else { return };
        carried.loss.on_report(now, received, rtt);
        self.probe_count = 0;
        self.blackout = None;
        self.arm_probe(now);
        self.update_patience();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_between_the_ends_is_what_the_peer_did_not_count() {
        let mut loss = EndToEndLoss::default();
        let rtt = Duration::from_millis(100);
        let mut now = Timestamp::from_millis(1);
        for _ in 0..200 {
            now += Duration::from_millis(10);
            loss.sent += 100;
            // What was sent a round trip ago, less a quarter.
            loss.on_report(now, loss.sent.saturating_sub(1_000) * 3 / 4, rtt);
        }
        assert!((loss.estimate - 0.25).abs() < 0.02, "{}", loss.estimate);
    }
}
