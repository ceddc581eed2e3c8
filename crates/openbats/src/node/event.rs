//! What happens at a node: links, sessions, missing routes.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::task::Waker;

use bats_proto::CloseReason;
use bats_proto::wire::flow::NodeId;
use bytes::Bytes;

use super::link::LinkId;
use crate::fingerprint::Fingerprint;
use crate::wakers::Wakers;

/// Events that wait for the application; the oldest are dropped for newer ones.
pub(crate) const MAX_EVENTS: usize = 1_024;

/// An event of a node; see [`Node::events`](super::Node::events).
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A link is established: a neighbour opened it, or answered one that this node opened.
    #[non_exhaustive]
    LinkUp {
        /// The link.
        link: LinkId,
        /// Address of the neighbour.
        remote: SocketAddr,
        /// Fingerprint of the neighbour's certificate.
        fingerprint: Option<Fingerprint>,
    },
    /// The neighbour does not answer any more. Other links are used if there are any.
    #[non_exhaustive]
    LinkSilent {
        /// The link.
        link: LinkId,
    },
    /// The neighbour answers again.
    #[non_exhaustive]
    LinkResponsive {
        /// The link.
        link: LinkId,
    },
    /// A link has ended, or an attempt to establish it has failed. A link that this node opened is
    /// established again, unless it was closed or redialling is off.
    #[non_exhaustive]
    LinkDown {
        /// The link.
        link: LinkId,
        /// Why.
        reason: CloseReason,
    },
    /// A neighbour tried to open a link and was not admitted.
    #[non_exhaustive]
    LinkRefused {
        /// Address of the neighbour.
        remote: SocketAddr,
        /// Fingerprint of its certificate, if it has shown one.
        fingerprint: Option<Fingerprint>,
        /// Why.
        reason: String,
    },
    /// A session is established, opened by either end.
    #[non_exhaustive]
    SessionOpened {
        /// The other end.
        node: NodeId,
    },
    /// A session has ended.
    #[non_exhaustive]
    SessionClosed {
        /// The other end.
        node: NodeId,
        /// Why.
        reason: CloseReason,
    },
    /// A node tried to open a session and was refused, or another node answered in its place.
    #[non_exhaustive]
    SessionRefused {
        /// The node that the other end claims to be.
        node: NodeId,
        /// Fingerprint of its certificate, if it has shown one.
        fingerprint: Option<Fingerprint>,
        /// Why.
        reason: String,
    },
    /// Packets for this node were dropped because no route leads there. Reported at most once a
    /// second for a node.
    #[non_exhaustive]
    NoRoute {
        /// The destination.
        destination: NodeId,
    },
    /// Most packets of the neighbour are not innovative: it is defective or misbehaves. Other links are
    /// preferred.
    #[non_exhaustive]
    NonInnovativeNeighbour {
        /// The link.
        link: LinkId,
    },
    /// Data that took this link to that node was polluted on its path. Other links are preferred.
    #[non_exhaustive]
    PollutingPath {
        /// The link.
        link: LinkId,
        /// The destination.
        destination: NodeId,
    },
    /// A neighbour sent a message on a link, and the node
    /// [accepts them](super::NodeBuilder::link_messages). A neighbour gets through 100 messages a second on
    /// average; more are dropped.
    #[non_exhaustive]
    LinkMessage {
        /// The link.
        link: LinkId,
        /// The message, of at most 1,024 bytes.
        message: Bytes,
    },
    /// The application has not taken its events in time, so events were dropped.
    #[non_exhaustive]
    Missed {
        /// Number of events.
        count: u64,
    },
}

/// The events that the application has not taken.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    waiting: VecDeque<Event>,
    missed: u64,
    wakers: Wakers,
}

impl EventQueue {
    pub(crate) fn push(&mut self, event: Event, due: &mut Vec<Waker>) {
        if self.waiting.len() >= MAX_EVENTS {
            self.waiting.pop_front();
            self.missed += 1;
        }
        self.waiting.push_back(event);
        self.wakers.drain_into(due);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        match std::mem::take(&mut self.missed) {
            0 => self.waiting.pop_front(),
            count => Some(Event::Missed { count }),
        }
    }

    /// Wakes the task of `waker` when there is an event.
    pub(super) fn register(&mut self, waker: &Waker) {
        self.wakers.register(waker);
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.wakers.drain_into(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_of_events_is_bounded_and_reports_the_dropped_ones() {
        let mut queue = EventQueue::default();
        let event = |link| Event::LinkSilent { link: LinkId(link) };
        for link in 0..MAX_EVENTS as u64 {
            queue.push(event(link), &mut Vec::new());
        }
        assert_eq!(queue.missed, 0);
        queue.push(event(7_777), &mut Vec::new());
        queue.push(event(8_888), &mut Vec::new());
        assert_eq!(queue.pop(), Some(Event::Missed { count: 2 }));
        let rest: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(rest.len(), MAX_EVENTS);
        assert_eq!((&rest[0], &rest[MAX_EVENTS - 1]), (&event(2), &event(8_888)));
    }
}
