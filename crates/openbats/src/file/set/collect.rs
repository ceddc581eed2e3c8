//! Finds the files to send and their names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::sha256sum;
use crate::file::storage::local;
use crate::file::{FileError, name};

/// A file or directory to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its local path.
    pub source: PathBuf,
    /// Name for the receiver, with `/` between the components.
    pub name: String,
    /// Size in bytes when it was found; 0 for a directory.
    pub size: u64,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The SHA-256 hash from the file `NAME.sha256sum` next to it, if there is one.
    pub sha256: Option<[u8; 32]>,
}

/// A file or directory that is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its local path.
    pub path: PathBuf,
    /// Why it is not sent.
    pub reason: String,
    /// It should have been sent; false for links and devices within a directory.
    pub is_failure: bool,
}

/// Files and directories to send, with distinct names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileSet {
    entries: Vec<Entry>,
    skipped: Vec<Skipped>,
}

impl FileSet {
    /// Collects the files of these paths, directories with all their content. A path that is given
    /// twice counts once. If a file has a `FILE.sha256sum`, its hash is sent with the file, and the
    /// hash file is not sent separately.
    ///
    /// # Errors
    /// Two paths would have the same name.
    pub fn collect<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Self, FileError> {
        let mut set = Self::default();
        let mut known = BTreeSet::new();
        for path in paths {
            let before = set.entries.len();
            set.add(path.as_ref(), &known);
            known.extend(set.entries[before..].iter().map(|entry| entry.source.clone()));
        }
        let mut names: BTreeMap<&str, &Entry> = BTreeMap::new();
        for entry in &set.entries {
            if let Some(other) = names.insert(&entry.name, entry) {
                return Err(FileError::SameName {
                    first: other.source.clone(),
                    second: entry.source.clone(),
                });
            }
        }
        let hash_files: BTreeSet<PathBuf> = set
            .entries
            .iter()
            .filter(|entry| entry.sha256.is_some())
            .map(|entry| sha256sum::hash_path(&entry.source))
            .collect();
        set.entries.retain(|entry| !hash_files.contains(&entry.source));
        Ok(set)
    }

