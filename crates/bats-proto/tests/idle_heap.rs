//! Heap memory of idle connections with TLS: an endpoint may have thousands of them. Everything is
//! counted, also what the C code of the TLS library allocates, which Rust's allocator does not see.
//!
//! The allocator counts for the whole process, so this program has only one test.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::PresharedKey;
use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::testing::{self, Application, Node, Wires};
use bats_proto::{
    ClientConfig, ConnectionHandle, Endpoint, EndpointConfig, Event, Identity, Input, Mode, Output,
    PeerTrust, Resumption, ServerConfig, SessionStore, Timestamp, Transmit, TransportConfig,
};

const CLIENT: usize = 0;
const SERVER: usize = 1;
const NAME: &str = "server.example";
/// One-way delay.
const DELAY: Duration = Duration::from_millis(10);
/// Connections between two deliveries of packets: fewer than the half-open handshakes of a network.
const AT_ONCE: usize = 20;
/// Memory that each end of an idle connection may take.
const LIMIT: f64 = 16.0;

/// Most bytes of a message.
const MESSAGE: usize = 10_000;

/// Bytes of a message after losses.
const LAST: usize = 100;

const OWN_MODES: [Mode; 4] = [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent];

/// Bytes that are allocated now.
fn allocated() -> i64 {
    // SAFETY: the function has no preconditions.
    let info = unsafe { libc::mallinfo2() };
    (info.uordblks + info.hblkhd) as i64
}

/// What the connections of a measurement have in common.
#[derive(Clone)]
struct Case {
    mode: Mode,
    /// Bytes that each client sends and the server returns.
    bytes: usize,
    /// The server asks for certificates.
    has_client_certificates: bool,
    has_psk: bool,
    /// One in so many datagrams is lost, if not 0.
    one_lost_in: u64,
    /// The clients keep session tickets, and resume the sessions of earlier connections.
    resumes: bool,
    connections: usize,
}

/// An endpoint, and the memory that it has allocated and not freed.
struct Counted {
    endpoint: Endpoint,
    held: i64,
}

impl Counted {
    /// Calls the endpoint, and adds what it allocates meanwhile.
    fn call<T>(&mut self, call: impl FnOnce(&mut Endpoint) -> T) -> T {
        let before = allocated();
        let result = call(&mut self.endpoint);
        self.held += allocated() - before;
        result
    }
}

impl Node for Counted {
    fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        self.call(|endpoint| endpoint.handle(now, input));
    }

    fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Output {
        self.call(|endpoint| endpoint.poll(now, buffer))
    }
}

/// The applications: the server echoes messages.
#[derive(Default)]
struct Echo {
    connected: Vec<ConnectionHandle>,
    accepted: Vec<ConnectionHandle>,
    received: [usize; 2],
    one_lost_in: u64,
    datagrams: u64,
}

impl Application<Counted> for Echo {
    fn on_event(
        &mut self,
        now: Timestamp,
        (end, node): (usize, &mut Counted),
        handle: ConnectionHandle,
        event: &Event,
    ) -> bool {
        match event {
            Event::Connected => self.connected.push(handle),
            Event::Accepted => self.accepted.push(handle),
            Event::Readable => {
                let received = node.call(|endpoint| {
                    let mut received = 0;
                    while let Some(message) = endpoint.recv(now, handle) {
                        received += message.len();
                        if end == SERVER {
                            endpoint.send(now, handle, message).unwrap();
                        }
                    }
                    received
                });
                self.received[end] += received;
            }
            Event::Closed(reason) => panic!("closed: {reason}"),
            _ => {}
        }
        false
    }

    fn lets_pass(&mut self, _from: usize, _transmit: &Transmit, _bytes: &mut Vec<u8>) -> bool {
        self.datagrams += 1;
        self.one_lost_in == 0 || !self.datagrams.is_multiple_of(self.one_lost_in)
    }
}

struct World {
    world: testing::World<Wires, Counted>,
    client: ClientConfig,
    echo: Echo,
}

fn address(end: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + end as u8], 4_000))
}

fn identity() -> (Identity, PeerTrust) {
    let identity = generate_identity(&[NAME.to_owned()]).unwrap();
    let print = fingerprint(&identity.certificate_chain[0]);
    (identity, PeerTrust::Fingerprints(vec![print]))
}

impl World {
    fn new(case: &Case) -> Self {
        let (server_identity, trust) = identity();
        let (client_identity, client_trust) = identity();
        let transport = TransportConfig {
            mode: case.mode,
            also_accepted: OWN_MODES.to_vec(),
            deadline: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(3_600),
            psk: case.has_psk.then(|| PresharedKey::new([3; 32])),
            ..TransportConfig::default()
        };
        let resumption = case.resumes.then(|| Resumption {
            store: SessionStore::new(1_000),
            unix_time: Duration::from_secs(1_790_000_000),
        });
        let client = ClientConfig {
            trust,
            identity: case.has_client_certificates.then_some(client_identity),
            transport: Arc::new(TransportConfig { resumption, ..transport.clone() }),
        };
        let server = ServerConfig {
            identity: server_identity,
            client_trust: case.has_client_certificates.then_some(client_trust),
            transport: Arc::new(transport),
            retry_threshold: usize::MAX,
            max_connections: 10_000,
        };
        let ends = [(CLIENT, None), (SERVER, Some(server))].map(|(end, server)| {
            let config = EndpointConfig { server, ..EndpointConfig::default() };
            let endpoint = Endpoint::new(config, [end as u8; 32]).unwrap();
            (address(end), Counted { endpoint, held: 0 })
        });
        let world = testing::World::wired(Timestamp::from_millis(1), ends.into(), DELAY);
        Self { world, client, echo: Echo::default() }
    }

