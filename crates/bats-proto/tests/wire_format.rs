//! Checks that `docs/spec` is correct: its diagrams and examples yield the packets that
//! the code makes.

use core::time::Duration;

use bats_proto::flow::RatelessHeader;
use bats_proto::session::{DatagramQueue, Reassembly, SendQueue};
use bats_proto::wire::announcement::{Announcement, AnnouncementHeader};
use bats_proto::wire::batch_rank::{BatchRank, MAX_BATCHES, Space};
use bats_proto::wire::channel::{self, ChannelFrame};
use bats_proto::wire::coding::{CodingHeader, RepairHeader, SourceHeader};
use bats_proto::wire::flow::{DIRECT_FLOW, FLOW_HEADER_LEN, FlowHeader, FlowKey, NodeId};
use bats_proto::wire::frame::{self, AckHeader, Frame};
use bats_proto::wire::long_header::{self, LongKind, VERSION};
use bats_proto::wire::message::{self, MessageFrame};
use bats_proto::wire::no_route::NoRoute;
use bats_proto::wire::rank::{MAX_RANK_ENTRIES, RankEntry, RankFeedback};
use bats_proto::wire::short_header::{PacketKind, SHORT_HEADER_LEN, ShortHeader};
use bats_proto::wire::varint::{Reader, Writer};
use bats_proto::{
    ClientConfig, Endpoint, EndpointConfig, Output, PeerTrust, PresharedKey, Timestamp,
    TransportConfig,
};
use bytes::Bytes;

const DOCUMENT: &str = concat!(
    include_str!("../../../docs/spec/README.md"),
    include_str!("../../../docs/spec/acknowledgements.md"),
    include_str!("../../../docs/spec/blocks.md"),
    include_str!("../../../docs/spec/channels.md"),
    include_str!("../../../docs/spec/coding.md"),
    include_str!("../../../docs/spec/early-data.md"),
    include_str!("../../../docs/spec/errors.md"),
    include_str!("../../../docs/spec/feedback.md"),
    include_str!("../../../docs/spec/groups.md"),
    include_str!("../../../docs/spec/handshake.md"),
    include_str!("../../../docs/spec/keys.md"),
    include_str!("../../../docs/spec/messages.md"),
    include_str!("../../../docs/spec/packets.md"),
    include_str!("../../../docs/spec/parameters.md"),
    include_str!("../../../docs/spec/psk.md"),
    include_str!("../../../docs/spec/relaying.md"),
    include_str!("../../../docs/spec/simulation.md"),
    include_str!("../../../docs/spec/streams.md"),
);

/// The lines of a fenced block.
fn block(kind: &str, name: &str) -> Vec<&'static str> {
    let fence = format!("```{kind} {name}");
    let mut lines = DOCUMENT.lines().skip_while(|line| *line != fence);
    assert!(lines.next().is_some(), "the document has no block {fence}");
    lines.take_while(|line| *line != "```").collect()
}

/// The bytes of an example: hexadecimal pairs up to the first word that is not one.
fn bytes(name: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for line in block("octets", name) {
        let pairs = line.split(' ').take_while(|word| word.len() == 2);
        all.extend(pairs.map_while(|pair| u8::from_str_radix(pair, 16).ok()));
    }
    assert!(!all.is_empty(), "{name} has no bytes");
    all
}

/// Name and width in bits of the fields of a diagram, in order. Fields that end with dots have no
/// width.
fn fields(name: &str) -> Vec<(String, Option<usize>)> {
    let mut fields = Vec::new();
    for line in block("diagram", name).into_iter().filter(|line| line.starts_with('|')) {
        let closed = line.ends_with('|');
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        for (index, cell) in cells.iter().enumerate() {
            let open = !closed && index + 1 == cells.len();
            assert_eq!(open, cell.ends_with("..."), "{name}: {line}");
            let bits = (!open).then(|| cell.len().div_ceil(2));
            fields.push((cell.trim().trim_end_matches("...").trim().to_owned(), bits));
        }
    }
    fields
}

