//! Compression of single messages with Zstandard (RFC 8878), if both ends enable it.
//!
//! The ends negotiate it in the handshake, with a bit of [`TransportConfig::application`]. Every
//! message then begins with a byte that gives its encoding: see docs/spec/messages.md. Compression
//! runs on the threads of the application, outside the endpoint's lock.
//!
//! [`TransportConfig::application`]: bats_proto::TransportConfig::application
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use bats_proto::{PeerLimits, TransportConfig};
use bytes::Bytes;

/// The bit with which an end offers compression.
pub(crate) const COMPRESSION_BIT: u8 = 1;
/// An uncompressed message follows.
const PLAIN: u8 = 0;
/// The uncompressed length and a Zstandard frame follow.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 1;
/// Bytes before a Zstandard frame.
#[cfg(feature = "zstd")]
const ZSTD_HEADER: usize = 1 + 4;
/// Shorter messages do not compress.
#[cfg(feature = "zstd")]
const MIN_LENGTH: usize = 64;
/// The longest message of this library in bytes.
const MAX_MESSAGE: usize = 64 << 20;

/// The compression that an end offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressionOffer {
    level: i32,
    /// Longest message in bytes that this end accepts.
    max_receive: usize,
}

impl CompressionOffer {
    /// Creates the offer if a compression level is set, and sets the bit in the transport
    /// parameters.
    pub(crate) fn from_level(level: Option<i32>, transport: &mut TransportConfig) -> Option<Self> {
        transport.application = if level.is_some() { COMPRESSION_BIT } else { 0 };
        let max_receive = transport.max_message_size.min(MAX_MESSAGE);
        level.map(|level| Self { level: level.clamp(1, 19), max_receive })
    }

    /// Returns the codec if the peer also offers compression.
    pub(crate) fn negotiate(self, peer: Option<PeerLimits>) -> Option<MessageCodec> {
        let peer = peer.filter(|peer| peer.application & COMPRESSION_BIT != 0);
        let Some(peer) = peer else {
            tracing::warn!("the peer does not offer compression: messages are sent uncompressed");
            return None;
        };
        // The encoding byte counts towards the peer's limit.
        let max_send = peer.max_message_size.saturating_sub(1);
        Some(MessageCodec { level: self.level, max_send, max_receive: self.max_receive })
    }
}

/// Encodes and decodes the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageCodec {
    level: i32,
    /// Longest message in bytes that may be sent, without its encoding byte, and that may be
    /// received.
    pub(crate) max_send: usize,
    max_receive: usize,
}

impl MessageCodec {
    /// Encodes a message for the peer.
    pub(crate) fn encode(&self, message: &[u8]) -> Bytes {
        #[cfg(feature = "zstd")]
        if let Some(encoded) = self.compress(message) {
            return encoded;
        }
        let mut encoded = Vec::with_capacity(message.len().saturating_add(1));
        encoded.push(PLAIN);
        encoded.extend_from_slice(message);
        encoded.into()
    }

    #[cfg(feature = "zstd")]
    fn compress(&self, message: &[u8]) -> Option<Bytes> {
        if message.len() < MIN_LENGTH {
            return None;
        }
        let length = u32::try_from(message.len()).ok()?;
        // Sends the message uncompressed if it shrinks by less than 1/16: it does not fit here.
        let longest = (message.len() / 16).saturating_mul(15);
        let mut encoded = vec![0; longest.saturating_add(ZSTD_HEADER)];
        let (header, room) = encoded.split_first_chunk_mut::<ZSTD_HEADER>()?;
        let [a, b, c, d] = length.to_be_bytes();
        *header = [ZSTD, a, b, c, d];
        let len = zstd_contexts::compress(self.level, message, room)?;
        encoded.truncate(len.saturating_add(ZSTD_HEADER));
        Some(encoded.into())
    }

    /// Decodes a message from the peer.
    ///
    /// # Errors
    /// The rule that the peer violated.
    pub(crate) fn decode(&self, mut encoded: Bytes) -> Result<Bytes, String> {
        let encoding = bytes::Buf::try_get_u8(&mut encoded).ok();
        match encoding {
            Some(PLAIN) => Ok(encoded),
            #[cfg(feature = "zstd")]
            Some(ZSTD) => self.decompress(&encoded),
            Some(other) => Err(format!("a message with the unknown encoding {other}")),
            None => Err("a message without its encoding byte".to_owned()),
        }
        .and_then(|message: Bytes| match message.len() {
            len if len > self.max_receive => Err(self.too_long(len)),
            _ => Ok(message),
        })
    }

