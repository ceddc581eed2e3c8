//! Cells from a YAML file; docs/arena.md has the keys.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod build;
mod spec;
mod values;

use core::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde_saphyr::{Error, Location, Spanned};

use super::contest::Contest;
use spec::{CellSpec, FileSpec};

/// The largest file of cells, and the largest recorded trace that one may name, in bytes.
const MAX_BYTES: u64 = 1 << 20;
const MAX_TRACE_BYTES: u64 = 64 << 20;
/// Most cells of a file.
const MAX_CELLS: usize = 1_000;

/// Why a file of cells was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileError {
    /// The file.
    pub file: String,
    /// Line and column, from 1.
    pub position: Option<(u64, u64)>,
    /// Description of the error.
    pub text: String,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some((line, column)) = self.position {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.text)
    }
}

impl core::error::Error for FileError {}

fn read_bounded(path: &Path, limit: u64) -> Result<String, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(limit.saturating_add(1))
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    if text.len() as u64 > limit { Err(format!("more than {limit} bytes")) } else { Ok(text) }
}

/// The cells of a file.
///
/// # Errors
/// If the file cannot be read, or the first thing in it that is not allowed.
pub fn load(path: &Path) -> Result<Vec<Contest>, FileError> {
    let file = path.display().to_string();
    let text = read_bounded(path, MAX_BYTES).map_err(|text| FileError {
        file: file.clone(),
        position: None,
        text,
    })?;
    parse(&file, &text, path.parent().unwrap_or(Path::new(".")))
}

/// The cells of a file's text. Recorded traces are read from `folder`.
///
/// # Errors
/// The first thing that is not allowed, with its position.
pub fn parse(file: &str, text: &str, folder: &Path) -> Result<Vec<Contest>, FileError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let error = |position: Option<(u64, u64)>, text: String| FileError {
        file: file.to_owned(),
        position,
        text,
    };
    let spec: FileSpec = serde_saphyr::from_str_with_options(text, options)
        .map_err(|found| error(found.location().and_then(position), explain(&found)))?;
    if spec.cells.is_empty() || spec.cells.len() > MAX_CELLS {
        let text = format!("a file has 1 to {MAX_CELLS} cells, not {}", spec.cells.len());
        return Err(error(None, text));
    }
    let mut contests: Vec<Contest> = Vec::with_capacity(spec.cells.len());
    for cell in spec.cells {
        let at = |text| error(position(cell.referenced), text);
        let contest = contest(&cell, folder).map_err(at)?;
        if contests.iter().any(|other| other.name == contest.name) {
            return Err(at(format!("there is another cell `{}`", contest.name)));
        }
        contests.push(contest);
    }
    Ok(contests)
}

fn contest(cell: &Spanned<CellSpec>, folder: &Path) -> Result<Contest, String> {
    let spec = cell.value.clone();
    let name = spec.name.clone();
    let built =
        build::Prepared::new(spec, folder).map_err(|text| format!("cell `{name}`: {text}"))?;
    Ok(Contest {
        name,
        title: built.title(),
        goals: built.goals(),
        build: Arc::new(move |draw| built.cell(draw)),
    })
}

fn position(at: Location) -> Option<(u64, u64)> {
    (at.line() > 0).then(|| (at.line(), at.column()))
}

/// The message of an error of the parser, without a position.
fn explain(error: &Error) -> String {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let field: String = field.chars().take(40).collect();
            format!("unknown key `{field}`; known are {}", expected.join(", "))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            let variant: String = variant.chars().take(40).collect();
            format!("unknown value `{variant}`; known are {}", expected.join(", "))
        }
        Error::SerdeMissingField { field, .. } => format!("missing key `{field}`"),
        other => {
            let text = other.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.rsplit_once(" at line ").map_or(line, |(text, _)| text).to_owned()
        }
    }
}
