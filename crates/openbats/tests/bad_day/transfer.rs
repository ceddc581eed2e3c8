//! A transfer that goes on during a fault, and what must hold for it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use openbats::{
    ClientOptions, Connection, ConnectionStats, Endpoint, Fingerprint, Identity, ServerOptions,
    TransportConfig, Trust, Wait,
};

use crate::network::{FarHost, any};
use crate::stalls::{LEAST_PROBE_TIMEOUT, Stalls};
use crate::{LIMIT, print_line, wait_until};

/// Bytes of a message, and the pause after it: 4 MB/s, which leaves the processors to the other cases.
const MESSAGE: usize = 20_000;
const PAUSE: Duration = Duration::from_millis(5);
/// Packets in transit when a fault begins may still arrive after this.
const SETTLING: Duration = Duration::from_secs(1);
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
    near: Connection,
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
        let stats = self.near.stats();
        let expired = stats.probe_timeouts - self.before.probe_timeouts;
        let [mut unanswered, mut without_data] = self.counts;
        if stats.packets_received == self.before.packets_received {
            unanswered.look(expired, stalled);
        }
        without_data.look(expired, stalled);
        [unanswered, without_data]
    }
}

/// A transfer from the near host to a far one.
pub(crate) struct Transfer {
    pub(crate) near: Connection,
    received: Arc<AtomicU64>,
    is_stopping: Arc<AtomicBool>,
    sending: JoinHandle<[u8; 32]>,
    receiving: Option<JoinHandle<[u8; 32]>>,
    stalls: Stalls,
}

/// The defaults, with which connections continue after faults of 20 s; or, with `waits_long`, an idle
/// timeout that does not end waiting connections on a busy host, which may take some seconds to set an interface up.
pub(crate) fn transport(waits_long: bool) -> TransportConfig {
    let defaults = TransportConfig::default();
    let idle_timeout = if waits_long { LIMIT } else { defaults.idle_timeout };
    TransportConfig { idle_timeout, ..defaults }
}

/// Starts a server on the far host, whose connections wait for long.
pub(crate) fn serve(far: &FarHost, address: &'static str) -> (Endpoint, Fingerprint) {
    far.run(move || {
        let identity = Identity::generate(&["far"]).unwrap();
        let fingerprint = identity.fingerprint();
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        let options = ServerOptions::new(identity).transport(transport(true));
        (Endpoint::builder().bind(address).server(options).start().unwrap(), fingerprint)
    })
}

/// Connects an endpoint of the near host; the connection waits for long.
pub(crate) fn connect(client: &Endpoint, to: SocketAddr, trust: Fingerprint) -> Connection {
    connect_with(client, to, trust, true)
}

/// As [`connect`]; see [`transport`].
pub(crate) fn connect_with(
    client: &Endpoint,
    to: SocketAddr,
    trust: Fingerprint,
    waits_long: bool,
) -> Connection {
    let options = ClientOptions::new(Trust::fingerprint(trust)).transport(transport(waits_long));
    client.connect(to, "far", options).wait_for(LIMIT).unwrap().expect("a connection")
}

impl Transfer {
    /// Starts a transfer to a new server at an address of the far host.
    pub(crate) fn start(far: &FarHost, address: &'static str) -> Self {
        let (server, fingerprint) = serve(far, address);
        let client = Endpoint::builder().bind(any(address)).start().unwrap();
        let near = connect(&client, server.local_addr(), fingerprint);
        let accepted = server.accept().wait_for(LIMIT).unwrap().unwrap();
        let (receiving, received) = receive(accepted);
        Self::over(near, received, Some(receiving))
    }

    /// Starts a transfer over a connection; `received` counts the bytes at its other end.
    pub(crate) fn over(
        near: Connection,
        received: Arc<AtomicU64>,
        receiving: Option<JoinHandle<[u8; 32]>>,
    ) -> Self {
        let is_stopping = Arc::new(AtomicBool::new(false));
        let (connection, stop) = (near.clone(), is_stopping.clone());
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
        Self { near, received, is_stopping, sending, receiving, stalls }
    }

    /// Waits until more data arrives.
    pub(crate) fn await_progress(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_until("more data arrives", || self.received.load(Ordering::Relaxed) > before);
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
            self.await_progress();
            wait_until("the path is usable before the fault", passes);
            begin();
            let (during, settling) = self.await_stop();
            thread::sleep(time.saturating_sub(settling));
            assert!(!passes(), "the fault interrupts the path");
            let received = self.received.load(Ordering::Relaxed);
            assert_eq!(received, during, "nothing arrives in the fault");
            end();
            wait_until("the path returns", passes);
            self.resume(self.timeouts())
        });
        self.await_progress();
    }

    /// As [`Self::outage`], from now on.
    pub(crate) fn resumes_in_time(&self) {
        attempt(|| self.resume(self.timeouts()));
        self.await_progress();
    }

    /// Probe timeouts from now on.
    pub(crate) fn timeouts(&self) -> Timeouts {
        let (near, stalls) = (self.near.clone(), self.stalls);
        let stalled = stalls.ended();
        let counts = [Count { expired: 0, stalled }; 2];
        Timeouts { before: near.stats(), near, stalls, counts }
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
            assert!(waited < LIMIT, "the fault does not stop the transfer");
        }
    }

    /// Waits until more data arrives, and counts the probe timeouts that expire before.
    pub(crate) fn resume(&self, mut timeouts: Timeouts) -> Resumed {
        let rtt = self.near.stats().smoothed_rtt;
        let received = self.received.load(Ordering::Relaxed);
        wait_until("the transfer resumes", || {
            // Timers that expire after the data arrived belong to the transfer that follows.
            let counts = timeouts.counted();
            let is_waiting = self.received.load(Ordering::Relaxed) == received;
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
/// Delays too short to be seen may add up to a timeout, so that it takes two attempts without another reason.
pub(crate) fn attempt(mut fault: impl FnMut() -> Resumed) {
    let mut last = None;
    let mut unexplained = 0;
    for _ in 0..ATTEMPTS {
        let resumed = fault();
        let Resumed { counts, stalled } = resumed;
        if counts.iter().all(|count| count.expired <= PROBE_TIMEOUTS) {
            return;
        }
        unexplained += u32::from(!counts.iter().all(|count| count.is_excused(stalled)));
        assert!(unexplained < 2, "the transfer did not resume in time: {resumed:?}");
        last = Some(resumed);
    }
    panic!("this host is too busy: {last:?} in the last of {ATTEMPTS} attempts");
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
