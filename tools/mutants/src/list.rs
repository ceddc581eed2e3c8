//! Mutants as `cargo mutants --list --json` lists them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// A change of the sources in one place.
pub struct Mutant {
    pub area: usize,
    pub name: String,
    /// Relative to the root of the workspace.
    pub file: PathBuf,
    pub genre: Genre,
    pub start: Position,
    pub replacement: String,
}

/// The mutation operators of cargo-mutants.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq)]
pub enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

/// Both count from 1; columns are in characters.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Deserialize)]
struct Listed {
    name: String,
    file: PathBuf,
    genre: Genre,
    span: Span,
    replacement: String,
}

#[derive(Deserialize)]
struct Span {
    start: Position,
}

/// Reads the list of an area.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub fn read(path: &Path, area: usize) -> Result<Vec<Mutant>> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    let listed: Vec<Listed> = serde_json::from_slice(&text)
        .with_context(|| format!("{}: not a list of cargo-mutants", path.display()))?;
    Ok(listed
        .into_iter()
        .map(|mutant| Mutant {
            area,
            name: mutant.name,
            file: mutant.file,
            genre: mutant.genre,
            start: mutant.span.start,
            replacement: mutant.replacement,
        })
        .collect())
}
