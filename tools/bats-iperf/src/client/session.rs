//! From the request to the moment at which the streams are there.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_netem::LinkStats;
use openbats::{ClientOptions, Connection, Endpoint, TransportConfig, Wait};

use super::{Client, FAREWELL};
use crate::carrier::{Local, Pipe, tcp, udp};
use crate::clock::stamp_ns;
use crate::control::{
    self, Carrier, ClockOffset, Hello, Message, PATIENCE, Request, Summary, Work,
};
use crate::emulator::Relay;
use crate::latency::clock_offset;
use crate::sending::Sending;

/// Bytes of files under way on a stream: enough for 1 Gbit/s over 250 ms, and little enough that
/// progress shows what has arrived.
const FILES_BUDGET: usize = 32 << 20;
/// Exchanges to compare the clocks.
const PINGS: usize = 16;
/// Streams that are opened at a time: a far server would be waited for long, one by one, and all at
/// once would overflow the queue of a socket.
const AT_A_TIME: u16 = 16;
/// How often a stream greets the server until it is known, where greetings may be lost.
const GREETING_EVERY: Duration = Duration::from_millis(100);
/// How long a greeting is of use.
const GREETING_DEADLINE: Duration = Duration::from_secs(5);

/// A test that the server has begun.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) test: u64,
    pub(super) pipes: Vec<Pipe>,
    pub(super) clock: ClockOffset,
    pub(super) way: Way,
}

/// What the data passes where it does not go straight from the signalling's endpoint.
#[derive(Debug, Default)]
pub(super) struct Way {
    endpoint: Option<Endpoint>,
    relays: Vec<Relay>,
}

impl Way {
    /// Ends it, and tells what each emulated link has done in either direction.
    pub(super) fn end(mut self) -> Vec<[LinkStats; 2]> {
        self.farewell();
        self.relays.drain(..).filter_map(Relay::stop).collect()
    }

    /// The last packets must get through before the relays go.
    fn farewell(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.shut_down(0, "");
            let _ = endpoint.idle().wait_for(FAREWELL);
        }
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.farewell();
    }
}

