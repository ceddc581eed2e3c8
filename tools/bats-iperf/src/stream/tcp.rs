//! Messages over the kernel's TCP: four bytes of length, then the message.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Socket, Type};

use super::{Local, POLL_INTERVAL, Received, is_retryable, wait_after};
use crate::clock::Clock;
use crate::control::{ConnectTimeout, HELLO_LENGTH, Hello, REPLY_TIMEOUT};
use crate::interrupt;
use crate::message::MAX_LENGTH;

/// Bytes of one read.
const READ: usize = 256 << 10;
const LENGTH: usize = 4;
/// How long a new connection may take to send its hello message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections without a hello message: as many as a test has streams. The oldest one makes room, because others may
/// have opened it.
const MAX_GREETINGS: usize = 256;

#[derive(Debug)]
pub(crate) struct DataStream {
    stream: TcpStream,
    addresses: (SocketAddr, SocketAddr),
    incoming: Mutex<Incoming>,
    /// Whether this side has aborted the stream: then EOF is not the peer's end.
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Incoming {
    bytes: BytesMut,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl DataStream {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        stream.set_write_timeout(Some(POLL_INTERVAL))?;
        let addresses = (stream.local_addr()?, stream.peer_addr()?);
        let incoming = Incoming { bytes: BytesMut::new(), buffer: vec![0; READ], has_ended: false };
        Ok(Self {
            stream,
            addresses,
            incoming: Mutex::new(incoming),
            is_closed: AtomicBool::new(false),
        })
    }

    pub(super) fn send(&self, message: &Bytes, limit: Duration) -> Result<bool> {
        let clock = Clock::start();
        let length = u32::try_from(message.len()).context("the message is too long")?;
        let length = length.to_be_bytes();
        let total = message.len().saturating_add(LENGTH);
        let mut written = 0;
        let mut last_progress = Duration::ZERO;
        while written < total {
            let head = length.get(written..).unwrap_or_default();
            let body = message.get(written.saturating_sub(LENGTH)..).unwrap_or_default();
            let slices = [IoSlice::new(head), IoSlice::new(body)];
            match (&self.stream).write_vectored(&slices) {
                Ok(0) => bail!("the TCP connection accepts no more data"),
                Ok(bytes) => {
                    (written, last_progress) = (written.saturating_add(bytes), clock.elapsed());
                }
                Err(error) => {
                    wait_after(error).context("cannot send over TCP")?;
                    if interrupt::requested() {
                        bail!("interrupted");
                    }
                    if written == 0 && clock.elapsed() >= limit {
                        return Ok(false);
                    }
                    if clock.elapsed().saturating_sub(last_progress) > REPLY_TIMEOUT {
                        bail!("the TCP connection was blocked for {} s", REPLY_TIMEOUT.as_secs());
                    }
                }
            }
        }
        Ok(true)
    }

    pub(super) fn recv(&self, limit: Duration) -> Result<Received> {
        let clock = Clock::start();
        let Ok(mut incoming) = self.incoming.lock() else { bail!("the reader has panicked") };
        loop {
            if let Some(message) = incoming.next()? {
                return Ok(Received::Message(message));
            }
            if incoming.has_ended {
                return match incoming.bytes.is_empty() {
                    true => Ok(Received::End),
                    false => bail!("the TCP connection ended within a message"),
                };
            }
            let Incoming { bytes, buffer, has_ended } = &mut *incoming;
            match (&self.stream).read(buffer) {
                Ok(0) if self.is_closed.load(Ordering::Acquire) => {
                    bail!("the stream was aborted")
                }
                Ok(0) => *has_ended = true,
                Ok(count) => bytes.extend_from_slice(buffer.get(..count).unwrap_or_default()),
                Err(error) => {
                    wait_after(error).context("cannot receive over TCP")?;
                    if interrupt::requested() {
                        bail!("interrupted");
                    }
                    if clock.elapsed() >= limit {
                        return Ok(Received::Nothing);
                    }
                }
            }
        }
    }

    /// Ends the sending direction. The peer closes its direction when it has read everything.
    pub(super) fn finish(&self, limit: Duration) -> Result<()> {
        let clock = Clock::start();
        self.stream.shutdown(Shutdown::Write).context("cannot end the TCP connection")?;
        loop {
            match self.recv(POLL_INTERVAL)? {
                Received::End => return Ok(()),
                _ if clock.elapsed() > limit => {
                    bail!("not all data had arrived over TCP after {} s", limit.as_secs())
                }
                _ => {}
            }
        }
    }

    /// Why the connection has ended, if it has. A receiver closes after the sender.
    pub(super) fn end_reason(&self) -> Option<String> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut [0_u8; 1], flags) {
            Ok((_, 0)) => Some("the TCP connection has ended".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::NOBUFS) => None,
            Err(error) => Some(format!("the TCP connection has ended: {error}")),
        }
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }
}

