//! The deterministic stand-in for TLS: checksums for tags, a handshake of the same shape.
//!
//! No secrecy and no protection against anyone who means harm: the keys follow from random
//! numbers that travel in clear. It catches corruption, binds packets to their connection,
//! direction and key generation, and costs next to nothing, which is what simulations need.

use super::keys::{DirectionalKeys, HeaderKey, Keys, PacketKey, Side};
use super::session::{CryptoError, KeyChange};
use crate::wire::short_header::TAG_LEN;
use crate::wire::varint::Reader;

/// AES-GCM's limits, so that simulations meet them where real connections do.
pub(super) const CONFIDENTIALITY_LIMIT: u64 = 1 << 23;
pub(super) const INTEGRITY_LIMIT: u64 = 1 << 52;

/// Octets of the messages, about those of TLS with a small self-signed certificate.
const CLIENT_HELLO_LEN: usize = 250;
const SERVER_HELLO_LEN: usize = 122;
const CERTIFICATE_LEN: usize = 760;
const FINISHED_LEN: usize = 36;
const MESSAGE_HEADER_LEN: usize = 4;
const RANDOM_LEN: usize = 16;
/// Longest message that is waited for.
const MAX_MESSAGE_LEN: usize = 4_096;

/// Message types, those of TLS (RFC 8446, section 4) where there is one.
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CERTIFICATE: u8 = 11;
const FINISHED: u8 = 20;

/// Odd constants with well-mixed bits: the first digits of pi's fraction.
const PI: [u64; 4] =
    [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1, 0x082e_fa98_ec4e_6c89];

/// Full product of two words folded into one.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlainKey([u64; 2]);

impl PlainKey {
    /// A key from anything and a label.
    fn derive(secret: &[u8], label: u64) -> Self {
        let tag = Self([PI[2], PI[3]]).checksum(label, &[], secret);
        let (words, _) = tag.as_chunks::<8>();
        Self([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])])
    }

    /// The key of the next generation.
    fn next(self) -> Self {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&self.0[0].to_le_bytes());
        octets[8..].copy_from_slice(&self.0[1].to_le_bytes());
        Self::derive(&octets, u64::from_be_bytes(*b"nextkeys"))
    }

    /// Four lanes of 64 bits, each fed 16 octets per step by a multiplication: the multiplier is
    /// busy in every cycle, about 10 octets each.
    pub(super) fn checksum(self, pn: u64, header: &[u8], payload: &[u8]) -> [u8; TAG_LEN] {
        let [k0, k1] = self.0;
        let mut lanes =
            [k0 ^ PI[0], k1 ^ PI[1], k0.rotate_left(32) ^ PI[2], k1.rotate_left(32) ^ PI[3]];
        lanes[0] ^= fold(pn ^ PI[3], k0 ^ k1.rotate_left(23) ^ PI[2]);
        absorb(&mut lanes, header);
        absorb(&mut lanes, payload);
        let lengths = (header.len() as u64) << 48 ^ payload.len() as u64;
        let a = fold(lanes[0] ^ PI[2], lanes[1] ^ pn ^ k1);
        let b = fold(lanes[2] ^ PI[0], lanes[3] ^ lengths ^ k0);
        let first = fold(a ^ PI[1], b ^ PI[3]);
        let second = fold(a ^ b.rotate_left(29) ^ k0, first ^ PI[0]);
        let mut tag = [0; TAG_LEN];
        tag[..8].copy_from_slice(&first.to_le_bytes());
        tag[8..].copy_from_slice(&second.to_le_bytes());
        tag
    }
}

fn absorb(lanes: &mut [u64; 4], octets: &[u8]) {
    let (blocks, rest) = octets.as_chunks::<64>();
    for block in blocks {
        absorb_block(lanes, block);
    }
    if !rest.is_empty() {
        let mut last = [0; 64];
        last[..rest.len()].copy_from_slice(rest);
        absorb_block(lanes, &last);
    }
}

