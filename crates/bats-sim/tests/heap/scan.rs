//! Unauthenticated packets of a network scan: no answer without need, no state, and no memory.

use std::net::SocketAddr;

use bats_proto::fuzzing::MisbehavingClient;
use bats_proto::wire::long_header::VERSION;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::{Endpoint, Input, Output, PresharedKey, Received, Timestamp, TransportConfig};
use bats_sim::transfer::endpoints;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Minimum size of a datagram with an Initial packet (RFC 9000, section 14.1).
const MIN_INITIAL: usize = 1_200;
/// Datagrams to each of two endpoints: a million in total.
const DATAGRAMS: u32 = 500_000;
/// Token sizes of the invented first flights in bytes: none, a proof, a proof and a Retry token.
const TOKENS: [usize; 3] = [0, 16, 56];

/// Random bytes. Half of the datagrams start like a packet of the protocol.
fn noise(rng: &mut ChaCha8Rng, longest: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1 + rng.next_u32() as usize % longest];
    rng.fill_bytes(&mut bytes);
    match rng.next_u32() % 4 {
        0 => bytes[0] = 0x40 | (bytes[0] & 0x3f),
        1 if bytes.len() >= 5 => {
            bytes[0] = 0xc0 | (bytes[0] & 0x3f);
            bytes[1..5].copy_from_slice(&VERSION.to_be_bytes());
        }
        _ => {}
    }
    bytes
}

/// Hands a datagram to the endpoint. Returns the bytes of its answers and the number of
/// allocations.
fn deliver(endpoint: &mut Endpoint, now: Timestamp, payload: &mut [u8]) -> (usize, u64) {
    let remote: SocketAddr = "192.0.2.7:4433".parse().unwrap();
    let mut buffer = Vec::with_capacity(65_536);
    let mut answered = 0;
    let counted = allocation_counter::measure(|| {
        let received = Received { remote, local_ip: None, ecn: 0, payload };
        endpoint.handle(now, Input::Datagram(received));
        while let Output::Transmit(transmit) = endpoint.poll(now, &mut buffer) {
            answered += transmit.len;
        }
    });
    (answered, counted.count_total)
}

#[test]
fn random_datagrams_get_no_answer_and_allocate_nothing() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    // A client endpoint, and a server endpoint, which does not answer short datagrams.
    for (mut endpoint, longest) in
        endpoints(&TransportConfig::default(), 1).into_iter().zip([1_500, MIN_INITIAL - 1])
    {
        for number in 0..DATAGRAMS {
            let mut datagram = noise(&mut rng, longest);
            let now = Timestamp::from_millis(1_000 + u64::from(number));
            let (answered, allocations) = deliver(&mut endpoint, now, &mut datagram);
            assert_eq!((answered, allocations), (0, 0), "datagram {number}: {datagram:02x?}");
        }
        let stats = endpoint.endpoint_stats();
        assert_eq!(stats.datagrams_dropped, u64::from(DATAGRAMS), "all datagrams are counted");
        assert_eq!(endpoint.connection_count(), 0);
    }
}

/// A scanner's datagram to a server in PSK mode: random bytes of any length, a first flight of a
/// client without the key whose token looks like a proof, a packet of another version, or a short
/// header.
fn scan(rng: &mut ChaCha8Rng, flights: &[Vec<u8>; 3]) -> Vec<u8> {
    match rng.next_u32() % 8 {
        0..=2 => noise(rng, 1_500),
        kind @ 3..=5 => {
            let kind = kind as usize - 3;
            let mut datagram = flights[kind].clone();
            // Connection IDs of 8 and 4 bytes, then the token after its length.
            rng.fill_bytes(&mut datagram[6..14]);
            rng.fill_bytes(&mut datagram[15..19]);
            rng.fill_bytes(&mut datagram[21..][..TOKENS[kind]]);
            datagram
        }
        6 => {
            let mut datagram = flights[0].clone();
            rng.fill_bytes(&mut datagram[1..5]);
            datagram
        }
        _ => {
            let mut datagram = noise(rng, 1_500);
            datagram[0] &= 0x7f;
            datagram
        }
    }
}

#[test]
fn a_psk_mode_server_ignores_unauthenticated_packets_without_allocating() {
    let psk = Some(PresharedKey::new([1; 32]));
    let [_, mut server] = endpoints(&TransportConfig { psk, ..TransportConfig::default() }, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let parameters = TransportParameters::default().encode(0);
    let flights =
        TOKENS.map(|len| MisbehavingClient::new(1).first_flight(&parameters, &vec![0; len]));
    for number in 0..2 * DATAGRAMS {
        let mut datagram = scan(&mut rng, &flights);
        let now = Timestamp::from_millis(1_000 + u64::from(number));
        let (answered, allocations) = deliver(&mut server, now, &mut datagram);
        assert_eq!((answered, allocations), (0, 0), "datagram {number}: {datagram:02x?}");
    }
    let stats = server.endpoint_stats();
    let counted = stats.datagrams_dropped + stats.unauthenticated_ignored;
    assert_eq!(counted, 2 * u64::from(DATAGRAMS), "all datagrams are counted");
    // Three in eight are first flights, one in eight is of another version, and so is some noise.
    assert!(stats.unauthenticated_ignored > u64::from(DATAGRAMS), "{stats:?}");
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn version_negotiation_answers_only_full_sized_packets_and_does_not_amplify() {
    let [_, mut server] = endpoints(&TransportConfig::default(), 1);
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut answers = 0;
    for number in 0..20_000_u64 {
        let mut datagram = noise(&mut rng, 1_500);
        let len = datagram.len();
        let now = Timestamp::from_millis(1_000 + number);
        let (answered, _) = deliver(&mut server, now, &mut datagram);
        assert!(answered == 0 || len >= MIN_INITIAL, "{len} bytes were answered with {answered}");
        assert!(answered <= len / 2, "{answered} bytes in answer to {len}");
        answers += u64::from(answered > 0);
    }
    assert_eq!(server.endpoint_stats().version_negotiations_sent, answers);
    assert!(answers > 0, "packets of other versions are answered with Version Negotiation");
    assert_eq!(server.connection_count(), 0);
}
