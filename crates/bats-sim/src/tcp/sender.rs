use core::time::Duration;

use bats_proto::congestion::{AckSample, LostPacket, RateSampler};
use bats_types::Timestamp;

use super::arrival::Arrival;
use super::prr::Prr;
use super::rack::Rack;
use super::recovery::Recovery;
use super::rtt::RttEstimator;
use super::scoreboard::{Fate, Scoreboard, Sent};
use super::timers::Timers;
use super::wire::{Ack, MAX_RANGES, Segment};
use super::{Control, Progress, SEGMENT};

/// A paced burst lasts a millisecond (Linux `sk_pacing_shift` 10) and has at least two segments
/// (Linux `tcp_min_tso_segs`), except at very low rates (Linux `bbr_min_tso_segs`).
const BURST: Duration = Duration::from_millis(1);
const MIN_BURST: u64 = 2;
const SINGLE_BURST_BELOW: f64 = 1_200_000.0 / 8.0 / SEGMENT as f64;

/// Counters of a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments sent more than once.
    pub retransmitted: u64,
    /// Recoveries after loss, and responses to ECN echoes.
    pub recoveries: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Reductions that were undone.
    pub undone: u64,
    /// Tail loss probes.
    pub probes: u64,
}

/// A sender of bulk data.
#[derive(Debug)]
pub struct Sender {
    pub(super) control: Box<dyn Control>,
    pub(super) board: Scoreboard,
    pub(super) sampler: RateSampler,
    pub(super) rack: Rack,
    pub(super) rtt: RttEstimator,
    pub(super) recovery: Recovery,
    pub(super) prr: Option<Prr>,
    pub(super) timers: Timers,
    pub(super) counters: Counters,
    /// The SACK ranges of the previous acknowledgement.
    known: [Option<(u64, u64)>; MAX_RANGES],
    /// One past the highest segment delivered.
    highest: u64,
    last_lost_order: u64,
    next_paced: Timestamp,
    burst_left: u64,
    pacing_credit: Duration,
    /// Whether the window was fully used, until the data sent by then is acknowledged.
    limited_until: u64,
    last_sent: Timestamp,
    rate: Option<f64>,
    limit: Option<u64>,
    is_ecn_capable: bool,
    cwr_pending: bool,
}

impl Sender {
    /// A sender with this controller.
    pub fn new(control: Box<dyn Control>) -> Self {
        Self {
            control,
            board: Scoreboard::default(),
            sampler: RateSampler::default(),
            rack: Rack::default(),
            rtt: RttEstimator::default(),
            recovery: Recovery::default(),
            prr: None,
            timers: Timers::default(),
            counters: Counters::default(),
            known: [None; MAX_RANGES],
            highest: 0,
            last_lost_order: 0,
            next_paced: Timestamp::ZERO,
            burst_left: 0,
            pacing_credit: Duration::ZERO,
            limited_until: 0,
            last_sent: Timestamp::ZERO,
            rate: None,
            limit: None,
            is_ecn_capable: false,
            cwr_pending: false,
        }
    }

    /// Limits the transfer to this many segments.
    #[must_use]
    pub fn with_limit(mut self, segments: u64) -> Self {
        self.limit = Some(segments);
        self
    }

    /// Sends new data as ECT(0) (RFC 3168).
    #[must_use]
    pub fn with_ecn(mut self) -> Self {
        self.is_ecn_capable = true;
        self
    }

    /// Raises the limit of [`Self::with_limit`] by this many segments.
    pub fn add_limit(&mut self, segments: u64) {
        self.limit = self.limit.map(|limit| limit + segments);
    }

    /// The controller.
    pub fn control(&self) -> &dyn Control {
        &*self.control
    }

    /// The smoothed round-trip time (RFC 6298), once there is a sample.
    pub fn smoothed_rtt(&self) -> Option<Duration> {
        self.rtt.smoothed()
    }