#[inline(always)]
fn absorb_block(lanes: &mut [u64; 4], block: &[u8; 64]) {
    let (words, _) = block.as_chunks::<8>();
    for (lane, state) in lanes.iter_mut().enumerate() {
        let a = u64::from_le_bytes(words[2 * lane]);
        let b = u64::from_le_bytes(words[2 * lane + 1]);
        // The sum keeps something of the input even where a factor happens to be zero.
        *state = fold(a ^ PI[lane], b ^ *state).wrapping_add(a.rotate_left(17) ^ PI[3 - lane]);
    }
}

fn keys(secret: &[u8], label: u64, side: Side) -> Keys {
    let one = |for_side: Side| {
        let label = label ^ if for_side == Side::Client { 0 } else { 1 };
        DirectionalKeys {
            header: HeaderKey::plain(),
            packet: PacketKey::plain(PlainKey::derive(secret, label)),
        }
    };
    match side {
        Side::Client => Keys { local: one(Side::Client), remote: one(Side::Server) },
        Side::Server => Keys { local: one(Side::Server), remote: one(Side::Client) },
    }
}

const INITIAL: u64 = 0x10;
const HANDSHAKE: u64 = 0x20;
const ONE_RTT: u64 = 0x30;

pub(super) fn initial_keys(destination: &[u8], side: Side) -> Keys {
    keys(destination, INITIAL, side)
}

/// What the other end must send next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    ClientHello,
    ServerHello,
    Certificate,
    Finished,
    Nothing,
}

/// The exchange: ClientHello and ServerHello with random numbers, then the server's
/// "certificate" with its parameters, then a Finished from both with a checksum of everything.
#[derive(Debug)]
pub(super) struct PlainSession {
    side: Side,
    random: [u8; RANDOM_LEN],
    parameters: Vec<u8>,
    expect: Expect,
    incoming: Vec<u8>,
    outgoing: Vec<(Vec<u8>, Option<KeyChange>)>,
    transcript: PlainKey,
    secret: [u8; 2 * RANDOM_LEN],
    peer_parameters: Option<Vec<u8>>,
    /// Packet keys of the generation after the ones given out: local, remote.
    next: Option<[PlainKey; 2]>,
}

impl PlainSession {
    pub(super) fn new(side: Side, parameters: Vec<u8>, seed: &[u8; 32]) -> Self {
        let mut random = [0; RANDOM_LEN];
        random.copy_from_slice(&PlainKey::derive(seed, 0x77).checksum(0, &[], seed));
        let mut session = Self {
            side,
            random,
            parameters,
            expect: Expect::ClientHello,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            transcript: PlainKey(PI[..2].try_into().unwrap_or_default()),
            secret: [0; 2 * RANDOM_LEN],
            peer_parameters: None,
            next: None,
        };
        if side == Side::Client {
            let hello = session.hello(CLIENT_HELLO, true, CLIENT_HELLO_LEN);
            session.say(hello, None);
            session.expect = Expect::ServerHello;
        }
        session
    }

    fn hello(&self, message_type: u8, with_parameters: bool, len: usize) -> Vec<u8> {
        let parameters: &[u8] = if with_parameters { &self.parameters } else { &[] };
        message(message_type, &[&self.random, parameters_with_length(parameters).as_slice()], len)
    }

    fn say(&mut self, message: Vec<u8>, keys_after: Option<KeyChange>) {
        self.note(&message);
        match self.outgoing.last_mut() {
            Some((octets, change @ None)) => {
                octets.extend_from_slice(&message);
                *change = keys_after;
            }
            _ => self.outgoing.push((message, keys_after)),
        }
    }

    fn note(&mut self, message: &[u8]) {
        let tag = self.transcript.checksum(0, &[], message);
        self.transcript = PlainKey::derive(&tag, 0x99);
    }

    fn finished(&self, of: Side) -> [u8; TAG_LEN] {
        self.transcript.checksum(if of == Side::Client { 1 } else { 2 }, &[], &self.secret)
    }

    pub(super) fn read(&mut self, data: &[u8]) -> Result<(), CryptoError> {
        self.incoming.extend_from_slice(data);
        loop {
            let mut reader = Reader::new(&self.incoming);
            let (Some(header), rest) = (reader.array::<MESSAGE_HEADER_LEN>(), reader.rest()) else {
                return Ok(());
            };
            let len = usize::from(header[2]) << 8 | usize::from(header[3]);
            if header[1] != 0 || len > MAX_MESSAGE_LEN {
                return Err(CryptoError::peer(50, "message too long"));
            }
            if rest.len() < len {
                return Ok(());
            }
            let message: Vec<u8> = self.incoming.drain(..MESSAGE_HEADER_LEN + len).collect();
            self.read_message(header[0], &message)?;
        }
    }

