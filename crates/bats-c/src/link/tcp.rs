//! Mode 10: messages over TLS 1.3 over TCP.
//!
//! A message goes as its length (32 bits, big endian) and its octets. The highest bit set marks
//! an acknowledgement instead: the other 31 bits count messages that the peer's program has taken.
//! A message of 2^31 octets cannot occur: the limit is 64 MiB.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use openbats::ConnectionStats;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::quiet::Quiet;
use super::{How, Incoming, Loss, Refusal, tls};
use crate::config::Config;
use crate::event::{Code, Failure};

/// Longest message, as in the coded modes.
const MOST_MESSAGE: usize = 64 << 20;
/// Octets that wait for the socket before a message is refused.
const SEND_BUDGET: usize = 8 << 20;
/// Octets that wait for the program before nothing more is read.
const RECEIVE_BUDGET: usize = 8 << 20;
/// What a message counts in these budgets besides its octets: empty ones need memory, too.
const MESSAGE_COST: usize = 64;
/// Small messages are written together up to this many octets.
const WRITE_AT_ONCE: usize = 64 << 10;
const ACKNOWLEDGEMENT: u32 = 1 << 31;
/// How long a goodbye may take to be written.
const FAREWELL: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    /// Messages sent that the peer's program has not taken.
    unacknowledged: u64,
    /// Messages that our program has taken and the peer was not told of.
    to_acknowledge: u32,
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    peer_finished: bool,
    is_finished: bool,
    loss: Option<Loss>,
}

#[derive(Default)]
struct Counters {
    messages_sent: AtomicU64,
    bytes_sent: AtomicU64,
    messages_received: AtomicU64,
    bytes_received: AtomicU64,
}

/// One connection. Its two tasks live until it is closed or broken.
pub(crate) struct Tcp {
    pub(crate) remote: SocketAddr,
    pub(crate) local: SocketAddr,
    state: Mutex<State>,
    /// Something to write.
    writing: Notify,
    /// Something was written.
    written: Notify,
    /// Something has come in, or the end.
    arrived: Notify,
    /// The program has taken something.
    taken: Notify,
    /// The peer's program has taken something, or the end.
    acknowledged: Notify,
    /// For the reader: the end.
    over: Notify,
    counters: Counters,
    last_heard: Mutex<Instant>,
}

impl Tcp {
    /// Connects and does the handshake; the caller sets the deadline.
    pub(crate) async fn connect(
        remote: SocketAddr,
        name: &str,
        config: &Config,
    ) -> Result<Arc<Self>, Loss> {
        let broken = |text: String| Loss { how: How::Broken, text };
        let tls = tls::client_config(&config.believed).map_err(|failure| broken(failure.text))?;
        let name = ServerName::try_from(name.to_owned())
            .map_err(|_| broken(format!("'{name}' is not a valid server name")))?;
        let local = config.client_address().map_err(|failure| broken(failure.text))?;
        let socket = match local {
            Some(local) if !local.ip().is_unspecified() => {
                let socket = Self::socket(&local).map_err(|error| broken(error.to_string()))?;
                socket
                    .bind(local)
                    .map_err(|error| broken(format!("cannot use {local}: {error}")))?;
                socket
            }
            Some(local) => {
                let any: SocketAddr =
                    if remote.is_ipv4() { ([0, 0, 0, 0], local.port()).into() } else { local };
                let socket = Self::socket(&any).map_err(|error| broken(error.to_string()))?;
                socket.bind(any).map_err(|error| broken(format!("cannot use {any}: {error}")))?;
                socket
            }
            None => Self::socket(&remote).map_err(|error| broken(error.to_string()))?,
        };
        let refused = |error: io::Error| Loss {
            how: if error.kind() == io::ErrorKind::TimedOut { How::TimedOut } else { How::Broken },
            text: format!("cannot reach {remote} over TCP: {error}"),
        };
        let stream = socket.connect(remote).await.map_err(refused)?;
        let addresses = Self::prepare(&stream).map_err(refused)?;
        let stream = TlsConnector::from(tls)
            .connect(name, Quiet(stream))
            .await
            .map_err(|error| broken(format!("TLS handshake with {remote} failed: {error}")))?;
        if stream.get_ref().1.alpn_protocol().is_none() {
            return Err(broken(format!("{remote} does not speak BATS over TCP")));
        }
        Ok(Self::start(stream, addresses, config.timeout))
    }

