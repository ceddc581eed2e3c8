use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

/// Flows that thinning holds a packet of at most; beyond, the one that is held longest goes on.
const MAX_HELD: usize = 64;

/// Thinning of acknowledgements, as cable modems and wireless links do it: of small packets of a flow
/// that come in a row only the newest goes on.
///
/// The first small packet is held. Each one that follows replaces it, and the `keep_one_of`-th goes on
/// at once. What is held goes on after `window`, or before a larger packet of its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckThinning {
    /// Packets of at most so many bytes are thinned, without `frame_overhead`.
    pub max_len: usize,
    /// Of so many packets one goes on; 1 thins nothing.
    pub keep_one_of: u32,
    /// How long a packet is held at most.
    pub window: Duration,
}

#[derive(Debug)]
struct Held<P> {
    flow: u64,
    until: Timestamp,
    count: u32,
    packet: P,
}

/// The packets that are held.
#[derive(Debug)]
pub(crate) struct Thinner<P> {
    /// By the time until which they are held, if the window does not change.
    held: VecDeque<Held<P>>,
}

impl<P> Default for Thinner<P> {
    fn default() -> Self {
        Self { held: VecDeque::new() }
    }
}

/// What becomes of a small packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Thinned<P> {
    /// It is held.
    Held {
        /// It took another's place.
        replaced: bool,
        /// A packet that goes on now for lack of room.
        released: Option<P>,
    },
    /// It goes on; if it took another's place, that one is dropped.
    Pass { packet: P, replaced: bool },
}

impl<P> Thinner<P> {
    /// When the first packet has been held for long enough.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.held.front().map(|held| held.until)
    }

    /// The packet that is held longest.
    pub(crate) fn release(&mut self) -> Option<P> {
        self.held.pop_front().map(|held| held.packet)
    }

    /// The packet of `flow` that is held, which must go before a larger one.
    pub(crate) fn release_flow(&mut self, flow: u64) -> Option<P> {
        let index = self.held.iter().position(|held| held.flow == flow)?;
        self.held.remove(index).map(|held| held.packet)
    }

    /// Takes a small packet.
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
    fn the_newest_of_n_goes_on() {
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
    fn flows_are_apart_and_bounded() {
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
