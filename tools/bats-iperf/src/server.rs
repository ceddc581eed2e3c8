//! The server: agrees to tests, takes their streams, runs its side.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Endpoint, Identity, ServerOptions, StartError, Wait};

use crate::cli::Options;
use crate::client::receive_summary;
use crate::clock::Clock;
use crate::console::Console;
use crate::control::{self, Hello, Message, PATIENCE, Request, Work};
use crate::report::{self, Side};
use crate::stream::{MIN_LENGTH, Pace};
use crate::test::{self, Plan};
use crate::{files, interrupt, json, units};

/// Tests at a time; more are denied.
const MAX_TESTS: usize = 32;
/// Streams of one test at most.
const MAX_STREAMS: u16 = 128;
/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// Where data connections find their test.
type Registry = Arc<Mutex<BTreeMap<u64, Sender<(u16, Connection)>>>>;

/// Serves until interrupted, or one test with `--one-off`.
///
/// # Errors
/// A port is busy, or the certificate unusable.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let console = Arc::new(Console::new(options)?);
    let identity = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => Identity::from_pem_files(certificate, key)?,
        _ => Identity::generate(&["localhost"])?,
    };
    if !options.directory.is_dir() {
        bail!("--directory {}: there is no such directory", options.directory.display());
    }
    let ip = options.local_ip()?;
    let signalling = listen(ip, options.port - 1, &identity)?;
    let data = listen(ip, options.port, &identity)?;
    interrupt::shuts_down(vec![signalling.clone(), data.clone()])?;
    report::banner().iter().for_each(|line| console.line(line));
    console.line(&format!("Server listening on {} (signaling channel)", options.port - 1));
    console.note(&format!("certificate fingerprint: {}", identity.fingerprint()));

    let server = Server {
        options: options.clone(),
        console,
        registry: Registry::default(),
        local: data.local_addr(),
    };
    let registry = server.registry.clone();
    let accepting = data.clone();
    thread::spawn(move || accept_streams(&accepting, &registry));
    let code = server.serve(&signalling);
    for endpoint in [&signalling, &data] {
        endpoint.shut_down(0, "");
        let _ = endpoint.idle().wait_for(FAREWELL);
    }
    Ok(code)
}

/// All addresses of both families if none is named.
fn listen(ip: Option<IpAddr>, port: u16, identity: &Identity) -> Result<Endpoint> {
    let start = |address: SocketAddr| {
        Endpoint::builder().bind(address).server(ServerOptions::new(identity.clone())).start()
    };
    let started = match ip {
        Some(ip) => start((ip, port).into()),
        None => match start((Ipv6Addr::UNSPECIFIED, port).into()) {
            // A host without IPv6.
            Err(StartError::Bind { source, .. })
                if source.kind() != std::io::ErrorKind::AddrInUse =>
            {
                start(([0, 0, 0, 0], port).into())
            }
            other => other,
        },
    };
    started.with_context(|| format!("cannot listen on port {port}"))
}

/// Hands data connections to the tests that they name.
fn accept_streams(data: &Endpoint, registry: &Registry) {
    while let Ok(connection) = data.accept().wait() {
        let registry = registry.clone();
        thread::spawn(move || {
            let hello = connection.recv().wait_for(PATIENCE);
            let Ok(Ok(Some(hello))) = hello else { return };
            let Some(hello) = Hello::decode(&hello) else {
                connection.close(1, "no hello");
                return;
            };
            let test = registry.lock().ok().and_then(|registry| registry.get(&hello.test).cloned());
            match test {
                // Should the test be over meanwhile, the connection is dropped and closed.
                Some(test) => drop(test.send((hello.stream, connection))),
                None => connection.close(1, "no such test"),
            }
        });
    }
}

#[derive(Clone)]
struct Server {
    options: Options,
    console: Arc<Console>,
    registry: Registry,
    local: SocketAddr,
}

