//! `batsctl drain`: takes nothing new, lets connections of programs end, and ends the node.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::Worker;
use super::tunnel::lock;
use crate::channel::{self, ToKeeper};

/// Longest time for connections to end.
pub(super) const MAX_SECONDS: f64 = 86_400.0;
/// Interval between looks at the open connections.
const LOOK: Duration = Duration::from_millis(20);
/// Time for the client to get the answer before the node ends.
const ANSWER: Duration = Duration::from_millis(100);

/// Begins to drain, for at most this time. The receiver gets the result just before the node ends.
pub(super) fn begin(
    worker: &Arc<Worker>,
    limit: Duration,
) -> Result<oneshot::Receiver<Value>, String> {
    if !worker.services.begin_draining() {
        return Err("the node drains already".to_owned());
    }
    let keeper = worker.reloads.keeper();
    notify(&keeper, &ToKeeper::Drain)?;
    for (_, task) in lock(&worker.listeners).drain(..) {
        task.abort();
    }
    let (sender, receiver) = oneshot::channel();
    let worker = Arc::clone(worker);
    tokio::spawn(async move {
        let start = Instant::now();
        let mut open = worker.services.open_connections();
        while open > 0 && start.elapsed() < limit {
            tokio::time::sleep(LOOK).await;
            open = worker.services.open_connections();
        }
        // The client may have gone.
        let _ = sender.send(json!({ "seconds": start.elapsed().as_secs_f64(), "cut": open }));
        tokio::time::sleep(ANSWER).await;
        let _ = notify(&keeper, &ToKeeper::Stop);
    });
    Ok(receiver)
}

fn notify(keeper: &OwnedFd, message: &ToKeeper) -> Result<(), String> {
    channel::send(keeper.as_fd(), message, &[])
        .map_err(|error| format!("cannot reach the keeper: {error}"))
}
