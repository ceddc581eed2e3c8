use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::loss::LossEstimator;
use crate::congestion::{LostPacket, RateSample, RateSampler, SendState};

/// Least reordering window.
const MIN_REORDERING_WINDOW: Duration = Duration::from_millis(1);
/// Initial and largest interval between skipped packet numbers. More skips cost acknowledgement
/// ranges; fewer skips detect optimistic ACKs later (RFC 9000, section 21.4).
const INITIAL_SKIP_INTERVAL: u64 = 64;
const MAX_SKIP_INTERVAL: u16 = 4_096;
/// Limit of tracked packets: 15 round trips of 200 ms at 1 Gbit/s.
const MAX_TRACKED: usize = 1 << 18;
/// Limit of tracked packets that are not ack-eliciting, which no congestion window limits: a round trip of
/// 1.5 s at 1 Gbit/s with an acknowledgement for every second packet.
const MAX_NOT_ELICITING: usize = 1 << 16;
/// Packets searched for unanswered ack-eliciting ones.
const UNANSWERED_SEARCH: usize = 64;

/// Consecutive lost packets that indicate a blackout instead of random loss.
const MIN_BLACKOUT_PACKETS: usize = 32;

/// Contents of a packet, for retransmission if it is lost. The flow repairs lost data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// A CREDIT frame.
    pub credit: bool,
    /// An END frame.
    pub end: bool,
    /// A HANDSHAKE_DONE frame.
    pub handshake_done: bool,
    /// A CRYPTO frame with post-handshake TLS data.
    pub crypto: bool,
    /// The packet is a path MTU probe.
    pub mtu_probe: bool,
    /// Coded data.
    pub coded: bool,
}

impl Contents {
    /// Adds the retransmittable contents of another packet.
    fn add(&mut self, other: Self) {
        self.credit |= other.credit;
        self.end |= other.end;
        self.handshake_done |= other.handshake_done;
        self.crypto |= other.crypto;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    InFlight,
    Acknowledged,
    Lost,
    /// Abandoned in a blackout, not counted as loss of the path.
    Abandoned,
    /// Never sent; acknowledging it is an optimistic ACK (RFC 9000, section 21.4).
    Skipped,
}

#[derive(Clone, Copy, Debug)]
struct SentPacket {
    sent_at: Timestamp,
    cumulative: u64,
    size: u16,
    fate: Fate,
    ack_eliciting: bool,
    app_limited: bool,
    contents: Contents,
    /// If acknowledged: at least as many packets directly before it are acknowledged, too.
    acked_before: u32,
    state: SendState,
}

/// Bytes of ack-eliciting packets in flight.
#[derive(Debug, Default)]
struct InFlight {
    bytes: u64,
    /// Without MTU probes.
    data_bytes: u64,
}

impl InFlight {
    fn add(&mut self, packet: &SentPacket) {
        let (bytes, data_bytes) = Self::share(packet);
        self.bytes += bytes;
        self.data_bytes += data_bytes;
    }

    fn remove(&mut self, packet: &SentPacket) {
        let (bytes, data_bytes) = Self::share(packet);
        self.bytes -= bytes;
        self.data_bytes -= data_bytes;
    }

    fn share(packet: &SentPacket) -> (u64, u64) {
        let bytes = if packet.ack_eliciting { u64::from(packet.size) } else { 0 };
        (bytes, if packet.contents.mtu_probe { 0 } else { bytes })
    }
}

/// How an acknowledgement violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AckViolation {
    /// It acknowledges a packet number not sent yet.
    #[error("acknowledgement of packet {0}, which was not sent yet")]
    NotSent(u64),
    /// It acknowledges a skipped packet number (optimistic ACK).
    #[error("acknowledgement of packet {0}, which was never sent")]
    Skipped(u64),
}

