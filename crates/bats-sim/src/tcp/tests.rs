//! Scenarios: a sender and a receiver over one bottleneck.

use core::time::Duration;
use std::collections::BTreeMap;

use bats_types::Timestamp;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::bbr::Bbr;
use super::copa::Copa;
use super::cubic::Cubic;
use super::reno::Reno;
use super::{Ack, Control, INITIAL_WINDOW, Progress, Receiver, Reduction, Segment, Sender};

const MS: Duration = Duration::from_millis(1);

/// What happens to a transmission, by its number from 0.
#[derive(Clone, Copy, Debug, Default)]
struct Fate {
    is_dropped: bool,
    delay: Duration,
    is_marked: bool,
}

enum Event {
    Data(Segment),
    Ack(Ack),
}

/// Flows over a bottleneck with a drop-tail queue.
struct Path {
    /// Segments per second; infinite without a queue.
    rate: f64,
    queue: f64,
    rtt: Duration,
    flows: Vec<(Sender, Receiver)>,
    events: BTreeMap<(Timestamp, u64), (usize, Event)>,
    count: u64,
    busy_until: Timestamp,
    sent: u64,
    dropped: u64,
    now: Timestamp,
    /// Token bucket: rate, depth and tokens in segments, and the time of the last refill.
    policer: Option<(f64, f64, f64, Timestamp)>,
}

impl Path {
    fn new(rtt: Duration, rate: f64, queue: f64, controls: Vec<Box<dyn Control>>) -> Self {
        let flow = |control| (Sender::new(control), Receiver::default());
        Self {
            rate,
            queue,
            rtt,
            flows: controls.into_iter().map(flow).collect(),
            events: BTreeMap::new(),
            count: 0,
            busy_until: Timestamp::ZERO,
            sent: 0,
            dropped: 0,
            now: Timestamp::from_millis(1),
            policer: None,
        }
    }

    fn one(rtt: Duration, control: Box<dyn Control>) -> Self {
        Self::new(rtt, f64::INFINITY, f64::INFINITY, vec![control])
    }

    fn push(&mut self, at: Timestamp, flow: usize, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), (flow, event));
    }

    fn is_policed(&mut self) -> bool {
        let Some((rate, depth, tokens, at)) = &mut self.policer else { return false };
        *tokens = (*tokens + *rate * (self.now - *at).as_secs_f64()).min(*depth);
        *at = self.now;
        let has = *tokens >= 1.0;
        *tokens -= if has { 1.0 } else { 0.0 };
        !has
    }

    fn send(&mut self, fate: &mut dyn FnMut(u64, Segment) -> Fate) {
        for flow in 0..self.flows.len() {
            if let Some(ack) = self.flows[flow].1.poll(self.now) {
                self.push(self.now + self.rtt / 2, flow, Event::Ack(ack));
            }
            while let Some(mut segment) = self.flows[flow].0.poll(self.now) {
                let fate = fate(self.sent, segment);
                self.sent += 1;
                let start = self.busy_until.max(self.now);
                let waiting = (start - self.now).as_secs_f64() * self.rate;
                if self.rate.is_finite() && waiting > self.queue || self.is_policed() {
                    self.dropped += 1;
                    continue;
                }
                if self.rate.is_finite() {
                    self.busy_until = start + Duration::from_secs_f64(1.0 / self.rate);
                }
                if fate.is_marked && segment.ecn != 0 {
                    segment.ecn = 3;
                }
                if !fate.is_dropped {
                    let leaves = self.busy_until.max(self.now);
                    self.push(leaves + self.rtt / 2 + fate.delay, flow, Event::Data(segment));
                }
            }
        }
    }

    fn run(&mut self, seconds: f64, fate: &mut dyn FnMut(u64, Segment) -> Fate) {
        let end = self.now + Duration::from_secs_f64(seconds);
        loop {
            self.send(fate);
            let timers = self.flows.iter().flat_map(|(sender, receiver)| {
                sender.next_timer().into_iter().chain(receiver.next_timer())
            });
            let event = self.events.keys().next().map(|key| key.0);
            let Some(next) = timers.chain(event).min() else { break };
            // A due timer without effect would stop time.
            self.now = if next <= self.now && event.is_none_or(|at| at > self.now) {
                self.now + Duration::from_nanos(1)
            } else {
                next.max(self.now)
            };
            if self.now >= end {
                self.now = end;
                break;
            }
            while let Some(entry) = self.events.first_entry()
                && entry.key().0 <= self.now
            {
                let (flow, event) = entry.remove();
                match event {
                    Event::Data(segment) => {
                        if let Some(ack) = self.flows[flow].1.on_segment(self.now, segment) {
                            self.push(self.now + self.rtt / 2, flow, Event::Ack(ack));
                        }
                    }
                    Event::Ack(ack) => {
                        self.flows[flow].0.on_ack(self.now, &ack);
                        self.send(fate);
                    }
                }
            }
        }
    }

    /// Segments per second that arrive in `seconds` after a warm-up.
    fn rates(
        &mut self,
        warm_up: f64,
        seconds: f64,
        fate: &mut dyn FnMut(u64, Segment) -> Fate,
    ) -> Vec<f64> {
        self.run(warm_up, fate);
        let before: Vec<u64> = self.flows.iter().map(|flow| flow.1.in_order()).collect();
        self.run(seconds, fate);
        let after = self.flows.iter().zip(before);
        after.map(|(flow, before)| (flow.1.in_order() - before) as f64 / seconds).collect()
    }

    fn sender(&self) -> &Sender {
        &self.flows[0].0
    }
}

