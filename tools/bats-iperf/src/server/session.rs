//! One client's tests.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use openbats::{Connection, Wait};

use super::{FAREWELL, GREETING, Server, check};
use crate::carrier::{Local, Pipe, tcp, udp};
use crate::client::{pace, receive_summary};
use crate::clock::{Clock, stamp_ns};
use crate::console::Output;
use crate::control::{
    self, Carrier, ClockOffset, Message, PATIENCE, Request, SUMMARY_PATIENCE, Throughput, Work,
    printable,
};
use crate::files;
use crate::report::json::{self, About};
use crate::report::text;
use crate::sending::Sending;
use crate::test::{self, Plan};

/// How long a client may take for its next request.
const LINGER: Duration = Duration::from_secs(5);
/// How long its summary may take when this side's streams have failed.
const FAILED_PATIENCE: Duration = Duration::from_secs(3);
/// Clock readings that a client may ask for before a test.
const MAX_PINGS: usize = 64;

/// Where the streams of a test will come.
enum Gate {
    Bats,
    Tcp(tcp::Listener),
    Udp(udp::Listener),
}

impl Server {
    /// Runs test after test until the client leaves; whether all went well.
    ///
    /// # Errors
    /// The client breaks off or breaks the rules.
    pub(super) fn tests(&self, control: &Connection, session: usize) -> Result<bool> {
        let mut request = match control::receive(control, GREETING)? {
            Message::Request(request) => request,
            _ => bail!("{} does not begin with a request", control.remote_addr()),
        };
        let mut is_good = true;
        loop {
            let (client, mode) = (control.remote_addr(), request.mode.name());
            tracing::info!(%client, mode, streams = request.streams, "test begins");
            let (was_good, pipes) = self.test(control, &request, session)?;
            tracing::info!(%client, was_good, "test ends");
            is_good &= was_good;
            // A client that has what it wanted leaves. Until then it may still miss an
            // acknowledgement, so its streams must not go.
            let next = control::receive(control, LINGER);
            drop(pipes);
            request = match next {
                Ok(Message::Request(request)) => request,
                Ok(_) => bail!("{} speaks out of turn", control.remote_addr()),
                Err(_) => return Ok(is_good),
            };
        }
    }

    /// One test from request to summary; whether it went well, and its streams.
    fn test(
        &self,
        control: &Connection,
        request: &Request,
        session: usize,
    ) -> Result<(bool, Vec<Pipe>)> {
        if let Err(reason) = check::check(request, &self.options) {
            return self.deny(control, reason);
        }
        let streams = request.all_streams();
        let Some(entry) = self.registry.enter(streams)? else {
            return self.deny(control, "too many tests at a time".into());
        };
        // It has said what it wants, and there is room for it.
        control.trust_peer();
        // Where the client has found us.
        let ip = match self.local.ip() {
            ip if ip.is_unspecified() && control.remote_addr().is_ipv4() => IpAddr::from([0; 4]),
            ip => ip,
        };
        let options = &self.options;
        let (device, dscp) = (options.bind_dev.clone(), options.code_point());
        let local = Local { ip: Some(ip), device, dscp };
        let (gate, ports) = match request.carrier {
            Carrier::Bats => (Gate::Bats, Vec::new()),
            Carrier::Tcp => {
                let listener = tcp::Listener::bind(ip, &local)?;
                let port = listener.port()?;
                (Gate::Tcp(listener), vec![port])
            }
            Carrier::Udp => {
                let listener = udp::Listener::bind(ip, streams, &local)?;
                let ports = listener.ports()?;
                (Gate::Udp(listener), ports)
            }
        };
        control::send(control, &Message::Accept { test: entry.test, ports })?;
        let pipes: Vec<Pipe> = match gate {
            Gate::Bats => entry.gather(streams)?.into_iter().map(Pipe::bats).collect(),
            Gate::Tcp(listener) => {
                listener.gather(entry.test, streams)?.into_iter().map(Pipe::Tcp).collect()
            }
            Gate::Udp(listener) => {
                let client = control.remote_addr().ip();
                listener.gather(entry.test, client)?.into_iter().map(Pipe::Udp).collect()
            }
        };
        let mode = request.mode.to_library();
        if pipes.iter().filter_map(Pipe::mode).any(|other| other != mode) {
            bail!("{} connects in another mode than it said", control.remote_addr());
        }
        control::send(control, &Message::Joined)?;
        let (clock, greetings) = ready(control)?;
        if !self.choose(session) {
            return self.deny(control, "this server serves one test, and that has begun".into());
        }
        let mut output =
            Output::new(self.console.clone()).title(request.title.as_deref().map(printable));
        if request.wants_output {
            output = output.copy(request.wants_json);
        }
        let about = About {
            connected: pipes.iter().map(Pipe::addresses).collect(),
            connecting_to: None,
            accepted: Some(control.remote_addr()),
            test: entry.test,
            request: request.clone(),
            emulate: None,
        };
        output.line(&format!("Accepted connection from {}", control.remote_addr()));
        output.event("start", || json::start(&about));
        control::send(control, &Message::Start)?;
        match &request.work {
            Work::Throughput(work) => {
                let parts = Parts { control, output: &output, about: &about };
                let is_good = self.throughput(parts, &pipes, work, (clock, greetings))?;
                Ok((is_good, pipes))
            }
            Work::Files { count, .. } => {
                let clock = Clock::start();
                let received = files::receive(&output, &pipes, &self.options, &about);
                let seconds = clock.elapsed().as_secs_f64();
                let is_good = received.is_good(*count);
                files::conclude(&output, &about, &received, "verified and stored", seconds, None);
                if request.wants_output {
                    control::send_output(control, &output.copied())?;
                }
                Ok((is_good, pipes))
            }
        }
    }

