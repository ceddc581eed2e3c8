//! A peer that has the keys and says what is not so.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::forge::{LyingClient, seal_long, seal_short};
use super::script::Script;
use super::world::{CLIENT, SERVER, World, WorldConfig, address};
use crate::wire::coding::{RepairHeader, SourceHeader};
use crate::wire::frame::{self, AckHeader};
use crate::wire::long_header::LongKind;
use crate::wire::parameters::TransportParameters;
use crate::wire::short_header::{PacketKind, ShortHeader};
use crate::wire::varint::Writer;

/// Steps of a script; more are not looked at.
const MAX_STEPS: usize = 400;
/// Bytes of an invented payload at most: what a datagram carries.
const MAX_PAYLOAD: usize = 1_440;

/// What came of a run, so that tests can tell that something was tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiarReport {
    /// Data packets of the liar that were taken for genuine.
    pub believed: u64,
}

/// What is known of the packets to one side.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    destination: Option<[u8; 4]>,
    /// Packet numbers of both directions, as far as they were seen.
    largest_to: u64,
    largest_from: u64,
    /// Symbols that the side has sent.
    symbols: u64,
}

/// Two honest endpoints, a good network, and forged packets with valid seals in both directions,
/// as `data` says.
///
/// # Panics
/// A limit is broken. What is delivered may be wrong: the keys are known to the forger.
pub fn forger_run(data: &[u8]) -> LiarReport {
    let mut script = Script::new(data);
    let mut world = World::new(WorldConfig::new(script.array()));
    world.run_perfectly(Duration::from_millis(20), false);
    let mut seen = [Seen::default(); 2];
    let mut report = LiarReport::default();
    let mut generation = 0;
    for _ in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        for to in [CLIENT, SERVER] {
            look(&world, to, &mut seen);
            seen[to].symbols = world.symbols_sent(to);
        }
        let kind = script.u8();
        let to = usize::from(kind >> 7);
        match kind % 8 {
            0 => world.advance(Duration::from_micros(u64::from(script.u16()) * 8)),
            1 => world.run_perfectly(Duration::from_millis(u64::from(script.u8() % 32)), false),
            2 => world.send(to, usize::from(script.u16()) % 8_000),
            3 if kind & 64 != 0 => generation = u64::from(script.u8() % 4),
            3 => {
                let level = if kind & 32 == 0 { LongKind::Initial } else { LongKind::Handshake };
                let Some(cid) = seen[to].destination else { continue };
                let bytes = script.bytes();
                let datagram =
                    seal_long(to == SERVER, level, &cid, &[7; 4], &[], script.u8().into(), bytes);
                world.deliver(to, datagram, address(1 - to));
            }
            _ => {
                let Some(destination) = seen[to].destination else { continue };
                let next = seen[to].largest_to + 1;
                let pn = if kind & 64 == 0 { next } else { script.number(next) };
                let (packet_kind, payload) = invent(&mut script, &seen[to]);
                let datagram =
                    seal_short(to == SERVER, generation, packet_kind, destination, pn, &payload);
                let before = world.packets_received(to);
                world.deliver(to, datagram, address(1 - to));
                report.believed += world.packets_received(to).saturating_sub(before);
            }
        }
    }
    world.run_perfectly(Duration::from_secs(40), false);
    report
}

/// Learns from the headers of what is on its way or came.
fn look(world: &World, to: usize, seen: &mut [Seen; 2]) {
    let side = &world.sides[to];
    for datagram in side.old.iter().rev().take(4).chain(&side.flying) {
        let Some(header) = ShortHeader::decode(datagram) else { continue };
        let pn = u64::from(header.packet_number);
        seen[to].destination = seen[to].destination.or(Some(header.destination));
        seen[to].largest_to = seen[to].largest_to.max(pn);
        seen[1 - to].largest_from = seen[1 - to].largest_from.max(pn);
    }
}

