//! Test traffic between the hosts of a lab, for `verify` and the tests.

mod cbr;
mod ping;

pub(crate) use cbr::{CbrPlan, CbrResult, send_cbr};
pub(crate) use ping::{PingResult, ping};
