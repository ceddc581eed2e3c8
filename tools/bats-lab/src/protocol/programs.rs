//! Locations of programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Placeholder for batslab in a command line.
pub(crate) const BATSLAB: &str = "{batslab}";
/// Placeholder for `bats_iperf` in a command line.
pub(crate) const BATS_IPERF: &str = "{bats_iperf}";

/// Placeholder for `batsd` in a command line.
pub(crate) const BATSD: &str = "{batsd}";

/// The names of wireguard-go: of packages, and of `go install`.
pub(crate) const WIREGUARD_GO: [&str; 2] = ["wireguard-go", "wireguard"];

/// Where wireguard-go is from.
pub(crate) const WIREGUARD_GO_FROM: &str = "go install golang.zx2c4.com/wireguard@latest, with its folder in PATH; or Debian: wireguard-go";

/// Programs of this project that measurements need besides batslab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NeededPrograms {
    pub(crate) bats_iperf: bool,
    /// `batsd` and `batsctl`.
    pub(crate) batsd: bool,
}

/// Locations of this project's programs on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    batslab: PathBuf,
    bats_iperf: Option<PathBuf>,
    batsd: Option<PathBuf>,
}

impl Programs {
    /// Finds the programs that are needed; builds them in a cargo workspace.
    ///
    /// # Errors
    /// One is missing and cannot be built.
    pub(crate) fn find(needed: NeededPrograms) -> Result<Self> {
        let batslab = std::env::current_exe().context("cannot find the batslab executable")?;
        let find = |is_needed: bool, program: &str, package: &str| {
            is_needed.then(|| executable(program, package)).transpose()
        };
        Ok(Self {
            batslab,
            bats_iperf: find(needed.bats_iperf, "bats_iperf", "bats-iperf")?,
            batsd: find(needed.batsd, "batsd", "batsd")?,
        })
    }

    /// The location of `batsctl`, which is built together with `batsd`.
    ///
    /// # Errors
    /// It is missing.
    pub(crate) fn batsctl(&self) -> Result<PathBuf> {
        let batsd = self.batsd.as_ref().context("batsd is missing")?;
        let path = batsd.with_file_name("batsctl");
        if !is_program(&path) {
            bail!("batsctl is missing ({})", path.display());
        }
        Ok(path)
    }

    /// Replaces the placeholder of a command by the program's location.
    pub(crate) fn place(&self, words: &[String]) -> Result<Vec<String>> {
        let mut words = words.to_vec();
        let Some(first) = words.first_mut() else { bail!("no command") };
        match first.as_str() {
            BATSLAB => *first = self.batslab.to_string_lossy().into_owned(),
            BATS_IPERF => {
                let place = self.bats_iperf.as_ref().context("bats_iperf is missing")?;
                *first = place.to_string_lossy().into_owned();
            }
            BATSD => {
                let place = self.batsd.as_ref().context("batsd is missing")?;
                *first = place.to_string_lossy().into_owned();
            }
            _ => {}
        }
        Ok(words)
    }
}

/// Finds a program of this project in the directory of this one; builds it in a cargo workspace.
///
/// # Errors
/// If it is missing and cannot be built.
pub(crate) fn executable(program: &str, package: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find batslab itself")?;
    let path = own.with_file_name(program);
    // Cargo decides whether it is up to date.
    if let Some(profile) = cargo_profile(&own) {
        eprintln!("building {program} if it is not up to date");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "-p", package]);
        if profile == "release" {
            cargo.arg("--release");
        }
        let built = cargo.status().is_ok_and(|status| status.success());
        if !built && !path.exists() {
            bail!("cannot build {program}: see the output of cargo above");
        }
    }
    if !path.exists() {
        bail!(
            "{program} is missing ({}): build it with cargo build --release -p {package}",
            path.display()
        );
    }
    Ok(path)
}

/// The build profile of this program, if `cargo run` started it.
fn cargo_profile(own: &Path) -> Option<String> {
    std::env::var_os("CARGO_MANIFEST_DIR")?;
    let profile = own.parent()?.file_name()?.to_str()?;
    matches!(profile, "release" | "debug").then(|| profile.to_owned())
}

/// Searches for a program as a shell does.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return is_program(Path::new(program)).then(|| program.into());
    }
    let path = std::env::var_os("PATH")?;
    // Some system programs are only in the PATH of root.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(program))
        .find(|place| is_program(place))
}

/// The location of wireguard-go, which `go install` names `wireguard`.
pub(crate) fn wireguard_go() -> Option<PathBuf> {
    WIREGUARD_GO.into_iter().find_map(find)
}

/// The error if wireguard-go is not installed.
pub(crate) fn no_wireguard_go() -> String {
    let [package, go] = WIREGUARD_GO;
    format!("the program `{package}` (or `{go}`) is not installed ({WIREGUARD_GO_FROM})")
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
