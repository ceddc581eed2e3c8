//! Sends a file in blocks over four links with three relays. Also used by `tests/relays.rs`.

use std::error::Error;

use bats_code::rfc::{
    BatchCache, Decoder, DegreeDistribution, Encoder, Field, InnerCode, Limits, OuterCode,
    PacketHeader, Progress, Recoder, TinyMt32, source_packets,
};

/// T: bytes of data per packet.
const PACKET_SIZE: usize = 1400;
/// Maximum number of source packets in a block; larger files take several blocks.
const MAX_BLOCK: usize = 4000;
const RELAYS: u32 = 3;
/// Loss of each link, in percent.
const LOSS: u32 = 20;

/// A lossy link.
struct Link {
    random: TinyMt32,
    sent: usize,
    lost: usize,
}

impl Link {
    fn delivers(&mut self) -> bool {
        self.sent += 1;
        let lost = self.random.below(100) < LOSS;
        self.lost += usize::from(lost);
        !lost
    }
}

/// Sends a block. Returns the decoded block and the number of packets that the decoder received.
fn send(data: &[u8], links: &mut [Link]) -> Result<(Vec<u8>, usize), Box<dyn Error>> {
    let inner = InnerCode::new(32, Field::Byte)?;
    let m = inner.batch_size();
    let k = source_packets(data.len() as u64, PACKET_SIZE)?;
    // Large blocks use the precode; both ends apply this rule.
    let precode = k > 2000;
    let code = OuterCode::new(k, inner, DegreeDistribution::recommended(inner, k, precode))?;
    let code = if precode { code.with_precode() } else { code };

    // Source, relays and destination share M, q and T; source and destination also share K and DD.
    let mut encoder = Encoder::new(BatchCache::new(code.clone(), 1 << 24), data, PACKET_SIZE)?;
    let mut relays = (0..RELAYS)
        .map(|seed| Recoder::new(inner, PACKET_SIZE, seed))
        .collect::<Result<Vec<_>, _>>()?;
    let limits = Limits::for_code(&code, PACKET_SIZE);
    let mut decoder = Decoder::new(BatchCache::new(code, 1 << 24), PACKET_SIZE, limits)?;

    let len = encoder.coded_packet_len();
    let mut batch = vec![vec![0; len]; m];
    let mut received = 0;
    for batch_id in 0.. {
        let mut outputs: Vec<&mut [u8]> = batch.iter_mut().map(Vec::as_mut_slice).collect();
        encoder.encode(batch_id, 0, &mut outputs)?;
        let mut packets: Vec<Vec<u8>> =
            batch.iter().filter(|_| links[0].delivers()).cloned().collect();
        for (relay, link) in relays.iter_mut().zip(&mut links[1..]) {
            relay.clear();
            for packet in &packets {
                relay.push(packet)?;
            }
            packets.clear();
            if relay.rank() == 0 {
                break;
            }
            // M recoded packets: as many as the source sent.
            for _ in 0..m {
                let mut packet = vec![0; len];
                relay.recode_random(&mut packet)?;
                if link.delivers() {
                    packets.push(packet);
                }
            }
        }
        for packet in &packets {
            received += 1;
            // The packet header of the RFC's example.
            let header = PacketHeader::parse(PacketHeader::new(k, inner, batch_id)?.to_bytes())?;
            decoder.push(header.batch_id(), packet)?;
        }
        if decoder.decode()? == Progress::Complete {
            break;
        }
    }
    let mut copy = vec![0; decoder.block_len()?];
    decoder.copy_block(&mut copy)?;
    Ok((copy, received))
}

/// Result of a transfer.
pub(crate) struct Transfer {
    /// The received file.
    pub(crate) copy: Vec<u8>,
    /// Number of packets sent and lost on each link.
    pub(crate) links: Vec<(usize, usize)>,
    /// Number of source packets in all blocks.
    pub(crate) needed: usize,
    /// Number of packets that reached the decoder.
    pub(crate) received: usize,
}

/// Sends a file.
pub(crate) fn transfer(data: &[u8]) -> Result<Transfer, Box<dyn Error>> {
    let mut links: Vec<Link> = (0..=RELAYS)
        .map(|link| Link { random: TinyMt32::new(link + 100), sent: 0, lost: 0 })
        .collect();
    let mut copy = Vec::with_capacity(data.len());
    let (mut needed, mut received) = (0, 0);
    // Every block has padding, so that an empty file is one block.
    let size = MAX_BLOCK * PACKET_SIZE - 1;
    let mut rest = data;
    loop {
        let (block, others) = rest.split_at(size.min(rest.len()));
        rest = others;
        let (decoded, packets) = send(block, &mut links)?;
        copy.extend_from_slice(&decoded);
        needed += source_packets(block.len() as u64, PACKET_SIZE)? as usize;
        received += packets;
        if rest.is_empty() {
            break;
        }
    }
    let links = links.iter().map(|link| (link.sent, link.lost)).collect();
    Ok(Transfer { copy, links, needed, received })
}
