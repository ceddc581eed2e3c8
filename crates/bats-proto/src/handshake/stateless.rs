//! What an endpoint does with long packets before there is a connection.

use core::fmt;
use core::net::SocketAddr;

use bats_types::Timestamp;
use smallvec::SmallVec;

use super::error::code;
use crate::config::{Security, ServerConfig};
use crate::crypto::{DirectionalKeys, Keys, ServerSetup, Side, TokenKey, TokenPurpose};
use crate::error::ConnectError;
use crate::wire::handshake_frame::{self, HandshakeFrame};
use crate::wire::long_header::{
    self, CID_LEN, Invariant, LongHeader, LongType, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN,
    OpenPacket, PACKET_NUMBER_LEN, TAG_LEN,
};
use crate::wire::varint::{Reader, Writer};
use crate::wire::version::{NEGOTIATION, VERSION};

/// Packet number that seals retries: no packet has it, so that no nonce is used twice.
pub(super) const RETRY_NUMBER: u64 = 1 << 40;

/// A datagram whose first packet is a long one.
#[derive(Debug)]
pub enum FirstPacket<'a> {
    /// For a connection whose ID we chose.
    ForUs {
        /// That ID.
        destination: [u8; CID_LEN],
    },
    /// From a client that does not know our ID yet.
    Initial(InitialInfo<'a>),
    /// In a version that is not spoken here, large enough to be answered.
    UnknownVersion(UnknownVersion<'a>),
}

/// The readable part of a client's first packets.
#[derive(Debug)]
pub struct InitialInfo<'a> {
    /// Random destination chosen by the client, or by a retry.
    pub destination: [u8; ORIGINAL_CID_LEN],
    /// The client's own ID.
    pub source: [u8; CID_LEN],
    /// Proof of address, or empty.
    pub token: &'a [u8],
    packet: &'a [u8],
    number_at: usize,
}

/// What is needed to answer an unknown version.
#[derive(Debug)]
pub struct UnknownVersion<'a> {
    destination: &'a [u8],
    source: &'a [u8],
}

/// Reads the front of a datagram of long packets. `None` if it can belong to nothing.
pub fn parse_first(datagram: &[u8]) -> Option<FirstPacket<'_>> {
    let invariant = Invariant::decode(datagram)?;
    let Invariant { version, destination, source, .. } = invariant;
    if let Ok(destination) = destination.try_into()
        && (version == VERSION || version == NEGOTIATION)
    {
        return Some(FirstPacket::ForUs { destination });
    }
    // Whoever begins must be heard in full size: that is what keeps our answers smaller.
    if datagram.len() < MIN_INITIAL_DATAGRAM || version == NEGOTIATION {
        return None;
    }
    if version != VERSION {
        return Some(FirstPacket::UnknownVersion(UnknownVersion { destination, source }));
    }
    let header = LongHeader::decode(datagram)?;
    if header.packet_type != LongType::Initial {
        return None;
    }
    Some(FirstPacket::Initial(InitialInfo {
        destination: destination.try_into().ok()?,
        source: source.try_into().ok()?,
        token: header.token,
        packet: &datagram[..header.end],
        number_at: header.number_at,
    }))
}

/// The answer to a version that is not spoken here (RFC 9000, section 6.1); shorter than what it
/// answers. `random` chooses the reserved version in it.
pub fn write_version_negotiation(unknown: &UnknownVersion<'_>, random: u32) -> Vec<u8> {
    long_header::write_negotiation(random, unknown.source, unknown.destination).unwrap_or_default()
}

/// What a server needs to make connections; shared by all of them.
pub struct ServerCrypto {
    setup: ServerSetup,
    tokens: TokenKey,
}

impl fmt::Debug for ServerCrypto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCrypto").finish_non_exhaustive()
    }
}

/// What to do with a client's first packet.
#[derive(Debug)]
pub enum ServerStart {
    /// Begin a handshake.
    Accept(Accepted),
    /// Send this, which is shorter than what the client sent, and remember nothing.
    Answer(Vec<u8>),
    /// Nothing: it is not authentic, or begins nothing.
    Drop,
}

/// A client's first packet, found authentic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub(super) original: [u8; ORIGINAL_CID_LEN],
    pub(super) destination: [u8; ORIGINAL_CID_LEN],
    pub(super) source: [u8; CID_LEN],
    /// Present if the client has proved its address by a retry token.
    pub(super) retry_source: Option<[u8; ORIGINAL_CID_LEN]>,
}

impl ServerCrypto {
    /// Checks a server's configuration. `token_key` makes its retry tokens.
    ///
    /// # Errors
    /// Certificate and key cannot be used.
    pub fn new(
        config: &ServerConfig,
        security: Security,
        token_key: [u8; 32],
    ) -> Result<Self, ConnectError> {
        let setup = ServerSetup::new(config, security)?;
        Ok(Self { setup, tokens: TokenKey::new(&token_key) })
    }

    pub(super) fn setup(&self) -> &ServerSetup {
        &self.setup
    }

