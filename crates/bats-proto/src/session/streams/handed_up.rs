//! Symbols whose frames the channels have got out of turn, while an earlier symbol is missing.

use std::collections::BTreeMap;

use crate::crypto::SymbolKey;
use crate::flow::FlowReceiver;
use crate::session::SessionError;
use crate::session::channel::Channels;

/// Symbols of which the channels have got their frames although an earlier symbol is missing, and whether
/// they have frames of messages, too.
#[derive(Debug, Default)]
pub(in crate::session) struct HandedUp(BTreeMap<u64, bool>);

/// What is left of a symbol when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    All,
    /// The frames of messages.
    Messages,
    Nothing,
}

impl HandedUp {
    /// Hands up what the last packet has decoded beyond the missing symbol.
    pub(super) fn hand_up(
        &mut self,
        flow: &mut FlowReceiver,
        channels: &mut Channels,
        mut open: Option<&mut SymbolKey>,
    ) -> Result<(), SessionError> {
        let mut opened = Vec::new();
        for number in flow.take_fresh() {
            if !channels.takes_early() {
                // They wait for the missing symbol.
                break;
            }
            let Some(mut symbol) = flow.symbol(number) else { continue };
            if self.0.contains_key(&number) {
                continue;
            }
            if let Some(key) = &mut open {
                if !key.open(number, symbol, &mut opened) {
                    // It counts as polluted when its turn comes.
                    continue;
                }
                symbol = &opened;
            }
            let has_messages = channels.feed_early(symbol)?;
            self.0.insert(number, has_messages);
        }
        Ok(())
    }

    /// What is left of this symbol, whose turn has come.
    pub(super) fn take(&mut self, number: u64) -> Left {
        match self.0.remove(&number) {
            None => Left::All,
            Some(true) => Left::Messages,
            Some(false) => Left::Nothing,
        }
    }
}
