//! The stream code of BRTP and BTP: a systematic sliding window of dense random linear combinations
//! over GF(256).
//!
//! Source symbols are numbered from 0 and sent unchanged. A repair is a column of an *R-batch*: a
//! linear combination of the symbols of a [`Window`], with coefficients that both ends compute from
//! `(seed, batch, column)` ([`coefficients`]). Relays may recode the columns of one R-batch (the
//! inner code of RFC 9426); the packet then holds a vector over the columns ([`Columns::Recoded`]).
//! Relays may also recode the symbols of an *S-batch*: 16 consecutive source symbols, each its own
//! column. The vector then holds the coefficients of the symbols ([`Columns::Explicit`]).
//!
//! A symbol has 1 byte up to a configured maximum; shorter symbols count as zero-padded.

use core::fmt;

mod coefficients;
mod decoder;
mod encoder;
mod known;
mod linear_system;
mod redundancy;
mod results;
mod solve;
#[cfg(test)]
mod tests;
mod work;

pub use coefficients::coefficients;
pub use decoder::StreamDecoder;
pub use encoder::StreamEncoder;
pub use results::{DecoderConfig, DecoderStats, MissingRange, Outcome, PushResult};

use crate::BATCH_SIZE;

/// Maximum number of symbols in a window.
pub const MAX_WINDOW: u16 = 512;

/// Maximum length of a symbol, in bytes.
pub const MAX_SYMBOL_SIZE: usize = 8896;

/// A coding window: the symbols `first .. first + count` that a batch combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Number of the first symbol.
    pub first: u64,
    /// Number of symbols, 1 to [`MAX_WINDOW`].
    pub count: u16,
}

impl Window {
    /// One past the last symbol; `None` if the window is empty, longer than [`MAX_WINDOW`], or ends
    /// above `u64::MAX`.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        if self.count == 0 || self.count > MAX_WINDOW {
            return None;
        }
        self.first.checked_add(u64::from(self.count))
    }
}

/// How a repair packet states its coefficients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns<'a> {
    /// A column of an R-batch as the source sent it.
    Fresh {
        /// Batch of the column.
        batch: u32,
        /// Index of the column in its batch.
        column: u8,
    },
    /// A recoded packet: a linear combination of columns 0 to 15 of an R-batch.
    Recoded {
        /// Batch of the columns.
        batch: u32,
        /// The coefficient vector of RFC 9426.
        vector: &'a [u8; BATCH_SIZE],
    },
    /// A recoded packet of an S-batch: a linear combination of the symbols of the window, with one
    /// coefficient for each.
    Explicit {
        /// One coefficient for each symbol of the window, at most 16.
        coefficients: &'a [u8],
    },
}

/// Invalid arguments of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// The symbol is empty or longer than the configured maximum.
    SymbolSize,
    /// The window is empty, too long, or has symbols that the encoder does not hold.
    Window,
    /// A column index is 16 or more, or there are not as many columns as outputs.
    Columns,
    /// An output buffer is shorter than the coded packet.
    OutputSize,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SymbolSize => "a symbol is empty or longer than the configured maximum",
            Self::Window => "the window is empty, too long, or has symbols that are not held",
            Self::Columns => "a column index is 16 or more, or does not match the outputs",
            Self::OutputSize => "an output buffer is shorter than the coded packet",
        })
    }
}

impl core::error::Error for StreamError {}
