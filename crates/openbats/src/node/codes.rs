//! The codes with which nodes close links and sessions.

/// The peer is not admitted: the text says why.
pub const NOT_ADMITTED: u64 = 0x4e41;
/// A neighbour sent messages on a link instead of a session, or opened a channel there.
pub const MESSAGE: u64 = 0x4e4d;
/// This end has no session with the neighbour in which a channel was opened. The code of the channel.
pub const NO_SESSION: u64 = 0x4e53;
