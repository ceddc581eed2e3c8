//! Named network namespaces, bound to files as `ip netns` does, so that it sees them too.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The directory where namespaces are bound to names.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    directory: PathBuf,
}

impl Namespaces {
    /// The namespaces below `directory`: `/run/netns` for root.
    pub(crate) fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Creates a namespace with this name.
    pub(crate) fn create(&self, name: &str) -> Result<()> {
        self.prepare_directory()?;
        let path = self.path(name);
        File::create_new(&path)
            .with_context(|| format!("cannot create the namespace {}", path.display()))?;
        let target = path.clone();
        let made = on_thread(move || {
            unshare(CloneFlags::CLONE_NEWNET).context("cannot create a network namespace")?;
            mount(
                Some("/proc/thread-self/ns/net"),
                &target,
                None::<&str>,
                MsFlags::MS_BIND,
                None::<&str>,
            )
            .with_context(|| format!("cannot mount {}", target.display()))
        });
        if made.is_err() {
            // We created the file, and no namespace is bound to it.
            let _ = fs::remove_file(&path);
        }
        made
    }

    /// Mounts below the directory must propagate to other mount namespaces, as with `ip netns`.
    fn prepare_directory(&self) -> Result<()> {
        let directory = self.directory.as_path();
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let share = || {
            mount(
                None::<&str>,
                directory,
                None::<&str>,
                MsFlags::MS_SHARED | MsFlags::MS_REC,
                None::<&str>,
            )
        };
        if share().is_err() {
            mount(
                Some(directory),
                directory,
                None::<&str>,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                None::<&str>,
            )
            .and_then(|()| share())
            .with_context(|| format!("cannot mount {}", directory.display()))?;
        }
        Ok(())
    }

    /// Terminates the processes in a namespace and deletes it. Does nothing if it does not exist.
    pub(crate) fn delete(&self, name: &str) {
        let path = self.path(name);
        if !path.exists() {
            return;
        }
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let processes = self.processes(name);
            if processes.is_empty() {
                break;
            }
            for process in processes {
                let _ = kill(process, signal);
            }
            thread::sleep(std::time::Duration::from_millis(100));
        }
        // After a crash between creating the file and mounting, nothing is mounted; remove the file
        // anyway.
        let _ = umount2(&path, MntFlags::MNT_DETACH);
        let _ = fs::remove_file(&path);
    }

    /// Unmounts the bind mount of the directory on itself; otherwise it could not be removed. Only
    /// for a directory that belongs to a single lab.
    pub(crate) fn release_directory(&self) {
        // If it is not mounted here, nothing blocks the removal.
        let _ = umount2(&self.directory, MntFlags::MNT_DETACH);
    }

    /// Whether a namespace with this name exists.
    pub(crate) fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// Opens the namespace.
    pub(crate) fn open(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        File::open(&path).with_context(|| format!("no such namespace: {}", path.display()))
    }

    /// The processes that run in a namespace.
    fn processes(&self, name: &str) -> Vec<Pid> {
        let Ok(wanted) = fs::metadata(self.path(name)) else { return Vec::new() };
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let own = std::process::id();
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
            .filter(|&pid| pid != own)
            .filter(|pid| {
                fs::metadata(format!("/proc/{pid}/ns/net")).is_ok_and(|namespace| {
                    namespace.ino() == wanted.ino() && namespace.dev() == wanted.dev()
                })
            })
            .filter_map(|pid| i32::try_from(pid).ok().map(Pid::from_raw))
            .collect()
    }

    /// Moves the calling thread into a namespace. Its child processes start there too.
    pub(crate) fn enter(&self, name: &str) -> Result<()> {
        setns(self.open(name)?, CloneFlags::CLONE_NEWNET)
            .with_context(|| format!("cannot enter the namespace {name}"))
    }

    /// Runs `work` on a new thread inside a namespace.
    pub(crate) fn within<T: Send>(
        &self,
        name: &str,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        on_thread(|| {
            self.enter(name)?;
            work()
        })
    }
}

/// Runs `work` on a new thread, because namespace membership is per thread.
fn on_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|_| Err(anyhow!("a thread of the lab panicked")))
    })
}

/// Gives the calling thread a mount namespace with the `/sys` of its network namespace and, if
/// given, `hosts` as `/etc/hosts`. Stops at the first mount that fails.
pub(crate) fn private_mounts(hosts: Option<&Path>) -> io::Result<()> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_SLAVE, None::<&str>)?;
    if let Some(hosts) = hosts {
        mount(Some(hosts), "/etc/hosts", None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    }
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
    Ok(())
}
