//! What the parsers of `bats-proto` find in packets of the stand-in for TLS, as text: a line for
//! each datagram. The decoder prints the same lines.

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::path::Path;

use bats_proto::flow::RatelessHeader;
use bats_proto::wire::channel::ChannelFrame;
use bats_proto::wire::coding::CodingHeader;
use bats_proto::wire::flow::FlowHeader;
use bats_proto::wire::frame::{self, Frame};
use bats_proto::wire::long_header::{self, LongKind, VERSION};
use bats_proto::wire::message::{self, MessageFrame};
use bats_proto::wire::short_header::{
    PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader, TAG_LEN,
};
use bats_proto::wire::varint::Reader;
use pcap_file::pcapng::{Block, PcapNgReader};

/// Bytes of Ethernet, IPv4 and UDP headers.
const HEADERS: usize = 14 + 20 + 8;

/// The lines of all datagrams of a capture.
pub(crate) fn describe_capture(path: &Path) -> Vec<String> {
    let mut reader = PcapNgReader::new(File::open(path).unwrap()).unwrap();
    let mut lines = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.unwrap() {
            let mut line = Line::default();
            line.datagram(&packet.data[HEADERS..]);
            lines.push(line.0);
        }
    }
    lines
}

fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "-".to_owned();
    }
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[derive(Default)]
struct Line(String);

impl Line {
    fn add(&mut self, word: impl Display) {
        if !self.0.is_empty() {
            self.0.push(' ');
        }
        write!(self.0, "{word}").unwrap();
    }

    fn all(&mut self, words: &[&dyn Display]) {
        words.iter().for_each(|word| self.add(word));
    }

    fn datagram(&mut self, datagram: &[u8]) {
        if datagram.first().is_some_and(|first| first & 0x80 != 0) {
            self.long(datagram);
        } else {
            self.short(datagram);
        }
    }

    fn long(&mut self, datagram: &[u8]) {
        let mut rest = datagram;
        while let Some(header) = long_header::decode(rest) {
            let ids = [hex(header.destination), hex(header.source), hex(header.token)];
            let word = match (header.version, header.kind) {
                (0, _) => "negotiation",
                (VERSION, LongKind::Retry) => "retry",
                (VERSION, LongKind::Initial) => "initial",
                (VERSION, LongKind::Handshake) => "handshake",
                (VERSION, LongKind::Early) => "early",
                _ => "unknown-version",
            };
            self.all(&[&word, &ids[0], &ids[1], &ids[2]]);
            if header.number_at == rest.len() {
                return;
            }
            let number = Reader::new(&rest[header.number_at..]).u32().unwrap();
            self.all(&[&number, &(header.packet_len - header.number_at - 4 - TAG_LEN)]);
            rest = &rest[header.packet_len..];
        }
    }

    fn short(&mut self, datagram: &[u8]) {
        let header = ShortHeader::decode(datagram).filter(|_| datagram.len() >= SHORT_OVERHEAD);
        let Some(header) = header else { return self.add("invalid") };
        let payload = &datagram[SHORT_HEADER_LEN..datagram.len() - TAG_LEN];
        let phase = u8::from(header.key_phase);
        self.all(&[&"short", &hex(&header.destination), &header.packet_number, &phase]);
        match (header.kind, header.relayed) {
            (PacketKind::Control, false) => self.frames(payload),
            (kind, false) => self.coded(kind, payload, false),
            (kind, true) => {
                let mut reader = Reader::new(payload);
                let Some(flow) = FlowHeader::decode(&mut reader) else {
                    return self.add("malformed");
                };
                let key = flow.key;
                let nodes = (key.destination.0, key.source.0);
                self.all(&[&"relayed", &nodes.0, &nodes.1, &key.flow, &flow.hop_limit]);
                match kind {
                    PacketKind::Control => self.datagram(reader.rest()),
                    kind => self.coded(kind, reader.rest(), true),
                }
            }
        }
    }

    fn coded(&mut self, kind: PacketKind, payload: &[u8], relayed: bool) {
        let mut reader = Reader::new(payload);
        let header = CodingHeader::decode(kind, &mut reader);
        let is_coded = header.is_some();
        match header {
            Some(CodingHeader::Source(header)) => {
                self.all(&[&"source", &header.symbol]);
                return self.symbol(reader.rest(), relayed);
            }
            Some(CodingHeader::Repair(header)) => {
                self.all(&[&"repair", &header.batch, &header.column, &header.first, &header.count]);
            }
            Some(CodingHeader::RecodedSource { batch, vector }) => {
                self.all(&[&"recoded-source", &batch, &hex(&vector)]);
            }
            Some(CodingHeader::RecodedRepair { header, vector }) => {
                let fields: [&dyn Display; 5] =
                    [&"recoded-repair", &header.batch, &header.first, &header.count, &hex(&vector)];
                self.all(&fields);
            }
            None => self.add("malformed"),
        }
        if is_coded {
            self.add(reader.remaining());
        }
        // Whether the packet is one of a block depends on the mode of the connection.
        if kind == PacketKind::Repair && !relayed {
            let mut reader = Reader::new(payload);
            match RatelessHeader::decode(&mut reader) {
                Ok(header) => {
                    let sizes = (header.source_packets, header.packet_size);
                    let fields: [&dyn Display; 6] = [
                        &"block",
                        &header.sequence,
                        &header.block,
                        &sizes.0,
                        &sizes.1,
                        &header.batch,
                    ];
                    self.all(&fields);
                }
                Err(_) => self.add("no-block"),
            }
        }
    }

