//! Memory of channels, and the limits that follow from it.

use crate::wire::parameters::ChannelParameters;

/// Most channels that one end may have open.
pub const MAX_CHANNELS: u64 = 1 << 20;
/// Memory of a channel with a byte that waits to be read, by the allocator's count: its entry in a
/// tree with half-filled nodes, its buffer, and the note that it waits to be accepted.
pub const CHANNEL_COST: usize = 448;
/// Charged for each message besides its bytes, at both ends.
pub const MESSAGE_CHARGE: u64 = 64;
/// A channel may have this part of the session's free window unless it is set, so that several channels that are not
/// read leave room for the others.
pub(super) const CHANNEL_SHARE: u8 = 8;
/// Least window of a channel.
const MIN_CHANNEL_WINDOW: u64 = 4 << 10;
/// A channel may queue this part of the free send budget.
const SEND_SHARE: usize = 8;
/// Bounds of the bytes that a channel may queue.
const MIN_QUEUE: usize = 4 << 10;
const MAX_QUEUE: usize = 1 << 20;

/// How the receive budget of a connection with channels is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Channels that the peer may have open.
    pub channels: u64,
    /// Unread bytes of all channels together.
    pub session_window: u64,
    /// Unread bytes of messages.
    pub message_window: u64,
    /// Most bytes for the flow.
    pub flow_budget: usize,
    /// Most bytes that are queued on all channels.
    pub send_budget: usize,
}

impl ChannelLimits {
    /// Divides a receive budget. Half of it may be for `channels` channels as such. Of the rest the
    /// flow gets the larger part, because it holds what is in flight and what waits for repairs. The
    /// application's data take an eighth as messages, one message as long as that in addition, and a
    /// fifth as bytes of channels, whose buffers grow by a quarter.
    pub fn new(channels: u64, receive_budget: usize, send_budget: usize) -> Self {
        let affordable = (receive_budget / 2 / CHANNEL_COST) as u64;
        let channels = channels.min(MAX_CHANNELS).min(affordable);
        let rest = receive_budget - channels as usize * CHANNEL_COST;
        Self {
            channels,
            session_window: rest as u64 / 5,
            message_window: rest as u64 / 8,
            flow_budget: rest / 16 * 7,
            send_budget: send_budget / 4,
        }
    }

    /// Longest message that leaves room for what else the budget is for.
    pub fn max_message(&self) -> usize {
        self.message_window as usize
    }

    /// Memory of parts behind gaps up to which symbols are handed up early.
    pub(super) fn early_budget(&self) -> usize {
        self.session_window as usize / 4
    }

    /// The window of a channel that may have this part (at least 1) of what is free, if this many bytes are
    /// unread on all channels.
    pub(super) fn channel_window(&self, unread: u64, share: u8) -> u64 {
        let free = self.session_window.saturating_sub(unread);
        (free / u64::from(share.max(1))).max(MIN_CHANNEL_WINDOW)
    }

    /// The bytes that a channel may queue if this many are queued on all channels.
    pub(super) fn queue_limit(&self, queued: usize) -> usize {
        (self.send_budget.saturating_sub(queued) / SEND_SHARE).clamp(MIN_QUEUE, MAX_QUEUE)
    }

    /// Initial limits of the peer.
    pub fn parameters(&self) -> ChannelParameters {
        ChannelParameters {
            channels: self.channels,
            channel_credit: self.channel_window(0, CHANNEL_SHARE),
            session_credit: self.session_window,
            message_credit: self.message_window,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_divided_as_documented() {
        let limits = ChannelLimits::new(1_000, 16 << 20, 1_000_000);
        let rest = (16 << 20) - 1_000 * 448;
        let expected = ChannelLimits {
            channels: 1_000,
            session_window: rest as u64 / 5,
            message_window: rest as u64 / 8,
            flow_budget: rest / 16 * 7,
            send_budget: 250_000,
        };
        assert_eq!(limits, expected);
        assert_eq!((limits.max_message(), limits.early_budget()), (rest / 8, rest / 5 / 4));
        let parameters = ChannelParameters {
            channels: 1_000,
            channel_credit: rest as u64 / 5 / 8,
            session_credit: rest as u64 / 5,
            message_credit: rest as u64 / 8,
        };
        assert_eq!(limits.parameters(), parameters);
    }

    #[test]
    fn channels_take_at_most_half_of_the_budget() {
        for (asked, budget, channels) in [
            (0, 1 << 20, 0),
            (10, 2 * 448 * 10, 10),
            (10, 2 * 448 * 10 - 1, 9),
            (u64::MAX, 2 * 448 * 10, 10),
            (u64::MAX, 1 << 40, 1 << 20),
        ] {
            assert_eq!(ChannelLimits::new(asked, budget, 0).channels, channels, "of {budget}");
        }
    }

    #[test]
    fn window_of_a_channel_is_an_eighth_of_what_is_free_and_at_least_4_kib() {
        let limits = ChannelLimits { session_window: 100_000, ..ChannelLimits::new(1, 1 << 20, 0) };
        for (unread, window) in
            [(0, 12_500), (60_000, 5_000), (67_232, 4_096), (68_000, 4_096), (u64::MAX, 4_096)]
        {
            assert_eq!(limits.channel_window(unread, CHANNEL_SHARE), window, "{unread} unread");
        }
        for (share, window) in [(0, 40_000), (1, 40_000), (2, 20_000), (255, 4_096)] {
            assert_eq!(limits.channel_window(60_000, share), window, "a part of {share}");
        }
    }

    #[test]
    fn queue_of_a_channel_is_an_eighth_of_what_is_free_and_4_kib_to_1_mib() {
        let limits = ChannelLimits::new(1, 1 << 20, 64 << 20);
        for (queued, limit) in [
            (0, 1 << 20),
            (8 << 20, 1 << 20),
            ((8 << 20) + 8, (1 << 20) - 1),
            ((16 << 20) - 40_000, 5_000),
            ((16 << 20) - 8, 4_096),
            (usize::MAX, 4_096),
        ] {
            assert_eq!(limits.queue_limit(queued), limit, "{queued} queued");
        }
    }
}
