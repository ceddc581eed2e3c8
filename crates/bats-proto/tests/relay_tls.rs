//! An end-to-end session over a relay with real TLS: three nodes, each of which trusts pinned
//! certificates only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::fuzzing::{connect_in_flow, flow_of};
use bats_proto::relay::RelayConfig;
use bats_proto::testing::{Wires, World};
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ClientConfig, CloseReason, CongestionAlgorithm, ConnectionHandle, Endpoint, EndpointConfig,
    Event, PeerTrust, PresharedKey, ServerConfig, Timestamp, TransportConfig,
};
use bytes::Bytes;

const SOURCE: usize = 0;
const RELAY: usize = 1;
const SINK: usize = 2;
/// The year 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);

/// Three endpoints in a line, with a delay of 5 ms for each hop; one datagram in twelve is lost.
struct ThreeNodes {
    world: World<Wires>,
    prints: Vec<[u8; 32]>,
    psk: Option<PresharedKey>,
    /// The relay's link to the sink.
    onward_link: Option<ConnectionHandle>,
    /// Number of datagrams.
    count: u64,
    /// All datagrams are lost.
    is_cut: bool,
}

fn address(index: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + index as u8], 4_000))
}

fn node(index: usize) -> NodeId {
    NodeId(70 + index as u32)
}

/// Frequent key updates.
fn transport(psk: Option<PresharedKey>) -> Arc<TransportConfig> {
    Arc::new(TransportConfig {
        psk,
        key_update_packets: 64,
        stateless_resets: true,
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 50_000_000 },
        ..TransportConfig::default()
    })
}

/// A node and the fingerprint of its certificate.
fn node_endpoint(index: usize, seed: u8, psk: Option<PresharedKey>) -> (Endpoint, [u8; 32]) {
    let identity = generate_identity(&["node.example".to_owned()]).unwrap();
    let print = fingerprint(&identity.certificate_chain[0]);
    let server = ServerConfig {
        identity,
        transport: transport(psk),
        client_trust: None,
        retry_threshold: 10,
        max_connections: 10,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [seed; 32]).unwrap();
    endpoint.enable_relay(RelayConfig::new(node(index))).unwrap();
    assert!(endpoint.enable_relay(RelayConfig::new(node(index))).is_err(), "enabled twice");
    (endpoint, print)
}

impl ThreeNodes {
    fn new() -> Self {
        Self::with(None)
    }

    /// A network with this pre-shared key on all links and sessions.
    fn with(psk: Option<PresharedKey>) -> Self {
        let nodes =
            [SOURCE, RELAY, SINK].map(|index| node_endpoint(index, index as u8, psk.clone()));
        let prints = nodes.iter().map(|(_, print)| *print).collect();
        let nodes = (0..).map(address).zip(nodes.into_iter().map(|(endpoint, _)| endpoint));
        let now = Timestamp::from_nanos(NOW.as_nanos() as u64);
        let world = World::wired(now, nodes.collect(), Duration::from_millis(5));
        let mut net = Self { world, prints, psk, onward_link: None, count: 0, is_cut: false };
        for index in [SOURCE, RELAY] {
            let config = net.client(index + 1);
            let now = net.world.now;
            net.world.nodes[index]
                .connect(now, address(index + 1), "node.example", config)
                .unwrap();
        }
        net.run(Duration::from_millis(500));
        net
    }

    /// A network with admitted links and routes over them.
    fn joined() -> Self {
        Self::new().join()
    }

    fn join(self) -> Self {
        let mut net = self;
        net.admit(SOURCE, &Event::Connected, SINK);
        net.admit(RELAY, &Event::Accepted, SOURCE);
        net.admit(RELAY, &Event::Connected, SINK);
        net.admit(SINK, &Event::Accepted, SOURCE);
        net.onward_link = Some(net.link(RELAY, &Event::Connected));
        net.world.events.clear();
        net
    }

    fn client(&self, index: usize) -> ClientConfig {
        let trust = PeerTrust::Fingerprints(vec![self.prints[index]]);
        ClientConfig { trust, identity: None, transport: transport(self.psk.clone()) }
    }

    fn link(&self, index: usize, event: &Event) -> ConnectionHandle {
        self.world.handle_of_event(index, event).expect("the link is established")
    }

