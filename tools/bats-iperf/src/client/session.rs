//! Starts a test: from the request until the streams are connected.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bats_netem::LinkStats;
use openbats::{
    ClientOptions, CloseReason, ConnectError, Connection, Endpoint, TransportConfig, Wait,
};

use super::{CLOSE_TIMEOUT, Client};
use crate::clock::{Clock, stamp_ns};
use crate::clock_offset::{ClockOffset, clock_offset};
use crate::control::{self, Hello, Message, REPLY_TIMEOUT, Request, Summary, Work};
use crate::emulator::LinkProxy;
use crate::port_probe::PortProbe;
use crate::printable::printable;
use crate::sender_settings::SenderSettings;
use crate::stream::{DataStream, Local, tcp, udp, with_port};
use crate::transport_mode::Transport;

/// Send budget of a file stream in bytes: enough for 1 Gbit/s over 250 ms, and small enough that
/// progress shows data that has arrived.
const FILES_BUDGET: usize = 32 << 20;
/// How much later than `--connect-timeout` the library gives up.
const HANDSHAKE_MARGIN: Duration = Duration::from_secs(1);
/// Longest time in a summary of the peer in seconds: a year, as long as no test runs.
const MAX_SECONDS: f64 = 365.0 * 86_400.0;
/// How often to check whether the port is closed while a connection is set up.
const PROBE_INTERVAL: Duration = Duration::from_millis(50);
/// Number of exchanges to compare the clocks.
const PINGS: usize = 16;
/// Streams that are opened at once. One at a time would take long with a distant server; all at
/// once would overflow socket queues.
const MAX_CONCURRENT_OPENS: u16 = 16;
/// How often a stream repeats its hello message until the server has it, in modes that lose
/// messages.
const HELLO_INTERVAL: Duration = Duration::from_millis(100);
/// Deadline of a hello message.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);

/// A test that the server has started.
#[derive(Debug)]
pub(super) struct StartedTest {
    pub(super) test: u64,
    pub(super) data_streams: Vec<DataStream>,
    pub(super) clock: ClockOffset,
    pub(super) path: EmulatedPath,
}

/// The emulated link, with the endpoint that uses it.
#[derive(Debug, Default)]
pub(super) struct EmulatedPath {
    endpoint: Option<Endpoint>,
    proxies: Vec<LinkProxy>,
}

impl EmulatedPath {
    /// Closes the link, and returns the statistics of each emulator in both directions.
    pub(super) fn close(mut self) -> Vec<[LinkStats; 2]> {
        self.close_endpoint();
        self.proxies.drain(..).filter_map(LinkProxy::stop).collect()
    }

    /// Closes the endpoint. Its last packets must get through before the emulator stops.
    fn close_endpoint(&mut self) {
        if let Some(endpoint) = self.endpoint.take() {
            endpoint.shut_down(0, "");
            let _ = endpoint.idle().wait_for(CLOSE_TIMEOUT);
        }
    }
}

impl Drop for EmulatedPath {
    fn drop(&mut self) {
        self.close_endpoint();
    }
}