impl Client<'_> {
    /// Connects to the signalling port.
    pub(super) fn call(&self) -> Result<Connection> {
        let remote = SocketAddr::new(self.remote.ip(), self.options.port - 1);
        self.connect(&self.endpoint, remote, control::transport())
    }

    fn connect(
        &self,
        endpoint: &Endpoint,
        remote: SocketAddr,
        transport: TransportConfig,
    ) -> Result<Connection> {
        let closed = self.closed.clone();
        let is_closed = closed.is_some();
        let transport = TransportConfig { closed, ..transport };
        let options = ClientOptions::new(self.trust.clone()).transport(transport);
        let limit = self.options.connect_timeout;
        let nobody = || {
            let with_key = if is_closed { ", with the same --closed-key" } else { "" };
            format!(
                "no answer from {remote} within {} s: is a server running there{with_key}?",
                limit.as_secs_f64()
            )
        };
        endpoint
            .connect(remote, self.host, options)
            .wait_for(limit)
            .with_context(nobody)?
            .with_context(|| format!("cannot connect to {remote}"))
    }

    /// Asks the server for a test and opens its streams.
    pub(super) fn begin(&self, control: &Connection, request: &Request) -> Result<Begun> {
        control::send(control, &Message::Request(request.clone()))?;
        let (test, ports) = match control::receive(control, PATIENCE)? {
            Message::Accept { test, ports } => (test, ports),
            Message::Deny { reason } => {
                bail!("the server refuses: {}", control::printable(&reason))
            }
            _ => bail!("the server answers out of turn"),
        };
        let streams = request.all_streams();
        let (pipes, way) = match request.carrier {
            Carrier::Bats => {
                let mut transport = self.options.transport();
                if matches!(request.work, Work::Files { .. }) {
                    transport.send_budget = FILES_BUDGET;
                }
                self.open_bats(test, streams, &transport)?
            }
            Carrier::Tcp => {
                let port = *ports.first().context("the server names no TCP port")?;
                let remote = SocketAddr::new(self.remote.ip(), port);
                let open = |stream| {
                    let limit = self.options.connect_timeout;
                    tcp::connect(&self.local, remote, Hello { test, stream }, limit)
                };
                let pipes = (0..streams).map(open).map(|pipe| Ok(Pipe::Tcp(pipe?)));
                (pipes.collect::<Result<_>>()?, Way::default())
            }
            Carrier::Udp => self.open_udp(test, streams, &ports)?,
        };
        let greetings = self.join(control, request, test, &pipes)?;
        let needs_clock = matches!(&request.work, Work::Throughput(work) if work.latency);
        let clock =
            if needs_clock { self.compare_clocks(control)? } else { ClockOffset::default() };
        control::send(control, &Message::Ready { clock, greetings })?;
        match control::receive(control, PATIENCE)? {
            Message::Start => {
                tracing::info!(server = %self.remote, test, streams, "test begins");
                Ok(Begun { test, pipes, clock, way })
            }
            Message::Deny { reason } => {
                bail!("the server refuses: {}", control::printable(&reason))
            }
            _ => bail!("the server answers out of turn"),
        }
    }

    /// Waits until the server knows all streams; how often each has greeted.
    fn join(
        &self,
        control: &Connection,
        request: &Request,
        test: u64,
        pipes: &[Pipe],
    ) -> Result<u64> {
        let is_lossy = request.carrier == Carrier::Bats && !request.mode.is_reliable();
        let mut greetings = 1;
        let again = || {
            if is_lossy {
                greetings += 1;
                for (stream, pipe) in (0..).zip(pipes) {
                    let hello = Hello { test, stream }.encode().into();
                    let deadline = Some(GREETING_DEADLINE);
                    if !pipe.send(hello, self.options.connect_timeout, deadline)? {
                        bail!("a stream cannot greet the server");
                    }
                }
            }
            Ok(())
        };
        match control::receive_meanwhile(control, PATIENCE, GREETING_EVERY, again)? {
            Message::Joined => Ok(greetings),
            Message::Deny { reason } => {
                bail!("the server refuses: {}", control::printable(&reason))
            }
            _ => bail!("the server answers out of turn"),
        }
    }

    fn open_bats(
        &self,
        test: u64,
        streams: u16,
        transport: &TransportConfig,
    ) -> Result<(Vec<Pipe>, Way)> {
        let mut relays = Vec::new();
        let (endpoint, remote) = match &self.options.emulate {
            None => (self.endpoint.clone(), self.remote),
            Some(emulation) => {
                let relay = Relay::start(emulation, &self.local, self.remote)?;
                let address = relay.address();
                relays.push(relay);
                (Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start()?, address)
            }
        };
        let open = |stream| {
            let connection = self.connect(&endpoint, remote, transport.clone())?;
            let hello = Hello { test, stream }.encode();
            connection.send_within(hello, GREETING_DEADLINE).wait()?;
            Ok(Pipe::bats(connection))
        };
        let mut pipes = Vec::with_capacity(streams.into());
        for first in (0..streams).step_by(AT_A_TIME.into()) {
            let group = first..streams.min(first.saturating_add(AT_A_TIME));
            thread::scope(|scope| -> Result<()> {
                let open = &open;
                let opening: Vec<_> =
                    group.map(|stream| scope.spawn(move || open(stream))).collect();
                for thread in opening {
                    let opened: Result<Pipe> =
                        thread.join().unwrap_or_else(|_| bail!("opening a stream panicked"));
                    pipes.push(opened?);
                }
                Ok(())
            })?;
        }
        let endpoint = (!relays.is_empty()).then_some(endpoint);
        Ok((pipes, Way { endpoint, relays }))
    }

    fn open_udp(&self, test: u64, streams: u16, ports: &[u16]) -> Result<(Vec<Pipe>, Way)> {
        if ports.len() != usize::from(streams) {
            bail!("the server names {} UDP ports for {streams} streams", ports.len());
        }
        let mut relays = Vec::new();
        let mut pipes = Vec::new();
        for (stream, &port) in (0..streams).zip(ports) {
            let (mut local, mut remote) =
                (self.local.clone(), SocketAddr::new(self.remote.ip(), port));
            if let Some(emulation) = &self.options.emulate {
                let relay = Relay::start(emulation, &self.local, remote)?;
                // The relay is on loopback; its other side has our address.
                (local, remote) = (Local::default(), relay.address());
                relays.push(relay);
            }
            let hello = Hello { test, stream };
            let limit = self.options.connect_timeout;
            pipes.push(Pipe::Udp(udp::connect(&local, remote, hello, limit)?));
        }
        Ok((pipes, Way { endpoint: None, relays }))
    }

    fn compare_clocks(&self, control: &Connection) -> Result<ClockOffset> {
        let mut exchanges = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let asked = stamp_ns();
            control::send(control, &Message::Ping)?;
            let Message::Pong { at_ns } = control::receive(control, PATIENCE)? else {
                bail!("the server answers out of turn");
            };
            exchanges.push((asked, at_ns, stamp_ns()));
        }
        Ok(clock_offset(&exchanges))
    }
}

/// The other side's view.
pub(crate) fn receive_summary(control: &Connection, patience: Duration) -> Result<Summary> {
    match control::receive(control, patience)? {
        Message::Summary(mut summary) => {
            tracing::debug!(streams = summary.streams.len(), "summary of the other side");
            for totals in &mut summary.streams {
                totals.error = totals.error.as_deref().map(control::printable);
            }
            summary.sending = summary.sending.as_ref().map(Sending::printable);
            Ok(*summary)
        }
        _ => bail!("the peer answers out of turn"),
    }
}
