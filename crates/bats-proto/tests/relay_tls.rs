//! A session across a relay over real TLS: three nodes, each of which believes only whom it knows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::crypto::{fingerprint, generate_identity};
use bats_proto::relay::RelayConfig;
use bats_proto::wire::flow::NodeId;
use bats_proto::{
    ClientConfig, CloseReason, ClosedKey, CongestionAlgorithm, ConnectionHandle, Endpoint,
    EndpointConfig, Event, Input, Output, PeerTrust, Received, ServerConfig, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

const SOURCE: usize = 0;
const RELAY: usize = 1;
const SINK: usize = 2;
/// The year 2026.
const NOW: Duration = Duration::from_secs(1_790_000_000);

/// Three endpoints in a line, 5 ms apart; one datagram in twelve is lost.
struct Three {
    now: Timestamp,
    endpoints: Vec<Endpoint>,
    prints: Vec<[u8; 32]>,
    closed: Option<ClosedKey>,
    flying: Vec<(Timestamp, usize, usize, Vec<u8>)>,
    events: Vec<(usize, ConnectionHandle, Event)>,
    /// Datagrams from the relay to the sink.
    onward: u64,
    sent: u64,
}

fn address(who: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + who as u8], 4_000))
}

fn node(who: usize) -> NodeId {
    NodeId(70 + who as u32)
}

/// Keys that change often.
fn transport(closed: Option<ClosedKey>) -> Arc<TransportConfig> {
    Arc::new(TransportConfig {
        closed,
        key_update_packets: 64,
        congestion: CongestionAlgorithm::FixedRate { bits_per_second: 50_000_000 },
        ..TransportConfig::default()
    })
}

/// A node and the fingerprint of its certificate.
fn made(who: usize, seed: u8, closed: Option<ClosedKey>) -> (Endpoint, [u8; 32]) {
    let identity = generate_identity(&["node.example".to_owned()]).unwrap();
    let print = fingerprint(&identity.certificate_chain[0]);
    let server = ServerConfig {
        identity,
        transport: transport(closed),
        retry_threshold: 10,
        max_connections: 10,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [seed; 32]).unwrap();
    endpoint.enable_relay(RelayConfig::new(node(who))).unwrap();
    assert!(endpoint.enable_relay(RelayConfig::new(node(who))).is_err(), "once");
    (endpoint, print)
}

impl Three {
    fn new() -> Self {
        Self::with(None)
    }

    /// All of whose links and sessions have this key.
    fn with(closed: Option<ClosedKey>) -> Self {
        let nodes = [SOURCE, RELAY, SINK].map(|who| made(who, who as u8, closed.clone()));
        let (endpoints, prints) = nodes.into_iter().unzip();
        let now = Timestamp::from_nanos(NOW.as_nanos() as u64);
        let (flying, events) = (Vec::new(), Vec::new());
        let mut three = Self { now, endpoints, prints, closed, flying, events, onward: 0, sent: 0 };
        for who in [SOURCE, RELAY] {
            let config = three.client(who + 1);
            let now = three.now;
            three.endpoints[who].connect(now, address(who + 1), "node.example", config).unwrap();
        }
        three.run(Duration::from_millis(500));
        three
    }

    /// Links that may carry, and routes over them.
    fn joined() -> Self {
        Self::new().join()
    }

    fn join(self) -> Self {
        let mut three = self;
        three.admit(SOURCE, &Event::Connected, SINK);
        three.admit(RELAY, &Event::Accepted, SOURCE);
        three.admit(RELAY, &Event::Connected, SINK);
        three.admit(SINK, &Event::Accepted, SOURCE);
        three.events.clear();
        three
    }

    fn client(&self, whom: usize) -> ClientConfig {
        let trust = PeerTrust::Fingerprints(vec![self.prints[whom]]);
        ClientConfig { trust, identity: None, transport: transport(self.closed.clone()) }
    }

    fn link(&self, who: usize, event: &Event) -> ConnectionHandle {
        let found = self.events.iter().find(|(w, _, e)| *w == who && e == event);
        found.map(|(_, handle, _)| *handle).expect("the link came up")
    }

