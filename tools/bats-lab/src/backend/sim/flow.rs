//! Flows of messages in virtual time, with or without a rate limit, one or several at once.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_netem::LinkConfig;
use bats_proto::relay::RelayStats;
use bats_proto::{ConnectionHandle, ConnectionStats, Event, SendError, Timestamp};
use bats_sim::transfer::number_at;
use bytes::Bytes;

use super::ends::{End, EndEvent};
use super::mesh::TcpState;
use super::simulation::Simulation;
use super::transport::SimTransport;
use crate::protocol::reading::NO_WINDOW;

/// Sampling interval.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Virtual time between two snapshots.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit to establish a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time to wait at the end for messages that may be lost.
const DRAIN: Duration = Duration::from_secs(2);
/// Rounds at one point in virtual time. More indicate an infinite loop, of which the emulated network
/// itself finds only its own.
const MAX_ROUNDS: u32 = 1_000_000;
/// Messages sent between two checks of the backlog, as many bytes as in `bats_iperf`.
const BACKLOG_CHECK_BYTES: usize = 64 << 10;
/// How long the path may take to deliver what waits in the send buffer, as in `bats_iperf`.
const MAX_BACKLOG: Duration = Duration::from_millis(50);
/// Size of the message header: flow, number and time of sending.
const HEADER_BYTES: usize = 24;

/// The configuration of a flow.
#[derive(Clone, Debug)]
pub(super) struct FlowConfig {
    pub(super) transport: SimTransport,
    /// Relative to the first byte of the main flow.
    pub(super) start: Duration,
    pub(super) end: Duration,
    /// Message rate in bits per second; `None` for no limit.
    pub(super) rate: Option<f64>,
    /// Message size in bytes.
    pub(super) size: usize,
}

/// A sample of the state of a flow.
#[derive(Clone, Debug)]
pub(super) struct FlowSample {
    /// Seconds from the main flow's first byte.
    pub(super) at: f64,
    /// Bytes of messages that have become deliverable.
    pub(super) delivered: u64,
    /// Jitter of messages in ms (RFC 3550 section 6.4.1).
    pub(super) jitter: f64,
    pub(super) sender: Option<SenderState>,
}

/// Sender state of a flow. Unknown or unlimited values are NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct SenderState {
    pub(super) cwnd_bytes: f64,
    pub(super) smoothed_rtt_ms: f64,
    pub(super) delivery_bps: f64,
    pub(super) pacing_bps: f64,
    /// Packet loss that the sender estimates, in percent.
    pub(super) loss_percent: f64,
    pub(super) in_flight_bytes: f64,
    pub(super) queue_delay_ms: f64,
    /// Loss that the congestion controller takes for the path's own, in percent.
    pub(super) own_loss_percent: f64,
    /// State of the congestion controller and the bound that limits it; empty if unknown.
    pub(super) controller_state: &'static str,
    pub(super) limited_by: &'static str,
    /// Packets sent and lost so far; of TCP, segments sent and retransmitted.
    pub(super) packets: (u64, u64),
}

impl From<&ConnectionStats> for SenderState {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            cwnd_bytes: match stats.congestion.cwnd_bytes as f64 {
                bytes if bytes >= NO_WINDOW => f64::NAN,
                bytes => bytes,
            },
            smoothed_rtt_ms: stats.path.smoothed_rtt.as_secs_f64() * 1e3,
            delivery_bps: stats.congestion.delivery_bps as f64,
            pacing_bps: match stats.congestion.pacing_bps {
                u64::MAX => f64::NAN,
                rate => rate as f64,
            },
            loss_percent: stats.path.loss_estimate * 100.0,
            in_flight_bytes: stats.congestion.in_flight_bytes as f64,
            queue_delay_ms: stats.path.queue_delay.as_secs_f64() * 1e3,
            own_loss_percent: stats.congestion.own_loss * 100.0,
            controller_state: stats.congestion.controller_state,
            limited_by: stats.congestion.limited_by,
            packets: (stats.packets.sent, stats.packets.lost),
        }
    }
}

impl From<&TcpState> for SenderState {
    fn from(state: &TcpState) -> Self {
        Self {
            cwnd_bytes: state.cwnd_bytes as f64,
            smoothed_rtt_ms: state.smoothed_rtt.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3),
            delivery_bps: state.delivery_bps.unwrap_or(f64::NAN),
            pacing_bps: state.pacing_bps.unwrap_or(f64::NAN),
            loss_percent: f64::NAN,
            in_flight_bytes: f64::NAN,
            queue_delay_ms: f64::NAN,
            own_loss_percent: f64::NAN,
            controller_state: "",
            limited_by: "",
            packets: state.transmissions,
        }
    }
}

