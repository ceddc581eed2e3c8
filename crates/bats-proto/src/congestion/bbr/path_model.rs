//! What the controller knows of the path: its rate, its queue and its own losses.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use super::loss_trial::{Conclusion, Level, LossCount, LossTrial};
use crate::congestion::AckSample;

/// How long a minimum of the one-way delay is believed, in two halves.
const DELAY_LIFETIME: Duration = Duration::from_secs(10);
/// Bytes that such a measurement needs: fewer tell of bursts, not of the link.
const OUTRUN_BYTES: u64 = 24 * 1_200;
/// Growth of the delay within one measurement that is no jitter: a share of the round trip within
/// limits, seen by several acknowledgements in a row, so that a host that was held up for a moment
/// does not look like a full link.
const OUTRUN_RTT_SHARE: u32 = 64;
const OUTRUN_DELAY_MIN: Duration = Duration::from_micros(300);
const OUTRUN_DELAY_MAX: Duration = Duration::from_millis(2);
const OUTRUN_SAMPLES: usize = 3;
/// Arrivals that differ from departures by less than this share are the same, and so are those
/// whose span differs by less than this multiple of the jitter.
const SAME_RATE: f64 = 1.0 / 64.0;
const RATE_JITTER: f64 = 4.0;
/// Share of the newest value in the mean of the jitter.
const JITTER_SHARE: f64 = 1.0 / 32.0;
/// Bytes of a packet, to turn bytes into packets.
const PACKET: f64 = 1_400.0;
/// Acknowledgements remembered; at one every 0.5 ms a quarter of a second.
const MAX_HISTORY: usize = 512;

#[derive(Clone, Copy, Debug)]
struct Point {
    cumulative: u64,
    sent_at: Timestamp,
    received_at: Timestamp,
    lost: u64,
    acked: u64,
    acked_packets: u64,
    queue: Duration,
    /// Sent when there was nothing more to send.
    app_limited: bool,
}

/// A sample of the path's rate, bytes per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    /// By the receiver's clock alone: the link's rate while its queue is not empty.
    pub(super) arrived: u64,
    /// At most what was sent in the same time: what the path is known to carry.
    pub(super) proven: u64,
    /// The rate of a link whose queue stands. If that queue becomes longer or shorter, it is exact
    /// whatever was lost; one that keeps its length may be full.
    pub(super) busy: u64,
    /// Part of the pace at which they were sent that they arrived at; above 1 the queue shrinks.
    pub(super) slower: f64,
    /// They arrived faster or slower than they were sent, beyond the jitter, or more were lost
    /// than the path loses by itself. Packets that arrive
    /// just as they are sent tell nothing of the link: so they do where it is not busy.
    pub(super) changed: bool,
    /// The sender had nothing more to send at some time: the path may carry more.
    pub(super) app_limited: bool,
}

/// Rates and delays from a sequence of acknowledgements.
#[derive(Debug, Default)]
pub(super) struct PathModel {
    history: VecDeque<Point>,
    lost: u64,
    acked: u64,
    acked_packets: u64,
    /// Minimum of arrival less departure, on two clocks: current and last half window.
    min_delay: Option<(i64, i64)>,
    /// Minimum of the round-trip time, likewise.
    min_rtt: Option<(Duration, Duration)>,
    min_since: Timestamp,
    /// By how much the least delay has fallen since the last rebase.
    fall: Duration,
    /// A queue is known to stand: the least delay is not to be forgotten.
    has_standing_queue: bool,
    pub(super) queue_delay: Duration,
    /// By how much delays change from one acknowledgement to the next, in seconds, without the
    /// steady growth or decrease of a queue.
    jitter: f64,
    trial: LossTrial,
}

impl PathModel {
    /// From now on packets are sent at this level.
    pub(super) fn set_level(&mut self, now: Timestamp, level: Level) {
        self.trial.set_level(now, level);
    }

    /// What is lost by now is to be compared with what will be lost at a low level.
    pub(super) fn begin_trial(&mut self, before: Option<LossCount>, span: Duration) {
        let arrivals = self.busy_span(span).map(|(older, newest)| {
            let packets = (newest.acked_packets - older.acked_packets) as f64;
            packets / (newest.received_at - older.received_at).as_secs_f64()
        });
        self.trial.begin(before, arrivals);
    }

    /// Start-up goes on: what was lost over the last `span` may be the path's own.
    pub(super) fn note_start(&mut self, span: Duration) {
        if let Some(loss) = self.loss_over(span) {
            self.trial.note_start(loss);
        }
    }