impl Server {
    fn serve(&self, signalling: &Endpoint) -> ExitCode {
        loop {
            let Ok(control) = signalling.accept().wait() else {
                // Interrupted: that is how a server ends. One that was to serve a test has not.
                return if self.options.one_off { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            };
            let server = self.clone();
            let serve = move || {
                let result = server.test(&control);
                if let Err(error) = &result {
                    server.console.note(&format!("bats_iperf: error - {error:#}"));
                    control.close(1, "the test failed");
                }
                result.unwrap_or(false)
            };
            if self.options.one_off {
                return if serve() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            }
            thread::spawn(serve);
        }
    }

    /// One test from request to summary; whether it went well.
    fn test(&self, control: &Connection) -> Result<bool> {
        let Message::Request(request) = control::receive(control, PATIENCE)? else {
            bail!("{} does not begin with a request", control.remote_addr());
        };
        if let Err(reason) = check(&request) {
            return self.deny(control, reason);
        }
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system gives no random numbers")?;
        let test = u64::from_ne_bytes(random);
        let (sender, streams) = channel();
        let is_room = {
            let Ok(mut registry) = self.registry.lock() else { bail!("the registry is broken") };
            let is_room = registry.len() < MAX_TESTS;
            if is_room {
                registry.insert(test, sender);
            }
            is_room
        };
        if !is_room {
            return self.deny(control, "too many tests at a time".into());
        }
        let gathered = control::send(control, &Message::Accept { test })
            .and_then(|()| gather(&streams, request.streams));
        if let Ok(mut registry) = self.registry.lock() {
            registry.remove(&test);
        }
        let connections = gathered?;
        control::send(control, &Message::Start)?;
        match request.work {
            Work::Throughput { seconds, interval, reverse, bandwidth, length } => {
                let side = if reverse { Side::Sender } else { Side::Receiver };
                let pace = Pace { time: Duration::from_secs_f64(seconds), bandwidth, length };
                let plan = Plan { side, pace, interval: Duration::from_secs_f64(interval) };
                self.throughput(control, &connections, test, plan)
            }
            Work::Files { count, bytes } => {
                self.console.line(&format!(
                    "{} sends {count} files, {}",
                    control.remote_addr(),
                    units::bytes(bytes)
                ));
                let receiver = openbats::file::Receiver::new(&self.options.directory)
                    .overwrite(self.options.overwrite);
                let received =
                    files::receive(&self.console, &connections, &receiver, self.options.debug);
                let whole = received.iter().filter(|file| file.result.is_ok()).count() as u64;
                self.console.line(&format!("{whole} of {count} files verified and stored"));
                // The client's farewell tells that it has seen the last verdict.
                let _ = control.recv().wait_for(PATIENCE);
                Ok(whole == count)
            }
        }
    }

    fn deny(&self, control: &Connection, reason: String) -> Result<bool> {
        control::send(control, &Message::Deny { reason: reason.clone() })?;
        let _ = control.finish().wait_for(FAREWELL);
        bail!("denied a test to {}: {reason}", control.remote_addr())
    }

    fn throughput(
        &self,
        control: &Connection,
        connections: &[Connection],
        test: u64,
        plan: Plan,
    ) -> Result<bool> {
        self.console.line(&format!("Accepted connection from {}", control.remote_addr()));
        let outcome = test::run(&self.console, connections, plan);
        let summary =
            Message::Summary { streams: outcome.streams.clone(), processor: outcome.processor };
        let remote = receive_summary(control);
        let told = control::send(control, &summary);
        self.console.line(&report::rule());
        self.console.line(&report::header(plan.side));
        for line in report::summary(plan.side, &outcome.streams) {
            self.console.line(&line);
        }
        if let Ok((streams, _)) = &remote {
            for line in report::summary(plan.side.other(), streams) {
                self.console.line(&line);
            }
        }
        let about = json::Start {
            connected: connections.iter().map(|x| (self.local, x.remote_addr())).collect(),
            connecting_to: None,
            test,
            length: plan.pace.length,
            seconds: plan.pace.time.as_secs_f64(),
            bandwidth: plan.pace.bandwidth,
            reverse: plan.side == Side::Sender,
        };
        self.console.document(&json::document(&about, &outcome, remote.as_ref().ok()));
        if let Some(error) = outcome.error() {
            self.console.note(&format!("bats_iperf: error - {error}"));
        }
        // The summary must arrive before the connection goes.
        let _ = told.map(|()| control.recv().wait_for(FAREWELL));
        remote.map(|_| outcome.error().is_none())
    }
}

/// Whether this server can do what is asked.
fn check(request: &Request) -> Result<(), String> {
    if request.version != control::VERSION {
        let own = control::VERSION;
        return Err(format!("this server speaks version {own}, not {}", request.version));
    }
    if !(1..=MAX_STREAMS).contains(&request.streams) {
        return Err(format!("1 to {MAX_STREAMS} streams are possible"));
    }
    if let Work::Throughput { seconds, interval, bandwidth, length, .. } = request.work {
        if !(0.1..=86_400.0).contains(&seconds) || !(0.1..=3_600.0).contains(&interval) {
            return Err("the length or the interval is out of range".into());
        }
        if !(MIN_LENGTH..=16 << 20).contains(&length) || bandwidth > 10_000_000_000_000 {
            return Err("the message length or the bandwidth is out of range".into());
        }
    }
    Ok(())
}

/// All streams of a test, in order.
fn gather(streams: &Receiver<(u16, Connection)>, count: u16) -> Result<Vec<Connection>> {
    let clock = Clock::start();
    let mut gathered = BTreeMap::new();
    while gathered.len() < usize::from(count) {
        let left = PATIENCE.saturating_sub(clock.elapsed());
        let (stream, connection) = streams
            .recv_timeout(left)
            .ok()
            .with_context(|| format!("{} of {count} streams came", gathered.len()))?;
        if stream >= count || gathered.insert(stream, connection).is_some() {
            bail!("the client numbers its streams wrongly");
        }
    }
    Ok(gathered.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_would_hurt_are_denied() {
        let throughput = |seconds, interval, length| Request {
            version: control::VERSION,
            streams: 1,
            work: Work::Throughput { seconds, interval, reverse: true, bandwidth: 0, length },
        };
        assert_eq!(check(&throughput(10.0, 1.0, 1_000)), Ok(()));
        for wrong in [
            throughput(10.0, 0.04, 1_000),
            throughput(10.0, f64::NAN, 1_000),
            throughput(f64::INFINITY, 1.0, 1_000),
            throughput(-1.0, 1.0, 1_000),
            throughput(10.0, 1.0, 1),
            throughput(10.0, 1.0, u32::MAX),
            Request { streams: 0, ..throughput(10.0, 1.0, 1_000) },
            Request { streams: 129, ..throughput(10.0, 1.0, 1_000) },
            Request { version: 2, ..throughput(10.0, 1.0, 1_000) },
        ] {
            assert!(check(&wrong).is_err(), "{wrong:?}");
        }
    }
}
