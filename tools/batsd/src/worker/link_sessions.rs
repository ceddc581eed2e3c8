//! The sessions of links with peers: this node serves their channels, and the tunnel uses that of a sole link.
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
use std::sync::Arc;

use bats_node::NodeId;
use openbats::node::{LinkId, Session};
use tokio::task::AbortHandle;

use super::tunnel::{LinkSession, lock};
use super::{Worker, incoming, library_id};

/// The sessions that are served, with the peers and the tasks, by link and the number of times it was established.
pub(super) type LinkSessions = BTreeMap<(LinkId, u64), (NodeId, AbortHandle)>;

/// Serves the sessions of the links with peers that are established now, and gives the lanes theirs.
pub(super) fn update(worker: &Arc<Worker>) {
    let table = worker.table();
    let mut established = BTreeMap::<(LinkId, u64), (NodeId, Session)>::new();
    for session in worker.node.links().sessions() {
        let peer = NodeId(session.remote_node().0.into());
        if let Some(link) = session.link().filter(|_| table.lanes.contains_key(&peer)) {
            established.insert(link, (peer, session));
        }
    }
    let mut served = lock(&worker.link_sessions);
    served.retain(|link, (peer, task)| {
        let is_kept = established.get(link).is_some_and(|(now, _)| now == peer);
        if !is_kept {
            task.abort();
        }
        is_kept
    });
    for (link, (peer, session)) in &established {
        served.entry(*link).or_insert_with(|| {
            let serves = incoming::serve(Arc::clone(worker), *peer, session.clone());
            (*peer, tokio::spawn(serves).abort_handle())
        });
    }
    drop(served);
    let peers: Vec<_> = table.lanes.keys().map(|peer| library_id(*peer)).collect();
    let routes = worker.node.routes().links_to_each(&peers);
    let mut of_peers = BTreeMap::<NodeId, Vec<((LinkId, u64), Session)>>::new();
    for (link, (peer, session)) in established {
        of_peers.entry(peer).or_default().push((link, session));
    }
    for ((peer, lanes), routes) in table.lanes.iter().zip(routes) {
        // With several links the session over routes uses them all.
        let sole = match routes[..] {
            [(link, _)] => Some(link),
            _ => None,
        };
        let sessions = of_peers.remove(peer).unwrap_or_default().into_iter();
        let sessions = sessions.map(|(link, session)| LinkSession {
            link,
            is_sole: sole == Some(link.0),
            session,
        });
        lanes.stream.set_links(sessions.collect());
    }
}
