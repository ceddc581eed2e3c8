//! Peers with spoofed addresses hold no promise of memory, and smaller budgets are raised later.

use std::sync::Arc;

use bats_types::Timestamp;

use super::{ConnectionHandle, Endpoint, Input, Output, Received};
use crate::config::{EndpointConfig, Identity, Security, ServerConfig, TransportConfig};
use crate::event::Event;
use crate::fuzzing::MisbehavingClient;
use crate::wire::parameters::TransportParameters;

const NOW: Timestamp = Timestamp::from_millis(1_000);
const WANTED: usize = 64 << 20;

fn server(memory_budget: u64) -> Endpoint {
    let transport = TransportConfig { receive_budget: WANTED, ..TransportConfig::default() };
    let server = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        client_trust: None,
        transport: Arc::new(transport),
        retry_threshold: 1_000,
        max_connections: 40,
    };
    let security = Security::DangerousPlain;
    let config = EndpointConfig { security, server: Some(server), memory_budget, instance: 0 };
    Endpoint::new(config, [2; 32]).expect("a configuration")
}

fn deliver(server: &mut Endpoint, number: u32, mut payload: Vec<u8>) {
    let remote = MisbehavingClient::address(number);
    let received = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
    server.handle(NOW, Input::Datagram(received));
}

/// Polls the server; returns the connections accepted, and shows the client what it sends.
fn drain(server: &mut Endpoint, client: &mut MisbehavingClient) -> Vec<ConnectionHandle> {
    let mut buffer = Vec::with_capacity(65_536);
    let mut accepted = Vec::new();
    loop {
        match server.poll(NOW, &mut buffer) {
            Output::Transmit(transmit) => {
                buffer.chunks(transmit.segment_size).for_each(|datagram| client.learn(datagram));
            }
            Output::Event(handle, Event::Accepted) => accepted.push(handle),
            Output::Event(..) => {}
            Output::Timeout(_) => return accepted,
        }
    }
}

fn first_flight(server: &mut Endpoint, number: u32) -> MisbehavingClient {
    let mut client = MisbehavingClient::new(number);
    let parameters =
        TransportParameters { connection_id: client.cid(), ..TransportParameters::default() };
    let flight = client.first_flight(&parameters.encode(0), &[]);
    deliver(server, number, flight);
    drain(server, &mut client);
    client
}

fn establish(server: &mut Endpoint, number: u32) -> ConnectionHandle {
    let mut client = first_flight(server, number);
    deliver(server, number, client.finished().expect("the server has answered"));
    drain(server, &mut client)[0]
}

fn budget(server: &Endpoint, handle: ConnectionHandle) -> usize {
    server.connections.get(&handle).expect("it is open").memory()
}

#[test]
fn spoofed_first_flights_are_promised_no_memory() {
    let mut server = server(1 << 30);
    for number in 1..=32 {
        first_flight(&mut server, number << 16);
    }
    assert_eq!(server.connection_count(), 32);
    assert_eq!(server.endpoint_stats().memory_promised, 0);
    let honest = establish(&mut server, 7);
    assert_eq!(budget(&server, honest), WANTED, "no smaller for the spoofed ones");
    assert_eq!(server.endpoint_stats().memory_promised, WANTED as u64);
    assert_eq!(server.endpoint_stats().memory_refusals, 0);
}

#[test]
fn promises_never_exceed_the_budget_and_grow_when_others_end() {
    let total = 256 << 20;
    let mut server = server(total);
    let handles: Vec<_> = (1..=30).map(|number| establish(&mut server, number << 16)).collect();
    let promised = |server: &Endpoint| {
        let budgets = server.connections.values().map(|connection| connection.memory() as u64);
        let sum: u64 = budgets.sum();
        assert_eq!(server.endpoint_stats().memory_promised, sum);
        assert!(sum <= total, "{sum}");
        sum
    };
    let last = handles[29];
    let small = budget(&server, last);
    assert!(small < WANTED / 4, "{small}");
    promised(&server);
    let mut unused = MisbehavingClient::new(99);
    for &handle in &handles[..29] {
        server.connections.get_mut(&handle).expect("it is open").die_for_test();
        server.mark_dirty(handle);
        drain(&mut server, &mut unused);
        promised(&server);
    }
    assert!(budget(&server, last) > 2 * small, "{} after {small}", budget(&server, last));
}
