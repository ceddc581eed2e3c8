//! A peer that has the keys and sends false or malformed frames.

use core::time::Duration;

use bats_types::Timestamp;
use bytes::Bytes;

use super::forge::{MisbehavingClient, seal_long, seal_short};
use super::script::Script;
use super::world::{CLIENT, SERVER, World, WorldConfig, address};
use crate::wire::coding::{RepairHeader, SourceHeader};
use crate::wire::frame::{self, AckHeader};
use crate::wire::long_header::LongKind;
use crate::wire::parameters::TransportParameters;
use crate::wire::short_header::{PacketKind, ShortHeader};
use crate::wire::varint::Writer;

/// Maximum number of steps of a script; further ones are ignored.
const MAX_STEPS: usize = 400;
/// Maximum length in bytes of a generated payload: that of a datagram.
const MAX_PAYLOAD: usize = 1_440;

/// Counters of a run, so that a test can check that it exercised something.
#[derive(Clone, Copy, Debug, Default)]
pub struct MisbehavingPeerReport {
    /// Number of forged data packets that were accepted as authentic.
    pub accepted: u64,
}

/// Observations about the packets sent to one side.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    destination: Option<[u8; 4]>,
    /// Largest packet numbers seen in both directions.
    largest_to: u64,
    largest_from: u64,
    /// Number of symbols that the side has sent.
    symbols: u64,
}

/// Two correct endpoints over a network without faults, with packets forged under valid keys in
/// both directions, as `data` determines.
///
/// # Panics
/// A limit is violated. Delivered messages may be wrong, because the forger has the keys.
pub fn forger_run(data: &[u8]) -> MisbehavingPeerReport {
    let mut script = Script::new(data);
    let mut world = World::new(WorldConfig::new(script.array()));
    world.run_without_faults(Duration::from_millis(20), false);
    let mut seen = [Seen::default(); 2];
    let mut report = MisbehavingPeerReport::default();
    let mut generation = 0;
    for _ in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        for to in [CLIENT, SERVER] {
            observe(&world, to, &mut seen);
            seen[to].symbols = world.symbols_sent(to);
        }
        let kind = script.u8();
        let to = usize::from(kind >> 7);
        match kind % 8 {
            0 => world.advance(Duration::from_micros(u64::from(script.u16()) * 8)),
            1 => {
                world.run_without_faults(Duration::from_millis(u64::from(script.u8() % 32)), false)
            }
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
                let (packet_kind, payload) = generate(&mut script, &seen[to]);
                let datagram =
                    seal_short(to == SERVER, generation, packet_kind, destination, pn, &payload);
                let before = world.packets_received(to);
                world.deliver(to, datagram, address(1 - to));
                report.accepted += world.packets_received(to).saturating_sub(before);
            }
        }
    }
    world.run_without_faults(Duration::from_secs(40), false);
    report
}

/// Updates `seen` from the headers of datagrams in flight or delivered.
fn observe(world: &World, to: usize, seen: &mut [Seen; 2]) {
    let side = &world.sides[to];
    for datagram in side.history.iter().rev().take(4).chain(&world.world.links.to[to]) {
        let Some(header) = ShortHeader::decode(datagram) else { continue };
        let pn = u64::from(header.packet_number);
        seen[to].destination = seen[to].destination.or(Some(header.destination));
        seen[to].largest_to = seen[to].largest_to.max(pn);
        seen[1 - to].largest_from = seen[1 - to].largest_from.max(pn);
    }
}

