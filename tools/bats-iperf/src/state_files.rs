//! Files that the program keeps between runs: the identity of servers, and the known servers of
//! clients.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use openbats::{Identity, IdentityError, KnownHosts, Trust};

use crate::cli::Options;
use crate::console::Console;

/// A file in the user's state directory (XDG base directory specification), if there is one.
fn path(name: &str) -> Option<PathBuf> {
    let directory = |variable: &str| {
        // The specification ignores relative paths.
        std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
    };
    let state = directory("XDG_STATE_HOME")
        .or_else(|| Some(directory("HOME")?.join(".local").join("state")))?;
    Some(state.join("openbats").join(name))
}

/// The identity of a server: that of `--certificate`, or one that all servers of this user share.
///
/// # Errors
/// A certificate or key cannot be read.
pub(crate) fn identity(options: &Options, console: &Console) -> Result<Identity> {
    if let (Some(certificate), Some(key)) = (&options.certificate, &options.key) {
        return Ok(Identity::from_pem_files(certificate, key)?);
    }
    let names = ["localhost"];
    let why = match path("identity.pem") {
        None => "there is no home directory".to_owned(),
        Some(path) => match Identity::load_or_generate(path, &names) {
            Err(error @ IdentityError::Write { .. }) => error.to_string(),
            other => return Ok(other?),
        },
    };
    console.note(&format!(
        "note: the server gets another certificate at its next start, which clients that know this \
         one will refuse: {why}. Use --certificate and --key"
    ));
    Ok(Identity::generate(&names)?)
}

/// Whom a server accepts; `None` for any client.
///
/// # Errors
/// The file of authorities cannot be read.
pub(crate) fn client_trust(options: &Options) -> Result<Option<Trust>> {
    if let Some(path) = &options.client_authorities {
        return Ok(Some(Trust::authorities(path)?));
    }
    let accepted = &options.client_fingerprint;
    Ok((!accepted.is_empty()).then(|| Trust::fingerprints(accepted.iter().copied())))
}

/// The identity that a client presents, if any.
///
/// # Errors
/// A certificate or key cannot be read or written.
pub(crate) fn client_identity(options: &Options, console: &Console) -> Result<Option<Identity>> {
    if let (Some(certificate), Some(key)) = (&options.certificate, &options.key) {
        return Ok(Some(Identity::from_pem_files(certificate, key)?));
    }
    if !options.identify {
        return Ok(None);
    }
    let Some(path) = path("identity.pem") else {
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
        match (&options.fingerprint, &options.authorities) {
            (Some(fingerprint), _) => return Ok(fixed(Trust::fingerprint(*fingerprint))),
            (None, Some(path)) => return Ok(fixed(Trust::authorities(path)?)),
            (None, None) => {}
        }
        if options.no_known_hosts {
            console.note("note: the server is not authenticated (--no-known-hosts)");
            return Ok(fixed(Trust::dangerous_any()));
        }
        let Some(path) = options.known_hosts.clone().or_else(|| path("known_hosts")) else {
            if options.require_known_host {
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
        let mut known_hosts = KnownHosts::new(path).name(&name);
        if options.require_known_host {
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
