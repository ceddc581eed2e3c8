//! The choice of the thread that serves the socket of an endpoint: its I/O thread, or a thread of the
//! application that waits for a message ("leader").
//!
//! A message that the I/O thread receives crosses two threads: each wakeup costs several times as
//! much as the work on a small packet. So a blocked receiver may wait for the socket, and the
//! thread of a call may send. The I/O thread stays responsible for all timers and for everything that
//! happens while no thread of the application serves the socket:
//!
//! * While a thread leads, the I/O thread does not wait for the socket.
//! * After a thread has stopped leading, it usually leads again soon. The I/O thread waits for the socket again
//!   [`GRACE`] later, if no thread leads then.
//! * A thread that changes a deadline to an earlier time than the I/O thread sleeps to wakes it.

use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use bats_types::Timestamp;

use super::Interest;
use super::parker::ParkState;

/// Time without a leader after which the I/O thread waits for the socket again. Longer times delay
/// packets that arrive while the application does something else, and acknowledgements, for which
/// peers allow 3 ms; shorter ones wake the I/O thread more often.
const GRACE: Duration = Duration::from_millis(2);
/// The I/O thread handles deadlines that are nearer than this when they are set (those of pacing), because
/// its timers are finer.
const NEAR: Duration = Duration::from_micros(200);
/// Turns without a sleep after which a leader returns the socket: the I/O thread receives while the application
/// handles messages. A turn between two messages that the leader sends takes one of them back: in an exchange of
/// requests and answers the next message often comes before the sleep, above all if both ends share a processor,
/// but the I/O thread would have nothing to do meanwhile. Other connections of the endpoint then wait for the
/// application between two turns, for [`GRACE`] at most.
const MAX_BUSY_TURNS: u32 = 8;
/// Time for which no thread leads after that.
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// Interval of sends by the application's threads; faster ones share packets.
const SEND_INTERVAL: Duration = Duration::from_micros(20);
/// Messages and bytes read after which credit may be due.
const CREDIT_MESSAGES: usize = 16;
const CREDIT_BYTES: usize = 32 << 10;

/// Turns in a row that may end with a deadline that has passed although nothing came in or went out. A
/// timer may become due during a turn, so one is no proof of a defect.
const MAX_FRUITLESS_TURNS: u32 = 16;
/// Interval of the turns after that.
const FRUITLESS_PAUSE: Duration = Duration::from_millis(1);

/// The thread that serves the socket, and until when; under the lock of the core.
#[derive(Debug, Default)]
pub(crate) struct Custody {
    /// The thread that leads.
    pub(super) leader: Option<Arc<ParkState>>,
    /// Latest end of the leader's sleep.
    pub(super) leader_until: Option<Timestamp>,
    /// When the core needs a turn.
    deadline: Option<Timestamp>,
    fruitless_turns: u32,
    /// Whether the deadline was near when it was set, as those of pacing are.
    is_near: bool,
    /// When the I/O thread gives the next turn without being woken.
    io_until: Option<Timestamp>,
    /// Whether the I/O thread does not wait for the socket.
    is_led: bool,
    left_at: Timestamp,
    leaves: u64,
    /// `leaves` at the last turn of the I/O thread.
    leaves_seen: u64,
    busy_turns: u32,
    /// The thread that has led last.
    last_leader: Option<ThreadId>,
    /// Whether it has sent a message since its last turn.
    has_answered: bool,
    not_before: Timestamp,
    /// Whether the endpoint ends: no thread leads any more.
    pub(super) has_ended: bool,
    /// Last send by a thread of the application.
    sent_at: Timestamp,
    /// Whether datagrams have arrived since then.
    has_received: bool,
    /// Messages and bytes that the application has taken since the last turn.
    pub(crate) taken: (usize, usize),
}

impl Custody {
    /// Whether a thread of the application serves the socket, or did so a moment ago.
    pub(crate) fn is_served(&self, now: Timestamp) -> bool {
        self.is_led && !self.has_ended && (self.leader.is_some() || now - self.left_at < GRACE)
    }

    /// Whether the I/O thread has only short turns, for which a call may wait.
    pub(crate) fn is_led(&self) -> bool {
        self.is_led
    }

