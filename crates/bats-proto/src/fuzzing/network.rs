//! Correct endpoints and a network that does everything except break the encryption.

use core::net::SocketAddr;
use core::time::Duration;

use super::script::Script;
use super::world::{CLIENT, SERVER, Side, World, WorldConfig, address};
use crate::endpoint::Endpoint;

/// Maximum number of steps of a script; further ones are ignored.
const MAX_STEPS: usize = 600;
/// Maximum number of application bytes of a run in each direction.
const MAX_BYTES: usize = 400_000;
/// A connection that survived the script delivers everything within this time over a network
/// without faults. It is long because the script may have caused a round-trip time of minutes.
const RECOVERY: Duration = Duration::from_secs(600);

/// Counters of a run, so that a test can check that it exercised something.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkReport {
    /// Messages delivered.
    pub delivered: usize,
    /// Whether both ends were established and open when the script ended.
    pub survived: bool,
}

/// Two endpoints over a network that drops, duplicates, reorders, truncates, corrupts and injects
/// datagrams as `data` determines, with four bytes for each step.
///
/// # Panics
/// A message is corrupted, invented, duplicated or reordered; a connection that survived does not
/// deliver; a limit is violated.
pub fn network_run(data: &[u8]) -> NetworkReport {
    let mut script = Script::new(data);
    let mut config = WorldConfig::new(script.array());
    // The script may stop all traffic for long, so the idle time-out must not close the connection.
    config.transport.idle_timeout = RECOVERY * 10;
    let mut world = World::new(config);
    let mut bytes = [0; 2];
    for _ in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        step(&mut world, script.array(), &mut bytes);
        world.check_messages();
    }
    let survived = world.sides.iter().all(|side| side.established && side.closed.is_none());
    if survived {
        world.run_without_faults(RECOVERY, true);
        world.check_messages();
        assert!(world.is_complete(), "not all messages arrived: {}", states(&world));
    }
    NetworkReport { delivered: world.sides.iter().map(|side| side.received.len()).sum(), survived }
}

fn states(world: &World) -> String {
    let state = |(side, node): (&Side, &Endpoint)| {
        let stats = side.handle.and_then(|handle| node.stats(world.now(), handle));
        let (sent, received) = (side.sent.len(), side.received.len());
        format!("sent {sent}, received {received}, closed {:?}, {stats:?}\n", side.closed)
    };
    world.sides.iter().zip(&world.world.nodes).map(state).collect()
}

fn step(world: &mut World, [kind, a, b, c]: [u8; 4], bytes: &mut [usize; 2]) {
    let to = usize::from(a & 1);
    let number = usize::from(u16::from_be_bytes([b, c]));
    let in_flight = &mut world.world.links.to[to];
    let index = usize::from(a >> 1) % in_flight.len().max(1);
    match kind % 16 {
        0..=2 => {
            for _ in 0..=b % 16 {
                let Some(datagram) = world.world.links.to[to].pop_front() else { break };
                world.deliver(to, datagram, address(1 - to));
            }
        }
        3 => {
            let end = in_flight.len().min(index + 1 + usize::from(b % 8));
            in_flight.drain(index..end);
        }
        4 => {
            if let Some(datagram) = in_flight.get(index).cloned() {
                world.deliver(to, datagram, address(1 - to));
            }
        }
        5 => {
            if let Some(datagram) = in_flight.remove(index) {
                world.deliver(to, datagram, address(1 - to));
            }
        }
        6 => {
            if let Some(mut datagram) = in_flight.remove(index) {
                datagram.truncate(number % datagram.len().max(1));
                world.deliver(to, datagram, address(1 - to));
            }
        }
        7 => {
            if let Some(mut datagram) = in_flight.remove(index) {
                let bit = number % (datagram.len() * 8).max(1);
                if let Some(byte) = datagram.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
                world.deliver(to, datagram, address(1 - to));
            }
        }
        8 | 9 => {
            let old = &world.sides[to].history;
            if let Some(datagram) = old.get(usize::from(b) % old.len().max(1)).cloned() {
                let from = if kind % 16 == 8 { address(1 - to) } else { spoofed_address(c) };
                world.deliver(to, datagram, from);
            }
        }
        10 => world.deliver(to, spliced(world, to, b, c), address(1 - to)),
        11 | 12 => world.advance(Duration::from_micros((u64::from(b) * 50) << (c % 6))),
        13 => {
            let len = number % 6_000;
            if bytes[to] + len <= MAX_BYTES {
                bytes[to] += len;
                world.send(to, len);
            }
        }
        14 => world.run_without_faults(Duration::from_millis(u64::from(b)), false),
        _ => {
            world.receive(CLIENT);
            world.receive(SERVER);
            match (b, c, world.sides[to].handle) {
                (254, 254, _) => world.finish(to),
                (255, 255, Some(handle)) => {
                    let now = world.now();
                    world.world.nodes[to].close(now, handle, 7, "enough");
                    world.settle(to);
                }
                _ => {}
            }
        }
    }
}

fn spoofed_address(byte: u8) -> SocketAddr {
    SocketAddr::from(([192, 168, 0, byte], 9))
}

/// A datagram that begins like a known one and continues with other bytes.
fn spliced(world: &World, to: usize, b: u8, c: u8) -> Vec<u8> {
    let old = &world.sides[to].history;
    let mut datagram = match old.get(usize::from(b) % old.len().max(1)) {
        Some(datagram) => datagram[..datagram.len().min(usize::from(c) % 32)].to_vec(),
        None => vec![b],
    };
    datagram.extend((0..usize::from(c) * 5).map(|i| (i * 37) as u8 ^ b));
    datagram
}
