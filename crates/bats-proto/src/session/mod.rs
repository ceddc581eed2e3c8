//! The messages of a session and their representation in symbols.

pub mod channel;
mod datagram_assembly;
mod datagram_queue;
mod delivered;
mod inbox;
#[cfg(test)]
mod order_tests;
mod partial;
#[cfg(test)]
mod queue_tests;
mod reassembly;
mod send_queue;

pub use datagram_assembly::DatagramAssembly;
pub use datagram_queue::DatagramQueue;
pub use inbox::{Inbox, MESSAGE_OVERHEAD};
pub use reassembly::{Reassembly, SessionError};
pub use send_queue::SendQueue;
