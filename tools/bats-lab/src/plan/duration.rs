//! How long things take, for progress and for patience.

use super::{Case, Suite, Tool};
use crate::config::model::BackendName;

/// What building a network and starting programs takes, in seconds.
const SET_UP: f64 = 1.5;
/// What the measurement of the emulator takes over one way, and over each of several.
const VERIFY: [f64; 2] = [9.0, 6.0];

impl Tool {
    /// Seconds after which it hangs.
    pub(crate) fn patience(&self) -> f64 {
        self.seconds() + 30.0
    }
}

impl Case {
    /// Measurements in all.
    pub(crate) fn measurements(&self) -> usize {
        self.networks.len() * self.protocols.len() * self.tools.len() * self.repetitions as usize
    }

    /// Seconds that it takes in real time.
    pub(crate) fn seconds(&self) -> f64 {
        let tools: f64 = self.tools.iter().map(|tool| tool.seconds() + SET_UP).sum();
        let protocols = if self.is_parallel { 1 } else { self.protocols.len() };
        let once = tools * protocols as f64 * f64::from(self.repetitions);
        once * self.networks.len() as f64 + self.verifying()
    }
}

impl Case {
    /// Seconds that the measurement of the emulator takes.
    pub(crate) fn verifying(&self) -> f64 {
        match self.checks().len() {
            _ if !self.verify => 0.0,
            1 => VERIFY[0],
            several => VERIFY[1] * several as f64,
        }
    }
}

impl Suite {
    /// Seconds that all take in real time; tests that are in virtual time by their own word take none.
    pub(crate) fn seconds(&self) -> f64 {
        let is_real = |case: &&Case| case.backend != Some(BackendName::Sim);
        self.cases.iter().filter(is_real).map(Case::seconds).sum()
    }
}
