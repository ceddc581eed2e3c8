//! Flows of messages in virtual time: as much as goes or at a rate, one or several at once.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use bats_netem::LinkConfig;
use bats_proto::relay::RelayStats;
use bats_proto::{ConnectionHandle, ConnectionStats, Event, SendError, Timestamp};
use bytes::Bytes;

use super::carrier::Carrier;
use super::mesh::TcpState;
use super::world::{End, Happened, World};
use crate::protocol::reading::NO_WINDOW;

/// Time between two looks.
pub(super) const TICK: Duration = Duration::from_millis(10);
/// Virtual time between two glimpses.
const GLIMPSE: Duration = Duration::from_millis(500);
/// How long a connection may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// How long messages that may be lost are waited for at the end.
const DRAIN: Duration = Duration::from_secs(2);
/// Flow, number and time of sending.
const HEAD: usize = 24;

/// A flow.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) carrier: Carrier,
    /// From the main flow's first byte.
    pub(super) start: Duration,
    pub(super) end: Duration,
    /// Bits a second of messages; as much as goes if not said.
    pub(super) rate: Option<f64>,
    /// Bytes of a message.
    pub(super) size: usize,
}

/// What is known of a flow at a moment.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    /// Seconds from the main flow's first byte.
    pub(super) at: f64,
    /// Bytes of messages that have become deliverable.
    pub(super) delivered: u64,
    /// Milliseconds, RFC 3550, section 6.4.1; of messages.
    pub(super) jitter: f64,
    pub(super) sender: Option<Sender>,
}

/// The state of what sends a flow. What is not known or has no limit is no number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender {
    pub(super) cwnd_bytes: f64,
    pub(super) smoothed_rtt_ms: f64,
    pub(super) delivery_bps: f64,
    pub(super) pacing_bps: f64,
    /// The share of packets that it thinks lost on the way, in per cent.
    pub(super) loss_percent: f64,
}

impl From<&ConnectionStats> for Sender {
    fn from(stats: &ConnectionStats) -> Self {
        Self {
            cwnd_bytes: match stats.cwnd_bytes as f64 {
                bytes if bytes >= NO_WINDOW => f64::NAN,
                bytes => bytes,
            },
            smoothed_rtt_ms: stats.smoothed_rtt.as_secs_f64() * 1e3,
            delivery_bps: stats.delivery_bps as f64,
            pacing_bps: match stats.pacing_bps {
                u64::MAX => f64::NAN,
                rate => rate as f64,
            },
            loss_percent: stats.loss_estimate * 100.0,
        }
    }
}

impl From<&TcpState> for Sender {
    fn from(state: &TcpState) -> Self {
        Self {
            cwnd_bytes: state.cwnd_bytes as f64,
            smoothed_rtt_ms: state.smoothed_rtt.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3),
            delivery_bps: state.delivery_bps.unwrap_or(f64::NAN),
            pacing_bps: state.pacing_bps.unwrap_or(f64::NAN),
            loss_percent: f64::NAN,
        }
    }
}

/// What became of a flow.
#[derive(Clone, Debug, Default)]
pub(super) struct Flown {
    pub(super) moments: Vec<Moment>,
    /// Of messages that may be lost: when each was sent in seconds, and whether it has arrived.
    pub(super) messages: Vec<(f32, bool)>,
    /// Segments of a model of TCP, and those of them that were sent again.
    pub(super) transmissions: Option<(u64, u64)>,
}

/// What became of all.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) flows: Vec<Flown>,
    /// Seconds, and the bytes before each link.
    pub(super) queues: Vec<(f64, Vec<usize>)>,
    pub(super) relays: Vec<RelayStats>,
}

/// Changes of the links: when, and all of them.
pub(super) type Changes = Vec<(Duration, Vec<[LinkConfig; 2]>)>;

/// What can be seen while flows run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Glimpse {
    /// Seconds from the main flow's first byte.
    pub(super) at: f64,
    /// What all flows together delivered since the glimpse before.
    pub(super) mbps: f64,
    /// Mean of the round-trip times of messages since the glimpse before, where they are measured.
    pub(super) rtt_ms: Option<f64>,
    /// The longest queue on the way.
    pub(super) queue_kilobytes: f64,
}

/// Runs flows; the first is the one that time counts from. What can be seen meanwhile is told to `tell`,
/// by virtual time.
///
/// # Errors
/// Where no connection comes about or ends early, or a message arrives altered, twice or, in a
/// reliable mode, out of order.
pub(super) fn run(
    world: &mut World,
    plans: &[Plan],
    changes: &Changes,
    tell: &dyn Fn(Glimpse),
) -> Result<Outcome> {
    let flows = plans.iter().map(|plan| Flow::new(plan.clone())).collect();
    let by_handle = BTreeMap::new();
    Run { world, flows, by_handle, zero: None, changes, changed: 0, tell, told: (0.0, 0) }.go()
}

