//! Memory that a server of the modes TCP, QUIC and UDP holds under attack, by the allocator's count: the attacks of
//! the example `hostile_modes`, and attacks on memory, by peers with valid keys and by unauthenticated ones.
#![cfg(all(target_os = "linux", feature = "quic"))]
#![allow(clippy::disallowed_macros, reason = "it prints a table")]

mod counted;
#[path = "../../examples/hostile_modes/quic.rs"]
mod quic;
#[path = "../../examples/hostile_modes/quic_client.rs"]
mod quic_client;
mod quic_memory;
#[path = "../common/skip.rs"]
mod skip;
#[path = "../../examples/hostile_modes/tcp.rs"]
mod tcp;
#[path = "../../examples/hostile_modes/tcp_client.rs"]
mod tcp_client;
mod tcp_memory;
#[path = "../../examples/hostile_modes/udp.rs"]
#[allow(dead_code, reason = "only hostile packets are sent")]
mod udp;
mod udp_memory;
mod unauthenticated;

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::generate_identity;
use bats_proto::stream::Session;
use bats_proto::{
    ClientConfig, CongestionAlgorithm, Event, Input, Mode, PeerTrust, Received, SendError,
    ServerConfig, Timestamp, TransportConfig,
};
use counted::{Application, Bindings, Count, SETTINGS, Settings, take_counts};
use openbats::bindings::{Key, Step};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use skip::skipped;

/// Most bytes of a segment or a datagram.
const PACKET: usize = 1_400;
/// Connections of the attacks by many.
const CONNECTIONS: usize = 8;
/// Descriptors of the attacks by most connections, both ends.
const DESCRIPTORS: u64 = 5_200;
/// Certificates in the longest chain of a client, about 60,000 bytes.
const CERTIFICATES: usize = 140;

type Attacked = Result<(u64, bool), Box<dyn Error>>;
type Outcome = Attacked;

fn transport(mode: Mode) -> TransportConfig {
    let receive_budget = SETTINGS.get().budget;
    let congestion = CongestionAlgorithm::Cubic;
    TransportConfig { mode, congestion, receive_budget, ..TransportConfig::default() }
}

fn client_config(mode: Mode) -> ClientConfig {
    let transport = Arc::new(transport(mode));
    let identity = SETTINGS.get().has_long_chain.then(|| {
        let mut identity = generate_identity(&["client".to_owned()]).expect("an identity");
        let certificate = identity.certificate_chain[0].clone();
        identity.certificate_chain.resize(CERTIFICATES, certificate);
        identity
    });
    ClientConfig { trust: PeerTrust::DangerousAcceptAny, identity, transport }
}

fn server(mode: Mode, has_datagrams: bool) -> Result<Bindings, Box<dyn Error>> {
    let config = ServerConfig {
        identity: generate_identity(&["localhost".to_owned()])?,
        client_trust: SETTINGS.get().has_long_chain.then_some(PeerTrust::DangerousAcceptAny),
        transport: Arc::new(transport(mode)),
        retry_threshold: SETTINGS.get().retry_threshold,
        max_connections: 100_000,
    };
    Ok(Bindings::new(config, has_datagrams)?)
}

fn polled(server: &mut Bindings, now: Timestamp, buffer: &mut Vec<u8>) -> bool {
    polled_with_answers(server, now, buffer, &mut |_| {})
}

fn polled_with_answers(
    server: &mut Bindings,
    now: Timestamp,
    buffer: &mut Vec<u8>,
    answer: &mut dyn FnMut(&[u8]),
) -> bool {
    let mut is_closed = false;
    loop {
        match server.poll(now, buffer) {
            Step::Transmit(transmit) => {
                buffer[..transmit.len].chunks(transmit.segment_size).for_each(&mut *answer);
            }
            Step::Timeout(Some(at)) if at <= now => server.handle(now, Input::Timeout),
            Step::Timeout(_) => return is_closed,
            Step::Event(_, Event::Closed(_)) => is_closed = true,
            Step::Event(..) => {}
        }
    }
}

fn measured(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    polled(server, now, buffer)
}

fn measured_sockets(server: &mut Bindings, now: Timestamp, buffer: &mut Vec<u8>) -> bool {
    server.handle(now, Input::Timeout);
    polled(server, now, buffer)
}

fn measured_unreachable_port(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    quoted: &[u8],
    buffer: &mut Vec<u8>,
) -> bool {
    server.handle_unreachable_port(now, remote, quoted);
    polled(server, now, buffer)
}

