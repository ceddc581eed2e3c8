//! Many connections of one client endpoint, with the default budgets.

use core::net::SocketAddr;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::{
    ClientConfig, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, Input, Mode, Output,
    PeerTrust, Received, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

const CONNECTIONS: usize = 10_000;
/// Receive budget of a connection before use.
const BASE: u64 = 256 << 10;
/// Connections between two deliveries of packets.
const AT_ONCE: usize = 500;

/// A client and a server that are joined without delay or loss.
struct Pair {
    now: Timestamp,
    /// Client and server.
    ends: [Endpoint; 2],
    accepted: Vec<ConnectionHandle>,
    connected: BTreeSet<ConnectionHandle>,
    closed: Vec<String>,
    /// Whether the server's application reads.
    reads: bool,
}

fn transport(mode: Mode) -> Arc<TransportConfig> {
    Arc::new(TransportConfig { mode, ..TransportConfig::default() })
}

fn address(number: usize, end: usize) -> SocketAddr {
    // Each connection has a socket address of its own, so that no limit on addresses applies.
    let host = [10, end as u8 + 1, (number >> 8) as u8, number as u8];
    SocketAddr::from((host, 4_000))
}

impl Pair {
    fn new(mode: Mode, server_memory: u64) -> Self {
        let server = ServerConfig {
            identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
            client_trust: None,
            transport: transport(mode),
            retry_threshold: usize::MAX,
            max_connections: CONNECTIONS,
        };
        let security = Security::DangerousPlain;
        let client = EndpointConfig { security, ..EndpointConfig::default() };
        let memory_budget = server_memory;
        let server = EndpointConfig { server: Some(server), memory_budget, ..client.clone() };
        let ends = [client, server].map(|config| Endpoint::new(config, [1; 32]).unwrap());
        let now = Timestamp::from_millis(1_000);
        let (accepted, connected, closed) = Default::default();
        Self { now, ends, accepted, connected, closed, reads: true }
    }

    fn connect(&mut self, mode: Mode, number: usize) -> ConnectionHandle {
        let config = ClientConfig {
            trust: PeerTrust::DangerousAcceptAny,
            identity: None,
            transport: transport(mode),
        };
        self.ends[0].connect(self.now, address(number, 1), "server", config).unwrap()
    }

    /// Delivers all packets. Returns the messages that the server received.
    fn settle(&mut self) -> usize {
        let mut buffer = Vec::with_capacity(65_536);
        let (mut received, mut is_busy) = (0, true);
        while is_busy {
            is_busy = false;
            for end in 0..2 {
                loop {
                    match self.ends[end].poll(self.now, &mut buffer) {
                        Output::Transmit(transmit) => {
                            is_busy = true;
                            // What is sent to the address of a server comes from that of its client.
                            let SocketAddr::V4(to) = transmit.remote else { continue };
                            let [_, _, high, low] = to.ip().octets();
                            let number = usize::from(high) << 8 | usize::from(low);
                            for datagram in buffer.chunks_mut(transmit.segment_size) {
                                self.ends[1 - end].handle(
                                    self.now,
                                    Input::Datagram(Received {
                                        remote: address(number, end),
                                        local_ip: None,
                                        ecn: 0,
                                        payload: datagram,
                                    }),
                                );
                            }
                        }
                        Output::Event(handle, Event::Accepted) => self.accepted.push(handle),
                        Output::Event(handle, Event::Connected) => {
                            self.connected.insert(handle);
                        }
                        Output::Event(handle, Event::Readable) if end == 1 && self.reads => {
                            received += self.read(handle);
                        }
                        Output::Event(_, Event::Closed(reason)) => {
                            self.closed.push(reason.to_string());
                        }
                        Output::Event(..) => {}
                        Output::Timeout(_) => break,
                    }
                }
            }
        }
        received
    }

    fn read(&mut self, handle: ConnectionHandle) -> usize {
        core::iter::from_fn(|| self.ends[1].recv(self.now, handle)).count()
    }

    fn advance(&mut self, time: Duration) -> usize {
        let end = self.now + time;
        let mut received = 0;
        while self.now < end {
            self.now += Duration::from_millis(1);
            for endpoint in &mut self.ends {
                endpoint.handle(self.now, Input::Timeout);
            }
            received += self.settle();
        }
        received
    }

    fn promised(&self) -> [u64; 2] {
        [0, 1].map(|end| self.ends[end].endpoint_stats().memory_promised)
    }
}

/// One client endpoint opens as many connections as a server accepts by default, each is charged
/// 256 KiB, and each works. A long message gets the memory that it needs and gives it back.
#[test]
fn one_client_opens_10000_connections_with_little_memory_promised() {
    for mode in [Mode::Btp, Mode::Brtp] {
        let mut pair = Pair::new(mode, 32 << 30);
        let mut handles = Vec::new();
        for number in 0..CONNECTIONS {
            handles.push(pair.connect(mode, number));
            if number % AT_ONCE == 0 {
                pair.settle();
            }
        }
        pair.advance(Duration::from_secs(2));
        assert_eq!((pair.connected.len(), pair.accepted.len()), (CONNECTIONS, CONNECTIONS));
        let all = CONNECTIONS as u64 * BASE;
        assert_eq!(pair.promised(), [all; 2], "2.5 GiB of 32 GiB");

        for &handle in &handles {
            pair.ends[0].send(pair.now, handle, Bytes::from(vec![7; 1_000])).unwrap();
        }
        let received = pair.settle() + pair.advance(Duration::from_millis(50));
        assert_eq!(received, CONNECTIONS);
        assert_eq!(pair.promised(), [all; 2], "small messages need no more");

        let large = Bytes::from(vec![7; 16 << 20]);
        pair.ends[0].send(pair.now, handles[3], large).unwrap();
        let (mut received, mut most) = (0, 0);
        for _ in 0..10_000 {
            received += pair.advance(Duration::from_millis(1));
            most = most.max(pair.promised()[1]);
            if received > 0 {
                break;
            }
        }
        assert_eq!(received, 1, "the message arrives");
        assert!(most > all + (15 << 20) && most < all + (40 << 20), "{most}");
        // What is left are the last symbols, to which repairs may refer.
        pair.advance(Duration::from_millis(10));
        assert!(pair.promised()[1] < all + (2 << 20), "{:?}", pair.promised());
        assert_eq!(pair.closed, Vec::<String>::new());
    }
}

/// An application does not read the messages of one connection, and they take most of the memory.
/// What another one sends waits until they are read; nothing is lost in a reliable mode.
#[test]
fn senders_wait_for_memory_and_proceed_when_there_is_some() {
    const MESSAGE: usize = 512 << 10;
    const LONG: usize = 1_300 << 10;
    const BUDGET: u64 = 4 << 20;
    for mode in [Mode::Brtp, Mode::Btp] {
        let mut pair = Pair::new(mode, BUDGET);
        let [first, second] = [0, 1].map(|number| pair.connect(mode, number));
        pair.advance(Duration::from_millis(50));
        assert_eq!(pair.accepted.len(), 2);
        let within = |pair: &Pair| {
            let promised = pair.promised()[1];
            let held = |handle: &ConnectionHandle| pair.ends[1].receive_buffer_bytes(*handle);
            let held: usize = pair.accepted.iter().filter_map(held).sum();
            assert!(held as u64 <= promised && promised <= BUDGET, "{held}, {promised}");
        };
        pair.reads = false;
        for _ in 0..8 {
            let message = Bytes::from(vec![1; MESSAGE]);
            pair.ends[0].send_within(pair.now, first, message, Duration::from_secs(60)).unwrap();
        }
        for _ in 0..500 {
            pair.advance(Duration::from_millis(1));
            within(&pair);
        }
        let message = Bytes::from(vec![2; LONG]);
        pair.ends[0].send_within(pair.now, second, message, Duration::from_secs(60)).unwrap();
        for _ in 0..2_000 {
            pair.advance(Duration::from_millis(1));
            within(&pair);
        }
        let shortages = pair.ends[1].endpoint_stats().memory_shortages;
        assert!(shortages > 0, "{mode:?}");
        pair.reads = true;
        let mut received = 0;
        for _ in 0..10_000 {
            for handle in pair.accepted.clone() {
                received += pair.read(handle);
            }
            received += pair.advance(Duration::from_millis(1));
            within(&pair);
        }
        let expected = if mode == Mode::Brtp { 9..=9 } else { 1..=9 };
        assert!(expected.contains(&received), "{mode:?}: {received}");
        assert_eq!(pair.closed, Vec::<String>::new());
        // Idle connections keep what repairs may refer to.
        pair.advance(Duration::from_secs(3));
        let promised = pair.promised()[1];
        assert!(promised < 7 << 19, "{promised}");
    }
}
