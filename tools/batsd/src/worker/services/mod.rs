//! Connections of programs in channels: listeners on this node, and the exit on the other one.

mod channels;
pub(super) mod exit;
mod exits;
mod forward;
pub(super) mod listener;
mod negotiations;
mod proxy;
mod received;
mod relay;
pub(super) mod resolutions;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use bats_node::NodeId;
use openbats::ChannelError;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Worker;
use super::tunnel::lock;
use crate::proxy::allow::AllowList;
use crate::proxy::request::{Reply, Request};
use channels::{Channels, Listed};
use exits::{Exits, MAX_EXITS};
use negotiations::Negotiations;
use resolutions::Resolutions;

/// Channels that a peer may have open. Twice the connections of a node: the credit for channels is
/// raised in steps, so that a peer at the limit would wait until many of its channels are closed.
pub(super) const MAX_CHANNELS: u32 = 2 * MAX_CONNECTIONS as u32;
/// Connections of programs at a time, of all listeners.
const MAX_CONNECTIONS: usize = 1_024;
/// Time for a session with the exit to be there, and for a channel of it.
const SESSION: Duration = Duration::from_secs(5);
/// Time for the exit's answer: its own limits, and some seconds for repair on the path.
const ANSWER: Duration = Duration::from_secs(20);
/// Time for a program to say what it wants, for names to resolve, and for hosts to answer.
pub(super) const NEGOTIATION: Duration = Duration::from_secs(10);
/// Time without datagrams after which a UDP association ends (RFC 4787 section 4.3: two minutes).
const UDP_IDLE: Duration = Duration::from_secs(120);
/// Bytes that are read at once. Each connection has two such buffers.
const BUFFER: usize = 16 << 10;
/// Code of channels that end by a reset.
const RESET: u64 = 1;

#[derive(Default)]
struct Counters {
    accepted: AtomicU64,
    over_limit: AtomicU64,
    failed: AtomicU64,
    served: AtomicU64,
    denied: AtomicU64,
}

/// Limits and state of all services.
pub(super) struct Services {
    connections: Arc<Semaphore>,
    negotiations: Arc<Negotiations>,
    exits: Exits,
    resolutions: Arc<Resolutions>,
    pub(super) allow: RwLock<Arc<AllowList>>,
    counters: Counters,
    channels: Channels,
    /// The node drains: it takes no connections of programs and no channels of peers any more.
    is_draining: AtomicBool,
}

impl Default for Services {
    fn default() -> Self {
        Self {
            connections: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
            negotiations: Arc::default(),
            exits: Exits::default(),
            resolutions: Arc::default(),
            allow: RwLock::default(),
            counters: Counters::default(),
            channels: Channels::default(),
            is_draining: AtomicBool::new(false),
        }
    }
}

impl Services {
    /// Takes nothing new from now on. Returns false if that was so before.
    pub(super) fn begin_draining(&self) -> bool {
        !self.is_draining.swap(true, Relaxed)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.is_draining.load(Relaxed)
    }

    /// The place of a connection of a program; none at the limit, which is counted, and when the node drains.
    fn admit(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.connections).try_acquire_owned().ok();
        if permit.is_none() {
            self.counters.over_limit.fetch_add(1, Relaxed);
        }
        permit.filter(|_| !self.is_draining())
    }

    /// Open connections: those of programs, and those made for peers.
    pub(super) fn open_connections(&self) -> usize {
        MAX_CONNECTIONS - self.connections.available_permits() + self.exits.open()
    }

    /// The open channels, as JSON.
    pub(super) fn channels(&self) -> Vec<Value> {
        self.channels.describe()
    }

    pub(super) fn status(&self) -> Value {
        let value = |counter: &AtomicU64| counter.load(Relaxed);
        json!({
            "connections": {
                "open": MAX_CONNECTIONS - self.connections.available_permits(),
                "limit": MAX_CONNECTIONS,
                "accepted": value(&self.counters.accepted),
                "over_limit": value(&self.counters.over_limit),
                "failed": value(&self.counters.failed),
            },
            "exit": {
                "open": self.exits.open(),
                "limit": MAX_EXITS,
                "served": value(&self.counters.served),
                "denied": value(&self.counters.denied),
            },
        })
    }
}

/// Opens a channel to an exit and waits for its answer.
async fn open<'a>(
    worker: &'a Worker,
    exit: NodeId,
    request: &Request,
) -> Result<Listed<'a>, Reply> {
    let result = try_open(worker, exit, request).await;
    if result.is_err() {
        worker.services.counters.failed.fetch_add(1, Relaxed);
    }
    result
}

async fn try_open<'a>(
    worker: &'a Worker,
    exit: NodeId,
    request: &Request,
) -> Result<Listed<'a>, Reply> {
    let opens = async {
        loop {
            let session = match worker.table().lanes.get(&exit) {
                Some(lanes) => lock(&lanes.stream.session).clone(),
                None => return Err(Reply::Failed),
            };
            if let Some(session) = session {
                match session.open_channel().await {
                    Ok(channel) => return Ok(channel),
                    // The other node is no exit.
                    Err(ChannelError::Unsupported) => return Err(Reply::NotAllowed),
                    Err(_) => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let channel = timeout(SESSION, opens).await.unwrap_or(Err(Reply::Failed))?;
    let channel = worker.services.channels.list(exit, true, request.clone(), channel);
    let asks = async {
        channel.write_all(&request.encode()).await?;
        let mut answer = [0];
        let length = channel.read(&mut answer).await?;
        Ok::<u8, ChannelError>(if length == 0 { Reply::Failed as u8 } else { answer[0] })
    };
    match timeout(ANSWER, asks).await {
        Err(_) => Err(Reply::TimedOut),
        Ok(Err(_)) => Err(Reply::Failed),
        Ok(Ok(code)) if code == Reply::Succeeded as u8 => Ok(channel),
        Ok(Ok(code)) => Err(Reply::from_code(code)),
    }
}
