//! The server: agrees to tests, takes their streams, runs its side.

mod check;
pub(crate) mod daemon;
mod registry;
mod session;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Endpoint, Identity, ServerOptions, StartError, TransportConfig, Wait};

use crate::cli::{Options, TransportMode};
use crate::console::{Console, Output};
use crate::pidfile::PidFile;
use crate::report::text;
use crate::sentence;
use crate::{control, signals};
use registry::Registry;

/// Sessions at a time; more are closed.
const MAX_SESSIONS: usize = 128;
/// Connections of one endpoint: those of all tests, and some that have not said whose they are.
const MAX_CONNECTIONS: usize = 2_048;
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
    let signalling = listen(options, ip, port, &identity, (control::transport(), &reliable))?;
    let modes = options.only_mode.as_ref().map_or(&TransportMode::ALL[..], std::slice::from_ref);
    let data = listen(options, ip, options.port, &identity, (options.transport(), modes))?;
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
    (transport, modes): (TransportConfig, &[TransportMode]),
) -> Result<Endpoint> {
    let start = |address: SocketAddr| {
        let server = ServerOptions::new(identity.clone())
            .transport(transport.clone())
            .modes(modes.iter().map(|mode| mode.to_library()))
            .max_connections(MAX_CONNECTIONS);
        Endpoint::builder().bind(address).server(server).start()
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
    started.with_context(|| format!("cannot listen on port {port}"))
}

#[derive(Clone)]
struct Server {
    options: Arc<Options>,
    console: Arc<Console>,
    registry: Registry,
    local: SocketAddr,
    sessions: Arc<AtomicUsize>,
}

impl Server {
    fn serve(&self, signalling: &Endpoint) -> ExitCode {
        // Interrupted or idle: that is how a server ends. One that was to serve a test has not.
        let unserved = if self.options.one_off { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        loop {
            let accepted = match self.options.idle_timeout {
                None => signalling.accept().wait(),
                Some(limit) => match signalling.accept().wait_for(limit) {
                    Ok(accepted) => accepted,
                    Err(_) if self.sessions.load(Ordering::Acquire) > 0 => continue,
                    Err(_) => {
                        self.console.note("bats_iperf: no client came: idle time-out");
                        return unserved;
                    }
                },
            };
            let Ok(control) = accepted else { return unserved };
            if self.options.one_off {
                return if self.session(&control) { ExitCode::SUCCESS } else { ExitCode::FAILURE };
            }
            if self.sessions.fetch_add(1, Ordering::AcqRel) >= MAX_SESSIONS {
                self.sessions.fetch_sub(1, Ordering::AcqRel);
                control.close(1, "too many sessions at a time");
                continue;
            }
            // Counts the session off, also where there is no thread for it.
            let guard = Guard(self.sessions.clone());
            let (server, client) = (self.clone(), control.clone());
            let started = thread::Builder::new().spawn(move || {
                let _guard = guard;
                server.session(&control)
            });
            if let Err(error) = started {
                self.console.note(&format!("bats_iperf: no thread for a client: {error}"));
                client.close(1, "the server is out of threads");
            }
        }
    }

    /// All tests of one client; whether they went well.
    fn session(&self, control: &Connection) -> bool {
        let result = self.tests(control);
        if let Err(error) = &result {
            tracing::warn!(client = %control.remote_addr(), error = sentence::of(error), "failed");
            self.console.note(&format!("bats_iperf: error - {}", sentence::of(error)));
            if self.options.one_off {
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