    /// Sets the deadline at the end of a turn. `has_output`: there were packets to send, or events. A timer
    /// that stays due (a defect) would otherwise keep the thread busy, and all connections of the endpoint
    /// waiting.
    pub(crate) fn end_turn(
        &mut self,
        deadline: Option<Timestamp>,
        now: Timestamp,
        has_output: bool,
    ) {
        if has_output || deadline.is_none_or(|deadline| deadline > now) {
            self.fruitless_turns = 0;
        } else {
            self.fruitless_turns = self.fruitless_turns.saturating_add(1);
        }
        if self.fruitless_turns == MAX_FRUITLESS_TURNS {
            tracing::error!(
                "a timer of an endpoint stays due: it is handled once in a millisecond"
            );
        }
        let is_stuck = self.fruitless_turns >= MAX_FRUITLESS_TURNS;
        self.set_deadline(if is_stuck { Some(now + FRUITLESS_PAUSE) } else { deadline }, now);
    }

    pub(crate) fn set_deadline(&mut self, deadline: Option<Timestamp>, now: Timestamp) {
        if self.deadline != deadline {
            self.deadline = deadline;
            self.is_near = deadline.is_some_and(|deadline| deadline < now + NEAR);
        }
    }

    /// Whether a thread may begin to lead now.
    pub(super) fn may_begin(&self, now: Timestamp) -> bool {
        self.leader.is_none() && !self.has_ended && now >= self.not_before
    }

    pub(super) fn begin(&mut self, leader: Arc<ParkState>) {
        let thread = Some(leader.thread_id());
        // What the former leader sent says nothing about this one.
        self.has_answered &= self.last_leader == thread;
        self.last_leader = thread;
        self.leader = Some(leader);
        self.leader_until = None;
        self.is_led = true;
    }

    pub(super) fn end(&mut self, now: Timestamp) {
        self.leader = None;
        self.left_at = now;
        self.leaves += 1;
    }

    /// Ends a lead so that the I/O thread serves the socket at once.
    pub(super) fn hand_back(&mut self) {
        self.leader = None;
        self.is_led = false;
    }

    /// Asks the leader to leave; no thread leads from now on.
    pub(crate) fn stop(&mut self) {
        self.has_ended = true;
        self.disturb_leader();
    }

    pub(crate) fn is_led_now(&self) -> bool {
        self.leader.is_some()
    }

    /// Wakes the leader, which continues to lead only if it still may.
    pub(crate) fn disturb_leader(&self) {
        if let Some(leader) = &self.leader {
            std::task::Wake::wake_by_ref(leader);
        }
    }

    /// Records a turn of a leader. Returns whether it must return the socket.
    pub(super) fn on_turn(&mut self, now: Timestamp, has_slept: bool) -> bool {
        let has_answered = std::mem::take(&mut self.has_answered);
        self.busy_turns = match (has_slept, has_answered) {
            (true, _) => 0,
            // Not zero: a receiver of a fast flow that sends now and then is busy, too.
            (false, true) => self.busy_turns.saturating_sub(1),
            (false, false) => self.busy_turns + 1,
        };
        let is_busy = self.busy_turns >= MAX_BUSY_TURNS;
        if is_busy {
            self.busy_turns = 0;
            self.not_before = now + BUSY_PAUSE;
        }
        is_busy
    }

    pub(super) fn on_received(&mut self) {
        self.has_received = true;
        self.fruitless_turns = 0;
    }

    /// Records that the application sends a message with this thread.
    pub(crate) fn on_send(&mut self, thread: ThreadId) {
        self.has_answered |= self.last_leader == Some(thread);
    }

    /// Whether a call of the application may send by itself. Messages in quick succession share
    /// packets instead.
    pub(crate) fn may_send(&mut self, now: Timestamp) -> bool {
        let may_send = self.has_received || now - self.sent_at >= SEND_INTERVAL;
        if may_send {
            (self.has_received, self.sent_at) = (false, now);
        }
        may_send
    }

    /// Records a message that the application has read. Returns whether credit may be due.
    pub(crate) fn on_taken(&mut self, bytes: usize) -> bool {
        self.on_all_taken((1, bytes))
    }

    /// As [`on_taken`](Self::on_taken) for so many messages and bytes.
    pub(crate) fn on_all_taken(&mut self, taken: (usize, usize)) -> bool {
        let (messages, total) = &mut self.taken;
        (*messages, *total) = (*messages + taken.0, *total + taken.1);
        *messages >= CREDIT_MESSAGES || *total >= CREDIT_BYTES
    }

