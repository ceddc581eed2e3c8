use core::time::Duration;

use super::PathView;
use crate::config::Goal;

/// Maximum redundancy as a multiple of the source symbols. Forged loss reports must not raise the
/// code rate without bound.
const MAX_REDUNDANCY: f64 = 3.0;
/// Number of packets without a loss after which a path counts as lossless.
const LOSSLESS_PACKETS: u64 = 500;

/// From this round-trip time on, the tail of the data is protected before any loss was seen,
/// against the assumed loss: recovering a lost tail would take too long.
const LONG_ROUND_TRIP: Duration = Duration::from_secs(1);
const ASSUMED_TAIL_LOSS: f64 = 0.1;

/// Purpose of a repair. Each class has its own strength ([`RateController::proactive`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairClass {
    /// More data follows that reveals and repairs a loss.
    Bulk,
    /// The end of the data: nothing later reveals a loss.
    Tail,
}

/// Determines the amount of redundancy. Congestion control determines the total amount sent.
#[derive(Clone, Copy, Debug)]
pub struct RateController {
    goal: Goal,
}

impl RateController {
    /// A controller that optimises for `goal`.
    pub fn new(goal: Goal) -> Self {
        Self { goal }
    }

    /// Standard deviations of protection (z) and of the loss estimate's margin (c).
    fn strength(self, class: RepairClass) -> (f64, f64) {
        match (class, self.goal) {
            (RepairClass::Bulk, Goal::Latency) => (1.0, 1.0),
            (RepairClass::Bulk, Goal::Balanced) => (-0.5, 0.0),
            (RepairClass::Bulk, Goal::Throughput) => (-1.0, 0.0),
            (RepairClass::Tail, Goal::Latency) => (3.5, 1.0),
            (RepairClass::Tail, Goal::Balanced) => (3.0, 1.0),
            (RepairClass::Tail, Goal::Throughput) => (1.0, 0.0),
        }
    }

    /// Repairs to send with `symbols` source symbols before any feedback: R(n) = (n p + z sqrt(n p
    /// B)) / (1 - p), at least 0. The result has a fraction, which the caller accumulates. 0 if no
    /// loss was seen.
    pub fn proactive(self, class: RepairClass, symbols: u64, path: &PathView) -> f64 {
        let (z, c) = self.strength(class);
        let is_unmeasured =
            path.loss_packets < LOSSLESS_PACKETS && path.smoothed_rtt >= LONG_ROUND_TRIP;
        if class == RepairClass::Tail && is_unmeasured && path.loss < ASSUMED_TAIL_LOSS {
            return Self::formula(
                symbols as f64,
                z,
                0.0,
                &PathView { loss: ASSUMED_TAIL_LOSS, ..*path },
            );
        }
        // The higher the loss, the larger its variance: send less before feedback and the remainder
        // after it.
        let z = if class == RepairClass::Bulk { z - 1.5 * path.loss } else { z };
        Self::formula(symbols as f64, z, c, path)
    }

    /// Repairs per window of `symbols` for data with a deadline. There are no top-ups, so these
    /// repairs alone decide what arrives in time. By exact binomials z = 2 delivers 99 % of the
    /// symbols in time and z = 3 delivers 99.9 %. `is_limited` if the path cannot carry more.
    pub fn timely(self, symbols: u64, is_limited: bool, path: &PathView) -> f64 {
        let (z, c) = match self.goal {
            Goal::Latency if !is_limited => (3.0, 1.0),
            Goal::Latency | Goal::Balanced => (1.7, 0.0),
            Goal::Throughput => (0.5, 0.0),
        };
        Self::formula(symbols as f64, z, c, path)
    }

    /// Whether repairs may take rate that the path has to spare, only to save delay.
    pub fn uses_spare_rate(self) -> bool {
        self.goal == Goal::Latency
    }

    /// Repairs for the last `symbols` with a deadline if no data follows for a while.
    pub fn timely_end(self, symbols: u64, path: &PathView) -> f64 {
        let (z, c) = if self.goal == Goal::Throughput { (1.0, 0.0) } else { (2.0, 1.0) };
        Self::formula(symbols as f64, z, c, path)
    }

    /// Repairs right after each message of a thin flow: one while the path is unknown, two from 2 %
    /// loss on. With one repair at 5 % loss, one message in a hundred must wait for a repair of the
    /// next message, and it delays the messages after it.
    pub fn thin(self, path: &PathView) -> f64 {
        match path.loss {
            loss if loss <= 0.0 && path.loss_packets >= LOSSLESS_PACKETS => 0.0,
            loss if loss <= 0.02 => 1.0,
            loss if loss <= 0.2 => 2.0,
            _ => 3.0,
        }
    }

