//! A sweep: throughput and latency of all sizes over several transports, in one command.

mod comparison;
pub(crate) mod options;
mod program;
mod published;
mod report;
mod results;
mod run;

use std::fs;

use anyhow::{Context, Result, bail};

use crate::console::print;
use crate::signals;
use options::{Side, SweepOptions};
use results::Rounds;
use run::{Case, Test};

/// Domains that the port rule allows.
const DOMAINS: u32 = 232;

/// Runs a sweep, or one side of it.
///
/// # Errors
/// The command line is invalid, or a run failed. The report has the other runs.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let Some(options) = options::parse(words)? else { return Ok(()) };
    signals::watch()?;
    let directory = &options.directory;
    fs::create_dir_all(directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let cases = cases(&options);
    run::remove_tables(&options, &cases)?;
    let seconds = cases.len() as u64 * (options.seconds + run::OVERHEAD_SECONDS);
    print(&format!("{} runs, about {} min", cases.len(), seconds.div_ceil(60)));
    let mut results = Rounds::default();
    let mut failures = Vec::new();
    for (number, case) in (1..).zip(&cases) {
        if signals::requested() {
            failures.push("interrupted".to_owned());
            break;
        }
        print(&format!("[{number}/{}] {case}", cases.len()));
        // The user starts the other side of the first run at some time.
        match run::run(&options, case, number == 1) {
            Ok(output) => results.add(case, &output),
            Err(error) => {
                print(&format!("  {error:#}"));
                failures.push(format!("{case}: {error:#}"));
            }
        }
    }
    let comparison = comparison::table(&results.medians());
    if !comparison.is_empty() {
        let path = directory.join("comparison.csv");
        fs::write(&path, &comparison)
            .with_context(|| format!("cannot write {}", path.display()))?;
        comparison.lines().for_each(print);
    }
    let page = directory.join("report.html");
    let text = report::page(&options, &results.medians(), &failures)?;
    fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    print(&format!("Report: {}", page.display()));
    match failures.len() {
        0 => Ok(()),
        count => bail!("{count} of {} runs failed: {}", cases.len(), failures[0]),
    }
}

/// All runs, each in a domain of its own, as in the scripts of the seed. The transports take turns, so
/// that they meet the same state of the machine.
fn cases(options: &SweepOptions) -> Vec<Case> {
    let mut cases = Vec::new();
    for _ in 0..options.rounds {
        for test in [Test::Throughput, Test::Latency] {
            for &length in &options.lengths {
                for transport in &options.transports {
                    let domain = (options.domain + cases.len() as u32) % DOMAINS;
                    let transport = transport.clone();
                    cases.push(Case { transport, test, length, domain });
                }
            }
        }
    }
    if options.side != Side::Both {
        print("Start the other side with the same options.");
    }
    cases
}