fn measured_with_answers(
    server: &mut Bindings,
    now: Timestamp,
    remote: SocketAddr,
    payload: &mut [u8],
    buffer: &mut Vec<u8>,
) -> (Vec<Vec<u8>>, bool) {
    server.handle(now, Input::Datagram(Received { remote, local_ip: None, ecn: 0, payload }));
    let mut sent = Vec::new();
    let is_closed = polled_with_answers(server, now, buffer, &mut |datagram| {
        sent.push(datagram.to_vec());
    });
    (sent, is_closed)
}

/// The frames of a message.
fn message(len: usize) -> Vec<u8> {
    const LONGEST_PART: usize = 64 << 10;
    let content = vec![7; len];
    let last = len.saturating_sub(1) / LONGEST_PART * LONGEST_PART;
    let mut frames = Vec::new();
    for part in content[..last].chunks(LONGEST_PART) {
        frames.extend(tcp_client::frame(1, part));
    }
    frames.extend(tcp_client::frame(2, &content[last..]));
    frames
}

/// The application sends messages until one has to wait.
fn send_all(server: &mut Bindings, now: Timestamp, key: Option<Key>) -> Result<(), Box<dyn Error>> {
    let key = key.ok_or("not accepted")?;
    let (mut at, mut buffer) = (now, Vec::with_capacity(65_536));
    for _ in 0..10_000 {
        at += Duration::from_micros(10);
        match server.send(at, key, vec![7; 14_000].into()) {
            Ok(()) => {}
            Err(SendError::Blocked(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        polled(server, at, &mut buffer);
    }
    Err("the server takes all messages".into())
}

/// A number in the first frame of a server's session.
fn announced(at: usize) -> usize {
    let mut session = Session::new(Timestamp::ZERO, false, &transport(Mode::Tcp));
    let mut hello = Vec::new();
    session.transmit(Timestamp::ZERO, &mut hello, PACKET);
    let number: [u8; 8] = hello[at..][..8].try_into().expect("eight bytes");
    u64::from_be_bytes(number) as usize
}

/// Bytes of the longest message that a server accepts.
fn longest_message() -> usize {
    announced(5)
}

/// What a server lets its peer send before the application reads.
fn credit() -> usize {
    announced(13)
}

const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;

/// What docs/limits.md promises, section "Memory of the modes TCP, QUIC and UDP".
mod promise {
    use super::{KIB, MIB};

    /// Of an endpoint, for all connections, and for each that there was at once, after it has ended.
    pub(crate) const ENDPOINT: i64 = 128 * KIB;
    pub(crate) const LEFT: i64 = KIB / 2;
    /// Of a connection of TCP, beyond the receive budget and what it sends.
    pub(crate) const TCP: i64 = 192 * KIB;
    /// Data to send that waits in a session, and below it.
    pub(crate) const QUEUE: i64 = 4 * MIB;
    pub(crate) const TCP_UNSENT: i64 = MIB;
    pub(crate) const QUIC_UNACKNOWLEDGED: i64 = 17 * MIB;
    /// Of the stream of QUIC, beyond its window: pieces, and records of packets.
    pub(crate) const QUIC: i64 = 4 * MIB;
    pub(crate) const LARGEST_WINDOW: i64 = 16 * MIB;
    /// Records of packets that a peer does not acknowledge.
    pub(crate) const QUIC_RECORDS: i64 = 26 * MIB;
    /// Half-open handshakes, and connections that wait for theirs.
    pub(crate) const TCP_HALF_OPEN: i64 = 72 * KIB;
    pub(crate) const TCP_WAITING: i64 = KIB / 2;
    pub(crate) const QUIC_HALF_OPEN: i64 = 128 * KIB;
    /// Mode UDP: unread messages of a peer, of all; state of a peer.
    pub(crate) const UDP_PEER_QUEUE: i64 = 8 * MIB;
    pub(crate) const UDP_QUEUES: i64 = 64 * MIB;
    pub(crate) const UDP_PEER: i64 = 2 * KIB;

    /// Attacks of peers for which a server holds nothing.
    const NOTHING: [&str; 3] = [
        "quic-unauthenticated-garbage",
        "quic-unauthenticated-forged-packets",
        "quic-unauthenticated-unknown-ids",
    ];

    /// The bytes of an attack with this receive budget, and as many connections at once.
    pub(crate) fn of(case: &str, budget: i64, connections: i64) -> i64 {
        let received = budget * 11 / 10;
        let mode = case.split('-').next().unwrap_or_default();
        if NOTHING.contains(&case) {
            return ENDPOINT;
        }
        let each = match (mode, case.contains("handshake"), case.contains("unauthenticated")) {
            ("tcp", true, _) => TCP_HALF_OPEN,
            ("tcp", ..) => received + TCP,
            ("quic", true, _) => QUIC_HALF_OPEN,
            ("quic", _, true) => QUIC_HALF_OPEN,
            ("quic", ..) => received + budget.min(LARGEST_WINDOW) + QUIC,
            _ => UDP_PEER,
        };
        let more = match case {
            "tcp-handshake-silent" => 2_048 * TCP_WAITING,
            "tcp-unread-answers" => QUEUE + TCP_UNSENT,
            "quic-unread-answers" => QUEUE + QUIC_UNACKNOWLEDGED,
            "quic-unacknowledged-pings" => QUIC_RECORDS,
            _ if mode == "udp" => (UDP_PEER_QUEUE * connections).min(UDP_QUEUES) * 11 / 10,
            _ => 0,
        };
        ENDPOINT + each * connections + more
    }
}

/// What the application of the server does in an attack on memory.
fn application(case: &str) -> Application {
    if case.contains("-read-") { Application::Reads } else { Application::ReadsNothing }
}

/// Whether the process may open as many descriptors.
fn may_open(descriptors: u64) -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(descriptors, |maximum| maximum.min(descriptors));
    if current.is_some_and(|current| current < wanted) {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum });
    }
    getrlimit(Resource::Nofile).current.is_none_or(|current| current >= descriptors)
}