fn clean(_: u64, _: Segment) -> Fate {
    Fate::default()
}

fn drop_if(is_dropped: bool) -> Fate {
    Fate { is_dropped, ..Fate::default() }
}

/// A constant window that is halved in recovery.
#[derive(Debug)]
struct Constant {
    window: u64,
    timeouts: u64,
    undone: u64,
}

impl Constant {
    fn boxed(window: u64) -> Box<Self> {
        Box::new(Self { window, timeouts: 0, undone: 0 })
    }
}

impl Control for Constant {
    fn on_ack(&mut self, _progress: &Progress) {}
    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        Reduction::OwnWindow
    }
    fn on_timeout(&mut self, _now: Timestamp, _in_flight: u64, _is_new: bool) {
        self.timeouts += 1;
    }
    fn on_undo(&mut self, _now: Timestamp) {
        self.undone += 1;
    }
    fn window(&self) -> u64 {
        self.window
    }
}

#[test]
fn acknowledgements_clock_data_out() {
    let mut path = Path::one(MS * 10, Constant::boxed(10));
    path.run(1.0, &mut clean);
    let arrived = path.flows[0].1.in_order();
    assert!((980..=1_010).contains(&arrived), "{arrived}");
    assert_eq!(path.sender().smoothed_rtt(), Some(MS * 10));
    assert!((path.sender().delivery_rate().unwrap() - 1_000.0).abs() < 10.0);
    assert_eq!(path.sender().transmissions().1, 0);
    // After the quick acknowledgements, two segments per acknowledgement.
    assert!(path.flows[0].1.acks_sent() < arrived / 2 + 20, "{}", path.flows[0].1.acks_sent());
}

#[test]
fn losses_are_repaired_without_a_timeout() {
    let mut path = Path::one(MS * 10, Constant::boxed(10));
    path.run(2.0, &mut |sent, _| drop_if(sent.is_multiple_of(20) || sent % 50 == 1));
    let (sent, repeated) = path.sender().transmissions();
    let share = repeated as f64 / sent as f64;
    assert!((0.06..0.08).contains(&share), "{share}");
    let counters = path.sender().counters();
    assert!(counters.timeouts <= 1, "{counters:?}");
    assert!(path.flows[0].1.in_order() > 1_400, "{}", path.flows[0].1.in_order());
}

#[test]
fn a_blackout_ends_in_a_timeout() {
    let mut path = Path::one(MS * 10, Box::<Reno>::default());
    path.run(2.0, &mut |sent, _| drop_if((5..=20).contains(&sent)));
    assert!(path.sender().counters().timeouts >= 1);
    assert!(path.flows[0].1.in_order() > 1_000, "{}", path.flows[0].1.in_order());
}

