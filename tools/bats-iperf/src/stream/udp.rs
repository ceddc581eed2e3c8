//! Messages over the kernel's UDP, one per datagram, without reliability.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;

use super::{Local, POLL_INTERVAL, Received, wait_after};
use crate::clock::Clock;
use crate::control::{ConnectTimeout, Hello, REPLY_TIMEOUT};
use crate::interrupt;

/// Default maximum length of a message in bytes: it should fit into one frame of a typical link.
pub(crate) const MAX_MESSAGE: u32 = 1_448;
/// Maximum payload of an IPv4 datagram in bytes.
pub(crate) const MAX_DATAGRAM: u32 = 65_507;
/// Prefix of the end message; the number of sent messages follows.
const END: &[u8; 8] = b"BIPF-END";
const END_SEEN: &[u8] = b"BIPF-END-SEEN";
/// How often the end message is sent, and how long to wait for each reply.
const END_ATTEMPTS: usize = 25;
const END_WAIT: Duration = Duration::from_millis(100);
/// Interval between hello messages until one is answered.
const HELLO_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How often a hello message is answered, so that a reply gets through a lossy link.
const HELLO_REPLIES: usize = 5;

#[derive(Debug)]
pub(crate) struct DataStream {
    socket: UdpSocket,
    addresses: (SocketAddr, SocketAddr),
    /// The client's hello message: late copies of it may arrive.
    hello: Vec<u8>,
    /// Only the server answers hello messages; if both ends did, they would loop forever.
    is_server: bool,
    has_ended: AtomicBool,
    is_closed: AtomicBool,
    /// Messages sent by this end, including the client's hello message.
    sent: AtomicU64,
    /// The peer's count from its end message; [`u64::MAX`] until it arrives.
    sent_by_peer: AtomicU64,
}

impl DataStream {
    fn new(socket: UdpSocket, hello: Vec<u8>, is_server: bool) -> Result<Self> {
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        let raw = socket2::SockRef::from(&socket);
        // A smaller buffer, if the system limits it, is acceptable; losses are counted.
        let _ = raw.set_recv_buffer_size(4 << 20);
        let addresses = (socket.local_addr()?, socket.peer_addr()?);
        let (has_ended, is_closed) = (AtomicBool::new(false), AtomicBool::new(false));
        let (sent, sent_by_peer) = (AtomicU64::new((!is_server).into()), AtomicU64::new(u64::MAX));
        Ok(Self { socket, addresses, hello, is_server, has_ended, is_closed, sent, sent_by_peer })
    }

    pub(super) fn send(&self, message: &Bytes, limit: Duration) -> Result<bool> {
        // The system accepts datagrams even if nothing receives them.
        self.check()?;
        let clock = Clock::start();
        loop {
            match self.socket.send(message) {
                Ok(_) => {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(error) => {
                    wait_after(error).context("cannot send over UDP")?;
                    self.check()?;
                }
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
            self.check()?;
            match self.socket.recv(&mut buffer) {
                Ok(count) => match (received(&buffer, count), end_of(received(&buffer, count))) {
                    (_, Some(sent)) => {
                        self.sent_by_peer.store(sent, Ordering::Release);
                        self.has_ended.store(true, Ordering::Release);
                        // Send several, as they may be lost.
                        for _ in 0..3 {
                            let _ = self.socket.send(END_SEEN);
                        }
                        continue;
                    }
                    (END_SEEN, _) => {
                        self.has_ended.store(true, Ordering::Release);
                        continue;
                    }
                    (hello, _) if hello == self.hello => {
                        if self.is_server {
                            let _ = self.socket.send(hello);
                        }
                    }
                    (message, _) => {
                        return Ok(Received::Message(Bytes::copy_from_slice(message)));
                    }
                },
                Err(error) => wait_after(error).context("cannot receive over UDP")?,
            }
            // Also after a datagram: a flood of repeated hello messages must not extend the wait.
            if clock.elapsed() >= limit {
                return Ok(Received::Nothing);
            }
        }
    }

    /// Why the stream has ended, if it has. Only this side can end it.
    pub(super) fn end_reason(&self) -> Option<String> {
        if interrupt::requested() {
            return Some("interrupted".to_owned());
        }
        self.is_closed.load(Ordering::Acquire).then(|| "the stream was aborted".to_owned())
    }

    fn check(&self) -> Result<()> {
        match self.end_reason() {
            Some(why) => bail!(why),
            None => Ok(()),
        }
    }

    /// Sends the end message until it is answered or the attempts are used up.
    pub(super) fn finish(&self) -> Result<()> {
        for _ in 0..END_ATTEMPTS {
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
                    // The peer is gone, which is an end, too.
                    Err(_) => return Ok(()),
                }
            }
        }
        Ok(())
    }

