//! From a name to an established connection, or to the events that say why not.

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
use crate::event::{Event, Failure};
use crate::link::{How, Link, Loss};
use crate::protocol::Protocol;

fn broken(text: impl Into<String>) -> Loss {
    Loss { how: How::Broken, text: text.into() }
}

impl Session {
    /// Connects and stays with the connection until its end.
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
            () = self.stop_is_wanted() => {
                self.fail("stopped by the program");
                self.emit(Event::Closed).await;
                self.end();
                return;
            }
            connected = self.connect(&protocol, mode, &host, port) => connected,
            () = sleep_until(deadline) => Err(Loss {
                how: How::TimedOut,
                text: format!("{host}:{port} did not answer within {:?}", self.config.timeout),
            }),
        };
        // From here on the object may go away without waiting for this connection.
        drop(protocol);
        match connected {
            Ok((link, local)) => {
                self.open(link.clone(), local);
                self.run(link).await;
            }
            Err(loss) => {
                tracing::info!(host, port, error = loss.text, "not connected");
                self.fail(&loss.text);
                if loss.how == How::TimedOut {
                    self.emit(Event::Timeout).await;
                }
                self.emit(Event::Failed).await;
                self.end();
            }
        }
    }

    pub(super) async fn stop_is_wanted(&self) {
        while !self.stop_wanted.load(Ordering::SeqCst) {
            self.wake.notified().await;
        }
    }

    async fn connect(
        &self,
        protocol: &Protocol,
        mode: Mode,
        host: &str,
        port: u16,
    ) -> Result<(Link, SocketAddr), Loss> {
        let until = Instant::now() + self.config.timeout;
        let found = look_up(host, port).await?;
        let count = found.len();
        let mut failed = broken(format!("no address of '{host}'"));
        for (tried, remote) in found.into_iter().enumerate() {
            self.set_addresses(Addresses { local: None, remote: Some(remote) });
            let left = until.saturating_duration_since(Instant::now());
            let time = openbats::time_for_one(left, count - tried);
            match timeout(time, self.connect_to(remote, protocol, mode, host)).await {
                Ok(Ok(connected)) => return Ok(connected),
                Ok(Err(loss)) => failed = loss,
                Err(_) => {
                    let text = format!("{remote} did not answer within {time:?}");
                    failed = Loss { how: How::TimedOut, text };
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
    ) -> Result<(Link, SocketAddr), Loss> {
        let failed = |failure: Failure| broken(failure.text);
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
            // The system tells of a closed port by itself.
            Mode::Tcp => Probe::none(),
            // Whatever is sent there is a message.
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
            loss = probe.refused(remote) => return Err(loss),
        };
        let connection = connection.map_err(|error| match error {
            ConnectError::Closed(CloseReason::HandshakeTimeout | CloseReason::IdleTimeout(_)) => {
                Loss { how: How::TimedOut, text: format!("{remote} did not answer") }
            }
            other => broken(format!("cannot connect to {remote}: {other}")),
        })?;
        if mode == Mode::Tcp {
            local = connection.local_addr();
        }
        Ok((Link::new(connection), local))
    }
}

async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, Loss> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let name = host.to_owned();
    let found = blocking(move || openbats::addresses(&name, port)).await;
    found.map_err(|error| broken(format!("no address of '{host}': {error}")))
}

/// An empty datagram beside the handshake, from a socket that hears of closed ports: the
/// handshake's own socket serves many peers, and the system tells it nothing. Peers drop it.
struct Probe {
    socket: Option<UdpSocket>,
    local_ip: Option<IpAddr>,
}

impl Probe {
    fn none() -> Self {
        Self { socket: None, local_ip: None }
    }

    /// Without `asks` nothing is sent, and only the local address is found out.
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
        // Without a probe, a closed port shows as a time-out.
        let socket = socket.await.ok();
        let local_ip =
            socket.as_ref().and_then(|socket| socket.local_addr().ok()).map(|local| local.ip());
        Self { socket, local_ip }
    }

    /// Done when the peer's host says that nobody listens.
    async fn refused(&self, remote: SocketAddr) -> Loss {
        if let Some(socket) = &self.socket {
            while socket.ready(Interest::ERROR).await.is_ok() {
                if let Ok(Some(error)) = socket.take_error()
                    && error.kind() == io::ErrorKind::ConnectionRefused
                {
                    return broken(format!("nobody listens at {remote}"));
                }
                // Waits for the next one.
                let _ = socket
                    .try_io(Interest::ERROR, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
            }
        }
        std::future::pending().await
    }
}
