//! What an END frame says.

/// Totals of a finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::session) struct Totals {
    pub(in crate::session) symbols: u64,
    pub(in crate::session) messages: u64,
}
