//! All figures of a run of the arena, and the verdicts on the goals.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::cell::{Algorithm, PEERS, Who, Work};
use super::contest::{Contest, Job, Plan};
use super::draw::Draw;
use super::goal::{Goal, Measure};
use super::measure::Figures;

/// Version of the report's format; a change that readers have to know of increases it.
pub const VERSION: u32 = 1;

/// All cells, seeds and algorithms.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(title = "Report of the arena")]
pub struct Report {
    /// Version of this format.
    pub version: u32,
    /// Seed by which parameters were redrawn.
    pub held_out: Option<u64>,
    /// Seeds of each cell.
    pub seeds: Vec<u64>,
    /// The algorithms that were asked for.
    pub algorithms: Vec<String>,
    /// The cells.
    pub cells: Vec<CellReport>,
    /// The groups, for each judged algorithm.
    pub groups: Vec<GroupReport>,
    /// Whether every goal was met by all algorithms that were judged; absent if nothing was judged.
    pub passed: Option<bool>,
}

/// A cell.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CellReport {
    /// Short name.
    pub name: String,
    /// One-line description.
    pub title: String,
    /// First letter of the name.
    pub group: String,
    /// All runs, by algorithm and seed.
    pub runs: Vec<RunReport>,
    /// The verdicts on the goals, for each judged algorithm.
    pub verdicts: Vec<Verdict>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct RunReport {
    /// Name of the algorithm; absent if the flows that are judged were left out.
    pub algorithm: Option<String>,
    /// Seed of all random choices.
    pub seed: u64,
    /// Its figures.
    pub figures: Figures,
    /// Its relation to other runs of the cell with the same seed.
    pub relative: Relative,
}

/// A run compared with others of the same cell and seed; absent where the other was not run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Relative {
    /// Name of the peer with the highest goodput.
    pub best_peer: Option<String>,
    /// Goodput of the best peer over the optimum.
    pub peer_efficiency: Option<f64>,
    /// Goodput over that of the best peer.
    pub of_best_peer: Option<f64>,
    /// 95th percentile of the standing queue less that of the best peer, in BDP.
    pub queue_over_peer_bdp: Option<f64>,
    /// Goodput over that of CUBIC.
    pub of_cubic: Option<f64>,
    /// 95th percentile of the first flow's one-way delay over that with CUBIC.
    pub delay_of_cubic: Option<f64>,
    /// Mean completion of the short flows over that with CUBIC.
    pub completion_of_cubic: Option<f64>,
    /// Drops less those with BBRv3.
    pub drops_over_bbr3: Option<f64>,
    /// Harm to the goodput of the competing bulk transfers (Ware et al., HotNets 2019): the share of it that
    /// is missing compared with the same cell without the flows that are judged.
    pub harm: Option<f64>,
    /// The same with one more CUBIC in their place.
    pub harm_of_cubic: Option<f64>,
    /// Harm to their 95th percentile of the delay: the share of it that is added.
    pub delay_harm: Option<f64>,
}

/// The verdicts on the goals of a cell for one algorithm, by the worst seed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Verdict {
    /// Name of the algorithm.
    pub algorithm: String,
    /// Whether all goals are met with all seeds.
    pub passed: bool,
    /// Each goal.
    pub goals: Vec<Judged>,
}

/// One goal, with its worst seed.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Judged {
    /// The goal as text.
    pub goal: String,
    /// Whether it is met with all seeds.
    pub passed: bool,
    /// The seed with the least distance to the bound, or the furthest outside.
    pub seed: u64,
    /// Name of the figure that is bounded; of several, the one that is nearest to its bound.
    pub measure: String,
    /// Its value with that seed; absent if it is not known, which misses the goal.
    pub value: Option<f64>,
    /// The value and its bound as text.
    pub text: String,
    /// Distance to the bound relative to it, positive if it is missed; absent if the value is not known.
    pub shortfall: Option<f64>,
}

/// A group of cells, by the worst cell.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct GroupReport {
    /// Its letter.
    pub group: String,
    /// Name of the algorithm.
    pub algorithm: String,
    /// Cells with goals.
    pub cells: u64,
    /// Cells that meet all of them.
    pub passed: u64,
    /// The cell furthest outside, or nearest to its bounds.
    pub worst_cell: String,
    /// Its goal that decides that.
    pub worst: String,
}

/// The JSON schema of a report.
pub fn schema() -> schemars::Schema {
    schemars::schema_for!(Report)
}

