//! Links, transfers and bounds that the scenarios share.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::wire::parameters::symbol_size_for;
use bats_sim::links::FRAME_OVERHEAD;
pub(crate) use bats_sim::links::{capacity, link};
use bats_sim::transfer::Transfer;

/// A bulk transfer over `link`, the same in both directions.
pub(crate) fn transfer(link: &LinkConfig, seconds: u64) -> Transfer {
    Transfer::over(link, Duration::from_secs(seconds))
}

/// Capacity of `link` after loss in Mbit/s of data without repairs: each frame has one symbol and
/// 29 bytes of header and authentication tag.
pub(crate) fn payload_optimum(link: &LinkConfig) -> f64 {
    let rate = link.rate_bps.expect("a rate") as f64 / 1e6;
    let symbol = symbol_size_for(1_472);
    rate * symbol as f64 / (symbol + 29 + FRAME_OVERHEAD) as f64 * (1.0 - link.loss.mean())
}