    fn read_message(&mut self, message_type: u8, message: &[u8]) -> Result<(), CryptoError> {
        let malformed = CryptoError::peer(50, "malformed message");
        let mut body = Reader::new(&message[MESSAGE_HEADER_LEN..]);
        match (self.expect, message_type) {
            (Expect::ClientHello, CLIENT_HELLO) => {
                let random: [u8; RANDOM_LEN] = body.array().ok_or(malformed.clone())?;
                self.peer_parameters = Some(parameters(&mut body).ok_or(malformed)?);
                self.secret[..RANDOM_LEN].copy_from_slice(&random);
                self.secret[RANDOM_LEN..].copy_from_slice(&self.random);
                self.note(message);
                let hello = self.hello(SERVER_HELLO, false, SERVER_HELLO_LEN);
                let keys = keys(&self.secret, HANDSHAKE, self.side);
                self.say(hello, Some(KeyChange::Handshake(keys)));
                let certificate = self.hello(CERTIFICATE, true, CERTIFICATE_LEN);
                self.say(certificate, None);
                self.say_finished();
                self.expect = Expect::Finished;
            }
            (Expect::ServerHello, SERVER_HELLO) => {
                let random: [u8; RANDOM_LEN] = body.array().ok_or(malformed)?;
                self.secret[..RANDOM_LEN].copy_from_slice(&self.random);
                self.secret[RANDOM_LEN..].copy_from_slice(&random);
                self.note(message);
                let keys = keys(&self.secret, HANDSHAKE, self.side);
                self.outgoing.push((Vec::new(), Some(KeyChange::Handshake(keys))));
                self.expect = Expect::Certificate;
            }
            (Expect::Certificate, CERTIFICATE) => {
                body.array::<RANDOM_LEN>().ok_or(malformed.clone())?;
                self.peer_parameters = Some(parameters(&mut body).ok_or(malformed)?);
                self.note(message);
                self.expect = Expect::Finished;
            }
            (Expect::Finished, FINISHED) => {
                let peer = if self.side == Side::Client { Side::Server } else { Side::Client };
                if body.array() != Some(self.finished(peer)) {
                    return Err(CryptoError::peer(51, "Finished does not match"));
                }
                self.note(message);
                self.expect = Expect::Nothing;
                if self.side == Side::Client {
                    self.say_finished();
                }
            }
            _ => return Err(CryptoError::peer(10, "unexpected message")),
        }
        Ok(())
    }

    fn say_finished(&mut self) {
        let finished = self.finished(self.side);
        let keys = keys(&self.secret, ONE_RTT, self.side);
        let label = |of| ONE_RTT ^ if of == Side::Client { 0 } else { 1 };
        let (own, other) = match self.side {
            Side::Client => (Side::Client, Side::Server),
            Side::Server => (Side::Server, Side::Client),
        };
        self.next = Some([own, other].map(|of| PlainKey::derive(&self.secret, label(of)).next()));
        let message = message(FINISHED, &[&finished], FINISHED_LEN);
        self.say(message, Some(KeyChange::OneRtt(keys)));
    }

    pub(super) fn write(&mut self, out: &mut Vec<u8>) -> Option<KeyChange> {
        while !self.outgoing.is_empty() {
            let (octets, change) = self.outgoing.remove(0);
            out.extend_from_slice(&octets);
            if change.is_some() {
                return change;
            }
        }
        None
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.expect != Expect::Nothing
    }

    pub(super) fn peer_parameters(&self) -> Option<&[u8]> {
        self.peer_parameters.as_deref()
    }

    pub(super) fn next_keys(&mut self) -> Option<(PacketKey, PacketKey)> {
        let [local, remote] = self.next?;
        self.next = Some([local.next(), remote.next()]);
        Some((PacketKey::plain(local), PacketKey::plain(remote)))
    }
}

