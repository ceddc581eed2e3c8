//! Packets under the keys of the stand-in, which follow from nothing secret: what a peer that
//! lies would send.

use core::net::SocketAddr;

use crate::crypto::{Keys, TAG_LEN, plain_keys};
use crate::wire::long_header::{self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN};
use crate::wire::short_header::{PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader};
use crate::wire::varint::Writer;

/// Bytes of the stand-in's first message and of its last one.
const CLIENT_HELLO: usize = 280;
const FINISHED: usize = 36;
/// Type of a CRYPTO frame of the handshake.
const CRYPTO: u8 = 1;

/// Keys of a generation of data packets.
fn data_keys(generation: u64, is_client: bool) -> Keys {
    // Generation 0 ends the handshake, the others are key updates.
    plain_keys(if generation == 0 { 3 } else { 8 + generation }, is_client)
}

/// A data packet of a client or a server with the payload of one's choice.
pub fn seal_short(
    from_client: bool,
    generation: u64,
    kind: PacketKind,
    destination: [u8; CID_LEN],
    pn: u64,
    payload: &[u8],
) -> Vec<u8> {
    let key_phase = generation & 1 == 1;
    let packet_number = pn as u32;
    let header = ShortHeader { kind, carried: false, key_phase, destination, packet_number };
    seal_as(from_client, generation, header, payload)
}

/// A data packet with the header and the payload of one's choice.
pub fn seal_as(from_client: bool, generation: u64, header: ShortHeader, payload: &[u8]) -> Vec<u8> {
    let pn = u64::from(header.packet_number);
    let mut bytes = [0; SHORT_HEADER_LEN];
    header.encode(0, &mut bytes);
    let mut sealed = payload.to_vec();
    sealed.resize(payload.len() + TAG_LEN, 0);
    let keys = data_keys(generation, from_client);
    keys.local.packet.seal_in_place(pn, &bytes, &mut sealed, payload.len());
    [&bytes, &sealed[..]].concat()
}

/// Header and payload of a data packet that a client or a server sent.
pub fn open_short(
    from_client: bool,
    generation: u64,
    datagram: &[u8],
) -> Option<(ShortHeader, Vec<u8>)> {
    if datagram.len() < SHORT_OVERHEAD {
        return None;
    }
    let header = ShortHeader::decode(datagram)?;
    let (associated, sealed) = datagram.split_at(SHORT_HEADER_LEN);
    let mut sealed = sealed.to_vec();
    let keys = data_keys(generation, !from_client);
    let pn = u64::from(header.packet_number);
    let len = keys.remote.packet.open_in_place(pn, associated, &mut sealed)?;
    sealed.truncate(len);
    Some((header, sealed))
}

/// A handshake packet of a client or a server with the payload of one's choice.
pub fn seal_long(
    from_client: bool,
    kind: LongKind,
    destination: &[u8],
    source: &[u8],
    token: &[u8],
    pn: u32,
    payload: &[u8],
) -> Vec<u8> {
    let label = if kind == LongKind::Initial { 1 } else { 2 };
    let mut packet = vec![0; 128 + token.len() + payload.len()];
    let mut writer = Writer::new(&mut packet);
    let fits = long_header::encode(&mut writer, kind, destination, source, token, payload.len(), 0)
        .and_then(|()| writer.u32(pn))
        .map(|()| writer.written())
        .filter(|_| writer.bytes(payload).is_some());
    let Some(header_len) = fits else { return Vec::new() };
    packet.truncate(header_len + payload.len() + TAG_LEN);
    let (header, sealed) = packet.split_at_mut(header_len);
    let keys = plain_keys(label, from_client);
    keys.local.packet.seal_in_place(u64::from(pn), header, sealed, payload.len());
    packet
}

fn crypto_frame(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 32 + data.len()];
    let mut writer = Writer::new(&mut frame);
    let written = writer
        .u8(CRYPTO)
        .and_then(|()| writer.varint(offset))
        .and_then(|()| writer.varint(data.len() as u64))
        .and_then(|()| writer.bytes(data));
    let len = if written.is_some() { writer.written() } else { 0 };
    frame.truncate(len);
    frame
}

/// A client without a protocol behind it: it shakes hands and then says what it is told to.
#[derive(Clone, Debug)]
pub struct LyingClient {
    cid: [u8; CID_LEN],
    original: [u8; ORIGINAL_CID_LEN],
    server_cid: Option<[u8; CID_LEN]>,
    next_pn: u64,
    /// Largest packet number of the server.
    pub largest_seen: Option<u64>,
}

impl LyingClient {
    /// A client that invents connection IDs from a number.
    pub fn new(number: u32) -> Self {
        let cid = number.to_be_bytes();
        let mut original = [0xaa; ORIGINAL_CID_LEN];
        original[..CID_LEN].copy_from_slice(&cid);
        Self { cid, original, server_cid: None, next_pn: 0, largest_seen: None }
    }

    /// Its connection ID.
    pub fn cid(&self) -> [u8; CID_LEN] {
        self.cid
    }

    /// The first flight, with the parameters of one's choice; as bytes, they may be malformed.
    pub fn first_flight(&self, parameters: &[u8], token: &[u8]) -> Vec<u8> {
        let mut hello = (parameters.len() as u16).to_be_bytes().to_vec();
        hello.extend_from_slice(parameters);
        hello.resize(CLIENT_HELLO, 0);
        let frame = crypto_frame(0, &hello);
        let mut datagram =
            seal_long(true, LongKind::Initial, &self.original, &self.cid, token, 0, &frame);
        datagram.resize(datagram.len().max(MIN_INITIAL_DATAGRAM), 0);
        datagram
    }

    /// Looks at what the server sent: its connection ID, and which packets there are.
    pub fn learn(&mut self, datagram: &[u8]) {
        if let Some(header) = long_header::decode(datagram) {
            self.server_cid = self.server_cid.or(header.source.try_into().ok());
        } else if let Some(header) = ShortHeader::decode(datagram) {
            self.largest_seen = self.largest_seen.max(Some(u64::from(header.packet_number)));
        }
    }

    /// Whether the server has said anything.
    pub fn has_heard(&self) -> bool {
        self.server_cid.is_some() || self.largest_seen.is_some()
    }

    /// The end of the handshake. `None` before the server has answered.
    pub fn finished(&self) -> Option<Vec<u8>> {
        let frame = crypto_frame(0, &[1; FINISHED]);
        let to = self.server_cid?;
        Some(seal_long(true, LongKind::Handshake, &to, &self.cid, &[], 0, &frame))
    }

    /// The next data packet. `None` before the server has answered.
    pub fn packet(&mut self, kind: PacketKind, payload: &[u8]) -> Option<Vec<u8>> {
        let to = self.server_cid?;
        self.next_pn += 1;
        Some(seal_short(true, 0, kind, to, self.next_pn - 1, payload))
    }

    /// Leaves out packet numbers.
    pub fn skip(&mut self, numbers: u64) {
        self.next_pn = self.next_pn.saturating_add(numbers).min(1 << 60);
    }

    /// An address for the client of a number.
    pub fn address(number: u32) -> SocketAddr {
        let [a, b, c, d] = number.to_be_bytes();
        SocketAddr::from(([10, b, c, d], 1_024 + u16::from(a)))
    }
}
