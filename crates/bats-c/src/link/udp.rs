//! Mode 11: each message is one plain UDP datagram, neither encrypted nor repaired nor paced.
//!
//! There is no handshake. A client's connection stands at once; for a server a peer's first
//! datagram makes one. Only silence, or the news that nobody listens there, ends it.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use openbats::ConnectionStats;
use tokio::io::ReadBuf;
use tokio::net::UdpSocket;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{How, Incoming, Loss, Refusal};
use crate::event::{Code, Failure};

/// Octets that wait for the program; what comes beyond is lost, as the network may lose it.
const RECEIVE_BUDGET: usize = 8 << 20;
/// The same for all peers of a listener together: anyone can pretend to be many.
const PORT_BUDGET: usize = 64 << 20;
/// What a datagram counts in these budgets besides its octets.
const DATAGRAM_COST: usize = 64;
/// Peers of one listener: anyone can make one with a single datagram.
const MOST_PEERS: usize = 4_096;
/// How often a client's socket is asked for errors that came in.
const ERROR_INTERVAL: Duration = Duration::from_millis(200);
/// Largest payload of a datagram.
const MOST_OCTETS: usize = 65_535;

/// A socket that can be given up while others still hold it, so that its port is free at once.
pub(crate) struct Port {
    socket: RwLock<Option<UdpSocket>>,
    /// Told when the socket is given up; every task that waits for the socket waits for this.
    closed: Notify,
    /// Octets of all its peers that wait for the program.
    held: AtomicUsize,
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket is closed")
}

impl Port {
    fn new(socket: UdpSocket) -> Arc<Self> {
        Arc::new(Self {
            socket: RwLock::new(Some(socket)),
            closed: Notify::new(),
            held: AtomicUsize::new(0),
        })
    }

    pub(crate) async fn bind(address: SocketAddr) -> io::Result<(Arc<Self>, SocketAddr)> {
        let socket = UdpSocket::bind(address).await?;
        let bound = socket.local_addr()?;
        socket.writable().await?;
        Ok((Self::new(socket), bound))
    }

    fn with<T>(&self, call: impl FnOnce(&UdpSocket) -> T) -> Option<T> {
        self.socket.read().unwrap_or_else(PoisonError::into_inner).as_ref().map(call)
    }

    fn poll<T>(&self, call: impl FnOnce(&UdpSocket) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        self.with(call).unwrap_or_else(|| Poll::Ready(Err(gone())))
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut room = ReadBuf::new(buffer);
        let receive = poll_fn(|context: &mut Context<'_>| {
            self.poll(|socket| socket.poll_recv_from(context, &mut room))
        });
        let from = tokio::select! {
            from = receive => from?,
            () = self.closed.notified() => return Err(gone()),
        };
        Ok((room.filled().len(), from))
    }

    /// Gives the socket up.
    pub(crate) fn close(&self) {
        let socket = self.socket.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(socket);
        self.closed.notify_waiters();
        self.closed.notify_one();
    }
}

struct State {
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    loss: Option<Loss>,
    /// When something was last sent or heard.
    active: Instant,
}

#[derive(Default)]
struct Counters {
    messages_sent: AtomicU64,
    bytes_sent: AtomicU64,
    messages_received: AtomicU64,
    bytes_received: AtomicU64,
    lost_here: AtomicU64,
}

/// One peer.
pub(crate) struct Udp {
    port: Arc<Port>,
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
    /// The socket is this connection's alone.
    is_client: bool,
    state: Mutex<State>,
    arrived: Notify,
    over: Notify,
    counters: Counters,
}

impl Udp {
    fn new(
        port: Arc<Port>,
        remote: SocketAddr,
        local: SocketAddr,
        is_client: bool,
        idle: Duration,
    ) -> Arc<Self> {
        let state = State {
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            loss: None,
            active: Instant::now(),
        };
        let udp = Arc::new(Self {
            port,
            remote,
            local,
            is_client,
            state: Mutex::new(state),
            arrived: Notify::new(),
            over: Notify::new(),
            counters: Counters::default(),
        });
        tokio::spawn(watch(udp.clone(), idle));
        udp
    }

