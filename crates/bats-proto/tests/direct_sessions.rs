//! Direct sessions of neighbours with real TLS on the links: what they need, what they cost, and who cannot open them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::fuzzing::{connect_in_flow, flow_of};
use bats_proto::relay::{LinkPolicy, RelayConfig, RelayStats};
use bats_proto::testing::{Wires, World};
use bats_proto::wire::flow::{DIRECT_FLOW, FlowKey, NodeId};
use bats_proto::{
    ClientConfig, CongestionAlgorithm, ConnectionHandle, Endpoint, EndpointConfig, Event, Mode,
    PeerTrust, PresharedKey, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

const DELAY: Duration = Duration::from_millis(5);
/// The year 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);
/// Bytes of a sealed symbol that are not content: length and tag (docs/spec/keys.md).
const SEAL: usize = 18;

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + index as u8], 4_000))
}

fn node(index: usize) -> NodeId {
    NodeId(70 + index as u32)
}

fn transport(mode: Mode, psk: Option<PresharedKey>) -> TransportConfig {
    TransportConfig {
        mode,
        also_accepted: vec![Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent],
        psk,
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 50_000_000 },
        ..TransportConfig::default()
    }
}

/// Nodes in a line, each with a link to the next one. Each end of a link ties it to a node.
struct Line {
    world: World<Wires>,
    prints: Vec<[u8; 32]>,
    psk: Option<PresharedKey>,
    /// The connections of both ends of each link.
    links: Vec<[ConnectionHandle; 2]>,
}

impl Line {
    /// The nodes with these IDs. All links are tied to the right nodes.
    fn new(ids: &[NodeId], psk: Option<PresharedKey>) -> Self {
        let mut prints = Vec::new();
        let endpoint = |index: usize| {
            let identity = generate_identity(&["node.example".to_owned()]).unwrap();
            prints.push(fingerprint(&identity.certificate_chain[0]));
            let server = ServerConfig {
                identity,
                transport: Arc::new(transport(Mode::Brtp, psk.clone())),
                client_trust: Some(PeerTrust::DangerousAcceptAny),
                retry_threshold: 10,
                max_connections: 100,
            };
            let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
            let mut endpoint = Endpoint::new(config, [index as u8; 32]).unwrap();
            endpoint.enable_relay(RelayConfig::new(ids[index])).unwrap();
            (address(index), endpoint)
        };
        let nodes = (0..ids.len()).map(endpoint).collect();
        let now = Timestamp::from_nanos(NOW.as_nanos() as u64);
        let mut line =
            Self { world: World::wired(now, nodes, DELAY), prints, psk, links: Vec::new() };
        for index in 1..ids.len() {
            let now = line.world.now;
            let config = line.client(index);
            line.world.events.clear();
            let opened = line.world.nodes[index - 1].connect(now, address(index), "node", config);
            line.world.run(Duration::from_millis(500));
            let accepted = line.world.handle_of_event(index, &Event::Accepted).unwrap();
            line.links.push([opened.unwrap(), accepted]);
            line.tie(index - 1, 0, Some(ids[index]));
            line.tie(index - 1, 1, Some(ids[index - 1]));
        }
        line.world.events.clear();
        line
    }

    fn client(&self, index: usize) -> ClientConfig {
        let trust = PeerTrust::Fingerprints(vec![self.prints[index]]);
        let transport = Arc::new(transport(Mode::Brtp, self.psk.clone()));
        ClientConfig { trust, identity: None, transport }
    }

    /// Ties an end of a link to a node.
    fn tie(&mut self, link: usize, end: usize, neighbour: Option<NodeId>) {
        let mut policy = LinkPolicy::default();
        policy.neighbour = neighbour;
        let (now, handle) = (self.world.now, self.links[link][end]);
        assert!(self.world.nodes[link + end].admit_with(now, handle, policy));
    }

    fn connect(&mut self, from: usize, to: NodeId, mode: Mode) -> ConnectionHandle {
        let (now, transport) = (self.world.now, Arc::new(transport(mode, None)));
        self.world.nodes[from].connect_neighbour(now, to, transport).unwrap()
    }

