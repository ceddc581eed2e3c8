//! The sending end of the channels of a session.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use openbats::Channel;
use openbats::node::Session;
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
        Ok(total)
    }
}

/// The channels of a session, opened when they are first needed.
pub(super) struct OutgoingChannels {
    channels: [Option<Outgoing>; MAX_CHANNELS],
    waiting: u64,
}

impl OutgoingChannels {
    pub(super) fn new() -> Self {
        Self { channels: [const { None }; MAX_CHANNELS], waiting: 0 }
    }

    /// Bytes that wait for room in their channels.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting
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
                self.waiting = self.waiting.saturating_add(1);
                let waiting = [Bytes::from_static(&[TUNNEL])].into();
                place.insert(Outgoing { channel, waiting })
            }
        };
        self.waiting = self.waiting.saturating_add(packets.len() as u64);
        outgoing.waiting.push_back(packets.into());
        let written = poll_fn(|context| Poll::Ready(outgoing.write(context))).await?;
        self.waiting = self.waiting.saturating_sub(written as u64);
        Ok(())
    }

    /// Completes when a channel has taken some of what waits for it.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        poll_fn(|context| {
            let mut total = 0_usize;
            for outgoing in self.channels.iter_mut().flatten() {
                total = outgoing.write(context)?.saturating_add(total);
            }
            self.waiting = self.waiting.saturating_sub(total as u64);
            if total > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await
    }
}
