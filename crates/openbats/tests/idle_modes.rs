//! Heap memory of idle connections of the modes TCP and QUIC, as `idle_heap.rs` of `bats-proto` counts it for the
//! other modes: everything, also what TLS, QUIC and their C code hold.
//!
//! The allocator counts for the whole process, so this program has only one test.
#![cfg(all(target_os = "linux", target_env = "gnu", feature = "quic"))]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::{
    ClientConfig, CongestionAlgorithm, Event, Input, Mode, PeerTrust, Received, ServerConfig,
    Timestamp, TransportConfig,
};
use openbats::bindings::{Bindings, Key, Step};

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// One-way delay of datagrams; loopback TCP has none.
const DELAY: Duration = Duration::from_millis(10);
/// Connections that begin at once: fewer than the half-open ones of a network.
const AT_ONCE: usize = 20;
/// Most bytes of a message.
const MESSAGE: usize = 10_000;
const MS: Duration = Duration::from_millis(1);

/// Bytes that are allocated now.
fn allocated() -> i64 {
    // SAFETY: the function has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as i64
}

/// What the connections of a measurement have in common.
#[derive(Clone, Copy)]
struct Case {
    mode: Mode,
    /// Messages of QUIC go as datagrams.
    has_datagrams: bool,
    /// Bytes that each client sends and the server returns.
    bytes: usize,
    connections: usize,
}

/// Two endpoints, and the memory that each has allocated and not freed.
struct World {
    now: Timestamp,
    ends: [Bindings; 2],
    held: [i64; 2],
    /// Datagrams in flight: arrival time, receiver, bytes.
    in_flight: VecDeque<(Timestamp, usize, Vec<u8>)>,
    buffer: Vec<u8>,
    client: ClientConfig,
    case: Case,
    to: SocketAddr,
    connected: Vec<Key>,
    accepted: Vec<Key>,
    received: [usize; 2],
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + end as u8], 4_000))
}

impl World {
    fn new(case: Case) -> Self {
        let identity = generate_identity(&["localhost".to_owned()]).unwrap();
        let print = fingerprint(&identity.certificate_chain[0]);
        let transport = Arc::new(TransportConfig {
            mode: case.mode,
            congestion: CongestionAlgorithm::Cubic,
            idle_timeout: Duration::from_secs(3_600),
            ..TransportConfig::default()
        });
        let client = ClientConfig {
            trust: PeerTrust::Fingerprints(vec![print]),
            identity: None,
            transport: transport.clone(),
        };
        let server = ServerConfig {
            identity,
            client_trust: None,
            transport,
            retry_threshold: usize::MAX,
            max_connections: 10_000,
        };
        let ends = [None, Some(server)].map(|server| {
            let seed = [u8::from(server.is_some()); 32];
            let has_datagrams = case.has_datagrams && server.is_some();
            Bindings::new(server, seed, has_datagrams).unwrap()
        });
        Self {
            now: ends[0].start().max(ends[1].start()),
            to: ends[SERVER].tcp_address().unwrap_or(address(SERVER)),
            ends,
            held: [0; 2],
            in_flight: VecDeque::new(),
            buffer: Vec::with_capacity(65_536),
            client,
            case,
            connected: Vec::new(),
            accepted: Vec::new(),
            received: [0; 2],
        }
    }

    /// Calls an endpoint, and adds what it allocates meanwhile.
    fn counted<T>(&mut self, end: usize, call: impl FnOnce(&mut Bindings) -> T) -> T {
        let before = allocated();
        let result = call(&mut self.ends[end]);
        self.held[end] += allocated() - before;
        result
    }

    fn connect(&mut self) -> Key {
        let (now, to, config) = (self.now, self.to, self.client.clone());
        let has_datagrams = self.case.has_datagrams;
        self.counted(CLIENT, |client| client.connect(now, to, config.clone(), has_datagrams))
            .unwrap()
    }

    fn send(&mut self, key: Key, bytes: usize) {
        let now = self.now;
        self.counted(CLIENT, |client| client.send(now, key, vec![7; bytes].into()).unwrap());
    }

    /// Takes messages; the server echoes them.
    fn receive(&mut self, end: usize, key: Key) {
        let now = self.now;
        let received = self.counted(end, |endpoint| {
            let mut received = 0;
            while let Some(message) = endpoint.recv(now, key) {
                received += message.len();
                if end == SERVER {
                    endpoint.send(now, key, message).unwrap();
                }
            }
            received
        });
        self.received[end] += received;
    }

