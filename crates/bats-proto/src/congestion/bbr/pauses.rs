//! A BBR of the first version beside us stops for 200 ms about every ten seconds to see the least round trip
//! (Cardwell and others, "BBR: Congestion-Based Congestion Control", 2016). Nobody else does: what answers to loss gives up a part of what it has in
//! flight, three tenths (RFC 9438) or half (RFC 5681).
//!
//! Such a pause says two things. A sender is there that does not answer to loss: who does
//! beside it only leaves it more. And what arrives while nobody else sends is the link's rate, of which
//! our share then is known without asking the queue.

use core::time::Duration;

use bats_types::Timestamp;

/// Part of what the others had in flight that must be gone from one round trip to the third after it.
const FALL: f64 = 0.55;
/// Part of the fall that the round trip has grown by when the pause is over.
const BACK: f64 = 0.3;
/// How long a pause lasts: 200 ms, the round trip in which what was in flight arrives, and until the queue
/// is there again.
const LEAST_TIME: Duration = Duration::from_millis(150);
const MOST_TIME: Duration = Duration::from_millis(1_500);
/// Time from one pause to the next at least: what follows at once is the end of the queue that we made.
const APART: Duration = Duration::from_secs(4);
/// For how long a pause is remembered: one and a half times what is between two of them.
const MEMORY: Duration = Duration::from_secs(15);
/// Pace in the first round of a pause, growth while more is sent and more arrives, and the most.
const FIRST_GAIN: f64 = 2.0;
const GROWTH: f64 = 1.5;
const MOST_GAIN: f64 = 8.0;
/// How much more arrives when more is sent over a link that is not full.
const GROWN: f64 = 1.125;
/// How much faster than before what we send must arrive for it to say something of the link.
const TELLING: f64 = 1.2;

/// What a round trip looked like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) now: Timestamp,
    /// The round trip, and the longest of the last three before it.
    pub(super) rtt: Duration,
    pub(super) before: Duration,
    /// No queue stands.
    pub(super) is_empty: bool,
    /// Our share of what is in flight, and the part of ours that we took away.
    pub(super) share: f64,
    pub(super) taken: f64,
    /// Our rate, bytes a second.
    pub(super) rate: u64,
}

/// A pause that goes on.
#[derive(Clone, Copy, Debug)]
struct Pause {
    since: Timestamp,
    /// A longer round trip ends it.
    until: Duration,
    /// Our rate when it began, the best one since, and that of the round before.
    rate: u64,
    best: u64,
    last_best: u64,
    gain: f64,
}

/// What pauses have told.
#[derive(Debug)]
pub(super) struct Pauses {
    pause: Option<Pause>,
    /// What was sent in the last one still arrives.
    settles: bool,
    /// When the last one ended, and the link's rate.
    last: Option<(Timestamp, u64)>,
    next: Timestamp,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { pause: None, settles: false, last: None, next: Timestamp::ZERO }
    }
}

impl Pauses {
    /// What arrives is not what we get beside others.
    pub(super) fn hides_share(&self) -> bool {
        self.pause.is_some() || self.settles
    }

    /// Pace while nobody else sends, as a share of our rate.
    pub(super) fn gain(&self) -> Option<f64> {
        self.pause.map(|pause| pause.gain)
    }

    /// The link's rate, bytes a second, where somebody paused not long ago.
    pub(super) fn link_rate(&self, now: Timestamp) -> Option<u64> {
        self.last.filter(|&(at, _)| now - at < MEMORY).map(|(_, rate)| rate)
    }

    /// Every acknowledgement, with the rate in bytes a second that packets passed at.
    pub(super) fn on_ack(&mut self, rate: u64) {
        if let Some(pause) = &mut self.pause {
            pause.best = pause.best.max(rate);
        }
    }

    /// Every round trip. True if a pause has begun.
    pub(super) fn on_round(&mut self, seen: &Seen) -> bool {
        let Some(pause) = &mut self.pause else {
            self.settles = false;
            return self.look(seen);
        };
        let lasted = seen.now - pause.since;
        if seen.rtt > pause.until || lasted > MOST_TIME {
            let is_told = pause.best as f64 >= pause.rate as f64 * TELLING;
            if is_told && (LEAST_TIME..=MOST_TIME).contains(&lasted) {
                self.last = Some((seen.now, pause.best));
            }
            self.pause = None;
            self.settles = true;
            self.next = seen.now + APART;
            return false;
        }
        // A full link has been found where no more arrives, or a queue stands.
        let grows = pause.best as f64 > pause.last_best as f64 * GROWN;
        pause.last_best = pause.best;
        let is_found = pause.gain <= 1.0 || !seen.is_empty || !grows;
        pause.gain = if is_found { 1.0 } else { (pause.gain * GROWTH).min(MOST_GAIN) };
        false
    }

