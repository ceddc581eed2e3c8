//! The ID of a node, by which plans, routes and the owners of addresses name it.

use std::fmt;
use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// A node's ID: its IPv4 router ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeId(pub Ipv4Addr);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
