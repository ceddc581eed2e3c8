//! Packets in transit: transmitted and not delivered yet.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};

use bats_types::Timestamp;

/// Which packets a packet may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// None.
    InOrder,
    /// All.
    Free,
    /// Those of other classes.
    Class(usize),
}

#[derive(Debug)]
pub(crate) struct InTransit<P> {
    pub(crate) at: Timestamp,
    order: u64,
    pub(crate) packet: P,
}

impl<P> PartialEq for InTransit<P> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl<P> Eq for InTransit<P> {}

impl<P> PartialOrd for InTransit<P> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for InTransit<P> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[derive(Debug)]
pub(crate) struct Flight<P> {
    in_order: VecDeque<InTransit<P>>,
    /// All other packets, in order of arrival time.
    others: BinaryHeap<Reverse<InTransit<P>>>,
    order: u64,
    /// Last arrival time of each class.
    last: Vec<Timestamp>,
}

impl<P> Default for Flight<P> {
    fn default() -> Self {
        Self { in_order: VecDeque::new(), others: BinaryHeap::new(), order: 0, last: Vec::new() }
    }
}

impl<P> Flight<P> {
    /// Adds a packet whose transmission ends at `tx_end`.
    pub(crate) fn launch(&mut self, tx_end: Timestamp, lag: Duration, route: Route, packet: P) {
        let mut at = tx_end + lag;
        self.order += 1;
        let order = self.order;
        match route {
            Route::InOrder => {
                let last = self.in_order.back().map_or(Timestamp::ZERO, |last| last.at);
                at = at.max(last);
                self.in_order.push_back(InTransit { at, order, packet });
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
        self.others.push(Reverse(InTransit { at, order, packet }));
    }

    /// Sequence number of the last packet added.
    pub(crate) fn order(&self) -> u64 {
        self.order
    }

    fn first(&self) -> Option<(Timestamp, u64, bool)> {
        let first = self.in_order.front().map(|in_transit| (in_transit.at, in_transit.order, true));
        let other =
            self.others.peek().map(|Reverse(in_transit)| (in_transit.at, in_transit.order, false));
        match (first, other) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Arrival time of the first packet.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.first().map(|(at, ..)| at)
    }

    /// Removes and returns the first packet.
    pub(crate) fn pop(&mut self) -> Option<P> {
        let (_, _, is_in_order) = self.first()?;
        let in_transit = if is_in_order {
            self.in_order.pop_front()
        } else {
            self.others.pop().map(|Reverse(in_transit)| in_transit)
        };
        in_transit.map(|in_transit| in_transit.packet)
    }

    /// Removes the last `count` packets and returns them in the order in which they were added.
    /// `route` returns the route of a packet among those that may overtake others.
    pub(crate) fn take_back(
        &mut self,
        count: u64,
        route: impl Fn(&P) -> Route,
    ) -> Vec<(InTransit<P>, Route)> {
        let from = (self.order + 1).saturating_sub(count);
        let mut taken = Vec::new();
        while self.in_order.back().is_some_and(|in_transit| in_transit.order >= from) {
            taken.extend(self.in_order.pop_back().map(|in_transit| (in_transit, Route::InOrder)));
        }
        let others = core::mem::take(&mut self.others).into_vec();
        self.last.fill(Timestamp::ZERO);
        for Reverse(in_transit) in others {
            let route = route(&in_transit.packet);
            if in_transit.order >= from {
                taken.push((in_transit, route));
                continue;
            }
            if let Route::Class(class) = route
                && let Some(last) = self.last.get_mut(class)
            {
                *last = in_transit.at.max(*last);
            }
            self.others.push(Reverse(in_transit));
        }
        taken.sort_unstable_by_key(|(in_transit, _)| in_transit.order);
        taken
    }
}
