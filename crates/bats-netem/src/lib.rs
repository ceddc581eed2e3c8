//! An emulated link without sockets, clocks or threads. A [`Link`] is one direction.
//!
//! A packet passes through these stages in order: MTU, acknowledgement thinning, policer, queue
//! with its discipline, rate (fixed, scheduled, recorded or generated), black hole and loss,
//! corruption, duplication, delay (fixed, per flow, scheduled, jitter, contention) and slotted
//! arrival. Stages that are not configured cost nothing.
//!
//! The interface is that of the protocol core: [`Link::handle`] takes a packet, and [`Link::poll`]
//! is called until it returns the time of the next delivery. The simulator runs a link in virtual
//! time, the laboratory runs it in real time. All random choices derive from a seed.
#![forbid(unsafe_code)]

mod config;
mod delay;
mod error;
mod flight;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod histogram;
mod link;
mod loss;
mod noise;
mod payload;
mod policer;
mod queue;
mod rate;
mod slots;
mod stats;
mod thinning;
mod timed_loss;

pub use bats_types::Timestamp;
pub use config::{ETHERNET_OVERHEAD, IPV4_UDP_HEADERS, IPV6_UDP_HEADERS, LinkConfig};
pub use delay::{Contention, DelaySchedule, DelaySteps, Jitter};
pub use error::ConfigError;
pub use histogram::Sojourn;
pub use link::{Fate, Link, Output};
pub use loss::Loss;
pub use payload::Payload;
pub use policer::{MAX_POLICED_FLOWS, Policer};
pub use queue::{CoDel, Discipline, FqCoDel, Pie, StepMark};
pub use rate::{
    LeoRate, LteRate, OPPORTUNITY_BYTES, RatePieces, RateSchedule, Trace, TraceError, TraceProblem,
};
pub use slots::Slots;
pub use stats::{FlowStats, LinkStats, MAX_COUNTED_FLOWS};
pub use thinning::AckThinning;
pub use timed_loss::{AlternateLoss, Fade, Holes};
