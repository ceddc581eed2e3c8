//! A TLS record that is changed in transit closes the connection, and delivers nothing that comes after it.

use std::io::{Read, Write};

use bats_proto::{CloseReason, Event, PeerTrust, TransportConfig};

use super::stuck_timers_tests::{NOW, drain};
use super::*;

/// Bytes of the header of a TLS record.
const HEADER: usize = 5;

fn transport() -> Arc<TransportConfig> {
    Arc::new(TransportConfig { mode: Mode::Tcp, ..TransportConfig::default() })
}

/// A server and its address.
fn server() -> (Tcp, SocketAddr) {
    let config = ServerConfig {
        identity: bats_proto::crypto::generate_identity(&["server".to_owned()]).unwrap(),
        client_trust: None,
        transport: transport(),
        retry_threshold: 1,
        max_connections: 10,
    };
    let (any, options) = (([127, 0, 0, 1], 0).into(), SocketOptions::default());
    let tls = TlsStreamServer::new(&config).unwrap();
    let listener = Listener::bind(any, &options, tls, &config).unwrap();
    let address = listener.local_addr().unwrap();
    let tcp = Tcp::new(Arc::new(LazyPoller::default()), Some(listener), (None, options)).unwrap();
    (tcp, address)
}

/// The server's connection: its events, and what it delivered.
#[derive(Default)]
struct Outcome {
    id: Option<u64>,
    closed: Option<CloseReason>,
    received: Vec<Bytes>,
}

impl Outcome {
    fn advance(&mut self, tcp: &mut Tcp) {
        tcp.poll_sockets(NOW);
        loop {
            match tcp.poll(NOW, &mut Vec::new()) {
                Output::Event(id, Event::Accepted) => self.id = Some(id),
                Output::Event(_, Event::Closed(reason)) => self.closed = Some(reason),
                Output::Event(..) => {}
                Output::Transmit(_) => panic!("the kernel sends"),
                Output::Timeout(_) => break,
            }
            while let Some(message) = self.id.and_then(|id| tcp.recv(NOW, id)) {
                self.received.push(message);
            }
        }
    }
}

/// A client's socket and TLS, without an endpoint.
struct Client {
    socket: TcpStream,
    tls: TlsStream,
}

impl Client {
    fn new(to: SocketAddr) -> Self {
        let trust = PeerTrust::DangerousAcceptAny;
        let config = ClientConfig { trust, identity: None, transport: transport() };
        let socket = TcpStream::connect(to).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, tls: TlsStream::client(NOW, "server", &config).unwrap() }
    }

    /// What it sends, after it has read what has arrived.
    fn advance(&mut self) -> Vec<u8> {
        let mut buffer = [0; 16_384];
        while let Ok(len @ 1..) = self.socket.read(&mut buffer) {
            self.tls.receive(NOW, &buffer[..len]);
        }
        let mut bytes = Vec::new();
        self.tls.transmit(NOW, &mut bytes, 100_000);
        bytes
    }

    /// The records of a message.
    fn records(&mut self, message: &Bytes) -> Vec<u8> {
        self.tls.session_mut().send(message.clone()).unwrap();
        self.advance()
    }
}

/// Sends a message, one whose record `change` changes, and another one.
fn attacked(tcp: &mut Tcp, to: SocketAddr, change: impl FnOnce(&mut [u8])) -> Outcome {
    let messages = [1, 2, 3].map(|number| Bytes::from(vec![number; 300]));
    let mut client = Client::new(to);
    let mut outcome = Outcome::default();
    for _ in 0..10_000 {
        let bytes = client.advance();
        client.socket.write_all(&bytes).unwrap();
        outcome.advance(tcp);
        if outcome.id.is_some() && client.tls.session().is_open() {
            break;
        }
    }
    assert!(outcome.id.is_some(), "{:?}", outcome.closed);
    let [whole, mut changed, later] = messages.each_ref().map(|message| client.records(message));
    client.socket.write_all(&whole).unwrap();
    for _ in 0..10_000 {
        outcome.advance(tcp);
        if !outcome.received.is_empty() {
            break;
        }
    }
    change(&mut changed);
    client.socket.write_all(&[changed, later].concat()).unwrap();
    for _ in 0..10_000 {
        outcome.advance(tcp);
        if outcome.closed.is_some() || outcome.received.len() == 3 {
            break;
        }
    }
    // The client reads the alert, and its end lets the server remove the connection.
    client.advance();
    drop(client);
    for _ in 0..10_000 {
        outcome.advance(tcp);
        if tcp.connections.is_empty() {
            break;
        }
    }
    assert!(messages.starts_with(&outcome.received), "a changed message was delivered");
    outcome
}

/// Sockets of this process that are connected to this port or from it.
#[cfg(target_os = "linux")]
fn sockets(port: u16) -> usize {
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = format!(":{port:04X} ");
    // 06: TIME_WAIT, which belongs to no process.
    table.lines().filter(|line| line.contains(&port) && !line.contains(" 06 ")).count()
}

#[test]
fn changed_records_close_their_connection_and_leave_nothing_behind() {
    let (mut tcp, to) = server();
    for number in 0..1_000_usize {
        let outcome = attacked(&mut tcp, to, |record| {
            // Any bit of the content and the tag.
            let at = HEADER + number * 37 % (record.len() - HEADER);
            record[at] ^= 1 << (number % 8);
        });
        assert_eq!(outcome.received.len(), 1, "the one before it");
        let reason = outcome.closed.expect("it is closed");
        assert!(matches!(reason, CloseReason::PeerMisbehaved(_)), "{reason:?}");
        assert!(!reason.to_string().is_empty());
        assert_eq!(tcp.connection_count(), 0, "connection {number}");
    }
    assert!(tcp.connections.is_empty() && tcp.dirty.is_empty() && tcp.timers.is_empty());
    assert_eq!((tcp.half_open.len(), tcp.waiting.len(), tcp.ready.len()), (0, 0, 0));
    assert_eq!(drain(&mut tcp, NOW), (None, None));
    #[cfg(target_os = "linux")]
    assert_eq!(sockets(to.port()), 1, "only the listener is there");
}

/// A receiver of TLS 1.3 knows the version and the type of a record without reading them: a changed one does not
/// change a message (RFC 8446 section 5.2).
#[test]
fn changed_headers_of_records_close_the_connection_or_change_nothing() {
    let (mut tcp, to) = server();
    for (at, bit) in (0..HEADER).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
        let Outcome { closed, received, .. } =
            attacked(&mut tcp, to, |record| record[at] ^= 1 << bit);
        // A record that is longer now may never be whole: the end of the connection is the reason then.
        let is_closed = closed.is_some() && received.len() == 1;
        let is_unchanged = at < 3 && received.len() == 3;
        assert!(is_closed || is_unchanged, "bit {bit} of byte {at}: {closed:?}");
    }
}