    /// The number of messages that the peer sent, if its end message has arrived.
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

/// The datagram that a receive call of the socket has put into the buffer.
fn received(buffer: &[u8], count: usize) -> &[u8] {
    buffer.get(..count).unwrap_or_default()
}

/// The count in an end message.
pub(crate) fn end_of(datagram: &[u8]) -> Option<u64> {
    let count = datagram.strip_prefix(END)?;
    Some(u64::from_be_bytes(count.try_into().ok()?))
}

/// Opens a stream.
pub(crate) fn connect(
    local: &Local,
    remote: SocketAddr,
    hello: Hello,
    limit: Duration,
) -> Result<DataStream> {
    let socket = UdpSocket::bind(local.to_bind(remote)).context("cannot open a UDP socket")?;
    local.prepare(&socket)?;
    socket.connect(remote).with_context(|| format!("cannot reach {remote} over UDP"))?;
    socket.set_read_timeout(Some(HELLO_RETRY_INTERVAL))?;
    let hello = hello.encode();
    let clock = Clock::start();
    let mut answer = [0; 64];
    while clock.elapsed() < limit && !interrupt::requested() {
        if let Err(error) = socket.send(&hello) {
            wait_after(error).with_context(|| format!("cannot send to {remote} over UDP"))?;
        }
        match socket.recv(&mut answer) {
            Ok(count) if received(&answer, count) == hello => {
                return DataStream::new(socket, hello, false);
            }
            Ok(_) => {}
            Err(error) => wait_after(error).context("no answer over UDP")?,
        }
    }
    bail!("no answer from {remote} over UDP")
}

/// Accepts the streams of one test, each on its own port.
#[derive(Debug)]
pub(crate) struct Listener(Vec<UdpSocket>);

impl Listener {
    pub(crate) fn bind(address: SocketAddr, count: u16, local: &Local) -> Result<Self> {
        let bind = |_| {
            let socket = UdpSocket::bind(address).context("cannot open a UDP socket")?;
            local.prepare(&socket)?;
            Ok(socket)
        };
        Ok(Self((0..count).map(bind).collect::<Result<_>>()?))
    }

    pub(crate) fn ports(&self) -> Result<Vec<u16>> {
        self.0.iter().map(|socket| Ok(socket.local_addr()?.port())).collect()
    }

    /// Accepts all streams of the test, in order. Only datagrams from the client's address are
    /// answered: otherwise a client could direct the test at another host.
    pub(crate) fn accept_all(self, test: u64, client: IpAddr) -> Result<Vec<DataStream>> {
        let mut timeout = ConnectTimeout::start(REPLY_TIMEOUT);
        let count = self.0.len();
        let mut data_streams = Vec::new();
        for (stream, socket) in self.0.into_iter().enumerate() {
            let hello = Hello { test, stream: u16::try_from(stream).unwrap_or(u16::MAX) }.encode();
            socket.set_read_timeout(Some(POLL_INTERVAL))?;
            let mut buffer = [0; 64];
            let peer = loop {
                match socket.recv_from(&mut buffer) {
                    Ok((count, peer))
                        if received(&buffer, count) == hello
                            && peer.ip().to_canonical() == client.to_canonical() =>
                    {
                        break peer;
                    }
                    Ok(_) => {}
                    Err(error) => wait_after(error).context("cannot receive over UDP")?,
                }
                if timeout.left().is_zero() || interrupt::requested() {
                    bail!("only {} of {count} UDP streams connected", data_streams.len());
                }
            };
            socket.connect(peer)?;
            // Until the test starts nothing reads here, so a repeated hello message gets no answer.
            for _ in 0..HELLO_REPLIES {
                socket.send(&hello).map(drop).or_else(wait_after)?;
            }
            data_streams.push(DataStream::new(socket, hello, true)?);
            timeout.progress();
        }
        Ok(data_streams)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_delivered_and_both_ends_see_the_end() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        std::thread::scope(|scope| {
            let client = scope.spawn(|| {
                connect(&Local::default(), remote, Hello { test: 9, stream: 0 }, REPLY_TIMEOUT)
            });
            let server = listener.accept_all(9, [127, 0, 0, 1].into()).unwrap().remove(0);
            let client = client.join().unwrap().unwrap();
            assert!(client.send(&Bytes::from_static(b"abc"), REPLY_TIMEOUT).unwrap());
            assert_eq!(server.recv(REPLY_TIMEOUT).unwrap(), Received::Message("abc".into()));
            assert!(server.send(&Bytes::from_static(b"def"), REPLY_TIMEOUT).unwrap());
            assert_eq!(client.recv(REPLY_TIMEOUT).unwrap(), Received::Message("def".into()));
            assert_eq!(server.recv(Duration::ZERO).unwrap(), Received::Nothing);
            let receiving = scope.spawn(move || {
                assert_eq!(server.messages_sent_by_peer(), None);
                assert_eq!(server.recv(REPLY_TIMEOUT).unwrap(), Received::End);
                // The hello message and one message.
                assert_eq!(server.messages_sent_by_peer(), Some(2));
            });
            client.finish().unwrap();
            receiving.join().unwrap();
        });
    }

