//! Files of a limited length. Devices and pipes have no size, so the limit counts what is read.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

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
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text");
    let bytes = read(File::open(path)?, most)?;
    bytes.map(String::from_utf8).transpose().map_err(invalid)
}
