//! Executes a plan: runs the applications over the network and checks the models.

use core::time::Duration;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bats_proto::{CloseReason, ConnectionHandle, Event, SendError, Timestamp};

use super::connection::{Side, SwarmConnection, coded, describe};
use super::model;
use super::network::SwarmNetwork;
use super::plan::{Ending, Plan};
use crate::capture::Capture;

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Seed of the plan.
    pub seed: u64,
    /// The violation and its time, if one was found.
    pub violation: Option<String>,
    /// Number of connections in the plan.
    pub connections: u64,
    /// Connections that finished in both directions.
    pub finished: u64,
    /// Connections that an application closed before they finished.
    pub closed: u64,
    /// Connections that ended by an idle time-out or a failed handshake that the faults explain.
    pub timed_out: u64,
    /// Messages accepted by `send`.
    pub sent: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Message bytes delivered.
    pub bytes: u64,
    /// Packets sent: to the first links, or by all nodes.
    pub packets: u64,
    /// 1 if the network had relays.
    pub relayed: u64,
    /// Number of relay restarts.
    pub restarts: u64,
    /// Number of validated address changes of clients.
    pub path_changes: u64,
    /// Duration of the run in virtual time.
    pub time: Duration,
    /// Time from the last fault until all connections had finished.
    pub to_finish: Duration,
    /// `to_finish` divided by its limit.
    pub time_limit_used: f64,
    /// Hash over all link events, if enabled.
    pub trace: Option<String>,
}

/// Interval at which statistics are checked.
const SAMPLE: Duration = Duration::from_millis(100);
/// Maximum steps at one point in virtual time; more indicate an infinite loop.
const MAX_STEPS: u32 = 1_000_000;
/// Application error code that closes connection 0; each connection has the next code.
const CODE: u64 = 1_000;

/// Runs a plan; `trace` enables the event hash. All failures are reported as violations, including
/// panics of the code under test.
pub fn run(plan: &Plan, trace: bool) -> Report {
    run_captured(plan, trace, None)
}

/// Runs a plan as [`run`] does, and writes its datagrams to a capture.
pub fn run_captured(plan: &Plan, trace: bool, capture: Option<Capture>) -> Report {
    let outcome = catch_unwind(AssertUnwindSafe(|| match Run::new(plan, trace, capture) {
        Ok(mut run) => {
            let violation = run.go().err();
            run.report(violation)
        }
        Err(violation) => Report { violation: Some(violation), ..Report::default() },
    }));
    let report = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text =
            text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
        Report { violation: Some(format!("panic: {text}")), ..Report::default() }
    });
    Report {
        seed: plan.seed,
        connections: plan.connections.len() as u64,
        relayed: u64::from(plan.nodes.as_ref().is_some_and(|nodes| nodes.relays() > 0)),
        restarts: u64::from(plan.restarts()),
        ..report
    }
}

