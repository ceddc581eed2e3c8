//! Changes of links and routes at run time.

use std::net::Ipv4Addr;

use clap::Subcommand;
use serde_json::{Value, json};

#[derive(Subcommand)]
pub(crate) enum LinkChange {
    /// Open a link.
    Add {
        /// A new name.
        name: String,
        /// Address or host name of the neighbour with its port, such as 192.0.2.7:4900.
        #[arg(long)]
        remote: String,
        /// Its fingerprint, which `batsctl share` prints there.
        #[arg(long)]
        fingerprint: String,
        /// Local address to leave from.
        #[arg(long)]
        local: Option<String>,
        /// Interface to leave through, whatever the routes say.
        #[arg(long)]
        interface: Option<String>,
        /// Forward the neighbour's packets to other nodes.
        #[arg(long)]
        transit: bool,
    },
    /// Close a link that this node opened.
    Del {
        /// Its name.
        name: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum RouteChange {
    /// Use links for a node, in addition to those that it has.
    Add {
        /// ID of the node.
        to: Ipv4Addr,
        /// Names of links, each with ":" and a tier if that is not 0.
        #[arg(required = true)]
        via: Vec<String>,
    },
    /// Use links no more for a node.
    Del {
        /// ID of the node.
        to: Ipv4Addr,
        /// Names of links; without any, the route is removed.
        via: Vec<String>,
    },
}

impl LinkChange {
    /// Method and parameters.
    pub(crate) fn call(&self) -> (&'static str, Value) {
        match self {
            Self::Add { name, remote, fingerprint, local, interface, transit } => (
                "LinkAdd",
                json!({
                    "name": name, "remote": remote, "fingerprint": fingerprint, "local": local,
                    "interface": interface, "transit": transit,
                }),
            ),
            Self::Del { name } => ("LinkDel", json!({ "name": name })),
        }
    }
}

impl RouteChange {
    /// Method and parameters.
    pub(crate) fn call(&self) -> (&'static str, Value) {
        let (method, to, via) = match self {
            Self::Add { to, via } => ("RouteAdd", to, via),
            Self::Del { to, via } => ("RouteDel", to, via),
        };
        (method, json!({ "to": to.to_string(), "via": via }))
    }
}
