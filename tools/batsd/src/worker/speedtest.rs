//! `batsctl speedtest`: throughput of the reliable session with a peer. Its messages take the place of packets
//! in the queue and the sessions of the tunnel, as a flow of their own, so that they share the rate with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bats_node::NodeId;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::Worker;
use super::tunnel::{Lane, lock};

/// Longest test of a direction.
pub(super) const MAX_SECONDS: u64 = 10;
/// Shortest one that counts: a peer cannot occupy this node with tests of no length.
const MIN_SECONDS: u64 = 1;
/// Time for an answer, and for the end of what is in transit.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds of tests that a peer gets at once; after that it gets half of the time.
const ALLOWANCE: f64 = 40.0;
/// Bytes of a message of data: a message of the tunnel has as many at most.
const CHUNK: usize = 16 << 10;
/// Bounds of the bytes that wait in the queue: more would wait longer than CoDel lets them.
const WAITING: (u64, u64) = (CHUNK as u64, 1 << 20);
/// The end is sent again until the report is there.
const END_AGAIN: Duration = Duration::from_millis(300);

/// A message: one byte of kind, the number of the test (8 bytes, big endian), content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    /// Direction (0: the asking node sends) and duration (milliseconds, 2 bytes).
    Request = 1,
    /// A byte of [`Answer`].
    Answer = 2,
    /// Any bytes.
    Data = 3,
    /// Nothing: the data is complete.
    End = 4,
    /// Bytes after the first message, and microseconds from its arrival to that of the last (8 bytes each).
    Report = 5,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Answer {
    Accepted = 0,
    NotAllowed = 1,
    Busy = 2,
}

/// What arrives of a test.
#[derive(Clone, Copy, Debug, Default)]
struct Meter {
    /// Bytes after the first message.
    bytes: u64,
    arrivals: Option<(Instant, Instant)>,
}

impl Meter {
    fn count(&mut self, bytes: usize, now: Instant) {
        match &mut self.arrivals {
            Some((_, last)) => {
                *last = now;
                self.bytes += bytes as u64;
            }
            arrivals => *arrivals = Some((now, now)),
        }
    }

    fn micros(&self) -> u64 {
        self.arrivals.map_or(0, |(first, last)| (last - first).as_micros() as u64)
    }
}

/// A test that this node asked for.
struct Asked {
    peer: NodeId,
    number: u64,
    meter: Meter,
    happened: mpsc::Sender<(Kind, Vec<u8>)>,
}

/// A test that a peer asked for.
struct Served {
    peer: NodeId,
    number: u64,
    meter: Meter,
    until: Instant,
    /// The task that sends the data, if this node does.
    sender: Option<AbortHandle>,
}

/// Tests: one that this node asked for and one of all peers at a time.
#[derive(Default)]
pub(super) struct Speedtests {
    /// Peers that may ask for tests.
    pub(super) allowed: RwLock<Arc<BTreeSet<NodeId>>>,
    number: AtomicU64,
    asked: Mutex<Option<Asked>>,
    served: Mutex<Option<Served>>,
    /// Seconds that a peer has used, and when this was so. Peers are configured, which bounds their number.
    used: Mutex<BTreeMap<NodeId, (Instant, f64)>>,
}

fn message(kind: Kind, number: u64, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind as u8];
    bytes.extend(number.to_be_bytes());
    bytes.extend(content);
    bytes
}

/// Sends data for a time from `start`. The queue keeps the order, so what follows comes after it.
async fn generate(lane: &Lane, number: u64, start: Instant, duration: Duration) {
    let data = message(Kind::Data, number, &vec![0; CHUNK]);
    let mut sent = 0;
    while start.elapsed() < duration {
        // A few milliseconds of the rate so far.
        let seconds = start.elapsed().as_secs_f64().max(0.001);
        let limit = (sent as f64 / seconds * 0.004) as u64;
        let waiting = lane.queue_stats().bytes;
        if waiting < limit.clamp(WAITING.0, WAITING.1) {
            lane.push_speedtest(&data);
            sent += data.len() as u64;
            // Other tasks of this thread send and receive.
            tokio::task::yield_now().await;
        } else {
            sleep(Duration::from_millis(1)).await;
        }
    }
    while lane.queue_stats().bytes > 0 && start.elapsed() < duration + TIMEOUT {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Removes the test also if the client has gone.
struct Running<'a>(&'a Speedtests);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *lock(&self.0.asked) = None;
    }
}

