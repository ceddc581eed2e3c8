//! Protocol objects (`BatsProtocol`): they open, accept and own connections.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openbats::{Builder, Endpoint, Wait};

use crate::callback::{ConnectionCallback, ListenCallback};
use crate::config::{self, Config, DefaultTrust};
use crate::context::{Context, Member};
use crate::event::{Code, Event, Failure, ListenEvent};
use crate::gate::Gate;
use crate::handles::{Table, new_id};
use crate::listener::{Listener, ListenerOwner};
use crate::owner::Owner;
use crate::port_release::release_port;
use crate::session::Session;

pub(crate) static PROTOCOLS: Table<Protocol> = Table::new();

/// Time that the destruction of a protocol object gives data in flight to arrive.
const LINGER: Duration = Duration::from_millis(500);

/// The socket for client connections of a protocol object.
struct Client {
    local_addr: Option<SocketAddr>,
    endpoint: Endpoint,
}

#[derive(Default)]
struct State {
    config: Arc<Config>,
    sessions: BTreeMap<usize, Arc<Session>>,
    client: Option<Client>,
    listener: Option<Arc<Listener>>,
    /// Sockets of stopped listeners that still have open connections.
    retired: Vec<Endpoint>,
    bound: Option<SocketAddr>,
    /// The settings of `config` without effect are logged.
    has_logged_fallbacks: bool,
}

/// A protocol object: `BatsProtocol` of the original SDK.
pub(crate) struct Protocol {
    pub(crate) id: usize,
    pub(crate) context: Arc<Context>,
    pub(crate) gate: Gate,
    state: Mutex<State>,
}

impl Protocol {
    pub(crate) fn create(context: &Arc<Context>, config: Config) -> Arc<Self> {
        let protocol = Arc::new(Self {
            id: new_id(),
            context: context.clone(),
            gate: Gate::default(),
            state: Mutex::new(State { config: Arc::new(config), ..State::default() }),
        });
        PROTOCOLS.insert(protocol.id, protocol.clone());
        let member: Arc<dyn Member> = protocol.clone();
        context.add(protocol.id, Arc::downgrade(&member));
        protocol
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the configuration for later connections and listeners. Existing ones keep theirs.
    pub(crate) fn load_config(&self, config: Config) {
        let mut state = self.lock();
        state.config = Arc::new(config);
        state.has_logged_fallbacks = false;
    }

    pub(crate) fn bound(&self) -> Option<SocketAddr> {
        self.lock().bound
    }

    fn log_fallbacks_once(&self, config: &Config) {
        if !std::mem::replace(&mut self.lock().has_logged_fallbacks, true) {
            config.log_fallbacks();
        }
    }

    fn check_not_destroyed(&self) -> Result<(), Failure> {
        if self.context.is_destroyed() || self.gate.is_closed() {
            return Err(Failure::invalid("the context or the protocol object was destroyed"));
        }
        Ok(())
    }

    /// Starts a connection. A failure in this call is reported twice on the caller's thread: by the
    /// FAILED event and by the result.
    pub(crate) fn start_connect(
        self: &Arc<Self>,
        target: Option<(String, u16)>,
        default: DefaultTrust,
        callback: ConnectionCallback,
    ) -> Result<(), Failure> {
        let config = self.lock().config.clone();
        let trusting = config.with_default_trust(default);
        let config = trusting.as_ref().map_or(config, Arc::clone);
        let owner: Arc<dyn Owner> = self.clone();
        let session = Session::new(&owner, &config, callback);
        let prepared = self.check_not_destroyed().and_then(|()| {
            let mode = config.mode()?;
            trusting?;
            let (host, port) = match target {
                Some(target) => target,
                None => (config.remote_addr.clone(), config::port(config.remote_port)?),
            };
            if host.is_empty() || port == 0 {
                return Err(Failure::invalid(format!("no address to connect to: '{host}:{port}'")));
            }
            config.client_address()?;
            if !self.add_session(&session) {
                return Err(Failure::invalid("the protocol object was destroyed"));
            }
            Ok((mode, host, port))
        });
        match prepared {
            Ok((mode, host, port)) => {
                self.log_fallbacks_once(&config);
                self.context.spawn(session.run_connect(owner, mode, host, port));
                Ok(())
            }
            Err(failure) => {
                tracing::warn!(error = failure.text, "cannot connect");
                session.fail(&failure.text);
                session.call_now(Event::Failed, None, 0);
                session.end();
                Err(failure)
            }
        }
    }

    fn start_client(
        &self,
        builder: Builder,
        address: Option<SocketAddr>,
    ) -> Result<Endpoint, Failure> {
        let builder = match address {
            Some(address) => builder.bind(address),
            None => builder,
        };
        let started = builder.io_threads(&self.context.io_threads).start();
        started.map_err(|error| Failure::new(Code::ConnectFailed, error.to_string()))
    }

    pub(crate) fn start_listen(
        self: &Arc<Self>,
        address_override: Option<(String, u16)>,
        callback: ListenCallback,
    ) -> Result<(), Failure> {
        let config = self.lock().config.clone();
        let listener = Listener::new(callback);
        let failed = |event, failure: Failure| {
            tracing::warn!(error = failure.text, "cannot listen");
            crate::last_error::set(&failure.text);
            listener.call_now(&self.gate, 0, event);
            listener.drop_callback();
            Err(failure)
        };
        let prepared = self.check_not_destroyed().and_then(|()| {
            config.mode()?;
            let (host, port) = match address_override {
                Some(address_override) => address_override,
                None => (config.local_addr.clone(), config::port(config.local_port)?),
            };
            let ip = match host.as_str() {
                "" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
                host => config::local_ip(host)?,
            };
            Ok(SocketAddr::new(ip, port))
        });
        let address = match prepared {
            Ok(prepared) => prepared,
            Err(failure) => return failed(ListenEvent::Failed, failure),
        };
        {
            let mut state = self.lock();
            if state.listener.is_some() {
                drop(state);
                let failure = Failure::new(Code::ListenFailed, "already listening");
                return failed(ListenEvent::AlreadyInListen, failure);
            }
            state.listener = Some(listener.clone());
            if !state.sessions.values().any(|session| session.is_accepted) {
                let retired = std::mem::take(&mut state.retired);
                drop(state);
                retired.iter().for_each(release_port);
            }
        }
        self.log_fallbacks_once(&config);
        self.context.spawn(listener.clone().run(self.clone(), address, config));
        Ok(())
    }

    /// Stops accepting connections. Accepted connections continue. If there are none, the port is
    /// free when this returns.
    pub(crate) fn stop_listen(&self) -> Result<(), Failure> {
        let (listener, has_sessions) = {
            let mut state = self.lock();
            let Some(listener) = state.listener.take() else {
                return Err(Failure::invalid("not listening"));
            };
            let accepted = state.sessions.values().any(|session| session.is_accepted);
            (listener, accepted)
        };
        if let Some(endpoint) = listener.close() {
            if has_sessions {
                endpoint.stop_accepting();
                self.lock().retired.push(endpoint);
            } else {
                release_port(&endpoint);
            }
        }
        Ok(())
    }
}

impl Owner for Protocol {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn client_endpoint(&self, config: &Config, remote: SocketAddr) -> Result<Endpoint, Failure> {
        let local_addr = client_address(config, remote)?;
        let mut state = self.lock();
        // A socket created after the destruction of the object would never be closed.
        if self.gate.is_closed() {
            return Err(Failure::invalid("the protocol object was destroyed"));
        }
        if let Some(client) = &state.client
            && client.local_addr == local_addr
        {
            return Ok(client.endpoint.clone());
        }
        let endpoint = self.start_client(config.endpoint_builder(), local_addr)?;
        let old = state.client.replace(Client { local_addr, endpoint: endpoint.clone() });
        drop(state);
        drop(old);
        Ok(endpoint)
    }

