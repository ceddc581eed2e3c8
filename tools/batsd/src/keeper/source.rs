//! Where the configuration comes from.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError};
use crate::original::{self, Flags};

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, which a reload reads again.
    File(PathBuf),
    /// The command line, as the text of a file, and the identity if it is in no file.
    CommandLine(String, Option<String>),
    /// A file in the format of the original, with its flags.
    Original(PathBuf, Flags),
}

/// The text of a configuration, and the identity if it is not in a file that the text names.
pub(super) struct Read {
    pub(super) text: String,
    pub(super) identity: Option<String>,
}

impl Source {
    /// A file in the format that its name says.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        match path.extension().is_some_and(|extension| extension == "ini") {
            true => Self::Original(path.to_owned(), Flags::default()),
            false => Self::File(path.to_owned()),
        }
    }

    /// The name for errors.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Original(path, _) => path,
            Self::CommandLine(..) => Path::new("command line"),
        }
    }

    /// What the owner of the node must know at each start.
    pub(super) fn warning(&self) -> Option<String> {
        match self {
            Self::File(_) | Self::CommandLine(..) => None,
            Self::Original(path, _) => Some(original::warning(path)),
        }
    }

    pub(super) fn read(&self) -> anyhow::Result<Read> {
        Ok(match self {
            Self::File(path) => Read { text: read(path)?, identity: None },
            Self::CommandLine(text, identity) => {
                Read { text: text.clone(), identity: identity.clone() }
            }
            Self::Original(path, flags) => {
                let translated = original::translate(path, &read(path)?, flags)?;
                Read { text: translated.text, identity: Some(translated.identity) }
            }
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    Config::read_text(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_original_warns_of_the_shared_secret() {
        let warning = Source::of(Path::new("/etc/x/y.ini")).warning().unwrap();
        assert!(warning.contains("share the secret /etc/x/server.key"), "{warning}");
        assert_eq!(warning.lines().count(), 1);
        assert_eq!(Source::of(Path::new("/etc/x/y.toml")).warning(), None);
    }
}