/// Puts the figures of all jobs in order and judges them.
pub(super) fn report(plan: &Plan, jobs: &[Job], figures: Vec<Figures>) -> Report {
    let mut by_cell: Vec<Vec<(Job, Figures)>> = vec![Vec::new(); plan.contests.len()];
    for (job, figures) in jobs.iter().zip(figures) {
        by_cell[job.contest].push((*job, figures));
    }
    let cells: Vec<CellReport> = plan
        .contests
        .iter()
        .zip(&by_cell)
        .map(|(contest, runs)| cell(plan, contest, runs))
        .collect();
    let groups = groups(&cells);
    let verdicts = || cells.iter().flat_map(|cell| &cell.verdicts);
    let passed = verdicts().next().map(|_| verdicts().all(|verdict| verdict.passed));
    Report {
        version: VERSION,
        held_out: plan.held_out,
        seeds: plan.seeds.clone(),
        algorithms: plan.algorithms.iter().map(|algorithm| algorithm.name()).collect(),
        cells,
        groups,
        passed,
    }
}

fn cell(plan: &Plan, contest: &Contest, runs: &[(Job, Figures)]) -> CellReport {
    // Which flows compete is the same with all seeds and parameters.
    let flows = contest.cell(&mut Draw::published(1)).flows;
    let is_competing =
        |flow: &usize| matches!(flows[*flow].who, Who::Fixed(_)) && flows[*flow].work == Work::Bulk;
    let competing: Vec<usize> = (0..flows.len()).filter(is_competing).collect();
    let reports: Vec<RunReport> = runs
        .iter()
        .map(|(job, figures)| RunReport {
            algorithm: job.algorithm.map(Algorithm::name),
            seed: job.seed,
            figures: figures.clone(),
            relative: relative(job, figures, runs, &competing),
        })
        .collect();
    let mut verdicts = Vec::new();
    if plan.judge && !contest.goals.is_empty() {
        for algorithm in plan.algorithms.iter().filter(|algorithm| algorithm.is_judged()) {
            let name = algorithm.name();
            let of = |run: &&RunReport| run.algorithm.as_ref() == Some(&name);
            let runs: Vec<&RunReport> = reports.iter().filter(of).collect();
            let goals: Vec<Judged> =
                contest.goals.iter().filter_map(|goal| judge(goal, &runs)).collect();
            let passed = !goals.is_empty() && goals.iter().all(|goal| goal.passed);
            verdicts.push(Verdict { algorithm: name, passed, goals });
        }
    }
    CellReport {
        name: contest.name.clone(),
        title: contest.title.clone(),
        group: contest.group(),
        runs: reports,
        verdicts,
    }
}

/// The worst seed of a goal.
fn judge(goal: &Goal, runs: &[&RunReport]) -> Option<Judged> {
    let mut worst: Option<(f64, Judged)> = None;
    for run in runs {
        // Of several checks the best one counts.
        let best = goal.0.iter().map(|check| {
            let value = value(check.measure, run);
            let bound = check.bound.of_peer(run.relative.peer_efficiency);
            (bound.shortfall(value), super::goal::Check { measure: check.measure, bound }, value)
        });
        let (shortfall, check, value) = best.min_by(|a, b| a.0.total_cmp(&b.0))?;
        if worst.as_ref().is_some_and(|(known, _)| *known >= shortfall) {
            continue;
        }
        let found = value.map_or("unknown".into(), |value| check.measure.text(value));
        let judged = Judged {
            goal: goal.to_string(),
            passed: shortfall <= 0.0,
            seed: run.seed,
            measure: check.measure.name().into(),
            value: value.filter(|value| value.is_finite()),
            text: format!("{check}: {found}"),
            shortfall: Some(shortfall).filter(|shortfall| shortfall.is_finite()),
        };
        worst = Some((shortfall, judged));
    }
    worst.map(|(_, judged)| judged)
}

/// The value of a measure in a run.
pub fn value(measure: Measure, run: &RunReport) -> Option<f64> {
    let (figures, relative) = (&run.figures, &run.relative);
    match measure {
        Measure::Efficiency => Some(figures.efficiency),
        Measure::First10s => Some(figures.first_10s),
        Measure::Queue => Some(figures.queue_p95_bdp),
        Measure::Drops => Some(figures.drops),
        Measure::StartDrops => Some(figures.start_drops as f64),
        Measure::Jain => Some(figures.jain),
        Measure::Share => figures.share,
        Measure::OfFairShare => figures.of_fair_share,
        Measure::Latecomer => figures.latecomer,
        Measure::MediaP95 => figures.media_p95_ms,
        Measure::NonInnovative => figures.non_innovative,
        Measure::RelayQueue => figures.relay_queue_bdp,
        Measure::OfBestPeer => relative.of_best_peer,
        Measure::QueueOverPeer => relative.queue_over_peer_bdp,
        Measure::OfCubic => relative.of_cubic,
        Measure::DelayOfCubic => relative.delay_of_cubic,
        Measure::CompletionOfCubic => relative.completion_of_cubic,
        Measure::DropsOverBbr3 => relative.drops_over_bbr3,
        Measure::HarmOverCubic => Some(relative.harm? - relative.harm_of_cubic?),
    }
}

