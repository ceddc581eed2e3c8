//! Rates of neighbours: how much a relay forwards for each of them.

use core::num::NonZeroU64;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_types::Timestamp;
use bats_wire::flow::FlowKey;

use super::link_view::LinkView;

/// Burst of a token bucket: what its rate allows in this time, or [`LEAST_BURST`]. Chosen: longer than the
/// interval of wake-ups, short against a round trip of a wide-area network.
const BURST: Duration = Duration::from_millis(10);
/// Two full packets, and one more that is sent while there are tokens for a part of it.
const LEAST_BURST: u64 = 3 * 1_500;
/// Least number of packets that the previous node may send before the next report, so that a slow flow
/// always learns of new room.
const LEAST_ROOM: u64 = 4;

/// Weight of older packets in the mean size. Chosen: reports count packets, and their size changes slowly.
const MEAN_PACKETS: u64 = 8;

/// A limit of what a relay forwards for a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Payload bits per second that are forwarded: relayed packets without the headers of their links, and
    /// repairs of the next link's losses.
    pub bits_per_second: NonZeroU64,
    /// Links with the same group share one limit: several links of a neighbour get no more than one.
    pub group: LimitGroup,
}

/// A group of links that share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitGroup(pub u64);

/// A token bucket (GCRA: ITU-T I.371, virtual scheduling).
#[derive(Debug)]
struct Bucket {
    bits_per_second: NonZeroU64,
    /// When everything sent so far would have left at exactly the rate.
    theoretical_arrival: Timestamp,
    /// When the last packet was sent.
    charged_at: Timestamp,
    /// Mean size in bytes of the packets that were forwarded lately; 0 before the first.
    mean_packet: u64,
    /// Until then the flows that were woken last may use the tokens.
    released_until: Timestamp,
    /// Flows with packets that wait for tokens, each once.
    waiting: VecDeque<FlowKey>,
    is_waiting: BTreeSet<FlowKey>,
    /// The flows that were woken last.
    released: BTreeSet<FlowKey>,
}

impl Bucket {
    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.bits_per_second.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4).min(u64::MAX / 4))
    }

    fn tolerance(&self) -> Duration {
        BURST.max(self.time_of(LEAST_BURST))
    }

    /// When there are tokens.
    fn open_at(&self) -> Timestamp {
        self.theoretical_arrival.saturating_sub(self.tolerance())
    }

    /// When the next waiting flow is woken.
    fn wake_at(&self) -> Timestamp {
        self.open_at().max(self.released_until)
    }

    fn charge(&mut self, now: Timestamp, bytes: usize) {
        self.theoretical_arrival = self.theoretical_arrival.max(now) + self.time_of(bytes as u64);
        self.charged_at = now;
    }

    /// Changes the rate. What was sent before, at a lower rate, counts as at most two bursts at this one, the
    /// second of which end-to-end packets may borrow.
    fn set_rate(&mut self, bits_per_second: NonZeroU64) {
        self.bits_per_second = bits_per_second;
        let longest = self.charged_at + self.tolerance() * 2;
        self.theoretical_arrival = self.theoretical_arrival.min(longest);
        self.released_until = self.released_until.min(longest);
    }
}

/// The limits of all neighbours that have one.
#[derive(Debug, Default)]
pub(super) struct RateLimits(BTreeMap<LimitGroup, Bucket>);

impl RateLimits {
    /// Adds a limit or changes its rate.
    pub(super) fn set(&mut self, limit: RateLimit) {
        let bucket = self.0.entry(limit.group).or_insert_with(|| Bucket {
            bits_per_second: limit.bits_per_second,
            theoretical_arrival: Timestamp::ZERO,
            charged_at: Timestamp::ZERO,
            mean_packet: 0,
            released_until: Timestamp::ZERO,
            waiting: VecDeque::new(),
            is_waiting: BTreeSet::new(),
            released: BTreeSet::new(),
        });
        bucket.set_rate(limit.bits_per_second);
    }

    /// Drops the limits that no link has. Returns the flows that waited for them.
    pub(super) fn retain(&mut self, used: &BTreeSet<LimitGroup>) -> Vec<FlowKey> {
        let mut released = Vec::new();
        self.0.retain(|group, bucket| {
            let is_used = used.contains(group);
            if !is_used {
                released.extend(bucket.waiting.drain(..));
            }
            is_used
        });
        released
    }

