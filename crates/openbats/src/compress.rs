//! Messages compressed one by one with Zstandard (RFC 8878), if both ends want it.
//!
//! The two ends agree in the handshake, by a bit of [`TransportConfig::application`]; then every
//! message of either begins with a byte that tells what follows: see docs/wire-format.md. All of it
//! happens on the threads of the application, beside the lock of the endpoint.
//!
//! [`TransportConfig::application`]: bats_proto::TransportConfig::application

use bats_proto::{PeerLimits, TransportConfig};
use bytes::Bytes;

/// The bit by which an end says that it compresses.
pub(crate) const AGREES: u8 = 1;
/// The message follows as it is.
const PLAIN: u8 = 0;
/// Its length and a Zstandard frame follow.
#[cfg(feature = "zstd")]
const ZSTD: u8 = 1;
/// What stands before a Zstandard frame.
#[cfg(feature = "zstd")]
const ZSTD_HEADER: usize = 1 + 4;
/// What is shorter does not shrink.
#[cfg(feature = "zstd")]
const LEAST: usize = 64;
/// The longest message of this library.
const MAX_MESSAGE: usize = 64 << 20;

/// What an end wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompressionOffer {
    level: i32,
    /// Bytes of the longest message accepted.
    max_in: usize,
}

impl CompressionOffer {
    /// The wish for a level, if there is one; and what the handshake is to say of it.
    pub(crate) fn of(level: Option<i32>, transport: &mut TransportConfig) -> Option<Self> {
        transport.application = if level.is_some() { AGREES } else { 0 };
        let max_in = transport.max_message_size.min(MAX_MESSAGE);
        level.map(|level| Self { level: level.clamp(1, 19), max_in })
    }

    /// What comes of it: nothing, if the peer does not compress.
    pub(crate) fn agree(self, peer: Option<PeerLimits>) -> Option<Packing> {
        let peer = peer.filter(|peer| peer.application & AGREES != 0);
        let Some(peer) = peer else {
            tracing::warn!("the peer does not compress messages: they go as they are");
            return None;
        };
        // The first byte is part of what the peer's limit counts.
        let max_out = peer.max_message_size.saturating_sub(1);
        Some(Packing { level: self.level, max_out, max_in: self.max_in })
    }
}

/// How the messages of a connection are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    level: i32,
    /// Bytes of the longest message that may be sent, and of that which may come.
    pub(crate) max_out: usize,
    max_in: usize,
}

impl Packing {
    /// What goes to the peer.
    pub(crate) fn pack(&self, message: &[u8]) -> Bytes {
        #[cfg(feature = "zstd")]
        if let Some(packed) = self.shrink(message) {
            return packed;
        }
        let mut packed = Vec::with_capacity(1 + message.len());
        packed.push(PLAIN);
        packed.extend_from_slice(message);
        packed.into()
    }

    #[cfg(feature = "zstd")]
    fn shrink(&self, message: &[u8]) -> Option<Bytes> {
        if message.len() < LEAST {
            return None;
        }
        let length = u32::try_from(message.len()).ok()?;
        // What hardly shrinks is not worth the other side's time: it finds no room here.
        let mut packed = vec![0; ZSTD_HEADER + message.len() / 16 * 15];
        let room = &mut packed[ZSTD_HEADER..];
        let len = zstd_contexts::compress(self.level, message, room)?;
        packed.truncate(ZSTD_HEADER + len);
        packed[0] = ZSTD;
        packed[1..ZSTD_HEADER].copy_from_slice(&length.to_be_bytes());
        Some(packed.into())
    }

    /// What the peer meant.
    ///
    /// # Errors
    /// The rule that it broke.
    pub(crate) fn unpack(&self, mut packed: Bytes) -> Result<Bytes, String> {
        match packed.first() {
            Some(&PLAIN) => {
                bytes::Buf::advance(&mut packed, 1);
                Ok(packed)
            }
            #[cfg(feature = "zstd")]
            Some(&ZSTD) => self.expand(&packed[1..]),
            Some(other) => Err(format!("a message packed in a way {other} that is not known")),
            None => Err("a message without the byte that tells how it is packed".to_owned()),
        }
        .and_then(|message: Bytes| match message.len() {
            len if len > self.max_in => Err(self.too_long(len)),
            _ => Ok(message),
        })
    }

    fn too_long(&self, len: usize) -> String {
        format!("a message of {len} bytes where {} are accepted", self.max_in)
    }

    #[cfg(feature = "zstd")]
    fn expand(&self, bytes: &[u8]) -> Result<Bytes, String> {
        let broken = || "a compressed message is broken".to_owned();
        let (length, frame) = bytes.split_first_chunk::<4>().ok_or_else(broken)?;
        let length = u32::from_be_bytes(*length) as usize;
        // Before memory is asked for.
        if length > self.max_in {
            return Err(self.too_long(length));
        }
        let mut message = vec![0; length];
        match zstd_contexts::decompress(frame, &mut message) {
            Some(len) if len == length => Ok(message.into()),
            _ => Err(broken()),
        }
    }
}

/// The memory that Zstandard works in: some hundred kilobytes for each thread that sends or
/// receives, not for each connection.
#[cfg(feature = "zstd")]
mod zstd_contexts {
    use std::cell::RefCell;

    use zstd::bulk::{Compressor, Decompressor};

