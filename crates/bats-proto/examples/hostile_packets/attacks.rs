//! Packets of a peer with valid keys, or of an unauthenticated one, that cost as much as possible.

use bats_proto::fuzzing::{MisbehavingClient, TIMELY_MAX_UNKNOWNS};
use bats_proto::wire::coding::{RepairHeader, SourceHeader};
use bats_proto::wire::frame::{self, AckHeader, Frame, MAX_ACK_RANGES};
use bats_proto::wire::long_header::LongKind;
use bats_proto::wire::parameters::TransportParameters;
use bats_proto::wire::rank::{RankEntry, RankFeedback};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;
use bats_proto::{CongestionAlgorithm, Mode, TransportConfig};

use crate::Attack;
use crate::harness::{Harness, MS, written};

#[path = "blocks.rs"]
mod blocks;
#[path = "frames.rs"]
mod frames;

/// Packets measured once the state is built.
const MEASURED: u64 = 1_000;

pub(crate) const NAMES: [&str; 53] = [
    "brtp-empty-messages",
    "brtp-one-byte-symbols",
    "brtp-two-symbol-repairs",
    "brtp-sources-among-repairs",
    "brtp-redundant-repairs",
    "brtp-redundant-recoded-repairs",
    "brtp-redundant-repairs-of-four-systems",
    "brtp-repairs-beyond-the-span",
    "brtp-linked-repairs",
    "brtp-linked-repairs-of-one-byte",
    "brtp-sources-among-linked-repairs",
    "brtp-repairs-solved-at-once",
    "brtp-forged-packets",
    "brtp-replayed-packets",
    "brtp-pings",
    "brtp-credits",
    "brtp-full-of-credits",
    "brtp-full-of-challenges",
    "brtp-full-of-responses",
    "brtp-full-of-crypto",
    "brtp-new-addresses",
    "channels-descending-parts",
    "channels-many-opened",
    "btp-single-solutions",
    "btp-redundant-repairs",
    "btp-redundant-recoded-repairs",
    "btp-repairs-beyond-the-span",
    "btp-linked-repairs",
    "btp-linked-repairs-of-one-byte",
    "btp-sources-among-linked-repairs",
    "btp-repairs-solved-at-once",
    "btp-many-parts",
    "btp-descending-parts",
    "btp-ascending-parts",
    "btp-huge-announcements",
    "btp-distant-messages",
    "btp-tiny-messages",
    "btp-full-of-ends",
    "transparent-descending-parts",
    "transparent-distant-messages",
    "transparent-full-of-ends",
    "brctp-open-blocks",
    "brctp-undecodable-blocks",
    "brctp-many-sizes",
    "brctp-displaced-sizes",
    "brctp-channel-parts",
    "brctp-channels-opened",
    "acks-many-ranges",
    "acks-wide-ranges",
    "acks-rank-feedback",
    "handshake-forged-initials",
    "handshake-scattered-crypto",
    "handshake-garbage",
];

/// The mode that a case's name begins with.
pub(crate) fn mode(name: &str) -> Option<Mode> {
    Some(match name {
        "brtp" => Mode::Brtp,
        "btp" => Mode::Btp,
        "brctp" => Mode::Brctp,
        "transparent" => Mode::Transparent,
        _ => return None,
    })
}

