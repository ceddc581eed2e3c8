//! A run: applications as planned over a network as planned, watched by the models.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use bats_proto::config::{Mode, Security};
use bats_proto::{
    ClientConfig, CloseReason, ConnectionHandle, ConnectionStats, Endpoint, EndpointConfig, Event,
    Identity, PeerTrust, SendError, ServerConfig, Timestamp, TransportConfig,
};

use super::draw::Draw;
use super::model::{self, Way};
use super::plan::{ConnectionPlan, Ending, Plan, Traffic};
use crate::network::{Host, Network};
use crate::record::Recorder;

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// What decided it.
    pub seed: u64,
    /// What was broken and when, if anything was.
    pub violation: Option<String>,
    /// Connections of the plan.
    pub connections: u64,
    /// Those that finished in both directions with everything as it should be.
    pub finished: u64,
    /// Those that an application closed before.
    pub closed: u64,
    /// Those that ended as long silence and failed handshakes may end them.
    pub given_up: u64,
    /// Messages taken and delivered, and octets delivered.
    pub sent: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Octets delivered.
    pub bytes: u64,
    /// Packets handed to the first links.
    pub packets: u64,
    /// Length of the run in virtual time.
    pub time: Duration,
    /// Time from the last fault until all had finished.
    pub to_finish: Duration,
    /// Share of the time allowed for that which was used.
    pub patience_used: f64,
    /// Hash over all events on the links, if it was asked for.
    pub trace: Option<String>,
}

/// Interval at which statistics are looked at.
const SAMPLE: Duration = Duration::from_millis(100);
/// The application's code with which connection 0 is closed.
const CODE: u64 = 1_000;
/// Memory that a sender has in any case: a window of 512 symbols, with room for larger symbols.
const LEAST_SEND_BUDGET: u64 = 2 << 20;
/// Memory that a receiver has in any case.
const LEAST_RECEIVE_BUDGET: u64 = 4 << 20;

/// One end of a connection.
#[derive(Debug)]
struct Side {
    handle: Option<ConnectionHandle>,
    open: bool,
    /// What this side sends.
    way: Way,
    traffic: Traffic,
    draw: Draw,
    next_size: usize,
    due: Option<Timestamp>,
    blocked: bool,
    finished: bool,
    /// The end of the other side's messages was seen.
    saw_end: bool,
    closed: Option<CloseReason>,
    /// When to read next, if not at once.
    read_at: Option<Timestamp>,
    last: ConnectionStats,
}

#[derive(Debug)]
struct Pair {
    plan: ConnectionPlan,
    sides: [Side; 2],
    /// Closed by an application before both had finished.
    cut: bool,
    /// Both had finished.
    done: bool,
}

impl Pair {
    /// Nothing more can happen to it.
    fn is_over(&self) -> bool {
        let [client, server] = &self.sides;
        client.closed.is_some() && (server.handle.is_none() || server.closed.is_some())
    }
}

/// Runs a plan; `trace` asks for the hash.
pub fn run(plan: &Plan, trace: bool) -> Report {
    let mut run = Run::new(plan);
    if trace {
        *run.network.recorder() = Recorder::tracing();
    }
    let violation = run.go().err();
    let now = run.network.now();
    let mut report = Report {
        seed: plan.seed,
        violation: violation.map(|what| format!("{:.6} s: {what}", now.as_secs_f64())),
        connections: plan.connections.len() as u64,
        packets: [Host::Client, Host::Server]
            .map(|host| run.network.link_stats(host).offered)
            .iter()
            .sum(),
        time: now - run.start,
        to_finish: run.to_finish,
        patience_used: run.to_finish.as_secs_f64() / run.patience.as_secs_f64().max(1e-9),
        trace: run.network.recorder().trace.as_ref().map(|trace| trace.hash().to_string()),
        ..Report::default()
    };
    for pair in &run.pairs {
        report.finished += u64::from(pair.done);
        report.closed += u64::from(pair.cut && !pair.done);
        report.given_up += u64::from(!pair.cut && !pair.done);
        for side in &pair.sides {
            report.sent += side.way.sent();
            report.delivered += side.way.delivered();
            report.bytes += side.way.bytes();
        }
    }
    report
}

struct Run<'a> {
    plan: &'a Plan,
    network: Network,
    start: Timestamp,
    pairs: Vec<Pair>,
    /// Connections accepted that have not said which they are.
    unnamed: BTreeSet<ConnectionHandle>,
    to_finish: Duration,
    patience: Duration,
}

const HOSTS: [Host; 2] = [Host::Client, Host::Server];

