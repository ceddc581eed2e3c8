//! Validates file names from peers: only plain names that stay in the receiver's directory.

use std::path::Path;

use super::FileError;

/// Longest name in bytes that file systems allow.
const MAX_NAME: usize = 255;
/// Longest name that leaves space for the prefix and suffixes of temporary files.
pub(super) const MAX_WITH_SUFFIX: usize = MAX_NAME - 24;

/// The last component of a path, as the name for the peer.
pub(super) fn from_path(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// Suffix of temporary files; their names begin with a dot.
pub(super) const TEMPORARY_SUFFIX: &str = ".part";

/// Whether a name has the form of a temporary file's.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY_SUFFIX)
}

/// Refuses names that are invalid, leave the directory, are hidden or are misleading.
pub(super) fn check(name: &str) -> Result<(), FileError> {
    match name.starts_with('.') && name != "." && name != ".." {
        true => Err(refused(name, "it is hidden")),
        false => check_nested(name),
    }
}

fn refused(name: &str, problem: &'static str) -> FileError {
    FileError::Name { name: name.escape_debug().to_string(), problem }
}

/// Like [`check`], for names within a transferred directory: hidden files are allowed there, but
/// not the names of temporary files.
pub(super) fn check_nested(name: &str) -> Result<(), FileError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name == "." || name == ".." {
        "it is a directory"
    } else if name.contains(['/', '\\']) {
        "it contains a path separator"
    } else if name.chars().any(char::is_control) {
        "it contains control characters"
    } else if is_temporary(name) {
        "it is the name of a temporary file"
    } else if name.len() > MAX_WITH_SUFFIX {
        "it is too long"
    } else {
        return Ok(());
    };
    Err(refused(name, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_accepted() {
        for good in ["a", "a.b", "with space", "Füße.tar.gz", "a..b", &"x".repeat(MAX_WITH_SUFFIX)]
        {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "../a",
            "a/b",
            "/etc/passwd",
            "a\\b",
            "a\0b",
            "a\nb",
            "\u{1b}[2J",
            ".bashrc",
            &"x".repeat(MAX_WITH_SUFFIX + 1),
        ] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        for good in [".bashrc", "..x", "...", ".part.x", "x.part"] {
            assert!(check_nested(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", ".x.part", "..part", ".a\nb", ".x.sha256sum.part"] {
            assert!(check_nested(bad).is_err(), "{bad:?}");
        }
        assert_eq!(from_path(Path::new("/a/b.c")).as_deref(), Some("b.c"));
        assert_eq!(from_path(Path::new("/")), None);
    }
}
