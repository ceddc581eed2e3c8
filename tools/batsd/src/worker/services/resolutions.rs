//! Name resolutions of an exit. A resolution keeps its thread until the resolver gives up, and a peer can ask for
//! names whose servers never answer. So each peer has a place that the others cannot take: it resolves one name at
//! a time whatever they do. The other places are for all, and a peer has a limit there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bats_node::NodeId;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use super::super::tunnel::lock;
use crate::config::MAX_PEERS;

/// Resolutions at a time for all peers, in addition to one of each: each takes a thread.
const MAX_RESOLUTIONS: usize = 32;
/// Those of a peer, the one of its own included: a quarter, as of the connections of an exit. So it takes at
/// least five peers to leave the others with one each.
const MAX_OF_PEER: usize = MAX_RESOLUTIONS / 4;
/// Threads of all resolutions if each peer uses its own place. With fewer threads, resolutions without an answer
/// would keep those of other peers waiting for a thread.
pub(in super::super) const MAX_THREADS: usize = MAX_RESOLUTIONS + MAX_PEERS;

/// The places of a peer.
#[derive(Clone)]
struct Places {
    /// As many as the peer may have at a time: further ones wait here, behind those of the same peer only.
    all: Arc<Semaphore>,
    /// The one that no other peer can take.
    own: Arc<Semaphore>,
}

/// A peer that has resolutions, or waits for them.
struct Entry {
    resolutions: usize,
    places: Places,
}

/// The places of all resolutions.
pub(super) struct Resolutions {
    common: Arc<Semaphore>,
    /// Only peers with resolutions: peers that have gone take no memory.
    peers: Mutex<BTreeMap<NodeId, Entry>>,
}

impl Default for Resolutions {
    fn default() -> Self {
        Self { common: Arc::new(Semaphore::new(MAX_RESOLUTIONS)), peers: Mutex::default() }
    }
}

/// A resolution that runs or waits, as long as this value exists.
struct Counted {
    resolutions: Arc<Resolutions>,
    peer: NodeId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut peers = lock(&self.resolutions.peers);
        match peers.get_mut(&self.peer) {
            Some(entry) if entry.resolutions > 1 => entry.resolutions -= 1,
            _ => drop(peers.remove(&self.peer)),
        }
    }
}

/// A resolution that runs, as long as this value exists.
pub(super) struct Permit {
    // The order of the fields is that of their drop: an entry without resolutions has all its places.
    _place: OwnedSemaphorePermit,
    _of_peer: OwnedSemaphorePermit,
    _counted: Counted,
}

impl Resolutions {
    fn count(self: &Arc<Self>, peer: NodeId) -> (Counted, Places) {
        let mut peers = lock(&self.peers);
        let entry = peers.entry(peer).or_insert_with(|| Entry {
            resolutions: 0,
            places: Places {
                all: Arc::new(Semaphore::new(MAX_OF_PEER)),
                own: Arc::new(Semaphore::new(1)),
            },
        });
        entry.resolutions = entry.resolutions.saturating_add(1);
        (Counted { resolutions: Arc::clone(self), peer }, entry.places.clone())
    }

    /// Waits for a place for a resolution of this peer. Its connections bound how many of its resolutions wait
    /// (`exits.rs`): each has one at a time.
    pub(super) async fn acquire(self: &Arc<Self>, peer: NodeId) -> Result<Permit, AcquireError> {
        let (counted, places) = self.count(peer);
        let of_peer = places.all.acquire_owned().await?;
        // Its own first: the places for all are left to those that need them. Of each peer, no more wait there than
        // may run.
        let place = tokio::select! {
            biased;
            place = places.own.acquire_owned() => place?,
            place = Arc::clone(&self.common).acquire_owned() => place?,
        };
        Ok(Permit { _place: place, _of_peer: of_peer, _counted: counted })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::task::yield_now;
    use tokio::time::timeout;

    use super::*;

    fn peer(number: u8) -> NodeId {
        NodeId([10, 0, 0, number].into())
    }

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(test)
    }

