//! `batsctl trace`: the nodes on the path to another one. Each node asks its neighbour on the link to the
//! destination, by a message on that link, which the link authenticates; relays need no session with the
//! asking node. A node asks on only for neighbours with transit.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bats_node::NodeId;
use bytes::{BufMut, Bytes, BytesMut};
use openbats::node::LinkId;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::tunnel::lock;
use super::{Worker, library_id};

/// Most nodes on a path.
pub(super) const MAX_HOPS: u8 = 32;
/// Requests to each node.
const PROBES: usize = 3;
/// Time for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Requests that wait for an answer, above which none of a neighbour is taken. Each client of the control socket of
/// this node has one at most, so these need no limit.
const MAX_WAITING: usize = 192;

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

/// A message on a link: kind, number (8 bytes), node (4 bytes), and hops or status; big endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Ask the node that is so many hops behind the receiver on the path to the destination.
    Request { number: u64, destination: Ipv4Addr, hops: u8 },
    /// The node that was asked, or the one that did not ask on.
    Answer { number: u64, node: Ipv4Addr, status: Status },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// The node is on the path.
    OnPath = 0,
    Destination = 1,
    NoRoute = 2,
    NoTransit = 3,
}

impl Message {
    pub(super) fn encode(self) -> Bytes {
        let (kind, number, node, last) = match self {
            Self::Request { number, destination, hops } => (REQUEST, number, destination, hops),
            Self::Answer { number, node, status } => (ANSWER, number, node, status as u8),
        };
        let mut bytes = BytesMut::with_capacity(14);
        bytes.put_u8(kind);
        bytes.put_u64(number);
        bytes.put_slice(&node.octets());
        bytes.put_u8(last);
        bytes.freeze()
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let &[kind, ref rest @ ..] = bytes else { return None };
        let (number, rest) = rest.split_first_chunk::<8>()?;
        let (&[a, b, c, d], &[last]) = rest.split_first_chunk::<4>()? else { return None };
        let (number, node) = (u64::from_be_bytes(*number), Ipv4Addr::new(a, b, c, d));
        let status = || {
            [Status::OnPath, Status::Destination, Status::NoRoute, Status::NoTransit]
                .into_iter()
                .find(|status| *status as u8 == last)
        };
        match kind {
            REQUEST => Some(Self::Request { number, destination: node, hops: last }),
            ANSWER => Some(Self::Answer { number, node, status: status()? }),
            _ => None,
        }
    }
}

/// Who gets the answer.
enum Asking {
    Here(oneshot::Sender<(Ipv4Addr, Status)>),
    /// A neighbour, with its number.
    Neighbour(LinkId, u64),
}

struct Waiting {
    asking: Asking,
    /// Answers come over the link that was asked.
    asked: LinkId,
    since: Instant,
}

/// Requests that wait for their answers.
#[derive(Default)]
pub(super) struct Traces {
    number: AtomicU64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
}

/// Removes a request that does not wait any more, also if the client has gone.
struct Removed<'a>(&'a Traces, u64);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        lock(&self.0.waiting).remove(&self.1);
    }
}

/// The first link in use to a node that is not the one over which it was asked.
fn link_to(worker: &Worker, destination: Ipv4Addr, not: Option<LinkId>) -> Option<LinkId> {
    let links = worker.node.routes().links_to(library_id(NodeId(destination)));
    links.into_iter().map(|(link, _)| link).find(|link| Some(*link) != not)
}

impl Traces {
    /// Whether a request of a neighbour may be asked on.
    fn has_room(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        waiting.retain(|_, one| one.since.elapsed() < TIMEOUT.saturating_mul(2));
        waiting.len() < MAX_WAITING
    }

    /// Takes a number for a request.
    fn add(&self, asking: Asking, asked: LinkId) -> u64 {
        let number = self.number.fetch_add(1, Relaxed);
        let since = Instant::now();
        lock(&self.waiting).insert(number, Waiting { asking, asked, since });
        number
    }

