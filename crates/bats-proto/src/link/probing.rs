//! The probe timeout (RFC 9002, section 6.2) and what follows from it: probes, and blackouts.

use core::time::Duration;

use bats_types::Timestamp;

use super::blackout_pacing::BlackoutPacing;
use super::timer::take_expired;

/// Probe timeout of end-to-end sessions, as a multiple of a link's.
const END_TO_END_FACTOR: u32 = 3;
/// Least number of probes of an end-to-end session per idle timeout, whatever its RTT estimate.
const END_TO_END_PROBES: u32 = 8;
/// Longest interval between probes in a blackout: a transfer resumes this soon after it ends.
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Probe timeouts in a row from which a small packet accompanies the probes. It accompanies those of the first one
/// only if so many large packets are unanswered that its answer shows a black hole: where flows with small windows
/// share a full link, small packets pass and large ones do not (with one in each timeout, 8 flows on 2 Mbit/s have
/// Jain's index of 0.26).
const SMALL_PROBES_FROM: u32 = 2;
/// Acknowledgements in a row of small probes only that show that no data passes. Chosen: random loss makes
/// single ones (with 1, handshakes at 30 % loss in bursts have a p99 of 1.02 instead of 0.94 s).
const SMALL_PROBES_IN_A_ROW: u32 = 8;
/// Probe timeouts in a row that double the next one. After so many the path was down rather than full: what was
/// sent meanwhile does not delay packets after it. With 4 of them 32 flows on 20 Mbit/s are less fair: Jain's
/// index of 0.85 instead of 0.88 (`bats-sim arena --group O --seeds 5`).
const FULL_BACKOFF: u32 = 6;
/// Probe timeouts in which the rate rises after a time in which small packets passed alone: the goal for the first
/// new data (`path_mtu` of `bats-sim`).
const RESTORING: u32 = 3;
/// Probe timeouts in a row after which the longest interval becomes one second.
const FAST_PROBES: u32 = 20;
/// Probe timeouts in a row after which a link counts as unresponsive.
const UNRESPONSIVE_PROBES: u32 = 2;
/// Packets that may be sent at a probe timeout regardless of congestion window and pacing.
const PROBES: u32 = 2;

/// What the probe timer runs for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    /// When the last ack-eliciting packet was sent.
    pub(super) last_eliciting_at: Timestamp,
    /// The peer has not decoded all coded data, and none of it waits for a link.
    pub(super) is_undecoded: bool,
}

/// The probe timer, and what is known from unanswered packets.
#[derive(Debug)]
pub(super) struct Probing {
    timer: Option<Timestamp>,
    /// Probe timeouts in a row, and in total.
    count: u32,
    total: u64,
    /// Acknowledgements in a row, after probe timeouts, of packets without coded data only.
    small_acked: u32,
    /// When coded data was last sent or last reported by the peer.
    coded_at: Timestamp,
    /// Set during a blackout: from a probe timeout to the next answer.
    blackout: Option<BlackoutPacing>,
    /// When the first packet since the last acknowledgement was sent.
    unanswered_since: Option<Timestamp>,
    /// Packets that may be sent now regardless of congestion window and pacing.
    allowed: u32,
}

impl Probing {
    pub(super) fn new(now: Timestamp) -> Self {
        Self {
            timer: None,
            count: 0,
            total: 0,
            small_acked: 0,
            coded_at: now,
            blackout: None,
            unanswered_since: None,
            allowed: 0,
        }
    }