    /// The limits for the packets of a flow.
    pub(super) fn of(&self, key: FlowKey) -> FlowLimits<'_> {
        FlowLimits { limits: self, key }
    }

    /// A packet was forwarded.
    pub(super) fn charge(&mut self, now: Timestamp, group: Option<LimitGroup>, bytes: usize) {
        if let Some(bucket) = group.and_then(|group| self.0.get_mut(&group)) {
            bucket.charge(now, bytes);
            let bytes = bytes as u64;
            bucket.mean_packet = match bucket.mean_packet {
                0 => bytes,
                mean => (mean * (MEAN_PACKETS - 1) + bytes).div_ceil(MEAN_PACKETS),
            };
        }
    }

    /// Whether an end-to-end packet may be forwarded, which cannot be held back: it may overdraw the
    /// bucket by one burst. Charges it.
    pub(super) fn accepts(
        &mut self,
        now: Timestamp,
        group: Option<LimitGroup>,
        bytes: usize,
    ) -> bool {
        let Some(bucket) = group.and_then(|group| self.0.get_mut(&group)) else { return true };
        if bucket.open_at().saturating_sub(bucket.tolerance()) > now {
            return false;
        }
        bucket.charge(now, bytes);
        true
    }

    /// A flow has packets that wait for tokens.
    pub(super) fn wait(&mut self, group: LimitGroup, key: FlowKey) {
        if let Some(bucket) = self.0.get_mut(&group)
            && bucket.is_waiting.insert(key)
        {
            bucket.released.remove(&key);
            bucket.waiting.push_back(key);
        }
    }

    pub(super) fn forget(&mut self, key: FlowKey) {
        for bucket in self.0.values_mut() {
            bucket.released.remove(&key);
            if bucket.is_waiting.remove(&key) {
                bucket.waiting.retain(|other| *other != key);
            }
        }
    }

    /// When the next waiting flow may send.
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        let waiting = self.0.values().filter(|bucket| !bucket.waiting.is_empty());
        waiting.map(Bucket::wake_at).min()
    }

    /// Flows that may send now, in turns: for each bucket as many as it has tokens for, so that the work
    /// follows the rate and not the number of flows.
    pub(super) fn due(&mut self, now: Timestamp) -> Vec<FlowKey> {
        let mut due = Vec::new();
        for bucket in self.0.values_mut() {
            if bucket.waiting.is_empty() || bucket.wake_at() > now {
                continue;
            }
            let tokens = now - bucket.open_at();
            let packet = if bucket.mean_packet > 0 { bucket.mean_packet } else { LEAST_BURST / 3 };
            let packet = bucket.time_of(packet).max(Duration::from_nanos(1));
            let count = tokens.as_nanos() / packet.as_nanos() + 1;
            let count = count.min(bucket.waiting.len() as u128) as usize;
            bucket.released.clear();
            for key in bucket.waiting.drain(..count) {
                bucket.is_waiting.remove(&key);
                bucket.released.insert(key);
                due.push(key);
            }
            // They may use the tokens; the next ones wait that long.
            bucket.released_until = now + packet * count as u32;
        }
        due
    }

    /// How many packets of a flow the previous node may have sent before it gets a report, beyond those
    /// that are queued here: what the rate allows in a round trip, shared by the flows that wait.
    pub(super) fn room(
        &self,
        group: Option<LimitGroup>,
        interval: Duration,
        view: &LinkView,
    ) -> Option<u64> {
        let bucket = self.0.get(&group?)?;
        let time = view.smoothed_rtt + interval * 2 + bucket.tolerance();
        let bytes = bucket.bits_per_second.get() as f64 / 8.0 * time.as_secs_f64();
        let packet = if bucket.mean_packet > 0 { bucket.mean_packet } else { view.packet.max(1) };
        let packets = (bytes / packet as f64) as u64;
        Some((packets / bucket.waiting.len().max(1) as u64).max(LEAST_ROOM))
    }
}

/// The limits for the packets of a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowLimits<'a> {
    limits: &'a RateLimits,
    key: FlowKey,
}

impl FlowLimits<'_> {
    /// Whether a packet may be forwarded now: there are tokens, and no other flow waits for them, or it is
    /// the turn of this one.
    pub(super) fn is_open(&self, now: Timestamp, group: Option<LimitGroup>) -> bool {
        let bucket = group.and_then(|group| self.limits.0.get(&group));
        bucket.is_none_or(|bucket| {
            let is_next = bucket.waiting.is_empty() || bucket.released.contains(&self.key);
            bucket.open_at() <= now && is_next
        })
    }
}
