//! Measures the cost of a datagram from an unauthenticated peer to a server in PSK mode, in ns.
//!
//! Run with `cargo run --release -p bats-proto --example unauthenticated_cost`. It uses real TLS
//! and handles each kind of datagram a million times; the result is the best of five runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bats_proto::crypto::generate_identity;
use bats_proto::fuzzing::MisbehavingClient;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::{
    Endpoint, EndpointConfig, Input, Output, PresharedKey, Received, ServerConfig, Timestamp,
    TransportConfig,
};

const DATAGRAMS: u32 = 1_000_000;
const RUNS: usize = 5;

/// The first flight of a client without the key, with a token of `token` bytes.
fn flight(token: usize) -> Vec<u8> {
    let parameters = TransportParameters::default().encode(0);
    MisbehavingClient::new(1).first_flight(&parameters, &vec![7; token])
}

/// Nanoseconds per datagram: with `endpoint`, or for the copy and the loop only.
fn measure(mut endpoint: Option<&mut Endpoint>, datagram: &[u8]) -> f64 {
    let remote = SocketAddr::from(([192, 0, 2, 7], 4_433));
    let (now, mut buffer) = (Timestamp::from_millis(1), Vec::with_capacity(65_536));
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let mut payload = datagram.to_vec();
        #[expect(clippy::disallowed_methods, reason = "the example measures real time")]
        let began = Instant::now();
        for number in 0..DATAGRAMS {
            // Another connection ID each time.
            if let Some(id) = payload.get_mut(6..10) {
                id.copy_from_slice(&number.to_be_bytes());
            }
            let payload = core::hint::black_box(payload.as_mut_slice());
            if let Some(endpoint) = endpoint.as_deref_mut() {
                let received = Received { remote, local_ip: None, ecn: 0, payload };
                endpoint.handle(now, Input::Datagram(received));
                let output = endpoint.poll(now, &mut buffer);
                assert!(matches!(output, Output::Timeout(_)), "no answer");
            }
        }
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(DATAGRAMS));
    }
    best
}

fn main() {
    let identity = generate_identity(&["server.example".to_owned()]).expect("an identity");
    let transport = TransportConfig {
        psk: Some(PresharedKey::new([1; PresharedKey::LEN])),
        ..TransportConfig::default()
    };
    let server = ServerConfig {
        identity,
        transport: Arc::new(transport),
        client_trust: None,
        retry_threshold: 64,
        max_connections: 10_000,
    };
    let config = EndpointConfig { server: Some(server), ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [1; 32]).expect("a server in PSK mode");
    let mut other_version = flight(0);
    other_version[1] ^= 0x55;
    for (name, datagram) in [
        ("first flight without a token", flight(0)),
        ("first flight with a wrong proof", flight(16)),
        ("unknown version", other_version),
        ("short header", vec![0x40; 1_200]),
    ] {
        let empty = measure(None, &datagram);
        let whole = measure(Some(&mut endpoint), &datagram);
        println!("{name:<32} {:6.1} ns", whole - empty);
    }
}
