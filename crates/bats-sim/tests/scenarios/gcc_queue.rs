//! The delay-based controller (GCC) in a complete connection: it keeps the queue short, ignores
//! losses that coding repairs, and follows a falling link rate at once.

use std::time::Duration;

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};
use bats_proto::{CongestionAlgorithm, TransportConfig};
use bats_sim::fairness::flows;
use bats_sim::flows::jain_index;
use bats_sim::shared_link::{Kind, SharedLink};
use bats_sim::transfer::{Outcome, Transfer};

fn gcc(link: &LinkConfig, seconds: u64) -> Transfer {
    let mut run = transfer(link, seconds);
    run.transport =
        TransportConfig { congestion: CongestionAlgorithm::Gcc, ..TransportConfig::default() };
    run
}

/// Mean queueing delay between two times, in milliseconds.
fn queue_ms(outcome: &Outcome, rate_mbps: f64, from: f64, to: f64) -> f64 {
    outcome.mean_queue(from, to) * 8e-3 / rate_mbps
}

#[test]
fn gcc_keeps_the_queueing_delay_below_25_ms_at_75_per_cent_goodput() {
    for (loss, delay, queue) in [(0.0, 20, 1.0), (0.1, 20, 1.0), (0.0, 50, 4.0)] {
        let base = link(20, delay);
        let bytes = (base.queue_bytes.expect("a limit") as f64 * queue) as usize;
        let link = LinkConfig { queue_bytes: Some(bytes), loss: Loss::Iid(loss), ..base };
        let outcome = gcc(&link, 20).run();
        let efficiency = outcome.goodput(5.0, 20.0) / capacity(&link);
        let wait = queue_ms(&outcome, 20.0, 3.0, 20.0);
        assert!(efficiency >= 0.75, "loss {loss}, {delay} ms: {efficiency}");
        assert!(wait < 25.0, "loss {loss}, {delay} ms: {wait} ms of queueing delay");
    }
}

#[test]
fn gcc_follows_a_falling_rate_within_one_second() {
    let (before, after) = (link(20, 20), link(8, 20));
    // The queue length is that of the fast link.
    let after = LinkConfig { queue_bytes: before.queue_bytes, ..after };
    let mut run = gcc(&before, 16);
    run.changes = vec![(Duration::from_secs(8), after.clone(), after.clone())];
    let outcome = run.run();
    let change = outcome.since_connected(8.0);
    let wait = queue_ms(&outcome, 8.0, change + 1.0, change + 7.0);
    let efficiency = outcome.goodput(change + 1.0, change + 7.0) / capacity(&after);
    assert!(wait < 25.0, "{wait} ms of queueing delay from one second after the change");
    assert!(efficiency >= 0.7, "{efficiency}");
}

#[test]
fn two_gcc_flows_share_a_link_fairly() {
    let link = link(20, 20);
    let samples = SharedLink {
        up: link.clone(),
        down: link,
        flows: flows(Kind::Brtp(CongestionAlgorithm::Gcc), 2, Duration::from_secs(2)),
        duration: Duration::from_secs(40),
        seed: 1,
    }
    .run();
    let (a, b) = (&samples[120], samples.last().expect("samples"));
    let rates: Vec<f64> =
        b.link_bytes.iter().zip(&a.link_bytes).map(|(b, a)| (b - a) as f64).collect();
    assert!(jain_index(&rates) >= 0.8, "{rates:?}");
}
