//! Listening: from a bound port to accepted connections.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use openbats::Endpoint;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::callback::ListenCallback;
use crate::config::{Carrier, Config};
use crate::event::{Code, Failure, ListenEvent};
use crate::link::Link;
use crate::link::tcp::Tcp;
use crate::link::udp::{Peers, Port};
use crate::protocol::{self, Protocol};
use crate::session::Session;

/// Time that an accepted TCP connection has for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes over TCP at the same time; more wait in the kernel.
const MOST_HANDSHAKES: usize = 256;
/// Connections of one object from which on no more are accepted over TCP; the coded modes have
/// the same limit of their own.
const MOST_CONNECTIONS: usize = 10_000;
/// Rest after the system refused to accept, for want of files for instance.
const AFTER_ERROR: Duration = Duration::from_millis(100);

enum Socket {
    /// Not bound yet.
    Nothing,
    Brtp(Endpoint),
    Tcp(TcpListener, TlsAcceptor),
    Udp(Arc<Port>),
    /// Given up.
    Closed,
}

/// A socket that accepted connections share with their listener.
pub(crate) enum Shared {
    Brtp(Endpoint),
    Udp(Arc<Port>),
}

impl Shared {
    /// New connections are refused; those there are live on.
    pub(crate) fn stop_accepting(&self) {
        if let Self::Brtp(endpoint) = self {
            endpoint.stop_accepting();
        }
    }

    /// Frees the port, which ends every connection that shares it.
    pub(crate) fn give_up(&self) {
        match self {
            Self::Brtp(endpoint) => protocol::give_up(endpoint),
            Self::Udp(port) => port.close(),
        }
    }
}

/// A listener of a protocol object.
pub(crate) struct Listener {
    socket: Mutex<Socket>,
    stop: Notify,
    callback: Mutex<Option<Arc<ListenCallback>>>,
}

impl Listener {
    pub(crate) fn new(callback: ListenCallback) -> Arc<Self> {
        Arc::new(Self {
            socket: Mutex::new(Socket::Nothing),
            stop: Notify::new(),
            callback: Mutex::new(Some(Arc::new(callback))),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells of an event on the current thread.
    pub(crate) fn call_now(&self, protocol: &Protocol, id: usize, event: ListenEvent) {
        let Some(_running) = protocol.gate.enter() else { return };
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(callback) = callback {
            callback.call(id, event);
        }
    }

    async fn tell(self: &Arc<Self>, protocol: &Arc<Protocol>, id: usize, event: ListenEvent) {
        let (this, owner) = (self.clone(), protocol.clone());
        protocol.context.dispatch(move || this.call_now(&owner, id, event)).await;
    }

    /// Ends listening. A socket that accepted connections share is handed to the caller; the port
    /// of any other is free now.
    pub(crate) fn close(&self) -> Option<Shared> {
        let socket = std::mem::replace(&mut *self.lock(), Socket::Closed);
        self.stop.notify_one();
        match socket {
            Socket::Brtp(endpoint) => Some(Shared::Brtp(endpoint)),
            Socket::Udp(port) => Some(Shared::Udp(port)),
            _ => None,
        }
    }

    /// Drops the user's callback.
    pub(crate) fn forget(&self) {
        let old = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(old);
    }

    async fn bind(
        &self,
        carrier: Carrier,
        address: SocketAddr,
        config: &Config,
    ) -> Result<SocketAddr, Failure> {
        let failed = |text: String| Failure::new(Code::ListenFailed, text);
        let (socket, bound) = match carrier {
            Carrier::Bats(_) => {
                let endpoint = Endpoint::builder()
                    .bind(address)
                    .server(config.server_options()?)
                    .start()
                    .map_err(|error| failed(error.to_string()))?;
                let bound = endpoint.local_addr();
                (Socket::Brtp(endpoint), bound)
            }
            Carrier::Tcp => {
                let acceptor = Tcp::acceptor(config)?;
                let refused = |error| failed(format!("cannot use TCP address {address}: {error}"));
                let listener = TcpListener::bind(address).await.map_err(refused)?;
                let bound = listener.local_addr().map_err(refused)?;
                (Socket::Tcp(listener, acceptor), bound)
            }
            Carrier::Udp => {
                let (port, bound) = Port::bind(address).await.map_err(|error| {
                    failed(format!("cannot use UDP address {address}: {error}"))
                })?;
                (Socket::Udp(port), bound)
            }
        };
        let mut place = self.lock();
        match *place {
            Socket::Nothing => *place = socket,
            // Stopped before it began.
            _ => {
                drop(place);
                if let Socket::Brtp(endpoint) = socket {
                    protocol::give_up(&endpoint);
                }
                return Err(failed("stopped while the port was being bound".into()));
            }
        }
        Ok(bound)
    }

    /// Binds, tells of it, and accepts until it is stopped.
    pub(crate) async fn run(
        self: Arc<Self>,
        protocol: Arc<Protocol>,
        carrier: Carrier,
        address: SocketAddr,
        config: Arc<Config>,
    ) {
        let bound = match self.bind(carrier, address, &config).await {
            Ok(bound) => {
                tracing::info!(%bound, mode = config.mode, "listening");
                protocol.set_bound(Some(bound));
                self.tell(&protocol, 0, ListenEvent::Success).await;
                bound
            }
            Err(failure) => {
                tracing::warn!(error = failure.text, "cannot listen");
                protocol.listener_ended(&self);
                let (this, owner) = (self.clone(), protocol.clone());
                let tell = move || {
                    crate::last_error::set(&failure.text);
                    this.call_now(&owner, 0, ListenEvent::Failed);
                };
                protocol.context.dispatch(tell).await;
                self.forget();
                return;
            }
        };
        let shared = match &*self.lock() {
            Socket::Brtp(endpoint) => Some(Shared::Brtp(endpoint.clone())),
            Socket::Udp(port) => Some(Shared::Udp(port.clone())),
            _ => None,
        };
        match shared {
            Some(Shared::Brtp(endpoint)) => self.accept_brtp(&protocol, endpoint, &config).await,
            Some(Shared::Udp(port)) => self.accept_udp(&protocol, port, bound, &config).await,
            None => self.accept_tcp(&protocol, &config).await,
        }
        protocol.set_bound(None);
        protocol.listener_ended(&self);
        self.tell(&protocol, 0, ListenEvent::Stopped).await;
        self.forget();
    }

    async fn accept_brtp(
        self: &Arc<Self>,
        protocol: &Arc<Protocol>,
        endpoint: Endpoint,
        config: &Arc<Config>,
    ) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stop.notified() => return,
                accepted = endpoint.accept() => accepted,
            };
            let Ok(connection) = accepted else { return };
            let local = endpoint.local_addr();
            self.hand_over(protocol, Link::Bats(connection), local, config).await;
        }
    }

