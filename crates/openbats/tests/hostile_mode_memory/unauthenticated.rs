//! Datagrams of unauthenticated peers to a server of the mode QUIC: they have no keys, and their addresses may be forged.

use bats_proto::{Input, Received};

use crate::quic::{World, address, begin, ids};
use crate::quic_client::{Client, INITIAL_PAYLOAD, initial, long_header, stream};
use crate::{Attacked, polled};

pub(crate) const NAMES: &[&str] = &[
    "quic-unauthenticated-garbage",
    "quic-unauthenticated-first-flights",
    "quic-unauthenticated-first-flights-at-once",
    "quic-unauthenticated-at-the-limit",
    "quic-unauthenticated-forged-packets",
    "quic-unauthenticated-unknown-ids",
];

/// First packets, and packets of connections, which cost less.
const FLIGHTS: u32 = 100_000;
const PACKETS: u32 = 1_000_000;
/// Of so many packets one is honest, so that the connection does not time out.
const HONEST: u32 = 100_000;
/// Half-open handshakes of an endpoint, and more than that.
const HALF_OPEN: usize = 4_096;
const TOO_MANY: u32 = 6_000;

/// Half-open handshakes before a Retry is required, by default.
pub(crate) const RETRY_THRESHOLD: usize = 64;

pub(crate) fn run(case: &str) -> Attacked {
    let mut world = World::new(false)?;
    // From this address or the next ones, and networks of 256.
    let spread = |number: u32| address(0x0010_0000 + number * 61);
    match case {
        "quic-unauthenticated-garbage" => {
            let [to, from] = ids(1);
            for number in 0..FLIGHTS {
                world.remote = spread(number);
                let mut datagram = long_header(0, &to, &from, 0, INITIAL_PAYLOAD);
                datagram.resize(1_200, number as u8);
                world.push(datagram);
            }
        }
        "quic-unauthenticated-first-flights" => {
            let flights = flights()?;
            for number in 0..FLIGHTS {
                world.remote = spread(number);
                world.push(flights[RETRY_THRESHOLD.min(number as usize)].clone());
            }
            let counts = world.server.endpoint_stats();
            assert_eq!(counts.handshakes_started, RETRY_THRESHOLD as u64);
            assert_eq!(counts.retries_sent, u64::from(FLIGHTS) - RETRY_THRESHOLD as u64);
        }
        // The server sends nothing meanwhile.
        "quic-unauthenticated-first-flights-at-once" => {
            let flights = flights()?;
            for number in 0..FLIGHTS / 10 {
                let payload = &mut flights[RETRY_THRESHOLD.min(number as usize)].clone()[..];
                let remote = spread(number);
                let received = Received { remote, local_ip: None, ecn: 0, payload };
                world.server.handle(world.now, Input::Datagram(received));
            }
            polled(&mut world.server, world.now, &mut world.buffer);
            world.packets = u64::from(FLIGHTS / 10);
            assert!(world.server.endpoint_stats().answers_dropped > 0, "there is a limit");
        }
        "quic-unauthenticated-at-the-limit" => {
            for number in 0..TOO_MANY {
                world.remote = spread(number);
                let [to, from] = ids(number);
                world.push(initial(&to, &to, &from, 0, &[1]));
            }
            let counts = world.server.endpoint_stats();
            assert_eq!(counts.handshakes_started, HALF_OPEN as u64);
            assert_eq!(counts.half_open_refused, u64::from(TOO_MANY) - HALF_OPEN as u64);
        }
        "quic-unauthenticated-forged-packets" => {
            let mut client = world.established(1)?;
            let datagram = client.packet(&[1; 30]);
            for number in 0..PACKETS {
                let mut datagram = datagram.clone();
                let last = datagram.len() - 1;
                datagram[last] ^= number as u8 | 1;
                datagram[9] ^= (number >> 8) as u8;
                world.push(datagram);
                if number % HONEST == 0 {
                    let at = begin() + u64::from(4 * (number / HONEST));
                    world.push(client.packet(&stream(at, &[6, 0, 0, 0])));
                }
            }
            assert!(!world.is_closed, "they change nothing");
        }
        _ => {
            let mut other = World::new(false)?;
            other.established(1)?;
            let datagram = other.established(2)?.packet(&[0; 30]);
            drop(other);
            crate::take_counts();
            for number in 0..PACKETS {
                world.remote = spread(number);
                world.push(datagram.clone());
            }
        }
    }
    Ok((world.packets, world.is_closed))
}

/// First flights of clients, one more than are accepted without a Retry.
fn flights() -> Result<Vec<Vec<u8>>, Box<dyn std::error::Error>> {
    (0..=RETRY_THRESHOLD as u32).map(|number| Ok(Client::new(number)?.first_flight())).collect()
}