    /// Delivery rate of the last acknowledgement, in segments per second.
    pub fn delivery_rate(&self) -> Option<f64> {
        self.rate
    }

    /// Total segments sent, and retransmissions among them.
    pub fn transmissions(&self) -> (u64, u64) {
        (self.board.orders(), self.counters.retransmitted)
    }

    /// Segments neither delivered nor declared lost.
    pub fn in_flight(&self) -> u64 {
        self.board.in_flight()
    }

    /// The counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Current congestion window: the controller's, or that of a reduction in progress.
    pub fn window(&self) -> u64 {
        self.prr.as_ref().map_or_else(|| self.control.window(), Prr::window).max(1)
    }

    /// The segment to send now; `None` if the sender must wait for an acknowledgement or for
    /// [`Self::next_timer`].
    pub fn poll(&mut self, now: Timestamp) -> Option<Segment> {
        if let Some(probe) = self.poll_timers(now) {
            return Some(self.send(now, probe));
        }
        if self.board.in_flight() >= self.window() {
            self.limited_until = self.board.next();
            self.control.on_cwnd_limited();
            return None;
        }
        let Some(number) = self.next_number() else {
            self.sampler.mark_app_limited(self.board.in_flight() * SEGMENT);
            return None;
        };
        self.pass_pacing(now)?;
        Some(self.send(now, number))
    }

    /// The segment to send next: a lost one, or a new one.
    fn next_number(&self) -> Option<u64> {
        let lost = self.board.first_lost().filter(|_| !self.recovery.sends_new_data());
        lost.or_else(|| self.new_number())
    }

    /// The next new segment if there is data.
    pub(super) fn new_number(&self) -> Option<u64> {
        Some(self.board.next()).filter(|&next| self.limit.is_none_or(|limit| next < limit))
    }

    fn pass_pacing(&mut self, now: Timestamp) -> Option<()> {
        let Some(rate) = self.control.pace() else { return Some(()) };
        if self.burst_left == 0 || now >= self.next_paced {
            if now < self.next_paced {
                return None;
            }
            // At most half of a burst is compensated if sending is late (Linux
            // `tcp_update_skb_after_send`).
            self.pacing_credit = now - self.next_paced;
            self.next_paced = now;
            let least = if rate < SINGLE_BURST_BELOW { 1 } else { MIN_BURST };
            self.burst_left =
                ((rate * BURST.as_secs_f64()) as u64).max(least).min(self.control.max_burst());
        }
        self.burst_left -= 1;
        let gap = Duration::from_secs_f64(1.0 / rate.max(0.1));
        let credit = self.pacing_credit.min(gap / 2);
        self.pacing_credit -= credit;
        self.next_paced += gap - credit;
        Some(())
    }

    pub(super) fn send(&mut self, now: Timestamp, number: u64) -> Segment {
        let is_new = number == self.board.next();
        let is_idle = self.board.in_flight() == 0;
        if is_idle && is_new && self.board.sacked() == 0 && self.board.orders() > 0 {
            let is_app_limited = self.sampler.on_sent(now, 0, false).app_limited;
            self.control.on_idle_restart(now, self.last_sent, is_app_limited);
        }
        self.last_sent = now;
        self.board.begin_transmission();
        let in_flight = self.board.in_flight();
        let state = self.sampler.on_sent(now, in_flight * SEGMENT, is_idle);
        self.board.transmit(number, now, state);
        if let Some(prr) = &mut self.prr {
            prr.on_sent();
        }
        if !is_new {
            self.counters.retransmitted += 1;
            self.recovery.on_retransmitted(now);
        }
        self.control.on_sent(now, self.board.in_flight());
        self.on_sent_timers(now, number, is_new);
        let ecn = if self.is_ecn_capable && is_new { 2 } else { 0 };
        let cwr = is_new && core::mem::take(&mut self.cwr_pending);
        Segment { number, sent_at: now, ecn, cwr }
    }

