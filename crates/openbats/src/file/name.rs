//! Validates file names from peers: only plain names that stay in the receiver's directory.

use std::path::Path;

use super::FileError;

/// Longest name in bytes that file systems allow.
pub(super) const MAX_NAME: usize = 255;
/// Longest name whose temporary file contains it whole, with prefix and suffixes. The temporary
/// files of longer names contain their beginning and a hash.
const MAX_WITH_SUFFIX: usize = MAX_NAME - 24;
/// Bytes of the beginning of such a name.
const SHORTENED: usize = MAX_WITH_SUFFIX - 17;

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

/// The name of a temporary file for `name`; with `random` one that no other transfer uses, otherwise
/// one that other programs do not use.
pub(super) fn temporary(name: &str, random: Option<u64>) -> String {
    let mark = random.map_or_else(|| ".openbats".to_owned(), |random| format!(".{random:016x}"));
    let shortened = (name.len() > MAX_WITH_SUFFIX).then(|| {
        let end = (0..=SHORTENED).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        let hash = blake3::hash(name.as_bytes()).to_hex();
        format!("{}.{}", &name[..end], &hash[..16])
    });
    format!(".{}{mark}{TEMPORARY_SUFFIX}", shortened.as_deref().unwrap_or(name))
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
    } else if name.len() > MAX_NAME {
        "it is longer than 255 bytes"
    } else {
        return Ok(());
    };
    Err(refused(name, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_fit_and_differ() {
        let mut seen = std::collections::BTreeSet::new();
        for length in 1..=MAX_NAME {
            for letters in ["x", "é", "語"] {
                let mut name = letters.repeat(length / letters.len());
                name.push_str(&"y".repeat(length - name.len()));
                for random in [None, Some(u64::MAX)] {
                    let temporary = temporary(&name, random);
                    assert!(temporary.len() <= MAX_NAME, "{length}: {temporary}");
                    assert!(is_temporary(&temporary), "{temporary}");
                    seen.insert((name.clone(), random, temporary));
                }
            }
        }
        let names: std::collections::BTreeSet<_> = seen.iter().map(|(.., name)| name).collect();
        assert_eq!(names.len(), seen.len());
        assert_eq!(temporary("a.b", None), ".a.b.openbats.part");
        assert_eq!(temporary("a.b", Some(10)), ".a.b.000000000000000a.part");
    }

    #[test]
    fn only_plain_names_are_accepted() {
        for good in ["a", "a.b", "with space", "Füße.tar.gz", "a..b", &"x".repeat(MAX_NAME)] {
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
            &"x".repeat(MAX_NAME + 1),
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
