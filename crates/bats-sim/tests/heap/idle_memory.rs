//! Memory of a connection that is idle after a transfer. `idle_heap.rs` of `bats-proto` has that of connections with little
//! traffic, with TLS.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::{ConnectionHandle, Event, Mode, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

/// Number of connections of a measurement, which share the memory of the endpoints.
const CONNECTIONS: u64 = 20;

struct Scenario {
    network: Network,
    clients: Vec<ConnectionHandle>,
    received: usize,
}

impl Scenario {
    fn new(mode: Mode) -> (Self, TransportConfig) {
        let transport = TransportConfig {
            mode,
            also_accepted: Mode::ALL.to_vec(),
            // The data of all connections take 0.3 s.
            deadline: Duration::from_secs(1),
            ..TransportConfig::default()
        };
        let link = LinkConfig {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(10),
            ..LinkConfig::default()
        };
        let network = Network::new(endpoints(&transport, 1), [link.clone(), link], 1);
        (Self { network, clients: Vec::new(), received: 0 }, transport)
    }

    fn connect(&mut self, transport: &TransportConfig) {
        let client = self.network.connect(transport);
        self.clients.push(client);
    }

    fn advance(&mut self, time: Duration) {
        let until = self.network.now() + time;
        while self.network.now() < until {
            self.network.step(until);
            let now = self.network.now();
            for (host, handle, event) in core::mem::take(&mut self.network.events) {
                if host == Host::Server && event == Event::Readable {
                    while let Some(message) = self.network.endpoint(host).recv(now, handle) {
                        self.received += message.len();
                    }
                    self.network.wake(host);
                }
            }
        }
    }

    fn send(&mut self, bytes: usize) {
        let now = self.network.now();
        for &client in &self.clients {
            let message = Bytes::from(vec![7; bytes]);
            self.network.endpoint(Host::Client).send(now, client, message).unwrap();
        }
        self.network.wake(Host::Client);
    }
}

/// Heap bytes for each end of a connection that has sent `bytes` and is idle since.
fn idle_bytes(mode: Mode, bytes: usize) -> i64 {
    let (mut scenario, transport) = Scenario::new(mode);
    // Memory that the simulator and the endpoints allocate only once is not measured.
    scenario.connect(&transport);
    scenario.advance(Duration::from_secs(2));
    scenario.clients.reserve(CONNECTIONS as usize);
    let held = allocation_counter::measure(|| {
        for _ in 0..CONNECTIONS {
            scenario.connect(&transport);
        }
        scenario.advance(Duration::from_secs(1));
        scenario.send(bytes);
        scenario.advance(Duration::from_secs(20));
    });
    let connections = scenario.network.endpoint(Host::Server).connection_count();
    assert_eq!(connections as u64, CONNECTIONS + 1, "all connections are open");
    assert_eq!(scenario.received, bytes * (CONNECTIONS as usize + 1), "all data were received");
    held.bytes_current / (2 * CONNECTIONS as i64)
}

fn check(mode: Mode, bytes: usize, limit: i64) {
    let held = idle_bytes(mode, bytes);
    println!("{mode:?} after {bytes} bytes: {held}");
    assert!((4_000..=limit).contains(&held), "{mode:?} after {bytes} bytes: {held}");
}

/// The receiver keeps the 255 symbols to which repairs may refer. The figure is the mean of both
/// ends.
#[test]
fn a_connection_takes_at_most_256_kib_when_idle_after_a_transfer() {
    for mode in [Mode::Brtp, Mode::Btp, Mode::Transparent] {
        check(mode, 200_000, 256 << 10);
    }
}

/// BRCTP keeps no symbols: a block is solved as a whole.
#[test]
fn a_brctp_connection_takes_at_most_64_kib_when_idle_after_a_transfer() {
    check(Mode::Brctp, 200_000, 64 << 10);
}
