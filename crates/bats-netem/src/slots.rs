use core::time::Duration;

use bats_types::Timestamp;

/// Delivery at slot boundaries only, like a MAC layer that delivers in batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// Interval of the boundaries from the link's `epoch` on; above zero.
    pub interval: Duration,
    /// Maximum number of packets that arrive at one boundary; the others wait for the next one. 0
    /// for no limit.
    pub limit: u32,
}

/// The last boundary at which a packet arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlotState {
    slot: u64,
    used: u32,
}

impl SlotState {
    fn slot(&self, slots: &Slots, epoch: Timestamp, at: Timestamp) -> (u64, u64) {
        let interval = u64::try_from(slots.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let slot = (at - epoch).as_nanos().min(u64::MAX.into()) as u64;
        let mut slot = slot.div_ceil(interval).max(self.slot);
        if slots.limit > 0 && slot == self.slot && self.used >= slots.limit {
            slot = slot.saturating_add(1);
        }
        (slot, interval)
    }

    /// Arrival time of the first packet, which would arrive at `at` without slots.
    pub(crate) fn due(&self, slots: &Slots, epoch: Timestamp, at: Timestamp) -> Timestamp {
        let (slot, interval) = self.slot(slots, epoch, at);
        epoch + Duration::from_nanos(slot.saturating_mul(interval))
    }

    /// Records the arrival of the first packet.
    pub(crate) fn take(&mut self, slots: &Slots, epoch: Timestamp, at: Timestamp) {
        let (slot, _) = self.slot(slots, epoch, at);
        self.used = if slot == self.slot { self.used.saturating_add(1) } else { 1 };
        self.slot = slot;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_at_boundaries_and_no_more_than_the_limit() {
        let slots = Slots { interval: Duration::from_millis(5), limit: 2 };
        let epoch = Timestamp::from_millis(1);
        let mut state = SlotState::default();
        let mut arrive = |micros: u64| {
            let at = Timestamp::from_micros(micros);
            let due = state.due(&slots, epoch, at);
            state.take(&slots, epoch, at);
            due.as_micros()
        };
        let due: Vec<u64> =
            [2_000, 6_000, 6_000, 6_001, 7_000, 7_000, 30_000].map(&mut arrive).into();
        assert_eq!(due, [6_000, 6_000, 11_000, 11_000, 16_000, 16_000, 31_000]);
    }

    #[test]
    fn extreme_settings_do_not_panic() {
        let state = SlotState { slot: u64::MAX, used: 9 };
        for interval in [Duration::ZERO, Duration::MAX] {
            let slots = Slots { interval, limit: 1 };
            state.due(&slots, Timestamp::MAX, Timestamp::MAX);
            state.due(&slots, Timestamp::ZERO, Timestamp::MAX);
        }
    }
}
