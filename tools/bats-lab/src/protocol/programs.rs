//! Locations of programs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Placeholder for batslab in a command line.
pub(crate) const BATSLAB: &str = "{batslab}";
/// Placeholder for `bats_iperf` in a command line.
pub(crate) const BATS_IPERF: &str = "{bats_iperf}";

/// Locations of this project's programs on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    batslab: PathBuf,
    bats_iperf: Option<PathBuf>,
}

impl Programs {
    /// Finds the programs; `bats_iperf` only if it is needed.
    pub(crate) fn find(needs_bats_iperf: bool) -> Result<Self> {
        let batslab = std::env::current_exe().context("cannot find the batslab executable")?;
        let bats_iperf = if needs_bats_iperf { Some(crate::demo::bats_iperf()?) } else { None };
        Ok(Self { batslab, bats_iperf })
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
            _ => {}
        }
        Ok(words)
    }
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

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
