//! Listeners: bind a port and accept connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openbats::Endpoint;
use tokio::sync::Notify;

use crate::callback::ListenCallback;
use crate::config::Config;
use crate::connection::Connection;
use crate::event::{Code, Failure, ListenEvent};
use crate::gate::Gate;
use crate::owner::Owner;
use crate::port_release::release_port;
use crate::session::Session;

enum Socket {
    /// Not bound yet.
    Unbound,
    Bound(Endpoint),
    /// Closed; cannot be bound any more.
    Closed,
}

/// What a listener needs of its protocol object, which itself knows the listener.
pub(crate) trait ListenerOwner: Owner {
    fn set_bound(&self, bound: Option<SocketAddr>);

    /// Removes a listener that could not be bound or was stopped.
    fn listener_ended(&self, listener: &Arc<Listener>);

    /// Adds a session; `false` if the object is destroyed.
    fn add_session(&self, session: &Arc<Session>) -> bool;
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
            socket: Mutex::new(Socket::Unbound),
            stop: Notify::new(),
            callback: Mutex::new(Some(Arc::new(callback))),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the callback for an event on the current thread.
    pub(crate) fn call_now(&self, gate: &Gate, id: usize, event: ListenEvent) {
        let Some(_running) = gate.enter() else { return };
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(callback) = callback {
            callback.call(id, event);
        }
    }

    async fn notify(
        self: &Arc<Self>,
        owner: &Arc<dyn ListenerOwner>,
        id: usize,
        event: ListenEvent,
    ) {
        let (this, protocol) = (self.clone(), owner.clone());
        owner.context().dispatch(move || this.call_now(protocol.gate(), id, event)).await;
    }

    /// Stops listening. Returns the socket, which accepted connections share, to the caller.
    pub(crate) fn close(&self) -> Option<Endpoint> {
        let socket = std::mem::replace(&mut *self.lock(), Socket::Closed);
        self.stop.notify_one();
        match socket {
            Socket::Bound(endpoint) => Some(endpoint),
            Socket::Unbound | Socket::Closed => None,
        }
    }

    /// Drops the user's callback.
    pub(crate) fn drop_callback(&self) {
        let old = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(old);
    }

    fn bind(
        &self,
        owner: &dyn ListenerOwner,
        address: SocketAddr,
        config: &Config,
    ) -> Result<Endpoint, Failure> {
        let failed = |text: String| Failure::new(Code::ListenFailed, text);
        let endpoint = config
            .endpoint_builder()
            .bind(address)
            .server(config.server_options()?)
            .io_threads(&owner.context().io_threads)
            .start()
            .map_err(|error| failed(error.to_string()))?;
        let mut place = self.lock();
        if !matches!(*place, Socket::Unbound) {
            // The program stopped the listener before it was bound.
            drop(place);
            release_port(&endpoint);
            return Err(failed("stopped while the port was being bound".into()));
        }
        *place = Socket::Bound(endpoint.clone());
        Ok(endpoint)
    }

    /// Binds the port, reports the result, and accepts connections until the listener is stopped.
    pub(crate) async fn run(
        self: Arc<Self>,
        owner: Arc<dyn ListenerOwner>,
        address: SocketAddr,
        config: Arc<Config>,
    ) {
        let endpoint = match self.bind(&*owner, address, &config) {
            Ok(endpoint) => {
                let bound = endpoint.local_addr();
                tracing::info!(%bound, mode = config.mode, "listening");
                owner.set_bound(Some(bound));
                self.notify(&owner, 0, ListenEvent::Success).await;
                endpoint
            }
            Err(failure) => {
                tracing::warn!(error = failure.text, "cannot listen");
                owner.listener_ended(&self);
                let (this, protocol) = (self.clone(), owner.clone());
                let notify = move || {
                    crate::last_error::set(&failure.text);
                    this.call_now(protocol.gate(), 0, ListenEvent::Failed);
                };
                owner.context().dispatch(notify).await;
                self.drop_callback();
                return;
            }
        };
        self.accept(&owner, endpoint, &config).await;
        owner.set_bound(None);
        owner.listener_ended(&self);
        self.notify(&owner, 0, ListenEvent::Stopped).await;
        self.drop_callback();
    }

    async fn accept(
        self: &Arc<Self>,
        owner: &Arc<dyn ListenerOwner>,
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
                // If the program did not stop the listener, its I/O thread has failed and logged
                // why.
                if matches!(&*self.lock(), Socket::Bound(_)) {
                    self.notify(owner, 0, ListenEvent::AcceptedError).await;
                }
                return;
            };
            let local = connection.local_addr();
            self.add_session_of(owner, Connection::new(connection), local, config).await;
        }
    }

    /// Creates a session for an accepted connection and reports it.
    async fn add_session_of(
        self: &Arc<Self>,
        owner: &Arc<dyn ListenerOwner>,
        connection: Connection,
        local: SocketAddr,
        config: &Arc<Config>,
    ) {
        let of_session: Arc<dyn Owner> = owner.clone();
        let session = Session::accepted(&of_session, connection.clone(), local, config);
        if !owner.add_session(&session) {
            session.end();
            return;
        }
        self.notify(owner, session.id, ListenEvent::NewConnection).await;
        owner.context().spawn(session.run_accepted(connection));
    }
}
