//! Options that choose the IP family.

use clap::Args;

/// The IP family of all sockets.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddressFamilyOptions {
    /// Only use IPv4.
    #[arg(short = '4', long, alias = "version4", conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,

    /// Only use IPv6.
    #[arg(short = '6', long, alias = "version6")]
    pub(crate) ipv6: bool,
}
