//! The result directory of a run.
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
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{RunResult, csv};
use crate::config::expand::file_name;

/// Writes a file atomically.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let temporary = path.with_extension("new~");
    fs::write(&temporary, content)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Creates the result directory: the requested one, which must be new or empty, or a new one below
/// `results`.
pub(crate) fn create(requested: Option<&Path>, started: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = requested {
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} exists and is not empty: results are not overwritten", path.display());
        }
        fs::create_dir_all(path).with_context(|| format!("cannot create {}", path.display()))?;
        return Ok(path.to_owned());
    }
    let stamp: String = started.chars().take(19).map(|c| if c == ':' { '-' } else { c }).collect();
    let name = name.strip_prefix("case:").unwrap_or(name);
    let name = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for count in 0..1000 {
        let more = if count == 0 { String::new() } else { format!("-{count}") };
        let path = PathBuf::from("results").join(format!("{stamp}-{}{more}", file_name(&name)));
        fs::create_dir_all("results").context("cannot create the directory results")?;
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot create {}", path.display()));
            }
        }
    }
    bail!("too many results in this second")
}

/// Writes `result.json` and the CSV tables.
pub(crate) fn save(folder: &Path, result: &RunResult) -> Result<()> {
    write(&folder.join("result.json"), serde_json::to_vec_pretty(result)?)?;
    for case in &result.cases {
        let directory = folder.join(file_name(&case.name));
        fs::create_dir_all(&directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        write(&directory.join("figures.csv"), csv::case(case))?;
        for one in &case.measurements {
            let directory = folder.join(&one.folder);
            fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            for series in &one.series {
                let name = file_name(&format!("{}-{}", series.name, series.of));
                write(&directory.join(format!("{name}.csv")), csv::series(series))?;
            }
            for distribution in &one.distributions {
                let name = file_name(&format!("{}-cdf", distribution.name));
                write(&directory.join(format!("{name}.csv")), csv::distribution(distribution))?;
            }
        }
    }
    Ok(())
}

/// Reads the result of a run from its directory or its `result.json`.
pub(crate) fn load(path: &Path) -> Result<RunResult> {
    let file = if path.is_dir() { path.join("result.json") } else { path.to_owned() };
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let result: RunResult = serde_json::from_slice(&text)
        .with_context(|| format!("{} is not the result of a run", file.display()))?;
    if result.format != super::FORMAT {
        bail!("{} has the format {}, expected {}", file.display(), result.format, super::FORMAT);
    }
    Ok(result)
}
