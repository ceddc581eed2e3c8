//! A run: applications as planned over a network as planned, watched by the models.

use core::time::Duration;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bats_proto::{CloseReason, ConnectionHandle, Event, SendError, Timestamp};

use super::model;
use super::net::Net;
use super::pair::{Pair, Side, coded, describe};
use super::plan::{Ending, Plan};

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
    /// Messages taken and delivered, and bytes delivered.
    pub sent: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Bytes delivered.
    pub bytes: u64,
    /// Packets handed to the first links.
    pub packets: u64,
    /// 1 if there were relays.
    pub relayed: u64,
    /// Relays that lost their memory.
    pub restarts: u64,
    /// Times that a client was found at another address and proved it.
    pub moves: u64,
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
/// Steps at one moment, or with nothing to do; more are a loop without end.
const MOST_STEPS: u32 = 1_000_000;
/// The application's code with which connection 0 is closed.
const CODE: u64 = 1_000;
/// Runs a plan; `trace` asks for the hash. Whatever fails, a panic of the code under test as well, is
/// told with the seed.
pub fn run(plan: &Plan, trace: bool) -> Report {
    let outcome = catch_unwind(AssertUnwindSafe(|| match Run::new(plan, trace) {
        Ok(mut run) => {
            let violation = run.go().err();
            run.report(violation)
        }
        Err(violation) => Report { violation: Some(violation), ..Report::default() },
    }));
    let report = outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
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
    net: Net,
    start: Timestamp,
    pairs: Vec<Pair>,
    /// Connections accepted that have not said which they are.
    unnamed: BTreeSet<ConnectionHandle>,
    to_finish: Duration,
    patience: Duration,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, trace: bool) -> Result<Self, String> {
        let net = Net::new(plan, trace)?;
        let connections = plan.connections.iter().enumerate();
        Ok(Self {
            plan,
            start: net.now(),
            pairs: connections.map(|(index, each)| Pair::new(plan.seed, index, each)).collect(),
            unnamed: BTreeSet::new(),
            net,
            to_finish: Duration::ZERO,
            patience: Duration::ZERO,
        })
    }

    fn report(&mut self, violation: Option<String>) -> Report {
        let now = self.net.now();
        let mut report = Report {
            violation: violation.map(|what| format!("{:.6} s: {what}", now.as_secs_f64())),
            packets: self.net.packets(),
            time: now - self.start,
            to_finish: self.to_finish,
            patience_used: self.to_finish.as_secs_f64() / self.patience.as_secs_f64().max(1e-9),
            trace: self.net.trace(),
            ..Report::default()
        };
        for pair in &self.pairs {
            report.finished += u64::from(pair.done);
            report.closed += u64::from(pair.cut && !pair.done);
            report.given_up += u64::from(!pair.cut && !pair.done);
            for side in &pair.sides {
                report.sent += side.way.sent();
                report.delivered += side.way.delivered();
                report.bytes += side.way.bytes();
                report.moves += side.last.path_changes;
            }
        }
        report
    }

    fn go(&mut self) -> Result<(), String> {
        let mut changes = self.plan.changes().into_iter().peekable();
        let mut sample = self.start;
        let calm = self.start + self.plan.calm;
        let mut limit: Option<Timestamp> = None;
        let mut gone: Option<Timestamp> = None;
        let (mut steps, mut changed) = (0_u32, Duration::ZERO);
        loop {
            let now = self.net.now();
            let mut until = sample;
            until = changes.peek().map_or(until, |&at| until.min(self.start + at));
            until = self.next_action().map_or(until, |at| until.min(at));
            self.net.step(until.max(now));
            self.take_events()?;
            steps = if self.net.now() > now { 0 } else { steps + 1 };
            if steps > MOST_STEPS {
                return Err(format!(
                    "time stands still: {:?}",
                    self.pairs.iter().map(describe).collect::<Vec<_>>()
                ));
            }
            let now = self.net.now();
            while let Some(at) = changes.next_if(|&at| self.start + at <= now) {
                self.net.change(self.plan, at, changed);
                changed = at;
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
            let silence = self.plan.transport.idle_timeout
                + self.plan.round_trip() * 20
                + Duration::from_secs(16);
            let gone = *gone.get_or_insert(now + silence);
            let is_over = self.pairs.iter().all(Pair::is_over) && self.unnamed.is_empty();
            let left = self.net.connections();
            if is_over && (self.net.has_links() || left.iter().all(|&count| count == 0)) {
                return self.fall_silent(silence);
            }
            if now >= gone {
                let open: Vec<_> = self.pairs.iter().filter(|pair| !pair.is_over()).collect();
                return Err(format!("{left:?} connections are left at the nodes: {open:?}"));
            }
        }
    }

    /// All connections are over: relays forget them, and then nothing is left of the links either.
    fn fall_silent(&mut self, silence: Duration) -> Result<(), String> {
        if !self.net.has_links() {
            return Ok(());
        }
        self.pass(silence + self.net.forgetting() * 2)?;
        self.net.fall_silent()?;
        self.pass(silence)?;
        let left = self.net.connections();
        if left.iter().any(|&count| count > 0) {
            return Err(format!("{left:?} connections of links are left at the nodes"));
        }
        Ok(())
    }

    /// Lets time go by.
    fn pass(&mut self, time: Duration) -> Result<(), String> {
        let end = self.net.now() + time;
        for _ in 0..MOST_STEPS {
            if self.net.now() >= end {
                return Ok(());
            }
            self.net.step(end);
            self.take_events()?;
        }
        Err("there is no end to events".to_owned())
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
            let close = close.or(pair.close_at);
            let sides = pair.sides.iter().flat_map(|side| [side.due, side.read_at]).flatten();
            sides.chain(start).chain(close).min()
        };
        self.pairs.iter().filter(|pair| pair.sides[0].closed.is_none()).filter_map(pair).min()
    }

    fn find(&self, host: usize, handle: ConnectionHandle) -> Option<usize> {
        self.pairs.iter().position(|pair| pair.sides[host].handle == Some(handle))
    }

    fn take_events(&mut self) -> Result<(), String> {
        for (side, handle, event) in self.net.take_events() {
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
            if self.pairs[index].close_at.is_some_and(|at| at <= now) {
                self.pairs[index].close_at = None;
                self.close(index, 0);
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
        let mode = self.pairs[index].plan.mode;
        let handle =
            self.net.connect(mode).map_err(|error| format!("connection {index}: {error}"))?;
        self.pairs[index].sides[0].handle = Some(handle);
        Ok(())
    }

    /// The other side has all: what is sent from now on is in vain.
    fn acknowledged(&mut self, index: usize, side: usize) {
        let now = self.net.now();
        let pair = &mut self.pairs[index];
        let own = &mut pair.sides[side];
        if own.finished
            && pair.plan.mode.is_reliable()
            && let Some(stats) =
                own.handle.and_then(|handle| self.net.endpoint(side).stats(now, handle))
            && own.handle.is_some_and(|handle| self.net.endpoint(side).is_all_acknowledged(handle))
        {
            own.coded_in_all.get_or_insert(coded(&stats));
        }
    }

    fn open(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let each = &mut self.pairs[index].sides[side];
        if core::mem::replace(&mut each.open, true) {
            return Err(format!("connection {index}: side {side} was opened twice"));
        }
        each.due = each.traffic.interval.map(|_| now);
        self.write(index, side)
    }

    fn close(&mut self, index: usize, side: usize) {
        let now = self.net.now();
        if let Some(handle) = self.pairs[index].sides[side].handle {
            let code = CODE + index as u64;
            self.net.endpoint(side).close(now, handle, code, "");
            self.net.touch(side);
        }
    }

    /// Sends what is due, and says so when it was the last.
    fn write(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let each = &mut self.pairs[index].sides[side];
        let Some(handle) = each.handle.filter(|_| each.open && each.closed.is_none()) else {
            each.due = None;
            return Ok(());
        };
        let endpoint = self.net.endpoint(side);
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
        self.net.touch(side);
        Ok(())
    }

    fn readable(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        match self.pairs[index].plan.reads[side] {
            Some(interval) => {
                self.pairs[index].sides[side].read_at.get_or_insert(now + interval);
                Ok(())
            }
            None => self.read(index, side),
        }
    }

    fn read(&mut self, index: usize, side: usize) -> Result<(), String> {
        let now = self.net.now();
        let Some(handle) = self.pairs[index].sides[side].handle else { return Ok(()) };
        while let Some(message) = self.net.endpoint(side).recv(now, handle) {
            self.deliver(index, side, &message)?;
        }
        self.net.touch(side);
        if !self.pairs[index].sides[side].saw_end && self.net.endpoint(side).is_finished(handle) {
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
        let now = self.net.now();
        let Some(message) = self.net.endpoint(1).recv(now, handle) else {
            if self.net.endpoint(1).is_finished(handle) {
                // All of it was lost: nothing to answer.
                let _closed = self.net.endpoint(1).finish(now, handle);
            }
            self.net.touch(1);
            return Ok(());
        };
        if !self.unnamed.remove(&handle) {
            return Err("a message of a connection that was not accepted".into());
        }
        let named = model::name(&message);
        let is_it = |pair: &Pair| named.is_some_and(|(_, tag)| tag == pair.sides[0].way.tag());
        let Some(index) = self.pairs.iter().position(is_it) else {
            return Err(format!("a message of nobody: {named:?}, {} bytes", message.len()));
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
        let now = self.net.now();
        let pair = &mut self.pairs[index];
        if !pair.sides[1 - side].finished && pair.sides[1].handle.is_some() {
            return Err(format!("connection {index}: side {side} saw an end that was not said"));
        }
        let handle = pair.sides[side].handle;
        let stats = handle.and_then(|handle| self.net.endpoint(side).stats(now, handle));
        let Some(stats) = stats else { return Ok(()) };
        let way = &pair.sides[1 - side].way;
        way.end(&stats).map_err(|what| format!("connection {index}, to side {side}: {what}"))?;
        let server_done = pair.sides[1].handle.is_none() || pair.sides[1].saw_end;
        if pair.sides[0].saw_end && server_done && !pair.cut && !pair.done {
            pair.done = true;
            match pair.plan.ending {
                Ending::Linger(time) => pair.close_at = Some(now + time),
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
            CloseReason::IdleTimeout(_) => {
                // Whoever cannot be reached during the handshake is not there any more afterwards.
                let never = pair.sides[1].handle.is_none() && self.plan.may_fail();
                over || self.plan.may_die() || self.plan.may_be_silenced() || never
            }
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
        let now = self.net.now();
        for index in 0..self.pairs.len() {
            for side in 0..2 {
                let Some(handle) = self.pairs[index].sides[side].handle else { continue };
                let Some(stats) = self.net.endpoint(side).stats(now, handle) else {
                    continue;
                };
                self.pairs[index].check(self.plan, side, &stats).map_err(|what| {
                    format!("connection {index}, side {side}: {what}: {stats:?}")
                })?;
                self.pairs[index].sides[side].last = stats;
            }
        }
        self.net.look(self.pairs.len() * 2)
    }
}