    fn admit(&mut self, index: usize, event: &Event, towards: usize) {
        let link = self.link(index, event);
        assert!(
            !self.world.nodes[index].route(self.world.now, node(towards), link),
            "not admitted"
        );
        assert!(self.world.nodes[index].admit(self.world.now, link));
        assert!(self.world.nodes[index].route(self.world.now, node(towards), link));
    }

    fn run(&mut self, time: Duration) {
        let (count, is_cut) = (&mut self.count, self.is_cut);
        self.world.run_with(time, |_, _| {
            *count += 1;
            *count % 12 == 5 || is_cut
        });
        assert_eq!(self.world.links.unroutable, 0, "datagrams have the address of a node");
    }

    /// Number of datagrams from the relay to the sink.
    fn onward(&self) -> usize {
        let sent = self.world.links.sent.iter().filter(|sent| sent.from == RELAY);
        sent.filter(|sent| sent.transmit.remote == address(SINK)).count()
    }
}

fn message(number: usize) -> Bytes {
    (0..5_000_usize).map(|x| (x * 7 + number * 13) as u8).collect::<Vec<u8>>().into()
}

#[test]
fn end_to_end_session_works_over_a_relay_without_its_keys() {
    check_end_to_end_messages(ThreeNodes::joined());
}

fn check_end_to_end_messages(mut net: ThreeNodes) {
    let (now, config) = (net.world.now, net.client(SINK));
    let session =
        net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    assert_eq!(net.world.nodes[SINK].remote_node(other), Some(node(SOURCE)));
    assert_eq!(net.world.nodes[SOURCE].peer_fingerprint(session), Some(net.prints[SINK]));
    assert!(!net.world.nodes[SOURCE].admit(net.world.now, session), "a session is not a link");

    for number in 0..300 {
        net.world.nodes[SOURCE].send(net.world.now, session, message(number)).unwrap();
        net.world.nodes[SINK].send(net.world.now, other, message(1_000 + number)).unwrap();
    }
    net.run(Duration::from_secs(3));
    for (index, handle, first) in [(SINK, other, 0), (SOURCE, session, 1_000)] {
        for number in 0..300 {
            let got = net.world.nodes[index].recv(net.world.now, handle);
            assert!(got == Some(message(first + number)), "message {number} at {index}");
        }
    }
    let stats = net.world.nodes[SOURCE].stats(net.world.now, session).unwrap();
    assert_eq!(stats.coding.symbols_polluted, 0);
    let relay = net.world.nodes[RELAY].relay_stats().unwrap();
    assert!(relay.forwarded > 2_000 && relay.top_ups + relay.extras > 100, "{relay:?}");
    assert_eq!(relay.delivered, 0);
    assert!(net.world.nodes[SOURCE].is_all_acknowledged(session));
    net.world.nodes[SOURCE].close(net.world.now, session, 9, "done");
    net.run(Duration::from_secs(1));
    let closed = net.world.events.iter().any(|(index, handle, event)| {
        (*index, *handle) == (SINK, other) && matches!(event, Event::Closed(_))
    });
    assert!(closed, "the close is signalled end to end");
}

/// An application thread or a scheduler that is late hands many datagrams to the endpoint at once.
#[test]
fn a_burst_of_datagrams_does_not_exceed_the_memory_of_a_session() {
    let mut net = ThreeNodes::joined();
    let (now, config) = (net.world.now, net.client(SINK));
    let session =
        net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    net.world.links.slot = Some((SINK, Duration::from_millis(100)));
    for number in 0..300 {
        net.world.nodes[SOURCE].send(net.world.now, session, message(number)).unwrap();
    }
    net.run(Duration::from_secs(5));
    for number in 0..300 {
        assert!(
            net.world.nodes[SINK].recv(net.world.now, other) == Some(message(number)),
            "{number}"
        );
    }
    let stats = net.world.nodes[SINK].stats(net.world.now, other).unwrap();
    assert_eq!(stats.packets.refused, 0);
}

