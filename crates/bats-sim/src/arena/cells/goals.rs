//! The goals of the catalogue's cells, by group; cells with a goal of their own are named.

use crate::arena::goal::Measure::{
    CompletionOfCubic, DelayOfCubic, Drops, DropsOverBbr3, Efficiency, First10s, HarmOverCubic,
    Jain, Latecomer, MediaP95, NonInnovative, OfBestPeer, OfCubic, OfFairShare, Queue,
    QueueOverPeer, RelayQueue, Share, StartDrops,
};
use crate::arena::goal::{Bound, Check, Goal};

/// The goals of the cell with this name.
pub(super) fn of(name: &str) -> Vec<Goal> {
    let (at_least, at_most) = (Goal::at_least, Goal::at_most);
    let efficiency = |bound| at_least(Efficiency, bound);
    match (name.chars().next().unwrap_or(' '), name) {
        (_, "F6") => vec![efficiency(0.9), at_most(Queue, 0.5), at_most(Drops, 0.001)],
        (_, "F8") => vec![at_least(First10s, 0.9), at_most(Queue, 0.5), at_most(Drops, 0.001)],
        ('F', _) => vec![efficiency(0.95), at_most(Queue, 0.5), at_most(Drops, 0.001)],
        (_, "L4") => vec![efficiency(0.88), at_most(Drops, 0.005)],
        ('L', _) => vec![efficiency(0.94), at_most(Drops, 0.005)],
        (_, "B1" | "B2") => vec![efficiency(0.9)],
        (_, "B3") => vec![efficiency(0.7)],
        (_, "B4" | "B8") => vec![efficiency(0.8)],
        (_, "B7") => vec![efficiency(0.9)],
        ('B', _) => vec![efficiency(0.85)],
        (_, "V9" | "V10") => vec![
            Goal(vec![Check {
                measure: OfBestPeer,
                bound: Bound::ByPeer { below: 0.7, weak: 1.3, strong: 1.0 },
            }]),
            at_most(QueueOverPeer, 0.0),
        ],
        ('V', _) => vec![at_least(OfBestPeer, 0.95), at_most(QueueOverPeer, 0.0)],
        (_, "P3") => vec![efficiency(0.9), at_most(Drops, 0.05)],
        ('P', _) => vec![efficiency(0.9), at_most(Drops, 0.03)],
        // With competing flows a fair share is the goal.
        (_, "A3" | "A4" | "A7") => {
            vec![at_least(OfFairShare, 0.9), at_most(Drops, 0.02), at_most(DelayOfCubic, 1.2)]
        }
        ('A', _) => vec![efficiency(0.9), at_most(Drops, 0.02), at_most(DelayOfCubic, 1.2)],
        (_, "J2") => vec![efficiency(0.75), at_most(NonInnovative, 0.03)],
        ('J', _) => vec![efficiency(0.85), at_most(NonInnovative, 0.03)],
        // CUBIC moves nothing there: it has to connect and move data at all.
        (_, "S5") => vec![efficiency(0.001)],
        ('S', _) => vec![at_least(OfCubic, 0.95), at_most(StartDrops, 15.0)],
        (_, "O7") => vec![
            at_least(Jain, 0.95),
            at_most(DropsOverBbr3, 0.01),
            // The smallest of four flows with a Jain's index of 0.95.
            at_least(Latecomer, 0.6),
        ],
        // Unlike round-trip times: the ratio of the two stays below 4.
        (_, "O8") => vec![at_least(Jain, 0.735), at_most(DropsOverBbr3, 0.01)],
        ('O', _) => vec![at_least(Jain, 0.95), at_most(DropsOverBbr3, 0.01)],
        (_, "C4") => vec![at_most(OfFairShare, 2.0)],
        ('C', _) => vec![
            Goal(vec![Check { measure: Share, bound: Bound::Within(0.35, 0.65) }])
                .or(at_most(HarmOverCubic, 0.05)),
        ],
        (_, "M1" | "M2") => vec![at_most(MediaP95, 100.0)],
        (_, "M3") => vec![at_most(CompletionOfCubic, 1.1)],
        (_, "M4") => vec![],
        (_, "M5") => vec![efficiency(0.9)],
        (_, "R1" | "R2" | "R6") => vec![efficiency(0.9), at_most(RelayQueue, 2.0)],
        (_, "R4") => vec![at_least(OfBestPeer, 1.1)],
        ('R', _) => vec![efficiency(0.9)],
        _ => Vec::new(),
    }
}
