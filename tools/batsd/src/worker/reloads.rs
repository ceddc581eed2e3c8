//! Reloads of the configuration, which the keeper does.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;

use super::tunnel::lock;
use crate::channel::{self, ToKeeper};

/// How long a reload may take: the keeper compares the host's routes, and names are resolved.
const ANSWER: Duration = Duration::from_secs(60);

/// Reloads that wait for the keeper's answer.
pub(super) struct Reloads {
    keeper: Arc<OwnedFd>,
    waiting: Mutex<Vec<oneshot::Sender<Result<(), String>>>>,
}

impl Reloads {
    pub(super) fn new(keeper: Arc<OwnedFd>) -> Self {
        Self { keeper, waiting: Mutex::default() }
    }

    /// The channel to the keeper.
    pub(super) fn keeper(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.keeper)
    }

    /// Whether a user may change the node: root, and the user of the keeper. That of the worker may not: with a
    /// keeper of root, other programs may have the same user.
    pub(super) fn may_change(&self, user: u32) -> bool {
        let keeper = rustix::net::sockopt::socket_peercred(&*self.keeper);
        user == 0 || keeper.is_ok_and(|keeper| keeper.uid.as_raw() == user)
    }

    /// Asks the keeper to reload the configuration, and waits for its answer.
    pub(super) async fn request(&self) -> Result<(), String> {
        self.request_within(ANSWER).await
    }

    async fn request_within(&self, time: Duration) -> Result<(), String> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            waiting.push(sender);
            // One request at a time: all waiting calls get its answer.
            if waiting.len() == 1
                && let Err(error) = channel::send(self.keeper.as_fd(), &ToKeeper::Reload, &[])
            {
                waiting.clear();
                return Err(error.to_string());
            }
        }
        match tokio::time::timeout(time, receiver).await {
            Ok(answer) => answer.unwrap_or_else(|_| Err("the node ends".to_owned())),
            Err(_) => {
                // The answer may be lost. Later calls must ask again.
                lock(&self.waiting).clear();
                Err(format!("no answer of the keeper in {} s", time.as_secs()))
            }
        }
    }

    /// The keeper's answer.
    pub(super) fn done(&self, result: Result<(), String>) {
        for sender in lock(&self.waiting).drain(..) {
            let _ = sender.send(result.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn requests_after_a_lost_answer_ask_again() {
        let (keeper, other) = UnixDatagram::pair().unwrap();
        let reloads = Reloads::new(Arc::new(OwnedFd::from(keeper)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for _ in 0..2 {
            let request = reloads.request_within(Duration::from_millis(1));
            assert!(runtime.block_on(request).is_err());
            assert!(other.recv(&mut [0; 256]).unwrap() > 0, "the keeper was asked");
        }
    }

    #[test]
    fn each_request_that_cannot_be_sent_is_an_error() {
        let (keeper, other) = UnixDatagram::pair().unwrap();
        drop(other);
        let reloads = Reloads::new(Arc::new(OwnedFd::from(keeper)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for _ in 0..2 {
            let request =
                async { tokio::time::timeout(Duration::from_secs(10), reloads.request()).await };
            assert!(runtime.block_on(request).expect("no wait for an answer").is_err());
        }
    }
}
