//! Durations, for progress reports and timeouts.

use super::{Case, Suite, Tool};
use crate::config::model::BackendName;

/// Time to build a network and start programs, in seconds.
const SET_UP: f64 = 1.5;
/// Time to verify the emulator in seconds: for one path, and per path for several.
const VERIFY: [f64; 2] = [9.0, 6.0];

impl Tool {
    /// Seconds after which the tool counts as hung.
    pub(crate) fn timeout(&self) -> f64 {
        self.seconds() + 30.0
    }
}

impl Case {
    /// Number of measurements.
    pub(crate) fn measurements(&self) -> usize {
        self.networks.len() * self.protocols.len() * self.tools.len() * self.repetitions as usize
    }

    /// Duration in real time, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        let tools: f64 = self.tools.iter().map(|tool| tool.seconds() + SET_UP).sum();
        let protocols = if self.is_parallel { 1 } else { self.protocols.len() };
        let once = tools * protocols as f64 * f64::from(self.repetitions);
        once * self.networks.len() as f64 + self.verification_seconds()
    }

    /// Duration of the verification of the emulator, in seconds.
    pub(crate) fn verification_seconds(&self) -> f64 {
        if !self.verify {
            return 0.0;
        }
        match self.checks().len() {
            1 => VERIFY[0],
            several => VERIFY[1] * several as f64,
        }
    }
}

impl Suite {
    /// Duration of all tests in real time, in seconds. Tests that select virtual time take none.
    pub(crate) fn seconds(&self) -> f64 {
        let is_real = |case: &&Case| case.backend != Some(BackendName::Sim);
        self.cases.iter().filter(is_real).map(Case::seconds).sum()
    }
}
