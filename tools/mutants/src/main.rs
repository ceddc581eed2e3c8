//! Tests all mutants of a package with one build: each is behind a switch that a run of the tests sets.

#![allow(clippy::disallowed_methods, reason = "it measures tests")]

mod compile;
mod jobs;
mod judge;
mod list;
mod process;
mod report;
mod rewrite;
mod sites;
mod suite;
mod switch;
mod tree;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::compile::Compiler;
use crate::jobs::in_parallel;
use crate::judge::{Judge, Verdict};
use crate::report::{Area, Result as MutantResult};
use crate::suite::Suite;
use crate::tree::{State, Tree};

const USAGE: &str = "\
usage: openbats-mutants OPTIONS
  --tree DIR            copy of the sources, which is changed
  --out DIR             directory of the results
  --target DIR          directory of the builds
  --package NAME        package with the mutants
  --library FILE        its root, relative to the tree
  --test PACKAGE        package whose tests run; may be repeated
  --area NAME PREFIX FILE
                        list of an area's mutants (cargo mutants --list --json), and the start of the
                        names of its unit tests; may be repeated
  --skip PART           leave out tests with this in their names; may be repeated
  --unit                run unit tests only
  --profile NAME        profile of Cargo (default: test)
  --seconds S           usual processor time of the tests of one mutant at most (default: 20)
  --jobs N              test programs that run at the same time (default: 2)
Writes OUT/AREA/results.tsv.";

struct Options {
    tree: PathBuf,
    out: PathBuf,
    target: PathBuf,
    package: String,
    library: PathBuf,
    tests: Vec<String>,
    areas: Vec<Area>,
    skip: Vec<String>,
    unit: bool,
    profile: String,
    limit: Duration,
    jobs: usize,
}

fn main() -> ExitCode {
    match options().and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("openbats-mutants: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<Options> {
    let mut options = Options {
        tree: PathBuf::new(),
        out: PathBuf::new(),
        target: PathBuf::new(),
        package: String::new(),
        library: PathBuf::new(),
        tests: Vec::new(),
        areas: Vec::new(),
        skip: Vec::new(),
        unit: false,
        profile: "test".to_owned(),
        limit: Duration::from_secs(20),
        jobs: 2,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let mut value =
            || arguments.next().with_context(|| format!("{option}: value missing\n{USAGE}"));
        match option.as_str() {
            "--tree" => options.tree = std::path::absolute(value()?)?,
            "--out" => options.out = std::path::absolute(value()?)?,
            "--target" => options.target = std::path::absolute(value()?)?,
            "--package" => options.package = value()?,
            "--library" => options.library = value()?.into(),
            "--test" => options.tests.push(value()?),
            "--area" => {
                options.areas.push(Area { name: value()?, prefix: value()?, list: value()?.into() })
            }
            "--unit" => options.unit = true,
            "--skip" => options.skip.push(value()?),
            "--profile" => options.profile = value()?,
            "--seconds" => options.limit = Duration::from_secs(number(&option, &value()?)?),
            "--jobs" => options.jobs = usize::try_from(number(&option, &value()?)?)?,
            _ => bail!("unknown option {option}\n{USAGE}"),
        }
    }
    let paths = [&options.tree, &options.out, &options.target, &options.library];
    let missing = paths.iter().any(|path| path.as_os_str().is_empty());
    if missing || options.package.is_empty() || options.tests.is_empty() || options.areas.is_empty()
    {
        bail!("an option is missing\n{USAGE}");
    }
    Ok(options)
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn number(option: &str, text: &str) -> Result<u64> {
    let number = text.parse().ok().filter(|&number| number > 0);
    number.with_context(|| format!("{option} {text}: write a number from 1"))
}

fn run(options: Options) -> Result<()> {
    let mut mutants = Vec::new();
    for (index, area) in options.areas.iter().enumerate() {
        mutants.append(&mut list::read(&area.list, index)?);
    }
    let mut tree = Tree::new(&options.tree, &options.library, &mutants)?;
    let compiler = Compiler {
        package: &options.package,
        tests: &options.tests,
        unit: options.unit,
        profile: &options.profile,
        target: &options.target,
    };
    let programs = compiler.build(&mut tree)?;
    let started = Instant::now();
    let suite = Suite::measure(programs, &options.skip, options.jobs, &options.out)?;
    eprintln!("{} tests measured in {:.0?}", suite.tests.len(), started.elapsed());

    let judge = Judge { suite: &suite, limit: options.limit };
    // One area after the other, so that those that are complete have a file.
    for (index, area) in options.areas.iter().enumerate() {
        let of_area: Vec<usize> =
            (0..mutants.len()).filter(|&mutant| mutants[mutant].area == index).collect();
        let verdicts = judge_area(&options, &judge, &tree, area, &of_area)?;
        let results = of_area.iter().zip(verdicts).map(|(&mutant, verdict)| {
            let result = MutantResult::new(&tree.states[mutant], verdict);
            (&*mutants[mutant].name, result)
        });
        report::write(&options.out.join(&area.name), results)?;
    }
    Ok(())
}

/// The verdicts on these mutants; none for those without a switch.
fn judge_area(
    options: &Options,
    judge: &Judge,
    tree: &Tree,
    area: &Area,
    mutants: &[usize],
) -> Result<Vec<Option<Verdict>>> {
    let suite = judge.suite;
    let near = |test: usize| {
        let test = &suite.tests[test];
        let program = &suite.programs[test.program];
        program.library && program.package == options.package && test.name.starts_with(&area.prefix)
    };
    let verdicts = Mutex::new(vec![None; mutants.len()]);
    let judged = AtomicUsize::new(0);
    let started = Instant::now();
    in_parallel(options.jobs, mutants.len(), |index| {
        let mutant = mutants[index];
        if tree.states[mutant] == State::Switched {
            let verdict = judge.judge(tree.numbers[mutant], tree.sites[mutant], near)?;
            verdicts.lock().expect("no panic")[index] = Some(verdict);
        }
        let judged = judged.fetch_add(1, Relaxed) + 1;
        if judged.is_multiple_of(100) || judged == mutants.len() {
            let elapsed = started.elapsed();
            eprintln!("{}: {judged} of {} mutants in {elapsed:.0?}", area.name, mutants.len());
        }
        Ok(())
    })?;
    Ok(verdicts.into_inner().expect("no panic"))
}