    /// R(n) with the loss estimate raised by `c` of its standard deviations.
    fn formula(n: f64, z: f64, c: f64, path: &PathView) -> f64 {
        let p = path.loss;
        let spread = p * (1.0 - p) * path.burst_factor / path.loss_packets.max(1) as f64;
        let p = (p + c * spread.sqrt()).min(0.9);
        let repairs = (n * p + z * (n * p * path.burst_factor).sqrt()) / (1.0 - p);
        repairs.clamp(0.0, n * MAX_REDUNDANCY + 3.0)
    }

    /// Number of repairs in flight that a missing range of rank `missing` needs in round `round`
    /// (from 1): (D + z sqrt(D p B)) / (1 - p).
    pub fn top_up(self, class: RepairClass, missing: u64, round: u32, path: &PathView) -> u64 {
        let z = match (class, round) {
            (RepairClass::Tail, _) | (_, 3..) => 3.0,
            // In-order delivery waits for the slowest of many generations, so few may need a third
            // round.
            (RepairClass::Bulk, 2) => 2.5,
            (RepairClass::Bulk, _) if self.goal == Goal::Throughput => 0.0,
            // The higher the loss, the more a margin costs.
            (RepairClass::Bulk, _) => (1.5 - 2.0 * path.loss).max(0.9),
        };
        let p = path.loss.min(0.9);
        let d = missing as f64;
        let repairs = (d + z * (d * p * path.burst_factor).sqrt()) / (1.0 - p);
        (repairs.min(d * (1.0 + MAX_REDUNDANCY) + 3.0)).ceil() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(loss: f64) -> PathView {
        PathView {
            rate_bytes_per_second: 125_000_000,
            smoothed_rtt: Duration::from_millis(20),
            ack_interval: Duration::from_millis(1),
            loss,
            burst_factor: 1.0,
            loss_packets: 1_000_000,
            queue_delay: Duration::ZERO,
        }
    }

    /// At p = 0.3 and n = 64, z = 2 and 3 give 39.9 and 46.2 repairs. By the exact binomials 99 and
    /// 99.9 % of the symbols need 41 and 47.
    #[test]
    fn repair_formula_matches_exact_binomials() {
        let formula = |z: f64, n: f64, p: f64| (n * p + z * (n * p).sqrt()) / (1.0 - p);
        assert!((formula(2.0, 64.0, 0.3) - 39.9).abs() < 0.1);
        assert!((formula(3.0, 64.0, 0.3) - 46.2).abs() < 0.1);
        let tail = RateController::new(Goal::Balanced).proactive(RepairClass::Tail, 64, &path(0.3));
        assert!((tail - 46.2).abs() < 0.5, "{tail}");
    }

    #[test]
    fn lossless_paths_get_no_redundancy() {
        for goal in [Goal::Latency, Goal::Balanced, Goal::Throughput] {
            for class in [RepairClass::Bulk, RepairClass::Tail] {
                assert_eq!(RateController::new(goal).proactive(class, 256, &path(0.0)), 0.0);
            }
        }
    }

    #[test]
    fn long_round_trips_protect_the_tail_before_any_loss() {
        let rate = RateController::new(Goal::Balanced);
        let far = PathView { smoothed_rtt: LONG_ROUND_TRIP, loss_packets: 10, ..path(0.0) };
        let repairs = rate.proactive(RepairClass::Tail, 29, &far);
        assert!((8.0..10.0).contains(&repairs), "{repairs}");
        assert_eq!(
            rate.proactive(RepairClass::Bulk, 29, &far),
            0.0,
            "a later repair covers the loss"
        );
        let near = PathView { smoothed_rtt: LONG_ROUND_TRIP / 2, ..far };
        assert_eq!(rate.proactive(RepairClass::Tail, 29, &near), 0.0);
        let known = PathView { loss_packets: LOSSLESS_PACKETS, ..far };
        assert_eq!(rate.proactive(RepairClass::Tail, 29, &known), 0.0);
    }

    #[test]
    fn bulk_redundancy_is_below_mean_loss_and_forged_loss_is_capped() {
        let rate = RateController::new(Goal::Balanced);
        let bulk = rate.proactive(RepairClass::Bulk, 256, &path(0.1));
        assert!(bulk > 23.0 && bulk < 256.0 * 0.1 / 0.9, "{bulk}");
        assert!(rate.proactive(RepairClass::Tail, 100, &path(0.99)) <= 303.0);
        assert!(rate.top_up(RepairClass::Tail, 10, 3, &path(0.99)) <= 43);
    }

    /// A path whose estimates are far from 0 and 1, so that each factor shows in the result.
    fn bursty() -> PathView {
        PathView { burst_factor: 2.5, loss_packets: 400, ..path(0.2) }
    }

    fn assert_near(value: f64, expected: f64) {
        assert!((value - expected).abs() < 1e-9, "{value} instead of {expected}");
    }

    /// Calculated by hand for 50 symbols: the expected losses are 10, their deviation is 5, and the
    /// deviation of the loss estimate is the root of 0.001.
    #[test]
    fn each_goal_has_its_strength_of_repairs_before_feedback() {
        for (goal, bulk, tail) in [
            (Goal::Latency, 19.974_158_334_669_546, 39.581_972_705_684_57),
            (Goal::Balanced, 7.5, 36.080_577_282_289_03),
            (Goal::Throughput, 4.375, 18.75),
        ] {
            let rate = RateController::new(goal);
            assert_near(rate.proactive(RepairClass::Bulk, 50, &bursty()), bulk);
            assert_near(rate.proactive(RepairClass::Tail, 50, &bursty()), tail);
            assert_near(rate.proactive(RepairClass::Tail, 0, &bursty()), 0.0);
        }
    }

    #[test]
    fn each_goal_has_its_strength_of_repairs_with_deadlines() {
        for (goal, timely, limited, end) in [
            (Goal::Latency, 36.080_577_282_289_03, 23.125, 29.077_786_435_497_952),
            (Goal::Balanced, 23.125, 23.125, 29.077_786_435_497_952),
            (Goal::Throughput, 15.625, 15.625, 18.75),
        ] {
            let rate = RateController::new(goal);
            assert_near(rate.timely(50, false, &bursty()), timely);
            assert_near(rate.timely(50, true, &bursty()), limited);
            assert_near(rate.timely_end(50, &bursty()), end);
            assert_eq!(rate.uses_spare_rate(), goal == Goal::Latency);
        }
    }

    #[test]
    fn assumed_loss_of_the_tail_is_replaced_by_a_higher_measured_one() {
        let rate = RateController::new(Goal::Balanced);
        let far = PathView {
            smoothed_rtt: LONG_ROUND_TRIP,
            loss_packets: 10,
            burst_factor: 2.5,
            ..path(0.0)
        };
        assert_near(rate.proactive(RepairClass::Tail, 29, &far), 12.197_496_900_779_73);
        let below = PathView { loss: 0.099, ..far };
        assert_near(rate.proactive(RepairClass::Tail, 29, &below), 12.197_496_900_779_73);
        let same = PathView { loss: 0.1, ..far };
        assert_near(rate.proactive(RepairClass::Tail, 29, &same), 26.696_053_032_592_67);
    }

    #[test]
    fn thin_flows_get_up_to_three_repairs_by_the_loss() {
        let rate = RateController::new(Goal::Balanced);
        for (loss, loss_packets, repairs) in [
            (0.0, LOSSLESS_PACKETS, 0.0),
            (0.0, LOSSLESS_PACKETS - 1, 1.0),
            (0.001, 1_000_000, 1.0),
            (0.02, 1_000, 1.0),
            (0.021, 1_000, 2.0),
            (0.2, 1_000, 2.0),
            (0.21, 1_000, 3.0),
        ] {
            let view = PathView { loss_packets, ..path(loss) };
            assert_eq!(rate.thin(&view), repairs, "loss {loss} in {loss_packets} packets");
        }
    }

    /// Calculated by hand for a missing rank of 40: (40 + z sqrt(40 * 0.2 * 2.5)) / 0.8.
    #[test]
    fn top_ups_grow_with_the_round() {
        let balanced = RateController::new(Goal::Balanced);
        let throughput = RateController::new(Goal::Throughput);
        for (round, for_balanced, for_throughput) in
            [(1, 57, 50), (2, 64, 64), (3, 67, 67), (4, 67, 67)]
        {
            let bulk = |rate: RateController| rate.top_up(RepairClass::Bulk, 40, round, &bursty());
            assert_eq!(bulk(balanced), for_balanced, "round {round}");
            assert_eq!(bulk(throughput), for_throughput, "round {round}");
            assert_eq!(balanced.top_up(RepairClass::Tail, 40, round, &bursty()), 67);
        }
        // The margin of the first round is smaller at higher loss, down to 0.9 deviations.
        let lossy = PathView { loss: 0.4, ..bursty() };
        assert_eq!(balanced.top_up(RepairClass::Bulk, 40, 1, &lossy), 77);
    }

    #[test]
    fn repairs_are_limited_to_three_times_the_symbols_and_three_more() {
        let rate = RateController::new(Goal::Balanced);
        assert_eq!(rate.proactive(RepairClass::Tail, 100, &path(0.99)), 303.0);
        assert_eq!(rate.top_up(RepairClass::Tail, 10, 1, &path(0.99)), 43);
    }
}
