//! 50 Mbit/s of media over a lossy path, with deadlines little above the one-way delay.
//! Retransmissions would be late, so lost messages are recovered by proactive repairs.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::config::{Goal, Mode};
use bats_proto::{Event, SendError, TransportConfig};
use bats_sim::links::{FRAME_OVERHEAD, link};
use bats_sim::messages::{Messages, MessagesOutcome};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

/// Size in bytes of a message that fills one symbol.
const SIZE: usize = 1_390;
/// Rate of message data in Mbit/s.
const LOAD: f64 = 50.0;
const SECONDS: f64 = 6.0;

/// Media over a link of three times its rate, so that repairs for 30 % loss fit.
fn media(mode: Mode, one_way: Duration, loss: Loss, deadline: Duration, seed: u64) -> Messages {
    let rate = 150_000_000;
    let link = LinkConfig {
        rate_bps: Some(rate),
        queue_bytes: Some(LinkConfig::queue_for(rate, one_way * 2, 1.0)),
        delay: one_way,
        loss,
        frame_overhead: FRAME_OVERHEAD,
        ..LinkConfig::default()
    };
    let interval = Duration::from_secs_f64(SIZE as f64 * 8.0 / (LOAD * 1e6));
    let total = (SECONDS / interval.as_secs_f64()) as u64;
    Messages {
        hops: vec![link],
        transport: TransportConfig {
            mode,
            deadline,
            goal: Goal::Latency,
            ..TransportConfig::default()
        },
        size: SIZE,
        interval,
        warm_up: total / 5,
        burst: 0,
        count: total - total / 5,
        echo: false,
        seed,
    }
}

/// Fraction of the messages that arrived within `time`, and the 99.9th percentile of the delay in
/// ms. Messages that never arrived count as late.
fn in_time(run: &Messages, time: Duration) -> (f64, f64) {
    let outcome: MessagesOutcome = run.run();
    assert_eq!(outcome.wrong, 0);
    let share = outcome.delays.below(time) as f64 / run.count as f64;
    // The percentile among all messages: those that did not arrive have the highest ranks.
    let percent = 99.9 * run.count as f64 / outcome.arrived.max(1) as f64;
    let p999 = match outcome.delays.percentile(percent.min(100.0)) {
        Some(delay) if percent <= 100.0 => delay.as_secs_f64() * 1e3,
        _ => f64::INFINITY,
    };
    (share, p999)
}

/// Only `Goal::Latency` meets these bounds. With `Goal::Balanced`, which sends about 5 % less, the
/// fraction is 0.97 to 0.993.
#[test]
fn btp_delivers_within_the_one_way_delay_plus_10_ms() {
    let (one_way, deadline) = (Duration::from_millis(30), Duration::from_millis(40));
    for (loss, least) in [(0.05, 0.999), (0.1, 0.999), (0.2, 0.998), (0.3, 0.99)] {
        let of_seeds = [1, 2, 3, 4, 5].map(|seed| {
            let run = media(Mode::Btp, one_way, Loss::Iid(loss), deadline, seed);
            let (share, p999) = in_time(&run, deadline);
            println!("loss {loss}, seed {seed}: {share:.5} in 40 ms, p99.9 {p999:.1} ms");
            // With one of the seeds the rate falls for a while: 0.960 is measured.
            assert!(share >= 0.91, "loss {loss}, seed {seed}: {share}");
            // 57.9 ms are measured with that seed.
            assert!(p999 <= 60.8, "loss {loss}, seed {seed}: p99.9 {p999} ms");
            (share, p999)
        });
        let mut shares = of_seeds.map(|seed| seed.0);
        shares.sort_by(f64::total_cmp);
        assert!(shares[shares.len() / 2] >= least, "loss {loss}: {of_seeds:?}");
        let mut percentiles = of_seeds.map(|seed| seed.1);
        percentiles.sort_by(f64::total_cmp);
        assert!(percentiles[percentiles.len() / 2] <= 45.0, "loss {loss}: {of_seeds:?}");
    }
}

/// BTP and BRTP compared with TRANSPARENT, which sends no repairs; retransmission would be no better,
/// because it takes at least 150 ms. In BRTP messages wait for those before them, but steady flows
/// send enough repairs for that.
#[test]
fn btp_and_brtp_deliver_within_1_2_one_way_delays_and_transparent_does_not() {
    let (one_way, deadline) = (Duration::from_millis(50), Duration::from_millis(60));
    for (loss, least) in [(0.05, 0.999), (0.1, 0.999), (0.2, 0.997)] {
        let run = |mode| media(mode, one_way, Loss::Iid(loss), deadline, 1);
        let (share, p999) = in_time(&run(Mode::Btp), deadline);
        let (reliable, reliable_p999) = in_time(&run(Mode::Brtp), deadline);
        let (plain, _) = in_time(&run(Mode::Transparent), deadline);
        println!(
            "loss {loss}: within 60 ms BTP {share:.5}, p99.9 {p999:.1} ms; BRTP {reliable:.5}, \
             p99.9 {reliable_p999:.1} ms; TRANSPARENT {plain:.4}"
        );
        assert!(share >= least, "loss {loss}: {share}");
        assert!(reliable >= least, "loss {loss}: {reliable} of the reliable mode");
        assert!((plain - (1.0 - loss)).abs() < 0.01, "loss {loss}: {plain}");
    }
}

/// Messages that expire unsent free send-buffer space at once and wake the sender. No
/// acknowledgement does that for them, and data kept for repairs do not count.
#[test]
fn expired_messages_free_send_buffer_space_and_wake_the_sender() {
    let transport = TransportConfig {
        mode: Mode::Btp,
        deadline: Duration::from_secs(60),
        ..TransportConfig::default()
    };
    let link = link(100, 1);
    let mut network = Network::new(endpoints(&transport, 1), [link.clone(), link], 1);
    let client = network.connect(&transport);
    // The only message with a long deadline is acknowledged after some milliseconds.
    let sent = network.now() + Duration::from_secs(1);
    while network.now() < sent {
        network.step(sent);
        for (host, handle, event) in core::mem::take(&mut network.events) {
            if (host, event) == (Host::Client, Event::Connected) {
                let now = network.now();
                let message = Bytes::from_static(b"in time");
                network.endpoint(host).send(now, handle, message).expect("room");
                network.wake(host);
            }
        }
    }
    for round in 0..20 {
        let (began, soon) = (network.now(), Duration::from_micros(1));
        let late = Bytes::from(vec![1; 50_000]);
        let endpoint = network.endpoint(Host::Client);
        while endpoint.send_within(began, client, late.clone(), soon).is_ok() {}
        let refused = endpoint.send_within(began, client, late, soon);
        assert!(matches!(refused, Err(SendError::Blocked(_))), "{refused:?}");
        // The messages expire without a call to the endpoint.
        network.step(began + Duration::from_micros(10));
        network.wake(Host::Client);
        let mut woken = None;
        while woken.is_none() && network.now() - began < Duration::from_millis(500) {
            network.step(began + Duration::from_millis(500));
            let events = core::mem::take(&mut network.events);
            let writable = events.contains(&(Host::Client, client, Event::Writable));
            woken = writable.then(|| network.now() - began);
        }
        let woken = woken.expect("a Writable event");
        assert!(woken <= Duration::from_millis(3), "round {round}: {woken:?}");
    }
}
