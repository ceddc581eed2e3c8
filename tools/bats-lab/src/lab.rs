//! Builds labs and removes them.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};

use crate::emulator;
use crate::emulator::report::HopReport;
use crate::interrupt;
use crate::lab_network;
use crate::namespace::private_mounts;
use crate::process::{ChildGuard, Process};
use crate::settings::Link;
use crate::state::{Home, Lab};
use crate::topology::{self, Shape};

/// The configuration of a lab.
#[derive(Clone, Debug)]
pub(crate) struct LabConfig {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) mtu: u32,
    pub(crate) seed: Option<u64>,
    /// Settings of each link.
    pub(crate) links: Vec<Link>,
    /// Whether the emulator of this program forwards the frames.
    pub(crate) is_emulated: bool,
}

impl LabConfig {
    /// A chain of links with the same settings.
    pub(crate) fn chain(name: String, hops: u32, link: Link) -> Self {
        let links = vec![link; hops as usize];
        Self { name, shape: Shape::chain(hops), mtu: 1500, seed: None, links, is_emulated: true }
    }
}

/// Obtains the privileges that a lab needs. Root has them; other users enter a user namespace. Must
/// be called while the process has a single thread.
///
/// # Errors
/// If the kernel does not allow it; the error says what to do.
pub(crate) fn obtain_privileges(home: &Home) -> Result<()> {
    if home.is_unprivileged() {
        let (user, group) = (geteuid(), getegid());
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
            .context("a lab needs root or user namespaces, and this user has neither (try sudo)")?;
        fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {user} 1")))
            .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {group} 1")))
            .context(
                "a lab needs root or user namespaces, and the user mapping was refused (try sudo)",
            )?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .context("cannot make mounts private")?;
    }
    // Verify it by creating a network namespace on a short-lived thread.
    std::thread::scope(|scope| {
        scope
            .spawn(|| unshare(CloneFlags::CLONE_NEWNET))
            .join()
            .map_err(|_| anyhow::anyhow!("a thread of the lab panicked"))?
            .context("a lab needs network namespaces, and this machine does not allow them")
    })
}

/// A lab that is removed when this value is dropped.
pub(crate) struct ScopedLab {
    pub(crate) home: Home,
    pub(crate) lab: Lab,
    emulator: Option<ChildGuard>,
}

impl ScopedLab {
    /// Builds a lab that ends with this process.
    pub(crate) fn build(home: &Home, config: &LabConfig) -> Result<Self> {
        let (lab, emulator) = build(home, config, true)?;
        Ok(Self { home: home.clone(), lab, emulator })
    }
}

impl Drop for ScopedLab {
    fn drop(&mut self) {
        // Stop the emulator and wait for it first, so that both do not clean up at the same time.
        if let Some(process) = &self.lab.emulator {
            process.end();
        }
        drop(self.emulator.take());
        self.home.remove(&self.lab.name);
    }
}

/// Builds a lab that outlives this process.
pub(crate) fn up(home: &Home, config: &LabConfig) -> Result<Lab> {
    let (lab, emulator) = build(home, config, false)?;
    // The emulator keeps running.
    std::mem::forget(emulator);
    Ok(lab)
}

fn build(home: &Home, config: &LabConfig, tied: bool) -> Result<(Lab, Option<ChildGuard>)> {
    home.sweep();
    let mut lab = Lab {
        name: config.name.clone(),
        shape: config.shape.clone(),
        mtu: config.mtu,
        seed: config.seed.unwrap_or_else(random_seed),
        links: config.links.clone(),
        is_emulated: config.is_emulated,
        builder: Process::own().context("cannot read /proc/self/stat")?,
        emulator: None,
        unprivileged: home.is_unprivileged(),
    };
    let namespaces = home.namespaces(&lab.name);
    home.claim(&lab)?;
    let taken = topology::namespaces(&lab.name, &lab.shape)
        .into_iter()
        .find(|namespace| namespaces.exists(namespace));
    if let Some(taken) = taken {
        // Another program owns this namespace: do not remove it with the lab.
        let _ = fs::remove_dir_all(home.directory(&lab.name));
        bail!("the namespace {taken} exists and belongs to no lab; choose another --name");
    }
    let built = lab_network::build(home, &lab).and_then(|()| interrupt::check()).and_then(|()| {
        if !lab.is_emulated {
            return Ok(None);
        }
        let mut child = emulator::start(home, &lab, tied)?;
        lab.emulator = Some(emulator::process(&mut child)?);
        home.save(&lab)?;
        Ok(Some(child))
    });
    match built {
        Ok(child) => Ok((lab, child)),
        Err(error) => {
            home.remove(&lab.name);
            Err(error)
        }
    }
}

fn random_seed() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (time.as_nanos() as u64) ^ (u64::from(std::process::id()) << 40)
}

/// Counters of all links.
pub(crate) fn report(home: &Home, lab: &Lab) -> Result<Vec<HopReport>> {
    emulator::control::report(&home.control_socket(&lab.name))
}

/// Replaces this process by a command on a host of a lab. Returns only on failure.
pub(crate) fn exec(home: &Home, name: &str, host: &str, command: &[String]) -> Result<()> {
    home.sweep();
    let lab = home.load_alive(name)?;
    check_host(&lab, host)?;
    home.join(&lab)?;
    home.namespaces(name).enter(&topology::namespace(name, host))?;
    // Without these mounts the command sees the interfaces of the machine in /sys and cannot
    // resolve host names.
    let _ = private_mounts(Some(&home.hosts_file(name)));
    let Some((program, arguments)) = command.split_first() else { bail!("no command was given") };
    Err(Command::new(program).args(arguments).exec())
        .with_context(|| format!("cannot run `{program}`"))
}

/// Fails if a lab has no such host.
pub(crate) fn check_host(lab: &Lab, host: &str) -> Result<()> {
    let hosts = &lab.shape.hosts;
    if !hosts.iter().any(|known| known == host) {
        bail!("the lab `{}` has no host `{host}`; it has {}", lab.name, hosts.join(", "));
    }
    Ok(())
}

/// Stops a lab and removes it.
pub(crate) fn down(home: &Home, name: &str) -> Result<()> {
    if !home.names()?.iter().any(|known| known == name) {
        bail!("there is no lab `{name}`");
    }
    home.remove(name);
    Ok(())
}