struct Flow {
    plan: Plan,
    has_begun: bool,
    handle: Option<ConnectionHandle>,
    server: Option<ConnectionHandle>,
    established: Option<Timestamp>,
    is_blocked: bool,
    is_closed: bool,
    sent: u64,
    /// The next message of a reliable flow.
    expected: u64,
    received_bytes: u64,
    transit: Option<f64>,
    jitter: f64,
    flown: Flown,
}

impl Flow {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
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
            flown: Flown::default(),
        }
    }

    /// When the next message goes out; at once where as much goes as goes.
    fn due(&self) -> Option<Timestamp> {
        let established = self.established.filter(|_| !self.is_blocked)?;
        let gap = self.plan.rate.map_or(0.0, |rate| self.plan.size as f64 * 8.0 / rate);
        Some(established + Duration::from_secs_f64(gap * self.sent as f64))
    }

    fn message(&self, flow: usize, now: Timestamp) -> Bytes {
        let mut bytes = vec![self.sent as u8; self.plan.size.max(HEAD)];
        bytes[..8].copy_from_slice(&(flow as u64).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sent.to_le_bytes());
        bytes[16..HEAD].copy_from_slice(&now.as_nanos().to_le_bytes());
        bytes.into()
    }

    /// Whether a message is as one of this flow's is.
    fn is_intact(&self, message: &[u8]) -> bool {
        let number = message.get(8).copied().unwrap_or_default();
        message.len() == self.plan.size.max(HEAD)
            && message[HEAD..].iter().all(|&byte| byte == number)
    }

    /// Takes a message that has arrived.
    fn take(&mut self, number: u64, sent: Timestamp, now: Timestamp, message: &[u8]) -> Result<()> {
        if !self.is_intact(message) {
            bail!("message {number} arrived altered");
        }
        if self.plan.carrier.is_reliable() {
            if number != self.expected {
                bail!("message {number} arrived where {} was due", self.expected);
            }
            self.expected += 1;
        } else {
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            match self.flown.messages.get_mut(index) {
                Some((_, arrived)) if !*arrived => *arrived = true,
                // The link has doubled it, and nobody looks for that in datagrams as they are.
                Some(_) if self.plan.carrier == Carrier::Udp => return Ok(()),
                Some(_) => bail!("message {number} arrived twice"),
                None => bail!("message {number} arrived and was never sent"),
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
    world: &'a mut World,
    flows: Vec<Flow>,
    /// The flow of each of the clients' connections.
    by_handle: BTreeMap<(usize, ConnectionHandle), usize>,
    /// When the first flow could send.
    zero: Option<Timestamp>,
    changes: &'a Changes,
    /// How many changes have been made.
    changed: usize,
    tell: &'a dyn Fn(Glimpse),
    /// Seconds and bytes delivered in all at the last glimpse.
    told: (f64, u64),
}

impl Run<'_> {
    fn go(mut self) -> Result<Outcome> {
        let begin = self.world.now();
        let mut outcome = Outcome::default();
        self.connect(0)?;
        let mut tick = None;
        loop {
            let now = self.world.now();
            if self.zero.is_none() && now >= begin + PATIENCE {
                bail!(
                    "no connection came about over this way in {} simulated seconds",
                    PATIENCE.as_secs()
                );
            }
            let (measured, end) = match self.zero {
                Some(zero) => self.ends(zero),
                None => (begin + PATIENCE, begin + PATIENCE),
            };
            if self.zero.is_some() && now >= end {
                break;
            }
            tick = tick.or(self.zero);
            let tick_due = tick.filter(|&at| at <= measured);
            let until = self.next_due().into_iter().chain(tick_due).chain([end]).min();
            for happened in self.world.step(until.unwrap_or(end).max(now)) {
                self.on_event(happened)?;
            }
            for (flow, bytes) in self.world.datagrams() {
                self.take(Some(flow), &bytes, None)?;
            }
            self.begin_what_is_due()?;
            self.send();
            let now = self.world.now();
            tick = tick.or(self.zero);
            if let Some(due) = tick.filter(|&due| due <= now && due <= measured) {
                self.look(&mut outcome);
                tick = Some(due + TICK);
            }
        }
        outcome.relays = self.world.relays();
        outcome.flows = self.flows.into_iter().map(|flow| flow.flown).collect();
        Ok(outcome)
    }

    /// The ends of what is measured and of the run.
    fn ends(&self, zero: Timestamp) -> (Timestamp, Timestamp) {
        let last = self.flows.iter().map(|flow| flow.plan.end).max().unwrap_or_default();
        let is_lossy = self.flows.iter().any(|flow| !flow.plan.carrier.is_reliable());
        let measured = zero + last;
        (measured, if is_lossy { measured + DRAIN } else { measured })
    }

    /// The next thing that is to be done at a time of ours.
    fn next_due(&self) -> Option<Timestamp> {
        let zero = self.zero?;
        let begins =
            self.flows.iter().filter(|flow| !flow.has_begun).map(|flow| zero + flow.plan.start);
        let sends = self.flows.iter().filter_map(|flow| {
            let due = flow.due()?;
            (due < zero + flow.plan.end && flow.plan.rate.is_some()).then_some(due)
        });
        let ends = self.flows.iter().filter(|flow| self.ends_before(flow));
        let ends = ends.map(|flow| zero + flow.plan.end);
        let change = self.changes.get(self.changed).map(|change| zero + change.0);
        begins.chain(sends).chain(ends).chain(change).min()
    }

    /// Whether the flow is open and has to be closed before the run is over: what waits in its send
    /// buffer would go on for long.
    fn ends_before(&self, flow: &Flow) -> bool {
        let last = self.flows.iter().map(|flow| flow.plan.end).max().unwrap_or_default();
        flow.has_begun && !flow.is_closed && flow.plan.end < last
    }

    fn connect(&mut self, flow: usize) -> Result<()> {
        let now = self.world.now();
        let handle = self.world.begin(flow, self.flows[flow].plan.carrier)?;
        let each = &mut self.flows[flow];
        (each.has_begun, each.handle) = (true, handle);
        match handle {
            Some(handle) => {
                self.by_handle.insert((self.world.pair(flow), handle), flow);
            }
            // Without a handshake it sends at once.
            None => {
                each.established = Some(now);
                if flow == 0 {
                    self.zero = Some(now);
                }
            }
        }
        Ok(())
    }

    fn begin_what_is_due(&mut self) -> Result<()> {
        let Some(zero) = self.zero else { return Ok(()) };
        let now = self.world.now();
        for flow in 0..self.flows.len() {
            let each = &self.flows[flow];
            if !each.has_begun && zero + each.plan.start <= now {
                self.connect(flow)?;
            }
        }
        for flow in 0..self.flows.len() {
            let each = &self.flows[flow];
            if !self.ends_before(each) || zero + each.plan.end > now {
                continue;
            }
            let (handle, pair) = (each.handle, self.world.pair(flow));
            self.flows[flow].is_closed = true;
            // What it had delivered is known no more once it has gone.
            self.note_transmissions(flow);
            match handle {
                Some(handle) => {
                    if let Some(endpoint) = self.world.endpoint(pair, End::Client) {
                        endpoint.close(now, handle, 0, "the flow ends");
                    }
                    self.world.touch(pair, End::Client);
                }
                None => self.world.end(flow),
            }
        }
        while let Some((at, links)) = self.changes.get(self.changed)
            && zero + *at <= now
        {
            self.world.set_links(links);
            self.changed += 1;
        }
        Ok(())
    }

    /// Takes down how often a model of TCP has sent.
    fn note_transmissions(&mut self, flow: usize) {
        if let Some(state) = self.world.tcp_state(flow) {
            self.flows[flow].received_bytes = state.delivered;
            self.flows[flow].flown.transmissions = Some(state.transmissions);
        }
    }

    fn on_event(&mut self, happened: Happened) -> Result<()> {
        let (pair, side, handle, event) = happened;
        if side == End::Server {
            return if event == Event::Readable { self.receive(pair, handle) } else { Ok(()) };
        }
        let Some(&index) = self.by_handle.get(&(pair, handle)) else { return Ok(()) };
        let now = self.world.now();
        let flow = &mut self.flows[index];
        match event {
            Event::Connected => {
                flow.established = Some(now);
                if index == 0 {
                    self.zero = Some(now);
                }
            }
            Event::Writable => flow.is_blocked = false,
            Event::Closed(_) if flow.is_closed => {}
            Event::Closed(reason) => bail!("the connection ended early: {reason:?}"),
            _ => {}
        }
        Ok(())
    }

    /// Sends what is due.
    fn send(&mut self) {
        let Some(zero) = self.zero else { return };
        let now = self.world.now();
        for (index, flow) in self.flows.iter_mut().enumerate() {
            if !flow.has_begun || now >= zero + flow.plan.end {
                continue;
            }
            let pair = self.world.pair(index);
            let at = (now - zero).as_secs_f64() as f32;
            let Some(handle) = flow.handle else {
                while flow.plan.carrier == Carrier::Udp && flow.due().is_some_and(|due| due <= now)
                {
                    let message = flow.message(index, now);
                    self.world.send_datagram(index, message.into());
                    flow.sent += 1;
                    flow.flown.messages.push((at, false));
                }
                continue;
            };
            let mut has_sent = false;
            while flow.due().is_some_and(|due| due <= now) {
                let message = flow.message(index, now);
                let Some(endpoint) = self.world.endpoint(pair, End::Client) else { break };
                match endpoint.send(now, handle, message) {
                    Ok(()) => {
                        has_sent = true;
                        flow.sent += 1;
                        if !flow.plan.carrier.is_reliable() {
                            flow.flown.messages.push((at, false));
                        }
                    }
                    // Its event says when there is room; an end is told by another.
                    Err(SendError::Blocked(_)) | Err(_) => flow.is_blocked = true,
                }
            }
            if has_sent {
                self.world.touch(pair, End::Client);
            }
        }
    }

    fn receive(&mut self, pair: usize, handle: ConnectionHandle) -> Result<()> {
        let now = self.world.now();
        while let Some(message) =
            self.world.endpoint(pair, End::Server).and_then(|end| end.recv(now, handle))
        {
            self.take(None, &message, Some(handle))?;
        }
        self.world.touch(pair, End::Server);
        Ok(())
    }

    /// Takes a message of the flow that it names, which has to be `of` where that is known.
    fn take(
        &mut self,
        of: Option<usize>,
        message: &[u8],
        handle: Option<ConnectionHandle>,
    ) -> Result<()> {
        let now = self.world.now();
        let number = |at: usize| {
            let bytes = message.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(u64::MAX, u64::from_le_bytes)
        };
        let index = usize::try_from(number(0)).unwrap_or(usize::MAX);
        if of.is_some_and(|of| of != index || !self.flows[of].is_intact(message)) {
            // A datagram that was changed: its checksum throws it away.
            return Ok(());
        }
        let Some(flow) = self.flows.get_mut(index) else {
            bail!("a message arrived that no flow sent");
        };
        flow.server = handle.or(flow.server);
        flow.take(number(8), Timestamp::from_nanos(number(16)), now, message)
    }

    fn look(&mut self, outcome: &mut Outcome) {
        let now = self.world.now();
        let at = self.zero.map_or(0.0, |zero| (now - zero).as_secs_f64());
        for (index, flow) in self.flows.iter_mut().enumerate() {
            // What is shared counts once.
            let handle = flow.handle.filter(|_| index == 0 || !self.world.is_line());
            let pair = self.world.pair(index);
            let of_tcp = self.world.tcp_state(index);
            if let Some(state) = &of_tcp {
                flow.received_bytes = state.delivered;
                // What drains from queues afterwards does not count.
                flow.flown.transmissions = Some(state.transmissions);
            }
            let sender = match (handle, &of_tcp) {
                (Some(handle), _) => self.world.sender(pair, handle).as_ref().map(Sender::from),
                (None, state) => state.as_ref().map(Sender::from),
            };
            // Of a long message counts what could be handed over.
            let partial = flow
                .server
                .filter(|_| flow.plan.carrier.is_reliable())
                .and_then(|handle| self.world.endpoint(pair, End::Server)?.stats(now, handle))
                .map(|stats| stats.message_bytes_received);
            let delivered = partial.unwrap_or(flow.received_bytes);
            flow.flown.moments.push(Moment { at, delivered, jitter: flow.jitter, sender });
        }
        let queues = self.world.queues();
        if at - self.told.0 >= GLIMPSE.as_secs_f64() - 1e-6 {
            let moments = self.flows.iter().filter_map(|flow| flow.flown.moments.last());
            let delivered: u64 = moments.map(|moment| moment.delivered).sum();
            let bytes = delivered.saturating_sub(self.told.1) as f64;
            let queue_kilobytes = queues.iter().max().map_or(0.0, |&bytes| bytes as f64 / 1e3);
            let mbps = bytes * 8e-6 / (at - self.told.0);
            (self.tell)(Glimpse { at, mbps, rtt_ms: None, queue_kilobytes });
            self.told = (at, delivered);
        }
        outcome.queues.push((at, queues));
    }
}
