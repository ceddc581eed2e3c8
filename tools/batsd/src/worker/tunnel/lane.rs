//! The queue of a session with a peer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bats_node::{FqCodel, QueueStats};
use bats_tun::mark_ce;
use bats_types::{ReportBudget, Timestamp};
use openbats::Mode;
use openbats::node::Session;
use tokio::sync::Notify;

use super::format::Echo;
use super::links::LinkSession;
use super::outgoing::channel_of;
use super::{format, lock};

/// The flow of echoes in FQ-CoDel.
const ECHO_FLOW: u64 = 4;
/// The flow of speed tests in FQ-CoDel.
const SPEEDTEST_FLOW: u64 = 5;
/// Mean interval at which requests of a peer are answered. An answer takes five times the bytes of
/// a request that shares a symbol with others.
const ECHO_INTERVAL: Duration = Duration::from_millis(10);
/// So many bytes of packets that wait leave together. A symbol ends with what the session has, so small
/// packets one by one leave symbols partly empty: writes of four segments (the kernel's
/// BBR sends these at 50 Mbit/s) made one packet in four a short one. Chosen: 12 symbols, 2.6 ms at
/// 50 Mbit/s.
const COLLECTED: usize = 16 << 10;
/// Maximum number of bytes that wait for a session: it only bounds memory, because CoDel acts much earlier.
const QUEUE: usize = 8 << 20;
/// Deadline of datagrams: time for repairs on a path with several relays, but not longer than
/// resolvers and other clients wait before they retry.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);

/// A packet that waits, with its channel and the deadline of a datagram.
struct Waiting {
    packet: Vec<u8>,
    channel: usize,
    deadline: Duration,
}

/// The queue of a session with a peer.
pub(in super::super) struct Lane {
    pub(in super::super) mode: Mode,
    queue: Mutex<FqCodel<Waiting>>,
    filled: Notify,
    /// Packets that had left the queue and were dropped, because the peer stopped or does not read their channel.
    blocked: AtomicU64,
    started: Instant,
    /// Echo requests that the peer may have answered.
    answers: Mutex<ReportBudget>,
    pub(in super::super) session: Mutex<Option<Session>>,
    /// The sessions of the links with the peer.
    links: Mutex<Vec<LinkSession>>,
    /// That of them that packets go in now.
    used: Mutex<Option<LinkSession>>,
    pub(in super::super) last_error: Mutex<Option<String>>,
}

