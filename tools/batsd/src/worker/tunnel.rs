//! Packets of the TUN device in messages of sessions, and back.
//!
//! A message is one byte of flags, two bytes of segment size (big endian) and a packet. With the flag
//! [`HAS_LENGTH`] the length of the packet (four bytes, big endian) comes before it, and another packet of
//! this form follows. Echo requests of `batsctl ping` take the place of a packet.

use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bats_node::{FqCodel, Local, NodeId, QueueStats, is_link_local, local, may_pass};
use bats_tun::{HEADER, MAX_PACKET, Offload, OffloadLevel, Packet, TCP, Tun, mark_ce};
use bats_types::{ReportBudget, Timestamp};
use openbats::node::Session;
use openbats::{ClientOptions, Fingerprint, Mode, TransportConfig, Trust};
use rustc_hash::FxHasher;
use tokio::sync::Notify;

use super::echo::Echo;
use super::{Lanes, Table, Worker};
use crate::config::{TunConfig, TunMode};

/// Length of the prefix of a message.
const PREFIX: usize = 3;
const NEEDS_CHECKSUM: u8 = 1;
const HAS_LENGTH: u8 = 2;
/// In place of a packet: the number (8 bytes, big endian) of an echo request, or of the echo.
const ECHO_REQUEST: u8 = 4;
const ECHO_REPLY: u8 = 8;
/// The flow of echoes in FQ-CoDel.
const ECHO_FLOW: u64 = 4;
/// In place of a packet: a message of a speed test.
const SPEEDTEST: u8 = 16;
/// The flow of speed tests in FQ-CoDel.
const SPEEDTEST_FLOW: u64 = 5;
/// Mean interval at which requests of a peer are answered. An answer takes five times the bytes of
/// a request that shares a message with others.
const ECHO_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes of the length of a packet that another one follows.
const LENGTH: usize = 4;
/// A message of BRTP takes more packets that wait until it has this size. A symbol ends with the queue of
/// the session, so small messages leave symbols partly empty: messages of four segments (the kernel's
/// BBR sends these at 50 Mbit/s) made one packet in four a short one. Chosen: 12 symbols, 2.6 ms at
/// 50 Mbit/s.
const COLLECTED: usize = 16 << 10;
/// A session holds at most the bytes of so many round trips, sent or not: more would be a queue behind
/// CoDel. Messages wait up to three round trips for repairs, and the controller must not be limited by the
/// application. At 50 Mbit/s, 5 %, 10 ms, with BBR inside, runs of 4 s: 2 gives 35.6 Mbit/s, 4 gives
/// 43.3, 43.2 and 39.6, no limit 42.1, 43.1 and 43.5 (docs/node.md has the RTTs).
const ROUND_TRIPS: u64 = 4;
/// A session may hold this much in any case: one packet of the largest size, and what it sends in this
/// time. Timers have steps of a millisecond, in which a fast path of short delay sends many windows.
const LEAST_HELD: (u64, Duration) = (MAX_PACKET as u64, Duration::from_millis(5));
/// Bounds of the time between two looks at a session that holds enough.
const LOOK_AGAIN: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));
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
    /// Echo requests that the peer may have answered.
    answers: Mutex<ReportBudget>,
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
            answers: Mutex::new(ReportBudget::new(ECHO_INTERVAL)),
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

    /// Queues an echo request or an echo, as a flow of its own.
    pub(super) fn push_echo(&self, echo: Echo) {
        let mut message = vec![if echo.is_reply { ECHO_REPLY } else { ECHO_REQUEST }, 0, 0];
        message.extend(echo.number.to_be_bytes());
        self.push(ECHO_FLOW, Waiting { message, deadline: DEADLINE });
    }

    /// Queues a message of a speed test, as a flow of its own.
    pub(super) fn push_speedtest(&self, content: &[u8]) {
        let mut message = vec![SPEEDTEST, 0, 0];
        message.extend(content);
        self.push(SPEEDTEST_FLOW, Waiting { message, deadline: DEADLINE });
    }

    /// As [`push_echo`](Self::push_echo) for the answer to a request, unless there were too many.
    pub(super) fn answer(&self, echo: Echo) {
        if self.may_answer() {
            self.push_echo(echo);
        }
    }

    /// Whether one more request may be answered now.
    pub(super) fn may_answer(&self) -> bool {
        lock(&self.answers).take(self.now())
    }

    /// The next packet, if one waits.
    fn pop(&self) -> Option<Waiting> {
        let mark = |waiting: &mut Waiting| waiting.message.get_mut(PREFIX..).is_some_and(mark_ce);
        lock(&self.queue).pop(self.now(), mark).map(|packet| packet.item)
    }

    /// Completes when a packet waits.
    async fn filled(&self) {
        while lock(&self.queue).stats().packets == 0 {
            self.filled.notified().await;
        }
    }

    /// The next message: a packet, or several that wait if the mode is reliable. Several datagrams
    /// in one message would be lost together.
    fn next_message(&self) -> Option<Waiting> {
        let first = self.pop()?;
        if self.mode != Mode::Brtp {
            return Some(first);
        }
        let mut length = first.message.len();
        let mut messages = vec![first.message];
        while length < COLLECTED {
            let Some(more) = self.pop() else { break };
            length += more.message.len();
            messages.push(more.message);
        }
        Some(Waiting { message: join(&messages), deadline: first.deadline })
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
    let lanes_of = |node: &NodeId| table.lanes.get(node);
    let neighbour = |node: &NodeId| lanes_of(node).filter(|_| table.neighbours.contains(node));
    let lanes = match local(packet.destination) {
        None => table.owners.owner(packet.destination).and_then(|node| lanes_of(&node)),
        Some(_) if !may_pass_locally(&packet, bytes) => None,
        Some(Local::Neighbour(node)) => neighbour(&node),
        Some(Local::Neighbours) if !table.neighbours.is_empty() => {
            for lanes in table.neighbours.iter().filter_map(lanes_of) {
                push_packet(table, lanes, &packet, offload, bytes);
            }
            return;
        }
        Some(Local::Neighbours | Local::NoNode) => None,
    };
    match lanes {
        Some(lanes) => push_packet(table, lanes, &packet, offload, bytes),
        None => drop(port.counters.no_owner.fetch_add(1, Relaxed)),
    }
}

