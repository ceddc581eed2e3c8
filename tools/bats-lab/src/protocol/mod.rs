//! The protocols under test: which programs run them, and what carries a tool's octets.

pub(crate) mod echo;
pub(crate) mod load;
pub(crate) mod programs;
pub(crate) mod quic;
pub(crate) mod reading;
pub(crate) mod udp_load;

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
