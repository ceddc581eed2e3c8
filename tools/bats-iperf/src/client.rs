//! The client: asks for a test, opens the streams, runs its side, prints the report.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{ClientOptions, Connection, Endpoint, TransportConfig, Trust, Wait};
use serde_json::json;

use crate::cli::Options;
use crate::console::Console;
use crate::control::{self, Hello, Message, PATIENCE, Request, Totals, Work};
use crate::files::{self, Transferred};
use crate::json;
use crate::processor::Utilization;
use crate::report::{self, Side};
use crate::stream::{self, Pace};
use crate::test::{self, Plan};
use crate::{interrupt, units};

/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// Well below the idle time-out.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Runs the client to its end.
///
/// # Errors
/// The server cannot be reached, refuses, or breaks off.
pub(crate) fn run(options: &Options, host: &str) -> Result<ExitCode> {
    let console = Console::new(options)?;
    let files = files::collect(options)?;
    let local_ip = options.local_ip()?;
    let remote = resolve(host, options.port, local_ip)?;
    let mut builder = Endpoint::builder();
    if let Some(ip) = local_ip {
        builder = builder.bind((ip, 0).into());
    }
    let endpoint = builder.start()?;
    interrupt::shuts_down(vec![endpoint.clone()])?;
    report::banner().iter().for_each(|line| console.line(line));
    let signalling = SocketAddr::new(remote.ip(), options.port - 1);
    console.line(&format!("Connecting to host {host}, port {}", signalling.port()));
    let client = Client { options, console, endpoint, host, remote, trust: trust(options)? };
    if options.fingerprint.is_none() && options.authorities.is_none() {
        client
            .console
            .note("note: the server is not authenticated (--fingerprint or --authorities)");
    }
    let result = client.run(signalling, files);
    client.endpoint.shut_down(0, "");
    // The peer's time-out covers what does not get through.
    let _ = client.endpoint.idle().wait_for(FAREWELL);
    match result {
        Err(_) if interrupt::requested() => bail!("interrupted"),
        other => other,
    }
}

fn trust(options: &Options) -> Result<Trust> {
    Ok(match (&options.fingerprint, &options.authorities) {
        (Some(fingerprint), _) => Trust::fingerprint(*fingerprint),
        (None, Some(path)) => Trust::authorities(path)?,
        (None, None) => Trust::dangerous_any(),
    })
}

/// An address of the host, of the same family as our own if that is given.
fn resolve(host: &str, port: u16, local: Option<IpAddr>) -> Result<SocketAddr> {
    let addresses =
        (host, port).to_socket_addrs().with_context(|| format!("cannot find the host '{host}'"))?;
    let fits = |address: &SocketAddr| local.is_none_or(|ip| ip.is_ipv4() == address.is_ipv4());
    let addresses: Vec<SocketAddr> = addresses.filter(fits).collect();
    // IPv4 first, as the original knew nothing else.
    let address = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    address.copied().with_context(|| format!("'{host}' has no address of the IP family of -I"))
}

struct Client<'a> {
    options: &'a Options,
    console: Console,
    endpoint: Endpoint,
    host: &'a str,
    remote: SocketAddr,
    trust: Trust,
}

