//! The sending ends of the sessions of links.

use std::future::poll_fn;
use std::task::{Context, Poll};

use openbats::node::{LinkId, Session};

use super::outgoing::{Held, OutgoingChannels};

/// The session of a link with a peer.
#[derive(Clone)]
pub(in super::super) struct LinkSession {
    /// The link, and how many times it was established.
    pub(in super::super) link: (LinkId, u64),
    /// Whether all routes to the peer lead over this link alone.
    pub(in super::super) is_sole: bool,
    pub(in super::super) session: Session,
}

/// The channels of a link's session.
struct SendingEnd {
    of: LinkSession,
    channels: OutgoingChannels,
    /// The peer takes no channels on links, or the link has ended.
    is_unusable: bool,
}

/// The channels of the sessions of the links with a peer. Packets go in those of a sole link; what the others still
/// hold is sent, too.
#[derive(Default)]
pub(super) struct LinkChannels {
    ends: Vec<SendingEnd>,
    dropped: u64,
}

impl LinkChannels {
    /// Drops the channels of links that have ended, and has some of a sole link.
    pub(super) fn follow(&mut self, links: Vec<LinkSession>) {
        for end in &mut self.ends {
            end.of.is_sole = false;
            end.is_unusable |= end.of.session.close_reason().is_some();
            let is_known = links.iter().any(|link| link.link == end.of.link);
            if end.is_unusable || !is_known {
                self.dropped = self.dropped.saturating_add(end.channels.give_up());
            }
        }
        self.ends.retain(|end| links.iter().any(|link| link.link == end.of.link));
        for of in links.into_iter().filter(|link| link.is_sole) {
            match self.ends.iter_mut().find(|end| end.of.link == of.link) {
                Some(end) => end.of.is_sole = true,
                None => {
                    let channels = OutgoingChannels::new();
                    self.ends.push(SendingEnd { of, channels, is_unusable: false });
                }
            }
        }
    }

    fn used(&mut self) -> Option<&mut SendingEnd> {
        self.ends.iter_mut().find(|end| end.of.is_sole && !end.is_unusable)
    }

    /// The session that packets go in now, and what its channels hold; `None` if it is that over routes.
    pub(super) fn look(&mut self) -> Option<(LinkSession, Held)> {
        let end = self.used()?;
        let held = end.channels.look();
        Some((end.of.clone(), held))
    }

    /// Packets that were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        let of_channels = self.ends.iter_mut().map(|end| end.channels.take_dropped());
        of_channels.fold(std::mem::take(&mut self.dropped), u64::saturating_add)
    }

    /// Sends packets in a channel of the sole link; returns them if there is none.
    pub(super) fn push(&mut self, index: usize, packets: Vec<u8>) -> Result<(), Vec<u8>> {
        let Some(end) = self.used() else { return Err(packets) };
        if end.channels.open(end.of.session.as_ref(), index).is_err() {
            end.is_unusable = true;
            return Err(packets);
        }
        end.channels.push(index, packets);
        Ok(())
    }

    /// Writes what there is room for.
    pub(super) async fn write(&mut self) {
        poll_fn(|context| {
            self.poll_write(context);
            Poll::Ready(())
        })
        .await;
    }

    /// Completes when a channel has taken some of what waits for it, or has ended.
    pub(super) async fn flush(&mut self) {
        poll_fn(|context| match self.poll_write(context) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> bool {
        let mut has_progress = false;
        for end in self.ends.iter_mut().filter(|end| !end.is_unusable) {
            match end.channels.poll_write(context, end.of.session.as_ref()) {
                Ok(progress) => has_progress |= progress,
                Err(_) => (end.is_unusable, has_progress) = (true, true),
            }
        }
        has_progress
    }
}
