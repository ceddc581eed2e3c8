//! CPU time and CPU affinity of this process.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use crate::clock::Clock;

/// CPU time that this process has used.
fn used() -> Duration {
    let duration = |time: TimeVal| {
        Duration::from_secs(u64::try_from(time.tv_sec()).unwrap_or(0))
            + Duration::from_micros(u64::try_from(time.tv_usec()).unwrap_or(0))
    };
    match getrusage(UsageWho::RUSAGE_SELF) {
        Ok(usage) => duration(usage.user_time()) + duration(usage.system_time()),
        Err(_) => Duration::ZERO,
    }
}

/// Measures CPU time from its creation, and per interval.
#[derive(Clone, Debug)]
pub(crate) struct CpuMeter {
    clock: Clock,
    at_start: Duration,
    interval: Clock,
    at_interval: Duration,
}

fn percent(used: Duration, elapsed: Duration) -> f64 {
    100.0 * used.as_secs_f64() / elapsed.as_secs_f64().max(1e-6)
}

impl CpuMeter {
    pub(crate) fn start() -> Self {
        let (clock, used) = (Clock::start(), used());
        Self { clock, at_start: used, interval: clock, at_interval: used }
    }

    /// Per cent of one CPU since the last call.
    pub(crate) fn interval_percent(&mut self) -> f64 {
        let used = used();
        let result = percent(used.saturating_sub(self.at_interval), self.interval.elapsed());
        (self.interval, self.at_interval) = (Clock::start(), used);
        result
    }

    /// Per cent of one CPU since the start.
    pub(crate) fn total_percent(&self) -> f64 {
        percent(self.total(), self.clock.elapsed())
    }

    /// CPU time since the start.
    pub(crate) fn total(&self) -> Duration {
        used().saturating_sub(self.at_start)
    }
}

/// Restricts this process, and all threads that it starts, to these CPUs.
///
/// # Errors
/// A CPU does not exist, or this process may not use it.
pub(crate) fn pin(cpus: &[usize]) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        for &cpu in cpus {
            anyhow::ensure!(cpu < CpuSet::MAX_CPU, "there is no CPU {cpu}");
            set.set(cpu);
        }
        sched_setaffinity(None, &set).with_context(|| format!("cannot run on CPUs {cpus:?}"))
    }
    #[cfg(not(target_os = "linux"))]
    anyhow::bail!("cannot choose the CPUs {cpus:?} on this system")
}