    /// Whether the application has taken something since the last turn.
    pub(crate) fn has_taken(&self) -> bool {
        self.taken != (0, 0)
    }

    /// Whether a timer will give a turn within [`GRACE`], unless the threads that serve the socket are late.
    pub(crate) fn has_turn_soon(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now + GRACE)
    }

    /// Whether a turn of the I/O thread has something to do: it serves the socket, or a timer is due.
    pub(super) fn io_has_work(&self, now: Timestamp) -> bool {
        !self.is_served(now) || self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Events that the sleeping I/O thread waits for, and until when.
    pub(super) fn io_sleeps(&mut self, now: Timestamp) -> (Interest, Option<Timestamp>) {
        let (interest, until) = if self.leader.is_some() {
            // A leader that has not moved since the last turn wakes the I/O thread when it leaves.
            let is_active = self.leaves != self.leaves_seen;
            let grace = is_active.then_some(now + GRACE);
            match self.is_covered_by_leader() {
                true => (Interest::Nothing, grace),
                false => (Interest::Nothing, Timestamp::earlier(self.deadline, grace)),
            }
        } else if self.is_served(now) {
            let near = self.deadline.filter(|_| self.is_near);
            let grace = self.left_at + GRACE;
            (Interest::Nothing, Some(near.map_or(grace, |near| near.min(grace))))
        } else {
            self.is_led = false;
            (Interest::Read, self.deadline)
        };
        self.leaves_seen = self.leaves;
        self.io_until = until;
        (interest, until)
    }

    /// Latest end of the leader's sleep if its own time ends at `limit`. It leaves the deadline to the I/O
    /// thread if that thread wakes in time anyway: a timer that is set and cancelled for each
    /// packet costs several microseconds on virtual machines, as much as the packet itself.
    pub(super) fn leader_sleeps(
        &mut self,
        limit: Option<Timestamp>,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.leader_until = limit;
        if !self.is_covered_by_leader() && !self.is_io_in_time(now) {
            self.leader_until = Timestamp::earlier(limit, self.deadline);
        }
        self.leader_until
    }

    fn is_covered_by_leader(&self) -> bool {
        let Some(deadline) = self.deadline else { return true };
        !self.is_near && self.leader_until.is_some_and(|until| until <= deadline)
    }

    /// Whether the I/O thread must be woken to be in time; if so, counts it as woken.
    pub(crate) fn must_wake_io(&mut self, now: Timestamp) -> bool {
        if self.leader.is_some() && self.is_covered_by_leader() {
            return false;
        }
        let must_wake = !self.is_io_in_time(now);
        if must_wake {
            self.io_until = Some(now);
        }
        must_wake
    }

    /// Whether the I/O thread wakes by itself before its next work is due.
    fn is_io_in_time(&self, now: Timestamp) -> bool {
        // Without a leader the I/O thread serves the socket within the grace period, or a thread leads
        // again before; until then only near deadlines matter.
        let grace = now + GRACE;
        let due = match (self.deadline, self.leader.is_some()) {
            (Some(deadline), _) if self.is_near || !self.is_led => deadline,
            (_, false) if self.is_led => grace,
            (Some(deadline), _) => deadline.max(grace),
            (None, _) => return true,
        };
        self.io_until.is_some_and(|at| at <= due)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parker::Parker;
    use super::*;

    const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

    fn at(us: u64) -> Timestamp {
        START + Duration::from_micros(us)
    }

    /// The I/O thread has gone to sleep, then a thread leads until `until`.
    fn led(deadline: Option<Timestamp>, until: Option<Timestamp>) -> Custody {
        let mut custody = Custody::default();
        custody.set_deadline(deadline, START);
        assert_eq!(custody.io_sleeps(START), (Interest::Read, deadline));
        assert!(custody.may_begin(START));
        custody.begin(Parker::of_this_thread().shared());
        custody.leader_until = until;
        custody
    }

    #[test]
    fn the_io_thread_serves_the_socket_again_when_no_leader_comes_back() {
        let mut custody = led(Some(at(50_000)), Some(at(50_000)));
        assert!(!custody.may_begin(START), "one leader at a time");
        assert!(custody.is_served(at(40_000)));
        custody.end(at(40_000));
        assert!(custody.must_wake_io(at(40_000)), "it sleeps until the deadline");
        assert!(!custody.must_wake_io(at(40_001)), "it is woken already");
        let grace = at(40_000) + GRACE;
        assert_eq!(custody.io_sleeps(at(40_100)), (Interest::Nothing, Some(grace)));
        assert!(!custody.must_wake_io(at(40_200)), "it wakes soon");
        assert_eq!(custody.io_sleeps(grace), (Interest::Read, Some(at(50_000))));
        assert!(!custody.is_served(grace));
    }

    #[test]
    fn quick_returns_of_the_leader_do_not_wake_the_io_thread() {
        let mut custody = led(None, None);
        assert_eq!(custody.io_sleeps(at(1)), (Interest::Nothing, None));
        let mut wakes = 0;
        let mut io_until = None;
        for exchange in 0..1_000 {
            let now = at(10 + 10 * exchange);
            custody.end(now);
            // The acknowledgement timer.
            custody.set_deadline(Some(now + Duration::from_micros(500)), now);
            let is_woken = custody.must_wake_io(now);
            if is_woken || io_until.is_some_and(|until| until <= now) {
                wakes += 1;
                io_until = custody.io_sleeps(now).1;
            }
            custody.begin(Parker::of_this_thread().shared());
            custody.leader_until = custody.deadline;
            assert!(!custody.must_wake_io(now));
        }
        // 10 ms in total.
        assert!(wakes <= 10_000 / GRACE.as_micros() + 1, "{wakes}");
    }

    #[test]
    fn the_leader_sets_no_timer_while_the_io_thread_wakes_in_time() {
        let mut custody = led(None, None);
        // The I/O thread sleeps longer than that: the leader handles the deadline.
        custody.set_deadline(Some(at(500)), at(1));
        assert_eq!(custody.leader_sleeps(None, at(1)), Some(at(500)));
        // Messages come and go: the I/O thread wakes within the grace.
        custody.end(at(10));
        assert!(custody.must_wake_io(at(10)));
        let (_, until) = custody.io_sleeps(at(11));
        assert_eq!(until, Some(at(10) + GRACE));
        custody.begin(Parker::of_this_thread().shared());
        custody.set_deadline(Some(at(5_000)), at(20));
        assert_eq!(custody.leader_sleeps(None, at(20)), None);
        assert!(!custody.must_wake_io(at(20)));
        assert_eq!(custody.leader_sleeps(Some(at(300)), at(20)), Some(at(300)), "its own limit");
        // From then on the I/O thread handles the deadline.
        custody.leader_until = None;
        assert_eq!(custody.io_sleeps(at(2_010)).1, Some(at(5_000)));
    }

    #[test]
    fn the_io_thread_has_work_when_a_timer_is_due_or_no_thread_comes_back() {
        let mut custody = led(Some(at(5_000)), None);
        assert!(!custody.io_has_work(at(4_999)));
        assert!(custody.io_has_work(at(5_000)), "the timer");
        custody.set_deadline(None, at(5_000));
        custody.end(at(6_000));
        let grace = at(6_000) + GRACE;
        assert!(!custody.io_has_work(at(7_999)));
        assert!(custody.io_has_work(grace), "no thread came back");
        custody.begin(Parker::of_this_thread().shared());
        assert!(!custody.io_has_work(grace));
        custody.hand_back();
        assert!(custody.io_has_work(grace));
    }

    #[test]
    fn pacing_is_for_the_io_thread() {
        let mut custody = led(Some(at(1_000_000)), Some(at(1_000_000)));
        custody.set_deadline(Some(at(1_050)), at(1_000));
        assert!(custody.must_wake_io(at(1_000)));
        assert_eq!(custody.io_sleeps(at(1_001)), (Interest::Nothing, Some(at(1_050))));
        // Also while no thread leads.
        custody.end(at(1_020));
        custody.set_deadline(Some(at(1_030)), at(1_021));
        assert!(custody.must_wake_io(at(1_021)));
        assert_eq!(custody.io_sleeps(at(1_022)), (Interest::Nothing, Some(at(1_030))));
    }

    #[test]
    fn a_deadline_that_another_thread_makes_earlier_is_kept() {
        let mut custody = led(Some(at(900_000)), Some(at(900_000)));
        assert!(!custody.must_wake_io(at(10)));
        custody.set_deadline(Some(at(100_000)), at(20));
        assert!(custody.must_wake_io(at(20)), "the leader sleeps longer");
        let (interest, until) = custody.io_sleeps(at(30));
        assert_eq!(interest, Interest::Nothing);
        assert!(until.is_some_and(|until| until <= at(100_000)));
    }

    #[test]
    fn a_busy_leader_hands_back_for_a_while() {
        let mut custody = led(None, None);
        for _ in 1..MAX_BUSY_TURNS {
            assert!(!custody.on_turn(at(5), false));
        }
        assert!(!custody.on_turn(at(6), true), "a sleep shows that it is not busy");
        for _ in 1..MAX_BUSY_TURNS {
            assert!(!custody.on_turn(at(7), false));
        }
        assert!(custody.on_turn(at(8), false));
        custody.hand_back();
        assert!(!custody.is_served(at(8)));
        assert_eq!(custody.io_sleeps(at(8)).0, Interest::Read);
        assert!(!custody.may_begin(at(9)));
        assert!(custody.may_begin(at(8) + BUSY_PAUSE));
    }

    #[test]
    fn a_leader_that_answers_each_message_is_not_busy() {
        let mut custody = led(None, None);
        let own = std::thread::current().id();
        for _ in 0..10 * MAX_BUSY_TURNS {
            custody.on_send(own);
            assert!(!custody.on_turn(at(5), false), "no message waits during its turns");
        }
        // One that answers every fourth turn is.
        let is_busy = |custody: &mut Custody, turn: u32| {
            if turn.is_multiple_of(4) {
                custody.on_send(own);
            }
            custody.on_turn(at(6), false)
        };
        assert!((0..4 * MAX_BUSY_TURNS).any(|turn| is_busy(&mut custody, turn)));
        // What other threads send says nothing about it.
        let other = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        let mut custody = led(None, None);
        for _ in 1..MAX_BUSY_TURNS {
            custody.on_send(other);
            assert!(!custody.on_turn(at(7), false));
        }
        assert!(custody.on_turn(at(8), false));
    }

    #[test]
    fn sends_in_quick_succession_are_left_to_the_io_thread() {
        let mut custody = Custody::default();
        assert!(custody.may_send(at(0)));
        assert!(!custody.may_send(at(19)), "they share packets");
        assert!(custody.may_send(at(20)));
        custody.on_received();
        assert!(custody.may_send(at(21)), "an answer");
        assert!(!custody.may_send(at(22)));
    }

    #[test]
    fn a_deadline_within_the_grace_period_is_a_turn_that_comes_soon() {
        let mut custody = Custody::default();
        assert!(!custody.has_turn_soon(at(0)) && !custody.has_taken());
        custody.on_taken(1);
        assert!(custody.has_taken());
        let grace = GRACE.as_micros() as u64;
        for (deadline, is_soon) in [(0, true), (grace, true), (grace + 1, false)] {
            custody.set_deadline(Some(at(deadline)), at(0));
            assert_eq!(custody.has_turn_soon(at(0)), is_soon, "{deadline}");
        }
    }

    #[test]
    fn timer_that_stays_due_is_handled_once_in_a_millisecond() {
        let mut custody = Custody::default();
        let (due, later) = (Some(at(10)), Some(at(11)));
        for _ in 0..2 {
            for _ in 1..MAX_FRUITLESS_TURNS {
                custody.end_turn(due, at(10), false);
                assert_eq!(custody.deadline, due);
            }
            custody.end_turn(due, at(10), true);
            assert_eq!(custody.deadline, due, "a packet was sent");
        }
        for _ in 0..2 * MAX_FRUITLESS_TURNS {
            custody.end_turn(later, at(10), false);
            assert_eq!(custody.deadline, later, "it is not due");
        }
        for _ in 1..MAX_FRUITLESS_TURNS {
            custody.end_turn(due, at(10), false);
        }
        for _ in 0..3 {
            custody.end_turn(due, at(20), false);
            assert_eq!(custody.deadline, Some(at(20) + FRUITLESS_PAUSE));
        }
        custody.on_received();
        custody.end_turn(due, at(21), false);
        assert_eq!(custody.deadline, due, "a datagram arrived");
    }

    #[test]
    fn no_thread_leads_an_endpoint_that_ends() {
        let mut custody = led(None, None);
        custody.stop();
        assert!(custody.leader.as_ref().is_some_and(|leader| leader.is_notified()));
        custody.end(at(1));
        assert!(!custody.may_begin(at(1)) && !custody.is_served(at(1)));
    }
}