/// The result of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowOutcome {
    pub(super) samples: Vec<FlowSample>,
    /// For messages that may be lost: time of sending in seconds, and whether it arrived.
    pub(super) messages: Vec<(f32, bool)>,
    /// Segments sent by a TCP model, and retransmitted segments among them.
    pub(super) transmissions: Option<(u64, u64)>,
}

/// The results of all flows.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) flows: Vec<FlowOutcome>,
    /// Time in seconds, and bytes queued in front of each link.
    pub(super) queues: Vec<(f64, Vec<usize>)>,
    pub(super) relays: Vec<RelayStats>,
}

/// Link changes: time, and the settings of all links from then on.
pub(super) type Changes = Vec<(Duration, Vec<[LinkConfig; 2]>)>;

/// Intermediate figures of running flows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Snapshot {
    /// Seconds from the main flow's first byte.
    pub(super) at: f64,
    /// Goodput of all flows since the previous snapshot.
    pub(super) mbps: f64,
    /// Mean RTT of messages since the previous snapshot, if measured.
    pub(super) rtt_ms: Option<f64>,
    /// Longest queue on the path.
    pub(super) queue_kilobytes: f64,
}

/// Runs flows; time counts from the first of them. Passes snapshots to `on_snapshot` as virtual
/// time proceeds.
///
/// # Errors
/// If a connection is not established or ends early; if a message arrives corrupted, twice or, in a
/// reliable mode, out of order.
pub(super) fn run(
    simulation: &mut Simulation,
    configs: &[FlowConfig],
    changes: &Changes,
    on_snapshot: &dyn Fn(Snapshot),
) -> Result<Outcome> {
    let flows = configs.iter().map(|config| Flow::new(config.clone())).collect();
    let by_handle = BTreeMap::new();
    Run {
        simulation,
        flows,
        by_handle,
        time_zero: None,
        changes,
        changed: 0,
        on_snapshot,
        last_snapshot: (0.0, 0),
    }
    .run()
}

struct Flow {
    config: FlowConfig,
    has_begun: bool,
    handle: Option<ConnectionHandle>,
    server: Option<ConnectionHandle>,
    established: Option<Timestamp>,
    is_blocked: bool,
    is_closed: bool,
    sent: u64,
    /// Next expected message of a reliable flow.
    expected: u64,
    received_bytes: u64,
    transit: Option<f64>,
    jitter: f64,
    outcome: FlowOutcome,
}

impl Flow {
    fn new(config: FlowConfig) -> Self {
        Self {
            config,
            has_begun: false,
            handle: None,
            server: None,
            established: None,
            is_blocked: false,
            is_closed: false,
            sent: 0,
            expected: 0,
            received_bytes: 0,
            transit: None,
            jitter: 0.0,
            outcome: FlowOutcome::default(),
        }
    }

    /// When the next message is due; immediately if the flow has no rate limit.
    fn due(&self) -> Option<Timestamp> {
        let established = self.established.filter(|_| !self.is_blocked)?;
        let gap = self.config.rate.map_or(0.0, |rate| self.config.size as f64 * 8.0 / rate);
        Some(established + Duration::from_secs_f64(gap * self.sent as f64))
    }

