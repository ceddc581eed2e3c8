//! Packets sealed with the keys of the plain-text TLS stand-in, which are not secret: what a
//! misbehaving peer would send.

use core::net::SocketAddr;

use crate::config::Security;
use crate::crypto::{InitialSecrets, Keys, TAG_LEN, initial_keys, plain_keys};
use crate::handshake::PacketHeader;
use crate::wire::long_header::{self, CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN};
use crate::wire::short_header::{PacketKind, SHORT_HEADER_LEN, SHORT_OVERHEAD, ShortHeader};
use crate::wire::varint::Writer;

/// Length in bytes of the stand-in's ClientHello and of its Finished.
const CLIENT_HELLO: usize = 280;
const FINISHED: usize = 36;
/// Frame type of a CRYPTO frame in the handshake.
const CRYPTO: u8 = 1;

/// Keys of data packets after `generation` key updates.
fn data_keys(generation: u64, is_client: bool) -> Keys {
    // Generation 0 comes from the handshake, the others from key updates.
    plain_keys(if generation == 0 { 3 } else { 8 + generation }, is_client)
}

/// A sealed data packet of a client or a server with an arbitrary payload.
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
    let header = ShortHeader { kind, relayed: false, key_phase, destination, packet_number };
    seal_as(from_client, generation, header, payload)
}

/// A sealed data packet with an arbitrary header and payload.
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

/// Header and payload of a data packet that a client or a server sent; `None` if it does not open.
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

/// A sealed handshake packet of a client or a server with an arbitrary payload.
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

/// An Initial packet of a client, or else of a server, with an arbitrary payload, for real TLS
/// without a pre-shared key. An observer of `original`, the connection ID of the first flight, can seal it (RFC 9001,
/// section 5.2).
pub fn seal_initial(
    original: &[u8; ORIGINAL_CID_LEN],
    (destination, source): (&[u8], &[u8; CID_LEN]),
    from_client: bool,
    pn: u32,
    payload: &[u8],
) -> Vec<u8> {
    let secrets = InitialSecrets { psk: None, destination: original, source, salt: &[] };
    let head = PacketHeader { kind: LongKind::Initial, destination, source, token: &[], grease: 0 };
    let mut packet = vec![0; 128 + payload.len()];
    let len = initial_keys(Security::Tls, &secrets, from_client).and_then(|keys| {
        crate::handshake::seal(&mut packet, &keys.local, &head, u64::from(pn), payload)
    });
    packet.truncate(len.unwrap_or(0));
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

/// A client without a protocol implementation: it completes the handshake and then sends what the
/// caller passes.
#[derive(Clone, Debug)]
pub struct MisbehavingClient {
    cid: [u8; CID_LEN],
    original: [u8; ORIGINAL_CID_LEN],
    server_cid: Option<[u8; CID_LEN]>,
    next_pn: u64,
    /// Largest packet number of the server seen so far.
    pub largest_seen: Option<u64>,
}

impl MisbehavingClient {
    /// A client with connection IDs derived from `number`.
    pub fn new(number: u32) -> Self {
        let cid = number.to_be_bytes();
        let mut original = [0xaa; ORIGINAL_CID_LEN];
        original[..CID_LEN].copy_from_slice(&cid);
        Self { cid, original, server_cid: None, next_pn: 0, largest_seen: None }
    }

    /// The client's connection ID.
    pub fn cid(&self) -> [u8; CID_LEN] {
        self.cid
    }

    /// The first flight with arbitrary transport parameters; as bytes, they may be malformed.
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

    /// Records the server's connection ID and largest packet number from a datagram of the server.
    pub fn learn(&mut self, datagram: &[u8]) {
        if let Some(header) = long_header::decode(datagram) {
            self.server_cid = self.server_cid.or(header.source.try_into().ok());
        } else if let Some(header) = ShortHeader::decode(datagram) {
            self.largest_seen = self.largest_seen.max(Some(u64::from(header.packet_number)));
        }
    }

    /// Whether any datagram of the server was seen.
    pub fn has_heard(&self) -> bool {
        self.server_cid.is_some() || self.largest_seen.is_some()
    }

    /// The client's Finished. `None` before the server has answered.
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

    /// Skips packet numbers.
    pub fn skip(&mut self, numbers: u64) {
        self.next_pn = self.next_pn.saturating_add(numbers).min(1 << 60);
    }

    /// The address of the client with this number.
    pub fn address(number: u32) -> SocketAddr {
        let [a, b, c, d] = number.to_be_bytes();
        SocketAddr::from(([10, b, c, d], 1_024 + u16::from(a)))
    }
}
