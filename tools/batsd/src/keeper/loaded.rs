//! Reads the configuration and the keys that it names.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail};
use openbats::{Fingerprint, Identity, PresharedKey};

use super::{Source, first_use};
use crate::channel::Setup;
use crate::config::Config;
use crate::limited_file;

/// Longest identity or pre-shared key: a chain of certificates in PEM has some KiB.
const MAX_IDENTITY: u64 = 1 << 20;

/// The configuration with the files that it names.
pub(super) struct Loaded {
    pub(super) config: Config,
    pub(super) setup: Setup,
    /// Recorded certificates that are not used, with the reason, by the names of the neighbours.
    pub(super) refused: BTreeMap<String, String>,
    own: Fingerprint,
}

impl Loaded {
    /// The certificate of this node.
    pub(super) fn own(&self) -> Fingerprint {
        self.own
    }

    /// Reports the recorded certificates that are not used.
    pub(super) fn report_refused(&self) {
        for (name, reason) in &self.refused {
            eprintln!("batsd: the recorded certificate of {name} is not used: {reason}");
        }
    }

    /// The configuration with the certificate of one more neighbour.
    ///
    /// # Errors
    /// It cannot have this certificate.
    pub(super) fn with(&self, name: &str, print: Fingerprint) -> anyhow::Result<Self> {
        if print == self.own {
            bail!("it has the certificate of this node");
        }
        let mut setup = self.setup.clone();
        setup.known.insert(name.to_owned(), print.0);
        let config =
            Config::parse_with(&setup.path, &setup.text, &setup.known).with_context(|| {
                format!("the configuration cannot have its certificate sha256:{print}")
            })?;
        Ok(Self { config, setup, refused: self.refused.clone(), own: self.own })
    }
}

pub(super) fn load(source: &Source) -> anyhow::Result<Loaded> {
    // The worker gets the text that was checked here.
    let read = source.read()?;
    let config = match source {
        Source::File(path) => Config::parse(path, &read.text)?,
        _ => Config::parse_translated(source.path(), &read.text)?,
    };
    let identity = match read.identity {
        Some(identity) => identity,
        None => read_identity(&config.identity)?,
    };
    let own = Identity::from_pem(&config.identity.display().to_string(), identity.as_bytes())?;
    let own = own.fingerprint();
    let preshared_key = match &config.preshared_key {
        Some(path) => {
            let key = read_key(path, "the pre-shared key", " on all nodes", "")?;
            key.trim()
                .parse::<PresharedKey>()
                .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
            Some(key)
        }
        None => None,
    };
    let path = source.path().to_owned();
    let recorded = first_use::recorded(&config)?;
    let (config, known, refused) = first_use::with_known(&path, &read.text, own, recorded)?;
    let setup = Setup { path, text: read.text, identity, preshared_key, known };
    Ok(Loaded { config, setup, refused, own })
}

/// Reads a file with a key that the configuration names. Symbolic links are followed: the owner of the node has named
/// the file, and secrets of a container are links. `advice` is for a file that is missing.
fn read_key(path: &Path, key: &str, remedy: &str, advice: &str) -> anyhow::Result<String> {
    let failed = |error: std::io::Error| {
        let advice = if error.kind() == ErrorKind::NotFound { advice } else { "" };
        anyhow::anyhow!("cannot read {key} {}: {error}{advice}", path.display())
    };
    let file = File::open(path).map_err(failed)?;
    limited_file::check_key(&file, path, key, remedy)?;
    let text = limited_file::read_open_text(file, MAX_IDENTITY).map_err(failed)?;
    text.with_context(|| {
        format!("cannot read {key} {}: it is longer than {MAX_IDENTITY} bytes", path.display())
    })
}

fn read_identity(path: &Path) -> anyhow::Result<String> {
    let advice = format!(": `batsctl keygen {}` makes it", path.display());
    read_key(path, "the identity", "", &advice)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn identities_have_a_limited_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.pem");
        std::fs::write(&path, vec![b'\n'; MAX_IDENTITY as usize + 1]).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        let error = read_identity(&path).unwrap_err().to_string();
        assert!(error.contains("longer than 1048576 bytes"), "{error}");
        // A device without an end, which all users may read.
        let error = read_identity(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(error.contains("/dev/zero has the mode 0666"), "{error}");
        let error = read_identity(Path::new("/nonexistent/node.pem")).unwrap_err().to_string();
        assert!(error.contains("`batsctl keygen"), "{error}");
    }
}
