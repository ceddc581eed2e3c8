use core::time::Duration;

use bats_types::Timestamp;

use crate::Payload;
use crate::frame::{Frame, FrameQueue};
use crate::stats::{Reason, Tally};

/// Parameters of CoDel (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoDel {
    /// Acceptable standing queue delay (section 4.3: TARGET, 5 ms).
    pub target: Duration,
    /// Time for which the delay must persist, about one RTT (section 4.2: INTERVAL, 100 ms).
    pub interval: Duration,
    /// A queue of at most this many bytes is never dropped from (section 4.4: one MTU).
    pub mtu: usize,
    /// Whether ECN-capable packets are marked instead of dropped (section 3: "mark").
    pub ecn: bool,
}

impl Default for CoDel {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            mtu: 1_514,
            ecn: true,
        }
    }
}

/// The controller of section 5, with the names of the RFC.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Controller {
    first_above_time: Option<Timestamp>,
    drop_next: Timestamp,
    pub(super) count: u32,
    lastcount: u32,
    dropping: bool,
}

/// The control law of section 5.6. Square root and quotient are exactly rounded on every platform.
fn control_law(interval: Duration, from: Timestamp, count: u32) -> Timestamp {
    let nanos = interval.as_nanos().min(u64::MAX.into()) as f64;
    from + Duration::from_nanos((nanos / f64::from(count.max(1)).sqrt()) as u64)
}

impl Controller {
    /// Section 5.5, `dodequeue`: the next frame, and whether it may be dropped. `others` is the
    /// number of bytes in other queues of the discipline.
    fn pop<P: Payload>(
        &mut self,
        config: &CoDel,
        queue: &mut FrameQueue<P>,
        others: usize,
        now: Timestamp,
    ) -> (Option<Frame<P>>, bool) {
        let Some(frame) = queue.pop() else {
            self.first_above_time = None;
            return (None, false);
        };
        let backlog = queue.bytes.saturating_add(others);
        if now - frame.entered < config.target || backlog <= config.mtu {
            self.first_above_time = None;
            return (Some(frame), false);
        }
        let ok_to_drop = match self.first_above_time {
            None => {
                self.first_above_time = Some(now + config.interval);
                false
            }
            Some(first) => now >= first,
        };
        (Some(frame), ok_to_drop)
    }

