//! Bodies of the fuzz targets: functions of bytes that panic when a property is violated. The
//! targets call them and `tests/replay.rs` replays their corpora. Not part of the API.

mod acknowledgements;
mod channels;
mod forge;
mod impostor;
mod misbehaving_peer;
mod network;
mod relay;
mod script;
mod session;
mod stream;
mod wire;
mod world;

pub use acknowledgements::{AcknowledgementReport, acknowledgements_run};
pub use channels::{ChannelReport, channels_run};
pub use forge::{MisbehavingClient, open_short, seal_as, seal_initial, seal_long, seal_short};
pub use impostor::{connect_in_flow, flow_of};
pub use misbehaving_peer::{MisbehavingPeerReport, forger_run, misbehaving_client_run};
pub use network::{NetworkReport, network_run};
pub use relay::{RelayReport, relay_run};
pub use session::session_run;
pub use stream::{StreamReport, stream_run};
pub use wire::{token_run, wire_run};

/// The longest linear systems of BTP, for attacks that build them.
pub use crate::flow::TIMELY_MAX_UNKNOWNS;