    /// Decides about a client's first packet, keeping no memory of it. `full`: refuse;
    /// `ask`: only clients that have proved their address.
    pub fn start(
        &self,
        now: Timestamp,
        remote: SocketAddr,
        initial: &InitialInfo<'_>,
        full: bool,
        ask: bool,
    ) -> ServerStart {
        let answer =
            |octets: Option<Vec<u8>>| octets.map_or(ServerStart::Drop, ServerStart::Answer);
        if full {
            let text = "no room for more connections";
            return answer(self.write_refusal(initial, code::CONNECTION_REFUSED, text));
        }
        let mut accepted = Accepted {
            original: initial.destination,
            destination: initial.destination,
            source: initial.source,
            retry_source: None,
        };
        if initial.token.is_empty() && ask {
            return answer(self.write_retry(now, remote, initial));
        }
        let keys = Keys::initial(self.setup.security(), &initial.destination, Side::Server);
        let mut packet = initial.packet.to_vec();
        let opened = open(&keys.remote, &mut packet, initial.number_at);
        let begins = opened.is_some_and(|(_, len)| {
            let at = initial.number_at + PACKET_NUMBER_LEN;
            packet.get(at..at + len).is_some_and(has_tls_data)
        });
        if !begins {
            return ServerStart::Drop;
        }
        if !initial.token.is_empty() {
            let InitialInfo { destination, token, .. } = initial;
            match self.tokens.check(now, TokenPurpose::Retry, remote, destination, token) {
                Ok(original) => {
                    accepted.original = original;
                    accepted.retry_source = Some(*destination);
                }
                // The client cannot go on with this attempt: it takes only one retry.
                Err(_) => {
                    let text = "token is not valid (any more) for this address";
                    return answer(self.write_refusal(initial, code::INVALID_TOKEN, text));
                }
            }
        }
        ServerStart::Accept(accepted)
    }

    /// A Retry packet (RFC 9000, section 17.2.5). Its tag is made with the server's Initial keys
    /// of the original destination, so that only who saw that can have made it.
    fn write_retry(
        &self,
        now: Timestamp,
        remote: SocketAddr,
        initial: &InitialInfo<'_>,
    ) -> Option<Vec<u8>> {
        let original = &initial.destination;
        let cid = self.tokens.retry_cid(now, remote, original);
        let token = self.tokens.make(now, TokenPurpose::Retry, remote, original, &cid);
        let mut packet = long_header::write_retry(cid[0], &initial.source, &cid, &token)?;
        let keys = Keys::initial(self.setup.security(), original, Side::Server);
        let mut tag = [0; TAG_LEN];
        keys.local.packet.seal_in_place(RETRY_NUMBER, &packet, &mut tag, 0);
        packet.extend_from_slice(&tag);
        Some(packet)
    }

    /// An Initial packet that closes the attempt.
    fn write_refusal(
        &self,
        initial: &InitialInfo<'_>,
        close_code: u64,
        reason: &str,
    ) -> Option<Vec<u8>> {
        let keys = Keys::initial(self.setup.security(), &initial.destination, Side::Server);
        let mut buffer = vec![0; 200];
        let room = buffer.len() - TAG_LEN;
        let mut writer = Writer::new(&mut buffer[..room]);
        let source: SmallVec<[u8; CID_LEN]> = SmallVec::from_slice(&initial.destination[..CID_LEN]);
        let open = long_header::write_header(
            &mut writer,
            LongType::Initial,
            initial.destination[0],
            &initial.source,
            &source,
            &[],
        )?;
        handshake_frame::write_close(&mut writer, close_code, reason)?;
        let payload_end = writer.written();
        let len = seal(&keys.local, &mut buffer, open, payload_end, 0)?;
        buffer.truncate(len);
        Some(buffer)
    }
}

/// Whether these frames begin anything: without TLS data, for instance in a late CLOSE, they do
/// not.
fn has_tls_data(payload: &[u8]) -> bool {
    let mut reader = Reader::new(payload);
    while let Ok(Some(frame)) = handshake_frame::decode(&mut reader) {
        if matches!(frame, HandshakeFrame::Crypto { .. }) {
            return true;
        }
    }
    false
}

/// Seals a packet at the front of `buffer` whose header and payload are written, and protects its
/// header. Returns its length.
pub(super) fn seal(
    keys: &DirectionalKeys,
    buffer: &mut [u8],
    open: OpenPacket,
    payload_end: usize,
    number: u32,
) -> Option<usize> {
    open.finish(buffer, payload_end, number)?;
    let len = payload_end + TAG_LEN;
    let packet = buffer.get_mut(..len)?;
    let (header, payload) = packet.split_at_mut_checked(open.payload)?;
    let payload_len = payload_end - open.payload;
    keys.packet.seal_in_place(number.into(), header, payload, payload_len);
    let number_at = open.payload - PACKET_NUMBER_LEN;
    let mask = keys.header.mask(long_header::sample(packet, number_at)?);
    long_header::apply_mask(packet, number_at, mask)?;
    Some(len)
}

/// Removes the protection of one packet in place. Returns packet number and length of the payload,
/// `None` if it is not authentic.
pub(super) fn open(
    keys: &DirectionalKeys,
    packet: &mut [u8],
    number_at: usize,
) -> Option<(u64, usize)> {
    let mask = keys.header.mask(long_header::sample(packet, number_at)?);
    long_header::apply_mask(packet, number_at, mask)?;
    let number = long_header::packet_number(packet, number_at);
    // Opened even if the header cannot be right: how long it takes tells nothing about the mask
    // (RFC 9001, section 9.5).
    let (header, sealed) = packet.split_at_mut_checked(number_at + PACKET_NUMBER_LEN)?;
    let len = keys.packet.open_in_place(number.unwrap_or(0).into(), header, sealed);
    Some((number?.into(), len?))
}