/// A server and a client that sends arbitrary frames and transport parameters.
///
/// # Panics
/// A limit is violated, or a server in PSK mode answers.
pub fn misbehaving_client_run(data: &[u8]) -> MisbehavingPeerReport {
    let mut script = Script::new(data);
    let config = WorldConfig::new(script.array());
    // The misbehaving client has no pre-shared key.
    let requires_psk = config.transport.psk.is_some();
    let mut world = World::without_client(config);
    let mut client = MisbehavingClient::new(u32::from_be_bytes(script.array()));
    let first = client.first_flight(&parameters(&mut script), &[]);
    world.deliver(SERVER, first, address(CLIENT));
    learn(&mut world, &mut client);
    if let Some(datagram) = client.finished() {
        world.deliver(SERVER, datagram, address(CLIENT));
    }
    let mut report = MisbehavingPeerReport::default();
    for step in 0..MAX_STEPS {
        if script.is_empty() {
            break;
        }
        learn(&mut world, &mut client);
        let kind = script.u8();
        match kind % 8 {
            0 => world.advance(Duration::from_micros(u64::from(script.u16()) * 8)),
            1 => world.send(SERVER, usize::from(script.u16()) % 20_000),
            2 => client.skip(script.number(0)),
            3 if kind & 8 == 0 => world.receive(SERVER),
            3 => {
                // A valid acknowledgement now and then keeps the connection open.
                if let Some(datagram) = honest_ack(&mut client, world.now()) {
                    world.deliver(SERVER, datagram, address(CLIENT));
                }
            }
            _ => {
                let seen = Seen {
                    largest_from: client.largest_seen.unwrap_or(0),
                    largest_to: step as u64,
                    destination: None,
                    symbols: world.symbols_sent(SERVER),
                };
                let (packet_kind, payload) = generate(&mut script, &seen);
                if let Some(datagram) = client.packet(packet_kind, &payload) {
                    let before = world.packets_received(SERVER);
                    world.deliver(SERVER, datagram, address(CLIENT));
                    report.accepted += world.packets_received(SERVER).saturating_sub(before);
                }
            }
        }
    }
    for _ in 0..200 {
        learn(&mut world, &mut client);
        world.advance(Duration::from_millis(300));
    }
    assert!(!requires_psk || !client.has_heard(), "a server in PSK mode answers nothing");
    assert_eq!(
        world.world.nodes[SERVER].connection_count(),
        0,
        "the idle time-out ends a connection"
    );
    report
}

fn honest_ack(client: &mut MisbehavingClient, now: Timestamp) -> Option<Vec<u8>> {
    let largest = client.largest_seen?;
    let header = AckHeader { largest, delay: Duration::ZERO, received_at: now, ce_count: 0 };
    let mut payload = [0; 100];
    let mut writer = Writer::new(&mut payload);
    frame::encode_ack(&mut writer, &header, &[(largest, largest)])?;
    let len = writer.written();
    client.packet(PacketKind::Control, &payload[..len])
}

fn learn(world: &mut World, client: &mut MisbehavingClient) {
    for datagram in core::mem::take(&mut world.world.links.to[CLIENT]) {
        client.learn(&datagram);
    }
}

fn parameters(script: &mut Script<'_>) -> Vec<u8> {
    if script.u8() % 8 == 7 {
        return script.bytes().to_vec();
    }
    let default = TransportParameters { initial_credit: 1_000, ..TransportParameters::default() };
    // One invalid parameter is enough to be rejected; more would hide the effect of the others.
    let invalid_field = script.u8() % 12;
    let mut number =
        |field: u8, near: u64| if invalid_field == field { script.number(near) } else { near };
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

/// A payload: frames with plausible or invalid numbers, coded packets, or arbitrary bytes.
fn generate(script: &mut Script<'_>, seen: &Seen) -> (PacketKind, Vec<u8>) {
    let mut payload = vec![0; MAX_PAYLOAD];
    let mut writer = Writer::new(&mut payload);
    let selector = script.u8();
    let kind = match selector % 4 {
        0 | 1 => PacketKind::Control,
        2 => PacketKind::Source,
        _ if selector & 64 == 0 => PacketKind::Repair,
        _ => PacketKind::Recoded,
    };
    // Frames that do not fit are left out, so the packet ends in the middle of a frame.
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

/// The content of a symbol: a few bytes, possibly message frames, repeated.
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
            // A report with more wasted than received packets would be rejected at once.
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
