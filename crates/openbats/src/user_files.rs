//! Files that programs of a user keep between runs.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::identity::Identity;
use crate::identity_error::IdentityError;
use crate::known_hosts::KnownHosts;
use crate::state_directory::directory;

/// A file in the user's state directory, if there is one.
fn path(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    Some(directory(variable)?.join(name))
}

impl KnownHosts {
    /// The file of this user's clients: `$XDG_STATE_HOME/openbats/known_hosts`, by default
    /// `~/.local/state/openbats/known_hosts`. `None` without a home directory.
    #[must_use]
    pub fn of_user() -> Option<Self> {
        path("known_hosts", |name| std::env::var_os(name)).map(Self::new)
    }
}

impl Identity {
    /// The file with the identity that this user's servers share:
    /// `$XDG_STATE_HOME/openbats/identity.pem`, by default `~/.local/state/openbats/identity.pem`.
    /// `None` without a home directory.
    #[must_use]
    pub fn file_of_user() -> Option<PathBuf> {
        path("identity.pem", |name| std::env::var_os(name))
    }

    /// Reads or generates the identity in [`file_of_user`](Self::file_of_user). If that file cannot
    /// be written, the identity is lost at the end of the program, and the second value says why.
    ///
    /// # Errors
    /// The file exists and is not usable, see [`load_or_generate`](Self::load_or_generate).
    pub fn of_user(names: &[&str]) -> Result<(Self, Option<String>), IdentityError> {
        let why = match Self::file_of_user() {
            None => "there is no home directory".to_owned(),
            Some(path) => match Self::load_or_generate(path, names) {
                Ok(identity) => return Ok((identity, None)),
                Err(error @ IdentityError::Write { .. }) => error.to_string(),
                Err(error) => return Err(error),
            },
        };
        Ok((Self::generate(names)?, Some(why)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_state_directory_of_the_user() {
        let path = |state: Option<&str>, home: Option<&str>| {
            let variable = |name: &str| match name {
                "XDG_STATE_HOME" => state.map(OsString::from),
                "HOME" => home.map(OsString::from),
                other => panic!("{other}"),
            };
            path("x", variable).map(|path| path.display().to_string())
        };
        assert_eq!(path(Some("/s"), Some("/h")).as_deref(), Some("/s/openbats/x"));
        for ignored in [None, Some(""), Some("s")] {
            assert_eq!(path(ignored, Some("/h")).as_deref(), Some("/h/.local/state/openbats/x"));
            assert_eq!(path(ignored, None), None);
        }
    }
}
