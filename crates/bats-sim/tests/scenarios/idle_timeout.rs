//! A peer vanishes: both ends say so, once, and fall silent.

use std::time::Duration;

use bats_netem::{LinkConfig, Timestamp};
use bats_proto::{CloseReason, ConnectionHandle, Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

const IDLE: Duration = Duration::from_secs(5);

struct Scene {
    network: Network,
    client: ConnectionHandle,
    /// (when, who, what) of all events.
    events: Vec<(Timestamp, Host, Event)>,
}

impl Scene {
    /// A connection over 100 Mbit/s and 20 ms that has been up for two seconds.
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
        let mut scene = Self { network, client, events: Vec::new() };
        scene.pass(Duration::from_secs(2));
        let connected = scene.events.iter().any(|(_, _, event)| *event == Event::Connected);
        assert!(connected, "{:?}", scene.events);
        scene
    }

    fn pass(&mut self, time: Duration) {
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

    /// When the end closed, which it must have done once and for want of a peer.
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
fn an_idle_connection_ends_on_time_at_both_ends() {
    let mut scene = Scene::connected(1);
    scene.cut();
    scene.pass(3 * IDLE);
    for end in [Host::Client, Host::Server] {
        // The last packet was heard within the first second or so, when the path was searched.
        let after = scene.closed(end) - Timestamp::from_millis(0);
        assert!(after >= IDLE && after <= IDLE + Duration::from_secs(2), "{end:?}: {after:?}");
    }
    let offered = scene.offered();
    scene.pass(Duration::from_secs(60));
    assert_eq!(scene.offered(), offered, "packets after the end");
}

#[test]
fn a_peer_that_vanishes_in_mid_transfer_is_given_up_on_time() {
    let mut scene = Scene::connected(2);
    let now = scene.network.now();
    let message = Bytes::from(vec![7; 4 << 20]);
    scene.network.endpoint(Host::Client).send(now, scene.client, message).expect("room");
    scene.network.touch(Host::Client);
    scene.pass(Duration::from_millis(100));
    scene.cut();
    let cut = scene.network.now();
    let before = scene.offered();
    scene.pass(3 * IDLE);
    for end in [Host::Client, Host::Server] {
        let after = scene.closed(end) - cut;
        let range = IDLE - Duration::from_millis(1)..=IDLE + Duration::from_secs(1);
        assert!(range.contains(&after), "{end:?}: {after:?}");
    }
    // Probes go on until the end, but not at the link's rate.
    let probes = scene.offered() - before;
    assert!(probes > 10, "{probes} probes");
    let offered = scene.offered();
    scene.pass(Duration::from_secs(60));
    assert_eq!(scene.offered(), offered, "packets after the end");
}
