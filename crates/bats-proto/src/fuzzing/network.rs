//! Honest ends and a network that does everything but break the seals.

use core::net::SocketAddr;
use core::time::Duration;

use super::script::Script;
use super::world::{CLIENT, SERVER, Side, World, WorldConfig, address};

/// Steps of a script; more are not looked at.
const MAX_STEPS: usize = 600;
/// Application bytes of a run in each direction.
const MAX_BYTES: usize = 400_000;
/// A connection that survived the script has delivered everything after this time on a good
/// network. Long, because the script may have taught the ends a round-trip time of minutes.
const RECOVERY: Duration = Duration::from_secs(600);

/// What came of a run, so that tests can tell that something was tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkReport {
    /// Messages delivered.
    pub delivered: usize,
    /// Whether both ends were established and neither had closed when the script ended.
    pub survived: bool,
}

/// Two endpoints over a network that drops, repeats, reorders, cuts, changes and invents
/// datagrams as `data` says, four bytes for each step.
///
/// # Panics
/// A message was changed, invented, repeated or overtaken; a connection that survived does not
/// deliver; a limit is broken.
pub fn network_run(data: &[u8]) -> NetworkReport {
    let mut script = Script::new(data);
    let mut config = WorldConfig::new(script.array());
    // Silence is the script's fault, not the ends'.
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
        world.run_perfectly(RECOVERY, true);
        world.check_messages();
        assert!(world.is_complete(), "not all messages arrived: {}", states(&world));
    }
    NetworkReport { delivered: world.sides.iter().map(|side| side.received.len()).sum(), survived }
}

fn states(world: &World) -> String {
    let state = |side: &Side| {
        let stats = side.handle.and_then(|handle| side.endpoint.stats(world.now, handle));
        let (sent, received) = (side.sent.len(), side.received.len());
        format!("sent {sent}, received {received}, closed {:?}, {stats:?}\n", side.closed)
    };
    world.sides.iter().map(state).collect()
}

fn step(world: &mut World, [kind, a, b, c]: [u8; 4], bytes: &mut [usize; 2]) {
    let to = usize::from(a & 1);
    let number = usize::from(u16::from_be_bytes([b, c]));
    let flying = &mut world.sides[to].flying;
    let index = usize::from(a >> 1) % flying.len().max(1);
    match kind % 16 {
        0..=2 => {
            for _ in 0..=b % 16 {
                let Some(datagram) = world.sides[to].flying.pop_front() else { break };
                world.deliver(to, datagram, address(1 - to));
            }
        }
        3 => {
            let end = flying.len().min(index + 1 + usize::from(b % 8));
            flying.drain(index..end);
        }
        4 => {
            if let Some(datagram) = flying.get(index).cloned() {
                world.deliver(to, datagram, address(1 - to));
            }
        }
        5 => {
            if let Some(datagram) = flying.remove(index) {
                world.deliver(to, datagram, address(1 - to));
            }
        }
        6 => {
            if let Some(mut datagram) = flying.remove(index) {
                datagram.truncate(number % datagram.len().max(1));
                world.deliver(to, datagram, address(1 - to));
            }
        }
        7 => {
            if let Some(mut datagram) = flying.remove(index) {
                let bit = number % (datagram.len() * 8).max(1);
                if let Some(byte) = datagram.get_mut(bit / 8) {
                    *byte ^= 1 << (bit % 8);
                }
                world.deliver(to, datagram, address(1 - to));
            }
        }
        8 | 9 => {
            let old = &world.sides[to].old;
            if let Some(datagram) = old.get(usize::from(b) % old.len().max(1)).cloned() {
                let from = if kind % 16 == 8 { address(1 - to) } else { stranger(c) };
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
        14 => world.run_perfectly(Duration::from_millis(u64::from(b)), false),
        _ => {
            world.receive(CLIENT);
            world.receive(SERVER);
            match (b, c, world.sides[to].handle) {
                (254, 254, _) => world.finish(to),
                (255, 255, Some(handle)) => {
                    world.sides[to].endpoint.close(world.now, handle, 7, "enough");
                    world.settle(to);
                }
                _ => {}
            }
        }
    }
}

fn stranger(byte: u8) -> SocketAddr {
    SocketAddr::from(([192, 168, 0, byte], 9))
}

/// A datagram of the beginning of a known one and something else.
fn spliced(world: &World, to: usize, b: u8, c: u8) -> Vec<u8> {
    let old = &world.sides[to].old;
    let mut datagram = match old.get(usize::from(b) % old.len().max(1)) {
        Some(datagram) => datagram[..datagram.len().min(usize::from(c) % 32)].to_vec(),
        None => vec![b],
    };
    datagram.extend((0..usize::from(c) * 5).map(|i| (i * 37) as u8 ^ b));
    datagram
}
