//! The server: accepts tests, accepts their streams and runs its side.

pub(crate) mod check;
pub(crate) mod daemon;
mod intake;
mod registry;
mod session;

use std::net::{Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{
    Connection, Endpoint, Identity, ServerOptions, StartError, TransportConfig, Trust, Wait,
};

use crate::cli::Options;
use crate::clock::Clock;
use crate::console::{Console, Output};
use crate::error_text;
use crate::pidfile::PidFile;
use crate::report::text;
use crate::stream::with_port;
use crate::transport_mode::TransportMode;
use crate::{control, signals, state_files};
pub(crate) use intake::Budgets;
use intake::Intake;
use registry::Registry;

/// Maximum number of concurrent sessions; more are closed.
const MAX_SESSIONS: usize = 128;
/// Maximum number of connections of the data endpoint: those of all tests, and some that have not
/// identified their test yet.
const MAX_CONNECTIONS: usize = registry::MAX_STREAMS + registry::MAX_UNIDENTIFIED + SPARE;
/// Connections that are being opened or closed.
const SPARE: usize = 64;
/// How long a new connection may take to send its request or hello message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that it may send until then: a request, or a hello message and its repetitions.
const UNIDENTIFIED_BUDGET: usize = 64 << 10;
/// How often the server checks whether it should end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How long closing the endpoints may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until interrupted; with `--one-off` serves one test.
///
/// # Errors
/// A port is in use, or the certificate is invalid.
pub(crate) fn run(options: &Options, console: &Arc<Console>) -> Result<ExitCode> {
    let identity = state_files::identity(options, console)?;
    let certificates = (&identity, state_files::client_trust(options)?);
    if let Some(directory) =
        options.service.incoming.directory.as_ref().filter(|directory| !directory.is_dir())
    {
        bail!("--directory {}: no such directory", directory.display());
    }
    let (ip, _) = options.local_address()?;
    let (port, reliable) = (options.port - 1, [TransportMode::Brtp]);
    let max_connections = MAX_SESSIONS + SPARE;
    let psk = options.read_preshared_key()?;
    let transport = TransportConfig { psk: psk.clone(), ..control::transport_config() };
    let signalling =
        listen(options, ip, port, &certificates, (transport, &reliable, max_connections))?;
    let modes = match &options.service.only_mode {
        // The other modes do not support the key.
        None if psk.is_some() => TransportMode::PSK_CAPABLE,
        None => &TransportMode::SHARED_ENDPOINT[..],
        // Streams of mode 11 use other ports; connections to this one are refused.
        Some(TransportMode::Udp) => &reliable[..],
        Some(mode) => std::slice::from_ref(mode),
    };
    let data = listen(
        options,
        ip,
        options.port,
        &certificates,
        (TransportConfig { psk, ..options.transport_config() }, modes, MAX_CONNECTIONS),
    )?;
    signals::watch(vec![signalling.clone(), data.clone()], console.clone())?;
    let _pidfile = options.pidfile.as_deref().map(PidFile::write).transpose()?;
    let output = Output::new(console.clone());
    text::banner().iter().for_each(|line| output.line(line));
    output.line(&format!("Server listening on {} (signaling channel)", options.port - 1));
    output.note(&format!("certificate fingerprint: {}", identity.fingerprint()));
    if options.service.detached {
        daemon::ready()?;
    }

    tracing::info!(port = options.port, address = %data.local_addr(), "listening");
    let server = Server {
        options: Arc::new(options.clone()),
        console: console.clone(),
        registry: Registry::default(),
        local: data.local_addr(),
        sessions: Arc::default(),
        one_off_session: Arc::default(),
        intake: Arc::new(Intake::new(options)),
    };
    let (registry, accepting) = (server.registry.clone(), data.clone());
    thread::Builder::new()
        .spawn(move || registry.accept_streams(&accepting))
        .context("cannot start the thread for data connections")?;
    let code = server.serve(&signalling);
    for endpoint in [&signalling, &data] {
        endpoint.shut_down(0, "");
        let _ = endpoint.idle().wait_for(CLOSE_TIMEOUT);
    }
    Ok(code)
}

/// Listens on all addresses of both families if `ip` is `None`.
fn listen(
    options: &Options,
    ip: Option<SocketAddr>,
    port: u16,
    (identity, client_trust): &(&Identity, Option<Trust>),
    (transport, modes, max_connections): (TransportConfig, &[TransportMode], usize),
) -> Result<Endpoint> {
    let start = |address: SocketAddr| {
        let mut server = ServerOptions::new((*identity).clone())
            .transport(transport.clone())
            .modes(modes.iter().map(|mode| mode.to_library()))
            .untrusted_peer_budget(UNIDENTIFIED_BUDGET)
            .max_connections(max_connections);
        if let Some(trust) = client_trust {
            server = server.client_trust(trust.clone());
        }
        let builder = Endpoint::builder().dscp(options.socket.code_point());
        let builder = builder.bind(address).server(server);
        match &options.socket.bind_dev {
            Some(device) => builder.bind_device(device).start(),
            None => builder.start(),
        }
    };
    let v4 = SocketAddr::from(([0, 0, 0, 0], port));
    let started = match ip {
        Some(address) => start(with_port(address, port)),
        None if options.family.ipv4 => start(v4),
        None => match start((Ipv6Addr::UNSPECIFIED, port).into()) {
            // The host has no IPv6.
            Err(StartError::Bind { source, .. })
                if source.kind() != std::io::ErrorKind::AddrInUse && !options.family.ipv6 =>
            {
                start(v4)
            }
            other => other,
        },
    };
    started.with_context(|| format!("cannot listen on port {port}")).map_err(|error| {
        let is_taken = |source: &std::io::Error| source.kind() == std::io::ErrorKind::AddrInUse;
        match error.downcast_ref() {
            Some(StartError::BindTcp { source, .. }) if is_taken(source) => error.context(format!(
                "TCP port {port}, which mode 10 uses, is in use: iperf3 -s uses it, too. Choose \
                 another port with -p, or disable mode 10 with --only-mode (btp, brtp, ...)"
            )),
            Some(StartError::Bind { source, .. }) if is_taken(source) => error.context(format!(
                "UDP port {port} is in use. Data uses the port of -p and signalling the one below \
                 it: choose another port with -p"
            )),
            _ => error,
        }
    })
}

#[derive(Clone)]
struct Server {
    options: Arc<Options>,
    console: Arc<Console>,
    registry: Registry,
    local: SocketAddr,
    sessions: Arc<AtomicUsize>,
    /// With `--one-off`: the session whose test has started, 0 before.
    one_off_session: Arc<AtomicUsize>,
    intake: Arc<Intake>,
}

impl Server {
    fn serve(&self, signalling: &Endpoint) -> ExitCode {
        // Ending by an interrupt or when idle is success, except with `--one-off` before a test.
        let unserved =
            if self.options.service.one_off { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        let waits_forever =
            self.options.service.idle_timeout.is_none() && !self.options.service.one_off;
        let (served, outcomes) = channel();
        let mut idle = Clock::start();
        for number in 1.. {
            let accepted = loop {
                if waits_forever {
                    break signalling.accept().wait();
                }
                if let Ok(accepted) = signalling.accept().wait_for(POLL_INTERVAL) {
                    break accepted;
                }
                if let Ok(succeeded) = outcomes.try_recv() {
                    return if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE };
                }
                if self.sessions.load(Ordering::Acquire) > 0 {
                    idle = Clock::start();
                } else if self
                    .options
                    .service
                    .idle_timeout
                    .is_some_and(|limit| idle.elapsed() >= limit)
                {
                    self.console.note("bats_iperf: idle timeout: no client connected");
                    return unserved;
                }
            };
            let Ok(control) = accepted else { break };
            if self.sessions.fetch_add(1, Ordering::AcqRel) >= MAX_SESSIONS {
                self.sessions.fetch_sub(1, Ordering::AcqRel);
                control.close(1, "too many sessions");
                continue;
            }
            // Decrements the count even if no thread can be started.
            let guard = Guard(self.sessions.clone());
            let (server, client, served) = (self.clone(), control.clone(), served.clone());
            let started = thread::Builder::new().spawn(move || {
                let _guard = guard;
                let succeeded = server.session(&control, number);
                if server.is_one_off_session(number) {
                    let _ = served.send(succeeded);
                }
            });
            if let Err(error) = started {
                self.console
                    .note(&format!("bats_iperf: cannot start a thread for a client: {error}"));
                client.close(1, "the server is out of threads");
            }
        }
        if self.one_off_session.load(Ordering::Acquire) > 0 {
            // The session was interrupted and still prints its report.
            let _ = outcomes.recv_timeout(CLOSE_TIMEOUT);
        }
        unserved
    }

    /// Whether this is the session whose test a server with `--one-off` serves.
    fn is_one_off_session(&self, session: usize) -> bool {
        self.options.service.one_off && self.one_off_session.load(Ordering::Acquire) == session
    }

    /// Whether this session may start a test. Until a test starts, nothing that a client does uses
    /// up a server with `--one-off`.
    fn claim_one_off(&self, session: usize) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        !self.options.service.one_off
            || match self.one_off_session.compare_exchange(0, session, order.0, order.1) {
                Ok(_) => true,
                Err(one_off_session) => one_off_session == session,
            }
    }

    /// Runs all tests of one client; returns whether all succeeded.
    fn session(&self, control: &Connection, number: usize) -> bool {
        let result = self.tests(control, number);
        if let Err(error) = &result {
            tracing::warn!(
                client = %control.remote_addr(),
                error = error_text::join_causes(error),
                "session failed"
            );
            self.console.failure(&error_text::join_causes(error));
            if self.is_one_off_session(number) {
                self.console.error(&error_text::join_causes(error));
            }
            control.close(1, "the test failed");
        }
        result.unwrap_or(false)
    }
}

/// Decrements the session count when dropped, also after a panic.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