/// The content of a field: a number in the diagram's width, or bytes.
enum Value<'a> {
    Bits(u64),
    Bytes(&'a [u8]),
}

/// Packs the values into the bytes of the diagram, in this order. `0` and `1` are constants.
fn pack(name: &str, values: &[(&str, Value<'_>)]) -> Vec<u8> {
    let (mut bits, mut values) = (Vec::new(), values.iter());
    for (field, width) in fields(name) {
        if let (Ok(constant @ 0..=1), Some(1)) = (field.parse::<u8>(), width) {
            bits.push(constant == 1);
            continue;
        }
        let (given, value) = values.next().unwrap_or_else(|| panic!("{name} has {field}, too"));
        assert_eq!(field, *given, "{name}");
        match (value, width) {
            (Value::Bits(value), Some(width)) => {
                assert!(width == 64 || value >> width == 0, "{name}: {field} is too large");
                bits.extend((0..width).rev().map(|bit| value >> bit & 1 == 1));
            }
            (Value::Bytes(bytes), None) => {
                bits.extend(
                    bytes.iter().flat_map(|o| (0..8).rev().map(move |bit| o >> bit & 1 == 1)),
                );
            }
            _ => panic!("{name}: {field} is of another kind"),
        }
    }
    assert!(values.next().is_none(), "{name} has fewer fields");
    assert_eq!(bits.len() % 8, 0, "{name} ends within a byte");
    bits.chunks(8).map(|byte| byte.iter().fold(0, |sum, &bit| sum << 1 | u8::from(bit))).collect()
}

fn written(write: impl FnOnce(&mut Writer<'_>) -> Option<()>) -> Vec<u8> {
    let mut buffer = vec![0; 1_472];
    let mut writer = Writer::new(&mut buffer);
    write(&mut writer).expect("room");
    let len = writer.written();
    buffer.truncate(len);
    buffer
}

#[test]
fn hop_header_matches_the_diagram() {
    for (kind, bits) in [
        (PacketKind::Control, 0),
        (PacketKind::Source, 1),
        (PacketKind::Repair, 2),
        (PacketKind::Recoded, 3),
    ] {
        let header = ShortHeader {
            kind,
            relayed: false,
            key_phase: true,
            destination: [1, 2, 3, 4],
            packet_number: 0x5566_7788,
        };
        let mut made = [0; SHORT_HEADER_LEN];
        header.encode(0x40, &mut made);
        let drawn = pack(
            "hop-header",
            &[
                ("G", Value::Bits(2)),
                ("R", Value::Bits(0)),
                ("K", Value::Bits(bits)),
                ("P", Value::Bits(1)),
                ("Destination connection ID", Value::Bits(0x0102_0304)),
                ("Packet number", Value::Bits(0x5566_7788)),
                ("Payload", Value::Bytes(&[])),
            ],
        );
        assert_eq!(made.as_slice(), drawn);
        assert_eq!(ShortHeader::decode(&drawn), Some(header));
    }
    for (r, relayed) in [(1, Some(true)), (2, None), (3, None)] {
        let bytes = [r << 3, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(ShortHeader::decode(&bytes).map(|header| header.relayed), relayed);
    }
}

#[test]
fn flow_header_matches_the_diagram() {
    let key = FlowKey { destination: NodeId(0x0102_0304), source: NodeId(9), flow: 0xf00d };
    let header = FlowHeader { key, hop_limit: 63 };
    let drawn = pack(
        "flow-header",
        &[
            ("Destination node", Value::Bits(0x0102_0304)),
            ("Source node", Value::Bits(9)),
            ("Flow ID", Value::Bits(0xf00d)),
            ("Hop limit", Value::Bits(63)),
            ("Payload", Value::Bytes(&[])),
        ],
    );
    assert_eq!(drawn.len(), FLOW_HEADER_LEN);
    assert_eq!(written(|writer| header.encode(writer)), drawn);
    assert_eq!(FlowHeader::decode(&mut Reader::new(&drawn)), Some(header));
}

#[test]
fn coding_headers_match_the_diagrams() {
    let symbol = 0x12345 * 16 + 7;
    let drawn = pack(
        "source-header",
        &[("BID", Value::Bits(0x12345)), ("index", Value::Bits(7)), ("Symbol", Value::Bytes(&[]))],
    );
    assert_eq!(written(|writer| SourceHeader::new(symbol).encode(writer)), drawn);
    let read = SourceHeader::decode(&mut Reader::new(&drawn)).expect("a header");
    assert_eq!(read.number(symbol), symbol);

    let repair = RepairHeader { batch: 0xabcdef, column: 15, first: 0x0102_0304, count: 256 };
    let drawn = pack(
        "repair-header",
        &[
            ("BID", Value::Bits(0xabcdef)),
            ("column", Value::Bits(15)),
            ("First symbol of the window", Value::Bits(0x0102_0304)),
            ("Symbols of the window", Value::Bits(256)),
            ("Coded symbol", Value::Bytes(&[])),
        ],
    );
    assert_eq!(written(|writer| repair.encode(writer)), drawn);
    assert_eq!(RepairHeader::decode(&mut Reader::new(&drawn)), Some(repair));

    let block = RatelessHeader {
        sequence: 0x0102_0304,
        block: 0x0506_0708,
        source_packets: 512,
        packet_size: 1_403,
        batch: 0xabcdef,
    };
    let drawn = pack(
        "block-header",
        &[
            ("Packet sequence number", Value::Bits(0x0102_0304)),
            ("Block number", Value::Bits(0x0506_0708)),
            ("K", Value::Bits(512)),
            ("T", Value::Bits(1_403)),
            ("BID", Value::Bits(0xabcdef)),
            ("Coefficient vector", Value::Bytes(&[])),
        ],
    );
    assert_eq!(written(|writer| block.encode(writer)), drawn);
    assert_eq!(RatelessHeader::decode(&mut Reader::new(&drawn)), Ok(block));

    let vector = core::array::from_fn(|i| 17 * i as u8);
    let recoded = CodingHeader::RecodedSource { batch: 0x123456, vector };
    let drawn = pack(
        "recoded-source-header",
        &[
            ("BID", Value::Bits(0x123456)),
            ("1 = S-batch", Value::Bits(1)),
            ("Vector", Value::Bytes(&vector)),
        ],
    );
    assert_eq!(written(|writer| recoded.encode(writer)), drawn);
    let read = CodingHeader::decode(PacketKind::Recoded, &mut Reader::new(&drawn));
    assert_eq!(read, Some(recoded));
}

#[test]
fn long_header_matches_the_diagram() {
    let payload = [0; 32];
    let drawn = pack(
        "long-header",
        &[
            ("T", Value::Bits(0)),
            ("G", Value::Bits(5)),
            ("Version", Value::Bits(u64::from(VERSION))),
            ("DCID length", Value::Bits(8)),
            ("DCID", Value::Bytes(b"original")),
            ("SCID length", Value::Bits(4)),
            ("SCID", Value::Bytes(b"mine")),
            ("Token length", Value::Bits(5)),
            ("Token (Initial only)", Value::Bytes(b"token")),
            ("Length", Value::Bits(4 + 16 + 16)),
            ("Packet number", Value::Bits(9)),
            ("Payload", Value::Bytes(&payload)),
        ],
    );
    let before_number = written(|writer| {
        long_header::encode(writer, LongKind::Initial, b"original", b"mine", b"token", 16, 5)
    });
    assert_eq!(drawn[..before_number.len()], before_number);
    let read = long_header::decode(&drawn).expect("a header");
    assert_eq!(
        (read.destination, read.source, read.token),
        (&b"original"[..], &b"mine"[..], &b"token"[..])
    );
    assert_eq!(
        (read.kind, read.number_at, read.packet_len),
        (LongKind::Initial, before_number.len(), drawn.len())
    );
}

#[test]
fn early_data_header_matches_the_diagram() {
    let payload = [bytes("early"), vec![0; 16]].concat();
    let drawn = pack(
        "early-header",
        &[
            ("T", Value::Bits(3)),
            ("G", Value::Bits(9)),
            ("Version", Value::Bits(u64::from(VERSION))),
            ("DCID length", Value::Bits(8)),
            ("DCID", Value::Bytes(b"original")),
            ("SCID length", Value::Bits(4)),
            ("SCID", Value::Bytes(b"mine")),
            ("Length", Value::Bits(4 + payload.len() as u64)),
            ("Packet number", Value::Bits(2)),
            ("Message frames", Value::Bytes(&payload)),
        ],
    );
    let len = payload.len() - 16;
    let before_number = written(|writer| {
        long_header::encode(writer, LongKind::Early, b"original", b"mine", &[], len, 9)
    });
    assert_eq!(drawn[..before_number.len()], before_number);
    let read = long_header::decode(&drawn).expect("a header");
    assert_eq!((read.kind, read.packet_len), (LongKind::Early, drawn.len()));
    assert_eq!((read.token, read.number_at), (&[][..], before_number.len()));

    let frame = message::decode(&mut Reader::new(&payload)).unwrap();
    let expected = MessageFrame::Datagram { id: 0, total: 5, offset: 0, data: b"hello" };
    assert_eq!(frame, Some(expected));
    let mut queue = DatagramQueue::default();
    queue.push(Bytes::from_static(b"hello"), Timestamp::from_millis(1));
    let mut symbol = [0; 100];
    let (written, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
    assert_eq!(symbol[..written], payload[..len]);
}

/// The first flight of a client in PSK mode.
fn psk_flight(key: [u8; 32]) -> Vec<u8> {
    let mut client = Endpoint::new(EndpointConfig::default(), [1; 32]).unwrap();
    let transport =
        TransportConfig { psk: Some(PresharedKey::new(key)), ..TransportConfig::default() };
    let config = ClientConfig {
        trust: PeerTrust::DangerousAcceptAny,
        identity: None,
        transport: transport.into(),
    };
    let (now, to) = (Timestamp::from_millis(1), ([192, 0, 2, 1], 1).into());
    client.connect(now, to, "server.example", config).unwrap();
    let mut buffer = Vec::with_capacity(65_536);
    let Output::Transmit(transmit) = client.poll(now, &mut buffer) else { panic!("a flight") };
    buffer.truncate(transmit.segment_size);
    buffer
}

/// An implementation of the document, independent of the code, opens what the code has sealed.
#[test]
fn psk_mode_matches_the_document() {
    const PREFIX: &str = "openbats 2026-11 closed mode, ";
    let derived = |use_of_it: &str| {
        let context = format!("{PREFIX}{use_of_it}");
        assert!(DOCUMENT.contains(&format!("| `{context}` |")), "{context}");
        blake3::derive_key(&context, &[1; 32])
    };
    let proof = |destination: &[u8], source: &[u8]| {
        let message = [&VERSION.to_be_bytes()[..], destination, source].concat();
        let key = derived("proof of a first flight");
        blake3::keyed_hash(&key, &message).as_bytes()[..16].to_vec()
    };
    let material = |destination: &[u8], source: &[u8], salt: &[u8]| {
        let message = [destination, source, salt].concat();
        *blake3::keyed_hash(&derived("keys of the first level"), &message).as_bytes()
    };
    let example = bytes("psk");
    let (destination, source) = (&example[..8], &example[8..12]);
    let clients = material(destination, source, &[]);
    let servers = material(destination, source, &[2; 16]);
    let made = [destination, source, &proof(destination, source), &clients, &servers].concat();
    assert_eq!(example, made, "{made:02x?}");

    let mut flight = psk_flight([1; 32]);
    let header = long_header::decode(&flight).unwrap();
    assert_eq!(header.token, proof(header.destination, header.source));
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().and_then(|suite| suite.quic_suite()).unwrap();
    let material = material(header.destination, header.source, &[]);
    let keys = suite.keys(&material, rustls::Side::Server, rustls::quic::Version::V1).remote;
    let (at, len) = (header.number_at, header.packet_len);
    let (head, sealed) = flight[..len].split_at_mut(at + 4);
    // The library masks as many bytes as the lowest bits of the first one say: all of them.
    let (mut first, mut number) = (0x03, [0; 4]);
    keys.header.encrypt_in_place(&sealed[..16], &mut first, &mut number).unwrap();
    head[0] ^= (first ^ 0x03) & 0x0f;
    head[at..].iter_mut().zip(number).for_each(|(byte, mask)| *byte ^= mask);
    assert!(keys.packet.decrypt_in_place(0, head, sealed).is_ok(), "the packet decrypts");
}

#[test]
fn frames_match_the_examples() {
    let ack = AckHeader {
        largest: 9,
        delay: Duration::from_millis(3),
        received_at: Timestamp::from_millis(1_000),
        ce_count: 0,
    };
    let acked = vec![(5, 9), (2, 2)];
    let rank = RankFeedback {
        decoded_below: 100,
        seen_end: 164,
        repair_seen: Some(33),
        coded: 150,
        wasted: 1,
        entries: vec![RankEntry { first: 110, span: 20, missing: 4 }],
    };
    let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 7 };
    let ranks = vec![16, 14, 16, 16, 3];
    let batch_rank =
        BatchRank { key, space: Space::Source, mark: 300, room: 600, first: 20, ranks };
    let batch_rank = Frame::BatchRank(batch_rank);
    let close = Frame::Close { application: true, code: 7, reason: "bye" };

    assert_eq!(written(|writer| frame::encode_ack(writer, &ack, &acked)), bytes("ack"));
    for (name, frame) in [
        ("ack", Frame::Ack(ack)),
        ("rank", Frame::Rank(rank)),
        ("batch-rank", batch_rank),
        ("close", close),
    ] {
        let example = bytes(name);
        if name != "ack" {
            assert_eq!(written(|writer| frame::encode(writer, &frame)), example, "{name}");
        }
        let mut ranges = Vec::new();
        let mut reader = Reader::new(&example);
        assert_eq!(frame::decode(&mut reader, &mut ranges), Ok(Some(frame)), "{name}");
        assert!(reader.is_empty(), "{name}");
        assert_eq!(ranges, if name == "ack" { acked.clone() } else { Vec::new() }, "{name}");
    }
}

#[test]
fn message_frames_match_the_example() {
    let example = bytes("message");
    let mut queue = SendQueue::new();
    queue.push(Bytes::from_static(b"hello"));
    queue.finish();
    let mut symbol = vec![0; example.len()];
    assert_eq!(queue.fill_symbol(&mut symbol), example.len());
    assert_eq!(symbol, example);

    let mut reassembly = Reassembly::new(1_000);
    reassembly.feed(&example).expect("frames");
    assert_eq!(reassembly.pop().as_deref(), Some(&b"hello"[..]));
    assert!(reassembly.is_finished());
}

#[test]
fn datagram_frame_matches_the_example() {
    let example = bytes("datagram");
    let frame = message::decode(&mut Reader::new(&example)).unwrap();
    let expected = MessageFrame::Datagram { id: 7, total: 5, offset: 3, data: b"lo" };
    assert_eq!(frame, Some(expected));
    let mut queue = DatagramQueue::default();
    let mut symbol = [0; 24];
    for number in 0..8 {
        let expires = Timestamp::from_millis(1);
        queue.push(if number < 7 { Bytes::new() } else { Bytes::from_static(b"hello") }, expires);
    }
    // After seven empty messages of five bytes there is no room for the beginning of the eighth.
    let (len, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
    assert_eq!(len, 20);
    let (len, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
    assert_eq!(len, 15);
    let (len, _) = queue.fill_symbol(Timestamp::ZERO, &mut symbol);
    assert_eq!(&symbol[..len], [&[4, 7, 5, 0, 5][..], b"hello"].concat());
}

/// Checks the numbers that the document states.
#[test]
fn documented_limits_match_the_code() {
    for phrase in [
        format!("Version `{VERSION:#010x}`"),
        format!("at most {MAX_RANK_ENTRIES};"),
        format!("at most {} octets", frame::MAX_CLOSE_TEXT),
        format!("at most {} ranges", frame::MAX_ACK_RANGES),
        format!("at most {} frames", frame::MAX_FRAMES),
        "batches reported, at most 4,096".to_owned(),
    ] {
        assert!(DOCUMENT.contains(&phrase), "{phrase}");
    }
    assert_eq!(MAX_BATCHES, 4_096);
}

#[test]
fn no_route_packet_matches_the_example() {
    let example = bytes("no-route");
    let packet = NoRoute { destination: NodeId(9), quoted: &[9; 3] };
    assert_eq!(packet.encode(), example);
    assert_eq!(NoRoute::decode(&example), Some(packet));
}

#[test]
fn flow_header_of_a_direct_session_matches_the_example() {
    let example = bytes("direct-flow");
    let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: DIRECT_FLOW | 7 };
    let header = FlowHeader { key, hop_limit: 0 };
    assert_eq!(written(|writer| header.encode(writer)), example);
    assert_eq!(FlowHeader::decode(&mut Reader::new(&example)), Some(header));
    assert!(key.is_direct());
}

#[test]
fn announcement_matches_the_example() {
    let example = bytes("announcement");
    let header = AnnouncementHeader { salt: [7; 16], number: 5 };
    let fields = Announcement {
        instance: 1,
        code_seed: 9,
        max_symbol_size: 1_472,
        first_symbol: 100,
        first_message: 50,
        is_end: false,
    };
    assert_eq!([header.encode(), fields.encode()].concat(), example);
    let (read, _, rest) = AnnouncementHeader::decode(&example).unwrap();
    assert_eq!((read, Announcement::decode(rest)), (header, Some(fields)));
}

#[test]
fn channel_frames_match_the_examples() {
    let read = |name| {
        let example = bytes(name);
        let mut reader = Reader::new(&example);
        let mut frames = Vec::new();
        while let Some(MessageFrame::Channel(frame)) = message::decode(&mut reader).unwrap() {
            let encoded = written(|writer| channel::encode(writer, &frame));
            assert_eq!(
                message::decode(&mut Reader::new(&encoded)),
                Ok(Some(MessageFrame::Channel(frame)))
            );
            frames.push(format!("{frame:?}"));
        }
        frames
    };
    let text = |frames: &[ChannelFrame<'_>]| -> Vec<String> {
        frames.iter().map(|frame| format!("{frame:?}")).collect()
    };
    let data = [
        ChannelFrame::Data { id: 2, offset: 300, data: b"hi", end: false },
        ChannelFrame::Data { id: 2, offset: 302, data: b"", end: true },
    ];
    assert_eq!(read("channel"), text(&data));
    let control = [
        ChannelFrame::Reset { id: 1, code: 9, size: 5 },
        ChannelFrame::Stop { id: 1, code: 9 },
        ChannelFrame::Credit { id: 0, bytes: 63 },
        ChannelFrame::SessionCredit(64),
        ChannelFrame::Channels(3),
    ];
    assert_eq!(read("channel-control"), text(&control));
}