    fn admit(&mut self, who: usize, event: &Event, towards: usize) {
        let link = self.link(who, event);
        assert!(!self.endpoints[who].route(self.now, node(towards), link), "not admitted");
        assert!(self.endpoints[who].admit(link));
        assert!(self.endpoints[who].route(self.now, node(towards), link));
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        let mut buffer = Vec::with_capacity(65_536);
        while self.now < end {
            let mut next = end;
            for who in [SOURCE, RELAY, SINK] {
                self.endpoints[who].handle(self.now, Input::Timeout);
                loop {
                    match self.endpoints[who].poll(self.now, &mut buffer) {
                        Output::Transmit(t) => {
                            let to = (0..3).find(|&to| address(to) == t.remote).expect("a node");
                            for segment in buffer[..t.len].chunks(t.segment_size) {
                                self.sent += 1;
                                self.onward += u64::from((who, to) == (RELAY, SINK));
                                if self.sent % 12 != 5 {
                                    let at = self.now + Duration::from_millis(5);
                                    self.flying.push((at, who, to, segment.to_vec()));
                                }
                            }
                        }
                        Output::Event(handle, event) => self.events.push((who, handle, event)),
                        Output::Timeout(at) => {
                            next = next.min(at.unwrap_or(end));
                            break;
                        }
                    }
                }
            }
            next = self.flying.iter().map(|f| f.0).fold(next, Timestamp::min);
            self.now = next.max(self.now);
            let now = self.now;
            let (due, later): (Vec<_>, Vec<_>) = self.flying.drain(..).partition(|f| f.0 <= now);
            self.flying = later;
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
fn the_ends_speak_across_a_relay_that_holds_no_key_of_theirs() {
    ends_speak(Three::joined());
}

fn ends_speak(mut three: Three) {
    let (now, config) = (three.now, three.client(SINK));
    let session =
        three.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    three.run(Duration::from_millis(500));
    let other = three.link(SINK, &Event::Accepted);
    assert_eq!(three.endpoints[SINK].remote_node(other), Some(node(SOURCE)));
    assert_eq!(three.endpoints[SOURCE].peer_fingerprint(session), Some(three.prints[SINK]));
    assert!(!three.endpoints[SOURCE].admit(session), "a session is no link");

    for number in 0..300 {
        three.endpoints[SOURCE].send(three.now, session, message(number)).unwrap();
        three.endpoints[SINK].send(three.now, other, message(1_000 + number)).unwrap();
    }
    three.run(Duration::from_secs(3));
    for (who, handle, first) in [(SINK, other, 0), (SOURCE, session, 1_000)] {
        for number in 0..300 {
            let got = three.endpoints[who].recv(three.now, handle);
            assert!(got == Some(message(first + number)), "message {number} at {who}");
        }
    }
    let stats = three.endpoints[SOURCE].stats(three.now, session).unwrap();
    assert_eq!(stats.symbols_altered, 0);
    let relay = three.endpoints[RELAY].relay_stats().unwrap();
    assert!(relay.forwarded > 2_000 && relay.top_ups + relay.extras > 100, "{relay:?}");
    assert_eq!(relay.delivered, 0);
    assert!(three.endpoints[SOURCE].is_all_acknowledged(session));
    three.endpoints[SOURCE].close(three.now, session, 9, "done");
    three.run(Duration::from_secs(1));
    let closed = three.events.iter().any(|(who, handle, event)| {
        (*who, *handle) == (SINK, other) && matches!(event, Event::Closed(_))
    });
    assert!(closed, "the end is told end to end");
}

/// A flow names its source, and whoever may use a relay can write any name: that is no way into the place of
/// a session that is there.
#[test]
fn a_session_is_not_replaced_by_one_that_names_its_flow() {
    let mut three = Three::joined();
    let (now, config) = (three.now, three.client(SINK));
    let source = &mut three.endpoints[SOURCE];
    let session = source.connect_across(now, node(SINK), "node.example", config.clone()).unwrap();
    three.run(Duration::from_millis(500));
    let (other, at) = (three.link(SINK, &Event::Accepted), three.endpoints[SOURCE].remote(session));
    let again = three.endpoints[SOURCE].connect(now, at.unwrap(), "node.example", config.clone());
    assert!(again.unwrap_err().to_string().contains("already"));

    // Another one takes the source's place and name.
    let (impostor, print) = made(SOURCE, 99, None);
    let source = core::mem::replace(&mut three.endpoints[SOURCE], impostor);
    let kept_print = core::mem::replace(&mut three.prints[SOURCE], print);
    three.events.clear();
    let (now, to_relay) = (three.now, three.client(RELAY));
    three.endpoints[SOURCE].connect(now, address(RELAY), "node.example", to_relay).unwrap();
    three.run(Duration::from_millis(500));
    three.admit(SOURCE, &Event::Connected, SINK);
    let link = three.link(RELAY, &Event::Accepted);
    assert!(three.endpoints[RELAY].admit(link));
    three.events.clear();
    let now = three.now;
    three.endpoints[SOURCE].connect(now, at.unwrap(), "node.example", config).unwrap();
    let refused = three.endpoints[SINK].endpoint_stats().connections_refused;
    three.run(Duration::from_secs(1));
    let news = three.events.iter().filter(|(who, _, _)| *who == SINK).count();
    assert_eq!(news, 0, "the sink has no new session, and the old one has not ended");
    assert!(three.endpoints[SINK].endpoint_stats().connections_refused > refused, "it was asked");

    // And the one that is there goes on.
    three.endpoints[SOURCE] = source;
    three.prints[SOURCE] = kept_print;
    three.endpoints[SOURCE].send(three.now, session, message(1)).unwrap();
    three.run(Duration::from_secs(3));
    assert_eq!(three.endpoints[SINK].recv(three.now, other), Some(message(1)));
}

#[test]
fn closed_nodes_speak_across_a_closed_relay() {
    let mut three = Three::with(Some(ClosedKey::new([1; 32]))).join();
    // A session whose key is another is one of strangers, by whatever link it comes.
    let (now, config) = (three.now, three.client(SINK));
    let transport = transport(Some(ClosedKey::new([2; 32])));
    let stranger = ClientConfig { transport, ..config };
    let session =
        three.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", stranger).unwrap();
    three.run(Duration::from_secs(11));
    let timed_out = (SOURCE, session, Event::Closed(CloseReason::HandshakeTimeout));
    assert!(three.events.contains(&timed_out), "{:?}", three.events);
    assert!(three.endpoints[SINK].endpoint_stats().strangers_ignored > 3);
    assert_eq!(three.endpoints[SINK].endpoint_stats().handshakes_started, 1, "that of the link");
    three.events.clear();
    ends_speak(three);
}

#[test]
fn whoever_pretends_to_be_the_other_end_is_not_believed() {
    let mut three = Three::joined();
    // The pinned certificate is the relay's, as if it were the end.
    let (now, config) = (three.now, three.client(RELAY));
    let session =
        three.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    three.run(Duration::from_millis(500));
    assert!(!three.events.iter().any(|(_, _, event)| *event == Event::Connected));
    let closed = three.events.iter().any(|(who, handle, event)| {
        (*who, *handle) == (SOURCE, session) && matches!(event, Event::Closed(_))
    });
    assert!(closed);
}

#[test]
fn nothing_is_carried_for_a_neighbour_that_was_not_admitted() {
    let mut three = Three::new();
    three.admit(SOURCE, &Event::Connected, SINK);
    three.admit(RELAY, &Event::Connected, SINK);
    three.admit(SINK, &Event::Accepted, SOURCE);
    // Lets what belongs to the links themselves pass.
    three.run(Duration::from_secs(1));
    let before = three.onward;
    let (now, config) = (three.now, three.client(SINK));
    three.endpoints[SOURCE].connect_across(now, node(SINK), "node.example", config).unwrap();
    three.run(Duration::from_secs(2));
    let link = three.link(RELAY, &Event::Accepted);
    let stats = three.endpoints[RELAY].stats(three.now, link).unwrap();
    assert!(stats.packets_uncarried > 5, "{}", stats.packets_uncarried);
    assert_eq!(three.endpoints[RELAY].relay_stats().unwrap().received, 0);
    assert_eq!(three.onward, before, "the sink hears nothing of it");
}
