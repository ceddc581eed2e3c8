//! Handshakes over a small emulated network, in virtual time.

mod bench_net;
