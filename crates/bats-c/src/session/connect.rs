//! Connecting: from a host name to an established connection, or to the events of a failure.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openbats::{CloseReason, ConnectError, Mode};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until, timeout};

use super::files::blocking;
use super::{Addresses, Session};
use crate::connection::{CloseCause, CloseKind, Connection};
use crate::event::{Event, Failure};
use crate::protocol::Protocol;

fn close_error(text: impl Into<String>) -> CloseCause {
    CloseCause { kind: CloseKind::Error, text: text.into() }
}

impl Session {
    /// Connects, then runs the connection until its end.
    pub(crate) async fn run_connect(
        self: Arc<Self>,
        protocol: Arc<Protocol>,
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
            connected = self.connect(&protocol, mode, &host, port) => connected,
            () = sleep_until(deadline) => Err(CloseCause {
                kind: CloseKind::TimedOut,
                text: format!("{host}:{port} did not answer within {:?}", self.config.timeout),
            }),
        };
        // From here on the protocol object may be dropped while the connection runs.
        drop(protocol);
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
        protocol: &Protocol,
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
            match timeout(time, self.connect_to(remote, protocol, mode, host)).await {
                Ok(Ok(connected)) => return Ok(connected),
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
        protocol: &Protocol,
        mode: Mode,
        host: &str,
    ) -> Result<(Connection, SocketAddr), CloseCause> {
        let failed = |failure: Failure| close_error(failure.text);
        let options = self.config.client_options().map_err(failed)?;
        let endpoint = if mode == Mode::Udp {
            let endpoint = Protocol::udp_endpoint(&self.config, remote).map_err(failed)?;
            self.keep_endpoint(endpoint.clone());
            endpoint
        } else {
            protocol.client_endpoint(&self.config, remote).map_err(failed)?
        };
        let mut local = endpoint.local_addr();
        let probe = match mode {
            // TCP reports a closed port without a probe.
            Mode::Tcp => Probe::none(),
            // Mode 11 has no packets other than messages, so no probe may be sent.
            Mode::Udp => Probe::new(remote, false).await,
            _ => Probe::new(remote, true).await,
        };
        if let Some(ip) = probe.local_ip
            && local.ip().is_unspecified()
        {
            local.set_ip(ip);
        }
        let connection = tokio::select! {
            connection = endpoint.connect(remote, host, options) => connection,
            cause = probe.port_closed(remote) => return Err(cause),
        };
        let connection = connection.map_err(|error| match error {
            ConnectError::Closed(CloseReason::HandshakeTimeout | CloseReason::IdleTimeout(_)) => {
                CloseCause { kind: CloseKind::TimedOut, text: format!("{remote} did not answer") }
            }
            other => close_error(format!("cannot connect to {remote}: {other}")),
        })?;
        if mode == Mode::Tcp {
            local = connection.local_addr();
        }
        Ok((Connection::new(connection), local))
    }
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, CloseCause> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    let found = blocking(move || openbats::resolve_host(&name, port)).await;
    found.map_err(|error| close_error(format!("no address of '{host}': {error}")))
}

/// An empty datagram in addition to the handshake, from a connected socket, which gets ICMP errors
/// for closed ports. The socket of the handshake serves many peers and gets none. Peers drop the
/// datagram.
struct Probe {
    socket: Option<UdpSocket>,
    local_ip: Option<IpAddr>,
}

impl Probe {
    fn none() -> Self {
        Self { socket: None, local_ip: None }
    }

    /// Sends the datagram if `asks` is true. Otherwise only determines the local address.
    async fn new(remote: SocketAddr, asks: bool) -> Self {
        let any: SocketAddr = match remote {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(remote).await?;
            if asks {
                socket.send(&[]).await?;
            }
            Ok::<_, io::Error>(socket)
        };
        // If the probe fails, a closed port shows as a time-out.
        let socket = socket.await.ok();
        let local_ip =
            socket.as_ref().and_then(|socket| socket.local_addr().ok()).map(|local| local.ip());
        Self { socket, local_ip }
    }

    /// Returns when the peer's host reports that the port is closed.
    async fn port_closed(&self, remote: SocketAddr) -> CloseCause {
        if let Some(socket) = &self.socket {
            while socket.ready(Interest::ERROR).await.is_ok() {
                if let Ok(Some(error)) = socket.take_error()
                    && error.kind() == io::ErrorKind::ConnectionRefused
                {
                    return close_error(format!(
                        "connection refused: no process listens at {remote}"
                    ));
                }
                // Clears the readiness, so that `ready` waits for the next error.
                let _ = socket
                    .try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
        }
        std::future::pending().await
    }
}
