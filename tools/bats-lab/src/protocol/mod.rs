//! The protocols under test: which programs run them, and what carries a tool's bytes.

pub(crate) mod echo;
pub(crate) mod load;
pub(crate) mod programs;
pub(crate) mod quic;
pub(crate) mod reading;
pub(crate) mod udp_load;

/// A tool and a protocol do not go together: nobody's failure.
#[derive(Debug)]
pub(crate) struct Unfit(pub(crate) String);

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unfit {}

/// Leaves a function because two things do not go together.
macro_rules! unfit {
    ($($word:tt)*) => { return Err($crate::protocol::Unfit(format!($($word)*)).into()) };
}
pub(crate) use unfit;

/// Whether this machine's kernel has a congestion control.
pub(crate) fn kernel_has(congestion: &str) -> bool {
    congestion_controls().iter().any(|known| known == congestion)
}

/// The congestion controls that the kernel has.
pub(crate) fn congestion_controls() -> Vec<String> {
    std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}