    fn poll(&mut self, end: usize) -> Option<Timestamp> {
        let now = self.now;
        loop {
            let mut buffer = core::mem::take(&mut self.buffer);
            let step = self.counted(end, |endpoint| endpoint.poll(now, &mut buffer));
            self.buffer = buffer;
            match step {
                Step::Transmit(transmit) => {
                    for datagram in self.buffer[..transmit.len].chunks(transmit.segment_size) {
                        self.in_flight.push_back((now + DELAY, 1 - end, datagram.to_vec()));
                    }
                }
                Step::Event(key, Event::Connected) => self.connected.push(key),
                Step::Event(key, Event::Accepted) => self.accepted.push(key),
                Step::Event(key, Event::Readable) => self.receive(end, key),
                Step::Event(_, Event::Closed(reason)) => panic!("closed: {reason}"),
                Step::Event(..) => {}
                Step::Timeout(at) => return at,
            }
        }
    }

    /// `most` is the longest step of time: sockets of TCP are served at each.
    fn run(&mut self, time: Duration, most: Duration) {
        let end = self.now + time;
        loop {
            let mut next = end.min(self.now + most);
            for peer in [CLIENT, SERVER] {
                let now = self.now;
                self.counted(peer, |endpoint| endpoint.handle(now, Input::Timeout));
                next = self.poll(peer).map_or(next, |at| at.min(next));
            }
            if self.now >= end {
                return;
            }
            next = self.in_flight.front().map_or(next, |(at, ..)| next.min(*at));
            self.now = self.now.max(next);
            while self.in_flight.front().is_some_and(|(at, ..)| *at <= self.now)
                && let Some((_, to, mut bytes)) = self.in_flight.pop_front()
            {
                let now = self.now;
                let remote = address(1 - to);
                self.counted(to, |endpoint| {
                    let payload = &mut bytes[..];
                    let received = Received { remote, local_ip: None, ecn: 0, payload };
                    endpoint.handle(now, Input::Datagram(received));
                });
                self.poll(to);
            }
        }
    }
}

/// KiB for each idle connection at the client and at the server.
fn idle_kib(case: Case) -> [f64; 2] {
    let mut world = World::new(case);
    // Memory that endpoints allocate only once is not measured.
    for _ in 0..2 {
        let key = world.connect();
        world.run(MS * 200, MS);
        world.send(key, 1_000);
        world.run(MS * 200, MS);
    }
    world.run(Duration::from_secs(20), MS * 100);
    (world.held, world.received) = ([0; 2], [0; 2]);
    for _ in 0..case.connections / AT_ONCE {
        let keys: Vec<_> = (0..AT_ONCE).map(|_| world.connect()).collect();
        world.run(MS * 200, MS);
        // A datagram holds a message of 1,000 bytes.
        let longest = if case.has_datagrams { 1_000 } else { MESSAGE };
        let sends = case.bytes.div_ceil(longest);
        for _ in 0..sends {
            for &key in &keys {
                world.send(key, case.bytes / sends);
            }
            world.run(MS * 40, MS);
        }
    }
    world.run(Duration::from_secs(20), MS * 100);

    assert_eq!(world.received, [case.bytes * case.connections; 2], "received");
    let all = case.connections + 2;
    assert_eq!((world.connected.len(), world.accepted.len()), (all, all));
    for end in &world.ends {
        assert_eq!(end.connection_count(), all, "all connections are open");
    }
    let held = world.held.map(|held| held as f64 / 1_024.0 / case.connections as f64);
    // The connections still work.
    let last = world.connected[all - 1];
    let before = world.received;
    world.send(last, 1_000);
    world.run(MS * 200, MS);
    assert_eq!(world.received, before.map(|bytes| bytes + 1_000));
    held
}

/// Runs this program again without glibc's caches of freed memory for each thread, which count as
/// allocated: one end would pay for what the other takes from them.
fn run_without_caches() -> bool {
    const SETTING: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    if std::env::var(SETTING.0).is_ok_and(|value| value == SETTING.1) {
        return false;
    }
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).arg("--nocapture").envs([SETTING]).output().unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
    println!("{text}");
    assert!(output.status.success(), "{text}");
    true
}

#[test]
fn a_connection_of_tcp_and_quic_is_small_when_idle() {
    if run_without_caches() {
        return;
    }
    let basic = Case { mode: Mode::Tcp, has_datagrams: false, bytes: 0, connections: 60 };
    let quic = Case { mode: Mode::Quic, ..basic };
    let mut failed = Vec::new();
    for (name, case) in [
        ("TCP", basic),
        ("QUIC", quic),
        ("QUIC with datagrams", Case { has_datagrams: true, ..quic }),
    ] {
        // QUIC updates its keys the first time after up to 1,000 packets.
        for (bytes, connections) in [(0, 60), (1_000, 60), (200_000, 60), (2_000_000, 20)] {
            let case = Case { bytes, connections, ..case };
            let held = idle_kib(case);
            let text = format!(
                "{name}, {bytes} bytes in each direction: client {:.1}, server {:.1} KiB",
                held[0], held[1]
            );
            println!("{text}");
            // Less than 2 KiB is a defect of the measurement.
            if !held.iter().all(|kib| (2.0..=16.0).contains(kib)) {
                failed.push(text);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
