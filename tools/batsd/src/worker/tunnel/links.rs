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
    /// `None` if the peer takes no channels on links, or the link has ended.
    channels: Option<OutgoingChannels>,
}

impl SendingEnd {
    /// Uses these channels no more. Returns the number of packets that are lost with them.
    fn give_up(&mut self) -> u64 {
        self.channels.take().map_or(0, OutgoingChannels::give_up)
    }
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
            let is_known = links.iter().any(|link| link.link == end.of.link);
            if !is_known || end.of.session.close_reason().is_some() {
                self.dropped = self.dropped.saturating_add(end.give_up());
            }
        }
        self.ends.retain(|end| links.iter().any(|link| link.link == end.of.link));
        for of in links.into_iter().filter(|link| link.is_sole) {
            match self.ends.iter_mut().find(|end| end.of.link == of.link) {
                Some(end) => end.of.is_sole = true,
                None => {
                    let channels = Some(OutgoingChannels::new());
                    self.ends.push(SendingEnd { of, channels });
                }
            }
        }
    }

    fn used(&mut self) -> Option<&mut SendingEnd> {
        self.ends.iter_mut().find(|end| end.of.is_sole && end.channels.is_some())
    }

    /// The session that packets go in now, and what its channels hold; `None` if it is that over routes.
    pub(super) fn look(&mut self) -> Option<(LinkSession, Held)> {
        let end = self.used()?;
        let held = end.channels.as_mut()?.look();
        Some((end.of.clone(), held))
    }

    /// Packets that were dropped since the last call.
    pub(super) fn take_dropped(&mut self) -> u64 {
        let channels = self.ends.iter_mut().filter_map(|end| end.channels.as_mut());
        let of_channels = channels.map(OutgoingChannels::take_dropped);
        of_channels.fold(std::mem::take(&mut self.dropped), u64::saturating_add)
    }

    /// Sends packets in a channel of the sole link; returns them if there is none.
    pub(super) fn push(&mut self, index: usize, packets: Vec<u8>) -> Result<(), Vec<u8>> {
        let Some(end) = self.used() else { return Err(packets) };
        let Some(channels) = &mut end.channels else { return Err(packets) };
        if channels.open(end.of.session.as_ref(), index).is_err() {
            let lost = end.give_up();
            self.dropped = self.dropped.saturating_add(lost);
            return Err(packets);
        }
        channels.push(index, packets);
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
        for end in &mut self.ends {
            let Some(channels) = &mut end.channels else { continue };
            match channels.poll_write(context, end.of.session.as_ref()) {
                Ok(progress) => has_progress |= progress,
                Err(_) => {
                    self.dropped = self.dropped.saturating_add(end.give_up());
                    has_progress = true;
                }
            }
        }
        has_progress
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openbats::node::{LinkOptions, LinkPolicy, Node, NodeId};
    use openbats::{Identity, TransportConfig, Trust, Wait};

    use super::super::format::{Echo, echo};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Two nodes with a link, at the far end of which so many channels may be open.
    struct Pair {
        near: Node,
        far: Node,
        links: LinkChannels,
    }

    impl Pair {
        fn new(channels: Option<u32>) -> Self {
            let identities = [0, 1].map(|_| Identity::generate(&["node"]).unwrap());
            let prints = identities.clone().map(|identity| identity.fingerprint());
            let [near, far] = identities;
            let far = Node::builder(NodeId(2), far)
                .listen("127.0.0.1:0".parse().unwrap())
                .neighbour(prints[0], LinkPolicy::end())
                .peer(NodeId(1), prints[0])
                .transport(TransportConfig { channels, ..TransportConfig::default() })
                .link_channels(1, 1 << 20)
                .start()
                .unwrap();
            let near = Node::builder(NodeId(1), near)
                .peer(NodeId(2), prints[1])
                .link_channels(1, 1 << 20)
                .start()
                .unwrap();
            let to = LinkOptions::new(far.local_addrs()[0], Trust::fingerprint(prints[1]));
            let link = near.links().open(to.redial(false)).unwrap();
            link.established().wait_for(LIMIT).unwrap().unwrap();
            Self { near, far, links: LinkChannels::default() }
        }

        fn follow(&mut self, is_sole: bool) {
            let of =
                |session: Session| LinkSession { link: session.link().unwrap(), is_sole, session };
            self.links.follow(self.near.links().sessions().into_iter().map(of).collect());
        }

        fn push(&mut self, number: u64) -> bool {
            let pushed = self.links.push(0, echo(Echo { is_reply: false, number }));
            self.links.write().wait_for(LIMIT).expect("it does not wait");
            pushed.is_ok()
        }
    }

    #[test]
    fn packets_come_back_if_the_peer_takes_no_channels_on_links() {
        let mut pair = Pair::new(None);
        pair.follow(true);
        assert!(pair.links.look().is_some());
        assert!(!pair.push(1) && pair.links.look().is_none());
        // It is not tried again while this link lasts.
        pair.follow(true);
        assert!(!pair.push(2) && pair.links.look().is_none());
        assert_eq!(pair.links.take_dropped(), 0);
    }

    #[test]
    fn packets_go_over_a_sole_link_and_those_that_wait_at_its_end_are_counted() {
        let mut pair = Pair::new(Some(0));
        pair.follow(false);
        assert!(!pair.push(0), "there are others");
        pair.follow(true);
        // They wait, because no channel may be open.
        assert!(pair.push(1) && pair.push(2));
        assert_eq!(pair.links.take_dropped(), 0);
        pair.follow(false);
        assert!(!pair.push(3), "there is a second link");
        let session = pair.near.links().sessions().pop().unwrap();
        pair.far.shut_down(0, "");
        assert!(session.accept_channel().wait_for(LIMIT).unwrap().is_err());
        pair.follow(false);
        assert_eq!(pair.links.take_dropped(), 2);
        assert!(!pair.push(4) && pair.links.look().is_none());
    }
}
