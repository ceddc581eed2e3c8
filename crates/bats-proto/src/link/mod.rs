//! One hop: packet numbers, acknowledgements, loss, round-trip time, path MTU.

pub mod loss;
pub mod mtu;
pub mod received;
pub mod rtt;
pub mod sent;