impl Client<'_> {
    /// Connects to the signalling port.
    pub(super) fn connect_control(&self) -> Result<Connection> {
        let remote = self.signalling_address();
        let control = self.connect(&self.endpoint, remote, control::transport_config())?;
        self.trust.report(&control, self.console);
        Ok(control)
    }

    fn signalling_address(&self) -> SocketAddr {
        with_port(self.remote, self.options.port - 1)
    }

    /// Detects a server that has gone.
    pub(super) fn port_probe(&self) -> Option<Arc<PortProbe>> {
        PortProbe::new(&self.local, self.signalling_address()).ok().map(Arc::new)
    }

    /// How long the server may take to reply. Replies are late on the same paths on which
    /// connections take long.
    fn reply_timeout(&self) -> Duration {
        self.options.test.connect_timeout.max(REPLY_TIMEOUT)
    }

    fn connect(
        &self,
        endpoint: &Endpoint,
        remote: SocketAddr,
        transport: TransportConfig,
    ) -> Result<Connection> {
        let psk = self.psk.clone();
        let has_psk = psk.is_some();
        let limit = self.options.test.connect_timeout;
        // Later than the wait below, whose error says more.
        let handshake_timeout = limit.saturating_add(HANDSHAKE_MARGIN);
        let transport = TransportConfig { psk, handshake_timeout, ..transport };
        let mut options = ClientOptions::new(self.trust.trust.clone()).transport(transport);
        if let Some(identity) = &self.identity {
            options = options.identity(identity.clone());
        }
        let no_answer = || {
            let with_key = if has_psk { ", with the same --closed-key" } else { "" };
            format!(
                "no answer from {remote} within {} s: is a server running there{with_key}?",
                limit.as_secs_f64()
            )
        };
        // An emulated link has an open port, whatever the server's is.
        let is_direct = remote.ip() == self.remote.ip();
        let probe = is_direct.then(|| PortProbe::new(&self.local, remote).ok()).flatten();
        let mut connecting =
            std::pin::pin!(endpoint.connect(remote, server_name(self.host), options));
        let clock = Clock::start();
        let closed_port =
            || format!("no answer from {remote}: its port is closed. Is a server running there?");
        loop {
            let left = limit.saturating_sub(clock.elapsed());
            if let Ok(connected) = connecting.as_mut().wait_for(left.min(PROBE_INTERVAL)) {
                if let Err(ConnectError::Closed(CloseReason::Refused)) = connected {
                    bail!(closed_port());
                }
                return connected.with_context(|| format!("cannot connect to {remote}"));
            }
            if left.is_zero() {
                bail!(no_answer());
            }
            if probe.as_ref().is_some_and(PortProbe::is_closed) {
                bail!(closed_port());
            }
        }
    }

    /// Requests a test and opens its streams.
    pub(super) fn start_test(
        &self,
        control: &Connection,
        request: &Request,
    ) -> Result<StartedTest> {
        control::send(control, &Message::Request(request.clone()))?;
        let (test, ports) = match control::receive(control, self.reply_timeout())? {
            Message::Accept { test, ports } => (test, ports),
            Message::Deny { reason } => {
                bail!("the server denied the test: {}", printable(&reason))
            }
            _ => bail!("the server sent an unexpected message"),
        };
        let streams = request.all_streams();
        let (data_streams, path) = match request.transport {
            Transport::Bats => {
                let mut transport = self.options.transport_config();
                if matches!(request.work, Work::Files { .. }) {
                    transport.send_budget = FILES_BUDGET;
                }
                self.open_bats(test, streams, &transport)?
            }
            Transport::Tcp => {
                let port = *ports.first().context("the server sent no TCP port")?;
                let remote = with_port(self.remote, port);
                let open = |stream| {
                    let limit = self.options.test.connect_timeout;
                    tcp::connect(&self.local, remote, Hello { test, stream }, limit)
                };
                let data_streams =
                    (0..streams).map(open).map(|data_stream| Ok(DataStream::Tcp(data_stream?)));
                (data_streams.collect::<Result<_>>()?, EmulatedPath::default())
            }
            Transport::Udp => self.open_udp(test, streams, &ports)?,
        };
        let hellos = self.wait_until_joined(control, request, test, &data_streams)?;
        let needs_clock = matches!(&request.work, Work::Throughput(work) if work.latency);
        let clock =
            if needs_clock { self.compare_clocks(control)? } else { ClockOffset::default() };
        control::send(control, &Message::Ready { clock, hellos })?;
        match control::receive(control, self.reply_timeout())? {
            Message::Start => {
                tracing::info!(server = %self.remote, test, streams, "test started");
                Ok(StartedTest { test, data_streams, clock, path })
            }
            Message::Deny { reason } => {
                bail!("the server denied the test: {}", printable(&reason))
            }
            _ => bail!("the server sent an unexpected message"),
        }
    }

    /// Waits until the server has all streams; returns how many hello messages each has sent.
    fn wait_until_joined(
        &self,
        control: &Connection,
        request: &Request,
        test: u64,
        data_streams: &[DataStream],
    ) -> Result<u64> {
        let is_lossy = request.transport == Transport::Bats && !request.mode.is_reliable();
        let mut hellos = 1;
        let again = || {
            if is_lossy {
                hellos += 1;
                for (stream, data_stream) in (0..).zip(data_streams) {
                    let hello = Hello { test, stream }.encode().into();
                    let deadline = Some(HELLO_DEADLINE);
                    if !data_stream.send(hello, self.options.test.connect_timeout, deadline)? {
                        bail!("a stream cannot send its hello message");
                    }
                }
            }
            Ok(())
        };
        match control::receive_meanwhile(control, self.reply_timeout(), HELLO_INTERVAL, again)? {
            Message::Joined => Ok(hellos),
            Message::Deny { reason } => {
                bail!("the server denied the test: {}", printable(&reason))
            }
            _ => bail!("the server sent an unexpected message"),
        }
    }

    fn open_bats(
        &self,
        test: u64,
        streams: u16,
        transport: &TransportConfig,
    ) -> Result<(Vec<DataStream>, EmulatedPath)> {
        let mut proxies = Vec::new();
        let (endpoint, remote) = match &self.options.test.emulate {
            None => (self.endpoint.clone(), self.remote),
            Some(emulation) => {
                let proxy = LinkProxy::start(emulation, &self.local, self.remote)?;
                let address = proxy.address();
                proxies.push(proxy);
                (Endpoint::builder().bind(([127, 0, 0, 1], 0).into()).start()?, address)
            }
        };
        let open = |stream| {
            let connection = self.connect(&endpoint, remote, transport.clone())?;
            let hello = Hello { test, stream }.encode();
            connection.send_within(hello, HELLO_DEADLINE).wait()?;
            Ok(DataStream::bats(connection))
        };
        let mut data_streams = Vec::with_capacity(streams.into());
        for first in (0..streams).step_by(MAX_CONCURRENT_OPENS.into()) {
            let group = first..streams.min(first.saturating_add(MAX_CONCURRENT_OPENS));
            thread::scope(|scope| -> Result<()> {
                let open = &open;
                let opening: Vec<_> =
                    group.map(|stream| scope.spawn(move || open(stream))).collect();
                for thread in opening {
                    let opened: Result<DataStream> =
                        thread.join().unwrap_or_else(|_| bail!("opening a stream panicked"));
                    data_streams.push(opened?);
                }
                Ok(())
            })?;
        }
        let endpoint = (!proxies.is_empty()).then_some(endpoint);
        Ok((data_streams, EmulatedPath { endpoint, proxies }))
    }

    fn open_udp(
        &self,
        test: u64,
        streams: u16,
        ports: &[u16],
    ) -> Result<(Vec<DataStream>, EmulatedPath)> {
        if ports.len() != usize::from(streams) {
            bail!("the server sent {} UDP ports for {streams} streams", ports.len());
        }
        let mut proxies = Vec::new();
        let mut data_streams = Vec::new();
        for (stream, &port) in (0..streams).zip(ports) {
            let (mut local, mut remote) = (self.local.clone(), with_port(self.remote, port));
            if let Some(emulation) = &self.options.test.emulate {
                let proxy = LinkProxy::start(emulation, &self.local, remote)?;
                // The emulator listens on loopback; its other socket has the local address of `-I`.
                (local, remote) = (Local::default(), proxy.address());
                proxies.push(proxy);
            }
            let hello = Hello { test, stream };
            let limit = self.options.test.connect_timeout;
            data_streams.push(DataStream::Udp(udp::connect(&local, remote, hello, limit)?));
        }
        Ok((data_streams, EmulatedPath { endpoint: None, proxies }))
    }

    fn compare_clocks(&self, control: &Connection) -> Result<ClockOffset> {
        let mut exchanges = Vec::with_capacity(PINGS);
        for _ in 0..PINGS {
            let sent_ns = stamp_ns();
            control::send(control, &Message::Ping)?;
            let Message::Pong { at_ns } = control::receive(control, self.reply_timeout())? else {
                bail!("the server sent an unexpected message");
            };
            exchanges.push((sent_ns, at_ns, stamp_ns()));
        }
        Ok(clock_offset(&exchanges))
    }
}