    /// Latest time of the next call of [`Self::poll`].
    pub fn next_timer(&self) -> Option<Timestamp> {
        let is_open = self.board.in_flight() < self.window();
        let paced = (is_open && self.control.pace().is_some() && self.next_number().is_some())
            .then_some(self.next_paced);
        [paced, self.timers.next()].into_iter().flatten().min()
    }

    /// An acknowledgement arrived.
    pub fn on_ack(&mut self, now: Timestamp, ack: &Ack) {
        let mut arrival = Arrival { prior_base: self.board.base(), ..Arrival::default() };
        arrival.echo = ack.echo;
        arrival.ece = ack.ece && self.is_ecn_capable;
        self.on_dsack(ack, &mut arrival);
        let prior_in_flight = self.board.in_flight();
        let mut seen = Seen::default();
        let known = core::mem::replace(&mut self.known, ack.ranges);
        // Of a range that has grown, only the new part is processed.
        for (start, end) in ack.ranges.into_iter().flatten() {
            let old = known.iter().flatten().find(|old| start <= old.0 && old.1 <= end);
            let old = old.copied().unwrap_or((end, end));
            self.deliver(now, (start, old.0), &mut seen, &mut arrival);
            self.deliver(now, (old.1, end), &mut seen, &mut arrival);
        }
        arrival.has_sacked = seen.acked > 0;
        self.deliver(now, (self.board.base(), ack.next), &mut seen, &mut arrival);
        arrival.acked = seen.acked;
        arrival.advanced = self.board.advance();
        let end = ack.ranges.into_iter().flatten().map(|range| range.1).max();
        self.highest = self.highest.max(ack.next).max(end.unwrap_or(0)).min(self.board.next());
        if let Some(rtt) = seen.rtt() {
            self.rtt.update_min(now - rtt.1);
            self.rtt.update(now - rtt.0, self.board.base(), self.board.next());
        }
        let delivered = self.sampler.delivered() / SEGMENT;
        if let Some(newest) = seen.newest {
            self.rack.adapt(newest.state.delivered / SEGMENT, delivered);
        }
        if seen.spurious > 0 {
            self.control.on_spurious_loss(now, seen.spurious);
        }
        let is_loss_event = self.react(now, &mut arrival);
        self.on_ack_timers(now, &arrival);
        let rate = self.sampler.sample(None, self.rtt.min());
        let (Some(newest), Some(rate)) = (seen.newest, rate) else { return };
        if let Some(prr) = &mut self.prr {
            let is_safe = arrival.advanced && arrival.lost == 0;
            prr.on_ack(arrival.acked, self.board.in_flight(), is_safe);
        }
        let rate_segments =
            (rate.delivery_rate > 0).then(|| rate.delivery_rate as f64 / SEGMENT as f64);
        self.rate = rate_segments.or(self.rate);
        let rtt = seen.rtt().map(|(_, last)| now - last);
        let latest = rtt.unwrap_or(now - newest.at);
        let lost = arrival.lost;
        let sample = AckSample {
            now,
            largest_sent_at: newest.at,
            largest_received_at: now,
            cumulative_sent: newest.order * SEGMENT,
            app_limited: rate.is_app_limited,
            acked_bytes: arrival.acked * SEGMENT,
            acked_packets: arrival.acked,
            lost_bytes: lost * SEGMENT,
            lost_packets: lost,
            lost_sent_at: newest.at,
            burst_factor: 1.0,
            ce_packets: u64::from(is_loss_event && arrival.ece),
            rtt: latest,
            smoothed_rtt: self.rtt.smoothed().unwrap_or(latest),
            min_rtt: self.rtt.min(),
            in_flight: self.board.in_flight() * SEGMENT,
            packet: SEGMENT,
            rate,
        };
        self.control.on_ack(&Progress {
            now,
            acked: arrival.acked,
            lost,
            is_loss_event,
            in_recovery: self.recovery.is_recovering(),
            may_grow: arrival.advanced
                && self.prr.is_none()
                && self.limited_until > arrival.prior_base,
            rtt,
            smoothed_rtt: self.rtt.smoothed(),
            // Linux `FLAG_ACK_MAYBE_DELAYED`.
            is_ack_delayed: arrival.advanced && rate.delivered == SEGMENT,
            prior_in_flight,
            in_flight: self.board.in_flight(),
            delivered,
            delivered_before: newest.state.delivered / SEGMENT,
            lost_total: self.sampler.lost() / SEGMENT,
            rate: rate_segments,
            is_app_limited: rate.is_app_limited,
            next: self.board.next(),
            base: self.board.base(),
            sample,
        });
        if self.control.limits_itself() {
            self.sampler.mark_app_limited(self.board.in_flight() * SEGMENT);
        }
    }

