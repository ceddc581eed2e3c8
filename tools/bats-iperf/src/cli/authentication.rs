//! Options of a client that authenticate the server.

use std::path::PathBuf;

use clap::Args;
use openbats::Fingerprint;

use super::headings::CLIENT;

/// How a client authenticates the server, and itself to the server.
#[derive(Clone, Debug, Args)]
pub(crate) struct AuthenticationOptions {
    /// Require this SHA-256 fingerprint of the server's certificate.
    #[arg(long, value_name = "HEX", conflicts_with = "authorities", help_heading = CLIENT)]
    pub(crate) fingerprint: Option<Fingerprint>,

    /// Require a server certificate that was issued by an authority in this PEM file.
    #[arg(long, value_name = "FILE", help_heading = CLIENT)]
    pub(crate) authorities: Option<PathBuf>,

    /// File with the certificate fingerprints of known servers, as ssh keeps one. A new server is
    /// added, and a server whose certificate has changed is refused. By default
    /// ~/.local/state/openbats/known_hosts.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fingerprint", "authorities"],
          help_heading = CLIENT)]
    pub(crate) known_hosts: Option<PathBuf>,

    /// Refuse servers that the file of known servers does not contain.
    #[arg(long, conflicts_with_all = ["fingerprint", "authorities"], help_heading = CLIENT)]
    pub(crate) require_known_host: bool,

    /// Do not authenticate the server, and do not use the file of known servers.
    #[arg(long, conflicts_with_all = ["fingerprint", "authorities", "known_hosts",
          "require_known_host"], help_heading = CLIENT)]
    pub(crate) no_known_hosts: bool,

    /// Present the certificate in ~/.local/state/openbats/identity.pem to a server that asks for one
    /// (--client-fingerprint). It is generated if it does not exist. --certificate presents another.
    #[arg(long, conflicts_with = "certificate", help_heading = CLIENT)]
    pub(crate) identify: bool,
}