    /// Have the others stopped?
    fn look(&mut self, seen: &Seen) -> bool {
        let fall = 1.0 - seen.rtt.as_secs_f64() / seen.before.as_secs_f64().max(1e-9);
        let others = fall - seen.taken * seen.share;
        if !seen.is_empty || seen.now < self.next || others <= FALL * (1.0 - seen.share) {
            return false;
        }
        self.pause = Some(Pause {
            since: seen.now,
            until: seen.rtt + seen.before.saturating_sub(seen.rtt).mul_f64(BACK),
            rate: seen.rate,
            best: 0,
            last_best: 0,
            gain: FIRST_GAIN,
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: Duration = Duration::from_millis(40);

    /// Rounds of 40 ms over a link of 12 MB/s with this many bytes a second of our own and the queue
    /// that is told; what is known of the link's rate at the end, and the round in which a pause was seen.
    fn watch(rounds: &[(Duration, u64)]) -> (Option<u64>, Option<usize>) {
        let (mut pauses, mut seen_at, mut trips) = (Pauses::default(), None, vec![TRIP * 2; 3]);
        for (number, &(queue, rate)) in rounds.iter().enumerate() {
            pauses.on_ack(rate);
            let rtt = TRIP + queue;
            let began = pauses.on_round(&Seen {
                now: at(number),
                rtt,
                before: trips[trips.len() - 3..].iter().copied().max().unwrap_or_default(),
                is_empty: queue.is_zero(),
                share: 0.25,
                taken: 0.0,
                rate,
            });
            trips.push(rtt);
            seen_at = seen_at.or(began.then_some(number));
        }
        (pauses.link_rate(at(rounds.len())), seen_at)
    }

    fn at(round: usize) -> Timestamp {
        Timestamp::from_millis(10_000) + TRIP * round as u32
    }

    const FULL: (Duration, u64) = (TRIP, 3_000_000);

    #[test]
    fn who_pauses_tells_the_rate_of_the_link() {
        let empty = |rate| (Duration::ZERO, rate);
        let rounds =
            [FULL, FULL, empty(3_000_000), empty(5_900_000), empty(8_800_000), empty(12_000_000)];
        let back = [(TRIP / 10, 12_000_000), FULL, FULL];
        assert_eq!(watch(&[&rounds[..], &back[..]].concat()), (Some(12_000_000), Some(2)));
        // It is forgotten where none follows.
        let later = vec![FULL; 400];
        assert_eq!(watch(&[&rounds[..], &back[..], &later[..]].concat()), (None, Some(2)));
        // Two that follow at once are not those of a BBR.
        let twice = [&rounds[..], &back[..], &rounds[..]].concat();
        assert_eq!(watch(&twice).1, Some(2));
    }

    #[test]
    fn what_answers_to_loss_does_not_pause() {
        // CUBIC gives up three tenths of its three quarters, Reno half: a queue is left.
        for left in [0.55, 0.25] {
            let less = (TRIP.mul_f64(left), 3_600_000);
            assert_eq!(watch(&[FULL, FULL, less, less, less, less, FULL]), (None, None), "{left}");
        }
        // Where the queue was short, nothing is left of it, but the round trip hardly changed.
        let short = (TRIP / 4, 3_000_000);
        let gone = (Duration::ZERO, 3_600_000);
        let rounds = [short, short, short, short, gone, gone, gone, gone, gone, short];
        assert_eq!(watch(&rounds), (None, None));
        // Nothing for a moment, and no more of ours that arrives.
        let gone = (Duration::ZERO, 3_000_000);
        assert_eq!(watch(&[FULL, gone, FULL, FULL]).0, None, "too short");
        assert_eq!(
            watch(&[FULL, gone, gone, gone, gone, gone, gone, FULL]).0,
            None,
            "tells nothing"
        );
    }

    #[test]
    fn more_is_sent_until_the_link_is_full() {
        let mut pauses = Pauses::default();
        let seen = |round: usize, queue: Duration| Seen {
            now: at(round),
            rtt: TRIP + queue,
            before: TRIP * 2,
            is_empty: queue.is_zero(),
            share: 0.25,
            taken: 0.0,
            rate: 3_000_000,
        };
        assert!(pauses.gain().is_none() && pauses.on_round(&seen(0, Duration::ZERO)));
        let mut gains = Vec::new();
        for (round, rate) in [(1, 3_000_000), (2, 6_000_000), (3, 9_000_000), (4, 9_100_000)] {
            gains.extend(pauses.gain());
            pauses.on_ack(rate);
            assert!(!pauses.on_round(&seen(round, Duration::ZERO)));
        }
        assert_eq!(gains, [2.0, 3.0, 4.5, 6.75]);
        assert_eq!(pauses.gain(), Some(1.0), "no more arrives");
        assert!(pauses.hides_share());
    }
}