    /// A client's side; there is nothing to wait for.
    pub(crate) async fn connect(
        remote: SocketAddr,
        local: Option<SocketAddr>,
        idle: Duration,
    ) -> io::Result<Arc<Self>> {
        let any: SocketAddr = match remote {
            SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
            SocketAddr::V6(_) => ([0u16; 8], 0).into(),
        };
        let mut wanted = local.unwrap_or(any);
        if wanted.ip().is_unspecified() {
            wanted.set_ip(any.ip());
        }
        let socket = UdpSocket::bind(wanted).await?;
        socket.connect(remote).await?;
        socket.writable().await?;
        let local = socket.local_addr()?;
        let udp = Self::new(Port::new(socket), remote, local, true, idle);
        tokio::spawn(read(udp.clone()));
        Ok(udp)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, how: How, text: String) {
        self.lock().loss.get_or_insert(Loss { how, text });
        self.arrived.notify_one();
        self.over.notify_one();
        if self.is_client {
            self.port.close();
        }
    }

    fn take_in(&self, message: &[u8]) {
        let cost = message.len() + DATAGRAM_COST;
        let mut state = self.lock();
        state.active = Instant::now();
        let held = self.port.held.load(Ordering::Relaxed);
        if state.incoming_bytes + cost > RECEIVE_BUDGET || held + cost > PORT_BUDGET {
            drop(state);
            self.counters.lost_here.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.incoming_bytes += cost;
        self.port.held.fetch_add(cost, Ordering::Relaxed);
        state.incoming.push_back(Bytes::copy_from_slice(message));
        drop(state);
        self.counters.messages_received.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_received.fetch_add(message.len() as u64, Ordering::Relaxed);
        self.arrived.notify_one();
    }

    pub(super) fn try_send(&self, message: &[u8]) -> Result<(), Refusal> {
        if let Some(loss) = &self.lock().loss {
            return Err(Refusal::Failed(Failure::new(Code::ConnectionClosed, loss.text.clone())));
        }
        let sent = self.port.with(|socket| match self.is_client {
            true => socket.try_send(message),
            false => socket.try_send_to(message, self.remote),
        });
        match sent.unwrap_or_else(|| Err(gone())) {
            Ok(_) => {
                self.lock().active = Instant::now();
                self.counters.messages_sent.fetch_add(1, Ordering::Relaxed);
                self.counters.bytes_sent.fetch_add(message.len() as u64, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(Refusal::Full),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused && self.is_client => {
                let text = format!("nobody listens at {}", self.remote);
                self.lose(How::Peer, text.clone());
                Err(Refusal::Failed(Failure::new(Code::ConnectionClosed, text)))
            }
            Err(error) => {
                let text = format!("a datagram of {} bytes was not sent: {error}", message.len());
                Err(Refusal::Failed(Failure::new(Code::SendFailed, text)))
            }
        }
    }

    pub(super) fn try_recv(&self) -> Option<Bytes> {
        let mut state = self.lock();
        let message = state.incoming.pop_front()?;
        let cost = message.len() + DATAGRAM_COST;
        state.incoming_bytes -= cost;
        self.port.held.fetch_sub(cost, Ordering::Relaxed);
        Some(message)
    }

    pub(super) async fn recv(&self) -> Incoming {
        loop {
            if let Some(message) = self.try_recv() {
                return Incoming::Message(message);
            }
            if let Some(loss) = &self.lock().loss {
                return Incoming::Lost(loss.clone());
            }
            self.arrived.notified().await;
        }
    }

    pub(super) async fn writable(&self) {
        // A socket that is gone is found out by the next message.
        let _ = poll_fn(|context| self.port.poll(|socket| socket.poll_send_ready(context))).await;
    }

    pub(super) fn close(&self) {
        self.lose(How::Here, "closed locally".into());
    }

    pub(super) fn has_ended(&self) -> bool {
        self.lock().loss.is_some()
    }

    pub(super) fn stats(&self) -> ConnectionStats {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (sent, received) =
            (count(&self.counters.messages_sent), count(&self.counters.messages_received));
        ConnectionStats {
            controller_state: "none",
            packets_sent: sent,
            messages_sent: sent,
            bytes_sent: count(&self.counters.bytes_sent),
            message_bytes_sent: count(&self.counters.bytes_sent),
            packets_received: received + count(&self.counters.lost_here),
            messages_received: received,
            bytes_received: count(&self.counters.bytes_received),
            message_bytes_received: count(&self.counters.bytes_received),
            receive_buffer_bytes: self.lock().incoming_bytes as u64,
            ..ConnectionStats::default()
        }
    }

    /// What passes an Ethernet without being cut.
    pub(super) fn ideal_length(&self) -> u32 {
        if self.remote.is_ipv4() { 1_472 } else { 1_452 }
    }
}

impl Drop for Udp {
    fn drop(&mut self) {
        let left = self.lock().incoming_bytes;
        self.port.held.fetch_sub(left, Ordering::Relaxed);
    }
}

/// Ends a connection after silence in both directions, and a client's when its socket has heard
/// that nobody listens: only the next message would tell otherwise.
async fn watch(udp: Arc<Udp>, idle: Duration) {
    loop {
        let mut until = udp.lock().active + idle;
        if udp.is_client {
            until = until.min(Instant::now() + ERROR_INTERVAL);
        }
        tokio::select! {
            () = udp.over.notified() => return,
            () = sleep_until(until) => {}
        }
        if udp.is_client
            && let Some(Ok(Some(error))) = udp.port.with(UdpSocket::take_error)
            && error.kind() == io::ErrorKind::ConnectionRefused
        {
            udp.lose(How::Peer, format!("nobody listens at {}", udp.remote));
            return;
        }
        if udp.lock().active + idle <= Instant::now() {
            udp.lose(How::Idle, format!("silence for {idle:?}"));
            return;
        }
    }
}

/// Reads a client's socket.
async fn read(udp: Arc<Udp>) {
    let mut buffer = vec![0; MOST_OCTETS];
    loop {
        match udp.port.recv_from(&mut buffer).await {
            Ok((length, _)) => udp.take_in(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                udp.lose(How::Peer, format!("nobody listens at {}", udp.remote));
                return;
            }
            Err(error) => {
                udp.lose(How::Broken, format!("the socket broke: {error}"));
                return;
            }
        }
        if udp.has_ended() {
            return;
        }
    }
}

/// The peers of a listening socket.
pub(crate) struct Peers {
    port: Arc<Port>,
    local: SocketAddr,
    idle: Duration,
    known: HashMap<SocketAddr, Weak<Udp>>,
    buffer: Vec<u8>,
}

impl Peers {
    pub(crate) fn new(port: Arc<Port>, local: SocketAddr, idle: Duration) -> Self {
        Self { port, local, idle, known: HashMap::new(), buffer: vec![0; MOST_OCTETS] }
    }

    /// Hands datagrams to their connections until one comes from a stranger, who is made known
    /// if `accepts` allows it. `None` when the socket is gone.
    pub(crate) async fn next(&mut self, accepts: impl Fn() -> bool) -> Option<Arc<Udp>> {
        loop {
            let (length, remote) = match self.port.recv_from(&mut self.buffer).await {
                Ok(received) => received,
                // News of some peer's closed port; whose, it does not say.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return None,
            };
            let message = &self.buffer[..length];
            let known = self.known.get(&remote).and_then(Weak::upgrade);
            if let Some(udp) = known.filter(|udp| !udp.has_ended()) {
                udp.take_in(message);
                continue;
            }
            if !accepts() {
                continue;
            }
            if self.known.len() >= MOST_PEERS {
                self.known.retain(|_, udp| udp.upgrade().is_some_and(|udp| !udp.has_ended()));
                if self.known.len() >= MOST_PEERS {
                    tracing::debug!(%remote, "not accepted: {MOST_PEERS} peers are there");
                    continue;
                }
            }
            let udp = Udp::new(self.port.clone(), remote, self.local, false, self.idle);
            udp.take_in(message);
            self.known.insert(remote, Arc::downgrade(&udp));
            return Some(udp);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_program_is_bounded_for_a_peer_and_for_all() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (port, local) = Port::bind(([127, 0, 0, 1], 0).into()).await.unwrap();
            let peer = |number| {
                let remote = ([127, 0, 0, 1], number).into();
                Udp::new(port.clone(), remote, local, false, Duration::from_secs(60))
            };
            let message = vec![1; 60_000];
            let peers: Vec<_> = (1..=12).map(peer).collect();
            for udp in &peers {
                for _ in 0..200 {
                    udp.take_in(&message);
                }
                assert!(udp.lock().incoming_bytes <= RECEIVE_BUDGET);
            }
            let held = || port.held.load(Ordering::Relaxed);
            assert!(held() <= PORT_BUDGET && held() > PORT_BUDGET - (1 << 20), "{}", held());
            // Empty ones count, too.
            let last = peer(100);
            (0..10_000_000).for_each(|_| last.take_in(&[]));
            assert!(held() <= PORT_BUDGET);
            while peers[0].try_recv().is_some() {}
            assert!(peers[0].lock().incoming_bytes == 0 && held() < PORT_BUDGET - (7 << 20));
            for udp in peers.iter().chain([&last]) {
                udp.close();
            }
            drop((peers, last));
            // The watchers hold the last references.
            while held() > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