impl Speedtests {
    /// Measures a direction: `sends` is from this node to the peer.
    pub(super) async fn run(
        &self,
        worker: &Worker,
        peer: NodeId,
        sends: bool,
        duration: Duration,
    ) -> Result<Value, String> {
        let table = worker.table();
        let lanes = table.lanes.get(&peer).ok_or(format!("{peer} is not a peer of this node"))?;
        let lane = &lanes.stream;
        if lock(&lane.session).is_none() {
            let error = lock(&lane.last_error).clone().unwrap_or("it is opening".to_owned());
            return Err(format!("there is no session with {peer}: {error}"));
        }
        // Numbers start at another value after each start: what is left of a test before is none of this one.
        let number = (u64::from(std::process::id()) << 32) + self.number.fetch_add(1, Relaxed);
        let (happened, mut happens) = mpsc::channel(8);
        {
            let mut asked = lock(&self.asked);
            if asked.is_some() {
                return Err("another speed test runs: try again after it".to_owned());
            }
            *asked = Some(Asked { peer, number, meter: Meter::default(), happened });
        }
        let _running = Running(self);
        let mut content = vec![u8::from(!sends)];
        content.extend((duration.as_millis() as u16).to_be_bytes());
        lane.push_speedtest(&message(Kind::Request, number, &content));
        let answer = timeout(TIMEOUT, happens.recv()).await.ok().flatten();
        match answer {
            Some((Kind::Answer, code)) if code == [Answer::Accepted as u8] => {}
            Some((Kind::Answer, code)) if code == [Answer::Busy as u8] => {
                return Err(format!(
                    "{peer} refuses: another test runs there, or this node has used up its time; try again \
                     in a minute"
                ));
            }
            Some(_) => {
                return Err(format!(
                    "{peer} refuses: it needs `speedtest = true` in its [[peer]] of this node"
                ));
            }
            None => {
                let seconds = TIMEOUT.as_secs();
                return Err(format!("no answer from {peer} within {seconds} s"));
            }
        }
        let (bytes, micros) = match sends {
            true => {
                generate(lane, number, Instant::now(), duration).await;
                let report = self.report(lane, number, &mut happens).await;
                report.ok_or(format!("no report from {peer}"))?
            }
            false => {
                // Without an end, what has arrived counts.
                let _ = timeout(duration + 2 * TIMEOUT, happens.recv()).await;
                let asked = lock(&self.asked);
                let meter = asked.as_ref().map(|asked| asked.meter).unwrap_or_default();
                (meter.bytes, meter.micros())
            }
        };
        let seconds = micros as f64 / 1e6;
        let mbps = if micros == 0 { 0.0 } else { bytes as f64 * 8.0 / micros as f64 };
        Ok(json!({ "bytes": bytes, "seconds": seconds, "mbps": mbps }))
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    async fn report(
        &self,
        lane: &Lane,
        number: u64,
        happens: &mut mpsc::Receiver<(Kind, Vec<u8>)>,
    ) -> Option<(u64, u64)> {
        let begin = Instant::now();
        while begin.elapsed() < TIMEOUT.saturating_mul(2) {
            lane.push_speedtest(&message(Kind::End, number, &[]));
            if let Ok(Some((Kind::Report, content))) = timeout(END_AGAIN, happens.recv()).await {
                let (bytes, micros) = content.split_first_chunk::<8>()?;
                let micros = micros.first_chunk::<8>()?;
                return Some((u64::from_be_bytes(*bytes), u64::from_be_bytes(*micros)));
            }
        }
        None
    }

    /// Takes a message of a peer; `lane` leads to it. What belongs to no test is ignored.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn take(&self, peer: NodeId, lane: Option<&Arc<Lane>>, bytes: &[u8]) {
        let Some((&kind, rest)) = bytes.split_first() else { return };
        let Some((number, content)) = rest.split_first_chunk::<8>() else { return };
        let number = u64::from_be_bytes(*number);
        let now = Instant::now();
        let mut asked = lock(&self.asked);
        let mut asked = asked.as_mut().filter(|test| (test.peer, test.number) == (peer, number));
        let mut served = lock(&self.served);
        let same = served.as_mut().filter(|test| (test.peer, test.number) == (peer, number));
        match kind {
            kind if kind == Kind::Data as u8 => {
                if let Some(meter) =
                    asked.map(|test| &mut test.meter).or(same.map(|test| &mut test.meter))
                {
                    meter.count(bytes.len(), now);
                }
            }
            kind if kind == Kind::Request as u8 => {
                let (Some(lane), &[direction, high, low]) = (lane, content) else { return };
                if !lane.may_answer() {
                    return;
                }
                let duration = Duration::from_millis(u16::from_be_bytes([high, low]).into());
                let [least, most] = [MIN_SECONDS, MAX_SECONDS].map(Duration::from_secs);
                let duration = duration.clamp(least, most);
                let answer = self.admit(peer, served.as_ref(), duration, now);
                lane.push_speedtest(&message(Kind::Answer, number, &[answer as u8]));
                if answer == Answer::Accepted {
                    // The end of what this node receives says when the test is over.
                    let rest = if direction == 0 { TIMEOUT } else { Duration::ZERO };
                    let Some(until) = now.checked_add(duration.saturating_add(rest)) else {
                        return;
                    };
                    let sender = (direction != 0).then(|| {
                        let lane = Arc::clone(lane);
                        let sends = async move {
                            // From now, so that no data is queued after the time of the test. At most
                            // `WAITING.1` bytes may still wait then.
                            generate(&lane, number, now, duration).await;
                            for _ in 0..3 {
                                lane.push_speedtest(&message(Kind::End, number, &[]));
                                sleep(END_AGAIN).await;
                            }
                        };
                        tokio::spawn(sends).abort_handle()
                    });
                    let meter = Meter::default();
                    *served = Some(Served { peer, number, meter, until, sender });
                }
            }
            kind if kind == Kind::End as u8 => {
                if let Some(test) = &mut asked {
                    let _ = test.happened.try_send((Kind::End, Vec::new()));
                } else if let (Some(test), Some(lane)) = (same, lane)
                    && lane.may_answer()
                {
                    // Others may have a test now. This one must not go on then: a peer that ends its tests would
                    // have the data of several at once.
                    if let Some(sender) = test.sender.take() {
                        sender.abort();
                    }
                    test.until = now;
                    let mut content = test.meter.bytes.to_be_bytes().to_vec();
                    content.extend(test.meter.micros().to_be_bytes());
                    lane.push_speedtest(&message(Kind::Report, number, &content));
                }
            }
            kind if kind == Kind::Answer as u8 || kind == Kind::Report as u8 => {
                if let Some(test) = &mut asked {
                    let kind = if kind == Kind::Answer as u8 { Kind::Answer } else { Kind::Report };
                    let _ =
                        test.happened.try_send((kind, content.iter().take(16).copied().collect()));
                }
            }
            _ => {}
        }
    }