fn relative(
    job: &Job,
    figures: &Figures,
    runs: &[(Job, Figures)],
    competing: &[usize],
) -> Relative {
    let of = |algorithm: Option<Algorithm>| {
        let is_it = |run: &&(Job, Figures)| run.0.algorithm == algorithm && run.0.seed == job.seed;
        runs.iter().find(is_it).map(|run| &run.1)
    };
    if job.algorithm.is_none() {
        return Relative::default();
    }
    let (cubic, bbr3, absence) = (of(Some(Algorithm::Cubic)), of(Some(PEERS[3])), of(None));
    let peers = PEERS.iter().filter_map(|&peer| Some((peer, of(Some(peer))?)));
    let best = peers.max_by(|a, b| a.1.efficiency.total_cmp(&b.1.efficiency));
    let ratio = |a: f64, b: f64| (b > 0.0).then(|| a / b);
    // Where a peer moves nothing, anything is enough.
    let of_peer = |peer: &Figures| figures.efficiency / peer.efficiency.max(1e-6);
    let mean = |figures: &Figures, all: fn(&Figures) -> &Vec<f64>| {
        let values = competing.iter().filter_map(|&flow| all(figures).get(flow));
        let (count, sum) = values.fold((0, 0.0), |(count, sum), value| (count + 1, sum + value));
        (count > 0).then(|| sum / f64::from(count))
    };
    let harm = |with: Option<&Figures>| {
        let (with, alone) =
            (mean(with?, |f| &f.goodput_mbps)?, mean(absence?, |f| &f.goodput_mbps)?);
        ratio(alone - with, alone).map(|harm| harm.max(0.0))
    };
    let delay_harm = || {
        let (with, alone) =
            (mean(figures, |f| &f.delay_p95_ms)?, mean(absence?, |f| &f.delay_p95_ms)?);
        ratio(with - alone, with).map(|harm| harm.max(0.0))
    };
    let delay = |figures: &Figures| figures.delay_p95_ms.first().copied();
    Relative {
        best_peer: best.map(|(peer, _)| peer.name()),
        peer_efficiency: best.map(|(_, peer)| peer.efficiency),
        of_best_peer: best.map(|(_, peer)| of_peer(peer)),
        queue_over_peer_bdp: best.map(|(_, peer)| figures.queue_p95_bdp - peer.queue_p95_bdp),
        of_cubic: cubic.map(of_peer),
        delay_of_cubic: cubic.and_then(|cubic| ratio(delay(figures)?, delay(cubic)?)),
        completion_of_cubic: cubic.and_then(|cubic| {
            ratio(figures.transfers.as_ref()?.mean_s, cubic.transfers.as_ref()?.mean_s)
        }),
        drops_over_bbr3: bbr3.map(|bbr3| figures.drops - bbr3.drops),
        harm: harm(Some(figures)),
        harm_of_cubic: harm(cubic),
        delay_harm: delay_harm(),
    }
}

/// Each group and algorithm in the order of the cells, with the worst cell.
fn groups(cells: &[CellReport]) -> Vec<GroupReport> {
    let mut order: Vec<(&str, &str)> = Vec::new();
    let mut found: BTreeMap<(&str, &str), (GroupReport, f64)> = BTreeMap::new();
    for cell in cells {
        for verdict in &cell.verdicts {
            let key = (cell.group.as_str(), verdict.algorithm.as_str());
            let distance = |goal: &Judged| goal.shortfall.unwrap_or(f64::INFINITY);
            let worst = verdict.goals.iter().max_by(|a, b| distance(a).total_cmp(&distance(b)));
            let Some(worst) = worst else { continue };
            let entry = found.entry(key).or_insert_with(|| {
                order.push(key);
                let group = GroupReport {
                    group: cell.group.clone(),
                    algorithm: verdict.algorithm.clone(),
                    cells: 0,
                    passed: 0,
                    worst_cell: String::new(),
                    worst: String::new(),
                };
                (group, f64::NEG_INFINITY)
            });
            entry.0.cells += 1;
            entry.0.passed += u64::from(verdict.passed);
            if distance(worst) > entry.1 {
                entry.1 = distance(worst);
                entry.0.worst_cell.clone_from(&cell.name);
                entry.0.worst = format!("{} (seed {})", worst.text, worst.seed);
            }
        }
    }
    order.into_iter().filter_map(|key| found.remove(&key)).map(|(group, _)| group).collect()
}
