//! Memory that misbehaving peers make a server hold: bounded by the budget of its endpoint.

use std::sync::Arc;

use bats_proto::config::Security;
use bats_proto::fuzzing::MisbehavingClient;
use bats_proto::wire::coding::SourceHeader;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;
use bats_proto::{
    Endpoint, EndpointConfig, Event, Identity, Input, Output, Received, ServerConfig, Timestamp,
    TransportConfig,
};

const NOW: Timestamp = Timestamp::from_millis(1_000);
const BUDGET: u64 = 16 << 20;
/// Each is charged 256 KiB at its start, and a further one needs 2.75 MiB.
const CLIENTS: u32 = 50;
/// Symbols of each client, less than a window of credit: 29 MiB in total.
const SYMBOLS: u64 = 500;
const SYMBOL_BYTES: usize = 1_200;
/// State of a connection that is no received data: keys, paths, congestion control, packets sent.
const OTHER_STATE: i64 = 64 << 10;

struct Server {
    endpoint: Endpoint,
    accepted: usize,
}

impl Server {
    fn new() -> Self {
        let server = ServerConfig {
            identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
            client_trust: None,
            transport: Arc::new(TransportConfig::default()),
            retry_threshold: usize::MAX,
            max_connections: 1_000,
        };
        let config = EndpointConfig {
            security: Security::DangerousPlain,
            server: Some(server),
            memory_budget: BUDGET,
            ..EndpointConfig::default()
        };
        Self { endpoint: Endpoint::new(config, [2; 32]).unwrap(), accepted: 0 }
    }

    fn deliver(&mut self, number: u32, client: &mut MisbehavingClient, mut payload: Vec<u8>) {
        let remote = MisbehavingClient::address(number);
        let received = Received { remote, local_ip: None, ecn: 0, payload: &mut payload };
        self.endpoint.handle(NOW, Input::Datagram(received));
        let mut buffer = Vec::with_capacity(65_536);
        loop {
            match self.endpoint.poll(NOW, &mut buffer) {
                Output::Transmit(transmit) => {
                    buffer.chunks(transmit.segment_size).for_each(|bytes| client.learn(bytes));
                }
                Output::Event(_, Event::Accepted) => self.accepted += 1,
                Output::Event(..) => {}
                Output::Timeout(_) => return,
            }
        }
    }
}

/// A symbol in the middle of a message of a million bytes, or its first symbol.
fn symbol(client: &mut MisbehavingClient, number: u64) -> Vec<u8> {
    let mut payload = vec![0; SYMBOL_BYTES];
    let mut writer = Writer::new(&mut payload);
    SourceHeader::new(number).encode(&mut writer).unwrap();
    if number == 0 {
        for value in [1, 1_000_000, 1_000] {
            writer.varint(value).unwrap();
        }
    }
    client.packet(PacketKind::Source, &payload).expect("the handshake is complete")
}

/// `first`: number of the first symbol. If it is 1, all symbols wait for symbol 0.
fn bytes_held(first: u64) {
    let mut server = Server::new();
    let mut clients = Vec::new();
    for number in (1..=CLIENTS).map(|number| number << 16) {
        let mut client = MisbehavingClient::new(number);
        let parameters =
            TransportParameters { connection_id: client.cid(), ..TransportParameters::default() };
        let flight = client.first_flight(&parameters.encode(0), &[]);
        server.deliver(number, &mut client, flight);
        let finished = client.finished().expect("the server has answered");
        server.deliver(number, &mut client, finished);
        clients.push((number, client));
    }
    assert_eq!(server.accepted, CLIENTS as usize);
    let held = allocation_counter::measure(|| {
        for symbol_number in first..SYMBOLS {
            for (number, client) in &mut clients {
                let packet = symbol(client, symbol_number);
                server.deliver(*number, client, packet);
            }
            assert!(server.endpoint.endpoint_stats().memory_promised <= BUDGET);
        }
    });
    let stats = server.endpoint.endpoint_stats();
    println!("first symbol {first}: {held:?}, {} shortages", stats.memory_shortages);
    assert!(stats.memory_shortages > 0, "more was sent than the budget allows");
    assert_eq!(stats.peers_misbehaved, 0, "all within the credit");
    let allowed = BUDGET as i64 + i64::from(CLIENTS) * OTHER_STATE;
    assert!(held.bytes_max as i64 <= allowed, "{} of {allowed}", held.bytes_max);
    // Behind a gap, the room to hand over what is held is charged, too.
    assert!(held.bytes_max >= BUDGET / 4, "the budget is used: {}", held.bytes_max);
}

#[test]
fn misbehaving_peers_together_stay_within_the_memory_budget() {
    bytes_held(1);
    bytes_held(0);
}
