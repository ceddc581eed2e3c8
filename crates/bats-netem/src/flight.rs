//! Packets in transit: transmitted, not delivered yet.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use bats_types::Timestamp;

/// What a packet may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// Nothing.
    InOrder,
    /// All.
    Free,
    /// Packets of other classes than this.
    Class(usize),
}

#[derive(Debug)]
pub(crate) struct Flying<P> {
    pub(crate) at: Timestamp,
    order: u64,
    pub(crate) packet: P,
}

impl<P> PartialEq for Flying<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<P> Eq for Flying<P> {}

impl<P> PartialOrd for Flying<P> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for Flying<P> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Debug)]
pub(crate) struct Flight<P> {
    in_order: VecDeque<Flying<P>>,
    /// Everything else.
    others: BinaryHeap<Reverse<Flying<P>>>,
    order: u64,
    /// The last arrival of each class.
    last: Vec<Timestamp>,
}

impl<P> Default for Flight<P> {
    fn default() -> Self {
        Self { in_order: VecDeque::new(), others: BinaryHeap::new(), order: 0, last: Vec::new() }
    }
}

impl<P> Flight<P> {
    /// Sends a packet off whose transmission ends at `through`.
    pub(crate) fn launch(&mut self, through: Timestamp, lag: Duration, route: Route, packet: P) {
        let mut at = through + lag;
        self.order += 1;
        let order = self.order;
        match route {
            Route::InOrder => {
                let last = self.in_order.back().map_or(Timestamp::ZERO, |last| last.at);
                at = at.max(last);
                self.in_order.push_back(Flying { at, order, packet });
                return;
            }
            Route::Free => {}
            Route::Class(class) => {
                if class >= self.last.len() {
                    self.last.resize(class + 1, Timestamp::ZERO);
                }
                at = at.max(self.last[class]);
                self.last[class] = at;
            }
        }
        self.others.push(Reverse(Flying { at, order, packet }));
    }

    /// The number of the packet launched last.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    fn first(&self) -> Option<(Timestamp, u64, bool)> {
        let first = self.in_order.front().map(|flying| (flying.at, flying.order, true));
        let other = self.others.peek().map(|Reverse(flying)| (flying.at, flying.order, false));
        match (first, other) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When the first packet arrives.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.first().map(|(at, ..)| at)
    }

    /// The first packet.
    pub(crate) fn pop(&mut self) -> Option<P> {
        let (_, _, is_in_order) = self.first()?;
        let flying = if is_in_order {
            self.in_order.pop_front()
        } else {
            self.others.pop().map(|Reverse(flying)| flying)
        };
        flying.map(|flying| flying.packet)
    }

    /// Takes back the last `count` packets, in the order of their launch. `route` says which one a
    /// packet takes that may overtake others.
    pub(crate) fn take_back(
        &mut self,
        count: u64,
        route: impl Fn(&P) -> Route,
    ) -> Vec<(Flying<P>, Route)> {
        let from = (self.order + 1).saturating_sub(count);
        let mut taken = Vec::new();
        while self.in_order.back().is_some_and(|flying| flying.order >= from) {
            taken.extend(self.in_order.pop_back().map(|flying| (flying, Route::InOrder)));
        }
        let others = core::mem::take(&mut self.others).into_vec();
        self.last.fill(Timestamp::ZERO);
        for Reverse(flying) in others {
            let route = route(&flying.packet);
            if flying.order >= from {
                taken.push((flying, route));
                continue;
            }
            if let Route::Class(class) = route
                && let Some(last) = self.last.get_mut(class)
            {
                *last = flying.at.max(*last);
            }
            self.others.push(Reverse(flying));
        }
        taken.sort_unstable_by_key(|(flying, _)| flying.order);
        taken
    }
}
