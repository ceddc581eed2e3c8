//! The directory for files that programs of a user keep between runs (XDG base directory specification), and how such files
//! are opened and checked.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The state directory of this software, if the user has one.
pub(crate) fn directory(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The specification ignores relative paths.
    let directory =
        |name| variable(name).map(PathBuf::from).filter(|directory| directory.is_absolute());
    let state = directory("XDG_STATE_HOME")
        .or_else(|| Some(directory("HOME")?.join(".local").join("state")))?;
    Some(state.join("openbats"))
}

/// Opens a file without waiting for the other end of a pipe.
///
/// A file in the state directory was created by this software, so it is no symbolic link; one there is not
/// followed. Files that the user named elsewhere may be links: those of a mounted volume of Kubernetes are.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let own = directory(|name| std::env::var_os(name));
    let is_followed = own.is_none() || path.parent() != own.as_deref();
    let flags = if is_followed { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = (flags | OFlags::NONBLOCK).bits() as i32;
    options.custom_flags(flags).open(path).map_err(|error| match error.raw_os_error() {
        Some(code) if !is_followed && code == rustix::io::Errno::LOOP.raw_os_error() => {
            io::Error::other("it is a symbolic link: replace it by the file to which it leads")
        }
        _ => error,
    })
}

/// Checks that an open file is a regular one, and that it belongs to this user or to root: others could change it.
/// Returns its metadata, or the problem.
pub(crate) fn check(file: &File) -> io::Result<Result<Metadata, String>> {
    let metadata = file.metadata()?;
    let user = rustix::process::geteuid().as_raw();
    Ok(match metadata.uid() {
        _ if !metadata.is_file() => Err("it is not a regular file".into()),
        owner if owner != user && owner != 0 => Err(format!(
            "its owner, the user {owner}, is neither this one nor root: run this as that user, or use \
             chown {user}, after you have checked it, or remove it"
        )),
        _ => Ok(metadata),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_users_are_refused_and_those_of_this_user_are_not() {
        let path = std::env::temp_dir().join(format!("openbats-owner-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let checked = || check(&File::open(&path).unwrap()).unwrap();
        assert!(checked().is_ok());
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
            let problem = checked().unwrap_err();
            assert!(problem.contains("65534") && problem.contains("chown 0"), "{problem}");
        }
        std::fs::remove_file(&path).unwrap();
        let device = check(&File::open("/dev/null").unwrap()).unwrap();
        assert_eq!(device.unwrap_err(), "it is not a regular file");
    }
}
