//! Options of the sockets.

use clap::Args;

use super::dscp;

/// The local address and the marks of the packets of this side.
#[derive(Clone, Debug, Args)]
pub(crate) struct SocketOptions {
    /// Interface or address to listen on (server) or to send from (client). For an interface, its
    /// first address is used, IPv4 before IPv6. Without this option a server listens on all IPv4
    /// and IPv6 addresses.
    #[arg(
        short = 'I',
        long,
        value_name = "INTERFACE",
        visible_short_alias = 'B',
        visible_alias = "bind"
    )]
    pub(crate) interface: Option<String>,

    /// Bind all sockets of every mode to this network interface (SO_BINDTODEVICE), regardless of
    /// the routing table.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) bind_dev: Option<String>,

    /// Set the IP DSCP value of all packets of this side: ef, af21, cs1 or 0 to 63. Each side marks
    /// only its own packets.
    #[arg(long, value_name = "DSCP", value_parser = dscp::parse_dscp, conflicts_with = "tos")]
    pub(crate) dscp: Option<u8>,

    /// Set the IP type of service: the DSCP as the whole header byte, 184 for ef.
    #[arg(short = 'S', long, value_name = "BYTE", value_parser = dscp::parse_tos)]
    pub(crate) tos: Option<u8>,
}

impl SocketOptions {
    /// The DSCP of packets that this side sends.
    pub(crate) fn code_point(&self) -> u8 {
        self.dscp.or(self.tos).unwrap_or(0)
    }
}
