//! Packets of the TUN device in messages of sessions, and back.
//!
//! A message is one byte of flags, two bytes of segment size (big endian) and the packet.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bats_node::{FqCodel, NodeId, QueueStats};
use bats_tun::{HEADER, MAX_PACKET, Offload, OffloadLevel, Packet, TCP, Tun, mark_ce};
use bats_types::Timestamp;
use openbats::node::Session;
use openbats::{ClientOptions, Fingerprint, Mode, TransportConfig, Trust};
use rustc_hash::FxHasher;
use tokio::sync::Notify;

use super::{Table, Worker};
use crate::config::{TunConfig, TunMode};

/// Length of the prefix of a message.
const PREFIX: usize = 3;
const NEEDS_CHECKSUM: u8 = 1;
/// Maximum number of bytes that wait for a session: it only bounds memory, because CoDel acts much earlier.
const QUEUE: usize = 8 << 20;
/// Lowest DSCP of conversational traffic (CS5, EF), for which a late packet is as bad as a lost one.
const EXPEDITED: u8 = 40;
/// One-way delay that conversations tolerate (ITU-T G.114).
const EXPEDITED_DEADLINE: Duration = Duration::from_millis(150);
/// Deadline of other datagrams: time for repairs on a path with several relays, but not longer than
/// resolvers and other clients wait before they retry.
const DEADLINE: Duration = Duration::from_secs(1);
/// Time between attempts to open a session: the first after a failure, doubled up to the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// Keep-alives and idle timeout of the tunnel's sessions.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
const IDLE: Duration = Duration::from_secs(10);
/// Handshakes of sessions over a link that has just failed must not wait for long.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// Counters of packets by outcome.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) read: AtomicU64,
    pub(super) read_bytes: AtomicU64,
    pub(super) written: AtomicU64,
    pub(super) written_bytes: AtomicU64,
    pub(super) no_owner: AtomicU64,
    pub(super) foreign_source: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) refused_by_kernel: AtomicU64,
    pub(super) segmented_here: AtomicU64,
}

/// The TUN device of the worker.
pub(super) struct Port {
    tun: Tun,
    pub(super) level: Mutex<OffloadLevel>,
    pub(super) counters: Counters,
}

impl Port {
    pub(super) fn new(tun: Tun) -> Self {
        Self { tun, level: Mutex::new(OffloadLevel::None), counters: Counters::default() }
    }

    /// Applies mode and offload of the configuration.
    pub(super) fn configure(&self, config: &TunConfig) -> std::io::Result<()> {
        let wanted = match (config.offload, config.mode) {
            (false, _) => OffloadLevel::None,
            // A datagram is lost as a whole, so the kernel splits TCP into single segments.
            (true, TunMode::Btp) => OffloadLevel::Checksums,
            (true, _) => OffloadLevel::Segmentation,
        };
        *lock(&self.level) = self.tun.set_offload(wanted)?;
        Ok(())
    }