    fn on_dsack(&mut self, ack: &Ack, arrival: &mut Arrival) {
        let Some(number) = ack.dsack else { return };
        // RFC 2883 section 5.2; the duplicate of a probe does not indicate reordering.
        if self.timers.is_probe(number) {
            arrival.is_probe_dsack = true;
        } else {
            self.rack.on_dsack();
            arrival.has_dsack = true;
        }
        self.recovery.on_dsack(number);
    }

    /// Marks the segments from `start` to `end` (exclusive) as delivered.
    fn deliver(
        &mut self,
        now: Timestamp,
        range: (u64, u64),
        seen: &mut Seen,
        arrival: &mut Arrival,
    ) {
        for number in range.0.max(self.board.base())..range.1.min(self.board.next()) {
            let Some(segment) = self.board.deliver(number) else { continue };
            self.sampler.on_delivered(now, SEGMENT, segment.at, segment.state);
            let (sent, is_repeated) = ((segment.order, segment.at), segment.is_retransmitted);
            self.rack.on_delivered(now, sent, is_repeated, self.rtt.min());
            seen.acked += 1;
            if seen.newest.is_none_or(|newest| newest.order < segment.order) {
                seen.newest = Some(segment);
            }
            if is_repeated {
                continue;
            }
            if segment.fate == Fate::Lost {
                seen.spurious += 1;
                self.sampler.on_spurious(SEGMENT);
            }
            seen.first = Some(seen.first.map_or(segment.at, |first| first.min(segment.at)));
            seen.last = seen.last.max(Some(segment.at));
            arrival.has_original |= self.recovery.is_before_end(number);
            if number < self.highest {
                self.rack.on_reordering();
            }
        }
    }

    /// Declares a segment in flight lost.
    pub(super) fn lose(&mut self, now: Timestamp, number: u64) -> Option<Sent> {
        let segment = self.board.lose(number)?;
        self.sampler.on_lost(SEGMENT);
        let lost = LostPacket {
            bytes: SEGMENT,
            sent_at: segment.at,
            continues_run: self.last_lost_order + 1 == segment.order,
            lost_since_sent: self.sampler.lost().saturating_sub(segment.state.lost),
            state: segment.state,
        };
        self.last_lost_order = segment.order;
        self.control.on_lost(now, &lost);
        Some(segment)
    }

    /// Signals in the next new segment that the window was reduced (CWR).
    pub(super) fn queue_cwr(&mut self) {
        self.cwr_pending = self.is_ecn_capable;
    }

    /// Allows sending to resume at once.
    pub(super) fn reset_pacing(&mut self, now: Timestamp) {
        self.next_paced = self.next_paced.min(now);
    }
}

/// Result of the deliveries of an acknowledgement.
#[derive(Debug, Default)]
struct Seen {
    acked: u64,
    spurious: u64,
    newest: Option<Sent>,
    /// Send times of the first and the last delivered segment that was sent only once.
    first: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl Seen {
    fn rtt(&self) -> Option<(Timestamp, Timestamp)> {
        self.first.zip(self.last)
    }
}
