//! CPU affinity: processors for the emulator and for packet input of the hosts.

use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The CPU affinity of this process at start.
fn available() -> &'static [usize] {
    static AVAILABLE: OnceLock<Vec<usize>> = OnceLock::new();
    AVAILABLE.get_or_init(|| {
        let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
        (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect()
    })
}

/// The processor for the emulator thread of link `hop`: the upper half, round robin.
fn of_hop(available: &[usize], hop: u32) -> Option<usize> {
    let half = available.len() / 2;
    if half == 0 {
        return None;
    }
    available.get(available.len() - 1 - (hop as usize).saturating_sub(1) % half).copied()
}

/// Pins the calling thread to the processor of link `hop`.
pub(crate) fn pin(hop: u32) {
    let Some(cpu) = of_hop(available(), hop) else { return };
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        // Best effort: without permission the scheduler decides.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

/// The sysfs CPU mask of the processors for packet input of the hosts: the lower half.
pub(crate) fn host_mask() -> Option<String> {
    let available = available();
    mask(&available[..available.len().div_ceil(2)]).filter(|_| available.len() > 1)
}

fn mask(cpus: &[usize]) -> Option<String> {
    let mut words = vec![0u32; cpus.iter().max()? / 32 + 1];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    let words: Vec<String> = words.iter().rev().map(|word| format!("{word:08x}")).collect();
    Some(words.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emulator_and_hosts_share_no_processor() {
        for count in 2..9 {
            let cpus: Vec<usize> = (0..count).collect();
            let lower = &cpus[..count.div_ceil(2)];
            for hop in 1..=16 {
                assert!(!lower.contains(&of_hop(&cpus, hop).unwrap()), "{count} {hop}");
            }
        }
        assert_eq!(of_hop(&[0], 1), None);
    }

    #[test]
    fn masks_have_words_of_32_bits() {
        assert_eq!(mask(&[0]).unwrap(), "00000001");
        assert_eq!(mask(&[0, 33]).unwrap(), "00000002,00000001");
        assert_eq!(mask(&[]), None);
    }
}