/// A server and a client that is nothing but lies, its transport parameters included.
///
/// # Panics
/// A limit is broken, or a server in closed mode answers.
pub fn lying_client_run(data: &[u8]) -> LiarReport {
    let mut script = Script::new(data);
    let config = WorldConfig::new(script.array());
    // A liar has no key of closed mode.
    let is_closed = config.transport.closed.is_some();
    let mut world = World::without_client(config);
    let mut liar = LyingClient::new(u32::from_be_bytes(script.array()));
    let first = liar.first_flight(&parameters(&mut script), &[]);
    world.deliver(SERVER, first, address(CLIENT));
    learn(&mut world, &mut liar);
    if let Some(datagram) = liar.finished() {
        world.deliver(SERVER, datagram, address(CLIENT));
    }
    let mut report = LiarReport::default();
    for step in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        learn(&mut world, &mut liar);
        let kind = script.u8();
        match kind % 8 {
            0 => world.advance(Duration::from_micros(u64::from(script.u16()) * 8)),
            1 => world.send(SERVER, usize::from(script.u16()) % 20_000),
            2 => liar.skip(script.number(0)),
            3 if kind & 8 == 0 => world.receive(SERVER),
            3 => {
                // A true word now and then keeps the conversation alive.
                if let Some(datagram) = honest_ack(&mut liar, world.now) {
                    world.deliver(SERVER, datagram, address(CLIENT));
                }
            }
            _ => {
                let seen = Seen {
                    largest_from: liar.largest_seen.unwrap_or(0),
                    largest_to: step as u64,
                    destination: None,
                    symbols: world.symbols_sent(SERVER),
                };
                let (packet_kind, payload) = invent(&mut script, &seen);
                if let Some(datagram) = liar.packet(packet_kind, &payload) {
                    let before = world.packets_received(SERVER);
                    world.deliver(SERVER, datagram, address(CLIENT));
                    report.believed += world.packets_received(SERVER).saturating_sub(before);
                }
            }
        }
    }
    for _ in 0..200 {
        learn(&mut world, &mut liar);
        world.advance(Duration::from_millis(300));
    }
    assert!(!is_closed || !liar.has_heard(), "a closed server answers nothing");
    assert_eq!(world.sides[SERVER].endpoint.connection_count(), 0, "silence ends a connection");
    report
}

fn honest_ack(liar: &mut LyingClient, now: Timestamp) -> Option<Vec<u8>> {
    let largest = liar.largest_seen?;
    let header = AckHeader { largest, delay: Duration::ZERO, received_at: now, ce_count: 0 };
    let mut payload = [0; 100];
    let mut writer = Writer::new(&mut payload);
    frame::encode_ack(&mut writer, &header, &[(largest, largest)])?;
    let len = writer.written();
    liar.packet(PacketKind::Control, &payload[..len])
}

fn learn(world: &mut World, liar: &mut LyingClient) {
    for datagram in core::mem::take(&mut world.sides[CLIENT].flying) {
        liar.learn(&datagram);
    }
}

fn parameters(script: &mut Script<'_>) -> Vec<u8> {
    if script.u8() % 8 == 7 {
        return script.bytes().to_vec();
    }
    let default = TransportParameters { initial_credit: 1_000, ..TransportParameters::default() };
    // One lie is enough to be refused: more than one would hide what comes after.
    let lie = script.u8() % 12;
    let mut number = |field: u8, near: u64| if lie == field { script.number(near) } else { near };
    let parameters = TransportParameters {
        mode: 1,
        max_message_size: number(0, default.max_message_size),
        max_symbol_size: number(1, 1_408) as u16,
        initial_credit: number(2, default.initial_credit),
        idle_timeout: Duration::from_millis(number(3, 30_000)),
        window_cap: number(4, 256) as u16,
        code_seed: 1,
        max_udp_payload: number(5, 1_472) as u16,
        ..default
    };
    parameters.encode(0)
}