/// Result of an acknowledgement.
#[derive(Debug, Default)]
pub struct AckOutcome {
    /// Packets newly acknowledged.
    pub packets: u64,
    /// Largest newly acknowledged packet.
    pub largest: Option<LargestAcked>,
    /// Ack-eliciting bytes newly acknowledged.
    pub acked_bytes: u64,
    /// Ack-eliciting packets newly acknowledged.
    pub acked_packets: u64,
    /// Largest size newly acknowledged.
    pub largest_size: u16,
    /// A HANDSHAKE_DONE frame was acknowledged.
    pub handshake_done_acked: bool,
    /// A CRYPTO frame was acknowledged.
    pub crypto_acked: bool,
    /// An END frame was acknowledged.
    pub end_acked: bool,
    /// Coded data was acknowledged.
    pub coded_acked: bool,
    /// Packets among them that had been declared lost.
    pub spurious_packets: u64,
}

/// The largest newly acknowledged packet.
#[derive(Clone, Copy, Debug)]
pub struct LargestAcked {
    /// Packet number.
    pub pn: u64,
    /// When it was sent.
    pub sent_at: Timestamp,
    /// Bytes sent on the link up to and including this packet.
    pub cumulative: u64,
    /// Whether the sender was application-limited when it was sent.
    pub app_limited: bool,
    /// Whether it was ack-eliciting.
    pub ack_eliciting: bool,
}

/// Result of loss detection.
#[derive(Debug, Default)]
pub struct LossOutcome {
    /// Bytes newly declared lost.
    pub lost_bytes: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// When the newest of these was sent.
    pub lost_sent_at: Option<Timestamp>,
    /// Union of their retransmittable contents.
    pub contents: Contents,
    /// Lost packets above the base size, MTU probes excluded, after which no other such packet was
    /// acknowledged: they indicate that the path MTU has shrunk.
    pub large_lost: u32,
    /// Size of the largest of these.
    pub large_size: u16,
}

impl LossOutcome {
    /// Counts a lost packet if it was large, though no MTU probe, and no large packet sent later was
    /// acknowledged.
    fn count_large_loss(&mut self, packet: &SentPacket, large_acked_sent_at: Timestamp) {
        let is_large = packet.size > super::mtu::BASE_UDP_PAYLOAD && !packet.contents.mtu_probe;
        if is_large && packet.sent_at > large_acked_sent_at {
            self.large_lost += 1;
            self.large_size = self.large_size.max(packet.size);
        }
    }
}

/// Packets sent on one link: in flight, acknowledged, lost.
#[derive(Debug)]
pub struct SentPackets {
    packets: VecDeque<SentPacket>,
    /// Number of these that are not ack-eliciting.
    not_eliciting: usize,
    /// Packet number of `packets[0]`.
    base: u64,
    /// Loss detection has handled all packet numbers below this one.
    scan: u64,
    /// No packet below this number is in flight, because those that were have been abandoned.
    abandoned: u64,
    largest_acked: Option<u64>,
    largest_acked_sent_at: Timestamp,
    /// When the newest acknowledged packet above the base size was sent, or the path changed since.
    large_acked_sent_at: Timestamp,
    cumulative_bytes: u64,
    in_flight: InFlight,
    reordering: Duration,
    next_skip: u64,
    skip_interval: u16,
    last_eliciting_at: Timestamp,
    sampler: RateSampler,
    /// Whether the last packet that was acknowledged or declared lost was lost.
    last_resolved_lost: bool,
    /// Packets declared lost that were acknowledged later.
    pub spurious: u32,
    /// Packets declared lost.
    pub lost: u64,
    /// Loss estimate of the path before repair.
    pub loss: LossEstimator,
}

impl SentPackets {
    /// Frees the records of packets that await no answer, and unused memory. Call it when the link is idle:
    /// an acknowledgement that is later than that says nothing about the path as it is.
    pub fn trim(&mut self) {
        while let Some(packet) = self.packets.front()
            && !(packet.fate == Fate::InFlight && packet.ack_eliciting)
        {
            self.pop_oldest();
        }
        self.packets.shrink_to_fit();
    }

