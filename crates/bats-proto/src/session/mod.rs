//! What an application holds: messages in symbols.

mod inbox;
mod reassembly;
mod send_queue;

pub use inbox::{Inbox, MESSAGE_OVERHEAD};
pub use reassembly::{Reassembly, SessionError};
pub use send_queue::SendQueue;