/// Runs a case against a server with this transport, in the mode of the case. `is_read`: the application takes
/// what the server delivers.
pub(crate) fn attacked(case: &str, transport: TransportConfig, is_read: bool) -> Option<Attack> {
    let (family, attack) = case.split_once('-')?;
    let channels = case.contains("channel").then_some(CHANNELS);
    let mode = mode(family).unwrap_or_default();
    // As the server announces it, in source packets: a quarter of the symbols of half of the budget.
    let allowed_channels =
        u64::from(CHANNELS).min(transport.receive_budget as u64 / 2 / CHANNEL_COST);
    let block_credit = (transport.receive_budget.min(192 << 20) / 2 / 1_408 / 4) as u32;
    let mut transport = TransportConfig { mode, channels, ..transport };
    if attack == "new-addresses" {
        // Without congestion control everything is sent at once to each of them.
        transport.congestion = CongestionAlgorithm::Ltcc;
    }
    let systems = match mode {
        Mode::Btp => Systems { windows: 3, longest: TIMELY_MAX_UNKNOWNS / 2 },
        _ => Systems { windows: 1, longest: LONGEST },
    };
    let mut target = Attack::new(Harness::established(transport));
    target.is_read = is_read;
    match attack {
        "empty-messages" => symbols(&mut target, |_| [1, 0, 0].repeat(460)),
        "one-byte-symbols" => sources(&mut target, |number| (2 * number + 1, vec![0])),
        "two-symbol-repairs" => two_symbol_repairs(&mut target, true),
        "sources-among-repairs" => two_symbol_repairs(&mut target, false),
        "redundant-repairs" => redundant_repairs(&mut target, systems, 1, false),
        "redundant-recoded-repairs" => redundant_repairs(&mut target, systems, 1, true),
        "redundant-repairs-of-four-systems" => redundant_repairs(&mut target, systems, 4, false),
        "repairs-beyond-the-span" => repairs_beyond_the_span(&mut target, systems),
        "linked-repairs" => linked_repairs(&mut target, systems, SYMBOL),
        "linked-repairs-of-one-byte" => linked_repairs(&mut target, systems, 1),
        "sources-among-linked-repairs" => sources_among_linked_repairs(&mut target, systems),
        "repairs-solved-at-once" => repairs_solved_at_once(&mut target, systems),
        "descending-parts" if family == "channels" => {
            channel_frames(&mut target, |n| (2, 900_000 - 2 * n, &[7]));
        }
        "many-opened" => channel_frames(&mut target, |n| (2 + 2 * n, 0, &[])),
        "single-solutions" => single_solutions(&mut target),
        "forged-packets" => forged(&mut target),
        "replayed-packets" => replayed(&mut target),
        "pings" => controls(&mut target, |_| vec![1; 1_400]),
        "credits" => controls(&mut target, |_| [4, 1].repeat(700)),
        "full-of-credits" => frames::credits(&mut target),
        "full-of-challenges" => frames::challenges(&mut target),
        "full-of-responses" => frames::responses(&mut target),
        "full-of-crypto" => frames::crypto(&mut target),
        "full-of-ends" => frames::ends(&mut target),
        "new-addresses" => frames::new_addresses(&mut target),
        "many-parts" => parts(&mut target, usize::MAX, |n| (0, TOTAL, TOTAL - 1 - 2 * n, 1)),
        // As many parts of incomplete messages as a symbol may hold.
        "descending-parts" => parts(&mut target, 2, |n| (0, TOTAL, TOTAL - 1 - 2 * n, 1)),
        "ascending-parts" => parts(&mut target, 2, |n| (n % 2, TOTAL, 2 * (n / 2), 1)),
        "huge-announcements" => parts(&mut target, 2, |n| (n, TOTAL, 0, 1)),
        "distant-messages" => parts(&mut target, usize::MAX, |n| (n * 4_095, 1, 0, 1)),
        "tiny-messages" => parts(&mut target, usize::MAX, |n| (n, 1, 0, 1)),
        "open-blocks" => blocks::open(&mut target, block_credit),
        "undecodable-blocks" => blocks::undecodable(&mut target, block_credit),
        "many-sizes" => blocks::of_many_sizes(&mut target, block_credit),
        "displaced-sizes" => blocks::of_displaced_sizes(&mut target, block_credit),
        // With channels the flow has at least 7/32 of the budget, not half of it: with a quarter of the blocks no credit
        // is exceeded.
        "channel-parts" => {
            // Within the credit of a channel and of the session with the smallest budget.
            blocks::of_channels(&mut target, block_credit / 4, |n| {
                (2 + 2 * (n / 29_000), 60_000 - 2 * (n % 29_000), &[7])
            });
        }
        // All that the server allows, again and again: it stays open.
        "channels-opened" => blocks::of_channels(&mut target, block_credit / 4, |n| {
            (2 + 2 * (n % allowed_channels), 0, &[])
        }),
        "many-ranges" => many_ranges(&mut target),
        "wide-ranges" => wide_ranges(&mut target),
        "rank-feedback" => rank_feedback(&mut target),
        "forged-initials" => forged_initials(&mut target),
        "scattered-crypto" => scattered_crypto(&mut target),
        "garbage" => garbage(&mut target),
        _ => return None,
    }
    Some(target)
}