impl Client<'_> {
    fn run(
        &self,
        signalling: SocketAddr,
        files: Vec<(std::path::PathBuf, u64)>,
    ) -> Result<ExitCode> {
        let control = self.connect(signalling)?;
        let length =
            self.options.length.unwrap_or_else(|| stream::default_length(self.options.bandwidth));
        let bytes = files.iter().map(|(_, size)| size).sum();
        let (streams, work) = if files.is_empty() {
            let work = Work::Throughput {
                seconds: self.options.time.as_secs_f64(),
                interval: self.options.interval.as_secs_f64(),
                reverse: self.options.reverse,
                bandwidth: self.options.bandwidth,
                length,
            };
            (self.options.parallel, work)
        } else {
            let most = u16::try_from(files.len()).unwrap_or(u16::MAX);
            (self.options.parallel.min(most), Work::Files { count: files.len() as u64, bytes })
        };
        let request = Request { version: control::VERSION, streams, work };
        control::send(&control, &Message::Request(request))?;
        let test = match control::receive(&control, PATIENCE)? {
            Message::Accept { test } => test,
            Message::Deny { reason } => bail!("the server refuses: {reason}"),
            _ => bail!("the server answers out of turn"),
        };
        let connections = self.open_streams(test, streams)?;
        match control::receive(&control, PATIENCE)? {
            Message::Start => {}
            Message::Deny { reason } => bail!("the server refuses: {reason}"),
            _ => bail!("the server answers out of turn"),
        }
        if files.is_empty() {
            self.throughput(&control, &connections, test, length)
        } else {
            self.send_files(&control, &connections, files)
        }
    }

    fn connect(&self, remote: SocketAddr) -> Result<Connection> {
        // The signalling is silent during the test.
        let transport =
            TransportConfig { keep_alive: Some(KEEP_ALIVE), ..TransportConfig::default() };
        let options = ClientOptions::new(self.trust.clone()).transport(transport);
        let limit = self.options.connect_timeout;
        let nobody = || {
            format!(
                "no answer from {remote} within {} s: is a server running there?",
                limit.as_secs_f64()
            )
        };
        self.endpoint
            .connect(remote, self.host, options)
            .wait_for(limit)
            .with_context(nobody)?
            .with_context(|| format!("cannot connect to {remote}"))
    }

    fn open_streams(&self, test: u64, streams: u16) -> Result<Vec<Connection>> {
        (0..streams)
            .map(|stream| {
                let connection = self.connect(self.remote)?;
                connection.send(Hello { test, stream }.encode()).wait()?;
                Ok(connection)
            })
            .collect()
    }

    fn throughput(
        &self,
        control: &Connection,
        connections: &[Connection],
        test: u64,
        length: u32,
    ) -> Result<ExitCode> {
        let side = if self.options.reverse { Side::Receiver } else { Side::Sender };
        let pace = Pace { time: self.options.time, bandwidth: self.options.bandwidth, length };
        let plan = Plan { side, pace, interval: self.options.interval };
        let outcome = test::run(&self.console, connections, plan);
        let summary =
            Message::Summary { streams: outcome.streams.clone(), processor: outcome.processor };
        let remote = control::send(control, &summary).and_then(|()| receive_summary(control));
        if let Err(error) = &remote {
            self.console.note(&format!("no summary from the server: {error:#}"));
        }
        let remote = remote.ok();
        self.console.line(&report::rule());
        self.console.line(&report::header(side));
        for line in report::summary(side, &outcome.streams) {
            self.console.line(&line);
        }
        for line in remote.iter().flat_map(|(streams, _)| report::summary(side.other(), streams)) {
            self.console.line(&line);
        }
        let local = self.endpoint.local_addr();
        let about = json::Start {
            connected: connections.iter().map(|x| (local, x.remote_addr())).collect(),
            connecting_to: Some((self.host.to_owned(), self.options.port)),
            test,
            length,
            seconds: self.options.time.as_secs_f64(),
            bandwidth: self.options.bandwidth,
            reverse: self.options.reverse,
        };
        self.console.document(&json::document(&about, &outcome, remote.as_ref()));
        let remote_error = remote
            .as_ref()
            .and_then(|(streams, _)| streams.iter().find_map(|totals| totals.error.clone()));
        let error = outcome.error().map(str::to_owned).or(remote_error);
        if let Some(error) = &error {
            self.console.note(&format!("bats_iperf: error - {error}"));
        }
        Ok(if error.is_none() && remote.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn send_files(
        &self,
        control: &Connection,
        connections: &[Connection],
        files: Vec<(std::path::PathBuf, u64)>,
    ) -> Result<ExitCode> {
        let clock = crate::clock::Clock::start();
        let sent = files::send(&self.console, connections, files, self.options.debug);
        let seconds = clock.elapsed().as_secs_f64();
        let arrived: Vec<&Transferred> = sent.iter().filter(|file| file.result.is_ok()).collect();
        let bytes: u64 = arrived.iter().map(|file| file.bytes).sum();
        let rate = bytes as f64 * 8.0 / seconds.max(1e-9);
        self.console.line(&format!(
            "{} of {} files verified, {} in {seconds:.2} sec, {}",
            arrived.len(),
            sent.len(),
            units::bytes(bytes),
            units::rate(rate)
        ));
        control.close(0, "done");
        let list: Vec<_> = sent
            .iter()
            .map(|file| {
                json!({
                    "name": file.name,
                    "bytes": file.bytes,
                    "seconds": file.seconds,
                    "verified": file.result.is_ok(),
                    "blake3": file.result.as_ref().ok(),
                    "error": file.result.as_ref().err(),
                })
            })
            .collect();
        let sum = json!({ "start": 0.0, "end": seconds, "seconds": seconds, "bytes": bytes,
            "bits_per_second": rate });
        self.console.document(&json!({
            "files": list,
            "end": { "sum_sent": sum, "sum_received": sum },
        }));
        Ok(if arrived.len() == sent.len() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The other side's view.
pub(crate) fn receive_summary(control: &Connection) -> Result<(Vec<Totals>, Utilization)> {
    match control::receive(control, PATIENCE)? {
        Message::Summary { streams, processor } => Ok((streams, processor)),
        _ => bail!("the peer answers out of turn"),
    }
}
