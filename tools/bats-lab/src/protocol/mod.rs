//! The protocols under test: the programs that run them and the transports of tools.

pub(crate) mod commands;
pub(crate) mod echo;
pub(crate) mod load;
pub(crate) mod node;
pub(crate) mod perftest;
pub(crate) mod programs;
pub(crate) mod quic;
pub(crate) mod reading;
pub(crate) mod udp_load;
pub(crate) mod wireguard;

/// A tool and a protocol cannot be combined. This skips a measurement; it is not a failure.
#[derive(Debug)]
pub(crate) struct Incompatible(pub(crate) String);

impl std::fmt::Display for Incompatible {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Incompatible {}

/// Returns from a function because a tool and a protocol cannot be combined.
macro_rules! incompatible {
    ($($word:tt)*) => { return Err($crate::protocol::Incompatible(format!($($word)*)).into()) };
}
pub(crate) use incompatible;

/// Whether the kernel of this machine has a congestion control.
pub(crate) fn kernel_has(congestion: &str) -> bool {
    congestion_controls().iter().any(|known| known == congestion)
}

/// The congestion controls of the kernel.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
pub(crate) fn congestion_controls() -> Vec<String> {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}
