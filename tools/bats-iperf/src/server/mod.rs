//! The server: agrees to tests, takes their streams, runs its side.

mod check;
pub(crate) mod daemon;
mod registry;
mod session;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Endpoint, Identity, ServerOptions, StartError, TransportConfig, Wait};

use crate::cli::{Options, TransportMode};
use crate::clock::Clock;
use crate::console::{Console, Output};
use crate::pidfile::PidFile;
use crate::report::text;
use crate::sentence;
use crate::{control, signals};
use registry::Registry;

/// Sessions at a time; more are closed.
const MAX_SESSIONS: usize = 128;
/// Connections of the data's endpoint: those of all tests, and some that have not said whose they
/// are.
const MAX_CONNECTIONS: usize = registry::MAX_STREAMS + registry::MAX_STRANGERS + SPARE;
/// Those that are about to come or to go.
const SPARE: usize = 64;
/// How long one who connects may take to say what for.
const GREETING: Duration = Duration::from_secs(10);
/// Bytes that it may have sent until then: a request, or a hello and a few that repeat it.
const STRANGER_BUDGET: usize = 64 << 10;
/// How often a server that waits for its end looks for it.
const SLICE: Duration = Duration::from_millis(20);
/// How long the farewell may take.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until interrupted, or one client with `--one-off`.
///
/// # Errors
/// A port is busy, or the certificate unusable.
pub(crate) fn run(options: &Options, console: &Arc<Console>) -> Result<ExitCode> {
    let identity = match (&options.certificate, &options.key) {
        (Some(certificate), Some(key)) => Identity::from_pem_files(certificate, key)?,
        _ => Identity::generate(&["localhost"])?,
    };
    if !options.directory.is_dir() {
        bail!("--directory {}: there is no such directory", options.directory.display());
    }
    let (ip, _) = options.local_ip()?;
    let (port, reliable) = (options.port - 1, [TransportMode::Brtp]);
    let most = MAX_SESSIONS + SPARE;
    let closed = options.read_closed_key()?;
    let transport = TransportConfig { closed: closed.clone(), ..control::transport() };
    let signalling = listen(options, ip, port, &identity, (transport, &reliable, most))?;
    let modes = match &options.only_mode {
        // The others have no use for the key.
        None if closed.is_some() => TransportMode::CLOSABLE,
        None => &TransportMode::TOGETHER[..],
        // Its streams come elsewhere; whoever comes here is sent away.
        Some(TransportMode::Udp) => &reliable[..],
        Some(mode) => std::slice::from_ref(mode),
    };
    let data = listen(
        options,
        ip,
        options.port,
        &identity,
        (TransportConfig { closed, ..options.transport() }, modes, MAX_CONNECTIONS),
    )?;
    signals::watch(vec![signalling.clone(), data.clone()], console.clone())?;
    let _pidfile = options.pidfile.as_deref().map(PidFile::write).transpose()?;
    let output = Output::new(console.clone());
    text::banner().iter().for_each(|line| output.line(line));
    output.line(&format!("Server listening on {} (signaling channel)", options.port - 1));
    output.note(&format!("certificate fingerprint: {}", identity.fingerprint()));
    if options.detached {
        daemon::ready()?;
    }

    tracing::info!(port = options.port, address = %data.local_addr(), "listening");
    let server = Server {
        options: Arc::new(options.clone()),
        console: console.clone(),
        registry: Registry::default(),
        local: data.local_addr(),
        sessions: Arc::default(),
        chosen: Arc::default(),
    };
    let (registry, accepting) = (server.registry.clone(), data.clone());
    thread::Builder::new()
        .spawn(move || registry.accept_streams(&accepting))
        .context("no thread for the data connections")?;
    let code = server.serve(&signalling);
    for endpoint in [&signalling, &data] {
        endpoint.shut_down(0, "");
        let _ = endpoint.idle().wait_for(FAREWELL);
    }
    Ok(code)
}

