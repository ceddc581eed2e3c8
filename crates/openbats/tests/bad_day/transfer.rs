//! A transfer that goes on during a fault, and what must hold for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use openbats::{
    ClientOptions, CloseReason, Connection, ConnectionStats, Endpoint, Fingerprint, Identity,
    ServerOptions, Trust, Wait,
};

use crate::network::{Delayed, FarHost, any, forget_delays, was_delayed, watch_for_delay};
use crate::stalls::{LEAST_PROBE_TIMEOUT, Stalls};
use crate::{LIMIT, print_line, wait_until};

/// Bytes of a message, and the pause after it: 4 MB/s, which leaves the processors to the other cases.
const MESSAGE: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(5);
/// Packets in transit when a fault begins may still arrive after this.
const SETTLING: Duration = Duration::from_secs(1);
/// On a busy host, the receiver reads for longer what arrived before the fault; not for as long as the default idle
/// timeout of 30 s, at which the connection ends.
const LONGEST_SETTLING: Duration = Duration::from_secs(20);
/// Probe timeouts within which the peer answers and new data arrives.
const PROBE_TIMEOUTS: u64 = 3;
/// A host that is delayed in each of so many attempts is too busy for this test.
const ATTEMPTS: usize = 5;

/// Probe timeouts of a sender, of which [`PROBE_TIMEOUTS`] are allowed.
#[derive(Clone, Copy, Debug)]
struct Count {
    expired: u64,
    /// Delays of the host that ended before the last one that is allowed expired.
    stalled: Duration,
}

impl Count {
    fn look(&mut self, expired: u64, stalled: Duration) {
        self.expired = expired;
        if expired < PROBE_TIMEOUTS {
            self.stalled = stalled;
        }
    }

    /// Whether the host explains the timeouts that are not allowed, if any. Those before them were enough for a
    /// correct sender; what it sent then waits for threads to run, for as long as the further timers take,
    /// which is at least the least probe timeout each. Earlier delays excuse nothing.
    fn is_excused(self, stalled: Duration) -> bool {
        let excess = self.expired.saturating_sub(PROBE_TIMEOUTS);
        stalled - self.stalled >= LEAST_PROBE_TIMEOUT * u32::try_from(excess).unwrap()
    }
}

/// Passes that an attempt without an explanation needs after it.
const PASSES_AFTER_UNEXPLAINED: u32 = 2;

/// How a transfer resumed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resumed {
    /// Before the peer's first answer, and before new data arrived.
    counts: [Count; 2],
    /// Delays of the host.
    stalled: Duration,
}

/// Counts probe timeouts of a sender, and the delays of the host that may excuse them.
pub(crate) struct Timeouts {
    sender: Connection,
    stalls: Stalls,
    before: ConnectionStats,
    counts: [Count; 2],
}

impl Timeouts {
    /// Looks at the sender's numbers; to be called again and again.
    pub(crate) fn look(&mut self) {
        self.counts = self.counted();
    }

    fn counted(&self) -> [Count; 2] {
        // In this order: a delay between both is taken for one after the timeout.
        let stalled = self.stalls.ended();
        let stats = self.sender.stats();
        let expired = stats.congestion.probe_timeouts - self.before.congestion.probe_timeouts;
        let [mut unanswered, mut without_data] = self.counts;
        if stats.packets.received == self.before.packets.received {
            unanswered.look(expired, stalled);
        }
        without_data.look(expired, stalled);
        [unanswered, without_data]
    }
}

/// The host that sends the data of a transfer. The near one is the client of the connection, the far one its server.
#[derive(Clone, Copy)]
pub(crate) enum Sender {
    Near,
    Far,
}

/// A transfer between the near host and a far one.
pub(crate) struct Transfer {
    pub(crate) near: Connection,
    /// The sender's end of the connection: the near one, or the far one.
    pub(crate) sender: Connection,
    received: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    sending: JoinHandle<[u8; 32]>,
    receiving: Option<JoinHandle<[u8; 32]>>,
    stalls: Stalls,
}

