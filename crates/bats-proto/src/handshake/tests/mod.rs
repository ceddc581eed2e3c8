//! Handshakes over a small emulated network, in virtual time.

mod hostile;
mod loss;
mod network;
mod retry;
mod trust;