    /// Section 5.5, `deque`. A marked packet is delivered, and counts as a drop for the control
    /// law.
    pub(crate) fn next<P: Payload>(
        &mut self,
        config: &CoDel,
        queue: &mut FrameQueue<P>,
        others: usize,
        tally: &mut Tally<'_>,
    ) -> Option<Frame<P>> {
        let now = tally.now;
        let (mut next, mut ok_to_drop) = self.pop(config, queue, others, now);
        if self.dropping {
            if !ok_to_drop {
                self.dropping = false;
            }
            while self.dropping
                && now >= self.drop_next
                && let Some(mut frame) = next
            {
                self.count = self.count.saturating_add(1);
                if config.ecn && frame.is_ect {
                    frame.mark(tally);
                    self.drop_next = control_law(config.interval, self.drop_next, self.count);
                    return Some(frame);
                }
                frame.drop_from(Reason::Aqm, tally);
                (next, ok_to_drop) = self.pop(config, queue, others, now);
                if ok_to_drop {
                    self.drop_next = control_law(config.interval, self.drop_next, self.count);
                } else {
                    self.dropping = false;
                }
            }
            return next;
        }
        if ok_to_drop && let Some(mut frame) = next {
            if config.ecn && frame.is_ect {
                frame.mark(tally);
                next = Some(frame);
            } else {
                frame.drop_from(Reason::Aqm, tally);
                (next, _) = self.pop(config, queue, others, now);
            }
            self.dropping = true;
            let delta = self.count.saturating_sub(self.lastcount);
            let is_recent = now - self.drop_next < config.interval.saturating_mul(16);
            self.count = if delta > 1 && is_recent { delta } else { 1 };
            self.drop_next = control_law(config.interval, now, self.count);
            self.lastcount = self.count;
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, Packet};
    use super::super::{Discipline, Entry};
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a queue of full packets that sends one per millisecond. It is filled with `standing`
    /// packets, then one more enters per millisecond. Returns the times of drops or marks.
    fn run(standing: u64, is_ect: bool, millis: u64) -> (Vec<u64>, Bench) {
        let mut bench = Bench::new(Discipline::CoDel(CoDel::default()));
        let packet = |number| Packet { number, len: 1_500, is_ect, ..Packet::default() };
        let start = Timestamp::from_millis(1_000);
        (0..standing).for_each(|number| {
            assert_eq!(bench.offer(start, packet(number)), Entry::Queued);
        });
        let mut events = Vec::new();
        for ms in 1..=millis {
            let now = start + MS * ms as u32;
            bench.offer(now, packet(standing + ms));
            let before = bench.stats.dropped_aqm + bench.stats.marked_aqm;
            bench.next(now);
            let after = bench.stats.dropped_aqm + bench.stats.marked_aqm;
            (before..after).for_each(|_| events.push(ms));
        }
        (events, bench)
    }

    #[test]
    fn drop_times_follow_the_control_law() {
        // The delay exceeds 5 ms from 5 ms on, so the first drop is at 105 ms. The next ones follow
        // at intervals of 100 / sqrt(n) ms: 205, 275.7, 333.4, 383.4, 428.2, 469, 506.8, ..., each
        // at the next millisecond at which a packet leaves.
        let (events, bench) = run(200, false, 500);
        assert_eq!(events, [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!(bench.stats.dropped_aqm, 7);
        assert_eq!(bench.flows.get(0).dropped, 7);
        // All bytes are accounted for: 200 + 500 in, 500 out, 7 dropped.
        assert_eq!((bench.backlog.packets, bench.backlog.bytes), (193, 193 * 1_500));
    }

    #[test]
    fn ecn_capable_packets_are_marked_instead() {
        let (events, bench) = run(200, true, 500);
        assert_eq!(events, [105, 205, 276, 334, 384, 429, 469]);
        assert_eq!((bench.stats.dropped_aqm, bench.stats.marked_aqm), (0, 7));
    }

    #[test]
    fn a_short_queue_is_not_dropped_from() {
        // Four packets wait for 4 ms.
        assert_eq!(run(4, false, 1_000).0, []);
        // A single packet is not dropped, however late it is sent.
        let mut bench = Bench::new(Discipline::CoDel(CoDel::default()));
        for second in 0..10 {
            bench.offer(Timestamp::from_millis(second * 1_000), Packet::default());
            assert!(bench.next(Timestamp::from_millis(second * 1_000 + 900)).is_some());
        }
        assert_eq!(bench.stats.dropped_aqm, 0);
    }

    #[test]
    fn dropping_resumes_at_its_last_rate() {
        // By the pseudocode of section 5.5 with count 9, lastcount 1 and a recent end of dropping.
        let mut control = Controller {
            first_above_time: Some(Timestamp::from_millis(1)),
            drop_next: Timestamp::from_millis(1_500),
            count: 9,
            lastcount: 1,
            dropping: false,
        };
        let mut bench = Bench::new(Discipline::DropTail);
        let mut queue = FrameQueue::default();
        for number in 0..5 {
            queue.push(Frame {
                packet: Some(Packet { number, ..Packet::default() }),
                bytes: 1_500,
                flow: 0,
                is_ect: false,
                entered: Timestamp::ZERO,
                drawn: None,
            });
        }
        let now = Timestamp::from_millis(2_000);
        let Bench { stats, flows, backlog, .. } = &mut bench;
        let mut tally = Tally { now, stats, flows, backlog };
        let next = control.next(&CoDel::default(), &mut queue, 0, &mut tally).unwrap();
        assert_eq!(next.packet.unwrap().number, 1);
        assert_eq!((control.count, control.lastcount), (8, 8));
        let expected = now + Duration::from_nanos((1e8 / 8_f64.sqrt()) as u64);
        assert_eq!(control.drop_next, expected);
    }
}
