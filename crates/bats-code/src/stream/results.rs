//! Limits, results and counters of the decoder.

#[cfg(doc)]
use super::MAX_SYMBOL_SIZE;

/// Limits of a decoder. Without them a peer could make its memory grow without bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecoderConfig {
    /// Longest symbol in bytes, 1 to [`MAX_SYMBOL_SIZE`] (clamped).
    pub max_symbol_size: usize,
    /// Seed of the coefficients; the encoder must use the same.
    pub seed: u64,
    /// Number of symbols accepted from the first unreleased one on.
    pub max_symbols_held: usize,
    /// Maximum number of unsolved equations. 512 of them, but at most half, are reserved for
    /// windows that start at or before the first missing symbol.
    pub max_equations: usize,
    /// Maximum number of symbols from the first to the last unknown of one linear system (at most
    /// 32768). Bounds the work for one packet.
    pub max_span: u32,
    /// Maximum number of unknowns of one linear system. A sender chooses the windows of repairs, but on its path some
    /// symbols arrive: the work for a packet, which grows with the unknowns, need not be allowed for the whole span.
    pub max_unknowns: u32,
    /// Number of released symbols kept below the first missing one, because a repair may combine
    /// them with it: the longest window in use minus one.
    pub history: u16,
}

impl DecoderConfig {
    /// Default limits: 65,536 symbols, 16,384 equations, spans of 1024, windows of 256.
    #[must_use]
    pub fn new(max_symbol_size: usize, seed: u64) -> Self {
        Self {
            max_symbol_size,
            seed,
            max_symbols_held: 65_536,
            max_equations: 16_384,
            max_span: 1024,
            max_unknowns: 1024,
            history: 255,
        }
    }
}

/// Whether a packet raised the rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It raised the rank.
    Innovative,
    /// It is a linear combination of the packets received before.
    NonInnovative,
    /// It exceeds a limit, also that of the work for repairs, is malformed, or needs symbols that are no
    /// longer held.
    OutOfRange,
}

/// Result of pushing a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushResult {
    /// Whether the packet raised the rank.
    pub outcome: Outcome,
    /// Number of symbols solved by it, without the source symbol that the packet contains.
    pub decoded: usize,
}

impl PushResult {
    pub(super) const NON_INNOVATIVE: Self = Self { outcome: Outcome::NonInnovative, decoded: 0 };
}

/// A range of missing symbols: the unknowns of one linear system, or a run of symbols that are in
/// no equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// The first missing symbol.
    pub first: u64,
    /// Number of symbols from the first to the last missing one, inclusive.
    pub span: u32,
    /// Number of innovative packets still needed to solve all of them.
    pub rank_missing: u16,
}

/// Counters of a decoder, in packets or symbols.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderStats {
    /// Source symbols received that were not known before.
    pub source_innovative: u64,
    /// Source symbols received that were already known.
    pub source_duplicate: u64,
    /// Repairs that raised the rank.
    pub repair_innovative: u64,
    /// Repairs that did not raise the rank.
    pub repair_non_innovative: u64,
    /// Packets refused with [`Outcome::OutOfRange`].
    pub refused: u64,
    /// Symbols solved from repairs.
    pub decoded: u64,
    /// Equations dropped unsolved: their unknowns were all released, or a symbol was polluted.
    pub equations_dropped: u64,
    /// Work for repairs, in bytes of rows that were multiplied and added.
    pub work: u64,
    /// The part of it for repairs that did not raise the rank. A redundant repair costs most in a long
    /// linear system that is almost solved.
    pub non_innovative_work: u64,
    /// Repairs refused because earlier ones have caused too much work.
    pub refused_for_work: u64,
}