    /// Probe timeouts in a row.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Probe timeouts in total.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// When the probe timeout expires.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.timer
    }

    /// Whether the probe timeout has expired.
    pub(super) fn take_expired(&mut self, now: Timestamp) -> bool {
        take_expired(&mut self.timer, now)
    }

    /// Coded data was sent, or reported by the peer.
    pub(super) fn on_coded(&mut self, now: Timestamp) {
        self.coded_at = now;
    }

    /// A packet that awaits an answer was sent.
    pub(super) fn on_sent(&mut self, now: Timestamp) {
        self.unanswered_since.get_or_insert(now);
    }

    /// Arms or disarms the timer; `base` is the probe timeout without backoff.
    pub(super) fn arm(&mut self, now: Timestamp, outstanding: Option<Outstanding>, base: Duration) {
        self.timer = outstanding.map(|outstanding| {
            let from = match self.blackout {
                // What is sent in a blackout must not defer the next probe.
                Some(blackout) => blackout.last(),
                None if self.count == 0 => now,
                None => outstanding.last_eliciting_at,
            };
            // A receiver that got no coded packets reports none missing. Answers to keep-alives and
            // other packets must therefore not defer their repair.
            let from = if outstanding.is_undecoded { from.min(self.coded_at) } else { from };
            (from + self.backoff(base)).max(now)
        });
    }

    /// The probe timeout with backoff.
    fn backoff(&self, base: Duration) -> Duration {
        let cap =
            if self.count < FAST_PROBES { MAX_PROBE_INTERVAL } else { Duration::from_secs(1) };
        (base * (1 << self.count.min(FULL_BACKOFF))).min(cap.max(base))
    }

    /// The probe timeout expired.
    pub(super) fn on_timeout(&mut self) {
        self.count += 1;
        self.total += 1;
    }

    /// Begins or continues a blackout at a probe timeout, and arms the next one.
    pub(super) fn enter_blackout(&mut self, now: Timestamp, base: Duration) -> BlackoutPacing {
        let (since, interval) = (self.unanswered_since.unwrap_or(now), self.backoff(base));
        let new = BlackoutPacing::new(since, now, interval);
        let blackout = self.blackout.get_or_insert(new);
        blackout.on_probe_timeout(now, interval);
        self.timer = Some(now + interval);
        *blackout
    }

    /// Whether it is a blackout.
    pub(super) fn is_blackout(&self) -> bool {
        self.blackout.is_some()
    }

    /// Ends a blackout at an answer.
    pub(super) fn end_blackout(&mut self) -> Option<BlackoutPacing> {
        self.blackout.take()
    }

    /// The pacing rate, which a blackout lowers; see [`BlackoutPacing::pace`].
    pub(super) fn pace(&self, rate: u64, window: u64, packet: u64) -> u64 {
        self.blackout.map_or(rate, |blackout| blackout.pace(rate, window, packet))
    }

    /// Allows the probes of this timeout.
    pub(super) fn allow(&mut self) {
        self.allowed = PROBES;
    }

    /// Whether a packet may be sent regardless of congestion window and pacing.
    pub(super) fn is_allowed(&self) -> bool {
        self.allowed > 0
    }

    /// A coded packet was taken from its source.
    pub(super) fn use_allowed(&mut self) {
        self.allowed = self.allowed.saturating_sub(1);
    }

    /// There is nothing to send as a probe.
    pub(super) fn forbid(&mut self) {
        self.allowed = 0;
    }

    /// Whether a small packet must accompany the probes of this timeout: the path MTU may have shrunk, so
    /// that only small packets arrive.
    pub(super) fn needs_small_probe(&self) -> bool {
        self.count >= SMALL_PROBES_FROM
    }

    /// Whether an acknowledgement answers a small probe; `coded_acked` if it covers coded data.
    pub(super) fn is_small_probe_answered(&self, coded_acked: bool) -> bool {
        self.count >= SMALL_PROBES_FROM && !coded_acked
    }

    /// An acknowledgement arrived; `data_passes` if it covers coded data, or if the peer has decoded all of it.
    /// Returns for how many probe timeouts the rate rises after a blackout that this ends, if it ends one.
    ///
    /// The acknowledgement of a small probe does not show that data passes: the path MTU may be below
    /// the size of coded packets. Without backoff these would then be sent again and again.
    pub(super) fn on_acknowledged(&mut self, data_passes: bool) -> Option<u32> {
        let passed_small_only = self.small_acked >= SMALL_PROBES_IN_A_ROW;
        if data_passes {
            self.small_acked = 0;
        } else if self.count >= SMALL_PROBES_FROM {
            self.small_acked = self.small_acked.saturating_add(1);
        }
        if self.small_acked >= SMALL_PROBES_IN_A_ROW {
            return None;
        }
        let rising = if passed_small_only {
            // The losses counted as congestion, so that the rate rises from almost nothing.
            Some(RESTORING)
        } else {
            (self.count >= FULL_BACKOFF).then_some(0)
        };
        self.count = 0;
        rising
    }

    /// Sets since when packets are unanswered after an acknowledgement; `expects_ack` if others are in flight.
    pub(super) fn on_answer(&mut self, now: Timestamp, expects_ack: bool) {
        self.unanswered_since = expects_ack.then_some(now);
    }

    /// What is known from unanswered packets does not apply any more: the path is another one, or the
    /// peer has reported over relays.
    pub(super) fn reset(&mut self) {
        self.count = 0;
        self.blackout = None;
    }

    /// Whether the other end answers. A link that sends all the time never has a probe timeout, so
    /// the time since its first unanswered packet counts as well.
    pub(super) fn is_responsive(&self, now: Timestamp, timeout: Duration) -> bool {
        self.count < UNRESPONSIVE_PROBES
            && self.unanswered_since.is_none_or(|since| since + timeout > now)
    }
}