/// A payload: frames with plausible or absurd numbers, coded packets, or anything.
fn invent(script: &mut Script<'_>, seen: &Seen) -> (PacketKind, Vec<u8>) {
    let mut payload = vec![0; MAX_PAYLOAD];
    let mut writer = Writer::new(&mut payload);
    let selector = script.u8();
    let kind = match selector % 4 {
        0 | 1 => PacketKind::Control,
        2 => PacketKind::Source,
        _ if selector & 64 == 0 => PacketKind::Repair,
        _ => PacketKind::Recoded,
    };
    // What does not fit is left out: the packet then ends in the middle of something.
    let _fits = match kind {
        PacketKind::Control => {
            let frames = 1 + selector / 4 % 8;
            (0..frames).try_for_each(|_| frame(script, seen, &mut writer))
        }
        PacketKind::Source => SourceHeader::new(script.number(0))
            .encode(&mut writer)
            .and_then(|()| symbol(script, &mut writer)),
        PacketKind::Repair | PacketKind::Recoded => repair(script, kind, &mut writer),
    };
    let written = writer.written();
    payload.truncate(written);
    (kind, payload)
}

fn repair(script: &mut Script<'_>, kind: PacketKind, writer: &mut Writer<'_>) -> Option<()> {
    let header = RepairHeader {
        batch: u32::from(script.u8()),
        column: script.u8() % if kind == PacketKind::Recoded { 3 } else { 17 },
        first: script.number(0) as u32,
        count: script.number(16) as u16,
    };
    header.encode(writer)?;
    if kind == PacketKind::Recoded {
        writer.bytes(&script.array::<16>())?;
    }
    symbol(script, writer)
}

/// The content of a symbol: a few bytes, message frames perhaps, repeated.
fn symbol(script: &mut Script<'_>, writer: &mut Writer<'_>) -> Option<()> {
    let repeat = script.u8();
    let part = Bytes::copy_from_slice(script.bytes());
    for _ in 0..=repeat {
        writer.bytes(&part)?;
    }
    Some(())
}

fn frame(script: &mut Script<'_>, seen: &Seen, writer: &mut Writer<'_>) -> Option<()> {
    let kind = script.u8() % 10;
    match kind {
        2 => {
            writer.u8(kind)?;
            let largest = script.number(seen.largest_from);
            writer.varint(largest)?;
            writer.varint(script.number(500))?;
            writer.varint(script.number(1_000_000))?;
            writer.varint(script.number(0))?;
            let count = script.u8() % 8;
            writer.varint(count.into())?;
            writer.varint(script.number(largest))?;
            for _ in 0..count {
                writer.varint(script.number(0))?;
                writer.varint(script.number(0))?;
            }
        }
        3 => {
            writer.u8(kind)?;
            let decoded_below = script.number(seen.symbols / 2);
            writer.varint(decoded_below)?;
            let ahead = seen.symbols.saturating_sub(decoded_below);
            writer.varint(script.number(ahead))?;
            writer.varint(script.number(0))?;
            // More packets wasted than received would be refused at once.
            writer.varint(1_000)?;
            writer.varint(u64::from(script.u8()))?;
            let count = script.u8() % 72;
            writer.varint(count.into())?;
            for _ in 0..count {
                writer.varint(script.number(0))?;
                let span = script.number(16);
                writer.varint(span)?;
                writer.varint(script.number(span))?;
            }
        }
        4 => {
            writer.u8(kind)?;
            writer.varint(script.number(1_000))?;
        }
        6 => {
            writer.u8(kind)?;
            writer.varint(script.number(0))?;
            let data = script.bytes();
            writer.varint(data.len() as u64)?;
            writer.bytes(data)?;
        }
        8 => {
            writer.u8(kind)?;
            writer.varint(script.number(0))?;
            writer.varint(u64::from(script.u8()))?;
            writer.varint(u64::from(script.u8() % 5))?;
            writer.varint(u64::from(script.u8() & 1))?;
            symbol(script, writer)?;
        }
        9 => writer.bytes(script.bytes())?,
        simple => writer.u8(simple)?,
    }
    Some(())
}
