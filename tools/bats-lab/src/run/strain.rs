//! Whether the emulator kept up while a tool ran. Where it did not, it and not the protocol has set the
//! figures.

use std::time::Duration;

use crate::emulator::control;
use crate::emulator::hop::{IDLE, LATE};
use crate::emulator::report::{DirectionReport, HopReport, Request};
use crate::result::figures::{Figures, set};
use crate::state::{Home, Lab};

/// Share of frames that may be late: a host that is interrupted now and then says nothing yet.
const LATE_SHARE: f64 = 0.01;

/// What an emulator had done when a measurement began.
pub(crate) struct Strain {
    before: Vec<HopReport>,
}

/// What it could not do in time while the measurement ran, over all links and both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Strained {
    frames: u64,
    late: u64,
    dropped: u64,
    latest_us: u64,
}

impl Strain {
    /// Begins to count, where an emulator of ours carries the frames and answers.
    pub(crate) fn begin(home: &Home, lab: &Lab) -> Option<Self> {
        if !lab.is_emulated {
            return None;
        }
        let socket = home.control_socket(&lab.name);
        control::ask(&socket, &Request::ResetLateness).ok()?;
        Some(Self { before: control::report(&socket).ok()? })
    }

    /// What has come together since.
    pub(crate) fn end(self, home: &Home, lab: &Lab) -> Option<Strained> {
        // A link that idles tells what it did when it looks up again.
        std::thread::sleep(IDLE + Duration::from_millis(20));
        let after = control::report(&home.control_socket(&lab.name)).ok()?;
        Some(Strained::between(&self.before, &after))
    }
}

impl Strained {
    fn between(before: &[HopReport], after: &[HopReport]) -> Self {
        let mut all = Self::default();
        for (before, after) in before.iter().zip(after) {
            all.add(&before.forward, &after.forward);
            all.add(&before.backward, &after.backward);
        }
        all
    }

    fn add(&mut self, before: &DirectionReport, after: &DirectionReport) {
        self.frames += after.frames_out.saturating_sub(before.frames_out);
        self.late += after.frames_late.saturating_sub(before.frames_late);
        self.dropped += after.emulator_drops.saturating_sub(before.emulator_drops);
        self.latest_us = self.latest_us.max(after.latest_us);
    }

    /// Sets the figures of the emulator itself.
    pub(crate) fn set(&self, figures: &mut Figures) {
        set(figures, "emulator_drops", self.dropped as f64);
        set(figures, "emulator_late_percent", 100.0 * self.late_share());
    }

    fn late_share(&self) -> f64 {
        self.late as f64 / self.frames.max(1) as f64
    }

    /// What a reader has to know, if the emulator did not keep up.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.dropped > 0 {
            warnings.push(format!(
                "the emulator itself dropped {} frames beside {} that it handed over, because it was late or full: it has set these figures, not the protocol alone",
                self.dropped, self.frames
            ));
        }
        if self.late_share() > LATE_SHARE {
            warnings.push(format!(
                "the emulator handed over {:.1} % of the frames more than {} ms late, the latest {:.1} ms: it has set these figures, not the protocol alone",
                100.0 * self.late_share(),
                LATE.as_millis(),
                self.latest_us as f64 / 1e3
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(frames_out: u64, frames_late: u64, emulator_drops: u64) -> HopReport {
        let forward =
            DirectionReport { frames_out, frames_late, emulator_drops, ..Default::default() };
        HopReport { forward, ..HopReport::default() }
    }

    #[test]
    fn only_what_came_since_counts_and_only_what_matters_is_told() {
        let between = |after| Strained::between(&[hop(1_000, 500, 7)], &[after]);
        assert_eq!(between(hop(2_000, 505, 7)).warnings(), Vec::<String>::new());
        let late = between(hop(2_000, 520, 7)).warnings();
        assert!(late.len() == 1 && late[0].contains("2.0 %"), "{late:?}");
        let dropped = between(hop(2_000, 500, 10)).warnings();
        assert!(dropped.len() == 1 && dropped[0].contains("dropped 3 frames"), "{dropped:?}");
        let mut figures = Figures::new();
        between(hop(2_000, 520, 10)).set(&mut figures);
        assert_eq!((figures["emulator_drops"], figures["emulator_late_percent"]), (3.0, 2.0));
    }
}
