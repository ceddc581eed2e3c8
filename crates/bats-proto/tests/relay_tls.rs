//! An end-to-end session over a relay with real TLS: three nodes, each of which trusts pinned
//! certificates only.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::fuzzing::{connect_in_flow, flow_of};
use bats_proto::relay::RelayConfig;
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ClientConfig, CloseReason, CongestionAlgorithm, ConnectionHandle, Endpoint, EndpointConfig,
    Event, Input, Output, PeerTrust, PresharedKey, Received, ServerConfig, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

const SOURCE: usize = 0;
const RELAY: usize = 1;
const SINK: usize = 2;
/// The year 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);

/// Three endpoints in a line, with a delay of 5 ms for each hop; one datagram in twelve is lost.
struct ThreeNodes {
    now: Timestamp,
    endpoints: Vec<Endpoint>,
    prints: Vec<[u8; 32]>,
    psk: Option<PresharedKey>,
    in_flight: Vec<(Timestamp, usize, usize, Vec<u8>)>,
    events: Vec<(usize, ConnectionHandle, Event)>,
    /// The relay's link to the sink.
    onward_link: Option<ConnectionHandle>,
    /// Number of datagrams from the relay to the sink.
    onward: u64,
    sent: u64,
    /// Datagrams to the sink arrive at multiples of this time only.
    slot: Option<Duration>,
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
        let (endpoints, prints) = nodes.into_iter().unzip();
        let now = Timestamp::from_nanos(NOW.as_nanos() as u64);
        let (in_flight, events) = (Vec::new(), Vec::new());
        let mut net = Self {
            now,
            endpoints,
            prints,
            psk,
            in_flight,
            events,
            onward_link: None,
            onward: 0,
            sent: 0,
            slot: None,
            is_cut: false,
        };
        for index in [SOURCE, RELAY] {
            let config = net.client(index + 1);
            let now = net.now;
            net.endpoints[index].connect(now, address(index + 1), "node.example", config).unwrap();
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
        net.events.clear();
        net
    }

    fn client(&self, index: usize) -> ClientConfig {
        let trust = PeerTrust::Fingerprints(vec![self.prints[index]]);
        ClientConfig { trust, identity: None, transport: transport(self.psk.clone()) }
    }

    fn link(&self, index: usize, event: &Event) -> ConnectionHandle {
        let found = self.events.iter().find(|(w, _, e)| *w == index && e == event);
        found.map(|(_, handle, _)| *handle).expect("the link is established")
    }