/// A close that no path carried: the next packets of the other end are answered by a stateless reset.
#[test]
fn an_end_to_end_session_that_ended_without_a_path_ends_at_its_client() {
    for is_busy in [true, false] {
        let mut net = ThreeNodes::joined();
        let (now, config) = (net.world.now, net.client(SINK));
        let session = net.world.nodes[SOURCE]
            .connect_across(now, node(SINK), "node.example", config)
            .unwrap();
        net.run(Duration::from_millis(500));
        let other = net.link(SINK, &Event::Accepted);
        net.world.nodes[SOURCE].send(net.world.now, session, message(0)).unwrap();
        net.run(Duration::from_millis(200));
        assert_eq!(net.world.nodes[SINK].recv(net.world.now, other), Some(message(0)));
        net.is_cut = true;
        net.world.nodes[SINK].close(net.world.now, other, 1, "no longer configured");
        net.run(Duration::from_secs(2));
        if !is_busy {
            net.is_cut = false;
        }
        // Before the path is back: probes and top-ups follow. After it: source packets arrive.
        net.world.nodes[SOURCE].send(net.world.now, session, message(1)).unwrap();
        net.run(Duration::from_millis(100));
        net.is_cut = false;
        net.run(Duration::from_secs(1));
        let ended = net.world.events.iter().any(|(index, handle, event)| {
            let of_session = (*index, *handle) == (SOURCE, session);
            matches!(event, Event::Closed(CloseReason::Lost(text)) if of_session && text.contains("does not know"))
        });
        assert!(ended, "sent while cut: {is_busy}");
        let sink = net.world.nodes[SINK].endpoint_stats();
        assert!((1..50).contains(&sink.stateless_resets_sent), "{sink:?}");
    }
}

/// A flow names its source, and any user of a relay can write any name. That must not replace an
/// existing session.
#[test]
fn a_session_is_not_replaced_by_one_with_the_same_flow() {
    let mut net = ThreeNodes::joined();
    let (now, config) = (net.world.now, net.client(SINK));
    let source = &mut net.world.nodes[SOURCE];
    let session = source.connect_across(now, node(SINK), "node.example", config.clone()).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    assert_eq!(
        (net.world.nodes[SOURCE].remote(session), net.world.nodes[SINK].remote(other)),
        (None, None)
    );
    let flow = flow_of(&net.world.nodes[SOURCE], session).unwrap();
    let source = &mut net.world.nodes[SOURCE];
    let again = connect_in_flow(source, now, flow, "node.example", config.clone());
    assert!(again.unwrap_err().to_string().contains("already"));

    // Another endpoint takes the source's address and node ID.
    let (impostor, print) = node_endpoint(SOURCE, 99, None);
    let source = core::mem::replace(&mut net.world.nodes[SOURCE], impostor);
    let kept_print = core::mem::replace(&mut net.prints[SOURCE], print);
    net.world.events.clear();
    let (now, to_relay) = (net.world.now, net.client(RELAY));
    net.world.nodes[SOURCE].connect(now, address(RELAY), "node.example", to_relay).unwrap();
    net.run(Duration::from_millis(500));
    net.admit(SOURCE, &Event::Connected, SINK);
    let link = net.link(RELAY, &Event::Accepted);
    assert!(net.world.nodes[RELAY].admit(net.world.now, link));
    net.world.events.clear();
    let now = net.world.now;
    connect_in_flow(&mut net.world.nodes[SOURCE], now, flow, "node.example", config).unwrap();
    let refused = net.world.nodes[SINK].endpoint_stats().connections_refused;
    net.run(Duration::from_secs(1));
    let news = net.world.events.iter().filter(|(index, _, _)| *index == SINK).count();
    assert_eq!(news, 0, "the sink has no new session, and the old one has not ended");
    assert!(
        net.world.nodes[SINK].endpoint_stats().connections_refused > refused,
        "the attempt was received"
    );

    // The existing session continues.
    net.world.nodes[SOURCE] = source;
    net.prints[SOURCE] = kept_print;
    net.world.nodes[SOURCE].send(net.world.now, session, message(1)).unwrap();
    net.run(Duration::from_secs(3));
    assert_eq!(net.world.nodes[SINK].recv(net.world.now, other), Some(message(1)));
}

