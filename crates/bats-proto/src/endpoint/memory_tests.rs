//! Peers with spoofed addresses are charged no memory, and lower limits are raised later.

use std::sync::{Arc, MutexGuard};

use bats_types::Timestamp;

use super::{ConnectionHandle, Endpoint, Input, Output, Received};
use crate::config::{EndpointConfig, Identity, Security, ServerConfig, TransportConfig};
use crate::connection::Connection;
use crate::event::Event;
use crate::fuzzing::MisbehavingClient;
use crate::wire::coding::SourceHeader;
use crate::wire::parameters::TransportParameters;
use crate::wire::short_header::PacketKind;
use crate::wire::varint::Writer;

const NOW: Timestamp = Timestamp::from_millis(1_000);
const WANTED: usize = 64 << 20;
/// Memory that a connection is charged at its start.
const BASE_MEMORY: usize = 256 << 10;

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

/// A packet with the first 100 bytes of a message of this length.
fn first_part(client: &mut MisbehavingClient, length: u64) -> Vec<u8> {
    let mut payload = [0; 200];
    let mut writer = Writer::new(&mut payload);
    SourceHeader::new(0).encode(&mut writer).expect("there is room");
    for value in [1, length, 100] {
        writer.varint(value).expect("there is room");
    }
    writer.bytes(&[0; 100]).expect("there is room");
    let len = writer.written();
    client.packet(PacketKind::Source, &payload[..len]).expect("the handshake is complete")
}

fn connection(server: &Endpoint, handle: ConnectionHandle) -> MutexGuard<'_, Connection> {
    server.connections.get(handle).expect("it is open")
}

fn budget(server: &Endpoint, handle: ConnectionHandle) -> usize {
    connection(server, handle).session().memory()
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
    let limit = server.connections.get(honest).expect("it is open").session().memory_limit();
    assert_eq!(limit, WANTED, "no lower for the spoofed ones");
    assert_eq!(budget(&server, honest), BASE_MEMORY);
    assert_eq!(server.endpoint_stats().memory_promised, BASE_MEMORY as u64);
    assert_eq!(server.endpoint_stats().memory_refusals, 0);
}

/// Connections that take all memory beyond what is kept for others lower the limit of a new one. It
/// rises when they end.
#[test]
fn charges_never_exceed_the_budget_and_limits_rise_when_others_end() {
    let total = 256 << 20;
    let mut server = server(total);
    let charged = |server: &Endpoint| {
        let charged =
            server.connections.iter().map(|(_, connection)| connection.session().memory() as u64);
        let sum: u64 = charged.sum();
        assert_eq!(server.endpoint_stats().memory_promised, sum);
        assert!(sum <= total, "{sum}");
        sum
    };
    let mut handles = Vec::new();
    for number in 1..=20 {
        let mut client = first_flight(&mut server, number << 16);
        deliver(&mut server, number << 16, client.finished().expect("the server has answered"));
        handles.extend(drain(&mut server, &mut client));
        // Half of its limit is charged when a message of that length begins.
        let limit = connection(&server, handles[handles.len() - 1]).session().memory_limit();
        let message = first_part(&mut client, limit as u64 / 2);
        deliver(&mut server, number << 16, message);
        drain(&mut server, &mut client);
        assert!(budget(&server, handles[handles.len() - 1]) >= limit / 2);
        charged(&server);
    }
    let last = establish(&mut server, 99 << 16);
    let limit = |server: &Endpoint| connection(server, last).session().memory_limit();
    let low = limit(&server);
    assert!(low < WANTED / 4 && charged(&server) > 80 << 20, "{low}");
    let mut unused = MisbehavingClient::new(99);
    for &handle in &handles {
        server.connections.get_mut(handle).expect("it is open").die_for_test();
        server.connections.mark_dirty(handle);
        drain(&mut server, &mut unused);
        charged(&server);
    }
    assert!(limit(&server) > low + low / 2, "{} after {low}", limit(&server));
    assert_eq!(server.endpoint_stats().memory_promised, BASE_MEMORY as u64);
}
