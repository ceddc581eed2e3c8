//! State of labs between commands, and cleanup after a crash.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nix::sched::{CloneFlags, setns};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

use crate::namespace::Namespaces;
use crate::process::Process;
use crate::settings::Link;
use crate::topology::{self, Shape};

/// A lab, as stored in its state file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Lab {
    /// Its name.
    pub(crate) name: String,
    /// Hosts and links.
    pub(crate) shape: Shape,
    /// MTU of the hosts, in bytes.
    pub(crate) mtu: u32,
    /// Seed of losses and jitter.
    pub(crate) seed: u64,
    /// Initial settings of the links.
    pub(crate) links: Vec<Link>,
    /// Whether the emulator of this program forwards the frames.
    pub(crate) is_emulated: bool,
    /// The process that built it.
    pub(crate) builder: Process,
    /// The emulator process.
    pub(crate) emulator: Option<Process>,
    /// Whether it runs in a user namespace.
    pub(crate) unprivileged: bool,
}

impl Lab {
    /// Whether its emulator, or the process that builds it, is alive.
    pub(crate) fn is_alive(&self) -> bool {
        match &self.emulator {
            Some(emulator) => emulator.is_alive(),
            None => self.builder.is_alive(),
        }
    }
}

/// The state directory, with one subdirectory for each lab.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    root: PathBuf,
    unprivileged: bool,
}

impl Home {
    /// The state directory of this user, as seen before a user namespace is entered.
    pub(crate) fn of_user() -> Self {
        let user = geteuid();
        if user.is_root() {
            return Self { root: "/run/openbats-lab".into(), unprivileged: false };
        }
        let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        // An empty or relative path is ignored (XDG Base Directory Specification).
        let root = directory.filter(|path| path.is_absolute()).map_or_else(
            || std::env::temp_dir().join(format!("openbats-lab-{user}")),
            |directory| directory.join("openbats-lab"),
        );
        Self { root, unprivileged: true }
    }

    /// The state directory that the parent process passed.
    pub(crate) fn at(root: PathBuf, unprivileged: bool) -> Self {
        Self { root, unprivileged }
    }

    /// The directory itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Whether labs need a user namespace.
    pub(crate) fn is_unprivileged(&self) -> bool {
        self.unprivileged
    }

    /// The namespaces of the lab `name`.
    pub(crate) fn namespaces(&self, name: &str) -> Namespaces {
        if self.unprivileged {
            Namespaces::at(self.directory(name).join("netns"))
        } else {
            Namespaces::at("/run/netns")
        }
    }

    /// The directory of the lab `name`.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Control socket of the emulator of the lab `name`.
    pub(crate) fn control_socket(&self, name: &str) -> PathBuf {
        self.directory(name).join("control")
    }

