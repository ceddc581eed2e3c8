//! Files of a limited length. Devices and pipes have no size, so the limit counts what is read.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, bail};

/// Reads a file; `None` if it is longer than `most` bytes.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read(file: File, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= most).then_some(bytes))
}

/// As [`read`], for text.
///
/// # Errors
/// It cannot be read, or is not UTF-8.
pub(crate) fn read_text(path: &Path, most: u64) -> io::Result<Option<String>> {
    read_open_text(File::open(path)?, most)
}

/// As [`read_text`], for an open file.
///
/// # Errors
/// As those of [`read_text`].
pub(crate) fn read_open_text(file: File, most: u64) -> io::Result<Option<String>> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    read(file, most)?.map(String::from_utf8).transpose().map_err(invalid)
}

/// Refuses an open file with a key that all users may read, see [`openbats::key_exposure`]. Its owner may be any user: the
/// keeper of root reads keys of the service's user. `batsctl keygen` gives the group of the service 0640.
///
/// # Errors
/// All users may read it, or its mode is not available.
pub(crate) fn check_key(file: &File, path: &Path, key: &str, remedy: &str) -> anyhow::Result<()> {
    let exposure = openbats::key_exposure(file, path, key, remedy);
    let path = path.display();
    match exposure.with_context(|| format!("cannot read {path}"))? {
        Some(problem) => bail!("{path} {problem}"),
        None => Ok(()),
    }
}
