//! Types that all layers share: points in time that do not depend on a clock.
#![forbid(unsafe_code)]

mod timestamp;

pub use timestamp::Timestamp;
