//! Processes identified by process ID and start time, so that a reused ID is not mistaken for the
//! old process.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

/// A process that runs or has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Process ID.
    pub(crate) pid: u32,
    /// Start time in clock ticks since boot.
    started: u64,
}

impl Process {
    /// The process with this ID now.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let stat = Stat::read(pid)?;
        (!stat.dead).then_some(Self { pid, started: stat.started })
    }

    /// This process.
    pub(crate) fn own() -> Option<Self> {
        Self::find(std::process::id())
    }

    /// Whether it still runs.
    pub(crate) fn is_alive(&self) -> bool {
        Self::find(self.pid) == Some(*self)
    }

    /// Terminates it: SIGTERM, then SIGKILL after two seconds.
    pub(crate) fn end(&self) {
        for (signal, timeout_ms) in [(Signal::SIGTERM, 2000), (Signal::SIGKILL, 1000)] {
            let (begin, timeout) = (Instant::now(), Duration::from_millis(timeout_ms));
            while self.is_alive() && begin.elapsed() < timeout {
                if let Ok(pid) = i32::try_from(self.pid) {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// CPU time used so far; zero if unknown.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(self.pid).unwrap_or_default()
    }
}

/// All processes of the machine at a time.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    stats: BTreeMap<u32, Stat>,
}

impl ProcessTable {
    pub(crate) fn read() -> Self {
        let Ok(entries) = fs::read_dir("/proc") else { return Self::default() };
        let stats = entries.flatten().filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, fs::read_to_string(entry.path().join("stat")).ok()?))
        });
        Self::parse(stats)
    }

    /// From the IDs of processes and their lines of proc_pid_stat(5).
    pub(crate) fn parse(lines: impl IntoIterator<Item = (u32, String)>) -> Self {
        let stats = lines.into_iter().filter_map(|(pid, line)| Some((pid, Stat::parse(&line)?)));
        Self { stats: stats.collect() }
    }

    /// CPU time in clock ticks of these processes and their descendants, also of descendants that were
    /// waited for.
    pub(crate) fn ticks_below(&self, roots: &BTreeSet<u32>) -> u64 {
        let is_below = |mut pid: u32| {
            // Bounded, in case of a loop while processes come and go.
            for _ in 0..64 {
                if roots.contains(&pid) {
                    return true;
                }
                let Some(stat) = self.stats.get(&pid) else { return false };
                pid = stat.parent;
            }
            false
        };
        let below = self.stats.iter().filter(|(pid, _)| is_below(**pid));
        below.map(|(_, stat)| stat.cpu_ticks.saturating_add(stat.children_cpu_ticks)).sum()
    }

    /// The same as a duration.
    pub(crate) fn processor_time_below(&self, roots: &BTreeSet<u32>) -> Duration {
        seconds(self.ticks_below(roots))
    }
}

fn seconds(ticks: u64) -> Duration {
    match sysconf(SysconfVar::CLK_TCK) {
        Ok(Some(per_second)) => Duration::from_secs_f64(ticks as f64 / per_second as f64),
        _ => Duration::ZERO,
    }
}

/// CPU time of a process that runs, or has ended and was not waited for.
fn processor_time(pid: u32) -> Option<Duration> {
    Some(seconds(Stat::read(pid)?.cpu_ticks))
}

/// The fields of proc_pid_stat(5) that are used here.
#[derive(Debug)]
struct Stat {
    dead: bool,
    parent: u32,
    cpu_ticks: u64,
    /// Of children that were waited for.
    children_cpu_ticks: u64,
    started: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in parentheses may contain spaces and parentheses: count from the last one.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            dead: matches!(*fields.first()?, "Z" | "X"),
            parent: fields.get(1)?.parse().ok()?,
            children_cpu_ticks: number(13)?.saturating_add(number(14)?),
            cpu_ticks: number(11)?.saturating_add(number(12)?),
            started: number(19)?,
        })
    }
}

/// A child process that is killed when this value is dropped. Records the CPU time of the child.
pub(crate) struct ChildGuard {
    child: Child,
    ended: Option<(ExitStatus, Duration)>,
}

impl ChildGuard {
    pub(crate) fn new(child: Child) -> Self {
        Self { child, ended: None }
    }

    /// The child, for its pipes.
    pub(crate) fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Exit status and CPU time of the child, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<(ExitStatus, Duration)>> {
        if self.ended.is_none() {
            let Ok(pid) = i32::try_from(self.child.id()) else {
                bail!("the child has an invalid process ID")
            };
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
            if waitid(Id::Pid(Pid::from_raw(pid)), flags)? == WaitStatus::StillAlive {
                return Ok(None);
            }
            // /proc has its CPU time only until it is waited for.
            let used = processor_time(self.child.id()).unwrap_or_default();
            self.ended = Some((self.child.wait()?, used));
        }
        Ok(self.ended)
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn stat_fields_are_counted_from_the_last_parenthesis() {
        let line = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 4711 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.dead, stat.cpu_ticks, stat.started), (false, 42, 4711));
        assert_eq!((stat.parent, stat.children_cpu_ticks), (1, 0));
        assert!(Stat::parse("7 (a").is_none());
    }

    #[test]
    fn reused_process_id_is_another_process() {
        let own = Process::own().unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }

    #[test]
    fn exit_status_is_available_after_the_child_ended() {
        let mut child = ChildGuard::new(Command::new("sleep").arg("0.1").spawn().unwrap());
        let mut rounds = 0;
        let (status, _) = loop {
            if let Some(ended) = child.try_wait().unwrap() {
                break ended;
            }
            rounds += 1;
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success() && rounds > 0);
    }
}
