//! Whoever scans the net with what looks like our packets learns little and costs nothing: no answer
//! where there is none to give, no state, and no memory.

use std::net::SocketAddr;

use bats_proto::fuzzing::LyingClient;
use bats_proto::wire::long_header::VERSION;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::{ClosedKey, Endpoint, Input, Output, Received, Timestamp, TransportConfig};
use bats_sim::transfer::endpoints;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes below which no first packet is one (RFC 9000, section 14.1).
const MIN_INITIAL: usize = 1_200;
/// To each of two endpoints: a million in all.
const DATAGRAMS: u32 = 500_000;
/// Bytes of the tokens of made-up first flights: none, a proof, a proof and a retry's token.
const TOKENS: [usize; 3] = [0, 16, 56];

/// Noise; every other one begins as a packet of ours does.
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

/// Bytes answered, and allocations, for what arrives from `remote`.
fn hear(endpoint: &mut Endpoint, now: Timestamp, payload: &mut [u8]) -> (usize, u64) {
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
fn noise_gets_no_answer_and_no_memory() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    // One that only connects, and one that serves, which answers nothing short.
    for (mut endpoint, longest) in
        endpoints(&TransportConfig::default(), 1).into_iter().zip([1_500, MIN_INITIAL - 1])
    {
        for number in 0..DATAGRAMS {
            let mut datagram = noise(&mut rng, longest);
            let now = Timestamp::from_millis(1_000 + u64::from(number));
            let (answered, allocations) = hear(&mut endpoint, now, &mut datagram);
            assert_eq!((answered, allocations), (0, 0), "datagram {number}: {datagram:02x?}");
        }
        let stats = endpoint.endpoint_stats();
        assert_eq!(stats.datagrams_dropped, u64::from(DATAGRAMS), "every one is counted");
        assert_eq!(endpoint.connection_count(), 0);
    }
}

/// What a scanner may send to a closed server: noise of any length, first flights as an open client
/// sends them, with tokens that may pass for proofs, packets of other versions, and short headers.
fn scan(rng: &mut ChaCha8Rng, flights: &[Vec<u8>; 3]) -> Vec<u8> {
    match rng.next_u32() % 8 {
        0..=2 => noise(rng, 1_500),
        kind @ 3..=5 => {
            let kind = kind as usize - 3;
            let mut datagram = flights[kind].clone();
            // Connection IDs of eight and of four bytes, then the token behind its length.
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
fn a_closed_server_answers_a_million_strangers_nothing_and_takes_no_memory() {
    let closed = Some(ClosedKey::new([1; 32]));
    let [_, mut server] = endpoints(&TransportConfig { closed, ..TransportConfig::default() }, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let parameters = TransportParameters::default().encode(0);
    let flights = TOKENS.map(|len| LyingClient::new(1).first_flight(&parameters, &vec![0; len]));
    for number in 0..2 * DATAGRAMS {
        let mut datagram = scan(&mut rng, &flights);
        let now = Timestamp::from_millis(1_000 + u64::from(number));
        let (answered, allocations) = hear(&mut server, now, &mut datagram);
        assert_eq!((answered, allocations), (0, 0), "datagram {number}: {datagram:02x?}");
    }
    let stats = server.endpoint_stats();
    let counted = stats.datagrams_dropped + stats.strangers_ignored;
    assert_eq!(counted, 2 * u64::from(DATAGRAMS), "every one is counted");
    // Three in eight are first flights, one is of another version, and so is some noise.
    assert!(stats.strangers_ignored > u64::from(DATAGRAMS), "{stats:?}");
    assert_eq!(server.connection_count(), 0);
}

#[test]
fn a_full_sized_packet_of_another_version_gets_no_more_than_it_brings() {
    let [_, mut server] = endpoints(&TransportConfig::default(), 1);
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut answers = 0;
    for number in 0..20_000_u64 {
        let mut datagram = noise(&mut rng, 1_500);
        let brought = datagram.len();
        let now = Timestamp::from_millis(1_000 + number);
        let (answered, _) = hear(&mut server, now, &mut datagram);
        assert!(answered == 0 || brought >= MIN_INITIAL, "{brought} bytes brought {answered}");
        assert!(answered <= brought / 2, "{answered} bytes for {brought}");
        answers += u64::from(answered > 0);
    }
    assert_eq!(server.endpoint_stats().version_negotiations_sent, answers);
    assert!(answers > 0, "the other versions are told which one is spoken");
    assert_eq!(server.connection_count(), 0);
}