    #[test]
    fn hello_messages_are_answered_several_times() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        let hello = Hello { test: 9, stream: 0 };
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
        client.send_to(&hello.encode(), remote).unwrap();
        let data_streams = listener.accept_all(9, [127, 0, 0, 1].into()).unwrap();
        let mut answer = [0; 64];
        for _ in 0..HELLO_REPLIES {
            let count = client.recv(&mut answer).unwrap();
            assert_eq!(answer[..count], hello.encode());
        }
        assert_eq!(data_streams.len(), 1);
    }

    #[test]
    fn only_the_client_address_is_answered() {
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        let hello = Hello { test: 9, stream: 0 };
        // It arrives first, and its hello message is valid.
        let other_peer = UdpSocket::bind("127.0.0.2:0").unwrap();
        other_peer.send_to(&hello.encode(), remote).unwrap();
        std::thread::scope(|scope| {
            let client = scope.spawn(|| connect(&Local::default(), remote, hello, REPLY_TIMEOUT));
            let server = listener.accept_all(9, [127, 0, 0, 1].into()).unwrap().remove(0);
            let client = client.join().unwrap().unwrap();
            assert_eq!(server.addresses().1, client.addresses().0);
        });
        other_peer.set_nonblocking(true).unwrap();
        assert!(super::super::is_retryable(&other_peer.recv(&mut [0; 64]).unwrap_err()));
    }

    /// A server's stream whose client sends hello messages until `act` returns. Returns whether the
    /// flood was still going on then.
    fn during_a_flood_of_hellos(act: impl FnOnce(&DataStream)) -> bool {
        /// Several seconds of datagrams on any machine; ends the flood if `act` waits for its end.
        const DATAGRAMS: usize = 1_000_000;
        let listener = Listener::bind(([127, 0, 0, 1], 0).into(), 1, &Local::default()).unwrap();
        let remote = SocketAddr::from(([127, 0, 0, 1], listener.ports().unwrap()[0]));
        let hello = Hello { test: 9, stream: 0 };
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(remote).unwrap();
        client.send(&hello.encode()).unwrap();
        let server = listener.accept_all(9, [127, 0, 0, 1].into()).unwrap().remove(0);
        let (has_acted, has_begun) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let flood = scope.spawn(|| {
                for _ in 0..DATAGRAMS {
                    if has_acted.load(Ordering::Acquire) {
                        return true;
                    }
                    let _ = client.send(&hello.encode());
                    has_begun.store(true, Ordering::Release);
                }
                false
            });
            while !has_begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            act(&server);
            has_acted.store(true, Ordering::Release);
            flood.join().unwrap()
        })
    }

    #[test]
    fn a_flood_of_hello_messages_does_not_extend_a_receive() {
        let returned_in_time = during_a_flood_of_hellos(|server| {
            let received = server.recv(Duration::from_millis(300)).unwrap();
            assert_eq!(received, Received::Nothing);
        });
        assert!(returned_in_time);
    }

    #[test]
    fn a_closed_stream_ends_during_a_flood_of_hello_messages() {
        let returned_in_time = during_a_flood_of_hellos(|server| {
            server.close();
            assert!(server.recv(REPLY_TIMEOUT).is_err());
        });
        assert!(returned_in_time);
    }

    #[test]
    fn connecting_without_a_server_times_out() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let remote = taken.local_addr().unwrap();
        let hello = Hello { test: 1, stream: 0 };
        assert!(connect(&Local::default(), remote, hello, Duration::from_millis(300)).is_err());
    }
}
