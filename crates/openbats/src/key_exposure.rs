//! Keys in files that all users of the host may use.
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
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bits of a file's mode for users who are neither its owner nor in its group. Services read keys as a group.
const OTHERS: u32 = 0o007;

/// Says what is wrong with the mode of an open file with a key that all users may use, and what to do; `None` if
/// they may not. The text goes on after the file's name: "has the mode 0644: all users may use ...". `key` names the
/// key, and `remedy` continues "a new key". Who owns the file does not matter.
///
/// # Errors
/// The mode is not available.
pub fn key_exposure(
    file: &File,
    path: &Path,
    key: &str,
    remedy: &str,
) -> io::Result<Option<String>> {
    let mode = file.metadata()?.mode();
    Ok((mode & OTHERS != 0).then(|| {
        format!(
            "has the mode {:04o}: all users may use {key}; use `chmod o= {}`, or a new key{remedy} if they could \
             have read it",
            mode & 0o7777,
            path.display()
        )
    }))
}

/// Warns of a key file that the program uses nevertheless, once in a process: each connection may read it again.
pub(crate) fn warn_once(file: &File, path: &Path, key: &str) -> io::Result<()> {
    static HAS_WARNED: AtomicBool = AtomicBool::new(false);
    if let Some(problem) = key_exposure(file, path, key, "")?
        && !HAS_WARNED.swap(true, Relaxed)
    {
        tracing::warn!("{} {problem}", path.display());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::identity::Identity;

    /// What is logged in this thread.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn keys_are_exposed_if_users_outside_the_group_may_use_them() {
        let path = std::env::temp_dir().join(format!("openbats-mode-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        for mode in [0o400, 0o600, 0o640, 0o660, 0o770] {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            assert_eq!(key_exposure(&file, &path, "the key", "").unwrap(), None, "{mode:o}");
        }
        for mode in [0o601, 0o602, 0o604, 0o644, 0o666, 0o777] {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            let problem = key_exposure(&file, &path, "the key", " on all nodes").unwrap().unwrap();
            let begin =
                format!("has the mode {mode:04o}: all users may use the key; use `chmod o= ");
            assert!(problem.starts_with(&begin), "{problem}");
            assert!(problem.contains("or a new key on all nodes if"), "{problem}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_private_key_that_all_users_may_read_is_used_with_one_warning() {
        let name = format!("openbats-exposed-{}.pem", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, Identity::generate(&["localhost"]).unwrap().to_pem()).unwrap();
        let allow = |mode| std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let lines = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
            allow(0o640);
            Identity::from_pem_files(&path, &path).unwrap();
            assert_eq!(lines(), "");
            allow(0o644);
            for _ in 0..2 {
                Identity::from_pem_files(&path, &path).unwrap();
                let text = lines();
                assert_eq!(text.lines().count(), 1, "{text}");
                assert!(text.contains(path.to_str().unwrap()), "{text}");
                assert!(text.contains("has the mode 0644: all users may use the private key"));
            }
        });
        std::fs::remove_file(&path).unwrap();
    }
}
