//! The outer code of stream mode: a systematic sliding window.
//!
//! Symbols are numbered from 0 and sent as they are. A repair is a column of an *R-batch*: a
//! combination of the symbols of a [`Window`] with coefficients that both ends compute from
//! `(seed, batch, column)` ([`coefficients`]). Relays may combine the columns of one batch
//! (the inner code of RFC 9426); then a vector over the columns comes along ([`Columns::Recoded`]).
//! They may as well combine the symbols of an *S-batch*, 16 consecutive ones, each its own column;
//! the vector then holds the coefficients themselves ([`Columns::Explicit`]).
//!
//! Symbols have any length from 1 byte to a maximum; shorter ones count as zero-padded.

use core::fmt;

mod cluster;
mod coefficients;
mod decoder;
mod encoder;
mod known;
mod solve;
#[cfg(test)]
mod tests;

pub use coefficients::coefficients;
pub use decoder::{Cluster, DecoderConfig, DecoderStats, Outcome, Receipt, StreamDecoder};
pub use encoder::StreamEncoder;

use crate::BATCH_SIZE;

/// Most symbols of a window.
pub const MAX_WINDOW: u16 = 512;

/// Longest symbol that the code takes, in bytes.
pub const MAX_SYMBOL_SIZE: usize = 8896;

/// The symbols `first .. first + count` that a batch combines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Number of the first symbol.
    pub first: u64,
    /// Number of symbols, 1 to [`MAX_WINDOW`].
    pub count: u16,
}

impl Window {
    /// One past the last symbol; `None` if the window is empty, too long or beyond the numbers.
    #[must_use]
    pub fn end(&self) -> Option<u64> {
        if self.count == 0 || self.count > MAX_WINDOW {
            return None;
        }
        self.first.checked_add(u64::from(self.count))
    }
}

/// Which combination of the columns of an R-batch a repair packet holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns<'a> {
    /// A column as the source sent it.
    Fresh {
        /// Batch of the column.
        batch: u32,
        /// Number of the column in its batch.
        column: u8,
    },
    /// A combination made by relays, over columns 0 to 15.
    Recoded {
        /// Batch of the columns.
        batch: u32,
        /// The coefficient vector of RFC 9426.
        vector: &'a [u8; BATCH_SIZE],
    },
    /// A combination of the symbols of the window themselves, as relays make them of packets of an
    /// S-batch: one coefficient for each symbol.
    Explicit {
        /// As many as the window has symbols, at most 16.
        coefficients: &'a [u8],
    },
}

/// Why a symbol or a combination could not be made: a mistake of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StreamError {
    /// A symbol has 1 byte at least and the configured maximum at most.
    SymbolSize,
    /// The window is empty, too long, or has symbols that the encoder does not hold.
    Window,
    /// More columns asked for than a batch has.
    Columns,
    /// An output is shorter than the combination.
    OutputSize,
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SymbolSize => "a symbol is empty or longer than the configured maximum",
            Self::Window => "the window has symbols that are not held",
            Self::Columns => "more columns than a batch has",
            Self::OutputSize => "an output is shorter than the combination",
        })
    }
}

impl core::error::Error for StreamError {}