    /// Bytes a second that really arrived over the last `span`, and the share that was lost.
    pub(super) fn arrivals(&self, span: Duration) -> Option<(u64, f64)> {
        let (older, newest) = self.span(span)?;
        let seconds = (newest.received_at - older.received_at).as_secs_f64();
        let acked = (newest.acked - older.acked) as f64;
        let lost = (newest.lost - older.lost) as f64;
        Some(((acked / seconds) as u64, lost / (acked + lost).max(1.0)))
    }

    /// See [`LossTrial::own_share`].
    pub(super) fn own_loss(&self) -> f64 {
        self.trial.own_share()
    }

    /// The path is to be learned as if nothing had been seen of it, but for its delay.
    pub(super) fn start_anew(&mut self) {
        self.trial.start_anew();
        self.forget_arrivals();
    }

    /// See [`LossTrial::forget_own`].
    pub(super) fn forget_own_loss(&mut self) {
        self.trial.forget_own();
    }

    /// Rates and losses of late are not those of now.
    pub(super) fn forget_arrivals(&mut self) {
        self.history.clear();
    }

    /// See [`LossTrial::void`].
    pub(super) fn void_trial(&mut self, now: Timestamp) {
        self.trial.void(now);
    }

    /// See [`LossTrial::conclude`].
    pub(super) fn conclude_trial(&mut self) -> Option<Conclusion> {
        self.trial.conclude()
    }

    /// Whether more is lost at the usual level than the path loses by itself.
    pub(super) fn is_suspicious(&self) -> bool {
        self.trial.is_suspicious()
    }

    /// Packets lost and in all over the last `span`.
    pub(super) fn loss_over(&self, span: Duration) -> Option<LossCount> {
        let (older, newest) = self.span(span)?;
        let lost = (newest.lost - older.lost) as f64 / PACKET;
        let acked = (newest.acked - older.acked) as f64 / PACKET;
        Some(LossCount::new(lost, lost + acked))
    }

    pub(super) fn on_ack(&mut self, sample: &AckSample) {
        self.trial.on_ack(sample);
        self.lost += sample.lost_bytes;
        self.acked += sample.acked_bytes;
        self.acked_packets += sample.acked_packets;
        let delay =
            sample.largest_received_at.as_nanos() as i64 - sample.largest_sent_at.as_nanos() as i64;
        let known = sample.min_rtt.min(sample.rtt);
        let (delays, rtts) =
            (self.min_delay.unwrap_or((delay, delay)), self.min_rtt.unwrap_or((sample.rtt, known)));
        if self.has_standing_queue {
            self.min_since = sample.now;
        }
        let (delays, rtts) = if sample.now - self.min_since > DELAY_LIFETIME / 2 {
            self.min_since = sample.now;
            ((delay, delays.0), (sample.rtt, rtts.0))
        } else {
            ((delays.0.min(delay), delays.1), (rtts.0.min(sample.rtt), rtts.1))
        };
        let base = self.min_delay.map_or(delay, |(a, b)| a.min(b));
        self.fall += Duration::from_nanos(base.saturating_sub(delay).max(0) as u64);
        (self.min_delay, self.min_rtt) = (Some(delays), Some(rtts));
        let queue = delay - delays.0.min(delays.1).min(delay);
        self.queue_delay = Duration::from_nanos(queue as u64);
        self.note_jitter();
        if self.history.len() == MAX_HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(Point {
            cumulative: sample.cumulative_sent,
            sent_at: sample.largest_sent_at,
            received_at: sample.largest_received_at,
            lost: self.lost,
            acked: self.acked,
            acked_packets: self.acked_packets,
            queue: self.queue_delay,
            app_limited: sample.app_limited,
        });
    }

    /// Whether a queue is known to stand. What is measured then is not the path's delay, however long
    /// it lasts.
    pub(super) fn set_standing_queue(&mut self, stands: bool) {
        self.has_standing_queue = stands;
    }

    /// Mean of the change of the change (a queue that grows steadily has none).
    fn note_jitter(&mut self) {
        let mut before = self.history.iter().rev().map(|point| point.queue.as_secs_f64());
        if let (Some(last), Some(earlier)) = (before.next(), before.next()) {
            let change = self.queue_delay.as_secs_f64() - 2.0 * last + earlier;
            self.jitter += (change.abs() - self.jitter) * JITTER_SHARE;
        }
    }

    /// How much delays vary from one acknowledgement to the next.
    pub(super) fn jitter(&self) -> Duration {
        Duration::from_secs_f64(self.jitter)
    }

    /// Least round-trip time of late.
    pub(super) fn min_rtt(&self) -> Option<Duration> {
        self.min_rtt.map(|(current, last)| current.min(last))
    }

    /// By how much the least delay has fallen since the path was taken for longer.
    pub(super) fn fall(&self) -> Duration {
        self.fall
    }

