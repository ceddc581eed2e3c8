//! Identifiers of connections and groups.

/// Identifies a connection of one endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionHandle(pub u64);

/// Identifies a sender to a group, or a membership of one, of an endpoint; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupHandle(pub u64);
