//! Writes the datagrams of a run to a pcapng file, as a capture at both senders' interfaces would.
//!
//! A datagram is captured where it enters the link. The file therefore contains lost datagrams too,
//! each with a comment that states why the link drops it. Duplicates and corrupted bytes arise on
//! the link and are not in the file.

use core::net::SocketAddrV4;
use core::time::Duration;
use std::borrow::Cow;
use std::fmt;
use std::io::{self, Write};

use bats_netem::{Fate, Timestamp};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::{DataLink, PcapError};

use crate::host::Host;
use crate::link_event::{LinkEvent, LinkEventKind};

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
/// Header bytes of a frame: the frame overhead that the matrix counts for each payload.
const HEADERS: usize = ETHERNET + IPV4 + UDP;
/// pcapng option `if_tsresol`: timestamps are in units of 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Writes datagrams as Ethernet frames.
pub struct Capture {
    writer: PcapNgWriter<Box<dyn Write + Send>>,
    frame: Vec<u8>,
    remaining: u64,
    written: u64,
    error: Option<io::Error>,
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capture")
            .field("written", &self.written)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

fn io_error(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl Capture {
    /// Starts a file of at most `limit` datagrams.
    ///
    /// # Errors
    ///
    /// If the writer fails.
    pub fn new(writer: Box<dyn Write + Send>, limit: u64) -> io::Result<Self> {
        let mut writer = PcapNgWriter::new(writer).map_err(io_error)?;
        for (name, host) in [("client", Host::Client), ("server", Host::Server)] {
            let mut block = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
            block.options = vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfDescription(
                    format!("datagrams sent by {}", host.address()).into(),
                ),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ];
            writer.write_pcapng_block(block).map_err(io_error)?;
        }
        Ok(Self { writer, frame: Vec::new(), remaining: limit, written: 0, error: None })
    }

    /// Writes a datagram that enters a link. Does nothing after an error or at the limit.
    pub fn record(&mut self, event: &LinkEvent<'_>) {
        let LinkEventKind::Sent(fate) = event.kind else { return };
        if self.remaining == 0 || self.error.is_some() {
            return;
        }
        let options = match fate {
            Fate::Carried => Vec::new(),
            Fate::QueueFull => vec![comment("dropped by the link: queue full")],
            Fate::Lost => vec![comment("dropped by the link: lost")],
            Fate::TooLong => vec![comment("dropped by the link: longer than its MTU")],
            Fate::BlackHole => vec![comment("dropped by the link: black hole")],
            Fate::Policed => vec![comment("dropped by the link: policer")],
            Fate::Early => vec![comment("dropped by the link: active queue management")],
        };
        let path = (event.from.address_v4(), event.from.other().address_v4());
        let interface = u32::from(event.from == Host::Server);
        self.write(interface, event.time, path, event.ecn, event.payload, options);
    }

    /// Writes a datagram between any two addresses, whatever happens to it. Does nothing after an
    /// error or at the limit.
    pub fn record_datagram(
        &mut self,
        time: Timestamp,
        path: (SocketAddrV4, SocketAddrV4),
        ecn: u8,
        payload: &[u8],
    ) {
        if self.remaining > 0 && self.error.is_none() {
            self.write(0, time, path, ecn, payload, Vec::new());
        }
    }

    fn write(
        &mut self,
        interface_id: u32,
        time: Timestamp,
        (from, to): (SocketAddrV4, SocketAddrV4),
        ecn: u8,
        payload: &[u8],
        options: Vec<EnhancedPacketOption<'static>>,
    ) {
        self.frame.clear();
        if !write_frame(&mut self.frame, from, to, ecn, payload) {
            self.error = Some(io::Error::other("datagram too long for IPv4"));
            return;
        }
        let block = EnhancedPacketBlock {
            interface_id,
            timestamp: since_start(time),
            original_len: self.frame.len() as u32,
            data: Cow::Borrowed(&self.frame),
            options,
        };
        match self.writer.write_pcapng_block(block) {
            Ok(_) => {
                self.remaining -= 1;
                self.written += 1;
            }
            Err(error) => self.error = Some(io_error(error)),
        }
    }

    /// Ends the file; datagrams written.
    ///
    /// # Errors
    ///
    /// The first write error of this capture.
    pub fn finish(self) -> io::Result<u64> {
        match self.error {
            Some(error) => Err(error),
            None => self.writer.into_inner().flush().map(|()| self.written),
        }
    }
}

fn comment(text: &'static str) -> EnhancedPacketOption<'static> {
    EnhancedPacketOption::Comment(text.into())
}

/// Virtual time as the time since 1970 that the format requires.
fn since_start(time: Timestamp) -> Duration {
    Duration::from_nanos(time.as_nanos())
}

/// Appends the Ethernet frame of a datagram; false if the datagram is too long for IPv4.
fn write_frame(
    frame: &mut Vec<u8>,
    from: SocketAddrV4,
    to: SocketAddrV4,
    ecn: u8,
    payload: &[u8],
) -> bool {
    let (Ok(total), Ok(udp_len)) =
        (u16::try_from(IPV4 + UDP + payload.len()), u16::try_from(UDP + payload.len()))
    else {
        return false;
    };
    let hardware = |address: SocketAddrV4| {
        // A locally administered address with the last three bytes of the IP address.
        let [_, b, c, d] = address.ip().octets();
        [0x02, 0, 0, b, c, d]
    };
    frame.reserve(HEADERS + payload.len());
    frame.extend_from_slice(&hardware(to));
    frame.extend_from_slice(&hardware(from));
    frame.extend_from_slice(&[0x08, 0x00]);

    let ip = frame.len();
    frame.extend_from_slice(&[0x45, ecn & 3]);
    frame.extend_from_slice(&total.to_be_bytes());
    // No identification, do not fragment, TTL 64, UDP, checksum filled in below.
    frame.extend_from_slice(&[0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend_from_slice(&from.ip().octets());
    frame.extend_from_slice(&to.ip().octets());
    let checksum = !fold(sum(&frame[ip..]));
    frame[ip + 10..ip + 12].copy_from_slice(&checksum.to_be_bytes());

    let udp = frame.len();
    frame.extend_from_slice(&from.port().to_be_bytes());
    frame.extend_from_slice(&to.port().to_be_bytes());
    frame.extend_from_slice(&udp_len.to_be_bytes());
    frame.extend_from_slice(&[0, 0]);
    frame.extend_from_slice(payload);
    let pseudo_header = sum(&frame[ip + 12..udp]) + 17 + u64::from(udp_len);
    let checksum = match !fold(pseudo_header + sum(&frame[udp..])) {
        // Zero means that the datagram has no checksum (RFC 768).
        0 => 0xffff,
        checksum => checksum,
    };
    frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
    true
}

/// Sum of the 16-bit words of the Internet checksum (RFC 1071).
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0)))
        .sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_valid_lengths_and_checksums() {
        let (from, to) = (Host::Client.address_v4(), Host::Server.address_v4());
        for payload in [&b""[..], b"odd", b"even", &[0xff; 1472]] {
            let mut frame = Vec::new();
            assert!(write_frame(&mut frame, from, to, 2, payload));
            assert_eq!(frame.len(), HEADERS + payload.len());
            let ip = &frame[ETHERNET..];
            assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
            assert_eq!(ip[1], 2);
            // The sum over all words, checksum included, has all bits set (RFC 1071).
            assert_eq!(fold(sum(&ip[..IPV4])), 0xffff);
            let udp = &ip[IPV4..];
            assert_eq!(usize::from(u16::from_be_bytes([udp[4], udp[5]])), udp.len());
            assert_eq!(fold(sum(&ip[12..IPV4]) + 17 + udp.len() as u64 + sum(udp)), 0xffff);
            assert_eq!(&udp[UDP..], payload);
        }
        assert!(!write_frame(&mut Vec::new(), from, to, 0, &[0; 65_508]));
    }
}