pub(super) fn packet(
    target: &mut Attack,
    kind: PacketKind,
    write: impl FnOnce(&mut Writer<'_>) -> Option<()>,
) -> Vec<u8> {
    written(&mut target.harness.client, kind, write)
}

/// Pushes the packets that build the state, then those that are measured: only the last
/// [`MEASURED`] count.
fn push_all(target: &mut Attack, packets: impl Iterator<Item = Vec<u8>>) {
    for datagram in packets {
        target.push(datagram);
    }
}

fn sources(target: &mut Attack, symbol: impl Fn(u64) -> (u64, Vec<u8>)) {
    for count in 0..MEASURED {
        let (number, bytes) = symbol(count);
        let datagram = packet(target, PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&bytes)
        });
        target.push(datagram);
    }
}

fn symbols(target: &mut Attack, symbol: impl Fn(u64) -> Vec<u8>) {
    sources(target, |number| (number, symbol(number)));
}

fn controls(target: &mut Attack, payload: impl Fn(u64) -> Vec<u8>) {
    for count in 0..MEASURED {
        let payload = payload(count);
        let datagram = packet(target, PacketKind::Control, |writer| writer.bytes(&payload));
        target.push(datagram);
    }
}

/// Bytes announced for a message: the largest that is allowed.
const TOTAL: u64 = 64 << 20;

/// Symbols full of parts of messages, or with `most` parts: number of the message, its length, offset
/// and length of the part.
fn parts(target: &mut Attack, most: usize, part: impl Fn(u64) -> (u64, u64, u64, u64)) {
    full_symbols(target, 0, most, |next, writer| {
        let (id, total, offset, len) = part(next);
        writer.u8(4)?;
        [id, total, offset, len].into_iter().try_for_each(|field| writer.varint(field))?;
        writer.bytes(&vec![7; len as usize])
    });
}

/// Symbols from `first` on with as many frames as have space, but not more than `most` in each. `frame`
/// writes the frame of a number.
fn full_symbols(
    target: &mut Attack,
    first: u64,
    most: usize,
    frame: impl Fn(u64, &mut Writer<'_>) -> Option<()>,
) {
    let mut next = 0;
    for number in first..first + MEASURED {
        let mut symbol = vec![0; SYMBOL];
        let mut writer = Writer::new(&mut symbol);
        for _ in 0..most {
            let before = writer.written();
            if frame(next, &mut writer).is_none() {
                writer.rewind(before);
                break;
            }
            next += 1;
        }
        let len = writer.written();
        let datagram = packet(target, PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&symbol[..len])
        });
        target.push(datagram);
    }
}

fn repair(
    target: &mut Attack,
    batch: u32,
    column: u8,
    first: u32,
    count: u16,
    len: usize,
) -> Vec<u8> {
    packet(target, PacketKind::Repair, |writer| {
        RepairHeader { batch, column, first, count }.encode(writer)?;
        writer.bytes(&vec![batch as u8; len])
    })
}

/// The state: as many linear systems of two symbols and one repair as the decoder holds. Measured:
/// further repairs, or one-byte symbols that solve one system each.
fn two_symbol_repairs(target: &mut Attack, with_repairs: bool) {
    const SYSTEMS: u32 = 30_000;
    let mut state = Vec::new();
    for number in 0..SYSTEMS {
        state.push(repair(target, number / 16, (number % 16) as u8, 1 + 3 * number, 2, 1));
    }
    quietly(target, state);
    for number in SYSTEMS..SYSTEMS + MEASURED as u32 {
        let datagram = if with_repairs {
            repair(target, number / 16, (number % 16) as u8, 1 + 3 * number, 2, 1)
        } else {
            packet(target, PacketKind::Source, |writer| {
                SourceHeader::new(u64::from(1 + 3 * (SYSTEMS / 2 + number - SYSTEMS)))
                    .encode(writer)?;
                writer.u8(0)
            })
        };
        target.push(datagram);
    }
}

/// Linear systems that are as long as the mode allows: each window begins in the middle of the one before.
#[derive(Clone, Copy, Debug)]
struct Systems {
    /// Windows of a system.
    windows: u32,
    /// Symbols of a window.
    longest: u32,
}

