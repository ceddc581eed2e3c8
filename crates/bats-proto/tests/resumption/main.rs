//! Sessions that are taken up again, and messages that travel with the first flight, over real TLS.

mod early_data;
mod sessions;
mod world;