    /// Returns the files and directories to send.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns those that are not sent.
    #[must_use]
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Returns the size of all files in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries.iter().fold(0, |sum, entry| sum.saturating_add(entry.size))
    }

    fn skip(&mut self, path: &Path, reason: impl Into<String>, is_failure: bool) {
        self.skipped.push(Skipped { path: path.to_owned(), reason: reason.into(), is_failure });
    }

    /// Adds a path of the caller; symbolic links are followed.
    fn add(&mut self, path: &Path, known: &BTreeSet<PathBuf>) {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => return self.skip(path, local("read", path, error).to_string(), true),
        };
        // `.` and `a/..` get the names of the directories that they refer to.
        let named = match path.file_name() {
            Some(name) => Some(name.to_owned()),
            None => fs::canonicalize(path).ok().and_then(|x| Some(x.file_name()?.to_owned())),
        };
        let Some(name) = named.as_deref().and_then(|name| name.to_str()) else {
            return self.skip(path, "it has no name that can be sent", true);
        };
        if known.contains(path) {
            return;
        }
        if metadata.is_dir() {
            self.add_directory(path, name);
        } else if metadata.is_file() {
            self.add_file(path, name.to_owned(), metadata.len());
        } else {
            self.skip(path, format!("{} is not a regular file", path.display()), true);
        }
    }

    fn add_file(&mut self, path: &Path, name: String, size: u64) {
        match sha256sum::read(path) {
            Ok(sha256) => self.entries.push(Entry {
                source: path.to_owned(),
                name,
                size,
                is_directory: false,
                sha256,
            }),
            Err(reason) => self.skip(path, reason, true),
        }
    }

    fn add_directory(&mut self, path: &Path, name: &str) {
        let mut waiting = vec![(path.to_owned(), name.to_owned())];
        while let Some((path, name)) = waiting.pop() {
            let listed =
                fs::read_dir(&path).and_then(|entries| entries.collect::<Result<Vec<_>, _>>());
            let mut listed = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    self.skip(&path, local("read", &path, error).to_string(), true);
                    continue;
                }
            };
            listed.sort_by_key(fs::DirEntry::file_name);
            self.entries.push(Entry {
                source: path,
                name: name.clone(),
                size: 0,
                is_directory: true,
                sha256: None,
            });
            let mut directories = Vec::new();
            for entry in listed {
                let path = entry.path();
                let Ok(metadata) = entry.metadata() else {
                    self.skip(&path, "it was removed", true);
                    continue;
                };
                let file_name = entry.file_name();
                let Some(file_name) = file_name.to_str() else {
                    self.skip(&path, "its name is not UTF-8", true);
                    continue;
                };
                if metadata.is_file() && name::is_temporary(file_name) {
                    self.skip(&path, "it is the temporary file of an interrupted transfer", false);
                    continue;
                }
                let name = format!("{name}/{file_name}");
                if metadata.is_dir() {
                    directories.push((path, name));
                } else if metadata.is_file() {
                    self.add_file(&path, name, metadata.len());
                } else if metadata.is_symlink() {
                    self.skip(&path, "it is a symbolic link", false);
                } else {
                    self.skip(&path, "it is not a regular file", false);
                }
            }
            waiting.extend(directories.into_iter().rev());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("openbats-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("d/sub/empty")).unwrap();
            Self(path)
        }

        fn write(&self, name: &str, content: &str) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn names(set: &FileSet) -> Vec<&str> {
        set.entries().iter().map(|entry| entry.name.as_str()).collect()
    }

    #[test]
    fn directories_are_collected_with_their_content() {
        let scratch = Scratch::new("collect");
        scratch.write("d/b", "12");
        scratch.write("d/a", "");
        scratch.write("d/sub/c", "345");
        scratch.write("d/sub/.dot", "");
        scratch.write("d/.large.part", "some of it");
        std::os::unix::fs::symlink("/etc/passwd", scratch.0.join("d/link")).unwrap();
        let set = FileSet::collect([scratch.0.join("d"), scratch.0.join("d")]).unwrap();
        assert_eq!(
            names(&set),
            ["d", "d/a", "d/b", "d/sub", "d/sub/.dot", "d/sub/c", "d/sub/empty"]
        );
        assert_eq!(set.bytes(), 5);
        assert_eq!(set.skipped().len(), 2);
        assert!(set.skipped().iter().all(|skipped| !skipped.is_failure), "{set:?}");
    }

    #[test]
    fn equal_names_are_refused_and_missing_files_reported() {
        let scratch = Scratch::new("same");
        let first = scratch.write("x", "1");
        let second = scratch.write("d/x", "2");
        assert!(FileSet::collect([&first, &second]).is_err());
        let set = FileSet::collect([first.clone(), scratch.0.join("none"), first]).unwrap();
        assert_eq!(names(&set), ["x"]);
        assert!(set.skipped()[0].is_failure && set.skipped()[0].reason.contains("none"));
    }

    #[test]
    fn hash_files_are_sent_with_their_files() {
        let scratch = Scratch::new("side");
        let hash = "ab".repeat(32);
        scratch.write("d/x.bin", "1");
        scratch.write("d/x.bin.sha256sum", &format!("{hash}  x.bin\n"));
        scratch.write("d/alone.sha256sum", "whatever");
        let set = FileSet::collect([scratch.0.join("d")]).unwrap();
        assert_eq!(names(&set), ["d", "d/alone.sha256sum", "d/x.bin", "d/sub", "d/sub/empty"]);
        assert_eq!(set.entries()[2].sha256, Some([0xab; 32]));
        scratch.write("d/x.bin.sha256sum", "nonsense");
        let set = FileSet::collect([scratch.0.join("d/x.bin")]).unwrap();
        assert!(set.entries().is_empty() && set.skipped()[0].is_failure, "{set:?}");
    }
}
