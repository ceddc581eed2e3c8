//! Cells with their goals, and the runs to make: with the judged algorithms and with the peers of
//! the comparison.

use core::fmt;
use std::sync::Arc;

use super::cell::{Algorithm, Cell, PEERS};
use super::draw::Draw;
use super::goal::{Goal, Reference};

/// Builds a cell with the parameters of a draw.
pub type Build = Arc<dyn Fn(&mut Draw) -> Cell + Send + Sync>;

/// A cell with its goals.
#[derive(Clone)]
pub struct Contest {
    /// Short name; its first letter is the group.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// The goals that decide the verdict.
    pub goals: Vec<Goal>,
    /// Builds the cell.
    pub build: Build,
}

impl fmt::Debug for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contest").field("name", &self.name).field("goals", &self.goals).finish()
    }
}

impl Contest {
    /// The group of the cell.
    pub fn group(&self) -> String {
        self.name.chars().take(1).collect()
    }

    /// The cell with the parameters that `draw` gives.
    pub fn cell(&self, draw: &mut Draw) -> Cell {
        Cell { name: self.name.clone(), title: self.title.clone(), ..(self.build)(draw) }
    }

    fn references(&self) -> impl Iterator<Item = Reference> {
        self.goals.iter().flat_map(|goal| &goal.0).filter_map(|check| check.measure.reference())
    }
}

/// The runs to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The cells.
    pub contests: Vec<Contest>,
    /// The algorithms to judge.
    pub algorithms: Vec<Algorithm>,
    /// The seeds.
    pub seeds: Vec<u64>,
    /// Whether half of the parameters are redrawn (held-out cells).
    pub held_out: Option<u64>,
    /// Whether to run the peers that the goals need, and to judge.
    pub judge: bool,
    /// Whether to run all peers.
    pub all_peers: bool,
    /// Number of threads; 0 for one per processor.
    pub threads: usize,
}

/// One run of a cell. Without an algorithm the judged flows are absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Index of the cell.
    pub contest: usize,
    /// The algorithm of the judged flows.
    pub algorithm: Option<Algorithm>,
    /// Seed of all random choices.
    pub seed: u64,
}

impl Plan {
    /// All runs, by cell, algorithm and seed.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (index, contest) in self.contests.iter().enumerate() {
            for algorithm in self.algorithms_of(contest) {
                let seeds = self.seeds.iter();
                jobs.extend(seeds.map(|&seed| Job { contest: index, algorithm, seed }));
            }
        }
        jobs
    }

    fn algorithms_of(&self, contest: &Contest) -> Vec<Option<Algorithm>> {
        let mut all: Vec<Option<Algorithm>> = Vec::new();
        let mut add = |algorithm| {
            if !all.contains(&algorithm) {
                all.push(algorithm);
            }
        };
        self.algorithms.iter().for_each(|&algorithm| add(Some(algorithm)));
        if self.judge && self.algorithms.iter().any(|algorithm| algorithm.is_judged()) {
            for reference in contest.references() {
                match reference {
                    Reference::Peers => PEERS.into_iter().for_each(|peer| add(Some(peer))),
                    Reference::Cubic => add(Some(Algorithm::Cubic)),
                    Reference::Bbr3 => add(Some(PEERS[3])),
                    Reference::CubicAndAbsence => {
                        add(Some(Algorithm::Cubic));
                        add(None);
                    }
                }
            }
        }
        if self.all_peers {
            PEERS.into_iter().for_each(|peer| add(Some(peer)));
        }
        all
    }
}