    /// The path has become longer by `delay`: what looked like a queue is none.
    pub(super) fn rebase(&mut self, delay: Duration) {
        let nanos = delay.as_nanos() as i64;
        self.fall = Duration::ZERO;
        self.min_delay = self.min_delay.map(|(a, b)| {
            let base = a.min(b).saturating_add(nanos);
            (base, base)
        });
        self.min_rtt = self.min_rtt().map(|rtt| (rtt + delay, rtt + delay));
        self.queue_delay = self.queue_delay.saturating_sub(delay);
        for point in &mut self.history {
            point.queue = point.queue.saturating_sub(delay);
        }
    }

    /// The newest point and the newest one that is at least `span` older.
    fn span(&self, span: Duration) -> Option<(Point, Point)> {
        let newest = *self.history.back()?;
        let older = self
            .history
            .iter()
            .rev()
            .skip(1)
            .find(|point| newest.received_at - point.received_at >= span)
            .or(self.history.front())?;
        (older.received_at < newest.received_at).then_some((*older, newest))
    }

    /// As [`span`](Self::span), among the points since the sender last had nothing to send.
    fn busy_span(&self, span: Duration) -> Option<(Point, Point)> {
        let newest = *self.history.back()?;
        let mut older = None;
        for point in self.history.iter().rev().take_while(|point| !point.app_limited).skip(1) {
            older = Some(*point);
            if newest.received_at - point.received_at >= span {
                break;
            }
        }
        older.filter(|older| older.received_at < newest.received_at).map(|older| (older, newest))
    }

    /// Whether the sender had nothing more to send at some time of the last `span`.
    pub(super) fn was_idle(&self, span: Duration) -> bool {
        let Some(newest) = self.history.back() else { return true };
        self.history
            .iter()
            .rev()
            .take_while(|point| newest.received_at - point.received_at <= span)
            .any(|point| point.app_limited)
    }

    /// What passed the receiver over the last `span`, lost bytes counted, less loss that the path
    /// does not have by itself.
    pub(super) fn rate(&self, span: Duration) -> Option<Rate> {
        let busy = self.busy_span(span);
        let app_limited = busy.is_none();
        let (older, newest) = busy.or_else(|| self.span(span))?;
        let bytes = newest.cumulative.saturating_sub(older.cumulative) as f64;
        let excess = self.excess_loss(span);
        let own = bytes * (1.0 - excess);
        let arrival = (newest.received_at - older.received_at).as_secs_f64().max(1e-6);
        let departure = (newest.sent_at - older.sent_at).as_secs_f64();
        let moved =
            (arrival - departure).abs() > (departure * SAME_RATE).max(self.jitter * RATE_JITTER);
        Some(Rate {
            busy: (if moved { bytes } else { own } / arrival) as u64,
            arrived: (own / arrival) as u64,
            proven: (own / arrival.max(departure)) as u64,
            slower: departure / arrival,
            changed: moved || excess > 0.0,
            app_limited,
        })
    }

    /// Share of packets lost over the last `span` beyond the path's own loss and its noise.
    pub(super) fn excess_loss(&self, span: Duration) -> f64 {
        self.loss_over(span).map_or(0.0, |loss| self.trial.excess(&loss))
    }

    /// Whether packets of the last `span` arrived markedly slower than they were sent, and wait:
    /// the link is full even if its queue is still short.
    pub(super) fn is_outrun(&self, span: Duration, min_rtt: Duration) -> bool {
        let Some((older, newest)) = self.span(span) else { return false };
        let arrival = newest.received_at - older.received_at;
        let departure = newest.sent_at - older.sent_at;
        let newest_ones = self.history.iter().rev().take(OUTRUN_SAMPLES);
        let queue = newest_ones.map(|point| point.queue).min().unwrap_or_default();
        let waited = queue.saturating_sub(older.queue);
        let bytes = newest.cumulative - older.cumulative;
        bytes >= OUTRUN_BYTES
            && arrival > departure + departure / 8
            && waited > (min_rtt / OUTRUN_RTT_SHARE).clamp(OUTRUN_DELAY_MIN, OUTRUN_DELAY_MAX)
    }

    /// The least queueing delay of the last `span`: what stands, without jitter.
    pub(super) fn standing_queue(&self, span: Duration) -> Duration {
        let Some(newest) = self.history.back() else { return Duration::ZERO };
        self.history
            .iter()
            .rev()
            .take_while(|point| newest.received_at - point.received_at <= span)
            .map(|point| point.queue)
            .min()
            .unwrap_or_default()
    }

    /// Acknowledgements in the last `span`.
    pub(super) fn samples_in(&self, span: Duration) -> usize {
        let Some(newest) = self.history.back() else { return 0 };
        self.history
            .iter()
            .rev()
            .take_while(|point| newest.received_at - point.received_at <= span)
            .count()
    }
}
