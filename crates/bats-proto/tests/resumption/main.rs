//! Session resumption and early data over real TLS.

mod early_data;
mod sessions;
mod world;
