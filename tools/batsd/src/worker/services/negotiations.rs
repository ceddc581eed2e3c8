//! Connections of programs that have not said what they want. All users of the host can open them, and so
//! many that the oldest one makes room for a new one, which may be that of another user.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::task::AbortHandle;

use super::super::tunnel::lock;

/// Connections at a time. Each has a descriptor and 8 KiB, and programs say at once what they want.
const MAX_NEGOTIATIONS: usize = 256;

/// The connections, by age.
#[derive(Default)]
pub(super) struct Negotiations {
    open: Mutex<(u64, BTreeMap<u64, AbortHandle>)>,
}

/// A connection that is closed if it is the oldest when there are too many; no more when this is dropped.
pub(super) struct Negotiation {
    negotiations: Arc<Negotiations>,
    number: u64,
}

impl Drop for Negotiation {
    fn drop(&mut self) {
        lock(&self.negotiations.open).1.remove(&self.number);
    }
}

impl Negotiations {
    /// Serves a connection in a task of its own.
    pub(super) fn spawn<F>(self: &Arc<Self>, serve: impl FnOnce(Negotiation) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = lock(&self.open);
        let (last, tasks) = &mut *open;
        *last = last.saturating_add(1);
        let negotiation = Negotiation { negotiations: Arc::clone(self), number: *last };
        // It waits for the lock at its end, so it is in the map before that.
        let task = tokio::spawn(serve(negotiation));
        tasks.insert(*last, task.abort_handle());
        let oldest = (tasks.len() > MAX_NEGOTIATIONS).then(|| tasks.pop_first()).flatten();
        // With the lock: the negotiation cannot end between these two.
        if let Some((_, oldest)) = oldest {
            oldest.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    #[test]
    fn the_oldest_negotiation_makes_room_and_those_that_have_ended_do_not_count() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let negotiations = Arc::new(Negotiations::default());
            let begin = |ends: bool| {
                let (sender, receiver) = oneshot::channel::<()>();
                negotiations.spawn(move |negotiation| async move {
                    let negotiation = (!ends).then_some(negotiation);
                    std::future::pending::<()>().await;
                    drop((sender, negotiation));
                });
                receiver
            };
            let mut served = begin(true);
            tokio::task::yield_now().await;
            let mut open: Vec<_> = (0..MAX_NEGOTIATIONS).map(|_| begin(false)).collect();
            tokio::task::yield_now().await;
            assert!(open.iter_mut().all(|one| one.try_recv() == Err(TryRecvError::Empty)));
            let mut newest = begin(false);
            (&mut open[0]).await.unwrap_err();
            for one in [&mut open[1], &mut newest, &mut served] {
                assert_eq!(one.try_recv(), Err(TryRecvError::Empty));
            }
        });
    }
}
