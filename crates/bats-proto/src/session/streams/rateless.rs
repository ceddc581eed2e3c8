//! BRCTP: messages are reliable and in order, coded in blocks with a rateless code.

use core::time::Duration;

use bats_types::Timestamp;

use super::mode::Receiving;
use super::taken::Taken;
use crate::crypto::SymbolKey;
use crate::flow::{FlowError, RatelessReceiver, ReceiverCounters};
use crate::session::channel::Channels;
use crate::session::{Inbox, Reassembly, SessionError};
use crate::wire::rank::RankFeedback;
use crate::wire::short_header::PacketKind;

/// Receiving direction of BRCTP.
#[derive(Debug)]
pub(in crate::session) struct RatelessIncoming {
    flow: RatelessReceiver,
    reassembly: Reassembly,
}

impl RatelessIncoming {
    pub(super) fn new(flow: RatelessReceiver, reassembly: Reassembly) -> Self {
        Self { flow, reassembly }
    }
}

impl Receiving for RatelessIncoming {
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
        _channels: Option<&mut Channels>,
        (room, _): (usize, bool),
        mut open: Option<&mut SymbolKey>,
    ) -> Result<Taken, SessionError> {
        let Self { flow, reassembly } = self;
        let mut taken = Taken::default();
        if let Some(key) = &mut open {
            taken.polluted += flow.verify(|number, bytes| {
                let is_authentic = key.open_block(number, bytes);
                taken.opened += u64::from(is_authentic);
                taken.attributable = if is_authentic { taken.attributable } else { Some(number) };
                is_authentic
            });
        }
        while inbox.has_room(room)
            && let Some(block) = flow.next_block()
        {
            reassembly.feed(&block)?;
            while let Some(message) = reassembly.pop() {
                taken.add(inbox, message);
            }
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

    fn holds_blocks(&self, inbox: &Inbox) -> Option<bool> {
        let others = self.reassembly.bytes_held() + inbox.bytes_held();
        Some(self.flow.holds_blocks() || others > 0)
    }

    fn free_some(&mut self, _inbox: &mut Inbox) -> bool {
        self.flow.trim()
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

    fn seals_blocks(&self) -> bool {
        true
    }
}