    /// `skip_phase` selects the first skipped packet number.
    pub fn new(skip_phase: u64) -> Self {
        Self {
            packets: VecDeque::new(),
            not_eliciting: 0,
            base: 0,
            scan: 0,
            abandoned: 0,
            largest_acked: None,
            largest_acked_sent_at: Timestamp::ZERO,
            large_acked_sent_at: Timestamp::ZERO,
            cumulative_bytes: 0,
            in_flight: InFlight::default(),
            reordering: MIN_REORDERING_WINDOW,
            next_skip: 8 + skip_phase % INITIAL_SKIP_INTERVAL,
            skip_interval: INITIAL_SKIP_INTERVAL as u16,
            last_eliciting_at: Timestamp::ZERO,
            sampler: RateSampler::default(),
            last_resolved_lost: false,
            spurious: 0,
            lost: 0,
            loss: LossEstimator::default(),
        }
    }

    /// The number of the next packet. Some numbers are skipped to detect optimistic ACKs; `random`
    /// selects the next one.
    pub fn next_number(&mut self, now: Timestamp, random: u64) -> u64 {
        let pn = self.base + self.packets.len() as u64;
        if pn < self.next_skip {
            return pn;
        }
        self.not_eliciting += 1;
        self.packets.push_back(SentPacket {
            sent_at: now,
            cumulative: self.cumulative_bytes,
            size: 0,
            fate: Fate::Skipped,
            ack_eliciting: false,
            app_limited: false,
            contents: Contents::default(),
            acked_before: 0,
            state: SendState::default(),
        });
        self.skip_interval = (self.skip_interval * 2).min(MAX_SKIP_INTERVAL);
        let interval = u64::from(self.skip_interval);
        self.next_skip = pn + 1 + interval / 2 + random % interval;
        pn + 1
    }