    /// Asks the nodes on the path one after the other.
    pub(super) async fn run(&self, worker: &Worker, to: NodeId) -> Result<Value, String> {
        if lock(&worker.plan).id == to {
            return Err(format!("{to} is this node"));
        }
        let mut nodes = Vec::new();
        let mut reason = format!("{to} is more than {MAX_HOPS} hops away");
        let mut reached = false;
        'hops: for (hops, hop) in (0..MAX_HOPS).zip(1_u8..) {
            let (mut times, mut answer) = (Vec::new(), None);
            for _ in 0..PROBES {
                if let Some((from, time)) = self.ask(worker, to, hops).await? {
                    times.push(time.as_secs_f64() * 1e3);
                    answer = Some(from);
                }
            }
            let node = answer.map(|(node, _)| node.to_string());
            let status = answer.map(|(_, status)| status);
            let name = node.clone().unwrap_or("a node".to_owned());
            // Who does not ask on is in the list already.
            match status {
                Some(Status::NoRoute) => reason = format!("{name} has no route to {to}"),
                Some(Status::NoTransit) => {
                    reason =
                        format!("{name} does not forward packets of its neighbour on the path");
                }
                _ => nodes.push(json!({ "hop": hop, "node": node, "rtt_ms": times })),
            }
            match status {
                Some(Status::OnPath) => {}
                Some(Status::Destination) => {
                    reached = true;
                    break 'hops;
                }
                Some(Status::NoRoute | Status::NoTransit) => break 'hops,
                None => {
                    reason = format!("no answer at hop {hop}");
                    break 'hops;
                }
            }
        }
        let reason = (!reached).then_some(reason);
        Ok(json!({ "node": to, "hops": nodes, "reached": reached, "reason": reason }))
    }

    async fn ask(
        &self,
        worker: &Worker,
        to: NodeId,
        hops: u8,
    ) -> Result<Option<((Ipv4Addr, Status), Duration)>, String> {
        let link = link_to(worker, to.0, None).ok_or(format!("no link leads to {to} now"))?;
        let (sender, answer) = oneshot::channel();
        let number = self.add(Asking::Here(sender), link);
        let _removed = Removed(self, number);
        let start = Instant::now();
        let request = Message::Request { number, destination: to.0, hops };
        worker.node.links().send(link, request.encode()).map_err(|error| error.to_string())?;
        let answered = timeout(TIMEOUT, answer).await.ok().and_then(Result::ok);
        Ok(answered.map(|answer| (answer, start.elapsed())))
    }

    /// Takes a message of a neighbour.
    pub(super) fn take(&self, worker: &Worker, link: LinkId, bytes: &[u8]) {
        let reply = |message: Message| {
            // A link that has ended meanwhile needs no answer.
            let _ = worker.node.links().send(link, message.encode());
        };
        match Message::decode(bytes) {
            None => {}
            Some(Message::Request { number, destination, hops }) => {
                let node = lock(&worker.plan).id.0;
                let status = match () {
                    () if destination == node => Status::Destination,
                    () if hops == 0 => Status::OnPath,
                    () if !worker.has_transit(link) => Status::NoTransit,
                    () => match link_to(worker, destination, Some(link)) {
                        None => Status::NoRoute,
                        Some(next) => {
                            if self.has_room() {
                                let number = self.add(Asking::Neighbour(link, number), next);
                                let hops = hops.min(MAX_HOPS).saturating_sub(1);
                                let request = Message::Request { number, destination, hops };
                                let _ = worker.node.links().send(next, request.encode());
                            }
                            return;
                        }
                    },
                };
                reply(Message::Answer { number, node, status });
            }
            Some(Message::Answer { number, node, status }) => {
                let Some(asking) = self.answered(number, link) else { return };
                match asking {
                    Asking::Here(sender) => _ = sender.send((node, status)),
                    Asking::Neighbour(back, number) => {
                        let answer = Message::Answer { number, node, status };
                        let _ = worker.node.links().send(back, answer.encode());
                    }
                }
            }
        }
    }

    /// Who gets an answer that came over this link.
    fn answered(&self, number: u64, link: LinkId) -> Option<Asking> {
        let mut waiting = lock(&self.waiting);
        let is_asked = waiting.get(&number).is_some_and(|one| one.asked == link);
        is_asked.then(|| waiting.remove(&number)).flatten().map(|one| one.asking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_written_and_others_are_none() {
        let node = Ipv4Addr::new(10, 255, 0, 3);
        for message in [
            Message::Request { number: 7, destination: node, hops: 31 },
            Message::Answer { number: u64::MAX, node, status: Status::NoTransit },
        ] {
            let bytes = message.encode();
            assert_eq!(Message::decode(&bytes), Some(message));
            for length in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..length]), None);
            }
            assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), None);
        }
        for (kind, last) in [(0, 0), (3, 0), (ANSWER, 4)] {
            let mut bytes = [0; 14];
            (bytes[0], bytes[13]) = (kind, last);
            assert_eq!(Message::decode(&bytes), None);
        }
    }
}
