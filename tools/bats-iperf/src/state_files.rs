//! Files that the program keeps between runs: the identity of servers, and the known servers of
//! clients.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use openbats::{Identity, KnownHosts, Trust};

use crate::cli::Options;
use crate::console::Console;

/// The identity of a server: that of `--certificate`, or one that all servers of this user share.
///
/// # Errors
/// A certificate or key cannot be read.
pub(crate) fn identity(options: &Options, console: &Console) -> Result<Identity> {
    if let (Some(certificate), Some(key)) =
        (&options.credentials.certificate, &options.credentials.key)
    {
        return chosen_identity(certificate, key, console);
    }
    let (identity, why) = Identity::of_user(&["localhost"])?;
    if let Some(why) = why {
        console.note(&format!(
            "note: the server gets another certificate at its next start, which clients that know \
             this one will refuse: {why}. Use --certificate and --key"
        ));
    }
    Ok(identity)
}

/// The identity of `--certificate` and `--key`. Without `-d` or `-L` the log of the library is not written.
fn chosen_identity(certificate: &Path, key: &Path, console: &Console) -> Result<Identity> {
    let identity = Identity::from_pem_files(certificate, key)?;
    let exposure =
        File::open(key).and_then(|file| openbats::key_exposure(&file, key, "the private key", ""));
    if let Ok(Some(problem)) = exposure {
        console.note(&format!("note: {} {problem}", key.display()));
    }
    Ok(identity)
}

/// Whom a server accepts; `None` for any client.
///
/// # Errors
/// The file of authorities cannot be read.
pub(crate) fn client_trust(options: &Options) -> Result<Option<Trust>> {
    if let Some(path) = &options.service.client_authorities {
        return Ok(Some(Trust::authorities(path)?));
    }
    let accepted = &options.service.client_fingerprint;
    Ok((!accepted.is_empty()).then(|| Trust::fingerprints(accepted.iter().copied())))
}

/// The identity that a client presents, if any.
///
/// # Errors
/// A certificate or key cannot be read or written.
pub(crate) fn client_identity(options: &Options, console: &Console) -> Result<Option<Identity>> {
    if let (Some(certificate), Some(key)) =
        (&options.credentials.certificate, &options.credentials.key)
    {
        return chosen_identity(certificate, key, console).map(Some);
    }
    if !options.authentication.identify {
        return Ok(None);
    }
    let Some(path) = Identity::file_of_user() else {
        bail!("there is no home directory for --identify: use --certificate and --key");
    };
    let identity = Identity::load_or_generate(path, &["localhost"])?;
    console
        .note(&format!("note: the client's certificate fingerprint: {}", identity.fingerprint()));
    Ok(Some(identity))
}

/// How a client recognizes its server.
pub(crate) struct ServerTrust {
    pub(crate) trust: Trust,
    /// The file of known servers, the server's name in it, and whether it is new there.
    known_hosts: Option<(KnownHosts, String, bool)>,
}

impl ServerTrust {
    /// # Errors
    /// A certificate or the file of known servers cannot be read.
    pub(crate) fn new(options: &Options, host: &str, console: &Console) -> Result<Self> {
        let fixed = |trust| Self { trust, known_hosts: None };
        match (&options.authentication.fingerprint, &options.authentication.authorities) {
            (Some(fingerprint), _) => return Ok(fixed(Trust::fingerprint(*fingerprint))),
            (None, Some(path)) => return Ok(fixed(Trust::authorities(path)?)),
            (None, None) => {}
        }
        if options.authentication.no_known_hosts {
            console.note("note: the server is not authenticated (--no-known-hosts)");
            return Ok(fixed(Trust::dangerous_any()));
        }
        let chosen = options.authentication.known_hosts.clone().map(KnownHosts::new);
        let Some(known_hosts) = chosen.or_else(KnownHosts::of_user) else {
            if options.authentication.require_known_host {
                bail!("there is no home directory for known servers: use --known-hosts FILE");
            }
            console.note(
                "note: the server is not authenticated: there is no home directory for known \
                 servers (use --known-hosts FILE, --fingerprint or --authorities)",
            );
            return Ok(fixed(Trust::dangerous_any()));
        };
        // Signalling and data use two ports of one server, with one certificate.
        let name = match host.contains(':') {
            true => format!("[{host}]:{}", options.port),
            false => format!("{host}:{}", options.port),
        };
        let mut known_hosts = known_hosts.name(&name);
        if options.authentication.require_known_host {
            known_hosts = known_hosts.only_known();
        }
        let is_new = known_hosts.fingerprints(&name)?.is_empty();
        let trust = Trust::known_hosts(known_hosts.clone());
        Ok(Self { trust, known_hosts: Some((known_hosts, name, is_new)) })
    }

    /// Reports a server that was recorded with this connection.
    pub(crate) fn report(&self, connection: &openbats::Connection, console: &Arc<Console>) {
        let Some((known_hosts, name, true)) = &self.known_hosts else { return };
        if let Some(fingerprint) = connection.peer_fingerprint() {
            console.note(&format!(
                "note: recorded the new server {name} in {}, fingerprint {fingerprint}; compare it \
                 with the one that the server prints",
                known_hosts.path().display()
            ));
        }
    }
}
