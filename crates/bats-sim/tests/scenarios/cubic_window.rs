//! CUBIC in a complete connection: the window recovers from a queue overflow in the time of RFC
//! 9438, and throughput at random loss follows its formula.

use crate::common::{capacity, link, transfer};
use bats_netem::{LinkConfig, Loss};
use bats_proto::{CongestionAlgorithm, TransportConfig};
use bats_sim::transfer::Outcome;

fn run(link: &LinkConfig, seconds: u64) -> Outcome {
    let mut run = transfer(link, seconds);
    run.transport =
        TransportConfig { congestion: CongestionAlgorithm::Cubic, ..TransportConfig::default() };
    run.run()
}

#[test]
fn the_window_is_back_at_w_max_after_k_seconds() {
    let link = link(50, 25);
    let outcome = run(&link, 40);
    let efficiency = outcome.goodput(5.0, 40.0) / capacity(&link);
    assert!(efficiency >= 0.9, "{efficiency}");
    // Reductions of the window by a factor of 0.7.
    let samples: Vec<(f64, f64)> = outcome
        .samples
        .iter()
        .map(|sample| {
            (sample.time.as_secs_f64(), sample.sender.congestion.cwnd_bytes as f64 / 1_437.0)
        })
        .collect();
    let falls: Vec<usize> =
        (1..samples.len()).filter(|&index| samples[index].1 < samples[index - 1].1 * 0.8).collect();
    let (mut seen, mut last_max) = (0, 0.0);
    for &fall in &falls {
        let (began, window) = samples[fall - 1];
        // W_max, with fast convergence.
        let w_max = if window < last_max { window * 0.85 } else { window };
        last_max = w_max;
        let k = ((w_max - window * 0.7) / 0.4).cbrt();
        let next = falls.iter().find(|&&later| later > fall).map_or(f64::MAX, |&i| samples[i].0);
        let Some(&(_, back)) = samples.iter().find(|&&(time, _)| time >= began + k) else {
            continue;
        };
        if next > began + k {
            assert!((0.95..=1.05).contains(&(back / w_max)), "{began} s: {w_max} to {back}");
            seen += 1;
        }
    }
    assert!(seen >= 1, "the queue overflowed {} times", falls.len());
}

#[test]
fn throughput_at_random_loss_follows_the_response_function() {
    let link = LinkConfig { loss: Loss::Iid(0.01), ..link(100, 25) };
    let outcome = run(&link, 40);
    let mbps = outcome.goodput(5.0, 40.0);
    // RFC 9438, sections 5.1 and 5.2: packets of 1,437 bytes, RTT of 50 ms.
    let packets = (1.054 * (0.05_f64 / 0.01).powf(0.75)).max(1.2 / 0.01_f64.sqrt());
    let formula = packets * 1_437.0 * 8e-6 / 0.05;
    assert!((0.5..=2.0).contains(&(mbps / formula)), "{mbps} Mbit/s, formula {formula}");
}
