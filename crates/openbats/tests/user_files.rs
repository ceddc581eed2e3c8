//! Files of users that are not what this software has created: symbolic links, and files of other users.

#[path = "common/skip.rs"]
mod skip;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use openbats::{Fingerprint, Identity, KnownHosts};
use skip::skipped;

const ROLE: &str = "OPENBATS_TEST_USER_FILES";
const PRINT: Fingerprint = Fingerprint([7; 32]);

/// Runs a test in a process with a state directory of its own. Returns the directory in that process.
fn state_directory(test: &str) -> Option<PathBuf> {
    if std::env::var(ROLE).is_ok_and(|role| role == test) {
        return Some(std::env::var_os("XDG_STATE_HOME").unwrap().into());
    }
    let scratch = std::env::temp_dir().join(format!("openbats-{test}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(scratch.join("openbats")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(ROLE, test).env("XDG_STATE_HOME", &scratch);
    let status = command.status().unwrap();
    fs::remove_dir_all(&scratch).unwrap();
    assert!(status.success(), "the error is above");
    None
}

fn identity(path: &Path) -> Result<Fingerprint, String> {
    let loaded = Identity::load_or_generate(path, &["localhost"]);
    loaded.map(|identity| identity.fingerprint()).map_err(|error| error.to_string())
}

fn known_hosts(path: &Path) -> Result<Vec<Fingerprint>, String> {
    KnownHosts::new(path).fingerprints("a:1").map_err(|error| error.to_string())
}

#[test]
fn symbolic_links_are_followed_except_in_the_state_directory() {
    let test = "symbolic_links_are_followed_except_in_the_state_directory";
    let Some(state) = state_directory(test) else { return };
    let (key, hosts) = (state.join("key.pem"), state.join("hosts"));
    let print = identity(&key).unwrap();
    assert!(KnownHosts::new(&hosts).check("a:1", PRINT).unwrap());
    // Files that were named elsewhere.
    let (key_link, hosts_link) = (state.join("key-link"), state.join("hosts-link"));
    symlink(&key, &key_link).unwrap();
    symlink(&hosts, &hosts_link).unwrap();
    assert_eq!(identity(&key_link), Ok(print));
    assert_eq!(known_hosts(&hosts_link), Ok(vec![PRINT]));
    // Those that this software creates.
    let own = Identity::file_of_user().unwrap();
    symlink(&key, &own).unwrap();
    let error = identity(&own).unwrap_err();
    assert!(error.contains("symbolic link: replace it"), "{error}");
    assert!(Identity::of_user(&["localhost"]).is_err());
    let own = KnownHosts::of_user().unwrap();
    for target in [hosts, state.join("missing")] {
        symlink(&target, own.path()).unwrap();
        let error = own.check("b:1", PRINT).unwrap_err().to_string();
        assert!(error.contains("symbolic link: replace it"), "{error}");
        fs::remove_file(own.path()).unwrap();
    }
    assert!(!state.join("missing").exists(), "a link must not create a file elsewhere");
}

#[test]
fn files_of_other_users_are_refused() {
    let Some(state) = state_directory("files_of_other_users_are_refused") else { return };
    if !rustix::process::geteuid().is_root() {
        return skipped("files of other users", "only root can give files away");
    }
    let (key, hosts) = (state.join("key.pem"), state.join("hosts"));
    identity(&key).unwrap();
    KnownHosts::new(&hosts).check("a:1", PRINT).unwrap();
    for path in [&key, &hosts] {
        chown(path, Some(65_534), None).unwrap();
    }
    for error in [identity(&key).unwrap_err(), known_hosts(&hosts).unwrap_err()] {
        assert!(
            error.contains("neither this one nor root: run this as that user, or use chown 0"),
            "{error}"
        );
    }
}

#[test]
fn only_regular_files_are_identities() {
    let Some(state) = state_directory("only_regular_files_are_identities") else { return };
    let path = state.join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // A pipe without a writer must not be waited for.
    let error = identity(&path).unwrap_err();
    assert!(error.contains("not a regular file"), "{error}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    assert!(identity(&path).is_err());
}

/// CI sets the variable, so that it fails where a program or a right is missing.
#[test]
fn a_test_that_would_be_skipped_fails_where_nothing_may_be() {
    let test = "a_test_that_would_be_skipped_fails_where_nothing_may_be";
    if std::env::var(ROLE).is_ok_and(|role| role == test) {
        return skipped(test, "it plays a test that cannot run");
    }
    for (value, is_allowed) in [("1", false), ("0", true)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env(ROLE, test).env("OPENBATS_NO_SKIP", value);
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert_eq!(output.status.success(), is_allowed, "{text}");
        let word = if is_allowed { "SKIPPED " } else { "OPENBATS_NO_SKIP=1, but " };
        assert!(text.contains(&format!("{word}{test}")), "{text}");
        assert!(text.contains("it plays a test that cannot run"), "{text}");
    }
}