/// Starts a server on the far host, with the defaults: connections continue after faults of 20 s, also with the idle
/// timeout.
pub(crate) fn serve(far: &FarHost, address: &'static str) -> (Endpoint, Fingerprint) {
    far.run(move || {
        let identity = Identity::generate(&["far"]).unwrap();
        let fingerprint = identity.fingerprint();
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let options = ServerOptions::new(identity);
        (Endpoint::builder().bind(address).server(options).start().unwrap(), fingerprint)
    })
}

/// Connects an endpoint of the near host, with the defaults.
pub(crate) fn connect(client: &Endpoint, to: SocketAddr, trust: Fingerprint) -> Connection {
    connect_with(client, to, ClientOptions::new(Trust::fingerprint(trust)))
}

/// As [`connect`], with other options.
pub(crate) fn connect_with(
    client: &Endpoint,
    to: SocketAddr,
    options: ClientOptions,
) -> Connection {
    client.connect(to, "far", options).wait_for(LIMIT).unwrap().expect("a connection")
}

impl Transfer {
    /// Starts a transfer to or from a new server at an address of the far host.
    pub(crate) fn start(far: &FarHost, address: &'static str, sender: Sender) -> Self {
        let (server, fingerprint) = serve(far, address);
        let client = Endpoint::builder().bind(any(address)).start().unwrap();
        let near = connect(&client, server.local_addr(), fingerprint);
        let accepted = server.accept().wait_for(LIMIT).unwrap().unwrap();
        let (sender, receiver) = match sender {
            Sender::Near => (near.clone(), accepted),
            Sender::Far => (accepted, near.clone()),
        };
        let (receiving, received) = receive(receiver);
        Self::over((near, sender), received, Some(receiving))
    }

