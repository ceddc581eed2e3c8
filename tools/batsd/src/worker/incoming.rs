//! The channels that peers open: their first byte says what they are for.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::sync::Arc;

use bats_node::NodeId;
use openbats::Channel;
use openbats::node::Session;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Worker;
use super::services::{NEGOTIATION, exit};
use super::tunnel::{self, MAX_CHANNELS, format::TUNNEL};

/// Serves the channels that a peer opens. They end with the session, and if this is aborted.
pub(super) async fn serve(worker: Arc<Worker>, peer: NodeId, session: Session) {
    let places = Arc::new(Semaphore::new(MAX_CHANNELS));
    let mut open = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = session.accept_channel() => accepted,
            Some(_) = open.join_next() => continue,
        };
        let Ok(channel) = accepted else { return open.detach_all() };
        let (worker, places) = (Arc::clone(&worker), Arc::clone(&places));
        open.spawn(async move { serve_channel(&worker, peer, channel, &places).await });
    }
}

async fn serve_channel(worker: &Worker, peer: NodeId, channel: Channel, places: &Semaphore) {
    let mut first = [0];
    let read = timeout(NEGOTIATION, channel.read(&mut first)).await;
    match (read, first) {
        (Ok(Ok(1)), [TUNNEL]) => match places.try_acquire() {
            Ok(_place) => tunnel::receive_channel(worker, peer, &channel).await,
            Err(_) => tunnel::refuse(worker, &channel),
        },
        (Ok(Ok(1)), [kind]) => exit::serve(worker, peer, channel, kind).await,
        _ => exit::abandon(&channel),
    }
}
