//! What the worker gives up before it reads anything from the network. Its user has no capabilities;
//! here it loses the file system (Landlock) and the system calls that lead out of a process (seccomp).

use std::collections::BTreeMap;

use anyhow::Context;
use landlock::{ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetStatus};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// What is in force, for `batsctl status`.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) file_system: &'static str,
    pub(super) system_calls: &'static str,
}

#[cfg(target_arch = "x86_64")]
mod numbers {
    /// Starting programs; looking into others; mounts, namespaces and modules; the kernel's large
    /// interfaces, which are the usual way to escape. They fail with EPERM. (An allow-list would be
    /// stricter; it would also have to follow each change of libc and of the cryptographic library.)
    pub(super) const DENIED: &[i64] = &[
        59, 322, // execve, execveat
        101, 310, 311, 312, 434, 438, // ptrace, process_vm_*, kcmp, pidfd_open, pidfd_getfd
        165, 166, 155, 161, 428, 429, 430, 431, 432, 433, 442, // mounts, pivot_root, chroot
        272, 308, // unshare, setns
        175, 176, 313, 246, 320, // modules, kexec
        298, 321, 323, // perf_event_open, bpf, userfaultfd
        425, 426, 427, // io_uring
        248, 249, 250, // keys
        169, 167, 168, 163, 170, 171, 159, 227, 305, // reboot, swap, acct, names, clocks
        303, 304, // handles of files
    ];
}

#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(super) const DENIED: &[i64] = &[
        221, 281, // execve, execveat
        117, 270, 271, 272, 434, 438, // ptrace, process_vm_*, kcmp, pidfd_open, pidfd_getfd
        40, 39, 41, 51, 428, 429, 430, 431, 432, 433, 442, // mounts, pivot_root, chroot
        97, 268, // unshare, setns
        105, 106, 273, 104, 294, // modules, kexec
        241, 280, 282, // perf_event_open, bpf, userfaultfd
        425, 426, 427, // io_uring
        217, 218, 219, // keys
        142, 224, 225, 89, 161, 162, 171, 112, 266, // reboot, swap, acct, names, clocks
        264, 265, // handles of files
    ];
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod numbers {
    pub(super) const DENIED: &[i64] = &[];
}

/// Restricts the calling thread and those that it starts.
pub(super) fn enter() -> anyhow::Result<Sandbox> {
    rustix::thread::set_no_new_privs(true).context("cannot give up new privileges")?;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self)
        .context("Landlock failed")?;
    let file_system = match status.ruleset {
        RulesetStatus::FullyEnforced => "no access (Landlock)",
        RulesetStatus::PartiallyEnforced => "no access, as far as this kernel's Landlock can",
        RulesetStatus::NotEnforced => "access of its user: this kernel has no Landlock",
    };
    let mut system_calls = "all: no filter for this architecture";
    if !numbers::DENIED.is_empty() {
        let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
            numbers::DENIED.iter().map(|&number| (number, Vec::new())).collect();
        let eperm = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error() as u32);
        let filter = SeccompFilter::new(
            rules,
            SeccompAction::Allow,
            eperm,
            std::env::consts::ARCH.try_into()?,
        )?;
        apply_filter(&BpfProgram::try_from(filter)?).context("seccomp failed")?;
        system_calls = "filtered (seccomp)";
    }
    Ok(Sandbox { file_system, system_calls })
}
