//! Helpers for the tests of controllers.

use core::time::Duration;

use bats_types::Timestamp;

use super::{AckSample, Controller, LostPacket, RateSample, RateSampler, SendState};

/// An acknowledgement at `now` of packets sent at `sent_at`: 1,200 bytes each, on a path with an
/// RTT of 100 ms without a queue.
pub(super) fn ack(now: Timestamp, sent_at: Timestamp, acked: u64, lost: u64) -> AckSample {
    let rtt = Duration::from_millis(100);
    AckSample {
        now,
        largest_sent_at: sent_at,
        largest_received_at: sent_at,
        cumulative_sent: 0,
        app_limited: false,
        acked_bytes: acked * 1_200,
        acked_packets: acked,
        lost_bytes: lost * 1_200,
        lost_packets: lost,
        lost_sent_at: sent_at,
        burst_factor: 1.0,
        ce_packets: 0,
        rtt,
        smoothed_rtt: rtt,
        min_rtt: rtt,
        in_flight: 0,
        packet: 1_200,
        rate: RateSample::default(),
    }
}

/// A packet on [`Path`].
#[derive(Clone, Copy, Debug)]
struct InFlight {
    number: u64,
    sent_at: Timestamp,
    /// When its acknowledgement arrives; `None` if the path dropped it.
    acked_at: Option<Timestamp>,
    received_at: Timestamp,
    state: SendState,
}

/// Size in bytes of all packets on [`Path`].
pub(super) const PACKET: u64 = 1_200;

/// State of the bottleneck of [`Path`].
struct Queue {
    /// When it has sent what it holds.
    busy_until: Timestamp,
    /// Bytes in the bucket of the policer, and when.
    tokens: (f64, Timestamp),
}

impl Queue {
    /// Whether a packet conforms to a policer with this rate and bucket.
    fn conforms(&mut self, now: Timestamp, (rate, bucket): (f64, f64)) -> bool {
        let (tokens, at) = self.tokens;
        let tokens = (tokens + rate * (now - at).as_secs_f64()).min(bucket);
        let is_conforming = tokens >= PACKET as f64;
        self.tokens = (if is_conforming { tokens - PACKET as f64 } else { tokens }, now);
        is_conforming
    }

    /// When a packet leaves the bottleneck of this rate; `None` if it is longer than `buffer` then.
    fn push(&mut self, now: Timestamp, rate: f64, buffer: f64) -> Option<Timestamp> {
        let bytes = PACKET as f64;
        let backlog = (self.busy_until - now).as_secs_f64() * rate;
        if backlog + bytes > buffer {
            return None;
        }
        self.busy_until = self.busy_until.max(now) + Duration::from_secs_f64(bytes / rate);
        Some(self.busy_until)
    }
}

/// The RTT of the sender on [`Path`].
struct RttEstimate {
    min: Duration,
    smoothed: Duration,
}

impl RttEstimate {
    fn on_sample(&mut self, rtt: Duration) {
        self.min = self.min.min(rtt);
        self.smoothed = (self.smoothed * 7 + rtt) / 8;
    }
}

/// The probe timeout of the sender on [`Path`].
struct ProbeTimer {
    /// In a row.
    timeouts: u32,
    started: Timestamp,
}

/// One sender over one bottleneck, without a protocol.
pub(super) struct Path<C> {
    pub(super) controller: C,
    pub(super) now: Timestamp,
    /// Rate of the bottleneck in bytes per second.
    pub(super) rate: f64,
    pub(super) one_way: Duration,
    /// Queue length of the bottleneck in bytes.
    pub(super) buffer: f64,
    /// Rate in bytes per second and bucket in bytes of a policer before the bottleneck.
    pub(super) policer: Option<(f64, f64)>,
    /// Bytes per second that the application writes; `None` for a bulk transfer.
    pub(super) app_rate: Option<f64>,
    /// Acknowledgements arrive in batches at multiples of this time.
    pub(super) slot: Option<Duration>,
    /// Whether a packet is lost at random, by its number.
    pub(super) is_lost: fn(u64) -> bool,
    /// Additional delay of a packet's acknowledgement, by its number.
    pub(super) extra_delay: fn(u64) -> Duration,
    sampler: RateSampler,
    packets: Vec<InFlight>,
    /// Packets declared lost that may still arrive.
    late: Vec<InFlight>,
    in_flight: u64,
    next_number: u64,
    next_send: Timestamp,
    queue: Queue,
    written: f64,
    rtt: RttEstimate,
    last_lost: Option<u64>,
    probe: ProbeTimer,
    pub(super) sent: u64,
    pub(super) dropped: u64,
    pub(super) delivered: u64,
}

