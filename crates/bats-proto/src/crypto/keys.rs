//! Keys that seal packets and protect their headers.

use core::fmt;

use rustls::quic;

use super::plain::{self, PlainKey};
use super::tls;
use crate::config::Security;
use crate::wire::short_header::TAG_LEN;

/// Which end of a connection keys are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The end that began the connection.
    Client,
    /// The end that was asked.
    Server,
}

/// Seals or opens the payload of packets; one direction, one generation.
pub struct PacketKey(Packet);

enum Packet {
    Tls(Box<dyn quic::PacketKey>),
    Plain(PlainKey),
}

impl PacketKey {
    pub(super) fn plain(key: PlainKey) -> Self {
        Self(Packet::Plain(key))
    }

    pub(super) fn tls(key: Box<dyn quic::PacketKey>) -> Self {
        Self(Packet::Tls(key))
    }

    /// Seals the first `payload_len` octets of `buffer` in place and writes the tag of
    /// 16 octets behind them. `header` is authenticated with them; packet number `pn` must never
    /// repeat for one key.
    ///
    /// If the tag does not fit or the payload is longer than the AEAD allows, the payload is
    /// wiped, so that nothing leaves in clear; the packet is then worthless.
    pub fn seal_in_place(&self, pn: u64, header: &[u8], buffer: &mut [u8], payload_len: usize) {
        let sealed = self.try_seal(pn, header, buffer, payload_len);
        if sealed.is_none() {
            buffer.fill(0);
        }
    }

    fn try_seal(&self, pn: u64, header: &[u8], buffer: &mut [u8], len: usize) -> Option<()> {
        let (payload, rest) = buffer.split_at_mut_checked(len)?;
        let tag_out: &mut [u8; TAG_LEN] = rest.first_chunk_mut()?;
        match &self.0 {
            Packet::Tls(key) => {
                let tag = key.encrypt_in_place(pn, header, payload).ok()?;
                *tag_out = tag.as_ref().try_into().ok()?;
            }
            Packet::Plain(key) => *tag_out = key.checksum(pn, header, payload),
        }
        Some(())
    }

    /// Opens payload and tag in place. Returns the octets of payload now in clear at the front,
    /// `None` if the packet is not authentic; what stands in `sealed` is then undefined.
    pub fn open_in_place(&self, pn: u64, header: &[u8], sealed: &mut [u8]) -> Option<usize> {
        match &self.0 {
            Packet::Tls(key) => Some(key.decrypt_in_place(pn, header, sealed).ok()?.len()),
            Packet::Plain(key) => {
                let (payload, tag) = sealed.split_last_chunk::<TAG_LEN>()?;
                (key.checksum(pn, header, payload) == *tag).then_some(payload.len())
            }
        }
    }

    /// Packets that may be sealed with this key (RFC 9001, section 6.6).
    pub fn confidentiality_limit(&self) -> u64 {
        match &self.0 {
            Packet::Tls(key) => key.confidentiality_limit(),
            Packet::Plain(_) => plain::CONFIDENTIALITY_LIMIT,
        }
    }

    /// Forgeries after which this key must not be used any more (RFC 9001, section 6.6).
    pub fn integrity_limit(&self) -> u64 {
        match &self.0 {
            Packet::Tls(key) => key.integrity_limit(),
            Packet::Plain(_) => plain::INTEGRITY_LIMIT,
        }
    }
}

impl fmt::Debug for PacketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PacketKey")
    }
}

/// Makes the mask of packet headers (RFC 9001, section 5.4); one direction, all generations.
pub struct HeaderKey(Option<Box<dyn quic::HeaderProtectionKey>>);

impl HeaderKey {
    pub(super) fn plain() -> Self {
        Self(None)
    }

    pub(super) fn tls(key: Box<dyn quic::HeaderProtectionKey>) -> Self {
        Self(Some(key))
    }

    /// The mask for a sample of the sealed payload. Only the low five bits of the first octet are
    /// given, more is never protected.
    pub fn mask(&self, sample: &[u8; 16]) -> [u8; 5] {
        /// A short header whose packet number has four octets, so that all of the mask is used.
        const FIRST: u8 = 0x03;
        let mut mask = [FIRST, 0, 0, 0, 0];
        if let Some(key) = &self.0 {
            let [first, number @ ..] = &mut mask;
            // Fails only for samples of another length, and all suites take 16 octets.
            let _ = key.encrypt_in_place(sample, first, number);
        }
        mask[0] ^= FIRST;
        mask
    }
}

impl fmt::Debug for HeaderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HeaderKey")
    }
}

/// Keys of one direction.
#[derive(Debug)]
pub struct DirectionalKeys {
    /// Protects headers.
    pub header: HeaderKey,
    /// Seals payloads.
    pub packet: PacketKey,
}