    /// Starts a transfer over a connection, of which the near and the sender's end are given; `received` counts the
    /// bytes at the receiver's end.
    pub(crate) fn over(
        (near, sender): (Connection, Connection),
        received: Arc<AtomicU64>,
        receiving: Option<JoinHandle<[u8; 32]>>,
    ) -> Self {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (connection, stop) = (sender.clone(), is_stopping.clone());
        let sending = thread::spawn(move || {
            let mut hasher = blake3::Hasher::new();
            let mut number = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let message = message(number);
                hasher.update(&message);
                connection.send(message).wait_for(LIMIT).expect("room in time").expect("a send");
                number += 1;
                thread::sleep(PAUSE);
            }
            connection.finish().wait_for(LIMIT).expect("an end in time").expect("an end");
            hasher.finalize().into()
        });
        let stalls = Stalls::watch();
        Self { near, sender, received, is_stopping, sending, receiving, stalls }
    }

    /// Waits until more data arrives.
    pub(crate) fn await_progress(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_until("more data arrives", || {
            self.check_open();
            self.received.load(Ordering::Relaxed) > before
        });
    }

    /// Begins a fault that interrupts the path, so that `passes` is false, waits for `time`, ends the
    /// fault, and checks that the transfer stops and resumes within 3 PTO of the path's return.
    ///
    /// A clock would measure the load of the host. So the sender's own timers count: at most three of its
    /// probe timeouts (RFC 9002, section 6.2; with its own estimate and backoff) expire between the first
    /// datagram of another socket that passes and the peer's first answer, and new data at the receiver. A late timer
    /// of a busy host does not change this number. Virtual time bounds the duration itself: the scenarios
    /// `blackout` and `path_mtu` of `bats-sim`.
    pub(crate) fn outage(
        &self,
        passes: &dyn Fn() -> bool,
        time: Duration,
        begin: impl Fn(),
        end: impl Fn(),
    ) {
        attempt(|| {
            self.begin_outage(passes, &begin);
            let (during, settling) = self.await_stop();
            thread::sleep(time.saturating_sub(settling));
            let received = self.received.load(Ordering::Relaxed);
            assert_eq!(received, during, "nothing arrives in the fault");
            self.end_outage(passes, &end)
        });
        self.await_progress();
    }

    /// As [`Self::outage`], for a fault that lets data pass, but no answer to its sender: data arrives as long as the
    /// sender probes with new data.
    pub(crate) fn outage_of_answers(
        &self,
        passes: &dyn Fn() -> bool,
        time: Duration,
        begin: impl Fn(),
        end: impl Fn(),
    ) {
        attempt(|| {
            self.begin_outage(passes, &begin);
            thread::sleep(time);
            self.end_outage(passes, &end)
        });
        self.await_progress();
    }

    fn begin_outage(&self, passes: &dyn Fn() -> bool, begin: impl Fn()) {
        self.await_progress();
        wait_until("the path is usable before the fault", passes);
        self.note("the fault begins");
        begin();
        self.note("the fault has begun");
    }

    fn end_outage(&self, passes: &dyn Fn() -> bool, end: impl Fn()) -> Resumed {
        assert!(!passes(), "the fault interrupts the path");
        self.note("the fault ends");
        end();
        self.note("the fault has ended");
        watch_for_delay("the path's return", || wait_until("the path returns", passes));
        self.note("the path is usable again");
        self.resume(self.timeouts())
    }

    /// Writes when a step is taken, which the test shows of a case that fails: commands take long on a busy host. The
    /// time is that of the connection, which stands still when it has ended.
    fn note(&self, step: &str) {
        eprintln!("{:.3} s: {step}", self.sender.stats().time.as_secs_f64());
    }

    /// The connection goes on. If the kernel delayed the fault for longer than the idle timeout, it cannot, and the
    /// case is to be repeated.
    fn check_open(&self) {
        match self.sender.close_reason() {
            None => {}
            Some(CloseReason::IdleTimeout(_)) if was_delayed() => std::panic::panic_any(Delayed),
            Some(reason) => panic!("the connection has ended: {reason:?}"),
        }
    }

    /// As [`Self::outage`], from now on.
    pub(crate) fn resumes_in_time(&self) {
        attempt(|| self.resume(self.timeouts()));
        self.await_progress();
    }

    /// Probe timeouts from now on.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let (sender, stalls) = (self.sender.clone(), self.stalls);
        let stalled = stalls.ended();
        let counts = [Count { expired: 0, stalled }; 2];
        Timeouts { before: sender.stats(), sender, stalls, counts }
    }

    /// Waits until nothing arrives for [`SETTLING`]; returns the bytes received, and the time waited.
    fn await_stop(&self) -> (u64, Duration) {
        let mut waited = Duration::ZERO;
        let mut received = self.received.load(Ordering::Relaxed);
        loop {
            thread::sleep(SETTLING);
            waited += SETTLING;
            let before = std::mem::replace(&mut received, self.received.load(Ordering::Relaxed));
            if received == before {
                return (received, waited);
            }
            assert!(waited < LONGEST_SETTLING, "the fault does not stop the transfer");
        }
    }

    /// Waits until more data arrives, and counts the probe timeouts that expire before.
    pub(crate) fn resume(&self, mut timeouts: Timeouts) -> Resumed {
        let rtt = self.sender.stats().path.smoothed_rtt;
        let received = self.received.load(Ordering::Relaxed);
        wait_until("the transfer resumes", || {
            // Timers that expire after the data arrived belong to the transfer that follows.
            let counts = timeouts.counted();
            let is_waiting = self.received.load(Ordering::Relaxed) == received;
            self.check_open();
            if is_waiting {
                timeouts.counts = counts;
            }
            !is_waiting
        });
        let (counts, stalled) = (timeouts.counts, timeouts.stalls.all());
        print_line(&format!(
            "measured {}: {} probe timeouts from the return to an answer, {} to new data, at an RTT of {rtt:?}",
            std::env::var(crate::CASE).unwrap_or_default(),
            counts[0].expired,
            counts[1].expired,
        ));
        Resumed { counts, stalled }
    }

    /// Stops sending; returns the hash of all that was sent. All of it has arrived.
    pub(crate) fn finish_sending(self) -> [u8; 32] {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.sending.join().unwrap()
    }

    /// Ends the transfer and checks that the receiver got exactly what was sent.
    pub(crate) fn finish(mut self) {
        self.await_progress();
        let receiving = self.receiving.take().expect("a receiver in this process");
        let sent = self.finish_sending();
        assert_eq!(receiving.join().unwrap(), sent, "the receiver got what was sent");
    }
}

