//! Cross-validation: BRTP over the same links in the lab and in the simulator.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{DemoContext, brtp, simulator};
use crate::cli::CrossValidateOptions;
use crate::interrupt;
use crate::lab::{self, LabConfig, ScopedLab};
use crate::settings::{Link, Loss};
use crate::state::Home;
use crate::text;
use crate::units::{megabits, time_text};

/// Allowed relative difference of lab and simulator.
const TOLERANCE: f64 = 0.05;

/// Runs every combination of loss and delay in both, and prints the results.
///
/// # Errors
/// If no lab can be built, a run fails, or the user interrupts.
pub(crate) fn run(home: &Home, options: &CrossValidateOptions) -> Result<ExitCode> {
    lab::obtain_privileges(home)?;
    interrupt::watch()?;
    let iperf = super::bats_iperf()?;
    let mut rows = Vec::new();
    let mut differing = 0;
    for &loss in &options.loss {
        for &delay in &options.delay {
            interrupt::check()?;
            let link = link(loss, delay);
            eprintln!("loss {} %, one-way delay {}", loss * 100.0, time_text(delay));
            let config =
                LabConfig::chain(format!("cross-validate-{}", std::process::id()), 1, link.clone());
            let demo = DemoContext {
                lab_guard: ScopedLab::build(home, &config)?,
                seconds: options.seconds,
                quiet: true,
            };
            let measured = brtp::run(&demo, &iperf)?;
            drop(demo);
            let simulated = simulator::run(&link, options.seconds, 1, 0)?;
            let simulated_run = simulated.runs.first().context("the simulator returned no run")?;
            let (from, to) = simulated.steady();
            let (lab, virtual_time) = (measured.between(from, to), simulated_run.between(from, to));
            let ratio = lab / virtual_time.max(1.0);
            let agrees = (ratio - 1.0).abs() <= TOLERANCE;
            differing += u32::from(!agrees);
            rows.push([
                format!("{}", loss * 100.0),
                time_text(delay),
                megabits(lab),
                megabits(virtual_time),
                format!("{ratio:.3}{}", if agrees { "" } else { " !" }),
                megabits(measured.between(0.0, to.min(10.0))),
                megabits(simulated_run.between(0.0, to.min(10.0))),
                measured.cpu_seconds.map_or_else(String::new, |used| {
                    let average = |seconds: f64| seconds / options.seconds as f64;
                    format!(
                        "{:.2} / {:.2} / {:.2}",
                        average(used.sender),
                        average(used.receiver),
                        average(used.emulator)
                    )
                }),
            ]);
        }
    }
    let head = [
        "loss %",
        "one-way delay",
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
        "Mbit/s in the steady state and over the first 10 s; {differing} of {} combinations differ by more than {} %",
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
