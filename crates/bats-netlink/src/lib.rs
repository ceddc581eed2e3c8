//! Interfaces, addresses and routes by rtnetlink. All sockets belong to the network namespace of the
//! thread that opened them.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]
#![deny(missing_docs)]

mod change;
mod lookup;
mod monitor;
mod socket;

pub use change::PROTOCOL;
pub use lookup::HostRoutes;
pub use monitor::{Change, Monitor};
pub use socket::Netlink;
