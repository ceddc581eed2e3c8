//! What a test found, as text, as JSON and as a page.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod text;

/// Which end of a stream this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

impl Side {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Sender => "sender",
            Self::Receiver => "receiver",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// The places of the streams of which this is that end.
pub(crate) fn places(sides: &[Side], side: Side) -> Vec<usize> {
    sides.iter().enumerate().filter(|(_, x)| **x == side).map(|(place, _)| place).collect()
}

/// The ends that this program is of some stream; that of the client's own data first.
pub(crate) fn kinds(sides: &[Side]) -> Vec<Side> {
    let mut kinds = sides.to_vec();
    kinds.dedup();
    kinds
}