    /// Does the server's part of the handshake.
    pub(crate) async fn accept(
        stream: TcpStream,
        acceptor: TlsAcceptor,
        idle: Duration,
    ) -> io::Result<Arc<Self>> {
        let addresses = Self::prepare(&stream)?;
        let stream = acceptor.accept(Quiet(stream)).await?;
        if stream.get_ref().1.alpn_protocol().is_none() {
            return Err(io::Error::other("the peer does not speak BATS over TCP"));
        }
        Ok(Self::start(stream, addresses, idle))
    }

    pub(crate) fn acceptor(config: &Config) -> Result<TlsAcceptor, Failure> {
        let tls = tls::server_config(&config.identity()?)
            .map_err(|failure| Failure { code: Code::ListenFailed, ..failure })?;
        Ok(TlsAcceptor::from(tls))
    }

    fn socket(address: &SocketAddr) -> io::Result<tokio::net::TcpSocket> {
        if address.is_ipv4() {
            tokio::net::TcpSocket::new_v4()
        } else {
            tokio::net::TcpSocket::new_v6()
        }
    }

    fn prepare(stream: &TcpStream) -> io::Result<(SocketAddr, SocketAddr)> {
        stream.set_nodelay(true)?;
        Ok((stream.peer_addr()?, stream.local_addr()?))
    }

    fn start<S>(stream: S, addresses: (SocketAddr, SocketAddr), idle: Duration) -> Arc<Self>
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (reader, writer) = tokio::io::split(stream);
        let tcp = Arc::new(Self {
            remote: addresses.0,
            local: addresses.1,
            state: Mutex::default(),
            writing: Notify::new(),
            written: Notify::new(),
            arrived: Notify::new(),
            taken: Notify::new(),
            acknowledged: Notify::new(),
            over: Notify::new(),
            counters: Counters::default(),
            last_heard: Mutex::new(Instant::now()),
        });
        tokio::spawn(read(tcp.clone(), reader, idle));
        tokio::spawn(write(tcp.clone(), writer));
        tcp
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end, unless there was one before.
    fn lose(&self, how: How, text: String) {
        self.lock().loss.get_or_insert(Loss { how, text });
        let waiting = [
            &self.writing,
            &self.written,
            &self.arrived,
            &self.taken,
            &self.acknowledged,
            &self.over,
        ];
        waiting.iter().for_each(|waiting| waiting.notify_one());
    }

    pub(super) fn try_send(&self, message: &[u8]) -> Result<(), Refusal> {
        if message.len() > MOST_MESSAGE {
            return Err(Refusal::Failed(Failure::invalid(format!(
                "message of {} bytes is longer than {MOST_MESSAGE}",
                message.len()
            ))));
        }
        let mut state = self.lock();
        if let Some(loss) = &state.loss {
            return Err(Refusal::Failed(Failure::new(Code::ConnectionClosed, loss.text.clone())));
        }
        if state.is_finished {
            let text = "the connection is being closed";
            return Err(Refusal::Failed(Failure::new(Code::ConnectionClosed, text)));
        }
        let cost = message.len() + MESSAGE_COST;
        if state.outgoing_bytes > 0 && state.outgoing_bytes + cost > SEND_BUDGET {
            return Err(Refusal::Full);
        }
        state.outgoing_bytes += cost;
        state.unacknowledged += 1;
        state.outgoing.push_back(Bytes::copy_from_slice(message));
        drop(state);
        self.counters.messages_sent.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_sent.fetch_add(message.len() as u64, Ordering::Relaxed);
        self.writing.notify_one();
        Ok(())
    }

    pub(super) fn try_recv(&self) -> Option<Bytes> {
        let mut state = self.lock();
        let message = state.incoming.pop_front()?;
        state.incoming_bytes -= message.len() + MESSAGE_COST;
        state.to_acknowledge += 1;
        drop(state);
        self.taken.notify_one();
        self.writing.notify_one();
        Some(message)
    }

    pub(super) async fn recv(&self) -> Incoming {
        loop {
            if let Some(message) = self.try_recv() {
                return Incoming::Message(message);
            }
            {
                let state = self.lock();
                if state.peer_finished && state.incoming.is_empty() {
                    return Incoming::Finished;
                }
                if let Some(loss) = &state.loss
                    && state.incoming.is_empty()
                {
                    return Incoming::Lost(loss.clone());
                }
            }
            self.arrived.notified().await;
        }
    }

    pub(super) async fn writable(&self) {
        loop {
            {
                let state = self.lock();
                if state.loss.is_some() || state.outgoing_bytes <= SEND_BUDGET / 4 * 3 {
                    return;
                }
            }
            self.written.notified().await;
        }
    }

