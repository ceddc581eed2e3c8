//! Runs the cells of a plan with the judged algorithms and with the peers of the comparison.

use super::contest::{Job, Plan};
use super::draw::Draw;
use super::measure::{self, Figures};
use super::report::{self, Report};
use super::{optimum, world};
use crate::jobs::parallel;

impl Plan {
    /// Runs one job; `trace` is called with each sample of the first flow's sender.
    pub fn run_job(&self, job: &Job, trace: Option<&mut world::Trace<'_>>) -> Figures {
        let contest = &self.contests[job.contest];
        let mut draw = match self.held_out {
            Some(held_out) => Draw::held_out(held_out, &contest.name, job.seed),
            None => Draw::published(job.seed),
        };
        let cell = contest.cell(&mut draw);
        let optimum = optimum::optimum(&cell);
        let outcome = world::run(&cell, job.algorithm, job.seed, trace);
        measure::figures(&cell, &outcome, optimum)
    }

    /// Runs all jobs on all processors and judges; `done` is called after each.
    pub fn run(&self, done: impl Fn() + Sync) -> Report {
        let jobs = self.jobs();
        let figures = parallel(&jobs, self.threads, |job| {
            let figures = self.run_job(job, None);
            done();
            figures
        });
        report::report(self, &jobs, figures)
    }
}