    /// The lowest number that the next packet can have.
    pub fn peek_next(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// Records the packet whose number `next_number` returned last.
    pub fn on_sent(
        &mut self,
        now: Timestamp,
        size: usize,
        ack_eliciting: bool,
        app_limited: bool,
        contents: Contents,
    ) {
        self.cumulative_bytes += size as u64;
        let is_idle = self.in_flight.bytes == 0;
        let mut packet = SentPacket {
            sent_at: now,
            cumulative: self.cumulative_bytes,
            size: size as u16,
            fate: Fate::InFlight,
            ack_eliciting,
            app_limited,
            contents,
            acked_before: 0,
            state: SendState::default(),
        };
        self.in_flight.add(&packet);
        // A probe that exceeds the path MTU says nothing about the path's liveness.
        if ack_eliciting && !contents.mtu_probe {
            self.last_eliciting_at = now;
        }
        packet.state = self.sampler.on_sent(now, self.in_flight.bytes, is_idle);
        if app_limited {
            self.sampler.mark_app_limited(self.in_flight.bytes);
        }
        self.packets.push_back(packet);
        self.not_eliciting += usize::from(!ack_eliciting);
        while self.packets.len() > MAX_TRACKED || self.not_eliciting > MAX_NOT_ELICITING {
            let Some(packet) = self.pop_oldest() else { return };
            if packet.fate == Fate::InFlight {
                self.in_flight.remove(&packet);
            }
        }
    }

    fn pop_oldest(&mut self) -> Option<SentPacket> {
        let packet = self.packets.pop_front()?;
        self.base += 1;
        self.not_eliciting -= usize::from(!packet.ack_eliciting);
        Some(packet)
    }

    /// The largest packet number acknowledged so far.
    pub fn largest_acked(&self) -> Option<u64> {
        self.largest_acked
    }

    /// Bytes of all packets sent.
    pub fn bytes_sent(&self) -> u64 {
        self.cumulative_bytes
    }

    /// Bytes of all packets acknowledged.
    pub fn bytes_acked(&self) -> u64 {
        self.sampler.delivered()
    }

    /// Inflight: bytes of ack-eliciting packets neither acknowledged nor lost.
    pub fn bytes_in_flight(&self) -> u64 {
        self.in_flight.bytes
    }

    /// Bytes in flight that count against the congestion window: 0 if only MTU probes are in
    /// flight.
    ///
    /// Most probes exceed the path MTU, and only a newer acknowledgement reveals their loss. If
    /// they filled the window, no newer packet could be sent.
    pub fn bytes_in_window(&self) -> u64 {
        if self.in_flight.data_bytes == 0 { 0 } else { self.in_flight.bytes }
    }

    /// Whether ack-eliciting packets are in flight.
    pub fn expects_ack(&self) -> bool {
        self.in_flight.bytes > 0
    }

    /// When the last ack-eliciting packet was sent.
    pub fn last_eliciting_at(&self) -> Timestamp {
        self.last_eliciting_at
    }

    /// Takes the ranges of an acknowledgement, newest first, (first, last) inclusive.
    pub fn on_ack(
        &mut self,
        now: Timestamp,
        ranges: &[(u64, u64)],
        min_rtt: Duration,
    ) -> Result<AckOutcome, AckViolation> {
        let mut outcome = AckOutcome::default();
        let end = self.base + self.packets.len() as u64;
        if let Some(&(_, largest)) = ranges.first()
            && largest >= end
        {
            return Err(AckViolation::NotSent(largest));
        }
        for &(first, last) in ranges {
            if last < self.base {
                break;
            }
            let first = first.max(self.base);
            let mut end = last + 1;
            while end > first {
                let pn = end - 1;
                let packet = &mut self.packets[(pn - self.base) as usize];
                // Ranges repeat those of acknowledgements before, so that packets that are known to
                // be acknowledged are not visited again.
                end = pn.saturating_sub(u64::from(packet.acked_before));
                packet.acked_before = packet.acked_before.max((pn - first) as u32);
                match packet.fate {
                    Fate::Acknowledged => continue,
                    Fate::Skipped => return Err(AckViolation::Skipped(pn)),
                    Fate::Abandoned => {}
                    Fate::InFlight => self.in_flight.remove(packet),
                    // Lost MTU probes are not counted as losses.
                    Fate::Lost if packet.contents.mtu_probe => {}
                    Fate::Lost => {
                        if packet.ack_eliciting {
                            self.sampler.on_spurious(u64::from(packet.size));
                        }
                        outcome.spurious_packets += 1;
                        self.spurious = self.spurious.saturating_add(1);
                        self.loss.on_spurious();
                        self.reordering =
                            (self.reordering * 2).min(min_rtt.max(MIN_REORDERING_WINDOW));
                    }
                }
                packet.fate = Fate::Acknowledged;
                outcome.packets += 1;
                if packet.size > super::mtu::BASE_UDP_PAYLOAD {
                    self.large_acked_sent_at = self.large_acked_sent_at.max(packet.sent_at);
                }
                if packet.ack_eliciting {
                    let bytes = u64::from(packet.size);
                    self.sampler.on_delivered(now, bytes, packet.sent_at, packet.state);
                    outcome.acked_bytes += u64::from(packet.size);
                    outcome.acked_packets += 1;
                }
                outcome.largest_size = outcome.largest_size.max(packet.size);
                outcome.handshake_done_acked |= packet.contents.handshake_done;
                outcome.crypto_acked |= packet.contents.crypto;
                outcome.end_acked |= packet.contents.end;
                outcome.coded_acked |= packet.contents.coded;
                if outcome.largest.is_none() {
                    outcome.largest = Some(LargestAcked {
                        pn,
                        sent_at: packet.sent_at,
                        cumulative: packet.cumulative,
                        app_limited: packet.app_limited,
                        ack_eliciting: packet.ack_eliciting,
                    });
                }
                if self.largest_acked.is_none_or(|largest| pn > largest) {
                    self.largest_acked = Some(pn);
                    self.largest_acked_sent_at = packet.sent_at;
                }
            }
        }
        Ok(outcome)
    }

    /// The reordering window: how late a packet may be before it counts as lost.
    fn reordering_window(&self, min_rtt: Duration) -> Duration {
        self.reordering.max(min_rtt / 16)
    }

    /// The path or its MTU has changed: abandons what is in flight, which says nothing about the MTU from now on.
    /// Returns the union of the retransmittable contents.
    pub fn abandon_path(&mut self, now: Timestamp) -> Contents {
        self.large_acked_sent_at = now;
        self.abandon_in_flight().contents
    }

    /// Whether none of the packets sent in this interval was acknowledged, and they were too many
    /// for random loss, even of nine in ten packets.
    pub fn was_blackout(&self, from: Timestamp, until: Timestamp) -> bool {
        let first = self.packets.partition_point(|packet| packet.sent_at < from);
        let sent = self.packets.iter().skip(first).take_while(|packet| packet.sent_at < until);
        let (mut count, mut arrived) = (0, false);
        for packet in sent {
            count += usize::from(packet.fate != Fate::Skipped);
            arrived |= packet.fate == Fate::Acknowledged;
        }
        !arrived && count >= MIN_BLACKOUT_PACKETS
    }

    /// A blackout has ended: abandons all packets that were not acknowledged, without counting them
    /// as losses, because they say nothing about the path outside the blackout.
    pub fn end_blackout(&mut self) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        let Some(largest_acked) = self.largest_acked else { return outcome };
        self.scan = self.scan.max(self.base);
        while self.scan <= largest_acked {
            let packet = &mut self.packets[(self.scan - self.base) as usize];
            match packet.fate {
                Fate::InFlight => {
                    packet.fate = Fate::Abandoned;
                    self.in_flight.remove(packet);
                    outcome.contents.add(packet.contents);
                    outcome.count_large_loss(packet, self.large_acked_sent_at);
                }
                Fate::Abandoned => outcome.count_large_loss(packet, self.large_acked_sent_at),
                Fate::Acknowledged | Fate::Lost | Fate::Skipped => {}
            }
            self.scan += 1;
        }
        outcome
    }

