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
/// Packets that a channel delivers before others have their turn: 256 KiB can be 52,000 of the smallest. Chosen: a
/// packet costs a system call, and 256 KiB of full-sized ones are fewer.
const TURN: usize = 256;
/// Memory in bytes for what a peer sends in a session. A fifth is the window of its channels: 80 MB are six
/// round trips of 100 ms at 1 Gbit/s, of which repairs of a lost symbol and of lost credit take up to three each.
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
    let mut writes = 0_usize;
    while let Ok(Some(message)) = session.recv().await {
        match parse(&mut message.to_vec()) {
            Ok(content) if session.mode() == openbats::Mode::Btp => {
                writes = writes.saturating_add(most_writes(&content));
                deliver(&worker, peer, false, content);
            }
            Ok(_) | Err(Malformed) => {
                writes = writes.saturating_add(1);
                count_malformed(&worker);
            }
        }
        // Messages may arrive as fast as they are delivered; other tasks have their turn meanwhile.
        if writes >= TURN {
            writes = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Calls of the system that delivering a packet takes at most: without the kernel's help one for each segment.
fn most_writes(content: &Content<'_>) -> usize {
    match content {
        Content::Packet(offload, bytes) => {
            bytes.len().checked_div(usize::from(offload.segment)).unwrap_or(0).saturating_add(1)
        }
        _ => 1,
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
    let mut incoming = Incoming::default();
    loop {
        let turn = poll_fn(|context| poll_turn(worker, peer, channel, &mut incoming, context));
        match turn.await {
            Ok(Ok(Turn::End)) | Err(_) => return,
            Ok(Ok(Turn::Next)) => tokio::task::yield_now().await,
            Ok(Err(Malformed)) => return refuse(worker, channel),
        }
    }
}

/// What follows a turn.
enum Turn {
    Next,
    End,
}

/// What has arrived in a channel.
#[derive(Default)]
struct Incoming {
    parts: Parts,
    /// What was read in a turn with more than [`TURN`] packets, and how much of it was delivered: less than
    /// [`READ_BUFFER`] bytes.
    rest: Vec<u8>,
    delivered: usize,
}

impl Incoming {
    /// Delivers the packets of a turn: those in `read`, or those that are left from the turn before.
    fn deliver(
        &mut self,
        read: Option<&mut [u8]>,
        take: impl FnMut(Content<'_>),
    ) -> Result<(), Malformed> {
        if let Some(bytes) = read {
            let left = self.parts.feed(bytes, TURN, take)?;
            let delivered = bytes.len().saturating_sub(left);
            self.rest.extend_from_slice(bytes.get(delivered..).unwrap_or_default());
            return Ok(());
        }
        let bytes = self.rest.get_mut(self.delivered..).unwrap_or_default();
        let left = self.parts.feed(bytes, TURN, take)?;
        self.delivered = self.rest.len().saturating_sub(left);
        if left == 0 {
            (self.rest, self.delivered) = (Vec::new(), 0);
        }
        Ok(())
    }
}

/// Delivers the packets of a turn; reads once if none are left.
fn poll_turn(
    worker: &Worker,
    peer: NodeId,
    channel: &Channel,
    incoming: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<io::Result<Result<Turn, Malformed>>> {
    let take = |content: Content<'_>| deliver(worker, peer, true, content);
    if !incoming.rest.is_empty() {
        return Poll::Ready(Ok(incoming.deliver(None, take).map(|()| Turn::Next)));
    }
    let mut buffer = lock(&worker.read_buffer);
    let mut read = ReadBuf::new(&mut buffer);
    let polled = Pin::new(&mut &*channel).poll_read(context, &mut read);
    polled.map_ok(|()| match read.filled_mut() {
        [] => Ok(Turn::End),
        bytes => incoming.deliver(Some(bytes), take).map(|()| Turn::Next),
    })
}

#[cfg(test)]
mod tests {
    use super::super::format::{Echo, echo, packet};
    use super::*;

    #[test]
    fn a_turn_delivers_a_bounded_number_of_packets_and_the_next_ones_the_rest() {
        let encoded = |number| echo(Echo { is_reply: false, number });
        let large = packet(bats_tun::Offload::default(), &[7; 3_000]);
        let sent = (0..1_000).chain([1_000; 5]).chain(1_001..1_400).collect::<Vec<u64>>();
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|&number| if number == 1_000 { large.clone() } else { encoded(number) })
            .collect();
        let (mut incoming, mut all, mut turns) = (Incoming::default(), Vec::new(), Vec::new());
        // The cut is within a packet.
        let (first, second) = bytes.split_at(13 * 700 + 6);
        for piece in [first, second] {
            let mut read = Some(piece.to_vec());
            while read.is_some() || !incoming.rest.is_empty() {
                let before = all.len();
                let take = |content: Content<'_>| match content {
                    Content::Echo(echo) => all.push(echo.number),
                    _ => all.push(1_000),
                };
                incoming.deliver(read.take().as_deref_mut(), take).unwrap();
                turns.push(all.len() - before);
            }
        }
        assert_eq!(all, sent);
        assert_eq!(turns, [256, 256, 188, 256, 256, 192]);
        assert_eq!(incoming.rest.capacity(), 0, "memory of a burst is freed");
    }
}
