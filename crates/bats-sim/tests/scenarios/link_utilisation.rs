//! Efficiency of bulk transfers, with their waste, queue and queue drops.

use bats_sim::matrix::{Cell, Figures};

fn cell(loss: f64, delay_ms: u64, rate_mbps: u64, seconds: u64) -> Cell {
    Cell { seed: 3, ..Cell::over(rate_mbps, delay_ms, loss, seconds) }
}

fn figures(loss: f64, delay_ms: u64, rate_mbps: u64, seconds: u64) -> Figures {
    cell(loss, delay_ms, rate_mbps, seconds).run().0
}

#[test]
fn lossy_links_are_filled_with_a_short_queue_and_little_waste() {
    for (loss, delay, rate, least) in [
        (0.0, 10, 100, 0.93),
        (0.1, 10, 100, 0.90),
        (0.1, 50, 100, 0.90),
        (0.3, 30, 100, 0.85),
        (0.02, 25, 20, 0.85),
    ] {
        let f = figures(loss, delay, rate, 15);
        let what = format!("{f:?}");
        assert!(f.e_steady >= least && f.e_steady <= 1.0, "{what}");
        assert!(f.waste_percent <= 4.0, "{what}");
        assert!(f.queue_loss_percent <= 0.5, "{what}");
        assert!(f.queue_bdp <= 0.25, "{what}");
    }
}

#[test]
fn a_lossless_link_gets_at_most_one_per_cent_repairs() {
    let (_, outcome) = cell(0.0, 20, 100, 5).run();
    let sender = &outcome.samples.last().expect("samples").sender;
    let repairs = sender.coding.proactive_packets_sent + sender.coding.top_up_packets_sent;
    println!("{repairs} repairs for {} packets", sender.coding.source_packets_sent);
    assert!(sender.coding.source_packets_sent > 10_000);
    assert!(repairs * 100 <= sender.coding.source_packets_sent, "{repairs} repairs");
}

#[test]
fn startup_at_an_rtt_of_200_ms_reaches_one_gigabit_in_seven_round_trips() {
    for loss in [0.0, 0.1] {
        let f = figures(loss, 100, 1_000, 2);
        assert!(f.rounds_to_rate.is_some_and(|rounds| rounds <= 6.6), "{f:?}");
        assert!(f.queue_loss_first_second_percent <= 1.0, "{f:?}");
    }
}
