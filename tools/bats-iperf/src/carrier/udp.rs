//! Messages over the kernel's UDP, one a datagram, unreliable as they are.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;

use super::{Local, Received, SLICE, is_pause};
use crate::clock::Clock;
use crate::control::{Gathering, Hello};
use crate::signals;

/// Bytes of a message at most: it should pass the usual link in one frame.
pub(crate) const MAX_MESSAGE: u32 = 1_448;
/// Bytes of a message at most in a datagram of IPv4.
pub(crate) const LONGEST: u32 = 65_507;
/// Before the count of the messages that were sent.
const END: &[u8; 8] = b"BIPF-END";
const END_SEEN: &[u8] = b"BIPF-END-SEEN";
/// How often the end is said, and how long an answer may take each time.
const END_TRIES: usize = 25;
const END_WAIT: Duration = Duration::from_millis(100);
/// Between two tries to be heard at the beginning.
const HELLO_WAIT: Duration = Duration::from_millis(200);
/// How often a greeting is answered: of five one arrives over any link that is worth a test.
const ANSWERS: usize = 5;

#[derive(Debug)]
pub(crate) struct Pipe {
    socket: UdpSocket,
    addresses: (SocketAddr, SocketAddr),
    /// What the client began with: copies of it may come late.
    hello: Vec<u8>,
    /// The server answers them; if both did, they would go round for ever.
    is_server: bool,
    has_ended: AtomicBool,
    is_closed: AtomicBool,
    /// Messages that were sent from here, the client's greeting among them.
    sent: AtomicU64,
    /// What the other side says of itself at its end; [`u64::MAX`] until then.
    sent_by_peer: AtomicU64,
}

