//! Bodies of the fuzz targets: ordinary functions of bytes that panic when a rule is broken.
//! Fuzz targets call them, `tests/replay.rs` replays their corpora; no part of the API.

mod forge;
mod liar;
mod network;
mod relay;
mod script;
mod session;
mod stream;
mod wire;
mod world;

pub use forge::{LyingClient, open_short, seal_as, seal_long, seal_short};
pub use liar::{LiarReport, forger_run, lying_client_run};
pub use network::{NetworkReport, network_run};
pub use relay::{RelayReport, relay_run};
pub use session::session_run;
pub use stream::{StreamReport, stream_run};
pub use wire::{token_run, wire_run};
