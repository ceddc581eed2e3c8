//! Compares plans with published figures, with enumeration of all losses, and with all other plans.

use super::*;

/// Expected rank after `hops` hops, where each node sends `packets` per batch of M = `m` on
/// average, with adaptive or equal counts.
fn rank_after_hops(m: usize, hops: usize, loss: HopLoss, packets: f64, adapt: bool) -> f64 {
    let mut ranks = vec![0.0; m + 1];
    ranks[m] = 1.0;
    let mut expected = 0.0;
    for _ in 0..hops {
        let plan = if adapt {
            RecodingPlan::adaptive(&ranks, loss, packets)
        } else {
            RecodingPlan::equal(&ranks, loss, packets)
        };
        let plan = plan.unwrap();
        assert!(plan.average() <= packets + 1e-9);
        assert!((plan.ranks_after().iter().sum::<f64>() - 1.0).abs() < 1e-9);
        expected = plan.expected_rank();
        ranks = plan.ranks_after().to_vec();
    }
    expected
}

/// Efficiency with equal and with adaptive counts.
type Pair = (f64, f64);

/// Loss p, M, and E[rank] / (N (1 - p)) at the best N for 2, 3, 6 and 10 hops, computed by an
/// independent program.
const TABLE: [(f64, usize, [Pair; 4]); 7] = [
    (0.05, 16, [(0.970, 0.977), (0.952, 0.964), (0.924, 0.937), (0.904, 0.919)]),
    (0.10, 8, [(0.939, 0.955), (0.901, 0.927), (0.849, 0.875), (0.816, 0.839)]),
    (0.10, 16, [(0.955, 0.967), (0.931, 0.947), (0.894, 0.913), (0.871, 0.889)]),
    (0.10, 32, [(0.968, 0.977), (0.951, 0.963), (0.926, 0.939), (0.909, 0.923)]),
    (0.20, 16, [(0.934, 0.951), (0.901, 0.923), (0.855, 0.877), (0.826, 0.847)]),
    (0.20, 32, [(0.953, 0.966), (0.931, 0.946), (0.897, 0.913), (0.876, 0.892)]),
    (0.30, 16, [(0.917, 0.939), (0.879, 0.903), (0.826, 0.849), (0.793, 0.816)]),
];

#[test]
fn efficiency_without_feedback_matches_reference() {
    for (rate, m, row) in TABLE {
        let loss = HopLoss::independent(rate).unwrap();
        for (hops, (equal, adaptive)) in [2, 3, 6, 10].into_iter().zip(row) {
            for (adapt, expected) in [(false, equal), (true, adaptive)] {
                let best = (0..m)
                    .map(|extra| (m + extra) as f64)
                    .map(|n| rank_after_hops(m, hops, loss, n, adapt) / (n * (1.0 - rate)))
                    .fold(0.0, f64::max);
                let error = (best / expected - 1.0).abs();
                assert!(
                    error < 0.005,
                    "p {rate} M {m} h {hops} {adapt}: {best}, expected {expected}"
                );
            }
        }
    }
}

/// Distribution of the number received of `t`, by enumerating all 2^t loss patterns.
fn enumerate_losses(loss: HopLoss, t: usize, max_rank: usize) -> Vec<f64> {
    let mut received = vec![0.0; max_rank + 1];
    for pattern in 0..1u32 << t {
        let lost = |i: usize| pattern >> i & 1 != 0;
        let mut probability = 1.0;
        for i in 0..t {
            let loss_probability = match i {
                0 => loss.rate,
                _ if lost(i - 1) => 1.0 - loss.burst_end,
                _ => loss.burst_start,
            };
            probability *= if lost(i) { loss_probability } else { 1.0 - loss_probability };
        }
        received[(t - pattern.count_ones() as usize).min(max_rank)] += probability;
    }
    received
}

#[test]
fn reception_model_matches_enumeration() {
    for loss in [
        HopLoss::independent(0.0),
        HopLoss::independent(0.3),
        HopLoss::bursty(0.2, 3.5),
        HopLoss::bursty(0.5, 1.0),
        HopLoss::bursty(0.1, 1.0),
    ] {
        let mut reception = ReceptionModel::new(loss.unwrap(), 4);
        reception.extend_to(9);
        for t in 0..=9 {
            let expected = enumerate_losses(loss.unwrap(), t, 4);
            for (x, y) in reception.received[t].iter().zip(&expected) {
                assert!((x - y).abs() < 1e-12, "{t}: {x} {y}");
            }
            let rank = |t: usize, r: usize| {
                let received = enumerate_losses(loss.unwrap(), t, 9);
                received.iter().enumerate().map(|(c, p)| c.min(r) as f64 * p).sum::<f64>()
            };
            for r in 0..=4 {
                let gain = rank(t + 1, r) - rank(t, r);
                assert!((reception.gain(t, r) - gain).abs() < 1e-12, "{t} {r}");
            }
        }
    }
}