impl<C: Controller> Path<C> {
    /// A path of `mbps` Mbit/s and a one-way delay of `one_way`, with a buffer of `bdp` BDP.
    pub(super) fn new(controller: C, mbps: f64, one_way: Duration, bdp: f64) -> Self {
        let rate = mbps * 1e6 / 8.0;
        let start = Timestamp::from_millis(1_000);
        Self {
            controller,
            now: start,
            rate,
            one_way,
            buffer: (rate * 2.0 * one_way.as_secs_f64() * bdp).max(3.0 * PACKET as f64),
            policer: None,
            app_rate: None,
            slot: None,
            is_lost: |_| false,
            extra_delay: |_| Duration::ZERO,
            sampler: RateSampler::default(),
            packets: Vec::new(),
            late: Vec::new(),
            in_flight: 0,
            next_number: 0,
            next_send: start,
            queue: Queue { busy_until: start, tokens: (f64::INFINITY, start) },
            written: 0.0,
            rtt: RttEstimate { min: Duration::MAX, smoothed: one_way * 2 },
            last_lost: None,
            probe: ProbeTimer { timeouts: 0, started: start },
            sent: 0,
            dropped: 0,
            delivered: 0,
        }
    }

    /// Maximum rate at the bottleneck for the controller, in bytes per second.
    pub(super) fn bdp(&self) -> f64 {
        self.rate * 2.0 * self.one_way.as_secs_f64()
    }

    /// Inflight in bytes.
    pub(super) fn bytes_in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Runs for `time`. Returns the goodput in bytes per second.
    pub(super) fn run(&mut self, time: Duration) -> f64 {
        let before = self.delivered;
        self.run_until(time, |_| false);
        (self.delivered - before) as f64 / time.as_secs_f64()
    }

    /// Runs until `is_done`, at most for `time`. Returns whether it was done.
    pub(super) fn run_until(&mut self, time: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        let end = self.now + time;
        while self.now < end {
            if is_done(self) {
                return true;
            }
            let ack = self.next_ack_at();
            let timeout = self.probe.started + self.rtt.smoothed * 3 + Duration::from_millis(50);
            let send = self.next_send_at();
            let first = [ack, send, (self.in_flight > 0).then_some(timeout)];
            let Some(at) = first.into_iter().flatten().min() else {
                self.now = end;
                break;
            };
            self.advance(at.min(end));
            if at > end {
                break;
            }
            if ack == Some(at) {
                self.on_acks();
            } else if send == Some(at) {
                self.send();
            } else {
                self.on_timeout();
            }
        }
        is_done(self)
    }

    fn advance(&mut self, to: Timestamp) {
        let elapsed = (to - self.now).as_secs_f64();
        self.written += self.app_rate.unwrap_or(0.0) * elapsed;
        if self.app_rate.is_some() {
            self.written = self.written.min(100.0 * PACKET as f64);
        }
        self.now = self.now.max(to);
    }

    fn next_ack_at(&self) -> Option<Timestamp> {
        self.packets.iter().chain(&self.late).filter_map(|packet| packet.acked_at).min()
    }

    fn next_send_at(&mut self) -> Option<Timestamp> {
        if self.in_flight + PACKET > self.controller.window() {
            self.controller.on_cwnd_limited();
            return None;
        }
        let written = self.app_rate.map(|rate| {
            let missing = (PACKET as f64 - self.written).max(0.0);
            self.now + Duration::from_secs_f64(missing / rate.max(1e-3) + 1e-9)
        });
        Some(self.next_send.max(self.now).max(written.unwrap_or(self.now)))
    }