/// Checks that a fault costs at most as many probe timeouts as it may. More of them are held against the
/// protocol unless the host did not let threads run meanwhile: then data waits for its receiver, and timers expire.
///
/// The kernel's own delays of a fault explain them, too: timeouts before it takes effect count.
///
/// Delays too short to be seen may add up to a timeout. So one attempt without an explanation is allowed, which two
/// attempts in time must make good; and all faults of the test together may have [`crate::UNEXPLAINED`] of them, since
/// a busy host is busy for all. A defect that lets a fault fail with probability `p` passes this with probability
/// `(1-p) + p (1-p)^2` if it concerns a single fault: 0.85 at `p` = 0.3, and 0.36 at 0.7. If it concerns `n` faults,
/// that is the sum of `C(n,k) p^k (1-p)^(n+k)` for `k` up to the limit: 0.18 for ten at `p` = 0.3, and for all (about
/// 50) 0.15 at 0.1 and less than 10^-5 at 0.3.
pub(crate) fn attempt(mut fault: impl FnMut() -> Resumed) {
    let mut last = None;
    let mut is_unexplained = false;
    let mut passes_needed = 1;
    for _ in 0..ATTEMPTS {
        forget_delays();
        let resumed = fault();
        let Resumed { counts, stalled } = resumed;
        if counts.iter().all(|count| count.expired <= PROBE_TIMEOUTS) {
            passes_needed -= 1;
            if passes_needed == 0 {
                return;
            }
        } else if !was_delayed() && !counts.iter().all(|count| count.is_excused(stalled)) {
            assert!(!is_unexplained, "the transfer did not resume in time: {resumed:?}");
            is_unexplained = true;
            passes_needed = PASSES_AFTER_UNEXPLAINED;
            print_line(&format!("{} {resumed:?}", crate::UNEXPLAINED_LINE));
        } else {
            last = Some(resumed);
        }
    }
    panic!("this host is too busy: {last:?} in the last late one of {ATTEMPTS} attempts");
}

fn message(number: u64) -> Vec<u8> {
    let mut message = number.to_be_bytes().repeat(MESSAGE / 8);
    message[8..].iter_mut().zip(0u8..=255).for_each(|(byte, at)| *byte ^= at.wrapping_mul(31));
    message
}

/// Receives all messages; returns their hash at the end, and counts the bytes until then.
pub(crate) fn receive(connection: Connection) -> (JoinHandle<[u8; 32]>, Arc<AtomicU64>) {
    let received = Arc::new(AtomicU64::new(0));
    let count = received.clone();
    let receiving = thread::spawn(move || {
        let mut hasher = blake3::Hasher::new();
        while let Some(message) = connection.recv().wait_for(LIMIT).expect("data").expect("data") {
            hasher.update(&message);
            count.fetch_add(message.len() as u64, Ordering::Relaxed);
        }
        hasher.finalize().into()
    });
    (receiving, received)
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN_TIME: u64 = PROBE_TIMEOUTS;
    const LATE: u64 = PROBE_TIMEOUTS + 1;

    /// Attempts with these probe timeouts, of which the host explains those that are `true`; the attempts made, or
    /// `None` if the fault fails.
    fn attempts(results: &[(u64, bool)]) -> Option<usize> {
        let mut made = 0;
        let run = std::panic::AssertUnwindSafe(|| {
            attempt(|| {
                let (expired, is_explained) = results[made];
                made += 1;
                let count = Count { expired, stalled: Duration::ZERO };
                let stalled = if is_explained { LEAST_PROBE_TIMEOUT } else { Duration::ZERO };
                Resumed { counts: [count; 2], stalled }
            });
        });
        std::panic::catch_unwind(run).ok().map(|()| made)
    }

    #[test]
    fn a_late_attempt_without_explanation_needs_two_in_time() {
        let (late, in_time, busy) = ((LATE, false), (IN_TIME, false), (LATE, true));
        assert_eq!(attempts(&[in_time]), Some(1));
        assert_eq!(attempts(&[late, in_time, in_time]), Some(3));
        assert_eq!(attempts(&[late, late]), None);
        assert_eq!(attempts(&[late, in_time, late]), None);
        assert_eq!(attempts(&[busy, late, busy, late]), None);
        assert_eq!(attempts(&[busy, busy, in_time]), Some(3));
        assert_eq!(attempts(&[busy, late, in_time, busy, in_time]), Some(5));
        assert_eq!(attempts(&[busy; ATTEMPTS]), None);
    }
}