impl Systems {
    /// Symbols of a system.
    fn span(self) -> u32 {
        self.longest / 2 * (self.windows + 1)
    }

    /// The first symbol of the window of a repair, if each system gets so many.
    fn window(self, number: u32, repairs: u32) -> u32 {
        1 + self.span() * (number / repairs) + self.longest / 2 * (number % self.windows)
    }
}

/// The state: long systems of many repairs. Measured: repairs that add nothing.
fn redundant_repairs(target: &mut Attack, systems: Systems, count: u32, are_recoded: bool) {
    let repairs = systems.span() * 4 / 5;
    let state = (0..count * repairs)
        .map(|number| {
            let (batch, column) = (number / 16, (number % 16) as u8);
            let window = systems.window(number, repairs);
            repair(target, batch, column, window, systems.longest as u16, SYMBOL)
        })
        .collect();
    quietly(target, state);
    // As many as the budget of work allows, and more: those of the state again, under new packet numbers.
    for number in 0..4 * MEASURED as u32 {
        let number = number * (repairs + 7) % (count * repairs);
        let (batch, column) = (number / 16, if are_recoded { 0 } else { (number % 16) as u8 });
        let first = systems.window(number, repairs);
        let header = RepairHeader { batch, column, first, count: systems.longest as u16 };
        let kind = if are_recoded { PacketKind::Recoded } else { PacketKind::Repair };
        let datagram = packet(target, kind, |writer| {
            header.encode(writer)?;
            if are_recoded {
                writer.bytes(&[number as u8 | 1; 16])?;
            }
            writer.u8(0)
        });
        target.push(datagram);
    }
}

/// The state: a long system of many repairs. Measured: repairs that would link its symbols with as many others
/// as possible, which makes it too long.
fn repairs_beyond_the_span(target: &mut Attack, systems: Systems) {
    let repairs = systems.span() * 4 / 5;
    let state = (0..repairs)
        .map(|number| {
            let (batch, column) = (number / 16, (number % 16) as u8);
            repair(
                target,
                batch,
                column,
                systems.window(number, repairs),
                systems.longest as u16,
                1,
            )
        })
        .collect();
    quietly(target, state);
    let last = systems.window(systems.windows - 1, repairs);
    for number in repairs..repairs + 4 * MEASURED as u32 {
        let (batch, column) = (number / 16, (number % 16) as u8);
        let datagram = repair(target, batch, column, last + 1, systems.longest as u16, 1);
        target.push(datagram);
    }
}

/// Bytes of a full-size symbol.
const SYMBOL: usize = 1_400;
/// Symbols of the longest window.
const LONGEST: u32 = 512;

/// Repairs that each add something to a long system, which never gets the last ones that it needs. Again and
/// again with other systems.
fn linked_repairs(target: &mut Attack, systems: Systems, len: usize) {
    let repairs = systems.span() - 4;
    for number in 0..MEASURED as u32 {
        let first = systems.window(number, repairs);
        let (batch, column) = (number / 16, (number % 16) as u8);
        let datagram = repair(target, batch, column, first, systems.longest as u16, len);
        target.push(datagram);
    }
}

/// The state: repairs of a long system. Measured: symbols of one byte, each of which leaves it. Again and
/// again with other systems.
fn sources_among_linked_repairs(target: &mut Attack, systems: Systems) {
    let repairs = systems.span() / 2;
    let mut sequence = 0;
    while target.packets < MEASURED && !target.is_closed {
        let first = systems.window(sequence / repairs * repairs, repairs);
        let state = (sequence..sequence + repairs)
            .map(|number| {
                let (batch, column) = (number / 16, (number % 16) as u8);
                let window = systems.window(number, repairs);
                repair(target, batch, column, window, systems.longest as u16, SYMBOL)
            })
            .collect();
        sequence += repairs;
        quietly(target, state);
        for number in first..first + systems.span() - repairs - 1 {
            let datagram = packet(target, PacketKind::Source, |writer| {
                SourceHeader::new(u64::from(number)).encode(writer)?;
                writer.u8(0)
            });
            target.push(datagram);
        }
    }
}