/// The name that the certificate must be valid for: the host without the zone of its address.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn server_name(host: &str) -> &str {
    host.split_once('%').map_or(host, |(address, _)| address)
}

/// Receives the peer's summary.
pub(crate) fn receive_summary(control: &Connection, timeout: Duration) -> Result<Summary> {
    match control::receive(control, timeout)? {
        Message::Summary(summary) => {
            tracing::debug!(streams = summary.streams.len(), "received the peer's summary");
            Ok(checked_summary(*summary))
        }
        _ => bail!("the peer sent an unexpected message"),
    }
}

/// Makes the texts of a peer's summary safe to print, and limits its times: sums of larger ones are infinite, and
/// JSON has no such number.
pub(crate) fn checked_summary(mut summary: Summary) -> Summary {
    for totals in &mut summary.streams {
        totals.seconds = totals.seconds.clamp(0.0, MAX_SECONDS);
        totals.jitter_ms = totals.jitter_ms.clamp(0.0, MAX_SECONDS * 1e3);
        totals.error = totals.error.as_deref().map(printable);
    }
    summary.sending = summary.sending.as_ref().map(SenderSettings::printable);
    summary
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Totals;

    #[test]
    fn times_of_a_summary_are_limited_and_its_texts_are_printable() {
        let totals = Totals {
            seconds: -1.0,
            jitter_ms: f64::MAX,
            error: Some("\x1b[31m".to_owned()),
            ..Totals::default()
        };
        let summary = checked_summary(Summary { streams: vec![totals; 2], ..Summary::default() });
        let totals = &summary.streams[1];
        assert_eq!((totals.seconds, totals.error.as_deref()), (0.0, Some("?[31m")));
        assert!((2.0 * totals.jitter_ms).is_finite());
    }
}
