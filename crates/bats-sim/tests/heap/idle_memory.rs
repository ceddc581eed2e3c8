//! What a connection costs that says nothing: an endpoint may have thousands of them.

use std::time::Duration;

use bats_netem::LinkConfig;
use bats_proto::{ConnectionHandle, Event, Mode, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer::endpoints;
use bytes::Bytes;

/// Connections of a measurement: what the endpoints themselves hold is shared by so many.
const CONNECTIONS: u64 = 20;

struct Scene {
    network: Network,
    clients: Vec<ConnectionHandle>,
    taken: usize,
}

impl Scene {
    fn new(mode: Mode) -> (Self, TransportConfig) {
        let transport = TransportConfig {
            mode,
            also_accepted: Mode::ALL.to_vec(),
            ..TransportConfig::default()
        };
        let link = LinkConfig {
            rate_bps: Some(100_000_000),
            delay: Duration::from_millis(10),
            ..LinkConfig::default()
        };
        let network = Network::new(endpoints(&transport, 1), [link.clone(), link], 1);
        (Self { network, clients: Vec::new(), taken: 0 }, transport)
    }

    fn connect(&mut self, transport: &TransportConfig) {
        let client = self.network.connect(transport);
        self.clients.push(client);
    }

    fn pass(&mut self, time: Duration) {
        let until = self.network.now() + time;
        while self.network.now() < until {
            self.network.step(until);
            let now = self.network.now();
            for (host, handle, event) in core::mem::take(&mut self.network.events) {
                if host == Host::Server && event == Event::Readable {
                    while let Some(message) = self.network.endpoint(host).recv(now, handle) {
                        self.taken += message.len();
                    }
                    self.network.touch(host);
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
        self.network.touch(Host::Client);
    }
}

/// Bytes of heap for each end of a connection that has sent so much and is silent since.
fn idle_bytes(mode: Mode, bytes: usize) -> i64 {
    let (mut scene, transport) = Scene::new(mode);
    // What the simulator and the endpoints need once.
    scene.connect(&transport);
    scene.pass(Duration::from_secs(2));
    scene.clients.reserve(CONNECTIONS as usize);
    let held = allocation_counter::measure(|| {
        for _ in 0..CONNECTIONS {
            scene.connect(&transport);
        }
        scene.pass(Duration::from_secs(1));
        if bytes > 0 {
            scene.send(bytes);
        }
        scene.pass(Duration::from_secs(20));
    });
    let connections = scene.network.endpoint(Host::Server).connection_count();
    assert_eq!(connections as u64, CONNECTIONS + 1, "all of them are open");
    if bytes > 0 {
        assert_eq!(scene.taken, bytes * (CONNECTIONS as usize + 1), "all of it was taken");
    }
    held.bytes_current / (2 * CONNECTIONS as i64)
}

fn check(mode: Mode, bytes: usize, limit: i64) {
    let held = idle_bytes(mode, bytes);
    println!("{mode:?} after {bytes} bytes: {held}");
    assert!((4_000..=limit).contains(&held), "{mode:?} after {bytes} bytes: {held}");
}

#[test]
fn an_idle_connection_takes_little() {
    for mode in [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent] {
        check(mode, 0, 17 << 10);
    }
    for mode in [Mode::Brtp, Mode::Btp, Mode::Transparent] {
        check(mode, 1_000, 17 << 10);
    }
}

/// The receiver keeps what repairs may refer to: 255 symbols; a mean of both ends.
#[test]
fn little_is_left_of_a_busy_connection() {
    for mode in [Mode::Brtp, Mode::Btp, Mode::Transparent] {
        check(mode, 200_000, 256 << 10);
    }
}

/// The structures of blocks are kept for the next ones, 1 MiB of them at most.
#[test]
fn blocks_leave_more() {
    check(Mode::Brctp, 200_000, 1 << 20);
}
