//! Load of this machine while a tool runs: what other processes and other virtual machines used,
//! and how late this program was scheduled. Either can limit a figure instead of the protocol.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

use crate::process::{Process, ProcessTable};
use crate::result::figures::{Figures, set};

/// Interval of the probe of scheduling delay.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// A wake-up later than this counts as late, as for frames of the emulator.
const LATE_MS: f64 = 1.0;
/// Fraction of late wake-ups that is harmless, as for frames of the emulator.
const MAX_LATE_FRACTION: f64 = 0.01;
/// Fraction of the processors' time that the hypervisor may give to others. Chosen; on an idle host
/// it is below 0.1 %.
const MAX_STEAL_FRACTION: f64 = 0.02;
/// Fraction of the processors' time that other processes may use, if less than [`MIN_IDLE_FRACTION`]
/// is idle. Chosen: a desktop or a log daemon stays below.
const MAX_OTHERS_FRACTION: f64 = 0.1;
/// With this fraction idle, other processes leave enough.
const MIN_IDLE_FRACTION: f64 = 0.25;
/// Width of a class of scheduling delays, and number of classes.
const CLASS_MS: f64 = 0.1;
const CLASSES: usize = 2_000;

/// Observes the machine while a tool runs.
pub(crate) struct HostLoadMonitor {
    stop: Arc<AtomicBool>,
    probe: Option<JoinHandle<Delays>>,
    before: Option<CpuTimes>,
    emulator: Option<Process>,
}

impl HostLoadMonitor {
    /// Starts to observe.
    pub(crate) fn begin(emulator: Option<Process>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let probe = std::thread::spawn(move || Delays::probe(&stopped));
        Self { stop, probe: Some(probe), before: CpuTimes::read(emulator), emulator }
    }

    /// The load since the start.
    pub(crate) fn end(mut self) -> HostLoad {
        self.stop.store(true, Ordering::Relaxed);
        let delays = self.probe.take().and_then(|probe| probe.join().ok()).unwrap_or_default();
        let after = CpuTimes::read(self.emulator);
        let shares = self.before.as_ref().zip(after.as_ref());
        HostLoad { delays, shares: shares.map(|(before, after)| CpuShares::between(before, after)) }
    }
}

impl Drop for HostLoadMonitor {
    fn drop(&mut self) {
        // A measurement that fails does not ask for the load.
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The load of the machine during a measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostLoad {
    delays: Delays,
    /// `None` if /proc does not contain it.
    shares: Option<CpuShares>,
}

impl HostLoad {
    /// Sets the figures.
    pub(crate) fn set(&self, figures: &mut Figures) {
        set(figures, "scheduling_delay_p99_ms", self.delays.percentile(0.99));
        set(figures, "scheduling_delay_max_ms", self.delays.max_ms);
        if let Some(shares) = &self.shares {
            set(figures, "steal_percent", 100.0 * shares.steal);
            set(figures, "other_processors", shares.others * shares.processors);
        }
    }

    /// Warnings, if the machine may have limited the figures.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.delays.late_fraction() > MAX_LATE_FRACTION {
            warnings.push(format!(
                "host overload: {:.1} % of the wake-ups of this program were more than {LATE_MS} ms late, at most {:.1} ms, which may have limited these figures",
                100.0 * self.delays.late_fraction(),
                self.delays.max_ms
            ));
        }
        let Some(shares) = &self.shares else { return warnings };
        if shares.steal > MAX_STEAL_FRACTION {
            warnings.push(format!(
                "host overload: the hypervisor gave {:.1} % of the processor time to others (steal), which may have limited these figures",
                100.0 * shares.steal
            ));
        }
        if shares.others > MAX_OTHERS_FRACTION && shares.idle < MIN_IDLE_FRACTION {
            warnings.push(format!(
                "host overload: other processes used {:.2} of {} processors, and {:.0} % was idle, which may have limited these figures",
                shares.others * shares.processors,
                shares.processors,
                100.0 * shares.idle
            ));
        }
        warnings
    }
}

/// How late this program was scheduled, in classes of delay.
#[derive(Clone, Debug, Default)]
struct Delays {
    count: u64,
    late: u64,
    max_ms: f64,
    classes: Vec<u64>,
}

impl Delays {
    fn probe(stop: &AtomicBool) -> Self {
        let mut delays = Self::default();
        while !stop.load(Ordering::Relaxed) {
            let due = Instant::now() + PROBE_INTERVAL;
            std::thread::sleep(PROBE_INTERVAL);
            delays.add(due.elapsed().as_secs_f64() * 1e3);
        }
        delays
    }

    fn add(&mut self, ms: f64) {
        self.classes.resize(CLASSES, 0);
        self.count += 1;
        self.late += u64::from(ms > LATE_MS);
        self.max_ms = self.max_ms.max(ms);
        let class = ((ms / CLASS_MS) as usize).min(CLASSES - 1);
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
    }

    fn late_fraction(&self) -> f64 {
        self.late as f64 / self.count.max(1) as f64
    }

    /// The quantile, rounded up to a whole class; NaN if there is no value.
    fn percentile(&self, fraction: f64) -> f64 {
        let rank = (fraction * self.count as f64).ceil() as u64;
        let mut sum = 0;
        for (class, count) in (1..).zip(&self.classes) {
            sum += count;
            if sum >= rank && sum > 0 {
                return (f64::from(class) * CLASS_MS).min(self.max_ms);
            }
        }
        f64::NAN
    }
}

/// Processor time since boot in clock ticks (proc_stat(5), proc_pid_stat(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuTimes {
    /// Of all processors, also when idle.
    total: u64,
    idle: u64,
    steal: u64,
    /// Of all processes. Interrupts are not counted: most serve the measurement.
    processes: u64,
    /// Of this program, its descendants, the emulator and the kernel's threads. The last work for
    /// the measurement, too, and cannot be attributed.
    own: u64,
}

