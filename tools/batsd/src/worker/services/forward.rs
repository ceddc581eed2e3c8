//! Datagrams of programs to one destination: an association for each source.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use bats_node::NodeId;
use openbats::Channel;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::super::Worker;
use super::UDP_IDLE;
use super::received::received;
use super::relay::Datagrams;
use crate::proxy::request::{MAX_PAYLOAD, Request, encode_datagram};
use crate::proxy::target::Target;

/// Datagrams that wait for a channel; more are dropped, as a full socket buffer does.
const QUEUE: usize = 64;
/// Sources at a time.
const MAX_SOURCES: usize = 256;

pub(super) async fn serve(worker: Arc<Worker>, socket: UdpSocket, exit: NodeId, target: Target) {
    let socket = Arc::new(socket);
    let mut sources = Sources::default();
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let result = socket.recv_from(&mut buffer).await;
        let Some((length, source)) = received(result).await else { continue };
        let payload = buffer.get(..length).unwrap_or_default();
        let Some(frame) = encode_datagram(&target, payload) else { continue };
        if !sources.has(source) {
            if !sources.make_room() {
                let counters = &worker.services.counters;
                counters.over_limit.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                continue;
            }
            let Some(permit) = worker.services.admit() else { continue };
            let receiver = sources.add(source);
            let (worker, socket) = (Arc::clone(&worker), Arc::clone(&socket));
            tokio::spawn(async move {
                if let Ok(channel) = super::open(&worker, exit, &Request::Udp).await {
                    associate(&channel, receiver, &socket, source).await;
                }
                drop(permit);
            });
        }
        sources.queue(source, frame);
    }
}

/// The queues of the sources. That of an association that has ended is closed.
#[derive(Default)]
struct Sources(BTreeMap<SocketAddr, mpsc::Sender<Vec<u8>>>);

impl Sources {
    fn has(&self, source: SocketAddr) -> bool {
        self.0.get(&source).is_some_and(|queue| !queue.is_closed())
    }

    /// Removes those that have ended. Returns whether there is room for another one.
    fn make_room(&mut self) -> bool {
        self.0.retain(|_, queue| !queue.is_closed());
        self.0.len() < MAX_SOURCES
    }

    fn add(&mut self, source: SocketAddr) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        self.0.insert(source, sender);
        receiver
    }

    /// Queues a datagram of a source, or drops it if its queue is full.
    fn queue(&self, source: SocketAddr, frame: Vec<u8>) {
        if let Some(queue) = self.0.get(&source) {
            let _ = queue.try_send(frame);
        }
    }
}

async fn associate(
    channel: &Channel,
    mut queue: mpsc::Receiver<Vec<u8>>,
    socket: &UdpSocket,
    source: SocketAddr,
) {
    // An answer without requests does not keep an association: its source would be anyone's.
    let up = async {
        while let Ok(Some(frame)) = tokio::time::timeout(UDP_IDLE, queue.recv()).await {
            channel.write_all(&frame).await?;
        }
        Err::<(), std::io::Error>(std::io::ErrorKind::TimedOut.into())
    };
    let down = async {
        let mut datagrams = Datagrams::new(channel);
        while let Ok((_, payload)) = datagrams.next().await {
            let _ = socket.send_to(&payload, source).await;
        }
        Err::<(), std::io::Error>(std::io::ErrorKind::UnexpectedEof.into())
    };
    let _ = tokio::try_join!(up, down);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn there_is_room_for_256_sources_and_in_place_of_those_that_have_ended() {
        let mut sources = Sources::default();
        let mut receivers: Vec<_> = (1..=256)
            .map(|port| {
                assert!(sources.make_room(), "{port}");
                sources.add(source(port))
            })
            .collect();
        assert!(!sources.make_room());
        drop(receivers.swap_remove(6));
        assert!(sources.has(source(1)) && !sources.has(source(7)));
        assert!(sources.make_room());
        let _receiver = sources.add(source(257));
        assert!(!sources.make_room());
    }

    #[test]
    fn datagrams_beyond_64_of_a_source_are_dropped() {
        let mut sources = Sources::default();
        let (mut first, mut other) = (sources.add(source(1)), sources.add(source(2)));
        (0..=64).for_each(|number| sources.queue(source(1), vec![number]));
        sources.queue(source(2), vec![0]);
        assert_eq!((first.len(), other.len()), (64, 1));
        assert_eq!((first.try_recv().unwrap(), other.try_recv().unwrap()), (vec![0], vec![0]));
        sources.queue(source(1), vec![65]);
        let last = std::iter::from_fn(|| first.try_recv().ok()).last();
        assert_eq!(last, Some(vec![65]));
    }
}
