//! The events of a node, as the application takes them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::thread;

use super::event::Event;
use crate::shared::Shared;
use crate::wait::Wait;

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
            node.events.register(context.waker());
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