    fn admit(&mut self, index: usize, event: &Event, towards: usize) {
        let link = self.link(index, event);
        assert!(!self.endpoints[index].route(self.now, node(towards), link), "not admitted");
        assert!(self.endpoints[index].admit(link));
        assert!(self.endpoints[index].route(self.now, node(towards), link));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut buffer = Vec::with_capacity(65_536);
        while self.now < end {
            let mut next = end;
            for index in [SOURCE, RELAY, SINK] {
                self.endpoints[index].handle(self.now, Input::Timeout);
                loop {
                    match self.endpoints[index].poll(self.now, &mut buffer) {
                        Output::Transmit(t) => {
                            let to = (0..3).find(|&to| address(to) == t.remote).expect("a node");
                            for segment in buffer[..t.len].chunks(t.segment_size) {
                                self.sent += 1;
                                self.onward += u64::from((index, to) == (RELAY, SINK));
                                if self.sent % 12 != 5 && !self.is_cut {
                                    let mut at = self.now + Duration::from_millis(5);
                                    if let (SINK, Some(slot)) = (to, self.slot) {
                                        let slot = slot.as_nanos() as u64;
                                        at = Timestamp::from_nanos(
                                            at.as_nanos().next_multiple_of(slot),
                                        );
                                    }
                                    self.in_flight.push((at, index, to, segment.to_vec()));
                                }
                            }
                        }
                        Output::Event(handle, event) => self.events.push((index, handle, event)),
                        Output::Timeout(at) => {
                            next = next.min(at.unwrap_or(end));
                            break;
                        }
                    }
                }
            }
            next = self.in_flight.iter().map(|f| f.0).fold(next, Timestamp::min);
            self.now = next.max(self.now);
            let now = self.now;
            let (due, later): (Vec<_>, Vec<_>) = self.in_flight.drain(..).partition(|f| f.0 <= now);
            self.in_flight = later;
            for (_, from, to, mut payload) in due {
                let remote = address(from);
                let received = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
                self.endpoints[to].handle(now, Input::Datagram(received));
            }
        }
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
    let (now, config) = (net.now, net.client(SINK));
    let session =
        net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    assert_eq!(net.endpoints[SINK].remote_node(other), Some(node(SOURCE)));
    assert_eq!(net.endpoints[SOURCE].peer_fingerprint(session), Some(net.prints[SINK]));
    assert!(!net.endpoints[SOURCE].admit(session), "a session is not a link");

    for number in 0..300 {
        net.endpoints[SOURCE].send(net.now, session, message(number)).unwrap();
        net.endpoints[SINK].send(net.now, other, message(1_000 + number)).unwrap();
    }
    net.run(Duration::from_secs(3));
    for (index, handle, first) in [(SINK, other, 0), (SOURCE, session, 1_000)] {
        for number in 0..300 {
            let got = net.endpoints[index].recv(net.now, handle);
            assert!(got == Some(message(first + number)), "message {number} at {index}");
        }
    }
    let stats = net.endpoints[SOURCE].stats(net.now, session).unwrap();
    assert_eq!(stats.coding.symbols_polluted, 0);
    let relay = net.endpoints[RELAY].relay_stats().unwrap();
    assert!(relay.forwarded > 2_000 && relay.top_ups + relay.extras > 100, "{relay:?}");
    assert_eq!(relay.delivered, 0);
    assert!(net.endpoints[SOURCE].is_all_acknowledged(session));
    net.endpoints[SOURCE].close(net.now, session, 9, "done");
    net.run(Duration::from_secs(1));
    let closed = net.events.iter().any(|(index, handle, event)| {
        (*index, *handle) == (SINK, other) && matches!(event, Event::Closed(_))
    });
    assert!(closed, "the close is signalled end to end");
}

/// An application thread or a scheduler that is late hands many datagrams to the endpoint at once.
#[test]
fn a_burst_of_datagrams_does_not_exceed_the_memory_of_a_session() {
    let mut net = ThreeNodes::joined();
    let (now, config) = (net.now, net.client(SINK));
    let session =
        net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    net.slot = Some(Duration::from_millis(100));
    for number in 0..300 {
        net.endpoints[SOURCE].send(net.now, session, message(number)).unwrap();
    }
    net.run(Duration::from_secs(5));
    for number in 0..300 {
        assert!(net.endpoints[SINK].recv(net.now, other) == Some(message(number)), "{number}");
    }
    let stats = net.endpoints[SINK].stats(net.now, other).unwrap();
    assert_eq!(stats.packets.refused, 0);
}

/// A close that no path carried: the next packets of the other end are answered by a stateless reset.
#[test]
fn an_end_to_end_session_that_ended_without_a_path_ends_at_its_client() {
    for is_busy in [true, false] {
        let mut net = ThreeNodes::joined();
        let (now, config) = (net.now, net.client(SINK));
        let session =
            net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
        net.run(Duration::from_millis(500));
        let other = net.link(SINK, &Event::Accepted);
        net.endpoints[SOURCE].send(net.now, session, message(0)).unwrap();
        net.run(Duration::from_millis(200));
        assert_eq!(net.endpoints[SINK].recv(net.now, other), Some(message(0)));
        net.is_cut = true;
        net.endpoints[SINK].close(net.now, other, 1, "no longer configured");
        net.run(Duration::from_secs(2));
        if !is_busy {
            net.is_cut = false;
        }
        // Before the path is back: probes and top-ups follow. After it: source packets arrive.
        net.endpoints[SOURCE].send(net.now, session, message(1)).unwrap();
        net.run(Duration::from_millis(100));
        net.is_cut = false;
        net.run(Duration::from_secs(1));
        let ended = net.events.iter().any(|(index, handle, event)| {
            let of_session = (*index, *handle) == (SOURCE, session);
            matches!(event, Event::Closed(CloseReason::Lost(text)) if of_session && text.contains("does not know"))
        });
        assert!(ended, "sent while cut: {is_busy}");
        let sink = net.endpoints[SINK].endpoint_stats();
        assert!((1..50).contains(&sink.stateless_resets_sent), "{sink:?}");
    }
}

/// A flow names its source, and any user of a relay can write any name. That must not replace an
/// existing session.
#[test]
fn a_session_is_not_replaced_by_one_with_the_same_flow() {
    let mut net = ThreeNodes::joined();
    let (now, config) = (net.now, net.client(SINK));
    let source = &mut net.endpoints[SOURCE];
    let session = source.connect_across(now, node(SINK), "node.example", config.clone()).unwrap();
    net.run(Duration::from_millis(500));
    let other = net.link(SINK, &Event::Accepted);
    assert_eq!(
        (net.endpoints[SOURCE].remote(session), net.endpoints[SINK].remote(other)),
        (None, None)
    );
    let flow = flow_of(&net.endpoints[SOURCE], session).unwrap();
    let source = &mut net.endpoints[SOURCE];
    let again = connect_in_flow(source, now, flow, "node.example", config.clone());
    assert!(again.unwrap_err().to_string().contains("already"));

    // Another endpoint takes the source's address and node ID.
    let (impostor, print) = node_endpoint(SOURCE, 99, None);
    let source = core::mem::replace(&mut net.endpoints[SOURCE], impostor);
    let kept_print = core::mem::replace(&mut net.prints[SOURCE], print);
    net.events.clear();
    let (now, to_relay) = (net.now, net.client(RELAY));
    net.endpoints[SOURCE].connect(now, address(RELAY), "node.example", to_relay).unwrap();
    net.run(Duration::from_millis(500));
    net.admit(SOURCE, &Event::Connected, SINK);
    let link = net.link(RELAY, &Event::Accepted);
    assert!(net.endpoints[RELAY].admit(link));
    net.events.clear();
    let now = net.now;
    connect_in_flow(&mut net.endpoints[SOURCE], now, flow, "node.example", config).unwrap();
    let refused = net.endpoints[SINK].endpoint_stats().connections_refused;
    net.run(Duration::from_secs(1));
    let news = net.events.iter().filter(|(index, _, _)| *index == SINK).count();
    assert_eq!(news, 0, "the sink has no new session, and the old one has not ended");
    assert!(
        net.endpoints[SINK].endpoint_stats().connections_refused > refused,
        "the attempt was received"
    );

    // The existing session continues.
    net.endpoints[SOURCE] = source;
    net.prints[SOURCE] = kept_print;
    net.endpoints[SOURCE].send(net.now, session, message(1)).unwrap();
    net.run(Duration::from_secs(3));
    assert_eq!(net.endpoints[SINK].recv(net.now, other), Some(message(1)));
}

#[test]
fn psk_nodes_connect_over_a_psk_relay() {
    let mut net = ThreeNodes::with(Some(PresharedKey::new([1; 32]))).join();
    // A session with another key is unauthenticated, whatever link it arrives over.
    let (now, config) = (net.now, net.client(SINK));
    let transport = transport(Some(PresharedKey::new([2; 32])));
    let wrong_key = ClientConfig { transport, ..config };
    let session =
        net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", wrong_key).unwrap();
    net.run(Duration::from_secs(11));
    let timed_out = (SOURCE, session, Event::Closed(CloseReason::HandshakeTimeout));
    assert!(net.events.contains(&timed_out), "{:?}", net.events);
    assert!(net.endpoints[SINK].endpoint_stats().unauthenticated_ignored > 3);
    assert_eq!(net.endpoints[SINK].endpoint_stats().handshakes_started, 1, "only that of the link");
    net.events.clear();
    check_end_to_end_messages(net);
}

#[test]
fn a_relay_cannot_impersonate_the_destination() {
    let mut net = ThreeNodes::joined();
    // The relay's certificate is pinned, as if the relay were the destination.
    let (now, config) = (net.now, net.client(RELAY));
    let session =
        net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_millis(500));
    assert!(!net.events.iter().any(|(_, _, event)| *event == Event::Connected));
    let closed = net.events.iter().any(|(index, handle, event)| {
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
    let before = net.onward;
    let (now, config) = (net.now, net.client(SINK));
    net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    net.run(Duration::from_secs(2));
    let link = net.link(RELAY, &Event::Accepted);
    let stats = net.endpoints[RELAY].stats(net.now, link).unwrap();
    assert!(stats.packets.relayed_refused > 5, "{}", stats.packets.relayed_refused);
    assert_eq!(net.endpoints[RELAY].relay_stats().unwrap().received, 0);
    assert_eq!(net.onward, before, "the sink gets no packet of it");
}

/// Closed sessions of the source.
fn ends(net: &ThreeNodes, session: ConnectionHandle) -> Vec<String> {
    let of_session =
        net.events.iter().filter(|(index, handle, _)| (*index, *handle) == (SOURCE, session));
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
    net.endpoints[RELAY].remove_route(net.now, node(SINK), link);
    let connect = |net: &mut ThreeNodes| {
        let (now, config) = (net.now, net.client(SINK));
        net.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap()
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
    assert!(net.endpoints[RELAY].route(net.now, node(SINK), link));
    net.run(Duration::from_secs(3));
    assert!(net.events.contains(&(SOURCE, session, Event::Connected)));

    // An established session survives a route that is missing for a while.
    net.endpoints[RELAY].remove_route(net.now, node(SINK), link);
    let other = net.link(SINK, &Event::Accepted);
    net.endpoints[SOURCE].send(net.now, session, message(1)).unwrap();
    net.run(Duration::from_secs(5));
    assert!(net.endpoints[RELAY].route(net.now, node(SINK), link));
    net.run(Duration::from_secs(5));
    assert_eq!(ends(&net, session), [""; 0]);
    assert_eq!(net.endpoints[SINK].recv(net.now, other), Some(message(1)));
}
