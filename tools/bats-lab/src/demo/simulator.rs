//! The demonstration without a lab: BRTP over the same link in virtual time.

use std::time::Duration;

use anyhow::{Result, bail};
use bats_proto::TransportConfig;
use bats_sim::transfer::{Sample as TransferSample, Transfer};
use bats_types::Timestamp;

use super::figures::{CpuSeconds, Figures, FileRun, Run, Sample};
use crate::backend::sim::link_config;
use crate::settings::Link;

const MESSAGE_BYTES: usize = 16 << 10;
/// Seed of the first run; fixed, so that the same link gives the same figures. Each further run has
/// the next seed.
const SEED: u64 = 1;

/// Time limit of a file transfer in virtual seconds.
const FILE_TIMEOUT_S: u64 = 3_600;

/// Runs BRTP over `link` in the simulator: first a verified file of `file_mib` MiB if that is not
/// 0, then `runs` transfers without rate limit for `seconds`.
///
/// # Errors
/// If no connection is established, or the file is not delivered in time.
pub(super) fn run(link: &Link, seconds: u64, runs: u32, file_mib: u64) -> Result<Figures> {
    let transfer = Transfer {
        up: link_config(link, &link.forward)?,
        down: link_config(link, &link.backward)?,
        transport: TransportConfig::default(),
        message_size: MESSAGE_BYTES,
        message_interval: None,
        total_bytes: None,
        duration: Duration::from_secs(seconds),
        sample_interval: Transfer::SAMPLE,
        changes: Vec::new(),
        seed: SEED,
    };
    let file = if file_mib > 0 { Some(send_file(&transfer, file_mib << 20)?) } else { None };
    let mut figures = Figures::new(link.clone(), seconds, true);
    figures.file = file;
    for round in 0..u64::from(runs) {
        let outcome = Transfer { seed: SEED + round, ..transfer.clone() }.run();
        if outcome.established.is_none() {
            bail!("no connection was established over this link within 20 simulated seconds");
        }
        figures.runs.push(Run {
            name: "BRTP",
            with: "bats-sim",
            samples: intervals(&outcome.samples),
            cpu_seconds: None,
        });
    }
    figures.versions.push(("batslab".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    Ok(figures)
}

fn send_file(transfer: &Transfer, bytes: u64) -> Result<FileRun> {
    let duration = Duration::from_secs(FILE_TIMEOUT_S);
    let outcome = Transfer { total_bytes: Some(bytes), duration, ..transfer.clone() }.run();
    let (Some(_), Some(finished)) = (outcome.established, outcome.finished) else {
        bail!(
            "the file was not delivered over this link within {FILE_TIMEOUT_S} simulated seconds"
        );
    };
    // Counted from the start of the client, as in the lab.
    let seconds = (finished - Timestamp::ZERO).as_secs_f64();
    Ok(FileRun { bytes: outcome.bytes, seconds, cpu_seconds: CpuSeconds::default() })
}

/// Converts cumulative samples to intervals of one second.
fn intervals(samples: &[TransferSample]) -> Vec<Sample> {
    let mut intervals = Vec::new();
    let (mut start, mut before) = (0.0, 0);
    for (index, sample) in samples.iter().enumerate() {
        let end = sample.time.as_secs_f64();
        if end - start >= 1.0 || (index + 1 == samples.len() && end > start) {
            let bytes = sample.delivered.saturating_sub(before) as f64;
            intervals.push(Sample { start, end, bytes });
            (start, before) = (end, sample.delivered);
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Direction, Loss, Queue};

    #[test]
    fn run_has_one_interval_per_second_and_stays_below_the_limit() {
        let one = Direction {
            rate: 20_000_000,
            delay: Duration::from_millis(10),
            loss: Loss::Independent(0.02),
            queue: Queue::Bdp(1.0),
            ..Direction::default()
        };
        let figures = run(&Link { forward: one.clone(), backward: one }, 3, 2, 1).unwrap();
        let file = figures.file.unwrap();
        assert_eq!(file.bytes, 1 << 20);
        assert!(file.seconds > 0.4 && file.seconds < 3.0, "{} s", file.seconds);
        assert_eq!(figures.runs.len(), 2);
        assert_ne!(figures.runs[0].samples, figures.runs[1].samples, "the seeds differ");
        let run = &figures.runs[0];
        assert!((2..=4).contains(&run.samples.len()), "{:?}", run.samples);
        let average = run.average();
        assert!(average > 1e6 && average < figures.limit(), "{average}");
        assert!(figures.table().contains("BRTP"));
    }
}
