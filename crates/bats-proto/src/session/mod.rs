//! What an application holds: messages in symbols.

mod reassembly;
mod send_queue;

pub use reassembly::{Reassembly, SessionError};
pub use send_queue::SendQueue;