    fn too_long(&self, len: usize) -> String {
        format!("a message of {len} bytes exceeds the limit of {} bytes", self.max_receive)
    }

    #[cfg(feature = "zstd")]
    fn decompress(&self, bytes: &[u8]) -> Result<Bytes, String> {
        let corrupt = || "a compressed message is corrupt".to_owned();
        let (length, frame) = bytes.split_first_chunk::<4>().ok_or_else(corrupt)?;
        let length = u32::from_be_bytes(*length) as usize;
        // Check the length before allocating memory.
        if length > self.max_receive {
            return Err(self.too_long(length));
        }
        let mut message = vec![0; length];
        match zstd_contexts::decompress(frame, &mut message) {
            Some(len) if len == length => Ok(message.into()),
            _ => Err(corrupt()),
        }
    }
}

/// Working memory of Zstandard: some hundred kilobytes for each thread that sends or receives, not
/// for each connection.
#[cfg(feature = "zstd")]
mod zstd_contexts {
    use std::cell::RefCell;

    use zstd::bulk::{Compressor, Decompressor};

    thread_local! {
        static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }

    /// Returns the bytes written, or `None` if `room` is too small.
    pub(super) fn compress(level: i32, source: &[u8], room: &mut [u8]) -> Option<usize> {
        let work = |place: &RefCell<Option<(i32, Compressor<'static>)>>| {
            let mut place = place.borrow_mut();
            if place.as_ref().is_none_or(|(known, _)| *known != level) {
                *place = Some((level, Compressor::new(level).ok()?));
            }
            place.as_mut()?.1.compress_to_buffer(source, room).ok()
        };
        // A thread that is ending has no context any more: send the message uncompressed.
        COMPRESSOR.try_with(work).ok().flatten()
    }

    /// Returns the bytes written, or `None` if the frame is corrupt or does not fit `room`.
    pub(super) fn decompress(frame: &[u8], room: &mut [u8]) -> Option<usize> {
        let mut frame = Some((frame, room));
        let mut work = |decompressor: &mut Decompressor<'static>| {
            let (frame, room) = frame.take()?;
            decompressor.decompress_to_buffer(frame, room).ok()
        };
        let kept = DECOMPRESSOR.try_with(|place| {
            let mut place = place.borrow_mut();
            if place.is_none() {
                *place = Some(Decompressor::new().ok()?);
            }
            work(place.as_mut()?)
        });
        match kept {
            Ok(result) => result,
            Err(_) => work(&mut Decompressor::new().ok()?),
        }
    }
}

