//! What happens at a node: links, sessions, missing routes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;

use bats_proto::CloseReason;
use bytes::Bytes;

use super::{LinkId, NodeId};
use crate::fingerprint::Fingerprint;
use crate::shared::Shared;
use crate::wait::Wait;
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

    fn pop(&mut self) -> Option<Event> {
        match std::mem::take(&mut self.missed) {
            0 => self.waiting.pop_front(),
            count => Some(Event::Missed { count }),
        }
    }

    pub(crate) fn wake_all(&mut self, due: &mut Vec<Waker>) {
        self.wakers.drain_into(due);
    }
}

/// The events of a node, in order. All values for a node take from the same queue of 1,024 events,
/// whose oldest are dropped when it is full.
#[derive(Clone, Debug)]
pub struct Events {
    shared: Arc<Shared>,
}

impl Events {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits for the next event; `None` when the node is shut down and all events are taken.
    ///
    /// Cancel safe: a future that is dropped takes no event.
    pub async fn next(&self) -> Option<Event> {
        poll_fn(|context| {
            let mut core = self.shared.lock();
            let is_over = core.is_shut_down || core.ended.is_some();
            let Some(node) = &mut core.node else { return Poll::Ready(None) };
            if let Some(event) = node.events.pop() {
                return Poll::Ready(Some(event));
            }
            if is_over {
                return Poll::Ready(None);
            }
            node.events.wakers.register(context.waker());
            Poll::Pending
        })
        .await
    }

    /// Returns the next event if there is one now.
    #[must_use]
    pub fn try_next(&self) -> Option<Event> {
        self.shared.lock().node.as_mut()?.events.pop()
    }

    /// Calls `callback` with each event, on a thread of its own. The thread ends with the node.
    ///
    /// # Errors
    /// The system has no more threads.
    pub fn for_each(self, mut callback: impl FnMut(Event) + Send + 'static) -> std::io::Result<()> {
        let run = move || {
            while let Some(event) = self.next().wait() {
                callback(event);
            }
        };
        thread::Builder::new().name("openbats-events".into()).spawn(run).map(drop)
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