impl CpuTimes {
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn read(emulator: Option<Process>) -> Option<Self> {
        let mut roots = BTreeSet::from([std::process::id()]);
        roots.extend(emulator.map(|process| process.pid));
        Self::parse(&fs::read_to_string("/proc/stat").ok()?, &ProcessTable::read(), roots)
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn parse(stat: &str, processes: &ProcessTable, mut roots: BTreeSet<u32>) -> Option<Self> {
        let line = stat.lines().find(|line| line.starts_with("cpu "))?;
        let columns: Vec<u64> =
            line.split_ascii_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
        let &[user, nice, system, idle, iowait, irq, softirq, steal, ..] = columns.as_slice()
        else {
            return None;
        };
        // All threads of the kernel descend from process 2.
        roots.insert(2);
        let own = processes.ticks_below(&roots);
        let sum = |times: &[u64]| times.iter().fold(0_u64, |sum, time| sum.saturating_add(*time));
        Some(Self {
            total: sum(&[user, nice, system, idle, iowait, irq, softirq, steal]),
            idle: sum(&[idle, iowait]),
            steal,
            processes: sum(&[user, nice, system]),
            own,
        })
    }
}

/// Fractions of the processor time of the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CpuShares {
    steal: f64,
    idle: f64,
    /// Of processes that do not belong to the measurement.
    others: f64,
    processors: f64,
}

impl CpuShares {
    fn between(before: &CpuTimes, after: &CpuTimes) -> Self {
        let since = |field: fn(&CpuTimes) -> u64| field(after).saturating_sub(field(before)) as f64;
        let total = since(|times| times.total).max(1.0);
        let others = (since(|times| times.processes) - since(|times| times.own)).max(0.0);
        let processors = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten().unwrap_or(1);
        Self {
            steal: since(|times| times.steal) / total,
            idle: since(|times| times.idle) / total,
            others: others / total,
            processors: processors as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, parent: u32, ticks: u64) -> (u32, String) {
        let zeros = "0 ".repeat(9);
        (pid, format!("{pid} (a (b) c) S {parent} {zeros}{ticks} 1 1 1 20 0 1 0 5 0"))
    }

    #[test]
    fn processes_of_the_measurement_do_not_count_as_others() {
        let roots = BTreeSet::from([10, 30]);
        let read = |stat: &str, ticks: u64| {
            let processes = [
                process(1, 0, 500),
                process(2, 0, 1),
                process(3, 2, 7),
                process(10, 1, ticks),
                process(11, 10, ticks),
                process(30, 1, ticks),
                process(40, 1, 900),
            ];
            CpuTimes::parse(stat, &ProcessTable::parse(processes), roots.clone()).unwrap()
        };
        let before = read("cpu  100 0 100 1000 0 0 0 0 0 0\ncpu0 1 1\n", 0);
        // 20 ticks of each of three processes, 100 of others, 40 stolen.
        let after = read("cpu  200 10 150 1790 0 5 5 40 0 0\n", 20);
        assert_eq!(after.own - before.own, 60);
        let shares = CpuShares::between(&before, &after);
        assert!((shares.others - 0.1).abs() < 1e-9, "{shares:?}");
        assert!((shares.steal - 0.04).abs() < 1e-9 && (shares.idle - 0.79).abs() < 1e-9);
        assert_eq!(CpuTimes::parse("nonsense", &ProcessTable::default(), roots), None);
    }

    #[test]
    fn a_busy_machine_is_reported_and_a_quiet_one_is_not() {
        let load = |late: u64, steal: f64, idle: f64, others: f64| {
            let mut delays = Delays::default();
            for number in 0..1_000 {
                delays.add(if number < late { 4.0 } else { 0.05 });
            }
            HostLoad { delays, shares: Some(CpuShares { steal, idle, others, processors: 2.0 }) }
        };
        assert_eq!(load(9, 0.01, 0.0, 0.05).warnings(), Vec::<String>::new());
        // Idle processors are left for the measurement.
        assert_eq!(load(0, 0.0, 0.5, 0.4).warnings(), Vec::<String>::new());
        for (load, word) in [
            (load(20, 0.0, 0.5, 0.0), "2.0 % of the wake-ups"),
            (load(0, 0.03, 0.5, 0.0), "steal"),
            (load(0, 0.0, 0.1, 0.4), "0.80 of 2 processors"),
        ] {
            let warnings = load.warnings();
            assert!(warnings.len() == 1 && warnings[0].contains(word), "{warnings:?}");
        }
        let mut figures = Figures::new();
        load(20, 0.03, 0.1, 0.4).set(&mut figures);
        assert!((figures["scheduling_delay_p99_ms"] - 4.0).abs() < 0.11, "{figures:?}");
        assert_eq!(figures["scheduling_delay_max_ms"], 4.0);
        assert!((figures["steal_percent"] - 3.0).abs() < 1e-9);
        assert!((figures["other_processors"] - 0.8).abs() < 1e-9);
    }

    #[test]
    fn load_of_another_process_is_seen() {
        let before = CpuTimes::read(None).unwrap();
        // Its parent ends, so it does not descend from this process.
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "(timeout 20 sh -c 'while :; do :; done' & echo $!) | cat"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = shell.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        let busy: i32 = line.trim().parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(15);
        let mut others = 0;
        while others < 20 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
            let after = CpuTimes::read(None).unwrap();
            others = (after.processes - before.processes)
                .saturating_sub(after.own.saturating_sub(before.own));
        }
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(busy),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = shell.wait();
        assert!(others >= 20, "{others} ticks of others");
    }
}