    fn admit(
        &self,
        peer: NodeId,
        served: Option<&Served>,
        duration: Duration,
        now: Instant,
    ) -> Answer {
        let allowed = self.allowed.read().unwrap_or_else(PoisonError::into_inner);
        if !allowed.contains(&peer) {
            return Answer::NotAllowed;
        }
        if served.is_some_and(|test| now < test.until) {
            return Answer::Busy;
        }
        let mut used = lock(&self.used);
        let entry = used.entry(peer).or_insert((now, 0.0));
        let left = (entry.1 - (now - entry.0).as_secs_f64() / 2.0).max(0.0);
        let level = left + duration.as_secs_f64();
        if level > ALLOWANCE {
            *entry = (now, left);
            return Answer::Busy;
        }
        *entry = (now, level);
        Answer::Accepted
    }
}

#[cfg(test)]
mod tests {
    use openbats::Mode;

    use super::*;

    fn peers() -> [NodeId; 2] {
        [1, 2].map(|id: u32| NodeId(std::net::Ipv4Addr::from_bits(id)))
    }

    #[test]
    fn tests_are_for_allowed_peers_one_at_a_time_and_half_of_the_time() {
        let [allowed, other] = peers();
        let tests = Speedtests::default();
        *tests.allowed.write().unwrap() = Arc::new([allowed].into());
        let start = Instant::now();
        let ten = Duration::from_secs(10);
        assert_eq!(tests.admit(other, None, ten, start), Answer::NotAllowed);
        let until = start + Duration::from_secs(1);
        let meter = Meter::default();
        let served = Served { peer: allowed, number: 1, meter, until, sender: None };
        assert_eq!(tests.admit(allowed, Some(&served), ten, start), Answer::Busy);
        for _ in 0..4 {
            assert_eq!(tests.admit(allowed, Some(&served), ten, until), Answer::Accepted);
        }
        assert_eq!(tests.admit(allowed, None, ten, until), Answer::Busy);
        let later = until + Duration::from_secs(20);
        assert_eq!(tests.admit(allowed, None, ten, later), Answer::Accepted);
        assert_eq!(tests.admit(allowed, None, ten, later), Answer::Busy);
    }

