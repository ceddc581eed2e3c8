//! Reports of a test as text, JSON and HTML.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod sender_state;
pub(crate) mod text;

/// The role of an end of a stream.
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

/// Indices of the streams in which this end has the given role.
pub(crate) fn indices(sides: &[Side], side: Side) -> Vec<usize> {
    sides.iter().enumerate().filter(|(_, x)| **x == side).map(|(place, _)| place).collect()
}

/// The distinct roles of this end; that of streams from the client first.
pub(crate) fn distinct_sides(sides: &[Side]) -> Vec<Side> {
    let mut distinct_sides = sides.to_vec();
    distinct_sides.dedup();
    distinct_sides
}