    fn deny<T>(&self, control: &Connection, reason: String) -> Result<T> {
        control::send(control, &Message::Deny { reason: reason.clone() })?;
        let _ = control.finish().wait_for(FAREWELL);
        bail!("denied a test to {}: {reason}", control.remote_addr())
    }

    fn throughput(
        &self,
        Parts { control, output, about }: Parts<'_>,
        pipes: &[Pipe],
        work: &Throughput,
        (clock, greetings): (ClockOffset, u64),
    ) -> Result<bool> {
        let interval = match self.options.has_interval {
            true => self.options.interval,
            false => Duration::from_secs_f64(work.interval),
        };
        let plan = Plan {
            sides: test::sides(work.direction, about.request.streams, false),
            is_client: false,
            pace: pace(work, self.options.snd_timeout),
            bytes: work.bytes,
            messages: work.messages,
            interval,
            clock,
            receive_timeout: self.options.rcv_timeout,
            greetings,
            sending: Sending::of(&self.options, &about.request),
            limit: self.options.server_bitrate_limit,
        };
        let outcome = test::run(output, control, pipes, &plan);
        // The client may still wait for the end of what it has sent.
        let patience = if outcome.error().is_some() { FAILED_PATIENCE } else { SUMMARY_PATIENCE };
        let remote = receive_summary(control, patience);
        let own = Message::Summary(Box::new(outcome.summary.clone()));
        let told = control::send(control, &own);
        let far = remote.as_ref().ok();
        output.line(&text::rule());
        output.line(&text::header(&plan.sides, output.is_verbose()));
        for line in text::summary(&outcome, far, output.is_verbose()) {
            output.line(&line);
        }
        let mut document = json::document(about, &outcome, far);
        output.event("end", || document["end"].clone());
        output.document(&mut document);
        if let Some(error) = outcome.error() {
            output.event("error", || error.into());
            output.note(&format!("bats_iperf: error - {error}"));
        }
        told?;
        if about.request.wants_output {
            control::send_output(control, &output.copied())?;
        }
        remote.map(|_| outcome.error().is_none())
    }
}

/// What a test needs besides its streams.
struct Parts<'a> {
    control: &'a Connection,
    output: &'a Output,
    about: &'a About,
}

/// Answers questions for the clock until the client is ready.
fn ready(control: &Connection) -> Result<(ClockOffset, u64)> {
    for _ in 0..=MAX_PINGS {
        match control::receive(control, PATIENCE)? {
            Message::Ping => control::send(control, &Message::Pong { at_ns: stamp_ns() })?,
            Message::Ready { clock, greetings } => return Ok((clock, greetings)),
            _ => break,
        }
    }
    bail!("{} speaks out of turn", control.remote_addr())
}
