//! What the kernel says about a process.

use rustix::process::Pid;

/// Growth of resident memory that is none: allocators keep pages, and queues have been filled more or less.
const SLACK: u64 = 24 << 20;

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) descriptors: usize,
    pub(crate) threads: u64,
    /// Resident memory in KiB.
    pub(crate) resident: u64,
}

/// The value of a line of `/proc/PID/status`.
fn status_of(process: u32, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.trim_start_matches(':').split_whitespace().next().map(str::to_owned)
}

/// Whether all threads of a process have ended; its parent may not have asked for its exit code yet.
pub(crate) fn has_ended(process: Pid) -> bool {
    let process = process.as_raw_nonzero().get().unsigned_abs();
    let state = status_of(process, "State");
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    state.is_none_or(|state| (state == "Z" || state == "X") && threads <= 1)
}

impl Usage {
    pub(crate) fn of(process: u32) -> Self {
        let number = |key| status_of(process, key).unwrap().parse().unwrap();
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
        Self { descriptors, threads: number("Threads"), resident: number("VmRSS") }
    }

    /// Asserts that the process holds no more than before, but for what is under way.
    pub(crate) fn assert_flat(&self, before: &Self) {
        let is_flat = self.descriptors <= before.descriptors + 4
            && self.threads <= before.threads + 2
            && self.resident <= before.resident + SLACK / 1024;
        assert!(is_flat, "before {before:?}, now {self:?}");
    }
}