/// No plan of whole packets with at most the same budget has a higher expected rank.
#[test]
fn adaptive_plan_is_optimal() {
    let ranks = [1.0, 2.0, 4.0, 3.0];
    let sum: f64 = ranks.iter().sum();
    for loss in [HopLoss::independent(0.25), HopLoss::bursty(0.25, 4.0)] {
        let loss = loss.unwrap();
        let expected = |counts: &[usize; 3]| -> f64 {
            let mut total = 0.0;
            for (r, &t) in (1..).zip(counts) {
                let received = enumerate_losses(loss, t, 3);
                total += received.iter().enumerate().map(|(c, p)| c.min(r) as f64 * p).sum::<f64>()
                    * ranks[r]
                    / sum;
            }
            total
        };
        for tenths in 0..40 {
            let budget = f64::from(tenths) / 10.0;
            let plan = RecodingPlan::adaptive(&ranks, loss, budget).unwrap();
            assert!(plan.average() <= budget + 1e-9);
            for a in 0..8 {
                for b in 0..8 {
                    for c in 0..8 {
                        let counts = [a, b, c];
                        let used = (1..).zip(&counts).map(|(r, &t)| ranks[r] * t as f64);
                        if used.sum::<f64>() / sum <= budget {
                            let other = expected(&counts);
                            assert!(other <= plan.expected_rank() + 1e-9, "{budget} {counts:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn random_draws_average_to_the_mean() {
    let mut ranks = [0.0; 17];
    (ranks[14], ranks[16]) = (0.3, 0.7);
    let loss = HopLoss::independent(0.1).unwrap();
    let plan = RecodingPlan::adaptive(&ranks, loss, 17.23).unwrap();
    assert!((plan.average() - 17.23).abs() < 1e-9);
    for rank in [0, 14, 15, 16] {
        let draws = (0..4096).map(|i| plan.packets(rank, i << 20)).sum::<usize>();
        assert!((draws as f64 / 4096.0 - plan.mean_packets(rank)).abs() < 1e-3, "{rank}");
    }
    // A rank of weight zero gets a count between its neighbours; rank 0 gets none.
    assert_eq!(plan.mean_packets(0), 0.0);
    assert!(plan.mean_packets(14) <= plan.mean_packets(15));
    assert!(plan.mean_packets(15) <= plan.mean_packets(16));
    assert_eq!(plan.packets(99, 5), plan.packets(16, 5));
}

#[test]
fn lossless_hop_gets_exactly_the_rank() {
    let plan =
        RecodingPlan::adaptive(&[0.0, 1.0, 1.0], HopLoss::independent(0.0).unwrap(), 9.0).unwrap();
    assert_eq!((plan.packets(1, 0), plan.packets(2, 0)), (1, 2));
    assert_eq!((plan.average(), plan.expected_rank()), (1.5, 1.5));
    // The same for ranks of weight zero.
    let loss = HopLoss::independent(0.0).unwrap();
    let plan = RecodingPlan::adaptive(&[0.0, 0.0, 1.0, 0.0], loss, 2.0).unwrap();
    assert_eq!([1, 2, 3].map(|rank| plan.packets(rank, 0)), [1, 2, 3]);
}

/// With bursts of loss the same budget gives a lower expected rank.
#[test]
fn bursty_loss_lowers_the_expected_rank() {
    let independent = HopLoss::independent(0.2).unwrap();
    let bursty = HopLoss::bursty(0.2, 4.0).unwrap();
    let rank = |loss| rank_after_hops(16, 6, loss, 18.0, true);
    assert!(rank(bursty) < rank(independent) - 0.5);
}

#[test]
fn out_of_range_arguments_are_errors() {
    let loss = HopLoss::independent(0.5).unwrap();
    for rate in [-0.1, 1.0, f64::NAN] {
        assert_eq!(HopLoss::independent(rate), Err(AdaptiveError::Loss));
        assert_eq!(HopLoss::bursty(rate, 2.0), Err(AdaptiveError::Loss));
    }
    for burst in [0.5, f64::NAN, f64::INFINITY] {
        assert_eq!(HopLoss::bursty(0.1, burst), Err(AdaptiveError::Loss));
    }
    assert_eq!(HopLoss::bursty(0.9, 2.0), Err(AdaptiveError::Loss));
    for ranks in [&[][..], &[0.0], &[1.0, -1.0, 3.0], &[f64::NAN], &[1.0; MAX_RANK + 2]] {
        assert_eq!(RecodingPlan::adaptive(ranks, loss, 1.0), Err(AdaptiveError::Ranks));
    }
    for budget in [-1.0, f64::NAN, 513.0] {
        assert_eq!(RecodingPlan::adaptive(&[1.0], loss, budget), Err(AdaptiveError::Budget));
        assert_eq!(RecodingPlan::equal(&[1.0], loss, budget), Err(AdaptiveError::Budget));
    }
    let most = HopLoss::independent(0.999).unwrap();
    let plan = RecodingPlan::adaptive(&[1.0; MAX_RANK + 1], most, MAX_PACKETS as f64).unwrap();
    assert!(plan.mean_packets(MAX_RANK) <= MAX_PACKETS as f64 + 1.0);
    assert_eq!(RecodingPlan::adaptive(&[1.0], loss, 5.0).unwrap().packets(0, 0), 0);
}

#[test]
fn error_messages_name_the_invalid_argument() {
    for (error, words) in [
        (AdaptiveError::Loss, "loss"),
        (AdaptiveError::Ranks, "rank"),
        (AdaptiveError::Budget, "budget"),
    ] {
        assert!(error.to_string().contains(words), "{error}");
    }
}