    fn message(&self, flow: usize, now: Timestamp) -> Bytes {
        let mut bytes = vec![self.sent as u8; self.config.size.max(HEADER_BYTES)];
        bytes[..8].copy_from_slice(&(flow as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sent.to_le_bytes());
        bytes[16..HEADER_BYTES].copy_from_slice(&now.as_nanos().to_le_bytes());
        bytes.into()
    }

    /// Whether the application waits: of a mode that may lose messages, those that wait too long in
    /// the send buffer expire.
    fn is_backlogged(&self, stats: impl FnOnce() -> Option<ConnectionStats>) -> bool {
        let every = (BACKLOG_CHECK_BYTES / self.config.size.max(1)).max(1) as u64;
        if self.config.rate.is_some()
            || self.config.transport.is_reliable()
            || !self.sent.is_multiple_of(every)
        {
            return false;
        }
        stats().is_some_and(|stats| {
            let limit = stats.congestion.delivery_bps as f64 / 8.0 * MAX_BACKLOG.as_secs_f64();
            stats.buffers.send_bytes as f64 > limit
        })
    }

    /// Whether length and content of a message are those that this flow sent.
    fn is_intact(&self, message: &[u8]) -> bool {
        let number = message.get(8).copied().unwrap_or_default();
        message.len() == self.config.size.max(HEADER_BYTES)
            && message[HEADER_BYTES..].iter().all(|&byte| byte == number)
    }

    /// Accepts a message that has arrived.
    fn accept(
        &mut self,
        number: u64,
        sent: Timestamp,
        now: Timestamp,
        message: &[u8],
    ) -> Result<()> {
        if !self.is_intact(message) {
            bail!("message {number} arrived corrupted");
        }
        if self.config.transport.is_reliable() {
            if number != self.expected {
                bail!("message {number} arrived, expected {}", self.expected);
            }
            self.expected += 1;
        } else {
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            match self.outcome.messages.get_mut(index) {
                Some((_, arrived)) if !*arrived => *arrived = true,
                // The link duplicated it; plain datagrams have no duplicate detection.
                Some(_) if self.config.transport == SimTransport::Udp => return Ok(()),
                Some(_) => bail!("message {number} arrived twice"),
                None => bail!("message {number} arrived but was never sent"),
            }
        }
        self.received_bytes += message.len() as u64;
        let transit = (now - sent).as_secs_f64() * 1e3;
        if let Some(before) = self.transit.replace(transit) {
            self.jitter += ((transit - before).abs() - self.jitter) / 16.0;
        }
        Ok(())
    }
}

struct Run<'a> {
    simulation: &'a mut Simulation,
    flows: Vec<Flow>,
    /// Flow by connection of the client.
    by_handle: BTreeMap<(usize, ConnectionHandle), usize>,
    /// When the first flow could send: the origin of time.
    time_zero: Option<Timestamp>,
    changes: &'a Changes,
    /// Number of link changes applied.
    changed: usize,
    on_snapshot: &'a dyn Fn(Snapshot),
    /// Time in seconds and bytes delivered by all flows at the last snapshot.
    last_snapshot: (f64, u64),
}

