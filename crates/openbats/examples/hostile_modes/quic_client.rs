//! A client of QUIC (RFC 9000) without a protocol implementation: it completes the handshake and then sends
//! what the caller passes.

use std::error::Error;
use std::sync::Arc;

use bats_proto::Mode;
use bats_proto::crypto::tls_client;
use rustls::Side;
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::quic::{ClientConnection, DirectionalKeys, KeyChange, Keys, Secrets, Version};

use crate::client_config;

const ALPN: &[u8] = b"openbats-quic/1";
const VERSION: [u8; 4] = [0, 0, 0, 1];
/// Bytes of the connection IDs of both ends.
const ID_LEN: usize = 8;
/// Bytes of the payload of an Initial packet that fills a datagram of 1,200 bytes.
pub(crate) const INITIAL_PAYLOAD: usize = 1_154;
/// Bytes of a packet number.
const NUMBER_LEN: usize = 4;
const TAG_LEN: usize = 16;

pub(crate) type Id = [u8; ID_LEN];

/// A variable-length integer (RFC 9000 section 16).
pub(crate) fn varint(number: u64) -> Vec<u8> {
    match number {
        0..=0x3f => vec![number as u8],
        0x40..=0x3fff => (number as u16 | 0x4000).to_be_bytes().to_vec(),
        0x4000..=0x3fff_ffff => (number as u32 | 0x8000_0000).to_be_bytes().to_vec(),
        _ => (number | 0xc000_0000_0000_0000).to_be_bytes().to_vec(),
    }
}

/// A frame of this type with integers as its fields, then bytes.
pub(crate) fn frame(kind: u64, fields: &[u64], bytes: &[u8]) -> Vec<u8> {
    let mut frame = varint(kind);
    fields.iter().for_each(|&field| frame.extend(varint(field)));
    frame.extend_from_slice(bytes);
    frame
}

/// An acknowledgement of these packets, the newest first.
pub(crate) fn ack(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((first, _)) if *first == number + 1 => *first = number,
            _ => ranges.push((number, number)),
        }
    }
    let Some(&(mut lowest, largest)) = ranges.first() else { return vec![0] };
    let mut fields = vec![largest, 0, ranges.len() as u64 - 1, largest - lowest];
    for &(first, last) in &ranges[1..] {
        fields.extend([lowest - last - 2, last - first]);
        lowest = first;
    }
    frame(0x02, &fields, &[])
}

/// Bytes of the stream of the session.
pub(crate) fn stream(offset: u64, bytes: &[u8]) -> Vec<u8> {
    frame(0x0e, &[0, offset, bytes.len() as u64], bytes)
}

/// Reads an integer from the front.
fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (&first, _) = bytes.split_first()?;
    let (number, rest) = bytes.split_at_checked(1 << (first >> 6))?;
    *bytes = rest;
    let mut wide = [0; 8];
    wide[8 - number.len()..].copy_from_slice(number);
    wide[8 - number.len()] &= 0x3f;
    Some(u64::from_be_bytes(wide))
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (part, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(part)
}

/// Keys of the Initial packets for a first destination.
pub(crate) fn initial_keys(destination: &Id) -> Result<Keys, Box<dyn Error>> {
    let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
    Ok(suite.ok_or("no suite")?.keys(destination, Side::Client, Version::V1))
}

/// Encrypts a packet whose header ends with a packet number.
pub(crate) fn seal(keys: &DirectionalKeys, number: u64, header: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = [header, payload].concat();
    let (clear, sealed) = packet.split_at_mut(header.len());
    let tag = keys.packet.encrypt_in_place(number, clear, sealed).expect("a packet that fits");
    packet.extend_from_slice(tag.as_ref());
    protect(keys, header.len(), &mut packet);
    packet
}

/// Protects the header of a sealed packet.
fn protect(keys: &DirectionalKeys, header_len: usize, packet: &mut [u8]) {
    let at = header_len - NUMBER_LEN;
    let sample = packet[at + 4..][..keys.header.sample_len()].to_vec();
    let (head, tail) = packet.split_at_mut(at);
    let number = &mut tail[..NUMBER_LEN];
    keys.header.encrypt_in_place(&sample, &mut head[0], number).expect("a sample");
}

