//! The endpoint: connects to servers and accepts connections.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Poll;

use bats_proto::{ConnectionHandle, EndpointStats, Mode, PresharedKey, Timestamp, TransportConfig};
use bytes::Bytes;

use crate::compress::CompressionOffer;
use crate::connection::Connection;
use crate::driver::canonical;
use crate::endpoint_state::Core;
use crate::error::{ConnectError, SendError, TrustError};
use crate::known_hosts::KnownHosts;
use crate::node::{NodeId, NodeState};
use crate::options::{ClientOptions, Extras};
use crate::shared::Shared;
use crate::siblings::Sibling;
use crate::slot::{RemoteNode, Slot};
use crate::transport::{DATAGRAMS_NEED_QUIC, Handle};

/// The error for a mode whose packets do not name a thread.
pub(crate) const ONE_THREAD: &str = "modes 11 (UDP) and 12 (QUIC) need an endpoint with one thread";
/// The error for early data with compression.
const EARLY_UNCOMPRESSED: &str =
    "early messages are sent before compression is negotiated: use one of the two only";
/// The error for mode UDP with compression.
pub(crate) const NO_HANDSHAKE_FOR_COMPRESSION: &str =
    "mode 11 (UDP) has no handshake to negotiate compression";

/// The address, or the one that stands for none in the API.
pub(crate) fn or_unspecified(address: Option<SocketAddr>) -> SocketAddr {
    address.unwrap_or_else(|| ([0, 0, 0, 0], 0).into())
}

/// One UDP socket with its I/O thread, or several of the same address
/// ([`Builder::threads`](crate::Builder::threads)); opens and accepts connections. Clones refer to the same endpoint. The
/// sockets stay open until the endpoint and all its connections are dropped.
#[derive(Debug)]
pub struct Endpoint {
    /// At least one; each has a socket, a thread and connections of its own.
    parts: Arc<[Arc<Shared>]>,
    turns: Arc<Turns>,
}

/// Which part comes next. An endpoint that opens and accepts connections alternately uses all parts for both.
#[derive(Debug, Default)]
struct Turns {
    connect: AtomicUsize,
    accept: AtomicUsize,
}

impl Endpoint {
    /// `parts` are not empty.
    pub(crate) fn new(parts: Vec<Arc<Shared>>) -> Self {
        if parts.len() > 1 {
            let weak = |part: &Arc<Shared>| -> Weak<dyn Sibling> { Arc::downgrade(part) as _ };
            for part in &parts {
                part.siblings.set(parts.iter().map(weak).collect());
            }
        }
        Self::hold(parts.into(), Arc::default())
    }

    fn hold(parts: Arc<[Arc<Shared>]>, turns: Arc<Turns>) -> Self {
        for part in &*parts {
            let mut core = part.lock();
            core.handles += 1;
            core.endpoints += 1;
        }
        Self { parts, turns }
    }

    /// All parts, beginning with another one each time, so that none waits for the others to accept.
    fn in_turn(&self) -> impl Iterator<Item = &Arc<Shared>> {
        let first = self.turns.accept.fetch_add(1, Ordering::Relaxed) % self.parts.len();
        self.parts[first..].iter().chain(&self.parts[..first])
    }