fn message(message_type: u8, parts: &[&[u8]], padded_to: usize) -> Vec<u8> {
    let mut message = vec![message_type, 0, 0, 0];
    for part in parts {
        message.extend_from_slice(part);
    }
    message.resize(message.len().max(padded_to), 0);
    let len = (message.len() - MESSAGE_HEADER_LEN) as u16;
    message[2..4].copy_from_slice(&len.to_be_bytes());
    message
}

fn parameters_with_length(parameters: &[u8]) -> Vec<u8> {
    let mut out = (parameters.len() as u16).to_be_bytes().to_vec();
    out.extend_from_slice(parameters);
    out
}

fn parameters(body: &mut Reader<'_>) -> Option<Vec<u8>> {
    let len = body.u16()?;
    Some(body.take(len.into())?.to_vec())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Lengths count: zeros at the end change the tag, as do swapped octets.
        #[test]
        fn checksum_sees_length_order_and_place(octets in proptest::collection::vec(any::<u8>(), 1..300), pn: u64) {
            let key = PlainKey::derive(b"secret", 1);
            let tag = key.checksum(pn, b"h", &octets);
            let mut longer = octets.clone();
            longer.push(0);
            prop_assert_ne!(key.checksum(pn, b"h", &longer), tag);
            prop_assert_ne!(key.checksum(pn ^ 1, b"h", &octets), tag);
            prop_assert_ne!(key.checksum(pn, b"", &octets), tag);
            prop_assert_ne!(key.next().checksum(pn, b"h", &octets), tag);
            let mut reversed = octets.clone();
            reversed.reverse();
            if reversed != octets {
                prop_assert_ne!(key.checksum(pn, b"h", &reversed), tag);
            }
        }

        #[test]
        fn keys_follow_from_every_bit_of_secret_and_label(secret: [u8; 16], label: u64, bit in 0_usize..128) {
            let key = PlainKey::derive(&secret, label);
            prop_assert_ne!(key.0[0], key.0[1]);
            let mut other = secret;
            other[bit / 8] ^= 1 << (bit % 8);
            let others = [PlainKey::derive(&other, label), PlainKey::derive(&secret, label ^ 1 << (bit % 64)), key.next()];
            for other in others {
                prop_assert_ne!(other.0[0], key.0[0]);
                prop_assert_ne!(other.0[1], key.0[1]);
            }
        }

        #[test]
        fn garbage_never_panics(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = PlainSession::new(Side::Server, Vec::new(), &[0; 32]).read(&octets);
        }
    }

    #[test]
    fn flights_have_the_sizes_of_tls() {
        let mut client = PlainSession::new(Side::Client, vec![1; 90], &[1; 32]);
        let mut server = PlainSession::new(Side::Server, vec![2; 110], &[2; 32]);
        let mut first = Vec::new();
        assert!(client.write(&mut first).is_none());
        assert_eq!(first.len(), CLIENT_HELLO_LEN);
        server.read(&first).unwrap();
        let (mut hello, mut rest) = (Vec::new(), Vec::new());
        assert!(matches!(server.write(&mut hello), Some(KeyChange::Handshake(_))));
        assert!(matches!(server.write(&mut rest), Some(KeyChange::OneRtt(_))));
        assert_eq!(hello.len() + rest.len(), SERVER_HELLO_LEN + CERTIFICATE_LEN + FINISHED_LEN);
        client.read(&hello).unwrap();
        client.read(&rest).unwrap();
        assert!(!client.is_handshaking());
        assert_eq!(client.peer_parameters(), Some([2; 110].as_slice()));
    }

    #[test]
    fn a_changed_message_does_not_finish() {
        let mut client = PlainSession::new(Side::Client, vec![1; 90], &[1; 32]);
        let mut server = PlainSession::new(Side::Server, vec![2; 110], &[2; 32]);
        let mut flight = Vec::new();
        client.write(&mut flight);
        let len = flight.len();
        flight[len - 1] ^= 1;
        server.read(&flight).unwrap();
        let mut answer = Vec::new();
        server.write(&mut answer);
        server.write(&mut answer);
        assert!(client.read(&answer).is_err());
    }
}