fn endpoints(plan: &Plan) -> [Endpoint; 2] {
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: Arc::new(plan.transport.clone()),
        retry_threshold: if plan.retry { 0 } else { usize::MAX },
        max_connections: 64,
    };
    [None, Some(server)].map(|server| {
        let mut octets = [u8::from(server.is_some()); 32];
        octets[..8].copy_from_slice(&plan.seed.to_le_bytes());
        let security = Security::DangerousPlain;
        let config = EndpointConfig { security, server, ..EndpointConfig::default() };
        Endpoint::new(config, octets).expect("the stand-in needs no certificate")
    })
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan) -> Self {
        let network = Network::chain(endpoints(plan), plan.links(Duration::ZERO), plan.seed);
        let start = network.now();
        let pair = |(index, each): (usize, &ConnectionPlan)| {
            let side = |side: usize| {
                let tag = model::tag(plan.seed, index, side);
                Side {
                    handle: None,
                    open: false,
                    way: Way::new(each.mode, tag),
                    traffic: each.traffic[side],
                    draw: Draw::new(tag),
                    next_size: model::NAMED,
                    due: None,
                    blocked: false,
                    finished: false,
                    saw_end: false,
                    closed: None,
                    read_at: None,
                    last: ConnectionStats::default(),
                }
            };
            Pair { plan: each.clone(), sides: [side(0), side(1)], cut: false, done: false }
        };
        Self {
            plan,
            start,
            pairs: plan.connections.iter().enumerate().map(pair).collect(),
            unnamed: BTreeSet::new(),
            network,
            to_finish: Duration::ZERO,
            patience: Duration::ZERO,
        }
    }

    fn go(&mut self) -> Result<(), String> {
        let mut changes = self.plan.changes().into_iter().peekable();
        let mut sample = self.start;
        let calm = self.start + self.plan.calm;
        let mut limit: Option<Timestamp> = None;
        let mut gone: Option<Timestamp> = None;
        loop {
            let now = self.network.now();
            let mut until = sample;
            until = changes.peek().map_or(until, |&at| until.min(self.start + at));
            until = self.next_action().map_or(until, |at| until.min(at));
            self.network.step(until.max(now));
            self.take_events()?;
            let now = self.network.now();
            while changes.next_if(|&at| self.start + at <= now).is_some() {
                let links = self.plan.links(now - self.start);
                for (host, way) in HOSTS.into_iter().zip(links) {
                    self.network.set_links(host, way);
                }
            }
            self.act()?;
            if sample > now {
                continue;
            }
            sample = now + SAMPLE;
            self.look()?;
            if now < calm {
                continue;
            }
            let patience = self.patience();
            let limit = *limit.get_or_insert(now + patience);
            self.patience = patience.max(self.patience);
            let open = self.pairs.iter().filter(|pair| !pair.done && !pair.cut && !pair.is_over());
            if open.clone().count() > 0 {
                self.to_finish = now - calm;
                if now >= limit {
                    let what: Vec<_> = open.map(describe).collect();
                    return Err(format!(
                        "not finished {:?} after the faults: {what:?}",
                        now - calm
                    ));
                }
                continue;
            }
            // What was closed is forgotten once its silence has lasted.
            let idle = self.plan.transport.idle_timeout;
            let gone = *gone
                .get_or_insert(now + idle + self.plan.round_trip() * 20 + Duration::from_secs(12));
            let left = HOSTS.map(|host| self.network.endpoint(host).connection_count());
            if left == [0, 0] && self.pairs.iter().all(Pair::is_over) && self.unnamed.is_empty() {
                return Ok(());
            }
            if now >= gone {
                return Err(format!("{left:?} connections are left at client and server"));
            }
        }
    }

    /// Time that the second phase may take, from what is left to send when it begins.
    fn patience(&self) -> Duration {
        let left = |side: &Side| {
            let (least, most) = side.traffic.sizes;
            (side.traffic.messages - side.way.sent().min(side.traffic.messages))
                * ((least + most) as u64 / 2 + 60)
        };
        let bytes = self
            .pairs
            .iter()
            .flat_map(|pair| &pair.sides)
            .map(|side| left(side) + side.last.send_buffer_bytes);
        let intervals = self.pairs.iter().flat_map(|pair| &pair.sides).map(|side| {
            let left = side.traffic.messages - side.way.sent().min(side.traffic.messages);
            side.traffic.interval.unwrap_or_default() * left as u32
        });
        self.plan.patience(bytes.sum()) + intervals.max().unwrap_or_default()
    }

    /// When an application next does something by itself.
    fn next_action(&self) -> Option<Timestamp> {
        let pair = |pair: &Pair| {
            let start = pair.sides[0].handle.is_none().then(|| self.start + pair.plan.start);
            let close = match pair.plan.ending {
                Ending::Close(_, at) if !pair.cut && !pair.done => Some(self.start + at),
                _ => None,
            };
            let sides = pair.sides.iter().flat_map(|side| [side.due, side.read_at]).flatten();
            sides.chain(start).chain(close).min()
        };
        self.pairs.iter().filter(|pair| pair.sides[0].closed.is_none()).filter_map(pair).min()
    }

    fn find(&self, host: usize, handle: ConnectionHandle) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.sides[host].handle == Some(handle))
    }

    fn take_events(&mut self) -> Result<(), String> {
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            let side = usize::from(host == Host::Server);
            let found = self.find(side, handle);
            match (event, found) {
                (Event::Accepted, _) => {
                    self.unnamed.insert(handle);
                    self.read_unnamed(handle)?;
                }
                (Event::Connected, Some(index)) => self.open(index, 0)?,
                (Event::Writable, Some(index)) => {
                    self.pairs[index].sides[side].blocked = false;
                    self.write(index, side)?;
                }
                (Event::Readable, Some(index)) => self.readable(index, side)?,
                (Event::Readable, None) => self.read_unnamed(handle)?,
                (Event::Closed(reason), found) => self.closed(side, handle, found, reason)?,
                (Event::AllAcknowledged, _) => {}
                (event, found) => return Err(format!("{host:?} {found:?}: unexpected {event:?}")),
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        let now = self.network.now();
        for index in 0..self.pairs.len() {
            let pair = &mut self.pairs[index];
            if pair.sides[0].handle.is_none() && self.start + pair.plan.start <= now {
                self.connect(index)?;
            }
            let pair = &mut self.pairs[index];
            if let Ending::Close(side, at) = pair.plan.ending
                && !pair.cut
                && !pair.done
                && self.start + at <= now
            {
                pair.cut = true;
                // A server that does not know the connection leaves it to the client.
                let side = if pair.sides[side].handle.is_some() { side } else { 0 };
                self.close(index, side);
            }
            for side in 0..2 {
                let each = &self.pairs[index].sides[side];
                if each.read_at.is_some_and(|at| at <= now) {
                    self.pairs[index].sides[side].read_at = None;
                    self.read(index, side)?;
                }
                if self.pairs[index].sides[side].due.is_some_and(|at| at <= now) {
                    self.write(index, side)?;
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> Result<(), String> {
        let transport =
            TransportConfig { mode: self.pairs[index].plan.mode, ..self.plan.transport.clone() };
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: Arc::new(transport),
        };
        let now = self.network.now();
        let client = self.network.endpoint(Host::Client);
        let handle = client
            .connect(now, Host::Server.address(), "server", config)
            .map_err(|error| format!("connection {index}: {error}"))?;
        self.pairs[index].sides[0].handle = Some(handle);
        self.network.touch(Host::Client);
        Ok(())
    }

    fn open(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.network.now();
        let each = &mut self.pairs[index].sides[side];
        if core::mem::replace(&mut each.open, true) {
            return Err(format!("connection {index}: side {side} was opened twice"));
        }
        each.due = each.traffic.interval.map(|_| now);
        self.write(index, side)
    }

    fn close(&mut self, index: usize, side: usize) {
        let now = self.network.now();
        if let Some(handle) = self.pairs[index].sides[side].handle {
            let code = CODE + index as u64;
            self.network.endpoint(HOSTS[side]).close(now, handle, code, "");
            self.network.touch(HOSTS[side]);
        }
    }

    /// Sends what is due, and says so when it was the last.
    fn write(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.network.now();
        let each = &mut self.pairs[index].sides[side];
        let Some(handle) = each.handle.filter(|_| each.open && each.closed.is_none()) else {
            each.due = None;
            return Ok(());
        };
        let endpoint = self.network.endpoint(HOSTS[side]);
        while !each.finished && !each.blocked {
            if each.way.sent() >= each.traffic.messages {
                each.due = None;
                each.finished = true;
                // It may have been closed in this very moment.
                let _closed = endpoint.finish(now, handle);
                break;
            }
            if each.due.is_some_and(|at| at > now) {
                break;
            }
            let size = each.next_size;
            match endpoint.send(now, handle, each.way.compose(size)) {
                Ok(()) => {
                    each.way.took(size);
                    let (least, most) = each.traffic.sizes;
                    each.next_size = each.draw.integer(least as u64, most as u64) as usize;
                    each.due = each.traffic.interval.map(|interval| now + interval);
                }
                Err(SendError::Blocked(_)) => {
                    each.blocked = true;
                    each.due = None;
                }
                Err(SendError::Closed | SendError::Finished) => {
                    each.due = None;
                    break;
                }
                Err(error) => return Err(format!("connection {index}: {error}")),
            }
        }
        self.network.touch(HOSTS[side]);
        Ok(())
    }

    fn readable(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.network.now();
        match self.pairs[index].plan.reads[side] {
            Some(interval) => {
                self.pairs[index].sides[side].read_at.get_or_insert(now + interval);
                Ok(())
            }
            None => self.read(index, side),
        }
    }

    fn read(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.network.now();
        let Some(handle) = self.pairs[index].sides[side].handle else { return Ok(()) };
        while let Some(message) = self.network.endpoint(HOSTS[side]).recv(now, handle) {
            self.deliver(index, side, &message)?;
        }
        self.network.touch(HOSTS[side]);
        if !self.pairs[index].sides[side].saw_end
            && self.network.endpoint(HOSTS[side]).is_finished(handle)
        {
            self.pairs[index].sides[side].saw_end = true;
            self.ended(index, side)?;
        }
        Ok(())
    }

    fn deliver(&mut self, index: usize, side: usize, message: &[u8]) -> Result<(), String> {
        let way = &mut self.pairs[index].sides[1 - side].way;
        way.receive(message).map_err(|what| format!("connection {index}, to side {side}: {what}"))
    }

    /// The first message that a server receives says which connection it came by.
    fn read_unnamed(&mut self, handle: ConnectionHandle) -> Result<(), String> {
        let now = self.network.now();
        let Some(message) = self.network.endpoint(Host::Server).recv(now, handle) else {
            if self.network.endpoint(Host::Server).is_finished(handle) {
                // All of it was lost: nothing to answer.
                let _closed = self.network.endpoint(Host::Server).finish(now, handle);
            }
            self.network.touch(Host::Server);
            return Ok(());
        };
        if !self.unnamed.remove(&handle) {
            return Err("a message of a connection that was not accepted".into());
        }
        let named = model::name(&message);
        let is_it = |pair: &Pair| named.is_some_and(|(_, tag)| tag == pair.sides[0].way.tag());
        let Some(index) = self.pairs.iter().position(is_it) else {
            return Err(format!("a message of nobody: {named:?}, {} octets", message.len()));
        };
        if self.pairs[index].sides[1].handle.replace(handle).is_some() {
            return Err(format!("connection {index} was accepted twice"));
        }
        self.deliver(index, 1, &message)?;
        self.open(index, 1)?;
        self.readable(index, 1)
    }

    /// A receiver has seen the end of what the other side sends.
    fn ended(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.network.now();
        let pair = &mut self.pairs[index];
        if !pair.sides[1 - side].finished && pair.sides[1].handle.is_some() {
            return Err(format!("connection {index}: side {side} saw an end that was not said"));
        }
        let handle = pair.sides[side].handle;
        let stats = handle.and_then(|handle| self.network.endpoint(HOSTS[side]).stats(now, handle));
        let Some(stats) = stats else { return Ok(()) };
        let way = &pair.sides[1 - side].way;
        way.end(&stats).map_err(|what| format!("connection {index}, to side {side}: {what}"))?;
        let server_done = pair.sides[1].handle.is_none() || pair.sides[1].saw_end;
        if pair.sides[0].saw_end && server_done && !pair.cut && !pair.done {
            pair.done = true;
            self.close(index, 0);
        }
        Ok(())
    }

    fn closed(
        &mut self,
        side: usize,
        handle: ConnectionHandle,
        found: Option<usize>,
        reason: CloseReason,
    ) -> Result<(), String> {
        let Some(index) = found else {
            self.unnamed.remove(&handle);
            let known = self.pairs.iter().any(|pair| pair.cut || pair.done);
            let fine = match reason {
                // A client may give up before its server has heard of it.
                CloseReason::Peer { .. } | CloseReason::Handshake(_) => known,
                CloseReason::IdleTimeout(_) | CloseReason::HandshakeTimeout => {
                    known || self.plan.may_fail()
                }
                _ => false,
            };
            return if fine { Ok(()) } else { Err(format!("an unnamed connection: {reason}")) };
        };
        let pair = &self.pairs[index];
        let over = pair.cut || pair.done;
        let own = CODE + index as u64;
        let fine = match &reason {
            CloseReason::Local => over,
            CloseReason::Peer { code, .. } => over && *code == own,
            CloseReason::IdleTimeout(_) => over || self.plan.may_die(),
            CloseReason::HandshakeTimeout => over || self.plan.may_fail(),
            _ => false,
        };
        if !fine {
            let what = describe(pair);
            return Err(format!("connection {index}: side {side} was closed: {reason}: {what}"));
        }
        self.pairs[index].sides[side].closed = Some(reason);
        Ok(())
    }

    /// Looks at the statistics of all connections.
    fn look(&mut self) -> Result<(), String> {
        let now = self.network.now();
        for index in 0..self.pairs.len() {
            for (side, host) in HOSTS.into_iter().enumerate() {
                let Some(handle) = self.pairs[index].sides[side].handle else { continue };
                let Some(stats) = self.network.endpoint(host).stats(now, handle) else {
                    continue;
                };
                self.check(index, side, &stats).map_err(|what| {
                    format!("connection {index}, side {side}: {what}: {stats:?}")
                })?;
                self.pairs[index].sides[side].last = stats;
            }
        }
        Ok(())
    }

    fn check(&self, index: usize, side: usize, stats: &ConnectionStats) -> Result<(), String> {
        let pair = &self.pairs[index];
        let (own, peer) = (&pair.sides[side], &pair.sides[1 - side]);
        let wrong = |what: &str| Err(what.to_owned());
        let limits = &self.plan.transport;
        let most = own.traffic.sizes.1 as u64;
        let budget = (limits.send_budget as u64).max(LEAST_SEND_BUDGET);
        // Repairs may take a quarter beyond.
        if stats.send_buffer_bytes > budget + budget / 4 + most {
            return wrong("more than the send budget is held");
        }
        let most = peer.traffic.sizes.1 as u64;
        let budget = (limits.receive_budget as u64).max(LEAST_RECEIVE_BUDGET);
        // Timely messages that are complete have the budget, and so have those that are not.
        let budget = if pair.plan.mode == Mode::Brtp { budget } else { budget * 2 };
        if stats.receive_buffer_bytes > budget + budget / 10 + most {
            return wrong("more than the receive budget is held");
        }
        if stats.packets_malformed > 0 {
            return wrong("an authentic packet was malformed");
        }
        // What comes so late that its keys are gone cannot be told from what was forged.
        let may_be_late = stats.key_updates > 0 && self.plan.delays();
        if stats.packets_forged > 0 && !self.plan.corrupts() && !may_be_late {
            return wrong("a packet was taken for forged, and nothing alters packets");
        }
        if stats.messages_sent != own.way.sent() {
            return wrong("messages sent are miscounted");
        }
        if stats.messages_received < peer.way.delivered() {
            return wrong("fewer messages counted than delivered");
        }
        let received = stats.messages_received + stats.messages_lost;
        if pair.plan.mode != Mode::Brtp && received > peer.way.sent() && !peer.traffic_unknown() {
            return wrong("more messages received and lost than were sent");
        }
        if stats.wasted_packets_received > stats.coded_packets_received
            || stats.packets_received > stats.bytes_received
        {
            return wrong("a part is more than the whole");
        }
        let shares = [stats.loss_estimate, stats.code_rate];
        if shares.iter().any(|share| !(0.0..=1.0).contains(share)) {
            return wrong("a share is not within 0 and 1");
        }
        let last = &own.last;
        let counters = |s: &ConnectionStats| {
            [
                s.bytes_sent,
                s.packets_sent,
                s.bytes_received,
                s.packets_received,
                s.packets_lost,
                s.source_packets_sent,
                s.proactive_packets_sent,
                s.top_up_packets_sent,
                s.symbols_decoded,
                s.messages_sent,
                s.message_bytes_sent,
                s.messages_received,
                s.message_bytes_received,
                s.messages_expired,
                s.messages_lost,
                s.symbols_lost,
                s.key_updates,
                s.probe_timeouts,
            ]
        };
        if counters(last).iter().zip(counters(stats)).any(|(before, now)| *before > now) {
            return wrong("a counter went back");
        }
        Ok(())
    }
}

impl Side {
    /// Nothing is known of what this side sends: the model has not seen it begin.
    fn traffic_unknown(&self) -> bool {
        self.handle.is_none()
    }
}

/// The state of a connection that did not finish.
fn describe(pair: &Pair) -> String {
    let side = |side: &Side| {
        let (sent, all) = (side.way.sent(), side.traffic.messages);
        let Side { open, finished, blocked, saw_end, .. } = side;
        format!(
            "open {open}, sent {sent}/{all}, finished {finished}, blocked {blocked}, delivered {}, \
             end seen {saw_end}, {:?}",
            side.way.delivered(),
            side.last,
        )
    };
    let [client, server] = &pair.sides;
    format!("{:?}: client {}; server {}", pair.plan.mode, side(client), side(server))
}
