//! ICMP "port unreachable" errors: real ones end connections, forged ones do not.

mod harness;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bats_proto::config::Security;
use bats_proto::wire::frame::Frame;
use bats_proto::{
    ClientConfig, CloseReason, Endpoint, EndpointConfig, Event, Output, PeerTrust, Timestamp,
    TransportConfig,
};

use harness::{Harness, MS, transport};

fn idle_for_long() -> TransportConfig {
    TransportConfig { idle_timeout: Duration::from_secs(3_600), ..transport() }
}

/// Reports errors that quote `quoted` every 10 ms for a second.
fn report(harness: &mut Harness, quoted: &[u8]) {
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, Harness::address(), quoted);
        harness.settle();
        harness.advance(MS * 10);
    }
}

#[test]
fn persistent_errors_that_quote_a_packet_end_the_connection() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    // Hosts and routers quote different parts of a packet.
    report(&mut harness, &packet[..20]);
    assert!(matches!(&harness.closed, Some(CloseReason::Lost(_))), "{:?}", harness.closed);
}

#[test]
fn forged_errors_have_no_effect() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    let mut other_connection = packet.clone();
    other_connection[3] ^= 1;
    let long_header = [0xc0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4];
    let quotations: [&[u8]; 8] = [
        &[],
        &[0],
        &packet[..4],
        &other_connection,
        &long_header,
        &[0xff; 6],
        &[0xff; 64],
        &[0; 64],
    ];
    for quoted in quotations {
        report(&mut harness, quoted);
        assert_eq!(harness.closed, None, "{quoted:?}");
    }
    // A quotation of another address.
    let other = "192.0.2.1:9".parse().unwrap();
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, other, &packet);
        harness.advance(MS * 10);
    }
    assert_eq!(harness.closed, None);
}

#[test]
fn errors_between_packets_of_the_peer_have_no_effect() {
    let mut harness = Harness::established(idle_for_long());
    harness.send_from_server(1_000);
    let packet = harness.received.last().unwrap().clone();
    for _ in 0..100 {
        harness.server.handle_unreachable_port(harness.now, Harness::address(), &packet);
        harness.advance(MS);
        harness.send_frame(&Frame::Ping);
        harness.advance(MS * 9);
    }
    assert_eq!(harness.closed, None);
}

/// So many connections are always searched (`FEW_CONNECTIONS`), and more of them once in so long (`SEARCH_INTERVAL`).
const FEW_CONNECTIONS: usize = 256;
const SEARCH_INTERVAL: Duration = Duration::from_millis(5);

fn address(number: usize) -> SocketAddr {
    let [.., high, low] = number.to_be_bytes();
    ([10, 0, high, low], 4_000).into()
}

/// So many clients, each of an address of its own, that no server has answered: an error for the address ends the client.
fn clients(count: usize, now: Timestamp) -> Endpoint {
    let security = Security::DangerousPlain;
    let config = EndpointConfig { security, ..EndpointConfig::default() };
    let mut endpoint = Endpoint::new(config, [1; 32]).unwrap();
    let transport = Arc::new(transport());
    for number in 0..count {
        let (trust, transport) = (PeerTrust::DangerousAcceptAny, transport.clone());
        let config = ClientConfig { trust, identity: None, transport };
        endpoint.connect(now, address(number), "server", config).unwrap();
    }
    endpoint
}

/// The number of clients that errors have ended.
fn refused(endpoint: &mut Endpoint, now: Timestamp) -> usize {
    let (mut refused, mut buffer) = (0, Vec::with_capacity(65_536));
    loop {
        match endpoint.poll(now, &mut buffer) {
            Output::Event(_, Event::Closed(reason)) => {
                assert_eq!(reason, CloseReason::Refused);
                refused += 1;
            }
            Output::Timeout(_) => return refused,
            _ => {}
        }
    }
}

/// Each search ends a client, as each error names the address of another one: the searches are counted so.
#[test]
fn a_flood_of_errors_leads_to_few_searches_among_many_connections() {
    let start = Timestamp::from_millis(1_000);
    let mut endpoint = clients(FEW_CONNECTIONS + 50, start);
    // 30 errors in each interval.
    for number in 0..300 {
        let now = start + SEARCH_INTERVAL / 30 * number;
        endpoint.handle_unreachable_port(now, address(number as usize), &[]);
    }
    // The last error comes less than ten intervals after the first.
    assert_eq!(refused(&mut endpoint, start + SEARCH_INTERVAL * 10), 10);
    // Errors for addresses that no connection has are searched for as well, and delay others.
    let now = start + SEARCH_INTERVAL * 11;
    endpoint.handle_unreachable_port(now, address(60_000), &[]);
    endpoint.handle_unreachable_port(now, address(299), &[]);
    assert_eq!(refused(&mut endpoint, now), 0);
    endpoint.handle_unreachable_port(now + SEARCH_INTERVAL, address(299), &[]);
    assert_eq!(refused(&mut endpoint, now + SEARCH_INTERVAL), 1);
}

#[test]
fn each_error_leads_to_a_search_among_few_connections() {
    let now = Timestamp::from_millis(1_000);
    let mut endpoint = clients(FEW_CONNECTIONS, now);
    for number in 0..FEW_CONNECTIONS {
        endpoint.handle_unreachable_port(now, address(number), &[]);
    }
    assert_eq!(refused(&mut endpoint, now), FEW_CONNECTIONS);
}
