//! Headings of the help.

/// Heading of the options of a client.
pub(super) const CLIENT: &str = "Client";
/// Heading of the options of a server.
pub(super) const SERVER: &str = "Server";
