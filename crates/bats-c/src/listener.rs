//! Listening: from a bound port to accepted connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openbats::Endpoint;
use tokio::sync::Notify;

use crate::callback::ListenCallback;
use crate::config::{Carrier, Config};
use crate::event::{Code, Failure, ListenEvent};
use crate::link::Link;
use crate::link::udp::{Peers, Port};
use crate::protocol::{self, Protocol};
use crate::session::Session;

enum Socket {
    /// Not bound yet.
    Nothing,
    Brtp(Endpoint),
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
            // Stopped meanwhile.
            None => {}
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
            let Ok(connection) = accepted else {
                // Nobody has stopped it: its I/O thread has ended, and says why in the log.
                if matches!(&*self.lock(), Socket::Brtp(_)) {
                    self.tell(protocol, 0, ListenEvent::AcceptedError).await;
                }
                return;
            };
            let local = connection.local_addr();
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