/// Repairs of one byte, and one of full size, so that all symbols are as long. The last one solves
/// all of them.
fn repairs_solved_at_once(target: &mut Attack, systems: Systems) {
    let span = systems.span();
    for number in 0..span + 2 {
        let len = if number == span - 2 { SYMBOL } else { 1 };
        let (batch, column) = (number / 16, (number % 16) as u8);
        let first = systems.window(number, span + 2);
        let datagram = repair(target, batch, column, first, systems.longest as u16, len);
        target.push(datagram);
    }
}

/// Each packet solves one symbol, while many others are missing: a repair of two symbols, of which one
/// has arrived.
fn single_solutions(target: &mut Attack) {
    for number in 0..MEASURED as u32 {
        let symbol = packet(target, PacketKind::Source, |writer| {
            SourceHeader::new(u64::from(3 * number)).encode(writer)?;
            writer.u8(0)
        });
        quietly(target, vec![symbol]);
        let datagram = packet(target, PacketKind::Repair, |writer| {
            let (batch, column) = (number / 16, (number % 16) as u8);
            RepairHeader { batch, column, first: 3 * number, count: 2 }.encode(writer)?;
            // The symbol is a zero, too: padding.
            writer.u8(0)
        });
        target.push(datagram);
    }
}

/// Channels that the client may have open.
const CHANNELS: u32 = 10_000;
/// Memory that the server counts for a channel. Half of the budget is for channels.
const CHANNEL_COST: u64 = 448;