#[test]
fn rack_adapts_to_reordering_and_stops_spurious_retransmissions() {
    let mut path = Path::one(MS * 40, Constant::boxed(100));
    // Each tenth segment is 6 ms late; the sender sends a window in bursts.
    let mut late = |sent: u64, _: Segment| Fate {
        delay: if sent.is_multiple_of(10) { MS * 6 } else { Duration::ZERO },
        ..Fate::default()
    };
    path.run(5.0, &mut late);
    let (_, before) = path.sender().transmissions();
    path.run(20.0, &mut late);
    let (_, after) = path.sender().transmissions();
    assert_eq!(after, before, "spurious retransmissions after adaptation");
}

#[test]
fn the_reordering_window_grows_by_dsack() {
    let mut path = Path::one(MS * 40, Constant::boxed(100));
    // Later than a quarter of the round trip.
    let mut late = |sent: u64, _: Segment| Fate {
        delay: if sent.is_multiple_of(10) { MS * 25 } else { Duration::ZERO },
        ..Fate::default()
    };
    path.run(10.0, &mut late);
    let (sent_before, before) = path.sender().transmissions();
    path.run(10.0, &mut late);
    let (sent, after) = path.sender().transmissions();
    let share = (after - before) as f64 / (sent - sent_before) as f64;
    assert!(share < 0.01, "{share}");
}

#[test]
fn a_spurious_recovery_is_undone() {
    let mut path = Path::new(MS * 40, 4_000.0, 1_000.0, vec![Box::<Cubic>::default()]);
    let mut largest = 0;
    // Three segments arrive later than the reordering window, once.
    path.run(3.0, &mut |sent, segment| {
        largest = largest.max(segment.number);
        let delay = if (200..203).contains(&sent) { MS * 15 } else { Duration::ZERO };
        Fate { delay, ..Fate::default() }
    });
    let counters = path.sender().counters();
    assert!(counters.retransmitted > 0 && counters.undone >= 1, "{counters:?}");
    // No reduction remains.
    assert!(path.sender().window() > 160, "{}", path.sender().window());
}

#[test]
fn a_delay_spike_that_causes_a_timeout_is_undone() {
    let mut path = Path::one(MS * 40, Box::<Reno>::default());
    path.run(0.3, &mut clean);
    let (before, spike_end) = (path.sender().window(), path.now + MS * 500);
    let mut now = path.now;
    // All packets of the next round trip arrive half a second late.
    for _ in 0..400 {
        let is_late = now < path.now + MS * 40 && path.now < spike_end;
        let delay = if is_late { MS * 500 } else { Duration::ZERO };
        path.run(0.01, &mut |_, _| Fate { delay, ..Fate::default() });
        now += MS;
    }
    let counters = path.sender().counters();
    assert!(counters.undone >= 1, "{counters:?}");
    assert!(path.sender().window() >= before, "{} {before}", path.sender().window());
}

#[test]
fn a_probe_repairs_the_tail_without_a_timeout() {
    let run = |lost: u64| {
        let mut path = Path::one(MS * 40, Box::<Reno>::default());
        path.flows[0].0 = Sender::new(Box::<Reno>::default()).with_limit(30);
        path.run(1.0, &mut |sent, _| drop_if((30 - lost..30).contains(&sent)));
        assert_eq!(path.flows[0].1.in_order(), 30);
        path.sender().counters()
    };
    for lost in 1..=3 {
        let counters = run(lost);
        assert!(counters.probes >= 1 && counters.timeouts == 0, "{lost}: {counters:?}");
    }
}

