//! The directories that a transfer may write to.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::file::space::StorageLimits;
use crate::file::storage::local;
use crate::file::{FileError, name};

/// Maximum number of components of a name.
const MAX_DEPTH: usize = 64;

/// The directories that a transfer has created. Others are not written to unless `merges` is set: a
/// sender could otherwise place files such as hooks into a directory that other programs use. Even then
/// they must belong to this user or to root.
#[derive(Debug)]
pub(super) struct Directories {
    root: PathBuf,
    pub(super) merges: bool,
    /// The user of this process.
    user: u32,
    /// Limit of the number of created directories.
    pub(super) limit: usize,
    /// Their device and inode numbers: a sender chooses how long the paths are.
    created: Mutex<BTreeSet<(u64, u64)>>,
}

/// Refuses names that leave the directory or whose components are not allowed.
pub(in crate::file) fn check(name: &str) -> Result<(), FileError> {
    for (depth, component) in name.split('/').enumerate() {
        // Hidden names are allowed within a transferred directory, but not at the top level.
        match depth {
            0 => name::check(component)?,
            MAX_DEPTH.. => {
                let name = name.escape_debug().to_string();
                return Err(FileError::Name { name, problem: "it has too many components" });
            }
            _ => name::check_nested(component)?,
        }
    }
    Ok(())
}

impl Directories {
    pub(super) fn new(root: PathBuf, limit: usize) -> Self {
        let user = rustix::process::geteuid().as_raw();
        Self { root, merges: false, user, limit, created: Mutex::default() }
    }

    /// Returns the path of a name and creates missing parent directories. Symbolic links are not
    /// followed, so that the path cannot leave the directory.
    pub(super) fn place(&self, name: &str, limits: &StorageLimits) -> Result<PathBuf, FileError> {
        // Check the whole name before anything is created for it.
        check(name)?;
        let mut path = self.root.clone();
        let mut components = name.split('/').peekable();
        while let Some(component) = components.next() {
            path.push(component);
            if components.peek().is_some() {
                self.make(&path, limits)?;
            }
        }
        Ok(path)
    }

    /// Creates a directory, unless the transfer has created it already or may use existing ones.
    pub(super) fn make(&self, path: &Path, limits: &StorageLimits) -> Result<(), FileError> {
        // Locked until it is created: another connection of the transfer may need it, too.
        let mut created = self.created.lock().unwrap_or_else(PoisonError::into_inner);
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() && created.contains(&identity(&metadata)) => {
                return Ok(());
            }
            Ok(metadata) if metadata.is_dir() && self.merges => {
                // Other owners could put a link in the place of anything in it after this check.
                return match [0, self.user].contains(&metadata.uid()) {
                    true => Ok(()),
                    false => Err(FileError::ForeignDirectory(path.to_owned())),
                };
            }
            Ok(metadata) if metadata.is_dir() => {
                return Err(FileError::DirectoryExists(path.to_owned()));
            }
            Ok(_) => return Err(FileError::Exists(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(local("create", path, error)),
        }
        if created.len() >= self.limit {
            return Err(FileError::Protocol("more directories than announced"));
        }
        let mut charge = limits.take_directory(path.parent().unwrap_or(Path::new(".")))?;
        match fs::create_dir(path) {
            Ok(()) => {}
            // Another process has created it at this moment.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(FileError::DirectoryExists(path.to_owned()));
            }
            Err(error) => return Err(local("create", path, error)),
        }
        if let Some(charge) = &mut charge {
            charge.keep(0);
        }
        match path.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() => created.insert(identity(&metadata)),
            _ => return Err(FileError::Changed(path.to_owned())),
        };
        Ok(())
    }
}

fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::set::StorageBudget;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("openbats-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn names_have_a_limited_number_of_components() {
        let scratch = Scratch::new("depth");
        let directories = Directories::new(scratch.0.clone(), 1_000);
        let deep = |count: usize| vec!["d"; count].join("/");
        let error = directories.place(&deep(MAX_DEPTH + 1), &StorageLimits::default()).unwrap_err();
        assert!(error.to_string().contains("too many components"), "{error}");
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 0, "nothing is created for it");
        assert!(
            directories
                .place(&deep(MAX_DEPTH), &StorageLimits::default())
                .unwrap()
                .ends_with("d/d/d")
        );
    }

    #[test]
    fn only_created_directories_are_written_to_unless_merging() {
        let scratch = Scratch::new("merge");
        fs::create_dir_all(scratch.0.join("repository/.git/hooks")).unwrap();
        let mut directories = Directories::new(scratch.0.clone(), 1_000);
        for name in ["repository/.git/hooks/post-checkout", "repository/file"] {
            let error = directories.place(name, &StorageLimits::default()).unwrap_err();
            assert!(matches!(error, FileError::DirectoryExists(_)), "{error}");
        }
        directories.place("new/.git/hooks/x", &StorageLimits::default()).unwrap();
        directories.place("new/.git/hooks/y", &StorageLimits::default()).unwrap();
        directories.make(&scratch.0.join("new"), &StorageLimits::default()).unwrap();
        directories.merges = true;
        directories
            .place("repository/.git/hooks/post-checkout", &StorageLimits::default())
            .unwrap();
    }

    #[test]
    fn directories_of_other_users_are_not_merged_into() {
        let scratch = Scratch::new("owner");
        fs::create_dir_all(scratch.0.join("theirs/sub")).unwrap();
        let mut directories = Directories::new(scratch.0.clone(), 1_000);
        directories.merges = true;
        directories.place("theirs/sub/file", &StorageLimits::default()).unwrap();
        // Only root can give a directory away; to others their own one belongs if they are someone else.
        if directories.user == 0 {
            std::os::unix::fs::chown(scratch.0.join("theirs"), Some(65_534), None).unwrap();
        } else {
            directories.user += 1;
        }
        for name in ["theirs/file", "theirs/sub/file", "theirs/new/file"] {
            let error = directories.place(name, &StorageLimits::default()).unwrap_err();
            assert!(matches!(error, FileError::ForeignDirectory(_)), "{error}");
            assert!(error.to_string().contains("theirs belongs to another user"), "{error}");
        }
        assert!(!scratch.0.join("theirs/new").exists());
        // The root is the choice of the one who has started this.
        directories.place("own/file", &StorageLimits::default()).unwrap();
    }

    #[test]
    fn links_are_never_followed() {
        let (scratch, outside) = (Scratch::new("links"), Scratch::new("outside"));
        std::os::unix::fs::symlink(&outside.0, scratch.0.join("link")).unwrap();
        let mut directories = Directories::new(scratch.0.clone(), 1_000);
        for merges in [false, true] {
            directories.merges = merges;
            for name in ["link/file", "link/sub/file", "../x", "/etc/x", "a/../../x", "a//x", ""] {
                assert!(directories.place(name, &StorageLimits::default()).is_err(), "{name}");
            }
        }
        assert_eq!(fs::read_dir(&outside.0).unwrap().count(), 0);
        // A directory of the transfer that became a link.
        directories.place("made/file", &StorageLimits::default()).unwrap();
        fs::remove_dir(scratch.0.join("made")).unwrap();
        std::os::unix::fs::symlink(&outside.0, scratch.0.join("made")).unwrap();
        assert!(directories.place("made/file", &StorageLimits::default()).is_err());
    }

    #[test]
    fn the_number_of_created_directories_is_limited() {
        let scratch = Scratch::new("many");
        let directories = Directories::new(scratch.0.clone(), 3);
        directories.place("a/b/c/file", &StorageLimits::default()).unwrap();
        assert!(matches!(
            directories.place("a/b/d/file", &StorageLimits::default()),
            Err(FileError::Protocol(_))
        ));
        let limits =
            StorageLimits { budget: Some(StorageBudget::new(0)), ..StorageLimits::default() };
        let directories = Directories::new(scratch.0.clone(), 3);
        let error = directories.place("e/file", &limits).unwrap_err();
        assert!(matches!(error, FileError::OverBudget { .. }), "{error}");
    }
}