impl Run<'_> {
    fn run(mut self) -> Result<Outcome> {
        let start = self.simulation.now();
        let mut outcome = Outcome::default();
        self.connect(0)?;
        let mut next_sample = None;
        let (mut last, mut rounds) = (start, 0);
        loop {
            let now = self.simulation.now();
            rounds = if now > last { 0 } else { rounds + 1 };
            last = now;
            if rounds > MAX_ROUNDS {
                bail!("the simulation makes no progress at {} s", now.as_nanos() as f64 / 1e9);
            }
            if self.time_zero.is_none() && now >= start + CONNECT_TIMEOUT {
                bail!(
                    "no connection was established over this path within {} simulated seconds",
                    CONNECT_TIMEOUT.as_secs()
                );
            }
            let (measured, end) = match self.time_zero {
                Some(time_zero) => self.end_times(time_zero),
                None => (start + CONNECT_TIMEOUT, start + CONNECT_TIMEOUT),
            };
            if self.time_zero.is_some() && now >= end {
                break;
            }
            next_sample = next_sample.or(self.time_zero);
            let sample_due = next_sample.filter(|&at| at <= measured);
            let until = self.next_due().into_iter().chain(sample_due).chain([end]).min();
            for event in self.simulation.step(until.unwrap_or(end).max(now)) {
                self.on_event(event)?;
            }
            for (flow, bytes) in self.simulation.datagrams() {
                self.accept(Some(flow), &bytes, None)?;
            }
            self.apply_due_actions()?;
            self.send();
            let now = self.simulation.now();
            next_sample = next_sample.or(self.time_zero);
            if let Some(due) = next_sample.filter(|&due| due <= now && due <= measured) {
                self.take_sample(&mut outcome);
                next_sample = Some(due + SAMPLE_INTERVAL);
            }
        }
        outcome.relays = self.simulation.relays();
        outcome.flows = self.flows.into_iter().map(|flow| flow.outcome).collect();
        Ok(outcome)
    }

    /// End of the measurement and end of the run.
    fn end_times(&self, time_zero: Timestamp) -> (Timestamp, Timestamp) {
        let last = self.flows.iter().map(|flow| flow.config.end).max().unwrap_or_default();
        let is_lossy = self.flows.iter().any(|flow| !flow.config.transport.is_reliable());
        let measured = time_zero + last;
        (measured, if is_lossy { measured + DRAIN } else { measured })
    }

    /// The next due time: start, end or message of a flow, or a link change.
    fn next_due(&self) -> Option<Timestamp> {
        let time_zero = self.time_zero?;
        let begins = self
            .flows
            .iter()
            .filter(|flow| !flow.has_begun)
            .map(|flow| time_zero + flow.config.start);
        let now = self.simulation.now();
        let sends = self.flows.iter().filter_map(|flow| {
            let (due, end) = (flow.due()?, time_zero + flow.config.end);
            // A flow that was blocked at its end has overdue messages that are never sent.
            (due < end && now < end && flow.config.rate.is_some()).then_some(due)
        });
        let end_times = self.flows.iter().filter(|flow| self.ends_before(flow));
        let end_times = end_times.map(|flow| time_zero + flow.config.end);
        let change = self.changes.get(self.changed).map(|change| time_zero + change.0);
        begins.chain(sends).chain(end_times).chain(change).min()
    }

    /// Whether the flow is open and must be closed before the run ends. Otherwise its send buffer
    /// would keep it active for long.
    fn ends_before(&self, flow: &Flow) -> bool {
        let last = self.flows.iter().map(|flow| flow.config.end).max().unwrap_or_default();
        flow.has_begun && !flow.is_closed && flow.config.end < last
    }

    fn connect(&mut self, flow: usize) -> Result<()> {
        let now = self.simulation.now();
        let handle = self.simulation.start_flow(flow, self.flows[flow].config.transport)?;
        let each = &mut self.flows[flow];
        (each.has_begun, each.handle) = (true, handle);
        match handle {
            Some(handle) => {
                self.by_handle.insert((self.simulation.pair(flow), handle), flow);
            }
            // Without a handshake it can send at once.
            None => {
                each.established = Some(now);
                if flow == 0 {
                    self.time_zero = Some(now);
                    self.simulation.start_schedules();
                }
            }
        }
        Ok(())
    }

    fn apply_due_actions(&mut self) -> Result<()> {
        let Some(time_zero) = self.time_zero else { return Ok(()) };
        let now = self.simulation.now();
        for flow in 0..self.flows.len() {
            let each = &self.flows[flow];
            if !each.has_begun && time_zero + each.config.start <= now {
                self.connect(flow)?;
            }
        }
        for flow in 0..self.flows.len() {
            let each = &self.flows[flow];
            if !self.ends_before(each) || time_zero + each.config.end > now {
                continue;
            }
            let (handle, pair) = (each.handle, self.simulation.pair(flow));
            self.flows[flow].is_closed = true;
            // Its counters are gone after it ends.
            self.record_tcp_counters(flow);
            match handle {
                Some(handle) => {
                    if let Some(endpoint) = self.simulation.endpoint(pair, End::Client) {
                        endpoint.close(now, handle, 0, "the flow ends");
                    }
                    self.simulation.request_poll(pair, End::Client);
                }
                None => self.simulation.end_tcp_flow(flow),
            }
        }
        while let Some((at, links)) = self.changes.get(self.changed)
            && time_zero + *at <= now
        {
            self.simulation.set_links(links);
            self.changed += 1;
        }
        Ok(())
    }

    /// Records delivered bytes and transmissions of a TCP model.
    fn record_tcp_counters(&mut self, flow: usize) {
        if let Some(state) = self.simulation.tcp_state(flow) {
            self.flows[flow].received_bytes = state.delivered;
            self.flows[flow].outcome.transmissions = Some(state.transmissions);
        }
    }

    fn on_event(&mut self, event: EndEvent) -> Result<()> {
        let (pair, side, handle, event) = event;
        if side == End::Server {
            return if event == Event::Readable { self.receive(pair, handle) } else { Ok(()) };
        }
        let Some(&index) = self.by_handle.get(&(pair, handle)) else { return Ok(()) };
        let now = self.simulation.now();
        let flow = &mut self.flows[index];
        match event {
            Event::Connected => {
                flow.established = Some(now);
                if index == 0 {
                    self.time_zero = Some(now);
                    self.simulation.start_schedules();
                }
            }
            Event::Writable => flow.is_blocked = false,
            Event::Closed(_) if flow.is_closed => {}
            Event::Closed(reason) => bail!("the connection ended early: {reason:?}"),
            _ => {}
        }
        Ok(())
    }

    /// Sends the messages that are due.
    fn send(&mut self) {
        let Some(time_zero) = self.time_zero else { return };
        let now = self.simulation.now();
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if !flow.has_begun || now >= time_zero + flow.config.end {
                continue;
            }
            let pair = self.simulation.pair(index);
            let at = (now - time_zero).as_secs_f64() as f32;
            let Some(handle) = flow.handle else {
                while flow.config.transport == SimTransport::Udp
                    && flow.due().is_some_and(|due| due <= now)
                {
                    let message = flow.message(index, now);
                    self.simulation.send_datagram(index, message.into());
                    flow.sent += 1;
                    flow.outcome.messages.push((at, false));
                }
                continue;
            };
            let mut has_sent = false;
            while flow.due().is_some_and(|due| due <= now) {
                let message = flow.message(index, now);
                let Some(endpoint) = self.simulation.endpoint(pair, End::Client) else { break };
                if flow.is_backlogged(|| endpoint.stats(now, handle)) {
                    // The next step tries again, at the latest that of the next sample.
                    break;
                }
                match endpoint.send(now, handle, message) {
                    Ok(()) => {
                        has_sent = true;
                        flow.sent += 1;
                        if !flow.config.transport.is_reliable() {
                            flow.outcome.messages.push((at, false));
                        }
                    }
                    // `Event::Writable` or `Event::Closed` follows.
                    Err(SendError::Blocked(_)) | Err(_) => flow.is_blocked = true,
                }
            }
            if has_sent {
                self.simulation.request_poll(pair, End::Client);
            }
        }
    }

    fn receive(&mut self, pair: usize, handle: ConnectionHandle) -> Result<()> {
        let now = self.simulation.now();
        while let Some(message) =
            self.simulation.endpoint(pair, End::Server).and_then(|end| end.recv(now, handle))
        {
            self.accept(None, &message, Some(handle))?;
        }
        self.simulation.request_poll(pair, End::Server);
        Ok(())
    }

    /// Accepts a message and finds its flow by the header. `of` is the expected flow, if known.
    fn accept(
        &mut self,
        of: Option<usize>,
        message: &[u8],
        handle: Option<ConnectionHandle>,
    ) -> Result<()> {
        let now = self.simulation.now();
        let number = |at: usize| number_at(message, at).unwrap_or(u64::MAX);
        let index = usize::try_from(number(0)).unwrap_or(usize::MAX);
        if of.is_some_and(|of| of != index || !self.flows[of].is_intact(message)) {
            // A corrupted datagram: the UDP checksum discards it.
            return Ok(());
        }
        let Some(flow) = self.flows.get_mut(index) else {
            bail!("a message of an unknown flow arrived");
        };
        flow.server = handle.or(flow.server);
        flow.accept(number(8), Timestamp::from_nanos(number(16)), now, message)
    }

    fn take_sample(&mut self, outcome: &mut Outcome) {
        let now = self.simulation.now();
        let at = self.time_zero.map_or(0.0, |time_zero| (now - time_zero).as_secs_f64());
        for (index, flow) in self.flows.iter_mut().enumerate() {
            // With relays all flows share one link state: report it once.
            let handle = flow.handle.filter(|_| index == 0 || !self.simulation.is_line());
            let pair = self.simulation.pair(index);
            let of_tcp = self.simulation.tcp_state(index);
            if let Some(state) = &of_tcp {
                flow.received_bytes = state.delivered;
                // Transmissions while the queues drain do not count.
                flow.outcome.transmissions = Some(state.transmissions);
            }
            let sender = match (handle, &of_tcp) {
                (Some(handle), _) => {
                    self.simulation.sender(pair, handle).as_ref().map(SenderState::from)
                }
                (None, state) => state.as_ref().map(SenderState::from),
            };
            // Of a partly received message count the bytes that are deliverable.
            let partial = flow
                .server
                .filter(|_| flow.config.transport.is_reliable())
                .and_then(|handle| self.simulation.endpoint(pair, End::Server)?.stats(now, handle))
                .map(|stats| stats.messages.bytes_received);
            let delivered = partial.unwrap_or(flow.received_bytes);
            flow.outcome.samples.push(FlowSample { at, delivered, jitter: flow.jitter, sender });
        }
        let queues = self.simulation.queues();
        if at - self.last_snapshot.0 >= SNAPSHOT_INTERVAL.as_secs_f64() - 1e-6 {
            let samples = self.flows.iter().filter_map(|flow| flow.outcome.samples.last());
            let delivered: u64 = samples.map(|sample| sample.delivered).sum();
            let bytes = delivered.saturating_sub(self.last_snapshot.1) as f64;
            let queue_kilobytes = queues.iter().max().map_or(0.0, |&bytes| bytes as f64 / 1e3);
            let mbps = bytes * 8e-6 / (at - self.last_snapshot.0);
            (self.on_snapshot)(Snapshot { at, mbps, rtt_ms: None, queue_kilobytes });
            self.last_snapshot = (at, delivered);
        }
        outcome.queues.push((at, queues));
    }
}