/// Whether a packet with a link-local address or group may pass, in either direction.
fn may_pass_locally(packet: &Packet, bytes: &[u8]) -> bool {
    let first = bytes.get(packet.payload).copied();
    may_pass(packet.source, packet.protocol, packet.is_fragment, first)
}

/// Whether a packet of a peer may be written to the device: the peer owns its source. Link-local packets
/// come from neighbours only.
fn may_deliver(table: &Table, peer: NodeId, packet: &Packet, bytes: &[u8]) -> bool {
    let (source, has_local_source) = (packet.source, is_link_local(packet.source));
    let is_own = match has_local_source {
        true => local(source) == Some(Local::Neighbour(peer)),
        false => table.owners.may_send(peer, source),
    };
    let is_local = has_local_source || local(packet.destination).is_some();
    let is_allowed = || table.neighbours.contains(&peer) && may_pass_locally(packet, bytes);
    is_own && (!is_local || is_allowed())
}

fn push_packet(table: &Table, lanes: &Lanes, packet: &Packet, offload: Offload, bytes: &[u8]) {
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

/// Puts messages of one packet each into one: all packets but the last get their length.
pub(super) fn join(messages: &[Vec<u8>]) -> Vec<u8> {
    let length = messages.iter().map(|message| message.len() + LENGTH).sum();
    let mut joined = Vec::with_capacity(length);
    for (index, message) in messages.iter().enumerate() {
        let Some((&[flags, high, low], packet)) = message.split_first_chunk::<PREFIX>() else {
            continue;
        };
        if index + 1 == messages.len() {
            joined.extend(message);
        } else {
            joined.extend([flags | HAS_LENGTH, high, low]);
            joined.extend((packet.len() as u32).to_be_bytes());
            joined.extend(packet);
        }
    }
    joined
}

/// Splits a message into its packets and echoes; ends with `None` in place of what is not whole.
pub(super) fn packets(mut rest: &[u8]) -> impl Iterator<Item = Option<Content<'_>>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let taken = take_packet(rest);
        rest = taken.map_or(&[], |(_, left)| left);
        Some(taken.map(|(content, _)| content))
    })
}

