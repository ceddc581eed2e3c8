//! The sending end of the channels of a session.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use openbats::node::Session;
use openbats::{Channel, ChannelError};
use tokio::io::AsyncWrite;

use super::format::TUNNEL;

/// Channels of a session with packets: flows with another hash do not wait for each other. Chosen: with
/// eight flows, 63 % of the sessions have no two of them in one channel.
pub(in super::super) const MAX_CHANNELS: usize = 64;

/// The channel of a flow.
pub(super) fn channel_of(hash: u64) -> usize {
    (hash as usize).rem_euclid(MAX_CHANNELS)
}

struct Outgoing {
    channel: Channel,
    /// What the channel has no room for.
    waiting: VecDeque<Bytes>,
    /// Number of bytes that wait.
    bytes: u64,
    /// Bytes at the last look that were not sent although the peer's credit allows it.
    unsent: u64,
}

impl Outgoing {
    /// Writes what waits, as far as there is room. Returns the number of bytes, and what is wrong with
    /// the channel.
    fn write(&mut self, context: &mut Context<'_>) -> io::Result<usize> {
        let mut total = 0_usize;
        while let Some(first) = self.waiting.front_mut() {
            match Pin::new(&mut &self.channel).poll_write(context, first) {
                Poll::Pending => break,
                Poll::Ready(written) => {
                    let written = written?;
                    total = total.saturating_add(written);
                    first.advance(written);
                    if !first.has_remaining() {
                        self.waiting.pop_front();
                    }
                }
            }
        }
        self.bytes = self.bytes.saturating_sub(total as u64);
        Ok(total)
    }

    fn push(&mut self, packets: Bytes) {
        self.bytes = self.bytes.saturating_add(packets.len() as u64);
        self.waiting.push_back(packets);
        // Until the next look.
        self.unsent = self.unsent.max(1);
    }

    /// Counts the bytes that are not sent although the peer's credit allows it.
    fn look(&mut self) -> Result<u64, ChannelError> {
        // A look costs a lock of the node, and most of the channels are idle.
        if self.unsent > 0 {
            let stats = self.channel.stats()?;
            self.unsent = stats.bytes_queued.saturating_add(self.bytes).min(stats.credit);
        }
        Ok(self.unsent)
    }
}

/// The channels of a session, opened when they are first needed.
pub(super) struct OutgoingChannels {
    channels: [Option<Outgoing>; MAX_CHANNELS],
}

impl OutgoingChannels {
    pub(super) fn new() -> Self {
        Self { channels: [const { None }; MAX_CHANNELS] }
    }

    /// Bytes of these channels that are not sent, although the peer's credit allows it. Those of other
    /// channels of the session do not count: each channel has its turn.
    pub(super) fn unsent(&mut self) -> Result<u64, ChannelError> {
        let mut channels = self.channels.iter_mut().flatten();
        channels.try_fold(0_u64, |total, one| Ok(total.saturating_add(one.look()?)))
    }

    /// Sends packets in a channel; those for which it has no room wait here.
    pub(super) async fn send(
        &mut self,
        session: &Session,
        index: usize,
        packets: Vec<u8>,
    ) -> io::Result<()> {
        let Some(place) = self.channels.get_mut(index) else { return Ok(()) };
        let outgoing = match place {
            Some(outgoing) => outgoing,
            None => {
                let channel = session.open_channel().await?;
                let outgoing = Outgoing { channel, waiting: VecDeque::new(), bytes: 0, unsent: 0 };
                let outgoing = place.insert(outgoing);
                outgoing.push(Bytes::from_static(&[TUNNEL]));
                outgoing
            }
        };
        outgoing.push(packets.into());
        poll_fn(|context| Poll::Ready(outgoing.write(context))).await.map(drop)
    }

    /// Completes when a channel has taken some of what waits for it.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            let mut total = 0_usize;
            for outgoing in self.channels.iter_mut().flatten() {
                total = outgoing.write(context)?.saturating_add(total);
            }
            if total > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }
}