    fn send(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        let is_idle = self.in_flight == 0;
        self.in_flight += PACKET;
        self.sent += 1;
        let state = self.sampler.on_sent(self.now, self.in_flight, is_idle);
        if self.app_rate.is_some() {
            self.written -= PACKET as f64;
            if self.written < PACKET as f64 {
                self.sampler.mark_app_limited(self.in_flight);
            }
        }
        self.controller.on_sent(self.now, PACKET, self.in_flight);
        let gap = PACKET as f64 / self.controller.pacing_rate() as f64;
        self.next_send = self.next_send.max(self.now) + Duration::from_secs_f64(gap);
        let through = self.through();
        let is_lost = through.is_none() || (self.is_lost)(number);
        self.dropped += u64::from(through.is_none());
        let received_at = through.unwrap_or(self.now) + self.one_way;
        let mut acked_at = received_at + self.one_way + (self.extra_delay)(number);
        if let Some(slot) = self.slot {
            let slots = (acked_at - Timestamp::ZERO).as_nanos().div_ceil(slot.as_nanos());
            acked_at = Timestamp::ZERO + slot * slots as u32;
        }
        if is_idle {
            self.probe.started = self.now;
        }
        self.packets.push(InFlight {
            number,
            sent_at: self.now,
            acked_at: (!is_lost).then_some(acked_at),
            received_at,
            state,
        });
    }

    /// When the packet leaves the bottleneck; `None` if it is dropped.
    fn through(&mut self) -> Option<Timestamp> {
        if self.policer.is_some_and(|policer| !self.queue.conforms(self.now, policer)) {
            return None;
        }
        self.queue.push(self.now, self.rate, self.buffer)
    }

    fn on_acks(&mut self) {
        let now = self.now;
        self.probe = ProbeTimer { timeouts: 0, started: now };
        let is_due = |packet: &InFlight| packet.acked_at.is_some_and(|at| at <= now);
        let late: Vec<InFlight> = self.late.extract_if(.., |packet| is_due(packet)).collect();
        let acked: Vec<InFlight> = self.packets.extract_if(.., |packet| is_due(packet)).collect();
        for packet in &late {
            self.sampler.on_spurious(PACKET);
            self.sampler.on_delivered(now, PACKET, packet.sent_at, packet.state);
        }
        if !late.is_empty() {
            self.controller.on_spurious_loss(now, late.len() as u64);
        }
        for packet in &acked {
            self.in_flight -= PACKET;
            self.sampler.on_delivered(now, PACKET, packet.sent_at, packet.state);
        }
        self.delivered += (acked.len() + late.len()) as u64 * PACKET;
        let Some(largest) = acked.iter().max_by_key(|packet| packet.number).copied() else {
            return;
        };
        let rtt = now - largest.sent_at;
        self.rtt.on_sample(rtt);
        let is_overtaken = |packet: &mut InFlight| packet.number + 3 <= largest.number;
        let lost: Vec<InFlight> = self.packets.extract_if(.., is_overtaken).collect();
        for packet in &lost {
            self.in_flight -= PACKET;
            self.sampler.on_lost(PACKET);
            let continues_run = self.last_lost.is_some_and(|last| last + 1 == packet.number);
            self.last_lost = Some(packet.number);
            let lost_since_sent = self.sampler.lost().saturating_sub(packet.state.lost);
            self.controller.on_lost(
                now,
                &LostPacket {
                    bytes: PACKET,
                    sent_at: packet.sent_at,
                    continues_run,
                    lost_since_sent,
                    state: packet.state,
                },
            );
        }
        self.late.extend(lost.iter().filter(|packet| packet.acked_at.is_some()));
        let received_at = self.slot.is_none().then_some(largest.received_at);
        let Some(rate) = self.sampler.sample(received_at, self.rtt.min) else { return };
        self.controller.on_ack(&AckSample {
            now,
            largest_sent_at: largest.sent_at,
            largest_received_at: largest.received_at,
            cumulative_sent: (largest.number + 1) * PACKET,
            app_limited: largest.state.app_limited,
            acked_bytes: acked.len() as u64 * PACKET,
            acked_packets: acked.len() as u64,
            lost_bytes: lost.len() as u64 * PACKET,
            lost_packets: lost.len() as u64,
            lost_sent_at: lost.last().map_or(Timestamp::ZERO, |packet| packet.sent_at),
            rtt,
            smoothed_rtt: self.rtt.smoothed,
            min_rtt: self.rtt.min,
            in_flight: self.in_flight,
            packet: PACKET,
            rate,
            ..ack(now, largest.sent_at, 0, 0)
        });
    }

    fn on_timeout(&mut self) {
        self.probe.timeouts += 1;
        self.probe.started = self.now;
        self.controller.on_probe_timeout(self.now, self.probe.timeouts);
        if self.probe.timeouts >= 2 {
            self.late.extend(self.packets.drain(..).filter(|packet| packet.acked_at.is_some()));
            self.in_flight = 0;
        }
    }
}