/// The header of an Initial (0), 0-RTT (1) or Handshake (2) packet with a payload of this length.
pub(crate) fn long_header(kind: u8, to: &Id, from: &Id, number: u64, len: usize) -> Vec<u8> {
    let mut header = vec![0xc0 | kind << 4 | (NUMBER_LEN - 1) as u8];
    header.extend_from_slice(&VERSION);
    for id in [to, from] {
        header.push(ID_LEN as u8);
        header.extend_from_slice(id);
    }
    if kind == 0 {
        header.push(0);
    }
    header.extend(varint((NUMBER_LEN + len + TAG_LEN) as u64));
    header.extend_from_slice(&(number as u32).to_be_bytes());
    header
}

/// An Initial packet with these frames, padded to a full datagram.
pub(crate) fn initial(original: &Id, to: &Id, from: &Id, number: u64, frames: &[u8]) -> Vec<u8> {
    let mut payload = frames.to_vec();
    payload.resize(payload.len().max(INITIAL_PAYLOAD), 0);
    let keys = initial_keys(original).expect("a cipher suite");
    seal(&keys.local, number, &long_header(0, to, from, number, payload.len()), &payload)
}

pub(crate) struct Client {
    tls: ClientConnection,
    original: Id,
    id: Id,
    server_id: Option<Id>,
    handshake: Option<Keys>,
    data: Option<Keys>,
    later: Option<Secrets>,
    /// The bit of the key phase in the first byte.
    phase: u8,
    /// What the server has sent at the levels Initial and Handshake.
    crypto: [Vec<u8>; 2],
    next: u64,
    /// The largest packet number of the server's data packets.
    pub(crate) largest_seen: u64,
    /// Numbers of the server's data packets, the newest last.
    pub(crate) seen: Vec<u64>,
    /// Connection IDs that the server has issued: sequence number and ID.
    pub(crate) issued: Vec<(u64, Id)>,
}

impl Client {
    pub(crate) fn new(number: u32) -> Result<Self, Box<dyn Error>> {
        let (tls, name) = tls_client(&client_config(Mode::Quic), "localhost", ALPN)?;
        let id = [&number.to_be_bytes()[..], &[0xbb; 4]].concat().try_into().unwrap_or([0; 8]);
        let original = [&number.to_be_bytes()[..], &[0xaa; 4]].concat();
        let mut parameters = Vec::new();
        // Limits of data, and of streams; the idle time-out; connection IDs; length of datagrams.
        let numbers = [
            (0x04, 1 << 30),
            (0x05, 1 << 30),
            (0x06, 1 << 30),
            (0x08, 100),
            (0x01, 3_600_000),
            (0x0e, 8),
            (0x20, 65_535),
        ];
        for (key, number) in numbers {
            let value = varint(number);
            parameters.extend(frame(key, &[value.len() as u64], &value));
        }
        parameters.extend(frame(0x0f, &[ID_LEN as u64], &id));
        Ok(Self {
            tls: ClientConnection::new(Arc::new(tls), Version::V1, name, parameters)?,
            original: original.try_into().unwrap_or([0; 8]),
            id,
            server_id: None,
            handshake: None,
            data: None,
            later: None,
            phase: 0,
            crypto: [Vec::new(), Vec::new()],
            next: 0,
            largest_seen: 0,
            seen: Vec::new(),
            issued: Vec::new(),
        })
    }

    pub(crate) fn first_flight(&mut self) -> Vec<u8> {
        let mut hello = Vec::new();
        let change = self.tls.write_hs(&mut hello);
        assert!(change.is_none(), "no keys yet");
        let frames = frame(0x06, &[0, hello.len() as u64], &hello);
        initial(&self.original, &self.original, &self.id, 0, &frames)
    }