impl Pipe {
    fn new(socket: UdpSocket, hello: Vec<u8>, is_server: bool) -> Result<Self> {
        socket.set_read_timeout(Some(SLICE))?;
        socket.set_write_timeout(Some(SLICE))?;
        let raw = socket2::SockRef::from(&socket);
        // What the system allows must do; the loss shows.
        let _ = raw.set_recv_buffer_size(4 << 20);
        let addresses = (socket.local_addr()?, socket.peer_addr()?);
        let (has_ended, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (sent, sent_by_peer) = (AtomicU64::new((!is_server).into()), AtomicU64::new(u64::MAX));
        Ok(Self { socket, addresses, hello, is_server, has_ended, is_closed, sent, sent_by_peer })
    }

    pub(super) fn send(&self, message: &Bytes, limit: Duration) -> Result<bool> {
        // The system takes datagrams whether anyone hears them or not.
        self.check()?;
        let clock = Clock::start();
        loop {
            match self.socket.send(message) {
                Ok(_) => {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(error) if is_pause(&error) => self.check()?,
                // Another datagram met a full queue or a closed port: this one has a chance.
                Err(error) if error.raw_os_error() == Some(nix::errno::Errno::ENOBUFS as i32) => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                Err(error) => return Err(error).context("cannot send over UDP"),
            }
            if clock.elapsed() >= limit {
                return Ok(false);
            }
        }
    }

    pub(super) fn recv(&self, limit: Duration) -> Result<Received> {
        let clock = Clock::start();
        let mut buffer = [0; 65_536];
        loop {
            if self.has_ended.load(Ordering::Acquire) {
                return Ok(Received::End);
            }
            match self.socket.recv(&mut buffer) {
                Ok(count) => match (&buffer[..count], end_of(&buffer[..count])) {
                    (_, Some(sent)) => {
                        self.sent_by_peer.store(sent, Ordering::Release);
                        self.has_ended.store(true, Ordering::Release);
                        // One of them may get through.
                        for _ in 0..3 {
                            let _ = self.socket.send(END_SEEN);
                        }
                    }
                    (END_SEEN, _) => self.has_ended.store(true, Ordering::Release),
                    (hello, _) if hello == self.hello => {
                        if self.is_server {
                            let _ = self.socket.send(hello);
                        }
                    }
                    (message, _) => {
                        return Ok(Received::Message(Bytes::copy_from_slice(message)));
                    }
                },
                Err(error) if is_pause(&error) => {
                    self.check()?;
                    if clock.elapsed() >= limit {
                        return Ok(Received::Nothing);
                    }
                }
                Err(error) => return Err(error).context("cannot receive over UDP"),
            }
        }
    }

    /// Why the stream is over, if it is: only this side can end it.
    pub(super) fn end(&self) -> Option<String> {
        if signals::requested() {
            return Some("interrupted".to_owned());
        }
        self.is_closed.load(Ordering::Acquire).then(|| "the stream was given up".to_owned())
    }

    fn check(&self) -> Result<()> {
        match self.end() {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }

    /// Says the end until it is heard, or often enough.
    pub(super) fn finish(&self) -> Result<()> {
        for _ in 0..END_TRIES {
            if self.has_ended.load(Ordering::Acquire) {
                return Ok(());
            }
            let sent = self.sent.load(Ordering::Relaxed);
            let _ = self.socket.send(&[&END[..], &sent.to_be_bytes()].concat());
            let clock = Clock::start();
            while clock.elapsed() < END_WAIT {
                match self.recv(END_WAIT) {
                    Ok(Received::End) => return Ok(()),
                    Ok(_) => self.check()?,
                    // The other side is gone, which is an end, too.
                    Err(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// Messages that the other side had sent when it came to its end, if it has said so.
    pub(super) fn messages_sent_by_peer(&self) -> Option<u64> {
        Some(self.sent_by_peer.load(Ordering::Acquire)).filter(|&sent| sent != u64::MAX)
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(super) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }
}

/// The count in a datagram that says the end.
fn end_of(datagram: &[u8]) -> Option<u64> {
    let count = datagram.strip_prefix(END)?;
    Some(u64::from_be_bytes(count.try_into().ok()?))
}

/// Begins a stream.
pub(crate) fn connect(
    local: &Local,
    remote: SocketAddr,
    hello: Hello,
    limit: Duration,
) -> Result<Pipe> {
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket =
        UdpSocket::bind((local.ip.unwrap_or(any), 0)).context("cannot open a UDP socket")?;
    local.prepare(&socket)?;
    socket.connect(remote).with_context(|| format!("cannot reach {remote} over UDP"))?;
    socket.set_read_timeout(Some(HELLO_WAIT))?;
    let hello = hello.encode();
    let clock = Clock::start();
    let mut answer = [0; 64];
    while clock.elapsed() < limit && !signals::requested() {
        socket.send(&hello).with_context(|| format!("cannot send to {remote} over UDP"))?;
        match socket.recv(&mut answer) {
            Ok(count) if answer[..count] == hello => return Pipe::new(socket, hello, false),
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error).context("nobody answers over UDP"),
        }
    }
    bail!("no answer from {remote} over UDP")
}

/// Where the streams of one test come, each to a port of its own.
#[derive(Debug)]
pub(crate) struct Listener(Vec<UdpSocket>);

impl Listener {
    pub(crate) fn bind(ip: IpAddr, count: u16, local: &Local) -> Result<Self> {
        let bind = |_| {
            let socket = UdpSocket::bind((ip, 0)).context("cannot open a UDP socket")?;
            local.prepare(&socket)?;
            Ok(socket)
        };
        Ok(Self((0..count).map(bind).collect::<Result<_>>()?))
    }

    pub(crate) fn ports(&self) -> Result<Vec<u16>> {
        self.0.iter().map(|socket| Ok(socket.local_addr()?.port())).collect()
    }

    /// The test's streams, in order. What does not come from the client's own address is not
    /// answered: a client could name the address of another, whom the test would then hit.
    pub(crate) fn gather(self, test: u64, client: IpAddr) -> Result<Vec<Pipe>> {
        let mut patience = Gathering::start();
        let count = self.0.len();
        let mut pipes = Vec::new();
        for (stream, socket) in self.0.into_iter().enumerate() {
            let hello = Hello { test, stream: u16::try_from(stream).unwrap_or(u16::MAX) }.encode();
            socket.set_read_timeout(Some(SLICE))?;
            let mut buffer = [0; 64];
            let peer = loop {
                match socket.recv_from(&mut buffer) {
                    Ok((count, peer))
                        if buffer[..count] == hello
                            && peer.ip().to_canonical() == client.to_canonical() =>
                    {
                        break peer;
                    }
                    Ok(_) => {}
                    Err(error) if is_pause(&error) => {}
                    Err(error) => return Err(error).context("cannot receive over UDP"),
                }
                if patience.left().is_zero() || signals::requested() {
                    bail!("{} of {count} UDP streams came", pipes.len());
                }
            };
            socket.connect(peer)?;
            // Until the test begins nobody reads here, so a greeting that is repeated has no answer.
            for _ in 0..ANSWERS {
                socket.send(&hello)?;
            }
            pipes.push(Pipe::new(socket, hello, true)?);
            patience.progress();
        }
        Ok(pipes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::PATIENCE;

    #[test]
    fn datagrams_pass_and_both_ends_see_the_end() {
        let listener = Listener::bind([127, 0, 0, 1].into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                connect(&Local::default(), remote, Hello { test: 9, stream: 0 }, PATIENCE)
            });
            let server = listener.gather(9, [127, 0, 0, 1].into()).unwrap().remove(0);
            let client = client.join().unwrap().unwrap();
            assert!(client.send(&Bytes::from_static(b"abc"), PATIENCE).unwrap());
            assert_eq!(server.recv(PATIENCE).unwrap(), Received::Message("abc".into()));
            assert!(server.send(&Bytes::from_static(b"def"), PATIENCE).unwrap());
            assert_eq!(client.recv(PATIENCE).unwrap(), Received::Message("def".into()));
            assert_eq!(server.recv(Duration::ZERO).unwrap(), Received::Nothing);
            let receiving = scope.spawn(move || {
                assert_eq!(server.messages_sent_by_peer(), None);
                assert_eq!(server.recv(PATIENCE).unwrap(), Received::End);
                // The greeting and one message.
                assert_eq!(server.messages_sent_by_peer(), Some(2));
            });
            client.finish().unwrap();
            receiving.join().unwrap();
        });
    }

    #[test]
    fn a_greeting_is_answered_often_enough_for_a_lossy_link() {
        let listener = Listener::bind([127, 0, 0, 1].into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        let hello = Hello { test: 9, stream: 0 };
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.send_to(&hello.encode(), remote).unwrap();
        let pipes = listener.gather(9, [127, 0, 0, 1].into()).unwrap();
        let mut answer = [0; 64];
        for _ in 0..ANSWERS {
            let count = client.recv(&mut answer).unwrap();
            assert_eq!(answer[..count], hello.encode());
        }
        assert_eq!(pipes.len(), 1);
    }

    #[test]
    fn only_the_clients_own_address_is_answered() {
        let listener = Listener::bind([127, 0, 0, 1].into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        let hello = Hello { test: 9, stream: 0 };
        // It comes first, with all that a stream needs to know.
        let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
        stranger.send_to(&hello.encode(), remote).unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&Local::default(), remote, hello, PATIENCE));
            let server = listener.gather(9, [127, 0, 0, 1].into()).unwrap().remove(0);
            let client = client.join().unwrap().unwrap();
            assert_eq!(server.addresses().1, client.addresses().0);
        });
        stranger.set_nonblocking(true).unwrap();
        assert!(is_pause(&stranger.recv(&mut [0; 64]).unwrap_err()));
    }

    #[test]
    fn nobody_there_is_told() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = taken.local_addr().unwrap();
        let hello = Hello { test: 1, stream: 0 };
        assert!(connect(&Local::default(), remote, hello, Duration::from_millis(300)).is_err());
    }
}
