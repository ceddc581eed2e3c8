//! The identity of a server in a file, so that it is the same after a restart.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::identity::{Identity, read_file};
use crate::identity_error::IdentityError;
use crate::state_directory;

impl Identity {
    /// Reads the identity in a file, or generates one for these names and writes it there, with the
    /// permissions 0600. Several processes may do so at the same time and get the same identity.
    ///
    /// # Errors
    /// The file cannot be read or written, holds no identity, belongs neither to this user nor to root, or others
    /// than its owner may read it. A symbolic link is followed, but not in the state directory of this software
    /// ([`file_of_user`](Self::file_of_user)).
    pub fn load_or_generate(path: impl AsRef<Path>, names: &[&str]) -> Result<Self, IdentityError> {
        let path = path.as_ref();
        if let Some(identity) = Self::load(path)? {
            return Ok(identity);
        }
        let identity = Self::generate(names)?;
        let missing = || IdentityError::Read {
            path: path.display().to_string(),
            source: io::ErrorKind::NotFound.into(),
        };
        match write(path, &identity.to_pem()) {
            Ok(()) => Ok(identity),
            // Another process was faster: its identity counts.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Self::load(path)?.ok_or_else(missing)
            }
            Err(source) => Err(IdentityError::Write { path: path.display().to_string(), source }),
        }
    }

    /// Reads the identity in a file, if there is one. The open file is checked, not what the path leads to later.
    fn load(path: &Path) -> Result<Option<Self>, IdentityError> {
        let name = path.display().to_string();
        let failed = |source| IdentityError::Read { path: name.clone(), source };
        let unusable = |problem| IdentityError::Content { path: name.clone(), problem };
        let file = match state_directory::open(OpenOptions::new().read(true), path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let metadata = state_directory::check(&file).map_err(failed)?.map_err(unusable)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(unusable(
                "others than its owner may use the private key: use chmod 600, or remove the file if \
                 they could have read it"
                    .into(),
            ));
        }
        Self::from_pem(&name, &read_file(file, path)?).map(Some)
    }

    /// The certificates and the private key in PEM.
    pub(crate) fn to_pem(&self) -> String {
        let mut blocks: Vec<pem::Pem> = self
            .certificates()
            .iter()
            .map(|certificate| pem::Pem::new("CERTIFICATE", certificate.clone()))
            .collect();
        blocks.push(pem::Pem::new("PRIVATE KEY", self.private_key()));
        pem::encode_many(&blocks)
    }
}

/// Writes a new file, which appears complete or not at all.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(io::Error::other)?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{:016x}", u64::from_ne_bytes(random)));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
    // A link does not replace a file that exists.
    let linked = written.and_then(|()| fs::hard_link(&temporary, path));
    let _ = fs::remove_file(&temporary);
    linked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn an_identity_is_generated_once_and_kept() {
        let directory = std::env::temp_dir().join(format!("openbats-id-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let path = directory.join("state/identity.pem");
        let barrier = Barrier::new(8);
        let prints: Vec<_> = std::thread::scope(|scope| {
            let load = || {
                barrier.wait();
                Identity::load_or_generate(&path, &["localhost"]).unwrap().fingerprint()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(prints.iter().all(|print| *print == prints[0]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Identity::load_or_generate(&path, &["localhost"]).unwrap();
        assert_eq!(again.fingerprint(), prints[0]);

        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Identity::load_or_generate(&path, &["localhost"]).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "nonsense").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Identity::load_or_generate(&path, &["localhost"]).is_err(), "must not replace it");
        assert!(Identity::load_or_generate("/proc/none/identity.pem", &["x"]).is_err());
        fs::remove_dir_all(&directory).unwrap();
    }
}
