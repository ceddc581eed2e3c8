//! The frames in a byte stream that arrives in pieces of any length.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use super::frame::{self, FrameError, HEADER_LEN, Kind};

/// What comes next.
#[derive(Debug)]
enum Expect {
    Header { bytes: [u8; HEADER_LEN], have: usize },
    Message { left: usize, is_last: bool },
    Control { kind: u8, len: usize, bytes: Vec<u8> },
    Skip { left: usize },
}

impl Expect {
    const START: Self = Self::Header { bytes: [0; HEADER_LEN], have: 0 };
}

/// A part of a frame. Nothing follows the header of a frame without payload.
#[derive(Debug)]
pub(super) enum Parsed<'a> {
    /// A header is complete: the kind and the length of the payload.
    Header(Kind, usize),
    /// Bytes of a message; `left` others follow in the frame. The message ends if it `is_last`.
    Content { content: &'a [u8], left: usize, is_last: bool },
    /// The payload of a control frame is complete.
    Control { kind: u8, payload: Vec<u8> },
}

/// Parses a byte stream into frames. It holds a header or the payload of a control frame.
#[derive(Debug)]
pub(super) struct FrameParser {
    expect: Expect,
}

impl FrameParser {
    pub(super) fn new() -> Self {
        Self { expect: Expect::START }
    }

    /// Takes the next part of a frame from the front of `bytes`; `None` if all are taken.
    ///
    /// # Errors
    ///
    /// A header violates the framing.
    pub(super) fn next<'a>(
        &mut self,
        bytes: &mut &'a [u8],
    ) -> Result<Option<Parsed<'a>>, FrameError> {
        while !bytes.is_empty() {
            match &mut self.expect {
                Expect::Header { bytes: header, have } => {
                    let missing = header.get_mut(*have..).unwrap_or_default();
                    let part = split_at_most(bytes, missing.len());
                    missing.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
                    *have = have.saturating_add(part.len());
                    if *have == HEADER_LEN {
                        let (kind, len) = frame::decode_header(*header)?;
                        self.expect = payload_of(kind, len);
                        return Ok(Some(Parsed::Header(kind, len)));
                    }
                }
                Expect::Message { left, is_last } => {
                    let content = split_at_most(bytes, *left);
                    *left = left.saturating_sub(content.len());
                    let left = *left;
                    let is_last = *is_last && left == 0;
                    if left == 0 {
                        self.expect = Expect::START;
                    }
                    return Ok(Some(Parsed::Content { content, left, is_last }));
                }
                Expect::Control { kind, len, bytes: payload } => {
                    let more = split_at_most(bytes, len.saturating_sub(payload.len()));
                    payload.extend_from_slice(more);
                    if payload.len() == *len {
                        let (kind, payload) = (*kind, core::mem::take(payload));
                        self.expect = Expect::START;
                        return Ok(Some(Parsed::Control { kind, payload }));
                    }
                }
                Expect::Skip { left } => {
                    let skipped = split_at_most(bytes, *left);
                    *left = left.saturating_sub(skipped.len());
                    if *left == 0 {
                        self.expect = Expect::START;
                    }
                }
            }
        }
        Ok(None)
    }
}

/// What follows a header.
fn payload_of(kind: Kind, len: usize) -> Expect {
    match (kind, len) {
        (_, 0) => Expect::START,
        (Kind::Part, left) => Expect::Message { left, is_last: false },
        (Kind::Last, left) => Expect::Message { left, is_last: true },
        (Kind::Control(kind), len) => Expect::Control { kind, len, bytes: Vec::new() },
        (Kind::Unknown, left) => Expect::Skip { left },
    }
}

/// Takes the first `len` bytes, or all if there are fewer.
fn split_at_most<'a>(bytes: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (first, rest) = bytes.split_at_checked(len).unwrap_or((bytes, &[]));
    *bytes = rest;
    first
}