#[cfg(all(test, feature = "zstd"))]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;
    use crate::{
        ClientOptions, CloseReason, Endpoint, Identity, RecvError, SendError, ServerOptions, Trust,
        Wait,
    };

    const LIMIT: Duration = Duration::from_secs(20);

    const CODEC: MessageCodec =
        MessageCodec { level: 1, max_send: 1_000_000, max_receive: 1_000_000 };

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn messages_round_trip_and_grow_by_at_most_one_byte() {
        let text = b"a line that repeats and repeats, ".repeat(3_000);
        for level in [1, 3, 19] {
            let codec = MessageCodec { level, ..CODEC };
            for len in [0, 1, 63, 64, 65, 1_000, 99_000] {
                for message in [&text[..len], &noise(len)] {
                    let encoded = codec.encode(message);
                    assert!(encoded.len() <= message.len() + 1);
                    assert_eq!(codec.decode(encoded).unwrap(), message);
                }
            }
            assert!(codec.encode(&text).len() < text.len() / 20);
            assert_eq!(codec.encode(&noise(10_000))[0], PLAIN);
        }
    }

    #[test]
    fn messages_up_to_the_limit_are_accepted() {
        let codec = MessageCodec { level: 1, max_send: 2_000, max_receive: 1_000 };
        for make in [|len| vec![7; len], noise] {
            let longest = make(1_000);
            assert_eq!(codec.decode(codec.encode(&longest)).unwrap(), longest);
            let error = codec.decode(codec.encode(&make(1_001))).unwrap_err();
            assert!(error.contains("1001 bytes exceeds the limit of 1000"), "{error}");
        }
    }

    #[test]
    fn decompression_bombs_and_corrupt_messages_are_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap();
        assert!(bomb.len() < 20_000);
        let frame = |length: u32, content: &[u8]| {
            Bytes::from([&[ZSTD][..], &length.to_be_bytes(), content].concat())
        };
        // The declared length may be true or false.
        let error = CODEC.decode(frame(100 << 20, &bomb)).unwrap_err();
        assert!(error.contains("exceeds the limit of 1000000 bytes"), "{error}");
        for length in [0, 1, 1_000_000] {
            assert!(CODEC.decode(frame(length, &bomb)).unwrap_err().contains("corrupt"));
        }
        let good = CODEC.encode(&[7; 1_000]);
        for wrong in [
            Bytes::new(),
            Bytes::from_static(&[2, 1, 2, 3]),
            Bytes::from_static(&[ZSTD, 0, 0]),
            frame(1_001, &good[ZSTD_HEADER..]),
            frame(999, &good[ZSTD_HEADER..]),
            frame(1_000, b"nonsense"),
            good.slice(..good.len() - 1),
            Bytes::from([&[PLAIN][..], &noise(1_000_001)].concat()),
        ] {
            CODEC.decode(wrong).unwrap_err();
        }
        // Any received bytes give an error or a message within the limit.
        let wild = CODEC.encode(&[&noise(200)[..], &[b'x'; 900], &noise(300)[200..]].concat());
        for (round, noise) in noise(40_000).chunks_exact(4).enumerate() {
            let mut bytes = wild.to_vec();
            let place = usize::from(u16::from_be_bytes([noise[0], noise[1]])) % bytes.len();
            match round % 3 {
                0 => bytes[place] = noise[2],
                1 => bytes.truncate(place),
                _ => bytes.splice(place..place, [noise[2], noise[3]]).for_each(drop),
            }
            if let Ok(message) = CODEC.decode(bytes.into()) {
                assert!(message.len() <= CODEC.max_receive);
            }
        }
    }

    #[test]
    fn compression_needs_both_ends() {
        let mut transport = TransportConfig { application: 0xff, ..TransportConfig::default() };
        assert_eq!(CompressionOffer::from_level(None, &mut transport), None);
        assert_eq!(transport.application, 0);
        let offer = CompressionOffer::from_level(Some(100), &mut transport).unwrap();
        assert_eq!((offer.level, transport.application), (19, COMPRESSION_BIT));
        let peer = |application| Some(PeerLimits { max_message_size: 100, application });
        assert_eq!(offer.negotiate(None), None);
        assert_eq!(offer.negotiate(peer(!COMPRESSION_BIT)), None);
        assert_eq!(offer.negotiate(peer(COMPRESSION_BIT | 0x80)).unwrap().max_send, 99);
    }

    /// The peer negotiates compression, then sends arbitrary bytes.
    #[test]
    fn a_decompression_bomb_closes_only_its_connection() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        let frame = |length: u32| [&[1][..], &length.to_be_bytes(), &bomb].concat();
        for encoded in [frame(64 << 20), frame(1_000), vec![9, 9], vec![]] {
            let identity = Identity::generate(&["localhost"]).unwrap();
            let trust = Trust::fingerprint(identity.fingerprint());
            let transport =
                TransportConfig { max_message_size: 1 << 20, ..TransportConfig::default() };
            let of_server =
                ServerOptions::new(identity).transport(transport.clone()).compression(1);
            let here: SocketAddr = ([127, 0, 0, 1], 0).into();
            let server = Endpoint::builder().bind(here).server(of_server).start().unwrap();
            let client = Endpoint::builder().bind(here).start().unwrap();
            let honest = ClientOptions::new(trust.clone()).compression(1);
            let misbehaving = ClientOptions::new(trust).transport(transport).ignoring_compression();
            let connect = |options| {
                let near = client.connect(server.local_addr(), "localhost", options);
                let near = near.wait_for(LIMIT).unwrap().unwrap();
                (near, server.accept().wait_for(LIMIT).unwrap().unwrap())
            };
            let (good, good_far) = connect(honest);
            let (bad, bad_far) = connect(misbehaving);
            bad.send([&[0][..], b"first"].concat()).wait_for(LIMIT).unwrap().unwrap();
            bad.send(encoded).wait_for(LIMIT).unwrap().unwrap();
            bad.send([&[0][..], b"never"].concat()).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(bad_far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), "first");
            for _ in 0..2 {
                let ended = bad_far.recv().wait_for(LIMIT).unwrap();
                let Err(RecvError::Closed(CloseReason::PeerMisbehaved(why))) = ended else {
                    panic!("{ended:?}");
                };
                assert!(why.contains("message"), "{why}");
            }
            assert_eq!(bad_far.try_recv(), None);
            assert!(matches!(bad_far.send("x").wait(), Err(SendError::Closed(_))));
            // The misbehaving peer is notified, too.
            let error = bad.recv().wait_for(LIMIT).unwrap().unwrap_err().to_string();
            assert!(error.contains("message"), "{error}");
            good.send(vec![1; 10_000]).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(good_far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), vec![1; 10_000]);
        }
    }
}