/// Whether a listener stays usable after the error: there is no connection, memory or file descriptor now.
fn may_accept_later(error: &std::io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    is_retryable(error)
        || openbats::is_lack_of_memory(error)
        || matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::CONNABORTED))
}

/// A connection whose peer is not identified: only its hello message is read.
#[derive(Debug)]
struct Greeting {
    stream: TcpStream,
    bytes: [u8; LENGTH + HELLO_LENGTH],
    count: usize,
    since: Clock,
}

impl Greeting {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, bytes: [0; LENGTH + HELLO_LENGTH], count: 0, since: Clock::start() })
    }

    /// The hello message, if all of it is there.
    fn poll(&mut self) -> Result<Option<Hello>> {
        let length = u32::try_from(HELLO_LENGTH).context("a hello message is short")?.to_be_bytes();
        while let Some(room) = self.bytes.get_mut(self.count..).filter(|room| !room.is_empty()) {
            match self.stream.read(room) {
                Ok(0) => bail!("the TCP connection ended before its hello message"),
                Ok(more) => self.count = self.count.saturating_add(more),
                Err(error) => {
                    wait_after(error).context("cannot receive over TCP")?;
                    if self.since.elapsed() >= HELLO_TIMEOUT {
                        bail!("no hello message arrived")
                    }
                    return Ok(None);
                }
            }
            if self.count >= LENGTH && !self.bytes.starts_with(&length) {
                bail!("not a hello message");
            }
        }
        let hello = self.bytes.get(LENGTH..).unwrap_or_default();
        Hello::decode(hello).map(Some).context("not a hello message")
    }
}

impl Incoming {
    fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(head) = self.bytes.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head);
        if length > MAX_LENGTH {
            bail!("a message of {length} bytes is too long");
        }
        let length = length as usize;
        if self.bytes.len() < length.saturating_add(LENGTH) {
            return Ok(None);
        }
        self.bytes.advance(LENGTH);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }
}

/// The messages in the bytes of a stream.
///
/// # Errors
/// A message is longer than allowed.
pub(crate) fn split(bytes: &[u8]) -> Result<Vec<Bytes>> {
    let mut incoming =
        Incoming { bytes: BytesMut::from(bytes), buffer: Vec::new(), has_ended: true };
    std::iter::from_fn(|| incoming.next().transpose()).collect()
}

/// Opens a stream.
pub(crate) fn connect(
    local: &Local,
    remote: SocketAddr,
    hello: Hello,
    limit: Duration,
) -> Result<DataStream> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)
        .context("cannot open a TCP socket")?;
    local.prepare(&socket)?;
    if let Some(address) = local.address {
        socket
            .bind(&local.to_bind(remote).into())
            .with_context(|| format!("cannot send from {} over TCP", address.ip()))?;
    }
    socket
        .connect_timeout(&remote.into(), limit)
        .with_context(|| format!("cannot connect to {remote} over TCP"))?;
    let data_stream = DataStream::new(socket.into())?;
    match data_stream.send(&hello.encode().into(), limit)? {
        true => Ok(data_stream),
        false => bail!("{remote} accepts no data over TCP"),
    }
}