/// All addresses of both families if none is named.
fn listen(
    options: &Options,
    ip: Option<IpAddr>,
    port: u16,
    identity: &Identity,
    (transport, modes, most): (TransportConfig, &[TransportMode], usize),
) -> Result<Endpoint> {
    let start = |address: SocketAddr| {
        let server = ServerOptions::new(identity.clone())
            .transport(transport.clone())
            .modes(modes.iter().map(|mode| mode.to_library()))
            .stranger_budget(STRANGER_BUDGET)
            .max_connections(most);
        let builder = Endpoint::builder().dscp(options.code_point());
        let builder = builder.bind(address).server(server);
        match &options.bind_dev {
            Some(device) => builder.bind_device(device).start(),
            None => builder.start(),
        }
    };
    let v4 = SocketAddr::from(([0, 0, 0, 0], port));
    let started = match ip {
        Some(ip) => start((ip, port).into()),
        None if options.ipv4 => start(v4),
        None => match start((Ipv6Addr::UNSPECIFIED, port).into()) {
            // A host without IPv6.
            Err(StartError::Bind { source, .. })
                if source.kind() != std::io::ErrorKind::AddrInUse && !options.ipv6 =>
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
                "TCP port {port}, which mode 10 takes, is in use: iperf3 -s takes it, too. Choose another \
                 port with -p, or do without mode 10 by --only-mode (btp, brtp, ...)"
            )),
            Some(StartError::Bind { source, .. }) if is_taken(source) => error.context(format!(
                "UDP port {port} is in use. Data takes the port of -p and signalling the one below it: \
                 choose another with -p"
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
    /// With `--one-off`: the session whose test has begun, 0 before.
    chosen: Arc<AtomicUsize>,
}

impl Server {
    fn serve(&self, signalling: &Endpoint) -> ExitCode {
        // Interrupted or idle: that is how a server ends. One that was to serve a test has not.
        let unserved = if self.options.one_off { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        let is_patient = self.options.idle_timeout.is_none() && !self.options.one_off;
        let (served, outcomes) = channel();
        let mut idle = Clock::start();
        for number in 1.. {
            let accepted = loop {
                if is_patient {
                    break signalling.accept().wait();
                }
                if let Ok(accepted) = signalling.accept().wait_for(SLICE) {
                    break accepted;
                }
                if let Ok(is_good) = outcomes.try_recv() {
                    return if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE };
                }
                if self.sessions.load(Ordering::Acquire) > 0 {
                    idle = Clock::start();
                } else if self.options.idle_timeout.is_some_and(|limit| idle.elapsed() >= limit) {
                    self.console.note("bats_iperf: no client came: idle time-out");
                    return unserved;
                }
            };
            let Ok(control) = accepted else { break };
            if self.sessions.fetch_add(1, Ordering::AcqRel) >= MAX_SESSIONS {
                self.sessions.fetch_sub(1, Ordering::AcqRel);
                control.close(1, "too many sessions at a time");
                continue;
            }
            // Counts the session off, also where there is no thread for it.
            let guard = Guard(self.sessions.clone());
            let (server, client, served) = (self.clone(), control.clone(), served.clone());
            let started = thread::Builder::new().spawn(move || {
                let _guard = guard;
                let is_good = server.session(&control, number);
                if server.is_chosen(number) {
                    let _ = served.send(is_good);
                }
            });
            if let Err(error) = started {
                self.console.note(&format!("bats_iperf: no thread for a client: {error}"));
                client.close(1, "the server is out of threads");
            }
        }
        if self.chosen.load(Ordering::Acquire) > 0 {
            // It was interrupted and has its report to print.
            let _ = outcomes.recv_timeout(FAREWELL);
        }
        unserved
    }

    /// Whether this is the session that a server with `--one-off` is there for.
    fn is_chosen(&self, session: usize) -> bool {
        self.options.one_off && self.chosen.load(Ordering::Acquire) == session
    }

    /// A test of this session is about to begin; whether it may. Nothing that a client does before
    /// that uses a server with `--one-off` up.
    fn choose(&self, session: usize) -> bool {
        let order = (Ordering::AcqRel, Ordering::Acquire);
        !self.options.one_off
            || match self.chosen.compare_exchange(0, session, order.0, order.1) {
                Ok(_) => true,
                Err(chosen) => chosen == session,
            }
    }

    /// All tests of one client; whether they went well.
    fn session(&self, control: &Connection, number: usize) -> bool {
        let result = self.tests(control, number);
        if let Err(error) = &result {
            tracing::warn!(client = %control.remote_addr(), error = sentence::of(error), "failed");
            self.console.note(&format!("bats_iperf: error - {}", sentence::of(error)));
            if self.is_chosen(number) {
                self.console.error(&sentence::of(error));
            }
            control.close(1, "the test failed");
        }
        result.unwrap_or(false)
    }
}

/// Counts a session off, also after a panic.
struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
