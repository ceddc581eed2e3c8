//! Two witnesses for a figure: BRTP over the same links in the lab and in the simulator.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Stage, brtp, simulator};
use crate::cli::WitnessOptions;
use crate::interrupt;
use crate::lab::{self, OwnLab, Plan};
use crate::settings::{Link, Loss};
use crate::state::Home;
use crate::text;
use crate::units::{megabits, time_text};

/// How far lab and simulator may differ.
const TOLERANCE: f64 = 0.05;

/// Runs every pair of a loss and a delay in both, and prints them side by side.
///
/// # Errors
/// Where no lab can be built, a run fails, or the user interrupts.
pub(crate) fn run(home: &Home, options: &WitnessOptions) -> Result<ExitCode> {
    lab::obtain_rights(home)?;
    interrupt::watch()?;
    let iperf = brtp::executable()?;
    let mut rows = Vec::new();
    let mut differing = 0;
    for &loss in &options.loss {
        for &delay in &options.delay {
            interrupt::check()?;
            let link = link(loss, delay);
            eprintln!("loss {} %, {} one way", loss * 100.0, time_text(delay));
            let plan = Plan::chain(format!("witness-{}", std::process::id()), 1, link);
            let stage =
                Stage { own: OwnLab::build(home, &plan)?, seconds: options.seconds, quiet: true };
            let seen = brtp::run(&stage, &iperf)?;
            drop(stage);
            let simulated = simulator::run(&link, options.seconds, 0)?;
            let computed = simulated.runs.first().context("the simulator gave no run")?;
            let (from, to) = simulated.steady();
            let (lab, virtual_time) = (seen.between(from, to), computed.between(from, to));
            let ratio = lab / virtual_time.max(1.0);
            let agrees = (ratio - 1.0).abs() <= TOLERANCE;
            differing += u32::from(!agrees);
            rows.push([
                format!("{}", loss * 100.0),
                time_text(delay),
                megabits(lab),
                megabits(virtual_time),
                format!("{ratio:.3}{}", if agrees { "" } else { " !" }),
                megabits(seen.between(0.0, to.min(10.0))),
                megabits(computed.between(0.0, to.min(10.0))),
                seen.processors.map_or_else(String::new, |used| {
                    let share = |seconds: f64| seconds / options.seconds as f64;
                    format!(
                        "{:.2} / {:.2} / {:.2}",
                        share(used.sender),
                        share(used.receiver),
                        share(used.emulator)
                    )
                }),
            ]);
        }
    }
    let head = [
        "loss %",
        "one way",
        "lab",
        "simulator",
        "ratio",
        "lab, 10 s",
        "sim., 10 s",
        "processors: sender / receiver / emulator",
    ];
    let rows: Vec<[&str; 8]> =
        rows.iter().map(|row| std::array::from_fn(|column| row[column].as_str())).collect();
    out!("{}", text::table(&head, &rows));
    outln!(
        "Mbit/s in the steady state and over the first 10 s; {differing} of {} cells differ by more than {} %",
        rows.len(),
        TOLERANCE * 100.0
    );
    Ok(if differing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn link(loss: f64, delay: Duration) -> Link {
    let mut link = Link::default();
    for direction in [&mut link.forward, &mut link.backward] {
        direction.loss = Loss::Independent(loss);
        direction.delay = delay;
    }
    link
}