    /// A session over the routes, which lead over the first link.
    fn connect_end_to_end(&mut self, mode: Mode) -> ConnectionHandle {
        let now = self.world.now;
        let [near, far] = self.links[0];
        assert!(self.world.nodes[0].route(now, node(1), near));
        assert!(self.world.nodes[1].route(now, node(0), far));
        let transport = Arc::new(transport(mode, self.psk.clone()));
        let config = ClientConfig { transport, ..self.client(1) };
        self.world.nodes[0].connect_across(now, node(1), "node.example", config).unwrap()
    }

    fn stats(&self, index: usize) -> RelayStats {
        self.world.nodes[index].relay_stats().unwrap()
    }

    fn has(&self, index: usize, event: &Event) -> bool {
        self.world.handle_of_event(index, event).is_some()
    }
}

fn pair(psk: Option<PresharedKey>) -> Line {
    Line::new(&[node(0), node(1)], psk)
}

fn message(number: usize) -> Bytes {
    (0..5_000_usize).map(|x| (x * 7 + number * 13) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn neighbours_exchange_messages_without_a_handshake_of_the_session() {
    for psk in [None, Some(PresharedKey::new([1; 32]))] {
        for mode in [Mode::Brtp, Mode::Brctp] {
            let mut line = pair(psk.clone());
            let start = line.world.now;
            let session = line.connect(0, node(1), mode);
            assert!(line.world.nodes[0].is_direct(session));
            line.world.run(2 * DELAY);
            assert!(line.has(0, &Event::Connected), "after one round trip");
            line.world.run(Duration::from_millis(100));
            let other = line.world.handle_of_event(1, &Event::Accepted).unwrap();
            let [near, far] = [&line.world.nodes[0], &line.world.nodes[1]];
            assert!(far.is_direct(other));
            assert_eq!(far.remote_node(other), Some(node(0)));
            assert_eq!((near.peer_fingerprint(session), far.peer_fingerprint(other)), {
                let of_links = [(near, line.links[0][0]), (far, line.links[0][1])];
                let [of_near, of_far] = of_links.map(|(node, link)| node.peer_fingerprint(link));
                assert_eq!((of_near, of_far), (Some(line.prints[1]), None));
                (of_near, of_far)
            });
            assert!(near.stats(start, session).is_some());
            for number in 0..100 {
                let now = line.world.now;
                line.world.nodes[0].send(now, session, message(number)).unwrap();
                line.world.nodes[1].send(now, other, message(1_000 + number)).unwrap();
            }
            line.world.run(Duration::from_secs(2));
            for (index, handle, first) in [(1, other, 0), (0, session, 1_000)] {
                for number in 0..100 {
                    let got = line.world.nodes[index].recv(line.world.now, handle);
                    let is_right = got == Some(message(first + number));
                    assert!(
                        is_right,
                        "{mode:?}: message {number} at {index}: {:?}",
                        got.map(|m| m.len())
                    );
                }
            }
            line.world.nodes[0].close(line.world.now, session, 9, "done");
            line.world.run(Duration::from_secs(1));
            let closed = line.world.events.iter().any(|(index, handle, event)| {
                (*index, *handle) == (1, other) && matches!(event, Event::Closed(_))
            });
            assert!(closed, "the close is signalled");
        }
    }
}

/// Bytes of the datagrams in which a session sends one short message, without those of the end-to-end feedback.
fn largest_datagram(line: &mut Line, session: ConnectionHandle) -> usize {
    line.world.run(Duration::from_secs(2));
    line.world.links.sent.clear();
    let now = line.world.now;
    line.world.nodes[0].send(now, session, Bytes::from(vec![7; 700])).unwrap();
    line.world.run(DELAY / 5);
    let sent = line.world.links.sent.iter().filter(|sent| sent.from == 0);
    sent.map(|sent| sent.bytes.len()).max().unwrap()
}

#[test]
fn symbols_are_not_sealed_twice() {
    for mode in [Mode::Btp, Mode::Brtp, Mode::Transparent] {
        let [direct, end_to_end] = [true, false].map(|is_direct| {
            let mut line = pair(None);
            let session = match is_direct {
                true => line.connect(0, node(1), mode),
                false => line.connect_end_to_end(mode),
            };
            assert_eq!(line.world.nodes[0].is_direct(session), is_direct);
            largest_datagram(&mut line, session)
        });
        assert_eq!(direct + SEAL, end_to_end, "{mode:?}");
    }
}

#[test]
fn ordinary_sessions_never_have_the_bit_of_direct_ones() {
    let mut line = pair(None);
    let (now, config) = (line.world.now, line.client(1));
    for number in 0..64 {
        let (near, direct) = (&mut line.world.nodes[0], number % 2 == 0);
        let session = match direct {
            true => near.connect_neighbour(now, node(1), Arc::new(transport(Mode::Brtp, None))),
            false => near.connect_across(now, node(1), "node.example", config.clone()),
        };
        let key = flow_of(near, session.unwrap()).unwrap();
        assert_eq!(key.is_direct(), direct);
    }
}

#[test]
fn direct_sessions_need_an_admitted_link_that_is_tied_to_the_neighbour() {
    let mut line = pair(None);
    let near = |line: &mut Line, transport| {
        let now = line.world.now;
        let begun = line.world.nodes[0].connect_neighbour(now, node(1), Arc::new(transport));
        begun.map_err(|error| error.to_string())
    };
    let plain = transport(Mode::Brtp, None);
    for unusable in [
        TransportConfig { psk: Some(PresharedKey::new([1; 32])), ..plain.clone() },
        TransportConfig { early_data: true, ..plain.clone() },
    ] {
        assert!(near(&mut line, unusable).is_err());
    }
    for other in [None, Some(node(5))] {
        line.tie(0, 0, other);
        let error = near(&mut line, plain.clone()).unwrap_err();
        assert!(error.contains("there is no link with node 71"), "{error}");
    }
    line.tie(0, 0, Some(node(1)));
    near(&mut line, plain).unwrap();
}

/// Whether the last node learns of a direct session that the first one opens in this flow.
fn is_refused(line: &mut Line, key: FlowKey, by: usize) -> bool {
    let (now, refused) = (line.world.now, line.stats(by).dropped.refused);
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport(Mode::Brtp, None)),
    };
    connect_in_flow(&mut line.world.nodes[0], now, key, "", config).unwrap();
    line.world.run(Duration::from_secs(2));
    let is_known = (1..line.world.nodes.len()).any(|index| line.has(index, &Event::Accepted));
    assert!(!is_known && !line.has(0, &Event::Connected));
    let started = line.world.nodes[by].endpoint_stats().handshakes_started;
    assert_eq!(started, 1, "only that of the link");
    line.stats(by).dropped.refused > refused + 2
}