    /// Log file of the emulator of the lab `name`.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.directory(name).join("emulator.log")
    }

    /// The `/etc/hosts` of the hosts of the lab `name`.
    pub(crate) fn hosts_file(&self, name: &str) -> PathBuf {
        self.directory(name).join("hosts")
    }

    /// Reserves the name for a new lab.
    ///
    /// # Errors
    /// If a lab of that name is running, or the directory cannot be created.
    pub(crate) fn claim(&self, lab: &Lab) -> Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(if self.unprivileged { 0o700 } else { 0o755 })
            .create(&self.root)
            .with_context(|| format!("cannot create {}", self.root.display()))?;
        self.exists_and_is_private()?;
        match fs::create_dir(self.directory(&lab.name)) {
            Ok(()) => self.save(lab),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                bail!(
                    "the lab `{0}` is running already (batslab down --name {0} removes it)",
                    lab.name
                )
            }
            Err(error) => Err(error)
                .with_context(|| format!("cannot create {}", self.directory(&lab.name).display())),
        }
    }

    /// Whether the directory exists. It must be owned by this user and writable by no other user:
    /// below the temporary directory any user can create it, with state files that name processes to
    /// kill. Call this before reading anything in it.
    ///
    /// # Errors
    /// If another user owns it or can write to it.
    fn exists_and_is_private(&self) -> Result<bool> {
        let data = match fs::symlink_metadata(&self.root) {
            Ok(data) => data,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", self.root.display()));
            }
        };
        if data.is_dir() && data.uid() == geteuid().as_raw() && data.mode() & 0o022 == 0 {
            return Ok(true);
        }
        let alternative = match self.unprivileged {
            true => ", or set XDG_RUNTIME_DIR to another directory",
            false => "",
        };
        bail!(
            "{} is not private to this user, so other users could tamper with the state of labs: remove it{alternative}",
            self.root.display()
        )
    }

    /// Writes the state file atomically.
    pub(crate) fn save(&self, lab: &Lab) -> Result<()> {
        let directory = self.directory(&lab.name);
        let written = directory.join("lab.json.new");
        fs::write(&written, serde_json::to_vec_pretty(lab)?)
            .and_then(|()| fs::rename(&written, directory.join("lab.json")))
            .with_context(|| format!("cannot write in {}", directory.display()))
    }

    /// The lab `name`.
    ///
    /// # Errors
    /// If there is no such lab (the error says how to build one), or another user may have written
    /// its state.
    pub(crate) fn load(&self, name: &str) -> Result<Lab> {
        let missing = || anyhow!("there is no lab `{name}` (batslab up --name {name} builds it)");
        if !self.exists_and_is_private()? {
            return Err(missing());
        }
        let path = self.directory(name).join("lab.json");
        match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("{} cannot be read", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(missing()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// The lab `name`, if it is running; otherwise removes its remains and fails.
    pub(crate) fn load_alive(&self, name: &str) -> Result<Lab> {
        let lab = self.load(name)?;
        if !lab.is_alive() {
            self.remove(&lab.name);
            bail!("the emulator of the lab `{name}` has died; its remains were removed");
        }
        Ok(lab)
    }

    /// The names of all labs in the state directory.
    ///
    /// # Errors
    /// If another user may have written them.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        if !self.exists_and_is_private()? {
            return Ok(Vec::new());
        }
        let mut names: Vec<String> = fs::read_dir(&self.root)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    /// Removes dead labs and returns their names. Ignores a state directory that another user could
    /// have written.
    pub(crate) fn sweep(&self) -> Vec<String> {
        let mut swept = Vec::new();
        for name in self.names().unwrap_or_default() {
            let dead = match self.load(&name) {
                Ok(lab) => !lab.is_alive(),
                // Its builder may not have written the file yet; after 10 s it has crashed.
                Err(_) => age(&self.directory(&name)) > Duration::from_secs(10),
            };
            if dead {
                self.remove(&name);
                swept.push(name);
            }
        }
        swept
    }

    /// Terminates the emulator of the lab `name` and removes everything that belongs to it. Does
    /// nothing if another user could have written the state directory.
    pub(crate) fn remove(&self, name: &str) {
        match self.exists_and_is_private() {
            Ok(true) => {}
            // The namespaces of the labs of root are elsewhere.
            Ok(false) if !self.unprivileged => {}
            _ => return,
        }
        let shapes = match self.load(name) {
            Ok(lab) => {
                if let Some(emulator) =
                    lab.emulator.filter(|process| process.pid != std::process::id())
                {
                    emulator.end();
                }
                vec![lab.shape]
            }
            Err(_) => {
                let max = topology::MAX_HOPS;
                vec![Shape::chain(max), Shape::mesh(max + 1, Vec::new())]
            }
        };
        let namespaces = self.namespaces(name);
        for namespace in shapes.iter().flat_map(|shape| topology::namespaces(name, shape)) {
            namespaces.delete(&namespace);
        }
        if self.unprivileged {
            namespaces.release_directory();
        }
        let _ = fs::remove_dir_all(self.directory(name));
    }

    /// Enters the user namespace of an unprivileged lab. The process must have a single thread.
    pub(crate) fn join(&self, lab: &Lab) -> Result<()> {
        let Some(emulator) = lab.emulator.filter(|_| lab.unprivileged) else { return Ok(()) };
        for (kind, flag) in [("user", CloneFlags::CLONE_NEWUSER), ("mnt", CloneFlags::CLONE_NEWNS)]
        {
            let path = format!("/proc/{}/ns/{kind}", emulator.pid);
            let namespace = fs::File::open(&path).with_context(|| format!("cannot open {path}"))?;
            setns(namespace, flag).with_context(|| format!("cannot enter {path}"))?;
        }
        Ok(())
    }
}

fn age(path: &Path) -> Duration {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok()
        .and_then(|modified| modified.elapsed().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(tag: &str) -> Home {
        let root = std::env::temp_dir().join(format!("batslab-{tag}-{}", std::process::id()));
        Home { root, unprivileged: true }
    }

    fn lab(name: &str, builder: Process) -> Lab {
        Lab {
            name: name.to_owned(),
            shape: Shape::chain(1),
            mtu: 1500,
            seed: 7,
            links: vec![Link::default()],
            is_emulated: true,
            builder,
            emulator: None,
            unprivileged: true,
        }
    }

    #[test]
    fn lab_name_is_exclusive_until_removal() {
        let home = home("claim");
        let lab = lab("x", Process::own().unwrap());
        home.claim(&lab).unwrap();
        assert!(home.claim(&lab).unwrap_err().to_string().contains("running already"));
        assert_eq!(home.load("x").unwrap(), lab);
        assert!(home.sweep().is_empty());
        home.remove("x");
        assert!(home.load("x").unwrap_err().to_string().contains("no lab"));
        fs::remove_dir_all(&home.root).unwrap();
    }

    #[test]
    fn state_directory_writable_by_other_users_is_rejected() {
        use std::os::unix::fs::PermissionsExt;
        let home = home("foreign");
        let lab = lab("z", Process::own().unwrap());
        home.claim(&lab).unwrap();
        assert_eq!(fs::metadata(&home.root).unwrap().mode() & 0o777, 0o700);
        assert_eq!(home.names().unwrap(), ["z"]);
        let file = home.directory("z").join("lab.json");
        let link = Home { root: home.root.with_extension("link"), unprivileged: true };
        std::os::unix::fs::symlink(&home.root, &link.root).unwrap();
        for (home, mode) in [(&home, 0o777), (&home, 0o770), (&link, 0o700)] {
            fs::set_permissions(&home.root, PermissionsExt::from_mode(mode)).unwrap();
            for refused in [
                home.names().unwrap_err(),
                home.load("z").unwrap_err(),
                home.load("other").unwrap_err(),
                home.claim(&lab).unwrap_err(),
            ] {
                assert!(
                    refused.to_string().contains("not private to this user"),
                    "{mode:o}: {refused}"
                );
            }
            assert!(home.sweep().is_empty());
            home.remove("z");
            assert!(file.exists(), "{mode:o}");
        }
        fs::remove_file(&link.root).unwrap();
        home.remove("z");
        assert!(!file.exists());
        fs::remove_dir_all(&home.root).unwrap();
    }

    #[test]
    fn lab_of_a_dead_builder_is_swept() {
        let home = home("sweep");
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        let builder = Process::find(child.id()).unwrap();
        home.claim(&lab("y", builder)).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(home.sweep(), ["y"]);
        assert!(home.names().unwrap().is_empty());
        fs::remove_dir_all(&home.root).unwrap();
    }
}
