//! Options of the credentials of this side.

use std::path::PathBuf;

use clap::Args;

/// What this side proves itself with.
#[derive(Clone, Debug, Args)]
pub(crate) struct CredentialOptions {
    /// Pre-shared key (PSK) mode: only communicate with peers that have the key in this file, 64
    /// hexadecimal digits as made by `openssl rand -hex 32`. A file that all users can read is
    /// refused. A server with a key does not answer packets without it, and a client without the key
    /// gets no answer. A server then takes modes 0 to 3 only; there are no baselines.
    #[arg(long, value_name = "FILE")]
    pub(crate) closed_key: Option<PathBuf>,

    /// Certificate chain in PEM. By default a server uses the identity in
    /// ~/.local/state/openbats/identity.pem, which the first server generates, and prints its
    /// fingerprint. A client presents it to a server that asks for one.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,

    /// Private key of --certificate in PEM.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
}
