//! BRTP: messages are reliable and in order, over a sliding window of symbols.

use core::time::Duration;

use bats_types::Timestamp;

use super::handed_up::{HandedUp, Left};
use super::mode::Receiving;
use super::taken::Taken;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, FlowReceiver, ReceiverCounters};
use crate::session::channel::Channels;
use crate::session::{Inbox, Reassembly, SessionError};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// Receiving direction of BRTP.
#[derive(Debug)]
pub(in crate::session) struct ReliableIncoming {
    flow: FlowReceiver,
    reassembly: Reassembly,
    early: HandedUp,
}

impl ReliableIncoming {
    pub(super) fn new(flow: FlowReceiver, reassembly: Reassembly) -> Self {
        Self { flow, reassembly, early: HandedUp::default() }
    }
}

impl Receiving for ReliableIncoming {
    fn trim(&mut self) {
        self.flow.trim();
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_packet(
        &mut self,
        now: Timestamp,
        kind: PacketKind,
        payload: &[u8],
        rtt: Duration,
    ) -> Result<(), FlowError> {
        self.flow.on_packet(now, kind, payload, rtt)
    }

    fn take(
        &mut self,
        inbox: &mut Inbox,
        mut channels: Option<&mut Channels>,
        (room, _): (usize, bool),
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let Self { flow, reassembly, early } = self;
        let mut opened = Vec::new();
        let mut taken = Taken::default();
        // With channels, messages have a credit of their own: symbols never wait.
        while channels.is_some() || inbox.has_room(room) {
            let number = flow.next_number();
            let Some(mut symbol) = flow.next_symbol() else { break };
            let left = early.take(number);
            if left == Left::Nothing {
                // It was authenticated when it was handed up.
                taken.opened += u64::from(open.is_some());
                continue;
            }
            if let Some(key) = &mut open {
                if !key.open(number, symbol, &mut opened) {
                    taken.polluted += 1;
                    taken.attributable = flow.is_from_own_batch(number).then_some(number);
                    flow.reject();
                    break;
                }
                taken.opened += 1;
                symbol = &opened;
            }
            let is_handed_up = left == Left::Messages;
            reassembly.feed_with(symbol, channels.as_deref_mut(), is_handed_up)?;
            while let Some(message) = reassembly.pop() {
                taken.add(inbox, message);
            }
        }
        if let Some(channels) = channels {
            early.hand_up(flow, channels, open)?;
        }
        Ok(taken)
    }

    fn feedback_at(&self) -> Option<Timestamp> {
        self.flow.feedback_at()
    }

    fn feedback(&mut self, now: Timestamp, rtt: Duration) -> Option<RankFeedback> {
        Some(self.flow.feedback(now, rtt))
    }

    fn raise_budget(&mut self, bytes: usize) {
        self.flow.raise_budget(bytes);
    }

    fn has_ready(&self) -> bool {
        self.flow.has_ready()
    }

    fn growth(&self) -> usize {
        self.flow.growth()
    }

    fn bytes_missing(&self) -> usize {
        self.reassembly.bytes_missing()
    }

    fn update_credit(
        &mut self,
        now: Timestamp,
        rtt: Duration,
        inbox: &Inbox,
        elsewhere: Option<usize>,
    ) -> bool {
        let held = |bytes| bytes + inbox.bytes_held() + self.reassembly.bytes_held();
        self.flow.update_credit(now, rtt, elsewhere.map_or(0, held))
    }

    fn credit(&mut self) -> Option<u64> {
        Some(self.flow.credit())
    }

    fn is_finished(&self) -> bool {
        self.reassembly.is_finished()
    }

    fn bytes_held(&self) -> usize {
        self.flow.bytes_held() + self.reassembly.bytes_held()
    }

    fn counters(&self) -> ReceiverCounters {
        self.flow.counters()
    }

    fn set_feedback_delay(&mut self, delay: Duration) {
        self.flow.set_feedback_delay(delay);
    }

    fn seen_end(&self) -> Option<u64> {
        Some(self.flow.seen_end())
    }
}
