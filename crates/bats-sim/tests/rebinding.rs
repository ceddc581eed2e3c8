//! A NAT gives the client another port, or the client moves to another network: the connection goes on.

use core::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bats_netem::{LinkConfig, Loss};
use bats_proto::{ClientConfig, ConnectionHandle, Event, PeerTrust, TransportConfig};
use bats_sim::network::{Host, Network};
use bats_sim::transfer;
use bytes::Bytes;

mod common;

use common::link;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum From {
    Client,
    Server,
}

struct Run {
    network: Network,
    server: Option<ConnectionHandle>,
    from: From,
    sent: u64,
    received: u64,
    /// Longest time in which nothing became readable, from the second second on.
    stall: Duration,
}

/// Octets received in eight seconds if the client gets each of `addresses` in turn, one a second from
/// the third on.
fn run(from: From, link: &LinkConfig, addresses: &[SocketAddr]) -> Run {
    let transport = TransportConfig::default();
    let endpoints = transfer::endpoints(&transport, 1);
    let mut network = Network::new(endpoints, [link.clone(), link.clone()], 1);
    let now = network.now();
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: Arc::new(transport),
    };
    let remote = Host::Server.address();
    network.endpoint(Host::Client).connect(now, remote, "server", config).unwrap();
    network.touch(Host::Client);
    let mut run = Run { network, server: None, from, sent: 0, received: 0, stall: Duration::ZERO };
    let mut last = now + Duration::from_secs(2);
    let mut moves = addresses.iter();
    let mut next_move = now + Duration::from_secs(3);
    let end = now + Duration::from_secs(8);
    while run.network.now() < end {
        run.network.step(next_move.min(end));
        let now = run.network.now();
        if now >= next_move {
            next_move += Duration::from_secs(1);
            if let Some(&address) = moves.next() {
                run.network.rebind(Host::Client, address);
            }
        }
        let before = run.received;
        run.serve();
        if run.received > before {
            run.stall = run.stall.max(now.max(last) - last);
            last = last.max(now);
        }
    }
    run
}

impl Run {
    fn serve(&mut self) {
        let now = self.network.now();
        for (host, handle, event) in core::mem::take(&mut self.network.events) {
            let (sender, receiver) = match self.from {
                From::Client => (Host::Client, Host::Server),
                From::Server => (Host::Server, Host::Client),
            };
            match event {
                Event::Accepted => self.server = Some(handle),
                Event::Closed(reason) => panic!("{host:?}: {reason:?}"),
                _ => {}
            }
            if host == sender
                && matches!(event, Event::Accepted | Event::Connected | Event::Writable)
            {
                let mut message = vec![0; 4_096];
                loop {
                    message[..8].copy_from_slice(&self.sent.to_le_bytes());
                    let message = Bytes::from(message.clone());
                    if self.network.endpoint(host).send(now, handle, message).is_err() {
                        break;
                    }
                    self.sent += 1;
                }
                self.network.touch(host);
            }
            if host == receiver && event == Event::Readable {
                while let Some(message) = self.network.endpoint(host).recv(now, handle) {
                    let number = u64::from_le_bytes(*message.first_chunk().unwrap());
                    assert_eq!(number, self.received, "in order, nothing lost");
                    self.received += 1;
                }
                self.network.touch(host);
            }
        }
    }

    fn path_changes(&mut self) -> u64 {
        let (now, server) = (self.network.now(), self.server.unwrap());
        self.network.endpoint(Host::Server).stats(now, server).unwrap().path_changes
    }
}

fn port(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 1), port).into()
}

#[test]
fn another_port_costs_a_round_trip_and_no_data() {
    let rtt = Duration::from_millis(40);
    for loss in [0.0, 0.05] {
        let link = LinkConfig { loss: Loss::Iid(loss), ..link(20, 20) };
        for from in [From::Client, From::Server] {
            let still = run(from, &link, &[]);
            let mut moved = run(from, &link, &[port(50_001), port(50_002), port(50_003)]);
            assert_eq!(moved.path_changes(), 3, "{from:?}, loss {loss}");
            let stall = moved.stall.as_secs_f64() / rtt.as_secs_f64();
            // From the first packet from there: one round trip for the challenge, half of one until
            // data arrives. Who only receives says nothing before it notices the silence: half a round
            // trip, half until that arrives; and a whole one passes until what went astray
            // is repaired, perhaps behind the queue of a probe. With loss a challenge or a repair may be lost.
            let bound = if from == From::Client { 2.6 } else { 4.2 };
            let bound = if loss > 0.0 { 2.0 * bound } else { bound };
            assert!(stall < bound, "{stall:.2} round trips, {from:?}, loss {loss}");
            // Three times three round trips of 200.
            let share = moved.received as f64 / still.received as f64;
            assert!(share > 0.9, "{share:.3}, {from:?}, loss {loss}");
        }
    }
}

#[test]
fn another_network_is_measured_anew() {
    let link = link(20, 20);
    let mut moved = run(From::Server, &link, &[(Ipv4Addr::new(192, 0, 2, 7), 1_234).into()]);
    assert_eq!(moved.path_changes(), 1);
    let still = run(From::Server, &link, &[]);
    let share = moved.received as f64 / still.received as f64;
    assert!(share > 0.85, "{share:.3}");
}