/// With budgets that attacks use up: the least, one at which queues that double would take the most, and one of which a
/// stream of QUIC uses a part.
const BUDGETS: [usize; 3] = [3 << 20, (4 << 20) + (64 << 10), 24 << 20];

type Attacks = (&'static [&'static str], fn(&str) -> Attacked, &'static [usize]);

#[test]
fn attacks_on_modes_take_no_more_memory_than_is_promised() {
    let attacks: [Attacks; 7] = [
        (tcp::NAMES, |case| tcp::run(case, true), &BUDGETS[..1]),
        (quic::NAMES, |case| quic::run(case, true), &BUDGETS[..1]),
        (udp::NAMES, |case| udp::run(case, true), &BUDGETS[..1]),
        (tcp_memory::NAMES, tcp_memory::run, &BUDGETS),
        (quic_memory::NAMES, quic_memory::run, &BUDGETS),
        (udp_memory::NAMES, udp_memory::run, &BUDGETS[..1]),
        (unauthenticated::NAMES, unauthenticated::run, &BUDGETS[..1]),
    ];
    let has_descriptors = may_open(DESCRIPTORS);
    let mut failed = Vec::new();
    println!(
        "{:38} {:>9} {:>10} {:>10} {:>9} {:>10} {:>9}",
        "attack", "budget", "peak", "held", "left", "promised", "packets"
    );
    for (names, run, budgets) in attacks {
        let runs = budgets.iter().flat_map(|&budget| names.iter().map(move |&case| (case, budget)));
        for (case, budget) in runs {
            if ["tcp-handshake-abandoned", "tcp-handshake-silent"].contains(&case)
                && !has_descriptors
            {
                let why = format!("the process may open less than {DESCRIPTORS} descriptors");
                skipped(case, &why);
                continue;
            }
            let is_work =
                [tcp::NAMES, quic::NAMES, udp::NAMES].iter().any(|names| names.contains(&case));
            SETTINGS.set(Settings {
                budget,
                application: if is_work { Application::Reads } else { application(case) },
                retry_threshold: if case.contains("first-flights") {
                    unauthenticated::RETRY_THRESHOLD
                } else {
                    usize::MAX
                },
                has_long_chain: case == "tcp-long-certificate-chain",
            });
            let (packets, is_closed) = run(case).unwrap_or_else(|error| panic!("{case}: {error}"));
            let counts = take_counts();
            let Count { peak, held, left, connections } = *counts.last().expect("a server");
            let connections = connections.max(1) as i64;
            let promised = promise::of(case, budget as i64, connections);
            let text = format!(
                "{case:38} {budget:9} {peak:10} {held:10} {left:9} {promised:10} {packets:9}{}",
                if is_closed { " closed" } else { "" }
            );
            println!("{text}");
            // Less is a defect of the measurement.
            let is_counted = peak >= held.max(left) && left > KIB;
            let most_left = promise::ENDPOINT + promise::LEFT * connections;
            if !is_counted || peak > promised || left > most_left {
                failed.push(text);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
