//! Detects emulator overload: if the emulator falls behind while a tool runs, it limits the figures
//! instead of the protocol.

use std::time::Duration;

use crate::emulator::control;
use crate::emulator::hop::{IDLE_POLL_INTERVAL, LATE_THRESHOLD};
use crate::emulator::report::{DirectionReport, HopReport, Request};
use crate::result::figures::{Figures, set};
use crate::state::{Home, Lab};

/// Fraction of frames that may be late. Occasional interrupts of the host are harmless.
const MAX_LATE_FRACTION: f64 = 0.01;

/// Counters of the emulator at the start of a measurement.
pub(crate) struct OverloadMonitor {
    before: Vec<HopReport>,
}

/// Late and dropped frames during a measurement, over all links and both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EmulatorOverload {
    frames: u64,
    late: u64,
    dropped: u64,
    latest_us: u64,
}

impl OverloadMonitor {
    /// Starts to count, if the emulator of this program forwards the frames and answers.
    pub(crate) fn begin(home: &Home, lab: &Lab) -> Option<Self> {
        if !lab.is_emulated {
            return None;
        }
        let socket = home.control_socket(&lab.name);
        control::ask(&socket, &Request::ResetLateness).ok()?;
        Some(Self { before: control::report(&socket).ok()? })
    }

    /// The overload since the start.
    pub(crate) fn end(self, home: &Home, lab: &Lab) -> Option<EmulatorOverload> {
        // An idle link updates its counters when it polls again.
        std::thread::sleep(IDLE_POLL_INTERVAL + Duration::from_millis(20));
        let after = control::report(&home.control_socket(&lab.name)).ok()?;
        Some(EmulatorOverload::between(&self.before, &after))
    }
}

impl EmulatorOverload {
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

    /// Sets the overload figures.
    pub(crate) fn set(&self, figures: &mut Figures) {
        set(figures, "emulator_drops", self.dropped as f64);
        set(figures, "emulator_late_percent", 100.0 * self.late_fraction());
        set(figures, "emulator_late_max_ms", self.latest_us as f64 / 1e3);
    }

    fn late_fraction(&self) -> f64 {
        self.late as f64 / self.frames.max(1) as f64
    }

    /// Warnings, if the emulator was overloaded.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.dropped > 0 {
            warnings.push(format!(
                "emulator overload: it dropped {} frames and delivered {}, because it was late or full, which affects these figures",
                self.dropped, self.frames
            ));
        }
        if self.late_fraction() > MAX_LATE_FRACTION {
            warnings.push(format!(
                "emulator overload: it delivered {:.1} % of the frames more than {} ms late, at most {:.1} ms, which affects these figures",
                100.0 * self.late_fraction(),
                LATE_THRESHOLD.as_millis(),
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
    fn only_significant_overload_since_the_start_is_reported() {
        let between = |after| EmulatorOverload::between(&[hop(1_000, 500, 7)], &[after]);
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