    async fn accept_udp(
        self: &Arc<Self>,
        protocol: &Arc<Protocol>,
        port: Arc<Port>,
        local: SocketAddr,
        config: &Arc<Config>,
    ) {
        let mut peers = Peers::new(port, local, config.timeout);
        let this = self.clone();
        let accepts = move || matches!(&*this.lock(), Socket::Udp(_));
        loop {
            let udp = tokio::select! {
                biased;
                () = self.stop.notified() => break,
                udp = peers.next(&accepts) => udp,
            };
            let Some(udp) = udp else { return };
            self.hand_over(protocol, Link::Udp(udp), local, config).await;
        }
        // The connections there are get their datagrams until the socket is given up.
        tokio::spawn(async move { while peers.next(|| false).await.is_some() {} });
    }

    async fn accept_tcp(self: &Arc<Self>, protocol: &Arc<Protocol>, config: &Arc<Config>) {
        let handshakes = Arc::new(tokio::sync::Semaphore::new(MOST_HANDSHAKES));
        loop {
            let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
            // The listener stays under the lock, so that whoever stops it closes it there and then.
            let accept = poll_fn(|context| match &*self.lock() {
                Socket::Tcp(listener, acceptor) => listener
                    .poll_accept(context)
                    .map(|accepted| Some((accepted.map(|(stream, _)| stream), acceptor.clone()))),
                _ => Poll::Ready(None),
            });
            let accepted = tokio::select! {
                biased;
                () = self.stop.notified() => return,
                accepted = accept => accepted,
            };
            let Some((stream, acceptor)) = accepted else { return };
            let stream = match stream {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    self.tell(protocol, 0, ListenEvent::AcceptedError).await;
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            if protocol.session_count() >= MOST_CONNECTIONS {
                tracing::debug!("not accepted: {MOST_CONNECTIONS} connections are open");
                continue;
            }
            let (this, protocol, config) = (self.clone(), protocol.clone(), config.clone());
            tokio::spawn(async move {
                let _permit = permit;
                let handshake = Tcp::accept(stream, acceptor, config.timeout);
                match tokio::time::timeout(HANDSHAKE, handshake).await {
                    Ok(Ok(tcp)) => {
                        let local = tcp.local;
                        this.hand_over(&protocol, Link::Tcp(tcp), local, &config).await;
                    }
                    Ok(Err(error)) => tracing::debug!(%error, "a TCP handshake failed"),
                    Err(_) => tracing::debug!("a TCP handshake took too long"),
                }
            });
        }
    }

    /// Makes a session of an accepted connection and tells of it.
    async fn hand_over(
        self: &Arc<Self>,
        protocol: &Arc<Protocol>,
        link: Link,
        local: SocketAddr,
        config: &Arc<Config>,
    ) {
        let session = Session::accepted(protocol, link.clone(), local, config);
        if !protocol.add_session(&session) {
            session.end();
            return;
        }
        self.tell(protocol, session.id, ListenEvent::NewConnection).await;
        protocol.context.spawn(session.run_accepted(link));
    }
}