    /// Takes a datagram of the server; returns the end of the handshake once it is possible.
    pub(crate) fn learn(&mut self, datagram: &[u8]) -> Result<Option<Vec<u8>>, Box<dyn Error>> {
        let mut rest = datagram.to_vec();
        // A data packet is the last one in a datagram; its keys may be in the packets before it.
        while rest.first().is_some_and(|first| first & 0x80 != 0) {
            let after = self.learn_long(&mut rest).ok_or("a packet that cannot be read")?;
            rest = rest.split_off(after);
        }
        let mut finished = Vec::new();
        for level in 0..2 {
            let bytes = std::mem::take(&mut self.crypto[level]);
            if bytes.is_empty() {
                continue;
            }
            self.tls.read_hs(&bytes)?;
            loop {
                let mut out = Vec::new();
                let change = self.tls.write_hs(&mut out);
                if let (Some(keys), Some(to)) = (&self.handshake, self.server_id)
                    && !out.is_empty()
                {
                    let frames = frame(0x06, &[0, out.len() as u64], &out);
                    let header = long_header(2, &to, &self.id, 0, frames.len());
                    finished = seal(&keys.local, 0, &header, &frames);
                }
                match change {
                    Some(KeyChange::Handshake { keys }) => self.handshake = Some(keys),
                    Some(KeyChange::OneRtt { keys, next }) => {
                        (self.data, self.later) = (Some(keys), Some(next));
                    }
                    None => break,
                }
            }
        }
        if !rest.is_empty() {
            self.learn_data(&mut rest);
        }
        Ok(Some(finished).filter(|finished| !finished.is_empty()))
    }

    /// Reads the first packet; returns its length.
    fn learn_long(&mut self, packet: &mut [u8]) -> Option<usize> {
        let kind = packet.first()? >> 4 & 3;
        let mut rest = packet.get(5..)?;
        let to_len = take(&mut rest, 1)?[0];
        take(&mut rest, to_len.into())?;
        let from_len = take(&mut rest, 1)?[0];
        let from = take(&mut rest, from_len.into())?;
        self.server_id = Some(from.try_into().ok()?);
        if kind == 0 {
            let token = take_varint(&mut rest)?;
            take(&mut rest, token as usize)?;
        }
        let len = take_varint(&mut rest)? as usize;
        let at = packet.len() - rest.len();
        let end = at + len;
        let initial;
        let (level, keys) = match kind {
            0 => {
                initial = initial_keys(&self.original).ok()?;
                (0, &initial)
            }
            _ => (1, self.handshake.as_ref()?),
        };
        let frames = open(&keys.remote, packet.get_mut(..end)?, at, 0)?.1;
        let mut rest = &frames[..];
        while let Some(&first) = rest.first() {
            let kind = take_varint(&mut rest)?;
            match kind {
                0x02 | 0x03 => skip_ack(&mut rest)?,
                0x06 => {
                    take_varint(&mut rest)?;
                    let len = take_varint(&mut rest)? as usize;
                    self.crypto[level].extend_from_slice(take(&mut rest, len)?);
                }
                _ if first <= 1 => {}
                _ => return None,
            }
        }
        if level == 0 && !self.crypto[0].is_empty() && self.handshake.is_none() {
            // The keys of the packets that follow in this datagram.
            let hello = std::mem::take(&mut self.crypto[0]);
            self.tls.read_hs(&hello).ok()?;
            if let Some(KeyChange::Handshake { keys }) = self.tls.write_hs(&mut Vec::new()) {
                self.handshake = Some(keys);
            }
        }
        Some(end)
    }

