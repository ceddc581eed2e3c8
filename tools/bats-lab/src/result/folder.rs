//! The folder of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{RunResult, csv};
use crate::config::tests_of::file_name;

/// Writes a file, whole or not at all.
pub(crate) fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let written = path.with_extension("new~");
    fs::write(&written, content)
        .and_then(|()| fs::rename(&written, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the folder of a run: the one that was asked for, which must be new or empty, or one of its
/// own below `results`.
pub(crate) fn make(asked: Option<&Path>, started: &str, name: &str) -> Result<PathBuf> {
    if let Some(path) = asked {
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some()) {
            bail!("{} is there already and not empty: results are not overwritten", path.display());
        }
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        return Ok(path.to_owned());
    }
    let stamp: String = started.chars().take(19).map(|c| if c == ':' { '-' } else { c }).collect();
    let name = name.strip_prefix("case:").unwrap_or(name);
    let name = Path::new(name).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for count in 0..1000 {
        let more = if count == 0 { String::new() } else { format!("-{count}") };
        let path = PathBuf::from("results").join(format!("{stamp}-{}{more}", file_name(&name)));
        fs::create_dir_all("results").context("cannot make the folder results")?;
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make {}", path.display()));
            }
        }
    }
    bail!("there are too many results of this second")
}

/// Writes `result.json` and the tables.
pub(crate) fn save(folder: &Path, result: &RunResult) -> Result<()> {
    write(&folder.join("result.json"), serde_json::to_vec_pretty(result)?)?;
    for case in &result.cases {
        let place = folder.join(file_name(&case.name));
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        write(&place.join("figures.csv"), csv::case(case))?;
        for one in &case.measurements {
            let place = folder.join(&one.folder);
            fs::create_dir_all(&place)
                .with_context(|| format!("cannot make {}", place.display()))?;
            for series in &one.series {
                let name = file_name(&format!("{}-{}", series.name, series.of));
                write(&place.join(format!("{name}.csv")), csv::series(series))?;
            }
            for distribution in &one.distributions {
                let name = file_name(&format!("{}-cdf", distribution.name));
                write(&place.join(format!("{name}.csv")), csv::distribution(distribution))?;
            }
        }
    }
    Ok(())
}

/// Reads the result of a run: its folder or its `result.json`.
pub(crate) fn load(path: &Path) -> Result<RunResult> {
    let file = if path.is_dir() { path.join("result.json") } else { path.to_owned() };
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let result: RunResult = serde_json::from_slice(&text)
        .with_context(|| format!("{} is no result of a run", file.display()))?;
    if result.format != super::FORMAT {
        bail!("{} has the format {}, not {}", file.display(), result.format, super::FORMAT);
    }
    Ok(result)
}