#[test]
fn an_ecn_echo_reduces_the_window_once_a_round_trip_without_loss() {
    let mut path = Path::one(MS * 40, Box::<Reno>::default());
    path.flows[0].0 = Sender::new(Box::<Reno>::default()).with_ecn();
    path.run(0.19, &mut clean);
    let (mut before, mut marked) = (0, 0);
    for _ in 0..120 {
        before = before.max(path.sender().window());
        path.run(0.001, &mut |_, _| {
            marked += 1;
            Fate { is_marked: marked <= 20, ..Fate::default() }
        });
    }
    let counters = path.sender().counters();
    assert_eq!((counters.recoveries, counters.retransmitted), (1, 0));
    let after = path.sender().window();
    assert!((after as f64 / before as f64 - 0.5).abs() < 0.1, "{before} {after}");
}

#[test]
fn a_limited_sender_is_marked_app_limited() {
    #[derive(Debug, Default)]
    struct Watch(u64);
    impl Control for Watch {
        fn on_ack(&mut self, progress: &Progress) {
            self.0 += u64::from(progress.is_app_limited);
        }
        fn on_recovery(&mut self, _: Timestamp, _: u64) -> Reduction {
            Reduction::OwnWindow
        }
        fn on_timeout(&mut self, _: Timestamp, _: u64, _: bool) {}
        fn window(&self) -> u64 {
            100 + INITIAL_WINDOW - self.0.min(1)
        }
    }
    let mut path = Path::one(MS * 40, Box::<Watch>::default());
    path.flows[0].0 = Sender::new(Box::<Watch>::default()).with_limit(50);
    path.run(0.3, &mut clean);
    path.flows[0].0.add_limit(5);
    path.run(0.3, &mut clean);
    assert_eq!(path.sender().control().window(), 109, "no sample was limited");
    assert_eq!(path.flows[0].1.in_order(), 55);
}

/// Segments per round trip if each `1 / loss`th segment is lost.
fn at_loss(control: Box<dyn Control>, rtt: Duration, loss: f64) -> f64 {
    let mut path = Path::one(rtt, control);
    let every = (1.0 / loss) as u64;
    let mut lossy = |sent, _| drop_if(sent % every == every - 1);
    path.run(100.0, &mut lossy);
    let (mut segments, mut round_trips) = (0.0, 0.0);
    for _ in 0..1_000 {
        segments += path.rates(0.0, 1.0, &mut lossy)[0];
        // Delayed acknowledgements lengthen the round trip.
        round_trips += 1.0 / path.sender().smoothed_rtt().unwrap().as_secs_f64();
    }
    segments / round_trips
}

/// Mathis, Semke, Mahdavi and Ott, 1997: the root of 1.5 / loss segments in a round trip.
#[test]
fn reno_has_the_throughput_of_the_square_root_law() {
    for loss in [0.001_f64, 0.003, 0.01] {
        let expected = (1.5 / loss).sqrt();
        let ratio = at_loss(Box::<Reno>::default(), MS * 100, loss) / expected;
        assert!((0.85..1.15).contains(&ratio), "{loss}: {ratio}");
    }
}

/// RFC 9438 section 5.1, equation 6: `(C (3 + beta) / (4 (1 - beta)))^(1/4) (RTT / p)^(3/4) / RTT` of
/// the window, or Reno's where that is more (section 4.3).
#[test]
fn cubic_has_the_throughput_of_its_response_function() {
    for (rtt, loss) in [(400, 0.001_f64), (400, 0.003), (100, 0.001), (100, 0.003), (100, 0.01)] {
        let seconds = rtt as f64 / 1e3;
        let cubic = (0.4_f64 * 3.7 / (4.0 * 0.3)).powf(0.25) * (seconds / loss).powf(0.75);
        let expected = cubic.max((1.5 / loss).sqrt());
        let ratio = at_loss(Box::<Cubic>::default(), MS * rtt, loss) / expected;
        assert!((0.85..1.15).contains(&ratio), "{rtt} ms, {loss}: {ratio}");
    }
}

