//! The demonstration where no lab can be built: BRTP over the same link in virtual time.

use std::time::Duration;

use anyhow::{Result, bail};
use bats_proto::TransportConfig;
use bats_sim::transfer::{Sample as Moment, Transfer};
use bats_types::Timestamp;

use super::figures::{Figures, FileRun, Processors, Run, Sample};
use crate::backend::sim::direction;
use crate::settings::Link;

const MESSAGE: usize = 16 << 10;
/// So that the same link gives the same figures.
const SEED: u64 = 1;

/// Longest time that a file may take, in virtual seconds.
const FILE_PATIENCE: u64 = 3_600;

/// Runs BRTP over `link` in the simulator: a file of `file_mib` MiB if that is not 0, of which every
/// byte is compared with what was sent, then as much as goes for `seconds`.
///
/// # Errors
/// Where no connection comes about, or the file does not get through.
pub(super) fn run(link: &Link, seconds: u64, file_mib: u64) -> Result<Figures> {
    let transfer = Transfer {
        up: direction(link, &link.forward),
        down: direction(link, &link.backward),
        transport: TransportConfig::default(),
        message_size: MESSAGE,
        total_bytes: None,
        duration: Duration::from_secs(seconds),
        changes: Vec::new(),
        seed: SEED,
    };
    let file = if file_mib > 0 { Some(send_file(&transfer, file_mib << 20)?) } else { None };
    let outcome = transfer.run();
    if outcome.established.is_none() {
        bail!("no connection came about over this link in 20 simulated seconds");
    }
    let mut figures = Figures::new(*link, seconds, true);
    figures.file = file;
    figures.runs.push(Run {
        name: "BRTP",
        with: "bats-sim",
        samples: intervals(&outcome.samples),
        processors: None,
    });
    figures.versions.push(("batslab".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    Ok(figures)
}

fn send_file(transfer: &Transfer, bytes: u64) -> Result<FileRun> {
    let duration = Duration::from_secs(FILE_PATIENCE);
    let outcome = Transfer { total_bytes: Some(bytes), duration, ..transfer.clone() }.run();
    let (Some(_), Some(finished)) = (outcome.established, outcome.finished) else {
        bail!("the file did not get over this link in {FILE_PATIENCE} simulated seconds");
    };
    // As in the lab, from the start of the client on.
    let seconds = (finished - Timestamp::ZERO).as_secs_f64();
    Ok(FileRun { bytes: outcome.bytes, seconds, processors: Processors::default() })
}

/// What was delivered in each second, from what had been at each sample.
fn intervals(moments: &[Moment]) -> Vec<Sample> {
    let mut intervals = Vec::new();
    let (mut start, mut before) = (0.0, 0);
    for (index, moment) in moments.iter().enumerate() {
        let end = moment.time.as_secs_f64();
        if end - start >= 1.0 || (index + 1 == moments.len() && end > start) {
            let bytes = moment.delivered.saturating_sub(before) as f64;
            intervals.push(Sample { start, end, bytes });
            (start, before) = (end, moment.delivered);
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Direction, Loss, Queue};

    #[test]
    fn a_run_has_an_interval_a_second_and_fits_the_link() {
        let one = Direction {
            rate: 20_000_000,
            delay: Duration::from_millis(10),
            loss: Loss::Independent(0.02),
            queue: Queue::Bdp(1.0),
            ..Direction::default()
        };
        let figures = run(&Link { forward: one, backward: one }, 3, 1).unwrap();
        let file = figures.file.unwrap();
        assert_eq!(file.bytes, 1 << 20);
        assert!(file.seconds > 0.4 && file.seconds < 3.0, "{} s", file.seconds);
        let run = &figures.runs[0];
        assert!((2..=4).contains(&run.samples.len()), "{:?}", run.samples);
        let average = run.average();
        assert!(average > 1e6 && average < figures.limit(), "{average}");
        assert!(figures.table().contains("BRTP"));
    }
}
