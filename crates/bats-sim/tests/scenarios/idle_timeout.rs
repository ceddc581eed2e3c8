//! A peer disappears: each end reports the idle time-out once and stops sending.

use std::time::Duration;

use bats_netem::{LinkConfig, Timestamp};
use bats_proto::{CloseReason, ConnectionHandle, Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

const IDLE: Duration = Duration::from_secs(5);

struct Scenario {
    network: Network,
    client: ConnectionHandle,
    /// All events: (time, host, event).
    events: Vec<(Timestamp, Host, Event)>,
}

impl Scenario {
    /// A connection over 100 Mbit/s with a one-way delay of 20 ms, established for about 2 s.
    fn connected(seed: u64) -> Self {
        let link = LinkConfig {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(20),
            ..LinkConfig::default()
        };
        let transport = TransportConfig { idle_timeout: IDLE, ..TransportConfig::default() };
        let endpoints = endpoints(&transport, seed);
        let mut network = Network::new(endpoints, [link.clone(), link], seed);
        let client = network.connect(&transport);
        let mut scenario = Self { network, client, events: Vec::new() };
        scenario.advance(Duration::from_secs(2));
        let connected = scenario.events.iter().any(|(_, _, event)| *event == Event::Connected);
        assert!(connected, "{:?}", scenario.events);
        scenario
    }

    fn advance(&mut self, time: Duration) {
        let until = self.network.now() + time;
        while self.network.now() < until {
            self.network.step(until);
            let now = self.network.now();
            let events = core::mem::take(&mut self.network.events);
            self.events.extend(events.into_iter().map(|(host, _, event)| (now, host, event)));
        }
    }

    fn cut(&mut self) {
        for host in [Host::Client, Host::Server] {
            let link = self.network.link_from(host).config().clone();
            self.network.set_link(host, LinkConfig { black_hole: true, ..link });
        }
    }

    /// Time at which the host closed, which must have happened once and by the idle time-out.
    fn closed(&self, end: Host) -> Timestamp {
        let closes: Vec<_> = self
            .events
            .iter()
            .filter(|(_, host, event)| *host == end && matches!(event, Event::Closed(_)))
            .collect();
        assert_eq!(closes.len(), 1, "{end:?}: {:?}", self.events);
        assert_eq!(closes[0].2, Event::Closed(CloseReason::IdleTimeout(IDLE)), "{end:?}");
        closes[0].0
    }

    fn offered(&self) -> u64 {
        self.network.link_stats(Host::Client).offered
            + self.network.link_stats(Host::Server).offered
    }
}

#[test]
fn both_ends_of_an_idle_connection_close_after_the_idle_timeout() {
    let mut scenario = Scenario::connected(1);
    scenario.cut();
    scenario.advance(3 * IDLE);
    for end in [Host::Client, Host::Server] {
        // The last packets were received in about the first second, during path MTU discovery.
        let after = scenario.closed(end) - Timestamp::from_millis(0);
        assert!(after >= IDLE && after <= IDLE + Duration::from_secs(2), "{end:?}: {after:?}");
    }
    let offered = scenario.offered();
    scenario.advance(Duration::from_secs(60));
    assert_eq!(scenario.offered(), offered, "packets after the close");
}

#[test]
fn both_ends_close_after_the_idle_timeout_if_the_path_fails_during_a_transfer() {
    let mut scenario = Scenario::connected(2);
    let now = scenario.network.now();
    let message = Bytes::from(vec![7; 4 << 20]);
    scenario.network.endpoint(Host::Client).send(now, scenario.client, message).expect("room");
    scenario.network.wake(Host::Client);
    scenario.advance(Duration::from_millis(100));
    scenario.cut();
    let cut = scenario.network.now();
    let before = scenario.offered();
    scenario.advance(3 * IDLE);
    for end in [Host::Client, Host::Server] {
        let after = scenario.closed(end) - cut;
        let range = IDLE - Duration::from_millis(1)..=IDLE + Duration::from_secs(1);
        assert!(range.contains(&after), "{end:?}: {after:?}");
    }
    // Probes continue until the close.
    let probes = scenario.offered() - before;
    assert!(probes > 10, "{probes} probes");
    let offered = scenario.offered();
    scenario.advance(Duration::from_secs(60));
    assert_eq!(scenario.offered(), offered, "packets after the close");
}