    fn connect(&mut self) -> ConnectionHandle {
        let (now, config) = (self.world.now, self.client.clone());
        self.world.nodes[CLIENT]
            .call(|client| client.connect(now, address(SERVER), NAME, config).unwrap())
    }

    fn send(&mut self, handle: ConnectionHandle, bytes: usize) {
        let now = self.world.now;
        self.world.nodes[CLIENT]
            .call(|client| client.send(now, handle, vec![7; bytes].into()).unwrap());
    }

    fn run(&mut self, time: Duration) {
        self.world.drive(time, &mut self.echo);
    }
}

/// KiB for each idle connection at the client and at the server.
fn idle_kib(case: &Case) -> [f64; 2] {
    let mut world = World::new(case);
    // Memory that endpoints allocate only once is not measured, and clients get tickets.
    for _ in 0..2 {
        world.connect();
        world.run(Duration::from_secs(1));
    }
    world.world.nodes.iter_mut().for_each(|node| node.held = 0);
    // A client keeps four sessions of a server.
    let at_once = if case.resumes { 4 } else { AT_ONCE };
    for _ in 0..case.connections / at_once {
        let handles: Vec<_> = (0..at_once).map(|_| world.connect()).collect();
        world.run(Duration::from_millis(200));
        if case.bytes > 0 {
            world.echo.one_lost_in = case.one_lost_in;
            let sends = case.bytes.div_ceil(MESSAGE);
            for &handle in &handles {
                for _ in 0..sends {
                    world.send(handle, case.bytes / sends);
                }
            }
            world.run(Duration::from_millis(200) * sends as u32);
            world.echo.one_lost_in = 0;
            if case.one_lost_in > 0 {
                // The newest incomplete message is kept: it may continue.
                handles.iter().for_each(|&handle| world.send(handle, LAST));
                world.run(Duration::from_millis(200));
            }
        }
    }
    world.run(Duration::from_secs(20));

    // Modes that do not retransmit lose messages.
    let may_lose = case.one_lost_in > 0 && matches!(case.mode, Mode::Btp | Mode::Transparent);
    let sent = case.bytes + if case.one_lost_in > 0 { LAST } else { 0 };
    let all = [sent * case.connections; 2];
    assert!(
        may_lose || world.echo.received == all,
        "received: {:?} of {all:?}",
        world.echo.received
    );
    let all = case.connections + 2;
    assert_eq!((world.echo.connected.len(), world.echo.accepted.len()), (all, all));
    let resumed = |end: usize, handles: &[ConnectionHandle]| {
        let endpoint = &world.world.nodes[end].endpoint;
        handles
            .iter()
            .filter(|handle| endpoint.stats(world.world.now, **handle).unwrap().resumed)
            .count()
    };
    for (end, handles) in [(CLIENT, &world.echo.connected), (SERVER, &world.echo.accepted)] {
        assert_eq!(
            world.world.nodes[end].endpoint.connection_count(),
            all,
            "all connections are open"
        );
        assert_eq!(resumed(end, handles) > case.connections / 2, case.resumes);
        let print = world.world.nodes[end].endpoint.peer_fingerprint(handles[0]);
        assert_eq!(print.is_some(), end == CLIENT || case.has_client_certificates);
    }
    let held = [CLIENT, SERVER]
        .map(|end| world.world.nodes[end].held as f64 / 1_024.0 / case.connections as f64);
    // The connections still work, also after a key update.
    let last = world.echo.connected[all - 1];
    let before = world.echo.received;
    for _ in 0..2 {
        world.send(last, 1_000);
        world.run(Duration::from_secs(130));
    }
    assert_eq!(world.echo.received, before.map(|bytes| bytes + 2_000));
    let stats = world.world.nodes[CLIENT].endpoint.stats(world.world.now, last).unwrap();
    assert!(stats.key_updates > 0 && stats.packets.forged == 0, "{stats:?}");
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
fn a_connection_takes_at_most_16_kib_when_idle() {
    if run_without_caches() {
        return;
    }
    let basic = Case {
        mode: Mode::Brtp,
        bytes: 0,
        has_client_certificates: false,
        has_psk: false,
        one_lost_in: 0,
        resumes: false,
        connections: 200,
    };
    let mut cases = vec![("1,000 connections", Case { connections: 1_000, ..basic.clone() })];
    for mode in OWN_MODES {
        cases.push(("nothing sent", Case { mode, ..basic.clone() }));
    }
    for mode in OWN_MODES {
        cases.push(("1,000 bytes in each direction", Case { mode, bytes: 1_000, ..basic.clone() }));
    }
    for mode in OWN_MODES {
        let case = Case { mode, bytes: 200_000, connections: 60, ..basic.clone() };
        cases.push((
            "200,000 bytes in each direction, 5 % loss",
            Case { one_lost_in: 20, ..case.clone() },
        ));
        cases.push(("200,000 bytes in each direction", case));
    }
    cases.push(("certificates", Case { has_client_certificates: true, ..basic.clone() }));
    cases.push(("pre-shared key", Case { has_psk: true, ..basic.clone() }));
    cases.push(("resumption", Case { resumes: true, ..basic.clone() }));
    let all = Case { bytes: 1_000, has_client_certificates: true, has_psk: true, ..basic };
    cases.push(("everything", Case { resumes: true, ..all }));
    let mut failed = Vec::new();
    for (name, case) in cases {
        let held = idle_kib(&case);
        let text =
            format!("{:?}, {name}: client {:.1}, server {:.1} KiB", case.mode, held[0], held[1]);
        println!("{text}");
        if held.iter().any(|kib| !(4.0..=LIMIT).contains(kib)) {
            failed.push(text);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
