//! Echo requests between nodes, for `batsctl ping`: through the same queues and sessions as the packets of
//! the tunnel.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bats_node::NodeId;
use tokio::sync::oneshot;

use super::Worker;
use super::tunnel::format::Echo;
use super::tunnel::{Lane, lock};

/// Time to wait for an echo.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Requests that wait for their echo: one of each client of the control socket.
#[derive(Default)]
pub(super) struct Echoes {
    number: AtomicU64,
    /// Each request is for one peer, so that others cannot answer it.
    waiting: Mutex<BTreeMap<(u64, NodeId), oneshot::Sender<()>>>,
}

/// Removes a request that does not wait any more, also if the client has gone.
struct Waiting<'a> {
    echoes: &'a Echoes,
    key: (u64, NodeId),
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.echoes.waiting).remove(&self.key);
    }
}

impl Echoes {
    /// Sends a request to a peer and waits for the echo; returns the round-trip time.
    pub(super) async fn ping(
        &self,
        worker: &Worker,
        peer: NodeId,
        is_stream: bool,
    ) -> Result<Duration, String> {
        let table = worker.table();
        let lanes = table.lanes.get(&peer).ok_or(format!("{peer} is not a peer of this node"))?;
        let lane = lanes.of(is_stream);
        if lock(&lane.session).is_none() {
            let error = lock(&lane.last_error).clone().unwrap_or("it is opening".to_owned());
            return Err(format!("there is no session with {peer}: {error}"));
        }
        let key = (self.number.fetch_add(1, Relaxed), peer);
        let (sender, echo) = oneshot::channel();
        lock(&self.waiting).insert(key, sender);
        let _waiting = Waiting { echoes: self, key };
        let start = Instant::now();
        lane.push_echo(Echo { is_reply: false, number: key.0 });
        match tokio::time::timeout(TIMEOUT, echo).await {
            Ok(Ok(())) => Ok(start.elapsed()),
            _ => Err(format!("no echo from {peer} within {} s", TIMEOUT.as_secs())),
        }
    }

    /// Takes an echo, or answers a request. `lane` leads to the peer.
    pub(super) fn take(&self, peer: NodeId, lane: Option<&Lane>, echo: Echo) {
        if echo.is_reply {
            if let Some(sender) = lock(&self.waiting).remove(&(echo.number, peer)) {
                let _ = sender.send(());
            }
        } else if let Some(lane) = lane {
            lane.answer(Echo { is_reply: true, ..echo });
        }
    }
}

#[cfg(test)]
mod tests {
    use openbats::Mode;

    use super::*;

    #[test]
    fn a_request_gets_one_echo_and_only_the_asked_peer_can_answer() {
        let (echoes, lane) = (Echoes::default(), Lane::new(Mode::Btp));
        let [asked, other] = [1, 2].map(|id: u32| NodeId(std::net::Ipv4Addr::from_bits(id)));
        let request = Echo { is_reply: false, number: 7 };
        let reply = Echo { is_reply: true, ..request };
        echoes.take(other, Some(&lane), request);
        assert_eq!(lane.queue_stats().packets, 1);
        let (sender, mut echo) = oneshot::channel();
        lock(&echoes.waiting).insert((7, asked), sender);
        echoes.take(other, Some(&lane), reply);
        assert!(echo.try_recv().is_err());
        echoes.take(asked, Some(&lane), reply);
        assert!(echo.try_recv().is_ok());
        // Neither a second echo nor an echo without a request has an effect.
        echoes.take(asked, Some(&lane), reply);
        assert_eq!(lane.queue_stats().packets, 1);
    }

    /// A message of 64 KiB has 4,369 requests, and each answer is a packet of its own.
    #[test]
    fn many_requests_at_once_get_few_echoes() {
        let (echoes, lane) = (Echoes::default(), Lane::new(Mode::Btp));
        let peer = NodeId(std::net::Ipv4Addr::from_bits(1));
        for number in 0..4_369 {
            echoes.take(peer, Some(&lane), Echo { is_reply: false, number });
        }
        assert!((1..=50).contains(&lane.queue_stats().packets), "{:?}", lane.queue_stats());
    }
}
