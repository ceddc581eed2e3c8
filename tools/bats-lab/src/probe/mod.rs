//! Own traffic between the hosts of a lab: what `verify` and the tests measure with.

mod blast;
mod ping;

pub(crate) use blast::{BlastPlan, BlastResult, blast};
pub(crate) use ping::{PingResult, ping};
