//! From sessions of the peers to the device.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use bats_node::NodeId;
use bats_tun::Packet;
use openbats::Channel;
use openbats::node::Session;
use tokio::io::{AsyncRead, ReadBuf};

use super::super::Worker;
use super::filter::may_deliver;
use super::format::{Content, Malformed, Parts, parse};
use super::lock;

/// Bytes that are read from a channel at once, by all channels into one buffer. Chosen: four packets of
/// the largest size.
pub(in super::super) const READ_BUFFER: usize = 256 << 10;
/// Memory in bytes for what a peer sends in a session. A fifth is the window of its channels: 80 MB are four
/// round trips of 100 ms at 1 Gbit/s (the sender holds no more) and half of that for credit that is lost.
pub(in super::super) const RECEIVE_BUDGET: usize = 384 << 20;
/// Code of channels that this end stops: what arrives in them are no packets, or there are too many.
const REFUSED: u64 = 1;

/// Handles what a peer sends: the kernel gets packets whose source addresses the peer owns; echo requests
/// are answered through the session of the same mode.
fn deliver(worker: &Worker, peer: NodeId, is_stream: bool, content: Content<'_>) {
    let (offload, bytes) = match content {
        Content::Packet(offload, bytes) => (offload, bytes),
        Content::Echo(echo) => {
            let table = worker.table();
            let lane = table.lanes.get(&peer).map(|lanes| lanes.of(is_stream));
            worker.echoes.take(peer, lane, echo);
            return;
        }
        Content::Speedtest(message) => {
            let table = worker.table();
            let lane = table.lanes.get(&peer).map(|lanes| &lanes.stream);
            worker.speedtests.take(peer, lane, message);
            return;
        }
    };
    let Some(port) = &worker.port else { return };
    let Some(packet) = Packet::parse(bytes) else {
        port.counters.malformed.fetch_add(1, Relaxed);
        return;
    };
    if !may_deliver(&worker.table(), peer, &packet, bytes) {
        port.counters.foreign_source.fetch_add(1, Relaxed);
        return;
    }
    port.write(offload, bytes);
}

fn count_malformed(worker: &Worker) {
    if let Some(port) = &worker.port {
        port.counters.malformed.fetch_add(1, Relaxed);
    }
}

/// Receives messages over a session that a peer has opened: one packet in each. Peers send packets in channels if
/// the session has them.
pub(in super::super) async fn receive_messages(
    worker: Arc<Worker>,
    peer: NodeId,
    session: Session,
) {
    while let Ok(Some(message)) = session.recv().await {
        match parse(&mut message.to_vec()) {
            Ok(content) if session.mode() == openbats::Mode::Btp => {
                deliver(&worker, peer, false, content);
            }
            Ok(_) | Err(Malformed) => count_malformed(&worker),
        }
    }
}

/// Refuses a channel: it is one too many.
pub(in super::super) fn refuse(worker: &Worker, channel: &Channel) {
    count_malformed(worker);
    channel.stop(REFUSED);
}

/// Receives the packets of a channel that a peer has opened, from the byte after the first. Its task reads
/// as fast as they arrive, and lets other channels read after each turn.
pub(in super::super) async fn receive_channel(worker: &Worker, peer: NodeId, channel: &Channel) {
    // It is read at once, so unread bytes are those behind a missing symbol: a flow that is alone may have
    // the window of the session.
    let _ = channel.set_receive_share(1);
    let mut parts = Parts::default();
    loop {
        let read = poll_fn(|context| poll_packets(worker, peer, channel, &mut parts, context));
        match read.await {
            Ok(Ok(0)) | Err(_) => return,
            Ok(Ok(_)) => tokio::task::yield_now().await,
            Ok(Err(Malformed)) => return refuse(worker, channel),
        }
    }
}

/// Reads once and delivers what is complete. Returns the number of bytes, 0 at the end.
fn poll_packets(
    worker: &Worker,
    peer: NodeId,
    channel: &Channel,
    parts: &mut Parts,
    context: &mut Context<'_>,
) -> Poll<io::Result<Result<usize, Malformed>>> {
    let mut buffer = lock(&worker.read_buffer);
    let mut read = ReadBuf::new(&mut buffer);
    let polled = Pin::new(&mut &*channel).poll_read(context, &mut read);
    polled.map_ok(|()| {
        let bytes = read.filled_mut();
        let length = bytes.len();
        parts.feed(bytes, |content| deliver(worker, peer, true, content)).map(|()| length)
    })
}
