//! From a name to an established connection, or to the events that say why not.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use openbats::{CloseReason, ConnectError, Mode};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use super::{Addresses, Session};
use crate::config::Carrier;
use crate::event::Event;
use crate::link::udp::Udp;
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
        carrier: Carrier,
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
            connected = self.connect(&protocol, carrier, &host, port) => connected,
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
        carrier: Carrier,
        host: &str,
        port: u16,
    ) -> Result<(Link, SocketAddr), Loss> {
        let remote = look_up(host, port).await?;
        self.set_addresses(Addresses { local: None, remote: Some(remote) });
        match carrier {
            Carrier::Udp => {
                let local = self.config.client_address().map_err(|failure| broken(failure.text))?;
                let udp = Udp::connect(remote, local, self.config.timeout)
                    .await
                    .map_err(|error| broken(format!("cannot reach {remote} over UDP: {error}")))?;
                let local = udp.local;
                Ok((Link::Udp(udp), local))
            }
            Carrier::Bats(mode) => {
                let options =
                    self.config.client_options().map_err(|failure| broken(failure.text))?;
                let endpoint = protocol
                    .client_endpoint(&self.config, remote)
                    .map_err(|failure| broken(failure.text))?;
                let mut local = endpoint.local_addr();
                let probe = if mode == Mode::Tcp {
                    // The system tells of a closed port by itself.
                    Probe::none()
                } else {
                    Probe::send(remote).await
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
                    ConnectError::Closed(
                        CloseReason::HandshakeTimeout | CloseReason::IdleTimeout(_),
                    ) => Loss { how: How::TimedOut, text: format!("{remote} did not answer") },
                    other => broken(format!("cannot connect to {remote}: {other}")),
                })?;
                if mode == Mode::Tcp {
                    local = connection.local_addr();
                }
                Ok((Link::Bats(connection), local))
            }
        }
    }
}

async fn look_up(host: &str, port: u16) -> Result<SocketAddr, Loss> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let mut found = found.map_err(|error| broken(format!("no address of '{host}': {error}")))?;
    found.next().ok_or_else(|| broken(format!("no address of '{host}'")))
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

    async fn send(remote: SocketAddr) -> Self {
        let any: SocketAddr = match remote {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let socket = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(remote).await?;
            socket.send(&[]).await?;
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