#[test]
fn bbr_fills_the_link_up_to_15_percent_of_loss_and_not_at_25() {
    let efficiency = |loss: f64| {
        let mut path = Path::new(MS * 40, 2_000.0, 80.0, vec![Box::new(Bbr::new(1))]);
        let mut random = ChaCha8Rng::seed_from_u64(3);
        let rates = path.rates(5.0, 60.0, &mut |_, _| drop_if(random.random_bool(loss)));
        rates[0] / (2_000.0 * (1.0 - loss))
    };
    let all: Vec<f64> = [0.0, 0.02, 0.1, 0.15, 0.25].map(efficiency).into();
    assert!(all[0] > 0.93 && all[1] > 0.88 && all[2] > 0.8 && all[3] > 0.4, "{all:?}");
    assert!(all[4] < 0.5, "{all:?}");
}

#[test]
fn bbr_finds_a_policer_and_keeps_to_its_rate() {
    let mut path = Path::new(MS * 40, 8_000.0, 1_000.0, vec![Box::new(Bbr::new(1))]);
    path.policer = Some((1_000.0, 20.0, 20.0, Timestamp::ZERO));
    let mut policed = 0;
    for _ in 0..200 {
        path.run(0.1, &mut clean);
        policed += u64::from(path.sender().control().state() == "ProbeBW, policed");
    }
    assert!(policed > 100, "{policed} of 200");
    let (sent, repeated) = path.sender().transmissions();
    assert!((repeated as f64) < 0.15 * sent as f64, "{repeated} of {sent}");
}

#[test]
fn copa_keeps_a_short_queue_alone_and_competes_with_cubic() {
    let mut path = Path::new(MS * 40, 2_000.0, 160.0, vec![Box::<Copa>::default()]);
    let mut competitive = 0;
    let rate = path.rates(5.0, 10.0, &mut clean)[0];
    for _ in 0..100 {
        path.run(0.1, &mut clean);
        competitive += u32::from(path.sender().control().state() == "competitive");
    }
    assert!(rate > 0.93 * 2_000.0 && path.dropped < 100, "{rate} {}", path.dropped);
    let srtt = path.sender().smoothed_rtt().unwrap();
    // A tenth of so short a queue is less than a segment, so detection sometimes fails.
    assert!(srtt < MS * 52 && competitive < 35, "{srtt:?} {competitive}");

    let controls: Vec<Box<dyn Control>> = vec![Box::<Copa>::default(), Box::<Cubic>::default()];
    let mut path = Path::new(MS * 40, 2_000.0, 160.0, controls);
    let rates = path.rates(10.0, 60.0, &mut clean);
    assert!(rates[0] > 0.25 * 2_000.0 && rates[1] > 0.25 * 2_000.0, "{rates:?}");
    competitive = 0;
    for _ in 0..100 {
        path.run(0.1, &mut clean);
        competitive += u32::from(path.sender().control().state() == "competitive");
    }
    assert!(competitive > 60, "{competitive}");
}

#[test]
fn window_controllers_fill_a_link_with_a_queue_of_one_bdp() {
    for control in [Box::<Reno>::default() as Box<dyn Control>, Box::<Cubic>::default()] {
        let mut path = Path::new(MS * 40, 2_000.0, 80.0, vec![control]);
        let rate = path.rates(10.0, 60.0, &mut clean)[0];
        assert!(rate > 0.97 * 2_000.0, "{rate}");
        assert_eq!(path.sender().counters().timeouts, 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = || {
        let mut path = Path::new(MS * 40, 2_000.0, 80.0, vec![Box::new(Bbr::new(4))]);
        let mut random = ChaCha8Rng::seed_from_u64(9);
        path.run(20.0, &mut |_, _| drop_if(random.random_bool(0.05)));
        (path.flows[0].1.in_order(), path.sender().transmissions(), path.sender().counters())
    };
    assert_eq!(run(), run());
}

/// Ten seconds at 1 Gbit/s: 860,000 segments, for which the model may take a second.
#[test]
fn controllers_fill_a_gigabit() {
    for control in [Box::<Cubic>::default() as Box<dyn Control>, Box::new(Bbr::new(1))] {
        let mut path = Path::new(MS * 20, 84_000.0, 1_680.0, vec![control]);
        let rate = path.rates(2.0, 8.0, &mut clean)[0];
        assert!(rate > 0.9 * 84_000.0, "{rate}");
    }
}
