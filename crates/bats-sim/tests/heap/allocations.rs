//! Memory is not asked for packet by packet: what endpoints need in a steady transfer, they have.

use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::{ConnectionHandle, Event, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

/// A transfer of messages of 1 MiB over 100 Mbit/s, 10 ms one way.
struct Scene {
    network: Network,
    client: ConnectionHandle,
    message: Bytes,
}

impl Scene {
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

    /// Runs for a time; allocations of endpoints and link without those of the application's
    /// calls, and packets sent by both ends.
    fn pass(&mut self, time: Duration) -> (u64, u64) {
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
            self.serve();
        }
        (allocations, sent(&self.network) - before)
    }

    fn serve(&mut self) {
        let now = self.network.now();
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            if host == Host::Server && event == Event::Readable {
                while self.network.endpoint(host).recv(now, handle).is_some() {}
                self.network.touch(host);
            }
            if host == Host::Client && matches!(event, Event::Connected | Event::Writable) {
                let endpoint = self.network.endpoint(host);
                while endpoint.send(now, self.client, self.message.clone()).is_ok() {}
                self.network.touch(host);
            }
        }
    }
}

#[test]
fn a_steady_transfer_asks_for_no_memory_by_the_packet() {
    let mut scene = Scene::new(0.0);
    scene.pass(Duration::from_secs(5));
    let (allocations, packets) = scene.pass(Duration::from_secs(2));
    assert!(packets > 10_000, "{packets} packets");
    let share = allocations as f64 / packets as f64;
    assert!(share < 0.02, "{allocations} allocations for {packets} packets");
}

/// Solving is work on small matrices of their own, for which memory is asked for by the repair.
#[test]
fn memory_for_repairs_is_asked_for_by_the_loss() {
    let loss = 0.05;
    let mut scene = Scene::new(loss);
    scene.pass(Duration::from_secs(5));
    let (allocations, packets) = scene.pass(Duration::from_secs(2));
    let share = allocations as f64 / (packets as f64 * loss);
    assert!(share < 30.0, "{allocations} allocations for {packets} packets");
}
