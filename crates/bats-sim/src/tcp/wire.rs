use bats_types::Timestamp;

/// A data segment of [`SEGMENT`](super::SEGMENT) bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number, in segments.
    pub number: u64,
    /// Send time: the timestamp option (RFC 7323).
    pub sent_at: Timestamp,
    /// ECN bits of the IP header: 0, 2 for ECT(0), 3 for CE.
    pub ecn: u8,
    /// CWR flag: the sender has reduced its window (RFC 3168 section 6.1.2).
    pub cwr: bool,
}

/// Maximum number of SACK ranges of an acknowledgement: three with timestamps (RFC 2018 section 3).
pub(super) const MAX_RANGES: usize = 3;

/// An acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// Number of the first missing segment.
    pub next: u64,
    /// SACK ranges as (first, end), the most recently changed first (RFC 2018 section 4).
    pub ranges: [Option<(u64, u64)>; MAX_RANGES],
    /// The segment that arrived twice (RFC 2883).
    pub dsack: Option<u64>,
    /// Timestamp echo reply (RFC 7323 section 4.3).
    pub echo: Option<Timestamp>,
    /// ECE flag: a CE mark was received and no CWR since (RFC 3168 section 6.1.3).
    pub ece: bool,
}
