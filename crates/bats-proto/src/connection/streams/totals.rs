//! What an END frame says.

/// Totals of a finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::connection) struct Totals {
    pub(in crate::connection) symbols: u64,
    pub(in crate::connection) messages: u64,
}
