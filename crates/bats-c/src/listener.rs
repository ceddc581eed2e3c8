//! Listening: from a bound port to accepted connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openbats::Endpoint;
use tokio::sync::Notify;

use crate::callback::ListenCallback;
use crate::config::Config;
use crate::event::{Code, Failure, ListenEvent};
use crate::link::Link;
use crate::protocol::{self, Protocol};
use crate::session::Session;

enum Socket {
    /// Not bound yet.
    Nothing,
    Bound(Endpoint),
    /// Given up.
    Closed,
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

    /// Ends listening. The socket, which accepted connections share, is handed to the caller.
    pub(crate) fn close(&self) -> Option<Endpoint> {
        let socket = std::mem::replace(&mut *self.lock(), Socket::Closed);
        self.stop.notify_one();
        match socket {
            Socket::Bound(endpoint) => Some(endpoint),
            Socket::Nothing | Socket::Closed => None,
        }
    }

    /// Drops the user's callback.
    pub(crate) fn forget(&self) {
        let old = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(old);
    }

    fn bind(&self, address: SocketAddr, config: &Config) -> Result<Endpoint, Failure> {
        let failed = |text: String| Failure::new(Code::ListenFailed, text);
        let endpoint = Endpoint::builder()
            .bind(address)
            .server(config.server_options()?)
            .start()
            .map_err(|error| failed(error.to_string()))?;
        let mut place = self.lock();
        if !matches!(*place, Socket::Nothing) {
            // Stopped before it began.
            drop(place);
            protocol::give_up(&endpoint);
            return Err(failed("stopped while the port was being bound".into()));
        }
        *place = Socket::Bound(endpoint.clone());
        Ok(endpoint)
    }

    /// Binds, tells of it, and accepts until it is stopped.
    pub(crate) async fn run(
        self: Arc<Self>,
        protocol: Arc<Protocol>,
        address: SocketAddr,
        config: Arc<Config>,
    ) {
        let endpoint = match self.bind(address, &config) {
            Ok(endpoint) => {
                let bound = endpoint.local_addr();
                tracing::info!(%bound, mode = config.mode, "listening");
                protocol.set_bound(Some(bound));
                self.tell(&protocol, 0, ListenEvent::Success).await;
                endpoint
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
        self.accept(&protocol, endpoint, &config).await;
        protocol.set_bound(None);
        protocol.listener_ended(&self);
        self.tell(&protocol, 0, ListenEvent::Stopped).await;
        self.forget();
    }

    async fn accept(
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
                if matches!(&*self.lock(), Socket::Bound(_)) {
                    self.tell(protocol, 0, ListenEvent::AcceptedError).await;
                }
                return;
            };
            let local = connection.local_addr();
            self.hand_over(protocol, Link::new(connection), local, config).await;
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
