//! The open channels of sessions, for `batsctl channels`.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use bats_node::NodeId;
use openbats::Channel;
use serde_json::{Value, json};

use super::super::tunnel::lock;
use crate::proxy::request::Request;

/// An open channel.
struct Open {
    peer: NodeId,
    is_opened_here: bool,
    request: Request,
    since: Instant,
    channel: Weak<Channel>,
}

/// The channels of all sessions. Their number has the limits of connections and exits.
#[derive(Default)]
pub(super) struct Channels {
    number: AtomicU64,
    open: Mutex<BTreeMap<u64, Open>>,
}

/// A channel that is in the list as long as this value exists.
pub(super) struct Listed<'a> {
    channels: &'a Channels,
    number: u64,
    channel: Arc<Channel>,
}

impl Deref for Listed<'_> {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        lock(&self.channels.open).remove(&self.number);
    }
}

impl Channels {
    /// Lists a channel of the session with `peer`.
    pub(super) fn list(
        &self,
        peer: NodeId,
        is_opened_here: bool,
        request: Request,
        channel: Channel,
    ) -> Listed<'_> {
        let channel = Arc::new(channel);
        let weak = Arc::downgrade(&channel);
        let open = Open { peer, is_opened_here, request, since: Instant::now(), channel: weak };
        let number = self.number.fetch_add(1, Relaxed);
        lock(&self.open).insert(number, open);
        Listed { channels: self, number, channel }
    }

    /// The channels as JSON. Those whose directions have both ended are left out.
    pub(super) fn describe(&self) -> Vec<Value> {
        let open: Vec<_> = lock(&self.open)
            .values()
            .filter_map(|open| {
                let channel = open.channel.upgrade()?;
                Some((open.peer, open.is_opened_here, open.request.clone(), open.since, channel))
            })
            .collect();
        let describe =
            |(peer, is_opened_here, request, since, channel): (_, _, _, Instant, Arc<Channel>)| {
                let stats = channel.stats().ok()?;
                let (kind, to) = match request {
                    Request::Tcp(target) => ("tcp", Some(target.to_string())),
                    Request::Udp => ("udp", None),
                };
                let waits_for = match () {
                    () if stats.bytes_queued > 0 && stats.credit == 0 => Some("credit"),
                    () if stats.bytes_queued > 0 => Some("session"),
                    () if stats.bytes_unread > 0 => Some("program"),
                    () => None,
                };
                Some(json!({
                    "peer": peer, "id": channel.id(), "opened_here": is_opened_here,
                    "kind": kind, "to": to, "seconds": since.elapsed().as_secs_f64(),
                    "bytes_sent": stats.bytes_sent, "bytes_queued": stats.bytes_queued,
                    "credit": stats.credit, "bytes_received": stats.bytes_received,
                    "bytes_unread": stats.bytes_unread, "waits_for": waits_for,
                }))
            };
        open.into_iter().filter_map(describe).collect()
    }
}
