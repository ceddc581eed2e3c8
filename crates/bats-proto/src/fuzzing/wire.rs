//! Parsers: input that parses can be encoded and parses to the same value again.

use bats_types::Timestamp;

use crate::config::{Identity, PresharedKey, Security, ServerConfig, TransportConfig};
use crate::crypto::PskSecrets;
use crate::handshake::{FirstPacket, InitialInfo, ServerCrypto, ServerStart, parse_first};
use crate::remote::Remote;
use crate::wire::batch_rank::{BatchRank, MAX_BATCHES};
use crate::wire::channel;
use crate::wire::coding::{BATCH_SIZE, RepairHeader, SourceHeader};
use crate::wire::flow::{FLOW_HEADER_LEN, FlowHeader};
use crate::wire::frame::{self, Frame, MAX_ACK_RANGES};
use crate::wire::long_header::{self, LongKind, MIN_INITIAL_DATAGRAM, VERSION};
use crate::wire::message::{self, CONTINUATION, DATAGRAM, FIN, MESSAGE, MessageFrame};
use crate::wire::no_route::{NoRoute, QUOTED_LEN};
use crate::wire::parameters::TransportParameters;
use crate::wire::rank::{MAX_RANK_ENTRIES, RankFeedback};
use crate::wire::short_header::{self, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader};
use crate::wire::stateless_reset::{RESET_TOKEN_LEN, reset_len, token_of, write_reset};
use crate::wire::varint::{MAX_VARINT, Reader, Writer};

/// Buffer size for anything that a datagram can hold, in its longest encoding.
const ROOM: usize = 64 << 10;

/// Passes `data` to every parser.
///
/// # Panics
/// A parsed value differs after it was encoded and parsed again.
pub fn wire_run(data: &[u8]) {
    varints(data);
    short_headers(data);
    long_headers(data);
    // Random bytes have no known version and no lengths that fit.
    long_headers(&packet_of(data));
    coding_headers(data);
    flow_headers(data);
    rank(data);
    batch_rank(data);
    resets(data);
    frames(data);
    messages(data);
    parameters(data);
    let _ = parse_first(data);
}

