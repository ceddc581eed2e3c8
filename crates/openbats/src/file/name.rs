//! Which names a peer may choose: plain ones, that stay in the receiver's directory.

use std::path::Path;

use super::FileError;

/// Bytes of a name at most; what file systems allow.
const MAX_NAME: usize = 255;
/// Room for the additions to a temporary file's name.
pub(super) const MAX_WITH_SUFFIX: usize = MAX_NAME - 24;

/// The last component of a path as the name for the other side.
pub(super) fn of(path: &Path) -> Option<String> {
    path.file_name().map(|name| name.to_string_lossy().into_owned())
}

/// What the names of our temporary files end with; they begin with a dot.
pub(super) const TEMPORARY: &str = ".part";

/// Whether a name is one of those that files have until they are whole.
pub(super) fn is_temporary(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(TEMPORARY)
}

/// Refuses names that are none, that could leave the directory, hide, or mislead.
pub(super) fn check(name: &str) -> Result<(), FileError> {
    match name.starts_with('.') && name != "." && name != ".." {
        true => Err(wrong(name, "it is hidden")),
        false => check_within(name),
    }
}

fn wrong(name: &str, problem: &'static str) -> FileError {
    FileError::Name { name: name.escape_debug().to_string(), problem }
}

/// As [`check`], within a directory that was sent: what it hides belongs to it. Names of our own
/// temporary files are none that others may give.
pub(super) fn check_within(name: &str) -> Result<(), FileError> {
    let problem = if name.is_empty() {
        "it is empty"
    } else if name == "." || name == ".." {
        "it is a directory"
    } else if name.contains(['/', '\\']) {
        "it contains a path separator"
    } else if name.chars().any(char::is_control) {
        "it contains control characters"
    } else if is_temporary(name) {
        "it is that of a file which is not whole"
    } else if name.len() > MAX_WITH_SUFFIX {
        "it is too long"
    } else {
        return Ok(());
    };
    Err(wrong(name, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_pass() {
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
            assert!(check_within(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", ".x.part", "..part", ".a\nb", ".x.sha256sum.part"] {
            assert!(check_within(bad).is_err(), "{bad:?}");
        }
        assert_eq!(of(Path::new("/a/b.c")).as_deref(), Some("b.c"));
        assert_eq!(of(Path::new("/")), None);
    }
}