impl Lane {
    pub(in super::super) fn new(mode: Mode) -> Self {
        Self {
            mode,
            queue: Mutex::new(FqCodel::new(QUEUE)),
            filled: Notify::new(),
            blocked: AtomicU64::new(0),
            started: Instant::now(),
            answers: Mutex::new(ReportBudget::new(ECHO_INTERVAL)),
            session: Mutex::new(None),
            links: Mutex::default(),
            used: Mutex::new(None),
            last_error: Mutex::new(None),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.started.elapsed()
    }

    /// Sets the sessions of the established links with the peer.
    pub(in super::super) fn set_links(&self, links: Vec<LinkSession>) {
        *lock(&self.links) = links;
    }

    /// The sessions of the established links with the peer.
    pub(super) fn links(&self) -> Vec<LinkSession> {
        lock(&self.links).clone()
    }

    /// Sets the link whose session packets go in now; `None` if it is the session over routes.
    pub(super) fn set_used(&self, link: Option<LinkSession>) {
        *lock(&self.used) = link;
    }

    /// The link whose session packets go in now.
    pub(in super::super) fn used(&self) -> Option<LinkSession> {
        lock(&self.used).clone()
    }

    /// Queues an encoded packet of the flow with this hash.
    pub(super) fn push(&self, hash: u64, packet: Vec<u8>, deadline: Duration) {
        let (bytes, channel) = (packet.len(), channel_of(hash));
        lock(&self.queue).push(self.now(), hash, bytes, Waiting { packet, channel, deadline });
        self.filled.notify_one();
    }

    /// Queues an echo request or an echo, as a flow of its own.
    pub(in super::super) fn push_echo(&self, echo: Echo) {
        self.push(ECHO_FLOW, format::echo(echo), DEADLINE);
    }

    /// Queues a message of a speed test, as a flow of its own.
    pub(in super::super) fn push_speedtest(&self, content: &[u8]) {
        self.push(SPEEDTEST_FLOW, format::speedtest(content), DEADLINE);
    }

    /// As [`push_echo`](Self::push_echo) for the answer to a request, unless there were too many.
    pub(in super::super) fn answer(&self, echo: Echo) {
        if self.may_answer() {
            self.push_echo(echo);
        }
    }

    /// Whether one more request may be answered now.
    pub(in super::super) fn may_answer(&self) -> bool {
        lock(&self.answers).take(self.now())
    }

    /// The next packet, if one waits.
    fn pop(&self) -> Option<Waiting> {
        let mark =
            |waiting: &mut Waiting| waiting.packet.get_mut(format::PREFIX..).is_some_and(mark_ce);
        lock(&self.queue).pop(self.now(), mark).map(|packet| packet.item)
    }

    /// Completes when a packet waits.
    pub(super) async fn filled(&self) {
        while lock(&self.queue).stats().packets == 0 {
            self.filled.notified().await;
        }
    }

    /// The next packet and its deadline, if one waits.
    pub(super) fn next_message(&self) -> Option<(Vec<u8>, Duration)> {
        self.pop().map(|waiting| (waiting.packet, waiting.deadline))
    }

    /// The next packets, those of each channel together.
    pub(super) fn next_packets(&self) -> Vec<(usize, Vec<u8>)> {
        let (mut length, mut all) = (0_usize, Vec::<(usize, Vec<u8>)>::new());
        while length < COLLECTED
            && let Some(Waiting { packet, channel, .. }) = self.pop()
        {
            length = packet.len().saturating_add(length);
            match all.iter_mut().find(|(known, _)| *known == channel) {
                Some((_, packets)) => packets.extend(packet),
                None => all.push((channel, packet)),
            }
        }
        all
    }

    /// Counts packets that were dropped because of their channel.
    pub(super) fn count_blocked(&self, packets: u64) {
        self.blocked.fetch_add(packets, Relaxed);
    }

    /// Counters of the queue. Those dropped because of their channel are among the overflowed ones.
    pub(in super::super) fn queue_stats(&self) -> QueueStats {
        let stats = lock(&self.queue).stats();
        let blocked = self.blocked.load(Relaxed);
        QueueStats { overflowed: stats.overflowed.saturating_add(blocked), ..stats }
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::{Content, Parts};
    use super::*;

    const OFFLOAD: bats_tun::Offload = bats_tun::Offload { needs_checksum: false, segment: 0 };

    fn filled(mode: Mode, hashes: &[u64], size: usize) -> Lane {
        let lane = Lane::new(mode);
        for (index, &hash) in hashes.iter().enumerate() {
            let packet = format::packet(OFFLOAD, &vec![index as u8; size]);
            lane.push(hash, packet, DEADLINE);
        }
        lane
    }

    /// The first bytes of the packets.
    fn numbers(mut packets: Vec<u8>) -> Vec<u8> {
        let mut all = Vec::new();
        let take = |content: Content<'_>| match content {
            Content::Packet(_, bytes) => all.push(bytes[0]),
            other => panic!("{other:?}"),
        };
        Parts::default().feed(&mut packets, usize::MAX, take).unwrap();
        all
    }

    #[test]
    fn packets_that_wait_leave_together_and_a_datagram_is_alone() {
        let lane = filled(Mode::Brtp, &[7; 20], 4_000);
        // Five packets exceed the size.
        for first in [0, 5, 10, 15] {
            let packets = lane.next_packets().pop().unwrap();
            assert_eq!((packets.0, numbers(packets.1)), (7, (first..first + 5).collect()));
        }
        assert!(lane.next_packets().is_empty());
        let lane = filled(Mode::Btp, &[7; 2], 100);
        for number in 0..2 {
            assert_eq!(numbers(lane.next_message().unwrap().0), [number]);
        }
    }

    #[test]
    fn flows_have_the_channel_of_their_hash_and_keep_their_order() {
        let lane = filled(Mode::Brtp, &[7, 64, 7, 0, 64 + 7], 1_000);
        let mut all = lane.next_packets();
        all.sort_unstable();
        let all: Vec<_> =
            all.into_iter().map(|(channel, bytes)| (channel, numbers(bytes))).collect();
        // The packets of a flow are in order; two flows may share a channel.
        assert_eq!(all[0].0, 0);
        assert_eq!(all[1].0, 7);
        assert_eq!(all[0].1.len() + all[1].1.len(), 5);
        let position = |number| all[1].1.iter().position(|&one| one == number);
        assert!(position(0) < position(2) && position(4).is_some());
    }
}
