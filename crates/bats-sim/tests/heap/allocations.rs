//! A steady transfer allocates no memory per packet.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::{ConnectionHandle, Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

/// A transfer of 1 MiB messages over 100 Mbit/s with a one-way delay of 10 ms.
struct Scenario {
    network: Network,
    client: ConnectionHandle,
    message: Bytes,
}

impl Scenario {
    fn new(loss: f64) -> Self {
        let link = LinkConfig {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(10),
            loss: Loss::Iid(loss),
            ..LinkConfig::default()
        };
        let transport = TransportConfig::default();
        let mut network = Network::new(endpoints(&transport, 1), [link.clone(), link], 1);
        let client = network.connect(&transport);
        Self { network, client, message: Bytes::from(vec![7; 1 << 20]) }
    }

    /// Runs for `time`. Returns the number of allocations in endpoints and links, without those in
    /// calls of the application, and the number of packets sent by both ends.
    fn advance(&mut self, time: Duration) -> (u64, u64) {
        let sent = |network: &Network| {
            network.link_stats(Host::Client).offered + network.link_stats(Host::Server).offered
        };
        let (until, before) = (self.network.now() + time, sent(&self.network));
        let mut allocations = 0;
        while self.network.now() < until {
            let step = allocation_counter::measure(|| {
                self.network.step(until);
            });
            allocations += step.count_total;
            self.handle_events();
        }
        (allocations, sent(&self.network) - before)
    }

    fn handle_events(&mut self) {
        let now = self.network.now();
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            if host == Host::Server && event == Event::Readable {
                while self.network.endpoint(host).recv(now, handle).is_some() {}
                self.network.wake(host);
            }
            if host == Host::Client && matches!(event, Event::Connected | Event::Writable) {
                let endpoint = self.network.endpoint(host);
                while endpoint.send(now, self.client, self.message.clone()).is_ok() {}
                self.network.wake(host);
            }
        }
    }
}

#[test]
fn a_steady_lossless_transfer_allocates_nothing_per_packet() {
    let mut scenario = Scenario::new(0.0);
    scenario.advance(Duration::from_secs(5));
    let (allocations, packets) = scenario.advance(Duration::from_secs(2));
    assert!(packets > 10_000, "{packets} packets");
    let share = allocations as f64 / packets as f64;
    assert!(share < 0.02, "{allocations} allocations for {packets} packets");
}

/// The decoder allocates small matrices for each repair.
#[test]
fn a_lossy_transfer_allocates_in_proportion_to_the_losses() {
    let loss = 0.05;
    let mut scenario = Scenario::new(loss);
    scenario.advance(Duration::from_secs(5));
    let (allocations, packets) = scenario.advance(Duration::from_secs(2));
    let share = allocations as f64 / (packets as f64 * loss);
    assert!(share < 30.0, "{allocations} allocations for {packets} packets");
}
