//! Messages over the kernel's TCP: four bytes of length, then the message.

use std::io::{IoSlice, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::{Buf, Bytes, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Socket, Type};

use super::{Local, Received, SLICE, is_pause};
use crate::clock::Clock;
use crate::control::{Gathering, HELLO_LENGTH, Hello, PATIENCE};
use crate::message::MAX_LENGTH;
use crate::signals;

/// Bytes of one read.
const READ: usize = 256 << 10;
const LENGTH: usize = 4;
/// How long one who connects may take to say which stream it is.
const GREETING: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Pipe {
    stream: TcpStream,
    addresses: (SocketAddr, SocketAddr),
    incoming: Mutex<Incoming>,
    /// This side has given it up: that nothing more comes is not the other side's end.
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Incoming {
    bytes: BytesMut,
    buffer: Vec<u8>,
    has_ended: bool,
}

impl Pipe {
    fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SLICE))?;
        stream.set_write_timeout(Some(SLICE))?;
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
        let whole = LENGTH + message.len();
        let mut written = 0;
        let mut moved = Duration::ZERO;
        while written < whole {
            let head = &length[written.min(LENGTH)..];
            let body = &message[written.saturating_sub(LENGTH)..];
            let slices = [IoSlice::new(head), IoSlice::new(body)];
            match (&self.stream).write_vectored(&slices) {
                Ok(0) => bail!("the TCP connection takes no more"),
                Ok(bytes) => (written, moved) = (written + bytes, clock.elapsed()),
                Err(error) if is_pause(&error) => {
                    if signals::requested() {
                        bail!("interrupted");
                    }
                    if written == 0 && clock.elapsed() >= limit {
                        return Ok(false);
                    }
                    if clock.elapsed() - moved > PATIENCE {
                        bail!("the TCP connection took nothing for {} s", PATIENCE.as_secs());
                    }
                }
                Err(error) => return Err(error).context("cannot send over TCP"),
            }
        }
        Ok(true)
    }

    pub(super) fn recv(&self, limit: Duration) -> Result<Received> {
        let clock = Clock::start();
        let Ok(mut incoming) = self.incoming.lock() else { bail!("the reader has failed") };
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
                    bail!("the stream was given up")
                }
                Ok(0) => *has_ended = true,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) if is_pause(&error) => {
                    if signals::requested() {
                        bail!("interrupted");
                    }
                    if clock.elapsed() >= limit {
                        return Ok(Received::Nothing);
                    }
                }
                Err(error) => return Err(error).context("cannot receive over TCP"),
            }
        }
    }

    /// The first message, and not a byte more: who it is from is not known before.
    fn greeting(&self, limit: Duration) -> Result<Hello> {
        let clock = Clock::start();
        let length = u32::try_from(HELLO_LENGTH).context("a hello is short")?.to_be_bytes();
        let mut bytes = [0; LENGTH + HELLO_LENGTH];
        let mut count = 0;
        while count < bytes.len() {
            if clock.elapsed() >= limit || signals::requested() {
                bail!("no greeting came");
            }
            match (&self.stream).read(&mut bytes[count..]) {
                Ok(0) => bail!("the TCP connection ended before its greeting"),
                Ok(more) => count += more,
                Err(error) if is_pause(&error) => {}
                Err(error) => return Err(error).context("cannot receive over TCP"),
            }
            if count >= LENGTH && bytes[..LENGTH] != length {
                bail!("this is no greeting");
            }
        }
        Hello::decode(&bytes[LENGTH..]).context("this is no greeting")
    }

    /// The peer closes its direction when it has read the end of ours.
    pub(super) fn finish(&self, limit: Duration) -> Result<()> {
        let clock = Clock::start();
        self.stream.shutdown(Shutdown::Write).context("cannot end the TCP connection")?;
        loop {
            match self.recv(SLICE)? {
                Received::End => return Ok(()),
                _ if clock.elapsed() > limit => {
                    bail!("not all data had arrived over TCP after {} s", limit.as_secs())
                }
                _ => {}
            }
        }
    }

    /// Why the connection is over, if it is. The receiver of a stream ends it after the sender.
    pub(super) fn end(&self) -> Option<String> {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.stream, &mut [0_u8; 1], flags) {
            Ok((_, 0)) => Some("the TCP connection has ended".to_owned()),
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
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

impl Incoming {
    fn next(&mut self) -> Result<Option<Bytes>> {
        let Some(head) = self.bytes.first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_be_bytes(*head);
        if length > MAX_LENGTH {
            bail!("a message of {length} bytes is too long");
        }
        let length = length as usize;
        if self.bytes.len() < LENGTH + length {
            return Ok(None);
        }
        self.bytes.advance(LENGTH);
        Ok(Some(self.bytes.split_to(length).freeze()))
    }
}

/// Begins a stream.
pub(crate) fn connect(
    local: &Local,
    remote: SocketAddr,
    hello: Hello,
    limit: Duration,
) -> Result<Pipe> {
    let socket = Socket::new(Domain::for_address(remote), Type::STREAM, None)
        .context("cannot open a TCP socket")?;
    local.prepare(&socket)?;
    if let Some(ip) = local.ip {
        socket
            .bind(&SocketAddr::new(ip, 0).into())
            .with_context(|| format!("cannot send from {ip} over TCP"))?;
    }
    socket
        .connect_timeout(&remote.into(), limit)
        .with_context(|| format!("cannot connect to {remote} over TCP"))?;
    let pipe = Pipe::new(socket.into())?;
    match pipe.send(&hello.encode().into(), limit)? {
        true => Ok(pipe),
        false => bail!("{remote} takes nothing over TCP"),
    }
}

/// Where the streams of one test come.
#[derive(Debug)]
pub(crate) struct Listener(TcpListener);

impl Listener {
    pub(crate) fn bind(ip: IpAddr, local: &Local) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).context("cannot listen for TCP")?;
        local.prepare(&listener)?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    pub(crate) fn port(&self) -> Result<u16> {
        Ok(self.0.local_addr()?.port())
    }

    /// The test's streams, in order.
    pub(crate) fn gather(&self, test: u64, count: u16) -> Result<Vec<Pipe>> {
        let mut patience = Gathering::start();
        let mut gathered = std::collections::BTreeMap::new();
        while gathered.len() < usize::from(count) {
            // Strangers, too, use the time up.
            let left = patience.left();
            if left.is_zero() || signals::requested() {
                bail!("{} of {count} TCP streams came", gathered.len());
            }
            match self.0.accept() {
                Ok((stream, _)) => {
                    // A stranger must not end the test of those who were invited.
                    let Ok(pipe) = Pipe::new(stream) else { continue };
                    match pipe.greeting(left.min(GREETING)) {
                        Ok(hello) if hello.test == test && hello.stream < count => {
                            gathered.insert(hello.stream, pipe);
                            patience.progress();
                        }
                        _ => {}
                    }
                }
                Err(error) if is_pause(&error) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => return Err(error).context("cannot accept TCP connections"),
            }
        }
        Ok(gathered.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Pipe, Pipe) {
        let listener = Listener::bind([127, 0, 0, 1].into(), &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.port().unwrap()));
        let hello = Hello { test: 5, stream: 0 };
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                // A stranger comes first.
                drop(TcpStream::connect(remote).unwrap());
                connect(&Local::default(), remote, hello, PATIENCE).unwrap()
            });
            let server = listener.gather(5, 1).unwrap().remove(0);
            (client.join().unwrap(), server)
        })
    }

    #[test]
    fn messages_keep_their_boundaries_and_end_in_order() {
        let (near, far) = pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for length in [0, 1, 70_000, 3_000_000] {
                    assert!(near.send(&vec![length as u8; length].into(), PATIENCE).unwrap());
                }
                near.finish(PATIENCE).unwrap();
            });
            for length in [0, 1, 70_000, 3_000_000] {
                let Received::Message(message) = far.recv(PATIENCE).unwrap() else { panic!() };
                assert_eq!(message, vec![length as u8; length]);
            }
            assert_eq!(far.recv(PATIENCE).unwrap(), Received::End);
            far.finish(PATIENCE).unwrap();
        });
    }

    #[test]
    fn a_greeting_is_all_that_is_read_of_a_stranger() {
        let (near, far) = pair();
        let limit = Duration::from_millis(300);
        let began = |bytes: &[u8]| {
            (&near.stream).write_all(bytes).unwrap();
            far.greeting(limit)
        };
        let hello = Hello { test: 5, stream: 3 };
        let greeting = [&[0, 0, 0, 16][..], &hello.encode()].concat();
        // What follows it stays where it is.
        assert_eq!(began(&[&greeting[..], &[0, 0, 0, 1, 7]].concat()).unwrap(), hello);
        assert_eq!(far.recv(PATIENCE).unwrap(), Received::Message(vec![7].into()));
        assert!(began(&[&[0, 0, 0, 16][..], &[b'x'; 16]].concat()).is_err(), "no hello");
        assert!(began(&greeting[..19]).unwrap_err().to_string().contains("no greeting came"));
        assert_eq!(began(&greeting[19..]).unwrap_err().to_string(), "no greeting came");
        // A message of another length is not waited for.
        let error = began(&[0xff; 200]).unwrap_err().to_string();
        assert_eq!(error, "this is no greeting");
    }

    #[test]
    fn a_sender_that_waits_sees_the_end() {
        let (near, far) = pair();
        assert_eq!((near.end(), far.end()), (None, None));
        // What has come and was not read is no end.
        assert!(far.send(&vec![1; 100].into(), PATIENCE).unwrap());
        assert!(matches!(near.recv(PATIENCE).unwrap(), Received::Message(_)));
        drop(far);
        let ended = (0..1_000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            near.end().is_some()
        });
        assert!(ended);
    }

    #[test]
    fn what_was_given_up_has_not_come_to_its_end() {
        let (near, far) = pair();
        far.close();
        let error = far.recv(PATIENCE).unwrap_err().to_string();
        assert_eq!(error, "the stream was given up");
        assert_eq!(near.recv(PATIENCE).unwrap(), Received::End);
    }

    #[test]
    fn silence_and_wild_lengths_are_told() {
        let (near, far) = pair();
        assert_eq!(far.recv(Duration::from_millis(1)).unwrap(), Received::Nothing);
        (&near.stream).write_all(&[0xff; 8]).unwrap();
        assert!(far.recv(PATIENCE).unwrap_err().to_string().contains("too long"));
    }
}