    /// Declares packets lost by time (RACK, RFC 8985) and drops settled ones. Lost packets are kept
    /// for `retain_for`, to detect spurious losses. `on_lost` is called with each ack-eliciting packet
    /// that is lost.
    pub fn detect_losses(
        &mut self,
        min_rtt: Duration,
        retain_for: Duration,
        mut on_lost: impl FnMut(&LostPacket),
    ) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        let Some(largest_acked) = self.largest_acked else { return outcome };
        let threshold = self.largest_acked_sent_at.saturating_sub(self.reordering_window(min_rtt));
        self.scan = self.scan.max(self.base);
        while self.scan <= largest_acked {
            let packet = &mut self.packets[(self.scan - self.base) as usize];
            if packet.sent_at > threshold {
                break;
            }
            let is_run = self.last_resolved_lost;
            if packet.fate != Fate::Skipped {
                self.last_resolved_lost = packet.fate != Fate::Acknowledged;
            }
            match packet.fate {
                Fate::InFlight => {
                    packet.fate = Fate::Lost;
                    self.in_flight.remove(packet);
                    if !packet.contents.mtu_probe && packet.ack_eliciting {
                        let bytes = u64::from(packet.size);
                        self.sampler.on_lost(bytes);
                        on_lost(&LostPacket {
                            bytes,
                            sent_at: packet.sent_at,
                            continues_run: is_run,
                            lost_since_sent: self.sampler.lost().saturating_sub(packet.state.lost),
                            state: packet.state,
                        });
                    }
                    if !packet.contents.mtu_probe {
                        self.lost += 1;
                        self.loss.on_resolved(true);
                        outcome.lost_bytes += u64::from(packet.size);
                        outcome.lost_packets += 1;
                        outcome.lost_sent_at = Some(packet.sent_at);
                        outcome.count_large_loss(packet, self.large_acked_sent_at);
                    }
                    outcome.contents.add(packet.contents);
                }
                Fate::Acknowledged => self.loss.on_resolved(false),
                // Abandoned in a blackout that a small packet has ended now.
                Fate::Abandoned => outcome.count_large_loss(packet, self.large_acked_sent_at),
                Fate::Lost | Fate::Skipped => {}
            }
            self.scan += 1;
        }
        let retain_since = self.largest_acked_sent_at.saturating_sub(retain_for);
        while self.base < self.scan {
            let Some(packet) = self.packets.front() else { break };
            if packet.fate != Fate::Acknowledged && packet.sent_at > retain_since {
                break;
            }
            self.pop_oldest();
        }
        outcome
    }

    /// Abandons all packets in flight, because in a blackout they only block the window. They are
    /// not counted as losses, because their outcome is unknown.
    pub fn abandon_in_flight(&mut self) -> LossOutcome {
        let mut outcome = LossOutcome::default();
        // Each packet is visited at most once, also if the peer changes its address again and again without
        // acknowledging anything.
        let first = self.abandoned.saturating_sub(self.base) as usize;
        for packet in self.packets.range_mut(first..) {
            if packet.fate == Fate::InFlight {
                packet.fate = Fate::Abandoned;
                outcome.contents.add(packet.contents);
                outcome.count_large_loss(packet, self.large_acked_sent_at);
            }
        }
        self.abandoned = self.peek_next();
        self.in_flight = InFlight::default();
        outcome
    }

    /// When the `count`th ack-eliciting packet after the largest acknowledged one was sent. `None`
    /// if there are fewer, or before the first acknowledgement.
    pub fn unanswered(&self, count: usize) -> Option<Timestamp> {
        self.after_largest_acked().map(|packet| packet.sent_at).nth(count.checked_sub(1)?)
    }

    /// Whether so many ack-eliciting packets after the largest acknowledged one were sent at least `delay` ago:
    /// [`Self::unanswered`] and `delay` are at most `now`. Visits these packets only.
    pub fn has_unanswered(&self, count: usize, delay: Duration, now: Timestamp) -> bool {
        let overdue = self.after_largest_acked().take_while(|packet| packet.sent_at + delay <= now);
        count > 0 && overdue.take(count).count() == count
    }

    /// The next ack-eliciting packets after the largest acknowledged one; none before the first acknowledgement.
    fn after_largest_acked(&self) -> impl Iterator<Item = &SentPacket> {
        let next = self.largest_acked.map(|largest| largest.saturating_add(1));
        let from = next.map_or(self.packets.len(), |next| next.saturating_sub(self.base) as usize);
        let after = self.packets.range(from.min(self.packets.len())..).take(UNANSWERED_SEARCH);
        after.filter(|packet| packet.ack_eliciting && !packet.contents.mtu_probe)
    }

    /// The delivery rate sample of the acknowledgement that [`Self::on_ack`] processed last;
    /// `received_at` is the arrival of its newest packet on the receiver's clock.
    pub fn rate_sample(
        &mut self,
        received_at: Option<Timestamp>,
        min_rtt: Duration,
    ) -> Option<RateSample> {
        self.sampler.sample(received_at, min_rtt)
    }

    /// Bytes of the records of ack-eliciting packets.
    pub fn record_bytes(&self) -> usize {
        (self.packets.len() - self.not_eliciting) * size_of::<SentPacket>()
    }

    /// Memory for all records, in bytes.
    pub fn bytes_held(&self) -> usize {
        self.packets.capacity() * size_of::<SentPacket>()
    }

    /// Number of tracked packets.
    pub fn packets_tracked(&self) -> usize {
        self.packets.len()
    }
}

#[cfg(test)]
mod tests;
