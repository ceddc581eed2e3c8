//! The two ends of a simulation, their events, and the path between them.

use bats_proto::{ConnectionHandle, Event};

/// The links of a path in order: index, and whether it is crossed from its first host to its
/// second.
pub(super) type LinkPath = Vec<(usize, bool)>;

/// An event at one end: number of the flow if flows have their own endpoints (else 0), end,
/// connection, event.
pub(super) type EndEvent = (usize, End, ConnectionHandle, Event);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Client,
    Server,
}
