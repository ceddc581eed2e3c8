//! Building labs and taking them down.

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
use crate::namespace::private_mounts;
use crate::process::{Guarded, Process};
use crate::settings::Link;
use crate::state::{Home, Lab};
use crate::topology::{self, Shape};

/// What a lab shall be.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) shape: Shape,
    pub(crate) mtu: u32,
    pub(crate) seed: Option<u64>,
    /// What each link does.
    pub(crate) links: Vec<Link>,
    /// Whether an emulator of this program carries the frames.
    pub(crate) is_emulated: bool,
}

impl Plan {
    /// A chain of equal links.
    pub(crate) fn chain(name: String, hops: u32, link: Link) -> Self {
        let links = vec![link; hops as usize];
        Self { name, shape: Shape::chain(hops), mtu: 1500, seed: None, links, is_emulated: true }
    }
}

/// Gets the rights that a lab needs: root has them, others get them in a user namespace. To be
/// called while the process has one thread.
///
/// # Errors
/// Where the machine does not allow it, with the word what to do.
pub(crate) fn obtain_rights(home: &Home) -> Result<()> {
    if home.is_unprivileged() {
        let (user, group) = (geteuid(), getegid());
        unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).context(
            "a lab needs root or user namespaces, and this machine allows you neither (try sudo)",
        )?;
        fs::write("/proc/self/setgroups", "deny")
            .and_then(|()| fs::write("/proc/self/uid_map", format!("0 {user} 1")))
            .and_then(|()| fs::write("/proc/self/gid_map", format!("0 {group} 1")))
            .context("a lab needs root or user namespaces, and this one got no root (try sudo)")?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)
            .context("cannot make mounts private")?;
    }
    // The proof: a namespace on a thread that ends at once.
    std::thread::scope(|scope| {
        scope
            .spawn(|| unshare(CloneFlags::CLONE_NEWNET))
            .join()
            .map_err(|_| anyhow::anyhow!("a thread of the lab panicked"))?
            .context("a lab needs network namespaces, and this machine does not allow them")
    })
}

/// A lab that this process has built and takes down when it is dropped.
pub(crate) struct OwnLab {
    pub(crate) home: Home,
    pub(crate) lab: Lab,
    emulator: Option<Guarded>,
}

impl OwnLab {
    /// Builds a lab that lives as long as this process.
    pub(crate) fn build(home: &Home, plan: &Plan) -> Result<Self> {
        let (lab, emulator) = build(home, plan, true)?;
        Ok(Self { home: home.clone(), lab, emulator })
    }
}

impl Drop for OwnLab {
    fn drop(&mut self) {
        // The emulator is told first and waited for, so that it does not clean up at the same time.
        if let Some(process) = &self.lab.emulator {
            process.end();
        }
        drop(self.emulator.take());
        self.home.remove(&self.lab.name);
    }
}

/// Builds a lab that stays.
pub(crate) fn up(home: &Home, plan: &Plan) -> Result<Lab> {
    let (lab, emulator) = build(home, plan, false)?;
    // It goes on without us.
    std::mem::forget(emulator);
    Ok(lab)
}

fn build(home: &Home, plan: &Plan, tied: bool) -> Result<(Lab, Option<Guarded>)> {
    home.sweep();
    let mut lab = Lab {
        name: plan.name.clone(),
        shape: plan.shape.clone(),
        mtu: plan.mtu,
        seed: plan.seed.unwrap_or_else(random_seed),
        links: plan.links.clone(),
        is_emulated: plan.is_emulated,
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
        // Somebody else's: it must not go with our lab.
        let _ = fs::remove_dir_all(home.directory(&lab.name));
        bail!("there is a namespace {taken} that is not of a lab; choose another --name");
    }
    let built = topology::build(home, &lab).and_then(|()| interrupt::check()).and_then(|()| {
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

/// What the links of a lab do now.
pub(crate) fn report(home: &Home, lab: &Lab) -> Result<Vec<HopReport>> {
    emulator::control::report(&home.control_socket(&lab.name))
}

/// Becomes a command on a host of a lab. Returns only with the reason why not.
pub(crate) fn exec(home: &Home, name: &str, host: &str, command: &[String]) -> Result<()> {
    home.sweep();
    let lab = home.load_alive(name)?;
    check_host(&lab, host)?;
    home.join(&lab)?;
    home.namespaces(name).enter(&topology::namespace(name, host))?;
    // Without these the command sees the interfaces of the machine in /sys and no host names.
    let _ = private_mounts(Some(&home.hosts_file(name)));
    let Some((program, arguments)) = command.split_first() else { bail!("no command") };
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

/// Takes a lab down.
pub(crate) fn down(home: &Home, name: &str) -> Result<()> {
    if !home.names()?.iter().any(|known| known == name) {
        bail!("there is no lab `{name}`");
    }
    home.remove(name);
    Ok(())
}