    /// Writes a packet of a peer. If the kernel refuses a super-packet, its segments follow.
    fn write(&self, offload: Offload, packet: &mut [u8]) {
        let counters = &self.counters;
        let Ok(header) = offload.header_for(packet) else {
            counters.malformed.fetch_add(1, Relaxed);
            return;
        };
        let is_whole = offload.segment != 0 && *lock(&self.level) != OffloadLevel::None;
        if (offload.segment == 0 || is_whole) && self.tun.write(&header, packet).is_ok() {
            counters.written.fetch_add(1, Relaxed);
            counters.written_bytes.fetch_add(packet.len() as u64, Relaxed);
            return;
        }
        let Some(segments) = offload.segments(packet).ok().filter(|_| offload.segment != 0) else {
            counters.refused_by_kernel.fetch_add(1, Relaxed);
            return;
        };
        counters.segmented_here.fetch_add(1, Relaxed);
        for segment in segments {
            match self.tun.write(&[0; HEADER], &segment) {
                Ok(()) => {
                    counters.written.fetch_add(1, Relaxed);
                    counters.written_bytes.fetch_add(segment.len() as u64, Relaxed);
                }
                Err(_) => drop(counters.refused_by_kernel.fetch_add(1, Relaxed)),
            }
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A message that waits, with the deadline of a datagram.
struct Waiting {
    message: Vec<u8>,
    deadline: Duration,
}

/// The queue of a session with a peer.
pub(super) struct Lane {
    pub(super) mode: Mode,
    /// Whether the session has channels for the connections of programs.
    has_channels: bool,
    queue: Mutex<FqCodel<Waiting>>,
    filled: Notify,
    started: Instant,
    pub(super) session: Mutex<Option<Session>>,
    pub(super) last_error: Mutex<Option<String>>,
}

impl Lane {
    pub(super) fn new(mode: Mode, has_channels: bool) -> Self {
        Self {
            mode,
            has_channels,
            queue: Mutex::new(FqCodel::new(QUEUE)),
            filled: Notify::new(),
            started: Instant::now(),
            session: Mutex::new(None),
            last_error: Mutex::new(None),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.started.elapsed()
    }

    fn push(&self, hash: u64, waiting: Waiting) {
        let bytes = waiting.message.len();
        lock(&self.queue).push(self.now(), hash, bytes, waiting);
        self.filled.notify_one();
    }

    async fn pop(&self) -> Waiting {
        loop {
            let mark =
                |waiting: &mut Waiting| waiting.message.get_mut(PREFIX..).is_some_and(mark_ce);
            if let Some(packet) = lock(&self.queue).pop(self.now(), mark) {
                return packet.item;
            }
            self.filled.notified().await;
        }
    }

    pub(super) fn queue_stats(&self) -> QueueStats {
        lock(&self.queue).stats()
    }
}

/// Reads packets of the device into the lanes of their owners; runs on a thread of its own.
pub(super) fn read_packets(worker: &Worker, port: &Port) {
    let mut buffer = vec![0; HEADER + MAX_PACKET];
    let mut had_error = false;
    loop {
        let (offload, length) = match port.tun.read(&mut buffer) {
            Ok(read) => read,
            Err(error) => {
                if !std::mem::replace(&mut had_error, true) {
                    eprintln!("batsd: cannot read from the TUN device: {error}; trying again");
                }
                // The device is down or was removed; then the keeper ends, and this process with it.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        had_error = false;
        port.counters.read.fetch_add(1, Relaxed);
        port.counters.read_bytes.fetch_add(length as u64, Relaxed);
        let packet = buffer.get(HEADER..HEADER + length).unwrap_or_default();
        let table = worker.table();
        queue_packet(&table, port, offload, packet);
    }
}

fn queue_packet(table: &Table, port: &Port, offload: Offload, bytes: &[u8]) {
    let Some(packet) = Packet::parse(bytes) else {
        port.counters.malformed.fetch_add(1, Relaxed);
        return;
    };
    let owner = table.owners.owner(packet.destination);
    let Some(lanes) = owner.and_then(|node| table.lanes.get(&node)) else {
        port.counters.no_owner.fetch_add(1, Relaxed);
        return;
    };
    let is_stream = match table.mode {
        TunMode::Auto => packet.protocol == TCP && !packet.is_fragment,
        TunMode::Brtp => true,
        TunMode::Btp => false,
    };
    let mut message = Vec::with_capacity(PREFIX + bytes.len());
    message.push(u8::from(offload.needs_checksum) * NEEDS_CHECKSUM);
    message.extend(offload.segment.to_be_bytes());
    message.extend(bytes);
    let mut hash = FxHasher::default();
    (packet.source, packet.destination, packet.protocol, packet.ports).hash(&mut hash);
    let deadline = if packet.dscp >= EXPEDITED { EXPEDITED_DEADLINE } else { DEADLINE };
    let lane = if is_stream { &lanes.stream } else { &lanes.datagram };
    // The low bits of the hash select the queue, but they are the least random ones.
    lane.push(hash.finish() >> 20, Waiting { message, deadline });
}

/// Handles a message of a peer: the kernel gets its packet if the peer owns the source address.
fn deliver(worker: &Worker, port: &Port, peer: NodeId, message: &[u8]) {
    let Some((&[flags, high, low], bytes)) = message.split_first_chunk::<PREFIX>() else {
        port.counters.malformed.fetch_add(1, Relaxed);
        return;
    };
    let packet = Packet::parse(bytes).filter(|_| flags & !NEEDS_CHECKSUM == 0);
    let Some(packet) = packet else {
        port.counters.malformed.fetch_add(1, Relaxed);
        return;
    };
    if !worker.table().owners.may_send(peer, packet.source) {
        port.counters.foreign_source.fetch_add(1, Relaxed);
        return;
    }
    let offload = Offload {
        needs_checksum: flags & NEEDS_CHECKSUM != 0,
        segment: u16::from_be_bytes([high, low]),
    };
    port.write(offload, &mut bytes.to_vec());
}

fn transport(has_channels: bool) -> TransportConfig {
    TransportConfig {
        // This end opens them. The peer opens none, and one is the least.
        channels: has_channels.then_some(1),
        keep_alive: Some(KEEP_ALIVE),
        idle_timeout: IDLE,
        handshake_timeout: HANDSHAKE,
        ..TransportConfig::default()
    }
}

/// Keeps a session with a peer open and sends what waits in its lane. Each end opens its own
/// sessions and sends over those, so neither depends on the other's state.
pub(super) async fn send_packets(
    worker: Arc<Worker>,
    lane: Arc<Lane>,
    peer: NodeId,
    fingerprint: Fingerprint,
) {
    let mut retry = RETRY.0;
    loop {
        let options = ClientOptions::new(Trust::fingerprint(fingerprint))
            .transport(transport(lane.has_channels))
            .mode(lane.mode);
        let id = openbats::node::NodeId(peer.0.to_bits());
        let error = match worker.node.connect_node(id, "node", options).await {
            Ok(session) => {
                *lock(&lane.session) = Some(session.clone());
                *lock(&lane.last_error) = None;
                retry = RETRY.0;
                let error = tokio::select! {
                    error = send_over(&lane, &session) => error,
                    // The peer sends nothing over this session, so a receive call detects its end.
                    received = session.recv() => match received {
                        Ok(_) => "the peer has ended the session".to_owned(),
                        Err(error) => error.to_string(),
                    },
                };
                session.close(0, "");
                *lock(&lane.session) = None;
                error
            }
            Err(error) => error.to_string(),
        };
        *lock(&lane.last_error) = Some(error);
        tokio::time::sleep(retry).await;
        retry = (retry * 2).min(RETRY.1);
    }
}

async fn send_over(lane: &Lane, session: &Session) -> String {
    loop {
        let Waiting { message, deadline } = lane.pop().await;
        let sent = match lane.mode {
            Mode::Btp => session.send_within(message, deadline).await,
            _ => session.send(message).await,
        };
        match sent {
            Ok(()) | Err(openbats::SendError::TooLarge { .. }) => {}
            Err(error) => return error.to_string(),
        }
    }
}

/// Receives over a session that a peer has opened.
pub(super) async fn receive_packets(worker: Arc<Worker>, peer: NodeId, session: Session) {
    while let Ok(Some(message)) = session.recv().await {
        if let Some(port) = &worker.port {
            deliver(&worker, port, peer, &message);
        }
    }
}