/// Accepts the streams of one test.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) fn bind(address: SocketAddr, local: &Local) -> Result<Self> {
        let listener = TcpListener::bind(address).context("cannot listen for TCP")?;
        local.prepare(&listener)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// Accepts all streams of the test, in order.
    pub(crate) fn accept_all(&self, test: u64, count: u16) -> Result<Vec<DataStream>> {
        let mut timeout = ConnectTimeout::start(REPLY_TIMEOUT);
        let mut by_number = BTreeMap::new();
        let mut greetings = VecDeque::new();
        while by_number.len() < usize::from(count) {
            // Connections of other peers do not extend the timeout.
            if timeout.left().is_zero() || interrupt::requested() {
                bail!("only {} of {count} TCP streams connected", by_number.len());
            }
            match self.0.accept() {
                // A connection of another peer must not end the test.
                Ok((stream, _)) => greetings.extend(Greeting::new(stream)),
                Err(error) if may_accept_later(&error) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error).context("cannot accept TCP connections"),
            }
            if greetings.len() > MAX_GREETINGS {
                greetings.pop_front();
            }
            // None of them delays another one.
            for _ in 0..greetings.len() {
                let Some(mut greeting) = greetings.pop_front() else { break };
                match greeting.poll() {
                    Ok(None) => greetings.push_back(greeting),
                    Ok(Some(hello)) if hello.test == test && hello.stream < count => {
                        let Ok(data_stream) = DataStream::new(greeting.stream) else { continue };
                        by_number.insert(hello.stream, data_stream);
                        timeout.progress();
                    }
                    _ => {}
                }
            }
        }
        Ok(by_number.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lack_of_memory_or_descriptors_ends_no_listener() {
        let later = |code: Errno| may_accept_later(&code.into());
        for code in [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::CONNABORTED] {
            assert!(later(code), "{code}");
        }
        for code in [Errno::BADF, Errno::INVAL] {
            assert!(!later(code), "{code}");
        }
    }

    fn pair() -> (DataStream, DataStream) {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        let hello = Hello { test: 5, stream: 0 };
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // Another peer connects first.
                drop(TcpStream::connect(remote).unwrap());
                connect(&Local::default(), remote, hello, REPLY_TIMEOUT).unwrap()
            });
            let server = listener.accept_all(5, 1).unwrap().remove(0);
            (client.join().unwrap(), server)
        })
    }

    #[test]
    fn message_boundaries_and_the_end_are_preserved() {
        let (near, far) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for length in [0, 1, 70_000, 3_000_000] {
                    assert!(near.send(&vec![length as u8; length].into(), REPLY_TIMEOUT).unwrap());
                }
                near.finish(REPLY_TIMEOUT).unwrap();
            });
            for length in [0, 1, 70_000, 3_000_000] {
                let Received::Message(message) = far.recv(REPLY_TIMEOUT).unwrap() else { panic!() };
                assert_eq!(message, vec![length as u8; length]);
            }
            assert_eq!(far.recv(REPLY_TIMEOUT).unwrap(), Received::End);
            far.finish(REPLY_TIMEOUT).unwrap();
        });
    }

    #[test]
    fn only_the_hello_message_of_an_unidentified_peer_is_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let greeted = |bytes: &[u8]| {
            let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            near.write_all(bytes).unwrap();
            let mut greeting = Greeting::new(listener.accept().unwrap().0).unwrap();
            let result = loop {
                match greeting.poll() {
                    Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                    Ok(Some(hello)) => break Ok(hello),
                    Err(error) => break Err(error.to_string()),
                }
            };
            (result, greeting)
        };
        let hello = Hello { test: 5, stream: 3 };
        let hello_bytes = [&[0, 0, 0, 16][..], &hello.encode()].concat();
        // Data after it stays in the socket.
        let (read, greeting) = greeted(&[&hello_bytes[..], &[0, 0, 0, 1, 7]].concat());
        assert_eq!(read, Ok(hello));
        let far = DataStream::new(greeting.stream).unwrap();
        assert_eq!(far.recv(REPLY_TIMEOUT).unwrap(), Received::Message(vec![7].into()));
        let error = |bytes: &[u8]| greeted(bytes).0.unwrap_err();
        assert_eq!(error(&[&[0, 0, 0, 16][..], &[b'x'; 16]].concat()), "not a hello message");
        // A message of another length is rejected at once.
        assert_eq!(error(&[0xff; 200]), "not a hello message");
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut greeting = Greeting::new(listener.accept().unwrap().0).unwrap();
        near.write_all(&hello_bytes[..19]).unwrap();
        let error = loop {
            match greeting.poll() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                other => break other.unwrap_err().to_string(),
            }
        };
        assert_eq!(error, "no hello message arrived");
    }

    #[test]
    fn silent_connections_do_not_delay_the_streams_of_a_test() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        // One after the other would take longer than the streams of the test may.
        let silent: Vec<_> = (0..50).map(|_| TcpStream::connect(remote).unwrap()).collect();
        let streams = std::thread::scope(|scope| {
            let connects = || {
                let to = |stream| Hello { test: 5, stream };
                [0, 1].map(|number| {
                    connect(&Local::default(), remote, to(number), REPLY_TIMEOUT).unwrap()
                })
            };
            let clients = scope.spawn(connects);
            let streams = listener.accept_all(5, 2).unwrap();
            drop(clients.join().unwrap());
            streams
        });
        assert_eq!(streams.len(), 2);
        drop(silent);
    }

    #[test]
    fn a_waiting_sender_sees_the_end() {
        let (near, far) = pair();
        assert_eq!((near.end_reason(), far.end_reason()), (None, None));
        // Received but unread data is not an end.
        assert!(far.send(&vec![1; 100].into(), REPLY_TIMEOUT).unwrap());
        assert!(matches!(near.recv(REPLY_TIMEOUT).unwrap(), Received::Message(_)));
        drop(far);
        let ended = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            near.end_reason().is_some()
        });
        assert!(ended);
    }

    #[test]
    fn an_aborted_stream_does_not_end_cleanly() {
        let (near, far) = pair();
        far.close();
        let error = far.recv(REPLY_TIMEOUT).unwrap_err().to_string();
        assert_eq!(error, "the stream was aborted");
        assert_eq!(near.recv(REPLY_TIMEOUT).unwrap(), Received::End);
    }

    #[test]
    fn timeouts_and_oversized_lengths_are_reported() {
        let (near, far) = pair();
        assert_eq!(far.recv(Duration::from_millis(1)).unwrap(), Received::Nothing);
        (&near.stream).write_all(&[0xff; 8]).unwrap();
        assert!(far.recv(REPLY_TIMEOUT).unwrap_err().to_string().contains("too long"));
    }
}
