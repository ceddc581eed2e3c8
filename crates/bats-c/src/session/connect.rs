//! Connecting: from a host name to an established connection, or to the events of a failure.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openbats::{CloseReason, ConnectError, Fingerprint, Mode};
use tokio::time::{Instant, sleep_until, timeout};

use super::files::blocking;
use super::{Addresses, Session};
use crate::connection::{CloseCause, CloseKind, Connection};
use crate::event::{Event, Failure};
use crate::owner::Owner;

fn close_error(text: impl Into<String>) -> CloseCause {
    CloseCause { kind: CloseKind::Error, text: text.into() }
}

impl Session {
    /// Connects, then runs the connection until its end.
    pub(crate) async fn run_connect(
        self: Arc<Self>,
        owner: Arc<dyn Owner>,
        mode: Mode,
        host: String,
        port: u16,
    ) {
        let deadline = Instant::now() + self.config.timeout;
        let connected = tokio::select! {
            biased;
            () = self.wait_for_stop() => {
                self.fail("stopped by the program");
                self.emit(Event::Closed).await;
                self.end();
                return;
            }
            connected = self.connect(&*owner, mode, &host, port) => connected,
            () = sleep_until(deadline) => Err(CloseCause {
                kind: CloseKind::TimedOut,
                text: format!("{host}:{port} did not answer within {:?}", self.config.timeout),
            }),
        };
        // From here on the protocol object may be dropped while the connection runs.
        drop(owner);
        match connected {
            Ok((connection, local)) => {
                self.open(connection.clone(), local);
                self.run(connection).await;
            }
            Err(cause) => {
                tracing::info!(host, port, error = cause.text, "not connected");
                self.fail(&cause.text);
                if cause.kind == CloseKind::TimedOut {
                    self.emit(Event::Timeout).await;
                }
                self.emit(Event::Failed).await;
                self.end();
            }
        }
    }

    pub(super) async fn wait_for_stop(&self) {
        while !self.stop_requested.load(Ordering::SeqCst) {
            self.wake.notified().await;
        }
    }

    async fn connect(
        &self,
        owner: &dyn Owner,
        mode: Mode,
        host: &str,
        port: u16,
    ) -> Result<(Connection, SocketAddr), CloseCause> {
        let until = Instant::now() + self.config.timeout;
        let found = resolve(host, port).await?;
        let count = found.len();
        let mut failed = close_error(format!("no address of '{host}'"));
        for (tried, remote) in found.into_iter().enumerate() {
            self.set_addresses(Addresses { local: None, remote: Some(remote) });
            let left = until.saturating_duration_since(Instant::now());
            let time = openbats::attempt_timeout(left, count - tried);
            match timeout(time, self.connect_to(remote, owner, mode, host)).await {
                Ok(Ok(connected)) => return Ok(connected),
                // As in `openbats::Endpoint::connect_host`: all addresses are one server, and the
                // error of another address must not hide this one.
                Ok(Err(cause)) if cause.kind == CloseKind::Untrusted => return Err(cause),
                Ok(Err(cause)) => failed = cause,
                Err(_) => {
                    let text = format!("{remote} did not answer within {time:?}");
                    failed = CloseCause { kind: CloseKind::TimedOut, text };
                }
            }
            tracing::debug!(%remote, error = failed.text, "not connected to this address");
        }
        Err(failed)
    }

    async fn connect_to(
        &self,
        remote: SocketAddr,
        owner: &dyn Owner,
        mode: Mode,
        host: &str,
    ) -> Result<(Connection, SocketAddr), CloseCause> {
        let failed = |failure: Failure| close_error(failure.text);
        let options = self.config.client_options().map_err(failed)?;
        let endpoint = if mode == Mode::Udp {
            let endpoint = owner.udp_endpoint(&self.config, remote).map_err(failed)?;
            self.keep_endpoint(endpoint.clone());
            endpoint
        } else {
            owner.client_endpoint(&self.config, remote).map_err(failed)?
        };
        let mut local = endpoint.local_addr();
        if mode != Mode::Tcp
            && local.ip().is_unspecified()
            && let Some(ip) = local_ip(remote)
        {
            local.set_ip(ip);
        }
        let connection =
            endpoint.connect(remote, host, options).await.map_err(|error| match error {
                ConnectError::Closed(
                    CloseReason::HandshakeTimeout | CloseReason::IdleTimeout(_),
                ) => CloseCause {
                    kind: CloseKind::TimedOut,
                    text: format!("{remote} did not answer"),
                },
                ConnectError::Trust(error) => {
                    CloseCause { kind: CloseKind::Untrusted, text: error.to_string() }
                }
                other => close_error(format!("cannot connect to {remote}: {other}")),
            })?;
        if mode == Mode::Tcp {
            local = connection.local_addr();
        }
        if self.config.accepts_any_certificate() {
            warn_of_unchecked_certificate(remote, connection.peer_fingerprint());
        }
        Ok((Connection::new(connection), local))
    }
}

/// Logs that the certificate of a server was not checked, with its fingerprint.
fn warn_of_unchecked_certificate(server: SocketAddr, fingerprint: Option<Fingerprint>) {
    let fingerprint = fingerprint.map(|fingerprint| fingerprint.to_string()).unwrap_or_default();
    tracing::warn!(
        %server,
        fingerprint,
        "the certificate of this server was accepted unchecked; openbats_config_set_known_hosts \
         remembers it, openbats_config_set_trusted_fingerprint pins it"
    );
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, CloseCause> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    let found = blocking(move || openbats::resolve_host(&name, port)).await;
    found.map_err(|error| close_error(format!("no address of '{host}': {error}")))
}

/// The local address that the system uses for packets to `remote`, if there is a route.
fn local_ip(remote: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    // Connecting a UDP socket sends nothing.
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(remote).ok()?;
    socket.local_addr().ok().map(|local| local.ip())
}