    pub(super) async fn flush(&self) -> bool {
        loop {
            {
                let state = self.lock();
                if state.unacknowledged == 0 {
                    return true;
                }
                if state.loss.is_some() {
                    return false;
                }
            }
            self.acknowledged.notified().await;
        }
    }

    pub(super) async fn finish(&self) {
        self.flush().await;
        self.lock().is_finished = true;
        self.writing.notify_one();
    }

    pub(super) fn close(&self) {
        self.lock().is_finished = true;
        self.lose(How::Here, "closed locally".into());
    }

    pub(super) fn has_ended(&self) -> bool {
        let state = self.lock();
        state.loss.is_some() || state.peer_finished
    }

    pub(super) fn stats(&self) -> ConnectionStats {
        let state = self.lock();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ConnectionStats {
            controller_state: "kernel",
            messages_sent: count(&self.counters.messages_sent),
            message_bytes_sent: count(&self.counters.bytes_sent),
            messages_received: count(&self.counters.messages_received),
            message_bytes_received: count(&self.counters.bytes_received),
            send_buffer_bytes: state.outgoing_bytes as u64,
            receive_buffer_bytes: state.incoming_bytes as u64,
            ..ConnectionStats::default()
        }
    }

    fn heard(&self) {
        *self.last_heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn silent_since(&self) -> Instant {
        *self.last_heard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(tcp: Arc<Tcp>, mut reader: impl AsyncRead + Unpin, idle: Duration) {
    loop {
        let frame = read_frame(&tcp, &mut reader);
        tokio::pin!(frame);
        let result = loop {
            let deadline = tcp.silent_since() + idle;
            let next = tokio::select! {
                next = timeout_at(deadline, &mut frame) => next,
                () = tcp.over.notified() => return,
            };
            match next {
                Ok(result) => break result,
                Err(_) if tcp.silent_since() + idle <= Instant::now() => {
                    tcp.lose(How::Idle, format!("nothing heard from the peer for {idle:?}"));
                    return;
                }
                Err(_) => {}
            }
        };
        match result {
            Ok(true) => {}
            Ok(false) => {
                tcp.lock().peer_finished = true;
                tcp.lose(How::Peer, "closed by the peer".into());
                return;
            }
            Err(error) => {
                let how = match error.kind() {
                    io::ErrorKind::InvalidData => How::Broken,
                    _ => How::Peer,
                };
                tcp.lose(how, format!("connection lost: {error}"));
                return;
            }
        }
        if tcp.lock().loss.is_some() {
            return;
        }
    }
}

/// Reads one frame; `false` at an orderly end.
async fn read_frame(tcp: &Tcp, reader: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
    let mut head = [0; 4];
    if reader.read(&mut head[..1]).await? == 0 {
        return Ok(false);
    }
    reader.read_exact(&mut head[1..]).await?;
    tcp.heard();
    let head = u32::from_be_bytes(head);
    if head & ACKNOWLEDGEMENT != 0 {
        let taken = u64::from(head & !ACKNOWLEDGEMENT);
        let mut state = tcp.lock();
        state.unacknowledged = state.unacknowledged.checked_sub(taken).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "more acknowledged than was sent")
        })?;
        let all = state.unacknowledged == 0;
        drop(state);
        if all {
            tcp.acknowledged.notify_one();
        }
        return Ok(true);
    }
    let length = head as usize;
    if length > MOST_MESSAGE {
        let text = format!("a message of {length} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // The buffer grows with what arrives, not with what the peer promises.
    let mut message = BytesMut::with_capacity(length.min(WRITE_AT_ONCE));
    while message.len() < length {
        let mut rest = (&mut *reader).take((length - message.len()) as u64);
        if rest.read_buf(&mut message).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        tcp.heard();
    }
    loop {
        {
            let mut state = tcp.lock();
            if state.loss.is_some() {
                return Ok(false);
            }
            let cost = length + MESSAGE_COST;
            if state.incoming_bytes == 0 || state.incoming_bytes + cost <= RECEIVE_BUDGET {
                state.incoming_bytes += cost;
                state.incoming.push_back(message.freeze());
                break;
            }
        }
        tcp.taken.notified().await;
        // A slow program is no silence of the peer's.
        tcp.heard();
    }
    tcp.counters.messages_received.fetch_add(1, Ordering::Relaxed);
    tcp.counters.bytes_received.fetch_add(length as u64, Ordering::Relaxed);
    tcp.arrived.notify_one();
    Ok(true)
}

async fn write(tcp: Arc<Tcp>, mut writer: impl AsyncWrite + Unpin) {
    let mut batch = BytesMut::new();
    loop {
        batch.clear();
        let mut large = None;
        let (ends, freed) = {
            let mut state = tcp.lock();
            let taken = std::mem::take(&mut state.to_acknowledge);
            if taken > 0 {
                batch.extend_from_slice(&(ACKNOWLEDGEMENT | taken).to_be_bytes());
            }
            let mut freed = 0;
            let closed = state.loss.as_ref().is_some_and(|loss| loss.how != How::Peer);
            while batch.len() < WRITE_AT_ONCE && !closed {
                let Some(message) = state.outgoing.pop_front() else { break };
                freed += message.len() + MESSAGE_COST;
                batch.extend_from_slice(&(message.len() as u32).to_be_bytes());
                if message.len() < WRITE_AT_ONCE {
                    batch.extend_from_slice(&message);
                } else {
                    large = Some(message);
                    break;
                }
            }
            let idle = batch.is_empty() && state.outgoing.is_empty();
            (state.loss.is_some() || (state.is_finished && idle), freed)
        };
        if ends {
            // A peer that does not read must not hold the socket for ever.
            tokio::select! {
                _ = put(&mut writer, &batch, large.as_ref()) => {}
                () = sleep(FAREWELL) => {}
            }
            let _ = timeout(FAREWELL, writer.shutdown()).await;
            tcp.lose(How::Here, "closed locally".into());
            return;
        }
        let result = tokio::select! {
            result = put(&mut writer, &batch, large.as_ref()) => Some(result),
            () = ended(&tcp) => None,
        };
        match result {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tcp.lose(How::Peer, format!("connection lost: {error}"));
                return;
            }
            None => continue,
        }
        let more = {
            let mut state = tcp.lock();
            state.outgoing_bytes -= freed;
            !state.outgoing.is_empty() || state.to_acknowledge > 0
        };
        tcp.written.notify_one();
        if !more {
            tcp.writing.notified().await;
        }
    }
}

/// Writes a batch of frames, and the octets of a message that is too large for one.
async fn put(
    writer: &mut (impl AsyncWrite + Unpin),
    batch: &[u8],
    large: Option<&Bytes>,
) -> io::Result<()> {
    if batch.is_empty() {
        return Ok(());
    }
    writer.write_all(batch).await?;
    if let Some(large) = large {
        writer.write_all(large).await?;
    }
    writer.flush().await
}

/// Done when the connection has ended while the socket takes nothing.
async fn ended(tcp: &Tcp) {
    loop {
        if tcp.lock().loss.is_some() {
            return;
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(future)
    }

    fn pair() -> (Arc<Tcp>, tokio::io::DuplexStream) {
        let (near, far) = tokio::io::duplex(1 << 20);
        let address = ([127, 0, 0, 1], 1).into();
        (Tcp::start(near, (address, address), Duration::from_secs(60)), far)
    }

    #[test]
    fn a_peer_that_promises_or_acknowledges_too_much_is_cut_off() {
        for head in [MOST_MESSAGE as u32 + 1, ACKNOWLEDGEMENT | 1, u32::MAX] {
            block_on(async {
                let (tcp, mut far) = pair();
                far.write_all(&head.to_be_bytes()).await.unwrap();
                let Incoming::Lost(loss) = tcp.recv().await else { panic!("{head}") };
                assert_eq!(loss.how, How::Broken, "{}", loss.text);
            });
        }
    }

    #[test]
    fn empty_messages_fill_the_budget_too() {
        block_on(async {
            let (tcp, mut far) = pair();
            let most = RECEIVE_BUDGET / MESSAGE_COST;
            let flood = vec![0; 4 * 2 * most];
            let writing = tokio::spawn(async move {
                let _ = far.write_all(&flood).await;
                far
            });
            for _ in 0..200 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(tcp.lock().incoming.len() <= most);
                assert!(tcp.lock().incoming_bytes <= RECEIVE_BUDGET);
            }
            for _ in 0..2 * most {
                assert!(
                    matches!(tcp.recv().await, Incoming::Message(message) if message.is_empty())
                );
            }
            drop(writing.await);
        });
    }

    #[test]
    fn half_a_message_and_then_the_end_is_a_loss() {
        block_on(async {
            let (tcp, mut far) = pair();
            far.write_all(&[0, 0, 0, 9, 1, 2, 3]).await.unwrap();
            drop(far);
            assert!(matches!(tcp.recv().await, Incoming::Lost(_)));
        });
    }
}