    /// Notes the number of a data packet, and the connection IDs in it.
    fn learn_data(&mut self, packet: &mut [u8]) -> Option<()> {
        let mut again = packet.to_vec();
        let expected = self.largest_seen + 1;
        let opened = open(&self.data.as_ref()?.remote, packet, 1 + ID_LEN, expected);
        let (number, frames) = match opened {
            Some(opened) => opened,
            None => {
                // `quinn-proto` updates its keys once after a random number of packets, then rarely.
                self.update_keys();
                open(&self.data.as_ref()?.remote, &mut again, 1 + ID_LEN, expected)?
            }
        };
        self.largest_seen = self.largest_seen.max(number);
        self.seen.push(number);
        let mut rest = &frames[..];
        while !rest.is_empty() {
            match take_varint(&mut rest)? {
                0 | 1 | 0x1e => {}
                0x02 | 0x03 => skip_ack(&mut rest)?,
                0x07 => {
                    let len = take_varint(&mut rest)?;
                    take(&mut rest, len as usize)?;
                }
                kind @ 0x08..=0x0f => {
                    take_varint(&mut rest)?;
                    if kind & 4 != 0 {
                        take_varint(&mut rest)?;
                    }
                    let len =
                        if kind & 2 != 0 { take_varint(&mut rest)? as usize } else { rest.len() };
                    take(&mut rest, len)?;
                }
                0x10 | 0x12 | 0x13 => drop(take_varint(&mut rest)?),
                0x11 => {
                    take_varint(&mut rest)?;
                    take_varint(&mut rest)?;
                }
                0x18 => {
                    let sequence = take_varint(&mut rest)?;
                    take_varint(&mut rest)?;
                    let len = take(&mut rest, 1)?[0];
                    let id = take(&mut rest, len.into())?.try_into().ok()?;
                    take(&mut rest, 16)?;
                    self.issued.push((sequence, id));
                }
                _ => return None,
            }
        }
        Some(())
    }

    /// Changes the keys of both directions.
    pub(crate) fn update_keys(&mut self) {
        if let (Some(keys), Some(later)) = (&mut self.data, &mut self.later) {
            let next = later.next_packet_keys();
            (keys.local.packet, keys.remote.packet) = (next.local, next.remote);
            self.phase ^= 4;
        }
    }

    pub(crate) fn id(&self) -> Id {
        self.server_id.unwrap_or_default()
    }

    /// The next data packet with these frames.
    pub(crate) fn packet(&mut self, frames: &[u8]) -> Vec<u8> {
        self.packet_to(self.id(), frames, 0)
    }

    /// As [`Self::packet`] to this connection ID, with other bits in the first byte.
    pub(crate) fn packet_to(&mut self, to: Id, frames: &[u8], bits: u8) -> Vec<u8> {
        self.next += 1;
        let mut header = vec![0x40 | (self.phase ^ bits) | (NUMBER_LEN - 1) as u8];
        header.extend_from_slice(&to);
        header.extend_from_slice(&(self.next as u32).to_be_bytes());
        let mut payload = frames.to_vec();
        payload.resize(payload.len().max(4), 0);
        seal(&self.data.as_ref().expect("after the handshake").local, self.next, &header, &payload)
    }
}

fn skip_ack(rest: &mut &[u8]) -> Option<()> {
    take_varint(rest)?;
    take_varint(rest)?;
    let ranges = take_varint(rest)?;
    (0..2 * ranges + 1).try_for_each(|_| take_varint(rest).map(drop))
}

/// The packet number next to the expected one with these last bits (RFC 9000 appendix A.3).
fn full_number(truncated: u64, len: usize, expected: u64) -> u64 {
    let window = 1 << (8 * len);
    let number = expected & !(window - 1) | truncated;
    if number + window / 2 <= expected {
        number + window
    } else if number > expected + window / 2 && number >= window {
        number - window
    } else {
        number
    }
}

/// Opens a packet whose packet number is at this place; returns the number and its frames.
fn open(
    keys: &DirectionalKeys,
    packet: &mut [u8],
    at: usize,
    expected: u64,
) -> Option<(u64, Vec<u8>)> {
    let sample = packet.get(at + 4..)?.get(..keys.header.sample_len())?.to_vec();
    let (head, tail) = packet.split_at_mut(at);
    keys.header.decrypt_in_place(&sample, &mut head[0], tail.get_mut(..NUMBER_LEN)?).ok()?;
    let len = usize::from(head[0] & 3) + 1;
    // Only the bytes of the number are protected; those after it were restored if it is shorter.
    let number = tail[..len].iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
    let number = full_number(number, len, expected);
    let (header, sealed) = packet.split_at_mut(at + len);
    let opened = keys.packet.decrypt_in_place(number, header, sealed).ok()?;
    Some((number, opened.to_vec()))
}
