use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Maximum number of flows of which a packet is held. Beyond it, the packet that was held longest
/// is sent.
const MAX_HELD: usize = 64;

/// Thinning of acknowledgements, as in cable modems and wireless links: of consecutive small
/// packets of a flow only the newest is sent.
///
/// The first small packet is held. Each following one replaces it, and every `keep_one_of`-th one
/// is sent at once. A held packet is sent after `window`, or before a larger packet of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckThinning {
    /// Packets of at most this many bytes are thinned, `frame_overhead` not included.
    pub max_len: usize,
    /// One of this many packets is sent; 1 disables thinning.
    pub keep_one_of: u32,
    /// Maximum time for which a packet is held.
    pub window: Duration,
}

#[derive(Debug)]
struct Held<P> {
    flow: u64,
    until: Timestamp,
    count: u32,
    packet: P,
}

/// The held packets, by flow.
#[derive(Debug)]
pub(crate) struct Thinner<P> {
    /// The held packets by the time at which they are sent, unless the window changes.
    held: VecDeque<Held<P>>,
}

impl<P> Default for Thinner<P> {
    fn default() -> Self {
        Self { held: VecDeque::new() }
    }
}

/// Result of offering a small packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Thinned<P> {
    /// The packet is held.
    Held {
        /// It replaced another packet.
        replaced: bool,
        /// Another packet that is sent now for lack of room.
        released: Option<P>,
    },
    /// The packet is sent now. If it replaced another one, that one is dropped.
    Pass { packet: P, replaced: bool },
}

impl<P> Thinner<P> {
    /// Time at which the first held packet is sent.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.held.front().map(|held| held.until)
    }

    /// Removes the packet that was held longest.
    pub(crate) fn release(&mut self) -> Option<P> {
        self.held.pop_front().map(|held| held.packet)
    }

    /// Removes the held packet of `flow`, which must be sent before a larger one.
    pub(crate) fn release_flow(&mut self, flow: u64) -> Option<P> {
        let index = self.held.iter().position(|held| held.flow == flow)?;
        self.held.remove(index).map(|held| held.packet)
    }

    /// Offers a small packet.
    pub(crate) fn take(
        &mut self,
        thinning: &AckThinning,
        now: Timestamp,
        flow: u64,
        packet: P,
    ) -> Thinned<P> {
        if let Some(index) = self.held.iter().position(|held| held.flow == flow) {
            if let Some(held) = self.held.get_mut(index) {
                held.count += 1;
                if held.count < thinning.keep_one_of {
                    held.packet = packet;
                    return Thinned::Held { replaced: true, released: None };
                }
            }
            self.held.remove(index);
            return Thinned::Pass { packet, replaced: true };
        }
        if thinning.keep_one_of <= 1 {
            return Thinned::Pass { packet, replaced: false };
        }
        let released = if self.held.len() >= MAX_HELD { self.release() } else { None };
        self.held.push_back(Held { flow, until: now + thinning.window, count: 1, packet });
        Thinned::Held { replaced: false, released }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THINNING: AckThinning =
        AckThinning { max_len: 100, keep_one_of: 4, window: Duration::from_millis(2) };

    #[test]
    fn only_the_newest_of_n_acknowledgements_is_sent() {
        let mut thinner = Thinner::default();
        let now = Timestamp::from_millis(1);
        let mut passed = Vec::new();
        for number in 0..10 {
            if let Thinned::Pass { packet, .. } = thinner.take(&THINNING, now, 0, number) {
                passed.push(packet);
            }
        }
        assert_eq!(passed, [3, 7]);
        assert_eq!(thinner.next(), Some(Timestamp::from_millis(3)));
        assert_eq!((thinner.release_flow(1), thinner.release_flow(0)), (None, Some(9)));
        assert_eq!(thinner.next(), None);
    }

    #[test]
    fn flows_are_thinned_separately_and_their_number_is_bounded() {
        let mut thinner = Thinner::default();
        let now = Timestamp::from_millis(1);
        for flow in 0..MAX_HELD as u64 {
            let taken = thinner.take(&THINNING, now, flow, flow);
            assert_eq!(taken, Thinned::Held { replaced: false, released: None });
        }
        let taken = thinner.take(&THINNING, now, 99, 99);
        assert_eq!(taken, Thinned::Held { replaced: false, released: Some(0) });
        let one = AckThinning { keep_one_of: 1, ..THINNING };
        let passed = Thinner::default().take(&one, now, 0, 5);
        assert_eq!(passed, Thinned::Pass { packet: 5, replaced: false });
    }
}
