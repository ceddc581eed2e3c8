//! CPU time of this process.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;

/// CPU time relative to elapsed time, in per cent of one CPU.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, PartialEq)]
pub(crate) struct Utilization {
    pub(crate) total: f64,
    pub(crate) user: f64,
    pub(crate) system: f64,
}

/// Measures CPU time from its creation.
pub(crate) struct CpuTimer {
    clock: Clock,
    usage: Option<Usage>,
}

/// Pins this process, and all threads that it starts, to one CPU.
///
/// # Errors
/// The CPU does not exist, or this process may not use it.
pub(crate) fn pin(processor: u16) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        if usize::from(processor) < CpuSet::MAX_CPU {
            set.set(processor.into());
        }
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPU {processor}"))
    }
    #[cfg(not(target_os = "linux"))]
    anyhow::bail!("cannot choose CPU {processor} on this system")
}

fn seconds(time: TimeVal) -> f64 {
    time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6
}

impl CpuTimer {
    pub(crate) fn start() -> Self {
        Self { clock: Clock::start(), usage: getrusage(UsageWho::RUSAGE_SELF).ok() }
    }

    pub(crate) fn utilization(&self) -> Utilization {
        let (Some(before), Ok(now)) = (&self.usage, getrusage(UsageWho::RUSAGE_SELF)) else {
            return Utilization::default();
        };
        let passed = self.clock.elapsed().max(Duration::from_micros(1)).as_secs_f64();
        let percent_of = |now: TimeVal, before: TimeVal| {
            100.0 * (seconds(now) - seconds(before)).max(0.0) / passed
        };
        let user = percent_of(now.user_time(), before.user_time());
        let system = percent_of(now.system_time(), before.system_time());
        Utilization { total: user + system, user, system }
    }
}
