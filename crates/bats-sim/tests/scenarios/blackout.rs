//! A blackout of two seconds in both directions.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};
use bats_sim::links::queued;
use bats_sim::transfer::{Outcome, Sample, Transfer};

#[test]
fn goodput_recovers_within_400_ms_after_a_blackout() {
    for (loss, seed) in [(0.0, 1), (0.0, 2), (0.05, 1), (0.05, 2)] {
        let link = LinkConfig { loss: Loss::Iid(loss), ..link(100, 20) };
        let hole = LinkConfig { black_hole: true, ..link.clone() };
        let mut run = transfer(&link, 14);
        run.seed = seed;
        run.changes = [(6.0, &hole), (8.0, &link)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let (begin, end) = (outcome.since_connected(6.0), outcome.since_connected(8.0));

        assert_eq!(outcome.closed, None);
        assert_eq!(outcome.at(begin + 0.1).delivered, outcome.at(end).delivered, "nothing arrives");
        let seconds = outcome.recovery(end, 0.85 * capacity(&link));
        // A probe every 250 ms, a round trip, and the lost data are requested at once.
        assert!(seconds <= 0.4, "loss {loss}, seed {seed}: {seconds} s");
        let share = outcome.goodput(end + 1.0, 14.0) / capacity(&link);
        assert!(share >= 0.85, "loss {loss}, seed {seed}: {share}");

        // The sender must probe for the end of the blackout, but far below the link rate.
        let tried = outcome.at(end).link.offered - outcome.at(begin + 0.2).link.offered;
        let full_rate = 100e6 * (end - begin - 0.2) / 8.0 / 1_514.0;
        assert!((tried as f64) < 0.5 * full_rate, "{tried} packets during the blackout");
    }
}

/// The test case `blackhole` of the QUIC interop runner: 10 MiB over a link with a blackout from
/// second 5 to 7. Without a blackout the transfer takes at least 9.0 s.
#[test]
fn ten_mebibytes_with_a_blackout_of_two_seconds_take_at_most_11_5_s() {
    for seed in 1..6 {
        let link = LinkConfig { queue_bytes: Some(25 * 1_514), ..link(10, 15) };
        let hole = LinkConfig { black_hole: true, ..link.clone() };
        let mut run = transfer(&link, 60);
        run.seed = seed;
        run.total_bytes = Some(10 << 20);
        run.changes = [(5.0, &hole), (7.0, &link)]
            .map(|(at, link)| (Duration::from_secs_f64(at), link.clone(), link.clone()))
            .into();
        let outcome = run.run();
        let took = outcome.finished.expect("arrives").as_secs_f64() - 0.001;
        let end = outcome.since_connected(7.0);
        let before = outcome.at(end).delivered;
        let first = outcome.samples.iter().find(|sample| sample.delivered > before);
        let first = first.expect("goes on").time.as_secs_f64() - end;
        println!("seed {seed}: {took:.3} s, first data {first:.3} s after");
        assert!(took <= 11.5, "seed {seed}: {took} s");
        // Packets in flight when the blackout ends, a round trip of 30 ms, and repairs before data
        // are in order: measured 0.112 s. Samples are 10 ms apart.
        assert!(first <= 0.25, "seed {seed}: {first} s until the first new data");
    }
}

/// How a transfer goes on after a blackout.
#[derive(Debug)]
struct Resumption {
    /// Seconds from the first answer of the peer to new data at the receiver.
    seconds: f64,
    /// Probe timeouts that expire meanwhile.
    timeouts: u64,
    /// About the probe timeout before the answer, in seconds: twice the smoothed RTT, as with a variation of a
    /// quarter, and 4 ms for the delays of acknowledgements and timers.
    probe_timeout: f64,
    /// Packets sent, and dropped by the queue, in the first round trip, of at least a sample, after the answer.
    sent: u64,
    dropped: u64,
    /// The congestion window, and what the link transports in this time, in packets.
    allowed: f64,
}

impl Resumption {
    /// After a blackout of `link` that ends at second `end` of `outcome`.
    fn after(end: f64, link: &LinkConfig, outcome: &Outcome) -> Self {
        let ended = outcome.at(end);
        let after = outcome.samples.iter().filter(|sample| sample.time > ended.time);
        let is_answer = |sample: &&Sample| {
            sample.link.delivered > ended.link.delivered
                && sample.sender.packets.received > ended.sender.packets.received
        };
        let answer = after.clone().find(is_answer).expect("the peer answers");
        let has_new_data = |sample: &&Sample| sample.delivered > ended.delivered;
        let resumed = after.clone().find(has_new_data).expect("the transfer resumes");
        let round_trip = answer.sender.path.min_rtt.max(Transfer::SAMPLE);
        let first = outcome.at((answer.time + round_trip).as_secs_f64());
        let packet = f64::from(answer.sender.path.mtu);
        let transported = capacity(link) * 1e6 / 8.0 * (first.time - answer.time).as_secs_f64();
        Self {
            seconds: resumed.time.saturating_sub(answer.time).as_secs_f64(),
            timeouts: resumed
                .sender
                .congestion
                .probe_timeouts
                .saturating_sub(answer.sender.congestion.probe_timeouts),
            probe_timeout: ended.sender.path.smoothed_rtt.as_secs_f64() * 2.0 + 0.004,
            sent: first.link.offered - answer.link.offered,
            dropped: first.link.dropped_queue - answer.link.dropped_queue,
            allowed: (answer.sender.congestion.cwnd_bytes as f64 + transported) / packet,
        }
    }
}

/// What was sent at the low rate of the blackout must not hold back packets after it: the backoff of probe
/// timeouts ends with the first answer, and each would again begin a blackout and send two packets. On the first
/// two links new data took 5 to 14 timeouts.
#[test]
fn data_arrives_within_three_probe_timeouts_of_the_first_answer_after_a_blackout() {
    // Bit/s and one-way delay in µs; packets in the queue, bytes of a message, and seconds until the blackout and
    // after it.
    for (rate, delay, queue, message_size, begin, rest) in [
        (20_000_000, 1_000, 32, 16 << 10, 4, 3),
        (32_000_000, 100, 32, 16 << 10, 4, 3),
        (1_000_000_000, 50, 85, 16 << 10, 1, 1),
        (100_000_000, 20_000, 340, 16 << 10, 2, 3),
        (2_000_000, 300_000, 100, 1_000, 4, 10),
        (30_000, 50_000, 8, 1_000, 20, 10),
    ] {
        for (loss, seconds, both) in [0.0, 0.05].into_iter().flat_map(|loss| {
            [(3, false), (3, true), (20, false), (20, true)]
                .map(|(seconds, both)| (loss, seconds, both))
        }) {
            let link = LinkConfig {
                queue_bytes: Some(queue * 1_514),
                ..queued(rate, Duration::from_micros(delay), 1.0, loss)
            };
            let hole = LinkConfig { black_hole: true, ..link.clone() };
            let back = if both { &hole } else { &link };
            let mut run = transfer(&link, begin + seconds + rest);
            run.message_size = message_size;
            run.changes = vec![
                (Duration::from_secs(begin), hole.clone(), back.clone()),
                (Duration::from_secs(begin + seconds), link.clone(), link.clone()),
            ];
            let outcome = run.run();
            let end = outcome.since_connected((begin + seconds) as f64);
            let resumption = Resumption::after(end, &link, &outcome);
            let case = format!(
                "{rate} bit/s, {delay} µs, loss {loss}, {seconds} s, both directions {both}: {resumption:?}"
            );
            println!("{case}");
            assert!(resumption.timeouts <= 3, "{case}");
            let limit = 3.0 * resumption.probe_timeout + Transfer::SAMPLE.as_secs_f64();
            assert!(resumption.seconds <= limit, "{case}");
            assert!(resumption.sent as f64 <= resumption.allowed, "{case}");
            // Some are dropped on the shortest path, where this time is many round trips.
            assert!(resumption.dropped * 10 <= resumption.sent, "{case}");
        }
    }
}