    /// A place if one is free.
    async fn take(resolutions: &Arc<Resolutions>, number: u8) -> Option<Permit> {
        // Otherwise the budget of the task would end, as if no place were free.
        yield_now().await;
        let acquires = resolutions.acquire(peer(number));
        timeout(Duration::ZERO, acquires).await.ok().map(Result::unwrap)
    }

    async fn take_all(resolutions: &Arc<Resolutions>, number: u8) -> Vec<Permit> {
        let mut permits = Vec::new();
        while let Some(permit) = take(resolutions, number).await {
            permits.push(permit);
        }
        permits
    }

    #[test]
    fn a_peer_with_all_its_resolutions_and_100_waiting_delays_no_other_peer() {
        block_on(async {
            let resolutions = Arc::new(Resolutions::default());
            let mut stuck = take_all(&resolutions, 1).await;
            assert_eq!(stuck.len(), MAX_OF_PEER);
            let wait = || {
                let resolutions = Arc::clone(&resolutions);
                tokio::spawn(async move { resolutions.acquire(peer(1)).await.unwrap() })
            };
            let mut waiting: Vec<_> = (0..100).map(|_| wait()).collect();
            let count = || lock(&resolutions.peers).get(&peer(1)).map(|entry| entry.resolutions);
            while count() != Some(MAX_OF_PEER + 100) {
                yield_now().await;
            }
            let other = take_all(&resolutions, 2).await;
            assert_eq!(other.len(), MAX_OF_PEER);
            assert!(waiting.iter().all(|task| !task.is_finished()));
            // A place that the peer gives up is for the first of its own that wait.
            drop(stuck.pop());
            stuck.push(timeout(Duration::from_secs(5), &mut waiting[0]).await.unwrap().unwrap());
            yield_now().await;
            assert!(waiting.iter().skip(1).all(|task| !task.is_finished()));
        });
    }

    #[test]
    fn peers_that_take_all_they_get_leave_each_other_peer_one_resolution_at_a_time() {
        block_on(async {
            let resolutions = Arc::new(Resolutions::default());
            let mut greedy = Vec::new();
            for number in 1..=6 {
                greedy.push(take_all(&resolutions, number).await);
            }
            let counts: Vec<_> = greedy.iter().map(Vec::len).collect();
            assert_eq!(counts, [8, 8, 8, 8, 5, 1], "32 for all, and one of each peer");
            for number in 7..=40 {
                let permit = take(&resolutions, number).await;
                assert!(permit.is_some());
                assert!(take(&resolutions, number).await.is_none());
                drop(permit);
                greedy.push(take_all(&resolutions, number).await);
                assert_eq!(greedy.last().map(Vec::len), Some(1));
            }
            // A place for all that is given up is for any peer.
            drop(greedy[0].pop());
            let more = take(&resolutions, 40).await;
            assert!(more.is_some());
            assert!(take(&resolutions, 1).await.is_none());
        });
    }

    #[test]
    fn peers_take_no_memory_after_their_last_resolution_ended_or_was_cancelled() {
        block_on(async {
            let resolutions = Arc::new(Resolutions::default());
            let counts = || {
                let peers = lock(&resolutions.peers);
                peers.values().map(|entry| entry.resolutions).collect::<Vec<_>>()
            };
            let mut permits = Vec::new();
            for number in 1..=6 {
                permits.push(take_all(&resolutions, number).await);
            }
            // The last one of each is cancelled while it waits, at its limit or for a place for all.
            assert_eq!(counts(), [8, 8, 8, 8, 5, 1]);
            assert_eq!(resolutions.common.available_permits(), 0);
            let waits = Arc::clone(&resolutions);
            let waiting = tokio::spawn(async move { waits.acquire(peer(6)).await.map(drop) });
            yield_now().await;
            assert_eq!(counts(), [8, 8, 8, 8, 5, 2]);
            drop(permits);
            waiting.await.unwrap().unwrap();
            assert!(counts().is_empty());
            assert_eq!(resolutions.common.available_permits(), MAX_RESOLUTIONS);
        });
    }
}