/// Keys of both directions.
#[derive(Debug)]
pub struct Keys {
    /// For what is sent.
    pub local: DirectionalKeys,
    /// For what is received.
    pub remote: DirectionalKeys,
}

impl Keys {
    /// The keys of Initial packets, which follow from the destination of the client's packets.
    /// They keep out accidents and off-path attackers, not readers of the path.
    pub fn initial(security: Security, destination: &[u8], side: Side) -> Self {
        match security {
            Security::Tls => tls::initial_keys(destination, side),
            Security::DangerousPlain => plain::initial_keys(destination, side),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [Security; 2] = [Security::Tls, Security::DangerousPlain];

    #[test]
    fn what_one_end_seals_the_other_opens() {
        for security in BOTH {
            let client = Keys::initial(security, b"destined", Side::Client);
            let server = Keys::initial(security, b"destined", Side::Server);
            for (from, to) in [(&client, &server), (&server, &client)] {
                let mut buffer = *b"some payload................";
                from.local.packet.seal_in_place(7, b"header", &mut buffer, 12);
                let sealed = buffer;
                assert_eq!(to.remote.packet.open_in_place(7, b"header", &mut buffer), Some(12));
                assert_eq!(&buffer[..12], b"some payload");
                for (pn, header) in [(8, b"header"), (7, b"Header")] {
                    let mut buffer = sealed;
                    assert_eq!(to.remote.packet.open_in_place(pn, header, &mut buffer), None);
                }
                // The other direction has other keys.
                let mut buffer = sealed;
                assert_eq!(from.remote.packet.open_in_place(7, b"header", &mut buffer), None);
            }
        }
    }

    #[test]
    fn initial_keys_follow_from_the_destination() {
        for security in BOTH {
            let client = Keys::initial(security, b"destined", Side::Client);
            for other in [b"destined".as_slice(), b"Destined", b"destine", b"destined\0"] {
                let server = Keys::initial(security, other, Side::Server);
                let mut buffer = [0; 12 + TAG_LEN];
                client.local.packet.seal_in_place(7, b"header", &mut buffer, 12);
                let opened = server.remote.packet.open_in_place(7, b"header", &mut buffer);
                assert_eq!(opened.is_some(), other == b"destined", "{security:?}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for security in BOTH {
            let client = Keys::initial(security, b"destined", Side::Client);
            let server = Keys::initial(security, b"destined", Side::Server);
            let mut sealed = [0x5a; 150 + TAG_LEN];
            client.local.packet.seal_in_place(1, b"header", &mut sealed, 150);
            for bit in 0..8 * sealed.len() {
                let mut copy = sealed;
                copy[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(server.remote.packet.open_in_place(1, b"header", &mut copy), None);
            }
        }
    }

    #[test]
    fn nothing_leaves_in_clear_without_room_for_the_tag() {
        let keys = Keys::initial(Security::Tls, b"destined", Side::Client);
        let mut buffer = [1; 20];
        keys.local.packet.seal_in_place(0, b"", &mut buffer, 10);
        assert_eq!(buffer, [0; 20]);
        keys.local.packet.seal_in_place(0, b"", &mut buffer, 21);
        assert_eq!(keys.local.packet.open_in_place(0, b"", &mut [0; 15]), None);
    }

    /// RFC 9001, appendix A.2 and A.3 have no version of ours; the mask is checked against the
    /// library's own way of applying it.
    #[test]
    fn mask_is_what_the_library_applies() {
        let keys = Keys::initial(Security::Tls, b"destined", Side::Client);
        let sample = *b"0123456789abcdef";
        let mask = keys.local.header.mask(&sample);
        let Some(inner) = &keys.local.header.0 else { panic!("no TLS key") };
        let (mut first, mut number) = (0xc3, [1, 2, 3, 4]);
        inner.encrypt_in_place(&sample, &mut first, &mut number).unwrap();
        assert_eq!(first, 0xc3 ^ mask[0] & 0x0f);
        assert_eq!(number, [1 ^ mask[1], 2 ^ mask[2], 3 ^ mask[3], 4 ^ mask[4]]);
        assert_ne!(mask, [0; 5]);
        let plain = Keys::initial(Security::DangerousPlain, b"destined", Side::Client);
        assert_eq!(plain.local.header.mask(&sample), [0; 5]);
    }

    #[test]
    fn limits_are_those_of_the_rfc() {
        let keys = Keys::initial(Security::Tls, b"destined", Side::Client);
        assert_eq!(keys.local.packet.confidentiality_limit(), 1 << 23);
        assert_eq!(keys.local.packet.integrity_limit(), 1 << 52);
    }
}
