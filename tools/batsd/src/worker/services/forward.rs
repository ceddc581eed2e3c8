//! Datagrams of programs to one destination: an association for each source.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_node::NodeId;
use openbats::Channel;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;

use super::super::Worker;
use super::UDP_IDLE;
use super::relay::Datagrams;
use crate::proxy::request::{MAX_PAYLOAD, Request, encode_datagram};
use crate::proxy::target::Target;

/// Datagrams that wait for a channel; more are dropped, as a full socket buffer does.
const QUEUE: usize = 64;
/// Sources at a time.
const MAX_SOURCES: usize = 256;

pub(super) async fn serve(worker: Arc<Worker>, socket: UdpSocket, exit: NodeId, target: Target) {
    let socket = Arc::new(socket);
    let mut sources: BTreeMap<SocketAddr, mpsc::Sender<Vec<u8>>> = BTreeMap::new();
    let mut buffer = vec![0; MAX_PAYLOAD];
    loop {
        let Ok((length, source)) = socket.recv_from(&mut buffer).await else {
            // An ICMP error of a datagram before.
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        };
        let payload = buffer.get(..length).unwrap_or_default();
        let Some(frame) = encode_datagram(&target, payload) else { continue };
        let is_open = sources.get(&source).is_some_and(|queue| !queue.is_closed());
        if !is_open {
            sources.retain(|_, queue| !queue.is_closed());
            if sources.len() >= MAX_SOURCES {
                let counters = &worker.services.counters;
                counters.over_limit.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                continue;
            }
            let Some(permit) = worker.services.admit() else { continue };
            let (sender, receiver) = mpsc::channel(QUEUE);
            sources.insert(source, sender);
            let (worker, socket) = (Arc::clone(&worker), Arc::clone(&socket));
            tokio::spawn(async move {
                if let Ok(channel) = super::open(&worker, exit, &Request::Udp).await {
                    associate(&channel, receiver, &socket, source).await;
                }
                drop(permit);
            });
        }
        if let Some(queue) = sources.get(&source) {
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