#[test]
fn packets_of_foreign_direct_flows_are_refused() {
    let flow = 5 | DIRECT_FLOW;
    // A node with transit through its neighbour, which it takes for the destination.
    let mut line = Line::new(&[node(0), node(1), node(2)], None);
    let now = line.world.now;
    let onward = line.links[1][0];
    assert!(line.world.nodes[1].route(now, node(2), onward));
    line.tie(0, 0, Some(node(2)));
    let key = FlowKey { destination: node(2), source: node(0), flow };
    assert!(is_refused(&mut line, key, 1));
    assert_eq!((line.stats(1).forwarded, line.stats(2).received), (0, 0));

    // A neighbour with the ID of another node, and a link that is tied to none.
    for tied in [Some(node(0)), None] {
        let mut line = Line::new(&[node(7), node(1)], None);
        line.tie(0, 1, tied);
        let key = FlowKey { destination: node(1), source: node(7), flow };
        assert!(is_refused(&mut line, key, 1), "{tied:?}");
        assert_eq!(line.stats(1).flows, 0, "no state");
    }
}

/// The tie is what authenticates the neighbour, so its end ends what depends on it.
#[test]
fn a_session_stalls_while_its_link_is_not_tied_to_the_neighbour() {
    let mut line = pair(None);
    let session = line.connect(0, node(1), Mode::Brtp);
    line.world.run(Duration::from_millis(100));
    let other = line.world.handle_of_event(1, &Event::Accepted).unwrap();
    for (end, forged) in [(0, None), (1, Some(node(9)))] {
        line.tie(0, end, forged);
        let now = line.world.now;
        line.world.nodes[0].send(now, session, message(end)).unwrap();
        line.world.run(Duration::from_secs(1));
        assert_eq!(line.world.nodes[1].recv(line.world.now, other), None, "end {end}");
        line.tie(0, end, Some(node(1 - end)));
        line.world.run(Duration::from_secs(3));
        assert_eq!(line.world.nodes[1].recv(line.world.now, other), Some(message(end)));
    }
}