    thread_local! {
        static COMPRESSOR: RefCell<Option<(i32, Compressor<'static>)>> = const { RefCell::new(None) };
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }

    /// The bytes written, unless there was not room enough.
    pub(super) fn compress(level: i32, source: &[u8], room: &mut [u8]) -> Option<usize> {
        let work = |place: &RefCell<Option<(i32, Compressor<'static>)>>| {
            let mut place = place.borrow_mut();
            if place.as_ref().is_none_or(|(known, _)| *known != level) {
                *place = Some((level, Compressor::new(level).ok()?));
            }
            place.as_mut()?.1.compress_to_buffer(source, room).ok()
        };
        // A thread that ends has none any more: the message goes as it is.
        COMPRESSOR.try_with(work).ok().flatten()
    }

    /// The bytes written, unless the frame is broken or gives more than there is room for.
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

    const PACKING: Packing = Packing { level: 1, max_out: 1_000_000, max_in: 1_000_000 };

    fn noise(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    #[test]
    fn what_is_packed_comes_back_and_never_grows_by_more_than_an_byte() {
        let text = b"a line that repeats and repeats, ".repeat(3_000);
        for level in [1, 3, 19] {
            let packing = Packing { level, ..PACKING };
            for len in [0, 1, 63, 64, 65, 1_000, 99_000] {
                for message in [&text[..len], &noise(len)] {
                    let packed = packing.pack(message);
                    assert!(packed.len() <= message.len() + 1);
                    assert_eq!(packing.unpack(packed).unwrap(), message);
                }
            }
            assert!(packing.pack(&text).len() < text.len() / 20);
            assert_eq!(packing.pack(&noise(10_000))[0], PLAIN);
        }
    }

    #[test]
    fn a_message_at_the_limit_is_taken_and_one_byte_more_is_not() {
        let packing = Packing { level: 1, max_out: 2_000, max_in: 1_000 };
        for make in [|len| vec![7; len], noise] {
            let longest = make(1_000);
            assert_eq!(packing.unpack(packing.pack(&longest)).unwrap(), longest);
            let told = packing.unpack(packing.pack(&make(1_001))).unwrap_err();
            assert!(told.contains("1001 bytes where 1000"), "{told}");
        }
    }

    #[test]
    fn bombs_and_nonsense_are_refused() {
        let bomb = zstd::bulk::compress(&vec![0; 100 << 20], 1).unwrap();
        assert!(bomb.len() < 20_000);
        let frame = |length: u32, content: &[u8]| {
            Bytes::from([&[ZSTD][..], &length.to_be_bytes(), content].concat())
        };
        // It may say how long it is, or lie.
        let told = PACKING.unpack(frame(100 << 20, &bomb)).unwrap_err();
        assert!(told.contains("where 1000000 are accepted"), "{told}");
        for length in [0, 1, 1_000_000] {
            assert!(PACKING.unpack(frame(length, &bomb)).unwrap_err().contains("broken"));
        }
        let good = PACKING.pack(&[7; 1_000]);
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
            PACKING.unpack(wrong).unwrap_err();
        }
        // Whatever a peer says is an error or a message within the limit.
        let wild = PACKING.pack(&[&noise(200)[..], &[b'x'; 900], &noise(300)[200..]].concat());
        for (round, noise) in noise(40_000).chunks_exact(4).enumerate() {
            let mut bytes = wild.to_vec();
            let place = usize::from(u16::from_be_bytes([noise[0], noise[1]])) % bytes.len();
            match round % 3 {
                0 => bytes[place] = noise[2],
                1 => bytes.truncate(place),
                _ => bytes.splice(place..place, [noise[2], noise[3]]).for_each(drop),
            }
            if let Ok(message) = PACKING.unpack(bytes.into()) {
                assert!(message.len() <= PACKING.max_in);
            }
        }
    }

    #[test]
    fn both_must_want_it() {
        let mut transport = TransportConfig { application: 0xff, ..TransportConfig::default() };
        assert_eq!(CompressionOffer::of(None, &mut transport), None);
        assert_eq!(transport.application, 0);
        let wish = CompressionOffer::of(Some(100), &mut transport).unwrap();
        assert_eq!((wish.level, transport.application), (19, AGREES));
        let peer = |application| Some(PeerLimits { max_message_size: 100, application });
        assert_eq!(wish.agree(None), None);
        assert_eq!(wish.agree(peer(!AGREES)), None);
        assert_eq!(wish.agree(peer(AGREES | 0x80)).unwrap().max_out, 99);
    }

    /// A peer that says that it compresses, and then sends what it likes: an endpoint below this library.
    #[test]
    fn a_bomb_ends_the_connection_and_nothing_else() {
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
        let frame = |length: u32| [&[1][..], &length.to_be_bytes(), &bomb].concat();
        for packed in [frame(64 << 20), frame(1_000), vec![9, 9], vec![]] {
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
            let liar = ClientOptions::new(trust).transport(transport).lying_of_compression();
            let connect = |options| {
                let near = client.connect(server.local_addr(), "localhost", options);
                let near = near.wait_for(LIMIT).unwrap().unwrap();
                (near, server.accept().wait_for(LIMIT).unwrap().unwrap())
            };
            let (good, good_far) = connect(honest);
            let (bad, bad_far) = connect(liar);
            bad.send([&[0][..], b"first"].concat()).wait_for(LIMIT).unwrap().unwrap();
            bad.send(packed).wait_for(LIMIT).unwrap().unwrap();
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
            // The liar is told, too.
            let told = bad.recv().wait_for(LIMIT).unwrap().unwrap_err().to_string();
            assert!(told.contains("message"), "{told}");
            good.send(vec![1; 10_000]).wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(good_far.recv().wait_for(LIMIT).unwrap().unwrap().unwrap(), vec![1; 10_000]);
        }
    }
}
