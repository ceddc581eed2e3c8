//! Errors of configurations.

use std::fmt;
use std::path::PathBuf;

/// Errors of a configuration, with their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(super) path: PathBuf,
    pub(super) line: Option<usize>,
    pub(super) text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.text)
    }
}

impl std::error::Error for ConfigError {}