    fn udp_endpoint(&self, config: &Config, remote: SocketAddr) -> Result<Endpoint, Failure> {
        let local_addr = client_address(config, remote)?;
        self.start_client(config.endpoint_builder().only_udp(), local_addr)
    }

    fn remove_session(&self, id: usize) {
        let old = self.lock().sessions.remove(&id);
        drop(old);
    }
}

impl ListenerOwner for Protocol {
    fn set_bound(&self, bound: Option<SocketAddr>) {
        self.lock().bound = bound;
    }

    fn listener_ended(&self, listener: &Arc<Listener>) {
        let mut state = self.lock();
        if state.listener.as_ref().is_some_and(|current| Arc::ptr_eq(current, listener)) {
            state.listener = None;
        }
    }

    fn add_session(&self, session: &Arc<Session>) -> bool {
        let mut state = self.lock();
        if self.gate.is_closed() {
            return false;
        }
        state.sessions.insert(session.id, session.clone());
        true
    }
}

impl Member for Protocol {
    /// Ends all connections and the listener of this object. When this returns, its ports are free.
    fn shut_down(&self) {
        self.gate.close();
        let (sessions, client, listener, retired) = {
            let mut state = self.lock();
            (
                std::mem::take(&mut state.sessions),
                state.client.take(),
                state.listener.take(),
                std::mem::take(&mut state.retired),
            )
        };
        if !self.context.is_on_thread() {
            linger(&sessions);
        }
        for session in sessions.values() {
            session.stop();
        }
        if let Some(listener) = listener {
            if let Some(endpoint) = listener.close() {
                release_port(&endpoint);
            }
            listener.drop_callback();
        }
        retired.iter().for_each(release_port);
        for session in sessions.into_values() {
            let endpoint = session.take_endpoint();
            session.end();
            endpoint.iter().for_each(release_port);
        }
        if let Some(client) = client {
            release_port(&client.endpoint);
        }
        self.context.remove(self.id);
    }
}

/// The local address for a client's socket; `None` for any.
fn client_address(config: &Config, remote: SocketAddr) -> Result<Option<SocketAddr>, Failure> {
    let mut local_addr = config.client_address()?;
    if let Some(address) = &mut local_addr
        && address.ip().is_unspecified()
        && remote.is_ipv4()
    {
        address.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    }
    Ok(local_addr)
}

/// Waits for the acknowledgement of sent data, at most [`LINGER`].
fn linger(sessions: &BTreeMap<usize, Arc<Session>>) {
    let connections: Vec<_> =
        sessions.values().filter_map(|session| session.connection()).collect();
    let all = async {
        for connection in connections {
            connection.flush().await;
        }
    };
    let _ = all.wait_for(LINGER);
}
