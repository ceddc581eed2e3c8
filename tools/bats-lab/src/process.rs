//! Processes by number and start time, so that a number used again is not taken for the old one.

use std::fs;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use serde::{Deserialize, Serialize};

/// A process that is or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// When it started, in clock ticks since the machine did.
    started: u64,
}

impl Process {
    /// The process that has the number `pid` now.
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

    /// Ends it: asks first, forces after two seconds.
    pub(crate) fn end(&self) {
        for (signal, patience) in [(Signal::SIGTERM, 2000), (Signal::SIGKILL, 1000)] {
            let deadline = Instant::now() + Duration::from_millis(patience);
            while self.is_alive() && Instant::now() < deadline {
                if let Ok(pid) = i32::try_from(self.pid) {
                    let _ = kill(Pid::from_raw(pid), signal);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    /// Processor time that it has used, as far as it can be told.
    pub(crate) fn processor_time(&self) -> Duration {
        processor_time(self.pid).unwrap_or_default()
    }
}

/// Processor time of a process that runs, or has ended and was not waited for.
fn processor_time(pid: u32) -> Option<Duration> {
    let ticks_a_second = sysconf(SysconfVar::CLK_TCK).ok()??;
    let stat = Stat::read(pid)?;
    Some(Duration::from_secs_f64(stat.processor as f64 / ticks_a_second as f64))
}

/// The fields of proc_pid_stat(5) that are of use here.
struct Stat {
    dead: bool,
    processor: u64,
    started: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name in brackets may hold blanks and brackets: count from the last one.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            dead: matches!(*fields.first()?, "Z" | "X"),
            processor: number(11)?.saturating_add(number(12)?),
            started: number(19)?,
        })
    }
}

/// A child that is ended when it is dropped, and tells the processor time that it has used.
pub(crate) struct Guarded {
    child: Child,
    ended: Option<(ExitStatus, Duration)>,
}

impl Guarded {
    pub(crate) fn new(child: Child) -> Self {
        Self { child, ended: None }
    }

    /// The pipes of the child.
    pub(crate) fn child_mut(&mut self) -> &mut Child {
        &mut self.child
    }

    /// How the child ended and the processor time that it had used, if it has ended.
    pub(crate) fn try_wait(&mut self) -> Result<Option<(ExitStatus, Duration)>> {
        if self.ended.is_none() {
            let Ok(pid) = i32::try_from(self.child.id()) else { bail!("a process without number") };
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT | WaitPidFlag::WNOHANG;
            if waitid(Id::Pid(Pid::from_raw(pid)), flags)? == WaitStatus::StillAlive {
                return Ok(None);
            }
            // Its figures are there only until it has been waited for.
            let used = processor_time(self.child.id()).unwrap_or_default();
            self.ended = Some((self.child.wait()?, used));
        }
        Ok(self.ended)
    }
}

impl Drop for Guarded {
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
    fn fields_are_counted_from_behind_the_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 0 0 0 0 0 30 12 0 0 20 0 1 0 4711 0 0";
        let stat = Stat::parse(line).unwrap();
        assert_eq!((stat.dead, stat.processor, stat.started), (false, 42, 4711));
        assert!(Stat::parse("7 (a").is_none());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let own = Process::own().unwrap();
        assert!(own.is_alive());
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }

    #[test]
    fn a_child_tells_how_it_ended_once_it_has() {
        let mut child = Guarded::new(Command::new("sleep").arg("0.1").spawn().unwrap());
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