    /// Waits until `is_done` holds for all parts; it registers the task of a part for which it does not.
    async fn until_all(&self, mut is_done: impl FnMut(&Shared, &std::task::Waker) -> bool) {
        poll_fn(|context| {
            let mut all = true;
            for part in &*self.parts {
                all &= is_done(part, context.waker());
            }
            if all { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> &[Arc<Shared>] {
        &self.parts
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.shared().clock.now()
    }

    /// Returns the socket's address. An endpoint that is bound to all addresses reports `0.0.0.0`
    /// or `[::]`.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.shared().local_addr
    }

    /// Connects to a server. With [`Trust::authorities`](crate::Trust::authorities) the server's
    /// certificate must be valid for `server_name`.
    ///
    /// # Errors
    /// See [`ConnectError`]. Dropping the future before it completes closes the connection.
    pub async fn connect(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        Ok(self.establish(remote, server_name, options, VecDeque::new()).await?.0)
    }

    /// Connects like [`connect`](Self::connect) and sends `messages`, the first of them as early
    /// data. Up to 32 messages and 7 kB go with the first flight if [`ClientOptions::early_data`]
    /// is set and the server accepted early data in the resumed session. The others are sent in
    /// order once the connection is established.
    /// [`EarlyDataStats::messages_accepted`](crate::EarlyDataStats::messages_accepted)
    /// counts the early messages that the server accepted.
    ///
    /// # Errors
    /// See [`ConnectError`]. [`ConnectError::Configuration`] if a message is longer than the server
    /// accepts, or if compression is enabled. Dropping the future before it completes closes the
    /// connection, but early messages may have arrived.
    pub async fn connect_early<M: Into<Bytes>>(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Connection, ConnectError> {
        let messages = messages.into_iter().map(Into::into).collect();
        let (connection, others) = self.establish(remote, server_name, options, messages).await?;
        for message in others {
            connection.send(message).await.map_err(|error| match error {
                SendError::Closed(reason) => ConnectError::Closed(reason),
                other => ConnectError::Configuration(other.to_string()),
            })?;
        }
        Ok(connection)
    }

    /// Establishes a connection with a trusted server. Also returns the messages that did not fit
    /// the first flight.
    async fn establish(
        &self,
        remote: SocketAddr,
        server_name: &str,
        mut options: ClientOptions,
        messages: VecDeque<Bytes>,
    ) -> Result<(Connection, VecDeque<Bytes>), ConnectError> {
        let known_hosts = options.known_hosts(server_name, remote.port())?;
        let (connection, others) = self.begin(remote, server_name, options, messages)?;
        poll_fn(|context| connection.poll_established(context)).await?;
        check_known_host(&connection, known_hosts)?;
        Ok((connection, others))
    }

    /// The first part; the endpoint of a node has no other.
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.parts[0]
    }

    /// Establishes a session with a node over the routes.
    pub(crate) async fn establish_session(
        &self,
        node: NodeId,
        server_name: &str,
        mut options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let known_hosts = options.known_hosts(server_name, 0)?;
        let connection = self.begin_session(node, |state, packets, now| {
            if !state.routes.leads_to(node) {
                return Err(ConnectError::NoRoute { node });
            }
            let setup = &state.setup;
            let options = options.with_node_defaults(&setup.identity, setup.preshared_key.as_ref());
            let (config, Extras { compression_offer, has_datagrams }) = options.into_config();
            if has_datagrams {
                return Err(ConnectError::Configuration(DATAGRAMS_NEED_QUIC.to_owned()));
            }
            let begun = packets.connect_across(now, node, server_name, config);
            Ok((begun.map_err(cannot_connect)?, compression_offer))
        })?;
        poll_fn(|context| connection.poll_established(context)).await?;
        check_known_host(&connection, known_hosts)?;
        Ok(connection)
    }

    /// Establishes a direct session with a neighbour.
    pub(crate) async fn establish_direct_session(
        &self,
        node: NodeId,
        transport: TransportConfig,
    ) -> Result<Connection, ConnectError> {
        let connection = self.begin_session(node, |state, packets, now| {
            if !state.has_link_with(node) {
                return Err(ConnectError::NoLink { node });
            }
            let begun = packets.connect_neighbour(now, node, Arc::new(transport));
            Ok((begun.map_err(cannot_connect)?, None))
        })?;
        poll_fn(|context| connection.poll_established(context)).await?;
        Ok(connection)
    }

    fn begin_session(
        &self,
        node: NodeId,
        begin: impl FnOnce(
            &NodeState,
            &mut bats_proto::Endpoint,
            Timestamp,
        )
            -> Result<(ConnectionHandle, Option<CompressionOffer>), ConnectError>,
    ) -> Result<Connection, ConnectError> {
        self.shared().call(|core, clock| {
            let is_over = core.is_shut_down || core.ended.is_some();
            let Some(state) = core.node.as_ref().filter(|_| !is_over) else {
                return Err(ConnectError::EndpointClosed);
            };
            if node == state.id {
                let text = format!("{node} is this node itself");
                return Err(ConnectError::Configuration(text));
            }
            let (handle, compression_offer) = begin(state, core.endpoint.packets(), clock.now())?;
            let handle = Handle::Packets(handle);
            core.add_slot(handle, Slot { is_held: true, compression_offer, ..Slot::default() });
            // Links lead to the peer, and it has no address of its own.
            Ok(Connection::new(self.shared().clone(), core, handle, or_unspecified(None)))
        })
    }

    /// Starts a connection. Also returns the messages that did not fit the first flight.
    fn begin(
        &self,
        remote: SocketAddr,
        server_name: &str,
        options: ClientOptions,
        mut messages: VecDeque<Bytes>,
    ) -> Result<(Connection, VecDeque<Bytes>), ConnectError> {
        let remote = canonical(remote);
        let turn = self.turns.connect.fetch_add(1, Ordering::Relaxed);
        let in_turn = (0..self.parts.len()).map(|n| &self.parts[(turn + n) % self.parts.len()]);
        // One that has ended takes no more connections.
        let mut open = in_turn.filter(|part| self.parts.len() == 1 || part.lock().ended.is_none());
        let part = open.next().unwrap_or_else(|| self.shared());
        let local = part.local_addr;
        let bound_to_one = local.is_ipv4() || !local.ip().is_unspecified();
        if bound_to_one && local.is_ipv4() != remote.is_ipv4() {
            return Err(ConnectError::Family { local, remote });
        }
        part.call(|core, clock| {
            if core.is_shut_down || core.ended.is_some() {
                return Err(ConnectError::EndpointClosed);
            }
            let (config, Extras { compression_offer, has_datagrams }) = options.into_config();
            let mode = config.transport.mode;
            if self.parts.len() > 1 && matches!(mode, Mode::Udp | Mode::Quic) {
                return Err(ConnectError::Configuration(ONE_THREAD.to_owned()));
            }
            if compression_offer.is_some() && config.transport.mode == Mode::Udp {
                return Err(ConnectError::Configuration(NO_HANDSHAKE_FOR_COMPRESSION.to_owned()));
            }
            if compression_offer.is_some() && !messages.is_empty() {
                return Err(ConnectError::Configuration(EARLY_UNCOMPRESSED.to_owned()));
            }
            let handle = core
                .endpoint
                .connect(clock.now(), remote, server_name, config, has_datagrams)
                .map_err(cannot_connect)?;
            core.add_slot(handle, Slot { is_held: true, compression_offer, ..Slot::default() });
            // Queue the messages before the first flight is sent, so that it includes them.
            while let Some(message) = messages.pop_front() {
                match core.endpoint.send(clock.now(), handle, message, None) {
                    Ok(()) => {}
                    Err(bats_proto::SendError::Blocked(message)) => {
                        messages.push_front(message);
                        break;
                    }
                    Err(error) => return Err(ConnectError::Configuration(error.to_string())),
                }
            }
            Ok((Connection::new(part.clone(), core, handle, remote), messages))
        })
    }

    /// Returns the next connection that a peer has established.
    ///
    /// # Errors
    /// [`ConnectError::EndpointClosed`] after [`shut_down`](Self::shut_down).
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        Ok(self.accept_with(|_, _| ()).await?.0)
    }

    /// As [`accept`](Self::accept), at a node: also returns the node at the other end.
    pub(crate) async fn accept_session(&self) -> Result<(Connection, RemoteNode), ConnectError> {
        let node_of = |core: &Core, handle| core.slots.get(&handle)?.lock().remote_node;
        let (connection, node) = self.accept_with(node_of).await?;
        Ok((connection, node.unwrap_or(RemoteNode { id: NodeId(0), is_direct: false })))
    }

    async fn accept_with<T>(
        &self,
        describe: impl Fn(&Core, Handle) -> T,
    ) -> Result<(Connection, T), ConnectError> {
        poll_fn(|context| {
            let of_part = |part: &Arc<Shared>| {
                part.call(|core, _| {
                    // A connection that has ended may still hold received messages.
                    if let Some((handle, remote)) = core.accepted.pop_front() {
                        let about = describe(core, handle);
                        let remote = or_unspecified(remote);
                        let connection = Connection::new(part.clone(), core, handle, remote);
                        return Poll::Ready(Ok((connection, about)));
                    }
                    if core.is_shut_down || core.ended.is_some() {
                        return Poll::Ready(Err(ConnectError::EndpointClosed));
                    }
                    core.accepting.register(context.waker());
                    Poll::Pending
                })
            };
            let (mut ended, mut accepted) = (0, None);
            for part in self.in_turn() {
                match of_part(part) {
                    Poll::Ready(Ok(connection)) => {
                        accepted = Some(connection);
                        break;
                    }
                    Poll::Ready(Err(_)) => ended += 1,
                    Poll::Pending => {}
                }
            }
            if let Some(accepted) = accepted {
                // Otherwise the tasks that have accepted stay with the other threads.
                for part in self.parts.iter().filter(|_| self.parts.len() > 1) {
                    part.lock().accepting.remove(context.waker());
                }
                return Poll::Ready(Ok(accepted));
            }
            match ended == self.parts.len() {
                true => Poll::Ready(Err(ConnectError::EndpointClosed)),
                false => Poll::Pending,
            }
        })
        .await
    }

    /// Accepts no more connections; open connections stay open.
    pub fn stop_accepting(&self) {
        for part in &*self.parts {
            part.call(|core, _| {
                core.refuses_new = true;
                core.endpoint.stop_listening();
            });
        }
    }

    /// PSK mode: replaces the keys that the server accepts, one to four, for connections that clients
    /// open from now on. Open connections stay.
    ///
    /// # Errors
    /// [`ConnectError::Configuration`] if this endpoint is no server with a
    /// [`preshared_key`](crate::ServerOptions::preshared_key), or the number of keys is another one.
    pub fn set_preshared_keys(&self, keys: &[PresharedKey]) -> Result<(), ConnectError> {
        self.parts.iter().try_for_each(|part| {
            let set = part.call(|core, _| core.endpoint.packets().set_psks(keys));
            set.map_err(cannot_connect)
        })
    }

    /// Closes all connections with an application's code and text. The endpoint opens and accepts
    /// no more. Await [`idle`](Self::idle) to let the peers receive the close.
    pub fn shut_down(&self, code: u64, reason: &str) {
        self.parts.iter().for_each(|part| part.shut_down(code, reason));
    }

    /// Waits until there are no connections, closing and draining ones included. If a program exits
    /// earlier, its peers may have to wait for their idle timeout.
    pub async fn idle(&self) {
        self.until_all(|part, waker| {
            part.call(|core, _| {
                let is_done = core.is_idle() || core.ended.is_some();
                if !is_done {
                    core.idling.register(waker);
                }
                is_done
            })
        })
        .await;
    }

    /// Closes everything like [`shut_down`](Self::shut_down), sends each peer one CONNECTION_CLOSE
    /// and closes the socket. Unlike [`idle`](Self::idle) it does not wait for peers that missed
    /// it. Completes when the local address is free again.
    pub async fn terminate(&self, code: u64, reason: &str) {
        for part in &*self.parts {
            part.shut_down(code, reason);
            part.terminate();
        }
        self.until_all(|part, waker| {
            let mut core = part.lock();
            let is_done = core.ended.is_some();
            if !is_done {
                core.ending.register(waker);
            }
            is_done
        })
        .await;
    }

    /// Returns the counters that belong to no connection.
    #[must_use]
    pub fn stats(&self) -> EndpointStats {
        let stats = self.parts.iter().map(|part| part.lock().endpoint.endpoint_stats());
        stats.fold(EndpointStats::default(), |sum, part| sum.plus(&part))
    }
}

fn cannot_connect(error: bats_proto::ConnectError) -> ConnectError {
    match error {
        bats_proto::ConnectError::ServerName(name) => ConnectError::ServerName(name),
        bats_proto::ConnectError::Memory => ConnectError::Memory,
        other => ConnectError::Configuration(other.to_string()),
    }
}

/// Checks the certificate of a server against the file of known servers, if the trust is one.
fn check_known_host(
    connection: &Connection,
    known_hosts: Option<(KnownHosts, String)>,
) -> Result<(), ConnectError> {
    let Some((known_hosts, name)) = known_hosts else { return Ok(()) };
    let fingerprint = connection.peer_fingerprint().ok_or(TrustError::NoCertificate);
    match fingerprint.and_then(|print| Ok((known_hosts.check(&name, print)?, print))) {
        Ok((true, fingerprint)) => {
            let path = known_hosts.path().display();
            tracing::warn!(%name, %fingerprint, %path, "recorded a new server");
        }
        Ok((false, _)) => {}
        Err(error) => {
            connection.close(0, "the server is not trusted");
            return Err(error.into());
        }
    }
    Ok(())
}

impl Clone for Endpoint {
    fn clone(&self) -> Self {
        Self::hold(self.parts.clone(), self.turns.clone())
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.on_dropped(None));
    }
}
