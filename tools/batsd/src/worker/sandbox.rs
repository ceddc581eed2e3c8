//! Restrictions of the worker before it reads anything from the network. This module removes capabilities that
//! it has from a keeper that is not root, access to files (Landlock), and system calls that affect other
//! processes and the host (seccomp).

use std::collections::BTreeMap;

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus,
    path_beneath_rules,
};
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

/// The restrictions in force, for `batsctl status`.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) file_system: &'static str,
    pub(super) system_calls: &'static str,
}

/// System calls that fail with EPERM. (An allow-list would be stricter; it would also have to follow each
/// change of libc and of the cryptographic library.)
const DENIED: &[libc::c_long] = &[
    // Starting programs.
    libc::SYS_execve,
    libc::SYS_execveat,
    // Tracing and reading other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    // Mounts and roots.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    // Namespaces, modules, other kernels.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    // Large kernel interfaces, in which most privilege escalations were found.
    libc::SYS_perf_event_open,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // The host: swap, accounting, names, clocks.
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_adjtimex,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    // Files by handle.
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
];

/// What the C library reads to resolve names: its configuration, which programs replace by renaming, so
/// that the folder must be open, and the modules that the configuration names. Key files in /etc are
/// closed to the worker's user.
const RESOLVER: &[&str] = &[
    "/etc",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];

/// Restricts the calling thread and those that it starts. `has_names`: whether it resolves names.
pub(super) fn enter(has_names: bool) -> anyhow::Result<Sandbox> {
    // Ambient capabilities go with the inheritable ones.
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    rustix::thread::set_capabilities(None, sets).context("cannot give up capabilities")?;
    rustix::thread::set_no_new_privs(true).context("cannot give up new privileges")?;
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V5))
        .and_then(Ruleset::create)
        .and_then(|ruleset| {
            let readable = if has_names { RESOLVER } else { &[] };
            ruleset.add_rules(path_beneath_rules(readable, AccessFs::from_read(ABI::V5)))
        })
        .and_then(landlock::RulesetCreated::restrict_self)
        .context("Landlock failed")?;
    let file_system = match status.ruleset {
        RulesetStatus::FullyEnforced if has_names => "reads files of the resolver (Landlock)",
        RulesetStatus::FullyEnforced => "no access (Landlock)",
        RulesetStatus::PartiallyEnforced => "restricted as far as this kernel's Landlock can",
        RulesetStatus::NotEnforced => "access of its user: this kernel has no Landlock",
    };
    // The library has filters for x86-64, AArch64 and RISC-V.
    let system_calls = match std::env::consts::ARCH.try_into() {
        Ok(architecture) => {
            let rules: BTreeMap<i64, Vec<seccompiler::SeccompRule>> =
                DENIED.iter().map(|&number| (number, Vec::new())).collect();
            let eperm = SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error() as u32);
            let filter = SeccompFilter::new(rules, SeccompAction::Allow, eperm, architecture)?;
            apply_filter(&BpfProgram::try_from(filter)?).context("seccomp failed")?;
            "filtered (seccomp)"
        }
        Err(_) => "all: no filter for this architecture",
    };
    Ok(Sandbox { file_system, system_calls })
}
