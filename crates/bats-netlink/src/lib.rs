//! Interfaces, addresses and routes by rtnetlink. All sockets belong to the network namespace of the
//! thread that opened them.
#![deny(missing_docs)]

mod change;
mod lookup;
mod monitor;
mod socket;

pub use change::PROTOCOL;
pub use lookup::HostRoutes;
pub use monitor::{Change, Monitor};
pub use socket::Netlink;