/// The bytes that `write` wrote. Panics if they did not fit.
fn written(write: impl FnOnce(&mut Writer<'_>) -> Option<()>) -> Vec<u8> {
    let mut buffer = vec![0; ROOM];
    let mut writer = Writer::new(&mut buffer);
    assert!(write(&mut writer).is_some(), "a parsed value can be encoded");
    let len = writer.written();
    buffer.truncate(len);
    buffer
}

fn varints(data: &[u8]) {
    let mut reader = Reader::new(data);
    while let Some(value) = reader.varint() {
        assert!(value <= MAX_VARINT);
        let bytes = written(|writer| writer.varint(value));
        assert_eq!(Reader::new(&bytes).varint(), Some(value));
    }
    assert!(reader.remaining() < 8, "a varint has at most eight bytes");
}

fn short_headers(data: &[u8]) {
    let Some(header) = ShortHeader::decode(data) else { return };
    let mut bytes = [0; SHORT_HEADER_LEN];
    header.encode(data[data.len() - 1], &mut bytes);
    assert_eq!(ShortHeader::decode(&bytes), Some(header));
    let mut masked = bytes.to_vec();
    masked.extend(data);
    let mask = [data[0], 1, 2, 3, 4];
    let plain = masked.clone();
    short_header::apply_mask(&mut masked, mask);
    short_header::apply_mask(&mut masked, mask);
    assert_eq!(masked, plain, "the mask is removed by applying it again");
    if let Some(destination) = short_header::destination(data) {
        assert_eq!(destination, header.destination);
    }
}

fn long_headers(data: &[u8]) {
    let Some(header) = long_header::decode(data) else { return };
    assert!(header.number_at <= header.packet_len && header.packet_len <= data.len());
    let (to, from, token) = (header.destination, header.source, header.token);
    if header.version != VERSION {
        return;
    }
    let bytes = if header.kind == LongKind::Retry {
        long_header::retry(to, from, token, data[0])
    } else {
        let payload = header.packet_len - header.number_at - 4 - 16;
        let mut bytes = written(|writer| {
            long_header::encode(writer, header.kind, to, from, token, payload, data[0])
        });
        bytes.resize(bytes.len() + 4 + payload + 16, 0);
        bytes
    };
    let again = long_header::decode(&bytes);
    let Some(again) = again else { panic!("{header:?} cannot be read again") };
    assert_eq!((again.kind, again.version), (header.kind, header.version));
    assert_eq!((again.destination, again.source, again.token), (to, from, token));
    assert_eq!(again.packet_len - again.number_at, header.packet_len - header.number_at);
}

/// A long header of this version with fields from `data`, and one byte changed or the end cut off.
fn packet_of(data: &[u8]) -> Vec<u8> {
    let at = |index: usize| data.get(index).copied().unwrap_or_default();
    let part = |from: usize, most: usize| {
        let rest = data.get(from..).unwrap_or_default();
        rest.get(..usize::from(at(from)) % (most + 1)).unwrap_or(rest)
    };
    let kind = match at(0) & 3 {
        0 => LongKind::Initial,
        1 => LongKind::Handshake,
        2 => LongKind::Early,
        _ => return long_header::retry(part(4, 20), part(24, 20), part(44, 60), at(1)),
    };
    let payload = part(30, 100);
    let mut bytes = written(|writer| {
        let (to, from, token) = (part(4, 20), part(24, 20), part(44, 60));
        long_header::encode(writer, kind, to, from, token, payload.len(), at(1))?;
        // The packet number and the tag.
        writer.bytes(&[at(2); 4 + 16])?;
        writer.bytes(payload)
    });
    let position = usize::from(at(3)) % bytes.len();
    match at(1) >> 4 {
        0 => bytes[position] ^= at(2),
        1 => bytes.truncate(position),
        _ => {}
    }
    bytes
}

/// The headers of relays. Of a packet without a route 32 bytes are quoted.
fn flow_headers(data: &[u8]) {
    if let Some(header) = FlowHeader::decode(&mut Reader::new(data)) {
        assert_eq!(written(|writer| header.encode(writer)), data[..FLOW_HEADER_LEN]);
        assert_eq!(header.key.reversed().reversed(), header.key);
        let quoted = &data[..data.len().min(QUOTED_LEN)];
        let hint = NoRoute { destination: header.key.destination, quoted };
        let bytes = NoRoute { quoted: data, ..hint }.encode();
        assert_eq!(NoRoute::decode(&bytes), Some(hint));
        assert!(ShortHeader::decode(&bytes).is_none());
        for end in 0..bytes.len() - quoted.len() {
            assert_eq!(NoRoute::decode(&bytes[..end]), None);
        }
    }
    if let Some(hint) = NoRoute::decode(data) {
        assert_eq!(NoRoute::decode(&hint.encode()), Some(hint));
    }
}

fn batch_rank(data: &[u8]) {
    let Some(report) = BatchRank::decode(&mut Reader::new(data)) else { return };
    assert!(report.ranks.len() <= MAX_BATCHES);
    assert!(report.ranks.iter().all(|&rank| usize::from(rank) <= BATCH_SIZE));
    let bytes = written(|writer| report.encode(writer));
    assert!(bytes.len() < report.bound());
    assert_eq!(BatchRank::decode(&mut Reader::new(&bytes)), Some(report));
}

fn resets(data: &[u8]) {
    let Some((token, random)) = data.split_first_chunk::<RESET_TOKEN_LEN>() else { return };
    assert!(reset_len(data.len()).is_none_or(|length| length < data.len()));
    let mut reset = random.to_vec();
    write_reset(&mut reset, token);
    assert_eq!(token_of(&reset), (reset.len() >= SHORT_OVERHEAD).then_some(token));
}

fn coding_headers(data: &[u8]) {
    if let Some(header) = SourceHeader::decode(&mut Reader::new(data)) {
        let bytes = written(|writer| header.encode(writer));
        assert_eq!(bytes, data[..bytes.len()]);
    }
    if let Some(header) = RepairHeader::decode(&mut Reader::new(data)) {
        let bytes = written(|writer| header.encode(writer));
        assert_eq!(bytes, data[..bytes.len()]);
        let near = header.first_symbol(u64::from(header.first) << 7);
        assert_eq!(near as u32, header.first, "expansion keeps the low bits");
    }
}

fn rank(data: &[u8]) {
    let Some(feedback) = RankFeedback::decode(&mut Reader::new(data)) else { return };
    check_rank(&feedback);
    let bytes = written(|writer| feedback.encode(writer));
    assert_eq!(RankFeedback::decode(&mut Reader::new(&bytes)), Some(feedback));
}

fn check_rank(feedback: &RankFeedback) {
    assert!(feedback.entries.len() <= MAX_RANK_ENTRIES);
    assert!(feedback.decoded_below <= feedback.seen_end && feedback.seen_end <= MAX_VARINT);
    let firsts = || feedback.entries.iter().map(|entry| entry.first);
    assert!(firsts().zip(firsts().skip(1)).all(|(a, b)| a <= b), "entries are in order");
    assert!(feedback.entries.iter().all(|entry| entry.first + entry.span <= MAX_VARINT));
}

fn frames(data: &[u8]) {
    let (mut ranges, mut ranges_again) = (Vec::new(), Vec::new());
    let mut reader = Reader::new(data);
    loop {
        let before = reader.remaining();
        let Ok(Some(frame)) = frame::decode(&mut reader, &mut ranges) else { return };
        assert!(reader.remaining() < before, "every frame takes bytes");
        let bytes = if let Frame::Ack(header) = &frame {
            assert!(ranges.len() as u64 <= MAX_ACK_RANGES);
            assert!(ranges.iter().all(|&(first, last)| first <= last && last <= header.largest));
            assert!(ranges.windows(2).all(|pair| pair[1].1 + 1 < pair[0].0), "gaps between ranges");
            written(|writer| frame::encode_ack(writer, header, &ranges))
        } else {
            written(|writer| frame::encode(writer, &frame))
        };
        let again = frame::decode(&mut Reader::new(&bytes), &mut ranges_again);
        assert_eq!(again, Ok(Some(frame.clone())));
        if matches!(frame, Frame::Ack(_)) {
            assert_eq!(ranges, ranges_again);
        }
        if let Frame::Rank(feedback) = &frame {
            check_rank(feedback);
        }
    }
}

fn messages(data: &[u8]) {
    let mut reader = Reader::new(data);
    while let Ok(Some(frame)) = message::decode(&mut reader) {
        let bytes = written(|writer| match frame {
            MessageFrame::Message { total, data } => {
                writer.u8(MESSAGE)?;
                writer.varint(total)?;
                writer.varint(data.len() as u64)?;
                writer.bytes(data)
            }
            MessageFrame::Continuation(data) => {
                writer.u8(CONTINUATION)?;
                writer.varint(data.len() as u64)?;
                writer.bytes(data)
            }
            MessageFrame::Fin => writer.u8(FIN),
            MessageFrame::Channel(frame) => channel::encode(writer, &frame),
            MessageFrame::Datagram { id, total, offset, data } => {
                writer.u8(DATAGRAM)?;
                writer.varint(id)?;
                writer.varint(total)?;
                writer.varint(offset)?;
                writer.varint(data.len() as u64)?;
                writer.bytes(data)
            }
        });
        assert_eq!(message::decode(&mut Reader::new(&bytes)), Ok(Some(frame)));
    }
}

fn parameters(data: &[u8]) {
    let Some(parameters) = TransportParameters::decode(data) else { return };
    let bytes = parameters.encode(data.first().copied().unwrap_or_default());
    assert_eq!(TransportParameters::decode(&bytes), Some(parameters));
}

fn token_server(psk: Option<PresharedKey>) -> ServerCrypto {
    let config = ServerConfig {
        identity: Identity { certificate_chain: Vec::new(), private_key: Vec::new() },
        transport: TransportConfig { psk, ..TransportConfig::default() }.into(),
        client_trust: None,
        retry_threshold: 0,
        max_connections: 1,
    };
    let Ok(server) = ServerCrypto::new(&config, Security::DangerousPlain, [9; 32]) else {
        panic!("the stand-in needs no identity");
    };
    server
}

/// A busy server and a client with a token made from `data`: arbitrary, or a valid one modified.
///
/// # Panics
/// The server accepts a token that it did not make for this client, or rejects its own; or it
/// accepts an invalid PSK proof or rejects a valid one.
pub fn token_run(data: &[u8]) {
    let server = token_server(None);
    let now = Timestamp::from_millis(100_000);
    let remote = Remote::Network(([10, 0, 0, 1], 5_000).into());
    let start = |initial: &InitialInfo<'_>| server.start(now, remote, initial, false, true);
    let mut initial = InitialInfo { destination: [1; 8], source: [2; 4], token: &[], psk: 0 };

    let ServerStart::Answer(answer) = start(&initial) else {
        panic!("a busy server requests a token")
    };
    assert!(answer.len() <= MIN_INITIAL_DATAGRAM, "no more than the client sent");
    let Some(retry) = long_header::decode(&answer) else { panic!("a retry is a long packet") };
    let real = retry.token.to_vec();
    initial.token = &real;
    assert!(matches!(start(&initial), ServerStart::Accept(_)), "the server's own token");

    initial.token = data;
    assert!(data == real || !matches!(start(&initial), ServerStart::Accept(_)));
    let modified: Vec<u8> =
        real.iter().enumerate().map(|(i, x)| x ^ data.get(i).unwrap_or(&0)).collect();
    initial.token = &modified;
    let changed = modified != real;
    assert_eq!(matches!(start(&initial), ServerStart::Accept(_)), !changed);

    let key = PresharedKey::new([5; PresharedKey::LEN]);
    let proof = PskSecrets::new(&key).proof(&initial.destination, &initial.source);
    let psk = token_server(Some(key));
    let with_proof = [&proof[..], data].concat();
    for token in [data, &with_proof] {
        initial.token = token;
        let behind = psk.verify_psk_proof(&initial).map(|initial| initial.token);
        assert_eq!(behind, token.strip_prefix(&proof));
    }

    if let Some(FirstPacket::Initial(parsed)) = parse_first(data) {
        let own = !parsed.token.is_empty() && parsed.token == real;
        assert!(own || !matches!(start(&parsed), ServerStart::Accept(_)));
    }
}
