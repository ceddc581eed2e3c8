//! Rates that are given as a list of pieces, once or repeated.

use core::time::Duration;
use std::sync::Arc;

use super::segment::{MAX_RAMP, MAX_RATE, Segment};
use crate::ConfigError;

/// Maximum number of pieces: a trace of 24 hours with a change per millisecond has fewer.
pub(crate) const MAX_PIECES: usize = 1 << 27;
/// Longest schedule, in nanoseconds (73 years).
const MAX_LENGTH: u64 = 1 << 61;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    /// Nanoseconds since the start of the cycle.
    start: u64,
    from: u64,
    to: u64,
}

/// Consecutive pieces with constant or linearly changing rate.
#[derive(Clone, Debug, PartialEq)]
pub struct RatePieces {
    pieces: Arc<[Piece]>,
    length: u64,
    /// Work of one cycle.
    work: u128,
    repeat: bool,
}

impl RatePieces {
    /// Pieces with their durations, and their rates at start and end in bit/s. After the last piece
    /// the list repeats if `repeat` is set; otherwise its final rate remains.
    ///
    /// # Errors
    ///
    /// There is no piece, a piece has no duration, a rate is above 17 Tbit/s, a ramp is longer than
    /// 1,000 s, or the whole is longer than 70 years.
    pub fn new(
        pieces: impl IntoIterator<Item = (Duration, u64, u64)>,
        repeat: bool,
    ) -> Result<Self, ConfigError> {
        let (mut list, mut length, mut work) = (Vec::new(), 0_u64, 0_u128);
        for (duration, from, to) in pieces {
            let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            if nanos == 0 {
                return Err(ConfigError::new("rate piece", duration, "a length above zero"));
            }
            if from.max(to) > MAX_RATE {
                return Err(ConfigError::new("rate", from.max(to), "at most 17.5 Tbit/s"));
            }
            if from != to && nanos > MAX_RAMP {
                return Err(ConfigError::new("rate ramp", duration, "at most 1,000 s"));
            }
            let end = length.saturating_add(nanos);
            if end > MAX_LENGTH || list.len() >= MAX_PIECES {
                return Err(ConfigError::new(
                    "rate schedule",
                    list.len(),
                    "at most 134 million pieces and 70 years",
                ));
            }
            work += Segment { start: length, end, from, to }.work(length, end);
            list.push(Piece { start: length, from, to });
            length = end;
        }
        if list.is_empty() {
            return Err(ConfigError::new("rate schedule", "empty", "at least one piece"));
        }
        Ok(Self { pieces: list.into(), length, work, repeat })
    }

    /// Nothing is ever transmitted.
    pub(super) fn silent() -> Self {
        let pieces = [Piece { start: 0, from: 0, to: 0 }];
        Self { pieces: pieces.into(), length: 1_000_000_000, work: 0, repeat: true }
    }

    /// Duration of a cycle.
    pub fn length(&self) -> Duration {
        Duration::from_nanos(self.length)
    }

    /// Mean rate of a cycle in bit/s.
    pub fn mean_bps(&self) -> u64 {
        u64::try_from(self.work / u128::from(self.length.max(1))).unwrap_or(u64::MAX)
    }

    /// Duration and work of a cycle, if the list repeats.
    pub(super) fn cycle(&self) -> Option<(u64, u128)> {
        self.repeat.then_some((self.length, self.work))
    }

    /// The segment at `offset` nanoseconds from the start of the schedule. Its times are offsets,
    /// too. `hint` is the index of the piece that the last call returned.
    pub(super) fn segment(&self, offset: u64, hint: &mut usize) -> Segment {
        let (base, within) = if self.repeat {
            let within = offset % self.length;
            (offset - within, within)
        } else if offset >= self.length {
            let rate = self.pieces.last().map_or(0, |piece| piece.to);
            return Segment { start: self.length, ..Segment::forever(rate) };
        } else {
            (0, offset)
        };
        let is_at = |index: usize| {
            self.pieces.get(index).is_some_and(|piece| piece.start <= within)
                && self.pieces.get(index + 1).is_none_or(|next| within < next.start)
        };
        if !is_at(*hint) {
            *hint = if is_at(*hint + 1) {
                *hint + 1
            } else {
                self.pieces.partition_point(|piece| piece.start <= within).saturating_sub(1)
            };
        }
        let end = self.pieces.get(*hint + 1).map_or(self.length, |next| next.start);
        let Some(piece) = self.pieces.get(*hint) else { return Segment::forever(0) };
        Segment {
            start: base + piece.start,
            end: base.saturating_add(end),
            from: piece.from,
            to: piece.to,
        }
    }
}