    fn symbol(&mut self, symbol: &[u8], sealed: bool) {
        let mut reader = Reader::new(symbol);
        let content = if sealed {
            let len = usize::from(reader.u16().unwrap_or_default());
            self.all(&[&"sealed", &len]);
            let rest = reader.rest();
            &rest[..rest.len().min(len)]
        } else {
            symbol
        };
        let mut reader = Reader::new(content);
        loop {
            match message::decode(&mut reader) {
                Ok(Some(MessageFrame::Message { total, data })) => {
                    self.all(&[&"message", &total, &data.len()]);
                }
                Ok(Some(MessageFrame::Continuation(data))) => {
                    self.all(&[&"continuation", &data.len()]);
                }
                Ok(Some(MessageFrame::Fin)) => self.add("fin"),
                Ok(Some(MessageFrame::Datagram { id, total, offset, data })) => {
                    self.all(&[&"datagram", &id, &total, &offset, &data.len()]);
                }
                Ok(Some(MessageFrame::Channel(frame))) => self.channel(&frame),
                Ok(None) => return,
                Err(_) => return self.add("malformed"),
            }
        }
    }

    fn channel(&mut self, frame: &ChannelFrame<'_>) {
        match frame {
            ChannelFrame::Data { id, offset, data, end } => {
                let name = if *end { "channel-end" } else { "channel" };
                self.all(&[&name, id, offset, &data.len()]);
            }
            ChannelFrame::Reset { id, code, size } => {
                self.all(&[&"channel-reset", id, code, size]);
            }
            ChannelFrame::Stop { id, code } => self.all(&[&"channel-stop", id, code]),
            ChannelFrame::Credit { id, bytes } => self.all(&[&"channel-credit", id, bytes]),
            ChannelFrame::SessionCredit(bytes) => self.all(&[&"session-credit", bytes]),
            ChannelFrame::Channels(channels) => self.all(&[&"channels", channels]),
        }
    }

    fn frames(&mut self, payload: &[u8]) {
        let mut reader = Reader::new(payload);
        let mut ranges = Vec::new();
        loop {
            match frame::decode(&mut reader, &mut ranges) {
                Ok(Some(frame)) => self.frame(&frame, &ranges),
                Ok(None) => return,
                Err(_) => return self.add("malformed"),
            }
        }
    }

    fn frame(&mut self, frame: &Frame<'_>, ranges: &[(u64, u64)]) {
        match frame {
            Frame::Ping => self.add("ping"),
            Frame::Ack(ack) => {
                let times = (ack.delay.as_micros(), ack.received_at.as_micros());
                self.all(&[&"ack", &ack.largest, &times.0, &times.1, &ack.ce_count]);
                ranges.iter().for_each(|(first, last)| self.add(format!("{first}-{last}")));
            }
            Frame::Rank(rank) => {
                let repair = rank.repair_seen.map_or("-".to_owned(), |seen| seen.to_string());
                self.all(&[&"rank", &rank.decoded_below, &rank.seen_end, &repair]);
                self.all(&[&rank.coded, &rank.wasted]);
                for entry in &rank.entries {
                    self.add(format!("{}+{}:{}", entry.first, entry.span, entry.missing));
                }
            }
            Frame::BatchRank(report) => {
                let key = report.key;
                self.all(&[&"batch-rank", &key.destination.0, &key.source.0, &key.flow]);
                self.all(&[&(report.space as u8), &report.mark, &report.room]);
                self.all(&[&report.first, &hex(&report.ranks)]);
            }
            Frame::Credit(symbols) => self.all(&[&"credit", symbols]),
            Frame::HandshakeDone => self.add("handshake-done"),
            Frame::Crypto { offset, data } => self.all(&[&"crypto", offset, &data.len()]),
            Frame::Close { application, code, reason } => {
                self.all(&[&"close", &u8::from(*application), code, &hex(reason.as_bytes())]);
            }
            Frame::PathChallenge(number) => {
                self.all(&[&"path-challenge", &format!("{number:016x}")]);
            }
            Frame::PathResponse(number) => {
                self.all(&[&"path-response", &format!("{number:016x}")]);
            }
            Frame::End { symbols, messages } => self.all(&[&"end", symbols, messages]),
            Frame::SymbolPolluted(number) => self.all(&[&"symbol-polluted", number]),
            Frame::Fragment { id, index, kind, relayed, last, data } => {
                let flags = (u8::from(*relayed), u8::from(*last));
                let kind = *kind as u8;
                self.all(&[&"fragment", id, index, &kind, &flags.0, &flags.1, &data.len()]);
            }
        }
    }
}