/// A part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<'a> {
    Packet(Offload, &'a [u8]),
    Echo(Echo),
    Speedtest(&'a [u8]),
}

/// Takes the first part of a message that is not empty. Returns it and what follows it.
fn take_packet(message: &[u8]) -> Option<(Content<'_>, &[u8])> {
    let (&[flags, high, low], bytes) = message.split_first_chunk::<PREFIX>()?;
    let (packet, left) = match flags & HAS_LENGTH {
        0 => (bytes, &[][..]),
        _ => {
            let (length, bytes) = bytes.split_first_chunk::<LENGTH>()?;
            bytes.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?
        }
    };
    let content = match flags & !HAS_LENGTH {
        ECHO_REQUEST | ECHO_REPLY => Content::Echo(Echo {
            is_reply: flags & ECHO_REPLY != 0,
            number: u64::from_be_bytes(packet.try_into().ok()?),
        }),
        SPEEDTEST => Content::Speedtest(packet),
        0 | NEEDS_CHECKSUM => {
            let needs_checksum = flags & NEEDS_CHECKSUM != 0;
            let segment = u16::from_be_bytes([high, low]);
            Content::Packet(Offload { needs_checksum, segment }, packet)
        }
        _ => return None,
    };
    Some((content, left))
}

/// Handles a message of a peer: the kernel gets those of its packets whose source addresses the peer owns;
/// echo requests are answered through the session of the same mode.
fn deliver(worker: &Worker, peer: NodeId, is_stream: bool, message: &[u8]) {
    for content in packets(message) {
        let (offload, bytes) = match (content, &worker.port) {
            (Some(Content::Packet(offload, bytes)), Some(_)) => (offload, bytes),
            (Some(Content::Packet(..)), None) => continue,
            (Some(Content::Echo(echo)), _) => {
                let table = worker.table();
                let lanes = table.lanes.get(&peer);
                let lane = lanes.map(|lanes| lanes.of(is_stream));
                worker.echoes.take(peer, lane, echo);
                continue;
            }
            (Some(Content::Speedtest(message)), _) => {
                let table = worker.table();
                let lane = table.lanes.get(&peer).map(|lanes| &lanes.stream);
                worker.speedtests.take(peer, lane, message);
                continue;
            }
            (None, port) => {
                if let Some(port) = port {
                    port.counters.malformed.fetch_add(1, Relaxed);
                }
                return;
            }
        };
        let Some(port) = &worker.port else { continue };
        let Some(packet) = Packet::parse(bytes) else {
            port.counters.malformed.fetch_add(1, Relaxed);
            continue;
        };
        if !may_deliver(&worker.table(), peer, &packet, bytes) {
            port.counters.foreign_source.fetch_add(1, Relaxed);
            continue;
        }
        port.write(offload, &mut bytes.to_vec());
    }
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
        lane.filled().await;
        // Packets wait in the lane, not in the session: there CoDel sees them.
        if lane.mode == Mode::Brtp {
            room(session).await;
        }
        let Some(Waiting { message, deadline }) = lane.next_message() else { continue };
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

/// Waits while the session holds [`ROUND_TRIPS`]; over links, the
/// window is what the first links send in one of them.
async fn room(session: &Session) {
    loop {
        let stats = session.stats();
        let bytes_per_second = stats.delivery_bps.max(1) as f64 / 8.0;
        let least = (bytes_per_second * LEAST_HELD.1.as_secs_f64()) as u64;
        let limit = (stats.cwnd_bytes.saturating_mul(ROUND_TRIPS)).max(LEAST_HELD.0).max(least);
        let Some(excess) = stats.send_buffer_bytes.checked_sub(limit) else { return };
        let seconds = excess as f64 / bytes_per_second;
        let wait = Duration::try_from_secs_f64(seconds).unwrap_or(LOOK_AGAIN.1);
        tokio::time::sleep(wait.clamp(LOOK_AGAIN.0, LOOK_AGAIN.1)).await;
    }
}

/// Receives over a session that a peer has opened.
pub(super) async fn receive_packets(worker: Arc<Worker>, peer: NodeId, session: Session) {
    let is_stream = session.mode() == Mode::Brtp;
    while let Ok(Some(message)) = session.recv().await {
        deliver(&worker, peer, is_stream, &message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(size: usize) -> Vec<u8> {
        let mut message = vec![NEEDS_CHECKSUM, 5, 0xa8];
        message.extend((0..size).map(|x| x as u8));
        message
    }

    #[test]
    fn joined_packets_come_apart_again() {
        for sizes in [&[1_500][..], &[40, 1_500, 0, 60_000, 1]] {
            let messages: Vec<_> = sizes.iter().map(|&size| message(size)).collect();
            let joined = join(&messages);
            let split: Vec<_> = packets(&joined).map(Option::unwrap).collect();
            let offload = Offload { needs_checksum: true, segment: 1_448 };
            let wanted =
                messages.iter().map(|message| Content::Packet(offload, &message[PREFIX..]));
            assert!(split.into_iter().eq(wanted));
        }
        assert_eq!(join(&[message(9)]), message(9), "one packet needs no length");
    }

    #[test]
    fn messages_that_are_not_whole_end_with_an_error() {
        let joined = join(&[message(40), message(50)]);
        // Cut within the first packet or the flags of the second one; more is a shorter packet.
        for end in (1..PREFIX + LENGTH + 40).chain(PREFIX + LENGTH + 41..2 * PREFIX + LENGTH + 40) {
            assert!(packets(&joined[..end]).last().unwrap().is_none(), "{end} bytes");
        }
        let too_long = [HAS_LENGTH, 0, 0, 255, 255, 255, 255, 1];
        assert_eq!(packets(&too_long).collect::<Vec<_>>(), [None]);
        assert_eq!(packets(&[32, 0, 0, 1, 2]).collect::<Vec<_>>(), [None], "unknown flag");
        assert_eq!(packets(&[4, 0, 0, 1, 2]).collect::<Vec<_>>(), [None], "not an echo's length");
        assert_eq!(packets(&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]).collect::<Vec<_>>(), [None]);
        assert_eq!(packets(&[]).count(), 0);
    }

    fn filled(mode: Mode, count: usize, size: usize) -> Lane {
        let lane = Lane::new(mode, false);
        for _ in 0..count {
            lane.push(7, Waiting { message: message(size), deadline: DEADLINE });
        }
        lane
    }

    #[test]
    fn a_reliable_message_takes_packets_that_wait_and_a_datagram_is_alone() {
        let lane = filled(Mode::Brtp, 20, 4_000);
        // Five packets exceed the size.
        for count in [5, 5, 5, 5] {
            assert_eq!(packets(&lane.next_message().unwrap().message).count(), count);
        }
        assert!(lane.next_message().is_none());
        let lane = filled(Mode::Btp, 2, 100);
        assert_eq!(packets(&lane.next_message().unwrap().message).count(), 1);
        assert_eq!(packets(&lane.next_message().unwrap().message).count(), 1);
    }
}