/// Symbols full of channel frames, which the channels get although the first symbol never arrives: number
/// of the channel, offset and part.
fn channel_frames(target: &mut Attack, frame: impl Fn(u64) -> (u64, u64, &'static [u8])) {
    full_symbols(target, 1, usize::MAX, |next, writer| channel_frame(frame(next), writer));
}

fn channel_frame((id, offset, part): (u64, u64, &[u8]), writer: &mut Writer<'_>) -> Option<()> {
    writer.u8(5)?;
    [id, offset, part.len() as u64].into_iter().try_for_each(|field| writer.varint(field))?;
    writer.bytes(part)
}

/// Pushes packets without measuring them.
fn quietly(target: &mut Attack, packets: Vec<Vec<u8>>) {
    for (number, datagram) in packets.into_iter().enumerate() {
        target.harness.deliver(datagram);
        if number % 10 == 9 {
            target.harness.advance(MS);
            target.harness.received.clear();
        }
    }
    target.is_closed |= target.harness.closed.is_some();
}

fn forged(target: &mut Attack) {
    for number in 0..MEASURED {
        let mut datagram = packet(target, PacketKind::Source, |writer| {
            SourceHeader::new(number).encode(writer)?;
            writer.bytes(&[0; 1_400])
        });
        let last = datagram.len() - 1;
        datagram[last] ^= 1;
        target.push(datagram);
    }
}

fn replayed(target: &mut Attack) {
    let datagram = packet(target, PacketKind::Source, |writer| {
        SourceHeader::new(0).encode(writer)?;
        writer.bytes(&[0; 1_400])
    });
    target.harness.deliver(datagram.clone());
    push_all(target, (0..MEASURED).map(|_| datagram.clone()));
}

/// An acknowledgement of these ranges.
pub(crate) fn ack(target: &mut Attack, ranges: &[(u64, u64)]) -> Vec<u8> {
    let received_at = target.harness.now;
    let header = AckHeader {
        largest: ranges[0].1,
        delay: core::time::Duration::ZERO,
        received_at,
        ce_count: 0,
    };
    packet(target, PacketKind::Control, |writer| frame::encode_ack(writer, &header, ranges))
}

/// The state: many packets in flight. Measured: acknowledgements of the same few packets in as many
/// ranges as fit, again and again.
fn many_ranges(target: &mut Attack) {
    target.harness.send_from_server(1_400_000);
    target.harness.advance(MS * 20);
    let mut numbers: Vec<u64> =
        target.harness.take_packets().into_iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.reverse();
    let ranges: Vec<(u64, u64)> = numbers
        .iter()
        .filter(|&&number| number % 2 == 1)
        .take(MAX_ACK_RANGES as usize)
        .map(|&number| (number, number))
        .collect();
    repeat_acks(target, &ranges);
}

/// Acknowledgements of these ranges, again and again. The state: what the first ones let the server send
/// is sent, until its congestion window is used up.
fn repeat_acks(target: &mut Attack, ranges: &[(u64, u64)]) {
    for _ in 0..MEASURED / 4 {
        let datagram = ack(target, ranges);
        quietly(target, vec![datagram]);
        target.harness.advance(MS);
        target.harness.received.clear();
    }
    for _ in 0..MEASURED {
        let datagram = ack(target, ranges);
        target.push(datagram);
        target.harness.received.clear();
    }
}

/// The state: a whole congestion window, of which the oldest packet alone never arrives, so that the
/// server keeps the others. Measured: acknowledgements of all others, again and again.
fn wide_ranges(target: &mut Attack) {
    target.harness.send_from_server(14_000_000);
    target.harness.advance(MS * 20);
    let mut numbers: Vec<u64> =
        target.harness.take_packets().into_iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    // Numbers that the server skips divide the ranges.
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &number in numbers.iter().skip(1) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges.reverse();
    repeat_acks(target, &ranges);
}

/// Reports of as many missing ranges as fit. The state: the congestion window is used up by repairs for
/// such reports. The packets that the server then sends are not measured in any case.
fn rank_feedback(target: &mut Attack) {
    target.harness.send_from_server(1_400_000);
    target.harness.advance(MS * 20);
    let sent = target.harness.stats().coding.source_packets_sent;
    let entries: Vec<RankEntry> = (0..255)
        .map(|index| RankEntry { first: index * 3, span: 2, missing: 1 })
        .take_while(|entry| entry.first + entry.span < sent)
        .collect();
    let report = |target: &mut Attack| {
        let feedback = Frame::Rank(RankFeedback {
            decoded_below: 0,
            seen_end: sent,
            repair_seen: None,
            coded: 9,
            wasted: 0,
            entries: entries.clone(),
        });
        packet(target, PacketKind::Control, |writer| frame::encode(writer, &feedback))
    };
    for _ in 0..2 * MEASURED {
        let datagram = report(target);
        quietly(target, vec![datagram]);
        target.harness.advance(MS);
        target.harness.received.clear();
    }
    for _ in 0..MEASURED {
        let datagram = report(target);
        target.push(datagram);
        target.harness.received.clear();
    }
}

/// Initials of an unauthenticated peer that has seen the handshake, for an established connection.
fn forged_initials(target: &mut Attack) {
    let parameters = TransportParameters {
        connection_id: target.harness.client.cid(),
        ..TransportParameters::default()
    };
    let flight = target.harness.client.first_flight(&parameters.encode(0), &[]);
    push_all(target, (0..MEASURED).map(|_| flight.clone()));
}

/// Half-open connections whose CRYPTO data arrive in single bytes with gaps.
fn scattered_crypto(target: &mut Attack) {
    for number in 0..MEASURED as u32 {
        let client = MisbehavingClient::new(2 + number / 20);
        let to = [&client.cid()[..], &[0xaa; 4]].concat();
        let mut payload = vec![0; 1_120];
        let mut writer = Writer::new(&mut payload);
        let mut offset = 8_000 - u64::from(number % 20) * 400;
        while writer.remaining() > 8 && offset > 1 {
            offset -= 2;
            let written = writer.u8(1).and_then(|()| {
                writer.varint(offset)?;
                writer.varint(1)?;
                writer.u8(7)
            });
            assert!(written.is_some(), "there is room");
        }
        let mut datagram = bats_proto::fuzzing::seal_long(
            true,
            LongKind::Initial,
            &to,
            &client.cid(),
            &[],
            number % 20,
            &payload,
        );
        datagram.resize(datagram.len().max(1_200), 0);
        target.harness.remote = MisbehavingClient::address(2 + number / 20);
        target.push(datagram);
    }
}

/// Datagrams that begin like packets of the protocol.
fn garbage(target: &mut Attack) {
    for number in 0..MEASURED {
        let mut datagram: Vec<u8> = (0..1_400).map(|i| (i * 7 + number * 13) as u8).collect();
        datagram[0] = if number % 2 == 0 { 0x45 } else { 0xc5 };
        target.push(datagram);
    }
}