#[test]
fn psk_nodes_connect_over_a_psk_relay() {
    let mut net = ThreeNodes::with(Some(PresharedKey::new([1; 32]))).join();
    // A session with another key is unauthenticated, whatever link it arrives over.
    let (now, config) = (net.world.now, net.client(SINK));
    let transport = transport(Some(PresharedKey::new([2; 32])));
    let wrong_key = ClientConfig { transport, ..config };
    let session =
        net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", wrong_key).unwrap();
    net.run(Duration::from_secs(11));
    let timed_out = (SOURCE, session, Event::Closed(CloseReason::HandshakeTimeout));
    assert!(net.world.events.contains(&timed_out), "{:?}", net.world.events);
    assert!(net.world.nodes[SINK].endpoint_stats().unauthenticated_ignored > 3);
    assert_eq!(
        net.world.nodes[SINK].endpoint_stats().handshakes_started,
        1,
        "only that of the link"
    );
    net.world.events.clear();
    check_end_to_end_messages(net);
}

#[test]
fn a_relay_cannot_impersonate_the_destination() {
    let mut net = ThreeNodes::joined();
    // The relay's certificate is pinned, as if the relay were the destination.
    let (now, config) = (net.world.now, net.client(RELAY));
    let session =
        net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    assert!(!net.world.events.iter().any(|(_, _, event)| *event == Event::Connected));
    let closed = net.world.events.iter().any(|(index, handle, event)| {
        (*index, *handle) == (SOURCE, session) && matches!(event, Event::Closed(_))
    });
    assert!(closed);
}

#[test]
fn packets_of_unadmitted_neighbours_are_not_relayed() {
    let mut net = ThreeNodes::new();
    net.admit(SOURCE, &Event::Connected, SINK);
    net.admit(RELAY, &Event::Connected, SINK);
    net.admit(SINK, &Event::Accepted, SOURCE);
    // Lets packets of the links themselves pass.
    net.run(Duration::from_secs(1));
    let before = net.onward();
    let (now, config) = (net.world.now, net.client(SINK));
    net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_secs(2));
    let link = net.link(RELAY, &Event::Accepted);
    let stats = net.world.nodes[RELAY].stats(net.world.now, link).unwrap();
    assert!(stats.packets.relayed_refused > 5, "{}", stats.packets.relayed_refused);
    assert_eq!(net.world.nodes[RELAY].relay_stats().unwrap().received, 0);
    assert_eq!(net.onward(), before, "the sink gets no packet of it");
}

/// Closed sessions of the source.
fn ends(net: &ThreeNodes, session: ConnectionHandle) -> Vec<String> {
    let of_session =
        net.world.events.iter().filter(|(index, handle, _)| (*index, *handle) == (SOURCE, session));
    let reasons = of_session.filter_map(|(_, _, event)| match event {
        Event::Closed(reason) => Some(reason.to_string()),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn attempts_to_reach_a_node_end_when_a_relay_has_no_route() {
    let mut net = ThreeNodes::joined();
    let link = net.onward_link.unwrap();
    net.world.nodes[RELAY].remove_route(net.world.now, node(SINK), link);
    let connect = |net: &mut ThreeNodes| {
        let (now, config) = (net.world.now, net.client(SINK));
        net.world.nodes[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap()
    };
    let sessions = [connect(&mut net), connect(&mut net)];
    net.run(Duration::from_millis(800));
    assert_eq!(ends(&net, sessions[0]), [""; 0], "the route may come back");
    net.run(Duration::from_secs(3));
    for session in sessions {
        assert_eq!(ends(&net, session), ["connection lost: node 71 has no route to node 72"]);
    }

    // A route that is restored in time.
    let session = connect(&mut net);
    net.run(Duration::from_millis(500));
    assert!(net.world.nodes[RELAY].route(net.world.now, node(SINK), link));
    net.run(Duration::from_secs(3));
    assert!(net.world.events.contains(&(SOURCE, session, Event::Connected)));

    // An established session survives a route that is missing for a while.
    net.world.nodes[RELAY].remove_route(net.world.now, node(SINK), link);
    let other = net.link(SINK, &Event::Accepted);
    net.world.nodes[SOURCE].send(net.world.now, session, message(1)).unwrap();
    net.run(Duration::from_secs(5));
    assert!(net.world.nodes[RELAY].route(net.world.now, node(SINK), link));
    net.run(Duration::from_secs(5));
    assert_eq!(ends(&net, session), [""; 0]);
    assert_eq!(net.world.nodes[SINK].recv(net.world.now, other), Some(message(1)));
}