/// The probe timeout without backoff of an end-to-end session over relays, from that of a link with its RTT
/// estimate. Relays repair first, and there are queues on the path. End-to-end RTT samples are so rare that one
/// taken with a full queue stays for long: it must not delay probes until the peer's idle timeout.
pub(super) fn end_to_end_probe_timeout(of_link: Duration, idle_timeout: Duration) -> Duration {
    (of_link * END_TO_END_FACTOR).min(idle_timeout / END_TO_END_PROBES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_millis(10);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    fn outstanding(last_eliciting: u64, is_undecoded: bool) -> Option<Outstanding> {
        Some(Outstanding { last_eliciting_at: at(last_eliciting), is_undecoded })
    }

    /// A link with this number of probe timeouts in a row.
    fn after_timeouts(count: u32) -> Probing {
        let mut probing = Probing::new(at(0));
        (0..count).for_each(|_| probing.on_timeout());
        probing
    }

    #[test]
    fn interval_doubles_up_to_a_quarter_of_a_second_and_later_to_a_second() {
        let interval = |count| after_timeouts(count).backoff(BASE).as_millis();
        assert_eq!([0, 1, 3, 4, 5, 19, 20].map(interval), [10, 20, 80, 160, 250, 250, 640]);
        let slow = Duration::from_secs(2);
        assert_eq!(after_timeouts(3).backoff(slow), slow, "a path with a long round trip");
    }

    #[test]
    fn timer_runs_from_the_last_packet_unless_data_is_undecoded_or_the_path_is_down() {
        let mut probing = Probing::new(at(0));
        probing.arm(at(100), outstanding(90, false), BASE);
        assert_eq!(probing.next_timeout(), Some(at(110)));
        probing.on_coded(at(95));
        probing.arm(at(100), outstanding(90, true), BASE);
        assert_eq!(probing.next_timeout(), Some(at(105)), "keep-alives do not defer it");
        probing.arm(at(200), outstanding(90, true), BASE);
        assert_eq!(probing.next_timeout(), Some(at(200)), "never in the past");
        assert!(probing.take_expired(at(200)));
        probing.on_timeout();
        probing.arm(at(200), outstanding(195, false), BASE);
        assert_eq!(probing.next_timeout(), Some(at(215)));
        probing.enter_blackout(at(200), BASE);
        probing.arm(at(210), outstanding(210, false), BASE);
        assert_eq!(probing.next_timeout(), Some(at(220)), "from the last probe timeout");
        probing.arm(at(210), None, BASE);
        assert_eq!(probing.next_timeout(), None);
    }

    #[test]
    fn acknowledged_small_probes_do_not_end_the_backoff_while_no_data_passes() {
        let mut probing = after_timeouts(3);
        assert_eq!(probing.on_acknowledged(false), None, "one may be random loss");
        assert_eq!(probing.count(), 0);
        for _ in 1..SMALL_PROBES_IN_A_ROW {
            (0..SMALL_PROBES_FROM).for_each(|_| probing.on_timeout());
            assert!(probing.is_small_probe_answered(false));
            probing.on_acknowledged(false);
        }
        assert_eq!(probing.count(), SMALL_PROBES_FROM, "the backoff stays");
        assert_eq!(probing.on_acknowledged(true), Some(RESTORING));
        assert_eq!(probing.count(), 0);
    }

    #[test]
    fn full_backoff_means_that_the_path_was_down() {
        assert_eq!(after_timeouts(FULL_BACKOFF - 1).on_acknowledged(true), None);
        assert_eq!(after_timeouts(FULL_BACKOFF).on_acknowledged(true), Some(0));
    }

    #[test]
    fn two_packets_are_probes_unless_there_is_nothing_to_send() {
        let mut probing = Probing::new(at(0));
        assert!(!probing.is_allowed());
        probing.allow();
        probing.use_allowed();
        assert!(probing.is_allowed());
        probing.use_allowed();
        assert!(!probing.is_allowed());
        probing.allow();
        probing.forbid();
        assert!(!probing.is_allowed());
    }

    #[test]
    fn link_is_unresponsive_after_two_probe_timeouts_or_a_time_without_an_answer() {
        let timeout = Duration::from_millis(30);
        assert!(after_timeouts(1).is_responsive(at(500), timeout));
        assert!(!after_timeouts(2).is_responsive(at(500), timeout));
        let mut probing = Probing::new(at(0));
        probing.on_sent(at(100));
        probing.on_sent(at(120));
        assert!(probing.is_responsive(at(129), timeout));
        assert!(!probing.is_responsive(at(130), timeout));
        probing.on_answer(at(130), true);
        assert!(probing.is_responsive(at(159), timeout));
        probing.on_answer(at(130), false);
        assert!(probing.is_responsive(at(500), timeout));
    }
}