    #[test]
    fn requests_for_tests_of_no_length_use_up_the_time_of_a_peer() {
        let [peer, _] = peers();
        let tests = Speedtests::default();
        *tests.allowed.write().unwrap() = Arc::new([peer].into());
        let served = || lock(&tests.served).as_ref().map(|test| test.number);
        for number in 0..60 {
            // Each has a lane of its own, which limits answers.
            let lane = Arc::new(Lane::new(Mode::Brtp));
            tests.take(peer, Some(&lane), &message(Kind::Request, number, &[0, 0, 0]));
            tests.take(peer, Some(&lane), &message(Kind::End, number, &[]));
        }
        assert!(served().is_some_and(|number| (39..50).contains(&number)), "{:?}", served());
    }

    #[test]
    fn the_end_of_a_test_that_this_node_sends_stops_its_data() {
        let [peer, _] = peers();
        let tests = Speedtests::default();
        *tests.allowed.write().unwrap() = Arc::new([peer].into());
        let lane = Arc::new(Lane::new(Mode::Brtp));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let served = || lock(&tests.served).as_ref().map(|test| test.number);
            let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
            let request = |number: u64, direction: u8| {
                let content = [direction, 0x27, 0x10];
                tests.take(peer, Some(&lane), &message(Kind::Request, number, &content));
            };
            for number in 0..3 {
                request(number, 1);
                tokio::task::yield_now().await;
                assert_eq!((served(), tasks()), (Some(number), 1));
                // Without its end, the test goes on and another one is refused.
                request(9, 1);
                assert_eq!(served(), Some(number));
                tests.take(peer, Some(&lane), &message(Kind::End, number, &[]));
            }
            tokio::task::yield_now().await;
            assert_eq!(tasks(), 0);
            request(3, 0);
            assert_eq!((served(), tasks()), (Some(3), 0));
        });
    }

    #[test]
    fn messages_of_no_test_do_nothing_and_a_report_has_what_arrived() {
        let [peer, other] = peers();
        let tests = Speedtests::default();
        let lane = Arc::new(Lane::new(Mode::Brtp));
        for bytes in [&[][..], &[1], &[9; 20], &message(Kind::Data, 7, &[0; 99]), &[4; 9]] {
            tests.take(peer, Some(&lane), bytes);
        }
        assert_eq!(lane.queue_stats().packets, 0);
        tests.take(peer, Some(&lane), &message(Kind::Request, 7, &[0, 0, 100]));
        assert_eq!(lane.queue_stats().packets, 1, "refused with an answer");
        assert!(lock(&tests.served).is_none());
        *tests.allowed.write().unwrap() = Arc::new([peer].into());
        tests.take(peer, Some(&lane), &message(Kind::Request, 7, &[0, 0, 100]));
        for sender in [peer, other, peer] {
            tests.take(sender, Some(&lane), &message(Kind::Data, 7, &[0; 91]));
        }
        tests.take(other, Some(&lane), &message(Kind::End, 7, &[]));
        assert_eq!(lane.queue_stats().packets, 2);
        tests.take(peer, Some(&lane), &message(Kind::End, 7, &[]));
        assert_eq!(lane.queue_stats().packets, 3);
        let served = lock(&tests.served);
        assert_eq!(served.as_ref().unwrap().meter.bytes, 100, "after the first message");
    }
}