struct Run<'a> {
    plan: &'a Plan,
    net: SwarmNetwork,
    start: Timestamp,
    connections: Vec<SwarmConnection>,
    /// Accepted connections whose first message has not arrived, so that their index is unknown.
    unidentified: BTreeSet<ConnectionHandle>,
    to_finish: Duration,
    time_limit: Duration,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, trace: bool, capture: Option<Capture>) -> Result<Self, String> {
        let net = SwarmNetwork::new(plan, trace, capture)?;
        let connections = plan.connections.iter().enumerate();
        Ok(Self {
            plan,
            start: net.now(),
            connections: connections
                .map(|(index, each)| SwarmConnection::new(plan.seed, index, each))
                .collect(),
            unidentified: BTreeSet::new(),
            net,
            to_finish: Duration::ZERO,
            time_limit: Duration::ZERO,
        })
    }

    fn report(&mut self, violation: Option<String>) -> Report {
        let now = self.net.now();
        let mut report = Report {
            violation: violation.map(|what| format!("{:.6} s: {what}", now.as_secs_f64())),
            packets: self.net.packets(),
            time: now - self.start,
            to_finish: self.to_finish,
            time_limit_used: self.to_finish.as_secs_f64() / self.time_limit.as_secs_f64().max(1e-9),
            trace: self.net.trace(),
            ..Report::default()
        };
        for connection in &self.connections {
            report.finished += u64::from(connection.done);
            report.closed += u64::from(connection.closed_early && !connection.done);
            report.timed_out += u64::from(!connection.closed_early && !connection.done);
            for side in &connection.sides {
                report.sent += side.model.sent();
                report.delivered += side.model.delivered();
                report.bytes += side.model.bytes();
                report.path_changes += side.last.path.changes;
            }
        }
        report
    }

    fn go(&mut self) -> Result<(), String> {
        let mut changes = self.plan.changes().into_iter().peekable();
        let mut sample = self.start;
        let faults_end = self.start + self.plan.faults_end;
        let mut limit: Option<Timestamp> = None;
        let mut deadline: Option<Timestamp> = None;
        let (mut steps, mut changed) = (0_u32, Duration::ZERO);
        loop {
            let now = self.net.now();
            let mut until = sample;
            until = changes.peek().map_or(until, |&at| until.min(self.start + at));
            until = self.next_action().map_or(until, |at| until.min(at));
            self.net.step(until.max(now));
            self.take_events()?;
            steps = if self.net.now() > now { 0 } else { steps + 1 };
            if steps > MAX_STEPS {
                return Err(format!(
                    "virtual time does not advance: {:?}",
                    self.connections.iter().map(describe).collect::<Vec<_>>()
                ));
            }
            let now = self.net.now();
            while let Some(at) = changes.next_if(|&at| self.start + at <= now) {
                self.net.apply_changes(self.plan, at, changed);
                changed = at;
            }
            self.act()?;
            if sample > now {
                continue;
            }
            sample = now + SAMPLE;
            self.check_statistics()?;
            if now < faults_end {
                continue;
            }
            let time_limit = self.time_limit();
            let limit = *limit.get_or_insert(now + time_limit);
            self.time_limit = time_limit.max(self.time_limit);
            let open = self.connections.iter().filter(|connection| {
                !connection.done && !connection.closed_early && !connection.is_over()
            });
            if open.clone().count() > 0 {
                self.to_finish = now - faults_end;
                if now >= limit {
                    let what: Vec<_> = open.map(describe).collect();
                    return Err(format!(
                        "not finished {:?} after the faults: {what:?}",
                        now - faults_end
                    ));
                }
                continue;
            }
            // Endpoints delete a closed connection after the idle time-out.
            let close_time = self.plan.transport.idle_timeout
                + self.plan.round_trip() * 20
                + Duration::from_secs(16);
            let deadline = *deadline.get_or_insert(now + close_time);
            let is_over = self.connections.iter().all(SwarmConnection::is_over)
                && self.unidentified.is_empty();
            let left = self.net.connections();
            if is_over && (self.net.has_links() || left.iter().all(|&count| count == 0)) {
                return self.check_idle_state(close_time);
            }
            if now >= deadline {
                let open: Vec<_> =
                    self.connections.iter().filter(|connection| !connection.is_over()).collect();
                return Err(format!("{left:?} connections remain at the nodes: {open:?}"));
            }
        }
    }

    /// Checks, after all connections have ended, that relays delete their state, and that no
    /// connection remains after the links are closed.
    fn check_idle_state(&mut self, close_time: Duration) -> Result<(), String> {
        if !self.net.has_links() {
            return Ok(());
        }
        self.advance(close_time + self.net.relay_idle_timeout() * 2)?;
        self.net.check_idle_relays()?;
        self.advance(close_time)?;
        let left = self.net.connections();
        if left.iter().any(|&count| count > 0) {
            return Err(format!("{left:?} link connections remain at the nodes"));
        }
        Ok(())
    }

    /// Advances virtual time by `time` while the applications are idle.
    fn advance(&mut self, time: Duration) -> Result<(), String> {
        let end = self.net.now() + time;
        for _ in 0..MAX_STEPS {
            if self.net.now() >= end {
                return Ok(());
            }
            self.net.step(end);
            self.take_events()?;
        }
        Err("virtual time does not advance: events without end".to_owned())
    }

    /// Time limit of the second phase, computed from the data that is left to send.
    fn time_limit(&self) -> Duration {
        let left = |side: &Side| {
            let (least, most) = side.traffic.sizes;
            (side.traffic.messages - side.model.sent().min(side.traffic.messages))
                * ((least + most) as u64 / 2 + 60)
        };
        let bytes = self
            .connections
            .iter()
            .flat_map(|connection| &connection.sides)
            .map(|side| left(side) + side.last.buffers.send_bytes);
        let intervals =
            self.connections.iter().flat_map(|connection| &connection.sides).map(|side| {
                let left = side.traffic.messages - side.model.sent().min(side.traffic.messages);
                side.traffic.interval.unwrap_or_default() * left as u32
            });
        self.plan.time_limit(bytes.sum()) + intervals.max().unwrap_or_default()
    }

    /// Time of the next action that an application takes without an event.
    fn next_action(&self) -> Option<Timestamp> {
        let connection = |connection: &SwarmConnection| {
            let start =
                connection.sides[0].handle.is_none().then(|| self.start + connection.plan.start);
            let close = match connection.plan.ending {
                Ending::Close(_, at) if !connection.closed_early && !connection.done => {
                    Some(self.start + at)
                }
                _ => None,
            };
            let close = close.or(connection.close_at);
            let sides = connection.sides.iter().flat_map(|side| [side.due, side.read_at]).flatten();
            sides.chain(start).chain(close).min()
        };
        self.connections
            .iter()
            .filter(|connection| connection.sides[0].closed.is_none())
            .filter_map(connection)
            .min()
    }

    fn find(&self, host: usize, handle: ConnectionHandle) -> Option<usize> {
        self.connections.iter().position(|connection| connection.sides[host].handle == Some(handle))
    }

    fn take_events(&mut self) -> Result<(), String> {
        for (side, handle, event) in self.net.take_events() {
            let found = self.find(side, handle);
            match (event, found) {
                (Event::Accepted, _) => {
                    self.unidentified.insert(handle);
                    self.read_first_message(handle)?;
                }
                (Event::Connected, Some(index)) => self.open(index, 0)?,
                (Event::Writable, Some(index)) => {
                    self.connections[index].sides[side].blocked = false;
                    self.write(index, side)?;
                }
                (Event::Readable, Some(index)) => self.readable(index, side)?,
                (Event::Readable, None) => self.read_first_message(handle)?,
                (Event::Closed(reason), found) => self.closed(side, handle, found, reason)?,
                (Event::AllAcknowledged, Some(index)) => self.acknowledged(index, side),
                (Event::AllAcknowledged, None) => {}
                (event, found) => {
                    return Err(format!("side {side}, {found:?}: unexpected {event:?}"));
                }
            }
        }
        Ok(())
    }

    fn act(&mut self) -> Result<(), String> {
        let now = self.net.now();
        for index in 0..self.connections.len() {
            let connection = &mut self.connections[index];
            if connection.sides[0].handle.is_none() && self.start + connection.plan.start <= now {
                self.connect(index)?;
            }
            let connection = &mut self.connections[index];
            if let Ending::Close(side, at) = connection.plan.ending
                && !connection.closed_early
                && !connection.done
                && self.start + at <= now
            {
                connection.closed_early = true;
                // The client closes if the server has not identified the connection.
                let side = if connection.sides[side].handle.is_some() { side } else { 0 };
                self.close(index, side);
            }
            if self.connections[index].close_at.is_some_and(|at| at <= now) {
                self.connections[index].close_at = None;
                self.close(index, 0);
            }
            for side in 0..2 {
                let each = &self.connections[index].sides[side];
                if each.read_at.is_some_and(|at| at <= now) {
                    self.connections[index].sides[side].read_at = None;
                    self.read(index, side)?;
                }
                if self.connections[index].sides[side].due.is_some_and(|at| at <= now) {
                    self.write(index, side)?;
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, index: usize) -> Result<(), String> {
        let mode = self.connections[index].plan.mode;
        let handle =
            self.net.connect(mode).map_err(|error| format!("connection {index}: {error}"))?;
        self.connections[index].sides[0].handle = Some(handle);
        Ok(())
    }

    /// Records the number of coded packets sent when the peer has acknowledged everything. Packets
    /// beyond it are superfluous.
    fn acknowledged(&mut self, index: usize, side: usize) {
        let now = self.net.now();
        let connection = &mut self.connections[index];
        let own = &mut connection.sides[side];
        if own.finished
            && connection.plan.mode.is_reliable()
            && let Some(stats) =
                own.handle.and_then(|handle| self.net.endpoint(side).stats(now, handle))
            && own.handle.is_some_and(|handle| self.net.endpoint(side).is_all_acknowledged(handle))
        {
            own.coded_when_acknowledged.get_or_insert(coded(&stats));
        }
    }

    fn open(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let each = &mut self.connections[index].sides[side];
        if core::mem::replace(&mut each.open, true) {
            return Err(format!("connection {index}: side {side} was established twice"));
        }
        each.due = each.traffic.interval.map(|_| now);
        self.write(index, side)
    }

    fn close(&mut self, index: usize, side: usize) {
        let now = self.net.now();
        if let Some(handle) = self.connections[index].sides[side].handle {
            let code = CODE + index as u64;
            self.net.endpoint(side).close(now, handle, code, "");
            self.net.wake(side);
        }
    }

    /// Sends the messages that are due, and finishes after the last one.
    fn write(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let each = &mut self.connections[index].sides[side];
        let Some(handle) = each.handle.filter(|_| each.open && each.closed.is_none()) else {
            each.due = None;
            return Ok(());
        };
        let endpoint = self.net.endpoint(side);
        while !each.finished && !each.blocked {
            if each.model.sent() >= each.traffic.messages {
                each.due = None;
                each.finished = true;
                // Fails if the connection was closed at the same time.
                let _closed = endpoint.finish(now, handle);
                break;
            }
            if each.due.is_some_and(|at| at > now) {
                break;
            }
            let size = each.next_size;
            match endpoint.send(now, handle, each.model.next_message(size)) {
                Ok(()) => {
                    each.model.on_sent(size);
                    let (least, most) = each.traffic.sizes;
                    each.next_size = each.rng.integer(least as u64, most as u64) as usize;
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
        self.net.wake(side);
        Ok(())
    }

    fn readable(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        match self.connections[index].plan.reads[side] {
            Some(interval) => {
                self.connections[index].sides[side].read_at.get_or_insert(now + interval);
                Ok(())
            }
            None => self.read(index, side),
        }
    }

    fn read(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let Some(handle) = self.connections[index].sides[side].handle else { return Ok(()) };
        while let Some(message) = self.net.endpoint(side).recv(now, handle) {
            self.deliver(index, side, &message)?;
        }
        self.net.wake(side);
        if !self.connections[index].sides[side].has_seen_end
            && self.net.endpoint(side).is_finished(handle)
        {
            self.connections[index].sides[side].has_seen_end = true;
            self.ended(index, side)?;
        }
        Ok(())
    }

    fn deliver(&mut self, index: usize, side: usize, message: &[u8]) -> Result<(), String> {
        let model = &mut self.connections[index].sides[1 - side].model;
        model.receive(message).map_err(|what| format!("connection {index}, to side {side}: {what}"))
    }

    /// Reads the first message of an accepted connection, whose tag identifies the connection.
    fn read_first_message(&mut self, handle: ConnectionHandle) -> Result<(), String> {
        let now = self.net.now();
        let Some(message) = self.net.endpoint(1).recv(now, handle) else {
            if self.net.endpoint(1).is_finished(handle) {
                // All messages were lost, so the server finishes too.
                let _closed = self.net.endpoint(1).finish(now, handle);
            }
            self.net.wake(1);
            return Ok(());
        };
        if !self.unidentified.remove(&handle) {
            return Err("a message from a connection without an Accepted event".into());
        }
        let label = model::label(&message);
        let is_match = |connection: &SwarmConnection| {
            label.is_some_and(|(_, tag)| tag == connection.sides[0].model.tag())
        };
        let Some(index) = self.connections.iter().position(is_match) else {
            return Err(format!(
                "a message of no known connection: {label:?}, {} bytes",
                message.len()
            ));
        };
        if self.connections[index].sides[1].handle.replace(handle).is_some() {
            return Err(format!("connection {index} was accepted twice"));
        }
        self.deliver(index, 1, &message)?;
        self.open(index, 1)?;
        self.readable(index, 1)
    }

    /// Handles that one side has seen the end of its peer's messages.
    fn ended(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let connection = &mut self.connections[index];
        if !connection.sides[1 - side].finished && connection.sides[1].handle.is_some() {
            return Err(format!(
                "connection {index}: side {side} saw the end before its peer had finished"
            ));
        }
        let handle = connection.sides[side].handle;
        let stats = handle.and_then(|handle| self.net.endpoint(side).stats(now, handle));
        let Some(stats) = stats else { return Ok(()) };
        let model = &connection.sides[1 - side].model;
        model.end(&stats).map_err(|what| format!("connection {index}, to side {side}: {what}"))?;
        let server_done = connection.sides[1].handle.is_none() || connection.sides[1].has_seen_end;
        if connection.sides[0].has_seen_end
            && server_done
            && !connection.closed_early
            && !connection.done
        {
            connection.done = true;
            match connection.plan.ending {
                Ending::Linger(time) => connection.close_at = Some(now + time),
                _ => self.close(index, 0),
            }
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
            self.unidentified.remove(&handle);
            let known = self
                .connections
                .iter()
                .any(|connection| connection.closed_early || connection.done);
            let fine = match reason {
                // A client may close before the server receives its first message.
                CloseReason::Peer { .. } | CloseReason::Handshake(_) => known,
                CloseReason::IdleTimeout(_) | CloseReason::HandshakeTimeout => {
                    known || self.plan.handshake_may_fail()
                }
                _ => false,
            };
            return if fine {
                Ok(())
            } else {
                Err(format!("an unidentified connection was closed: {reason}"))
            };
        };
        let connection = &self.connections[index];
        let over = connection.closed_early || connection.done;
        let own = CODE + index as u64;
        let fine = match &reason {
            CloseReason::Local => over,
            CloseReason::Peer { code, .. } => over && *code == own,
            CloseReason::IdleTimeout(_) => {
                // A peer whose handshake failed does not answer afterwards.
                let never = connection.sides[1].handle.is_none() && self.plan.handshake_may_fail();
                over || self.plan.idle_timeout_is_possible()
                    || self.plan.bursts_may_outlast_idle_timeout()
                    || never
            }
            CloseReason::HandshakeTimeout => over || self.plan.handshake_may_fail(),
            // A stateless reset: the server has ended the connection for a reason that is allowed.
            CloseReason::Lost(why) => {
                // An attempt ends sooner than by its timeout where a relay has lost its routes.
                let has_no_route = why.contains("has no route to") && !connection.sides[0].open;
                let is_reset = connection.sides[1].closed.is_some();
                side == 0 && (over || is_reset || has_no_route && self.plan.handshake_may_fail())
            }
            _ => false,
        };
        if !fine {
            let what = describe(connection);
            return Err(format!("connection {index}: side {side} was closed: {reason}: {what}"));
        }
        self.connections[index].sides[side].closed = Some(reason);
        Ok(())
    }

    /// Checks the statistics of all connections.
    fn check_statistics(&mut self) -> Result<(), String> {
        let now = self.net.now();
        for index in 0..self.connections.len() {
            for side in 0..2 {
                let Some(handle) = self.connections[index].sides[side].handle else { continue };
                let Some(stats) = self.net.endpoint(side).stats(now, handle) else {
                    continue;
                };
                self.connections[index].check(self.plan, side, &stats).map_err(|what| {
                    format!("connection {index}, side {side}: {what}: {stats:?}")
                })?;
                self.connections[index].sides[side].last = stats;
            }
        }
        self.net.check_relays(self.connections.len() * 2)
    }
}
