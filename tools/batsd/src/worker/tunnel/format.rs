//! The format of packets in sessions.
//!
//! A packet is one byte of flags, two bytes of segment size, two bytes of length and the packet itself.
//! Numbers are big endian. Echo requests of `batsctl ping` and messages of speed tests take the place of a
//! packet. A message of BTP is one of these; in a channel of BRTP they follow the byte [`TUNNEL`].

use bats_tun::Offload;

/// First byte of a channel with packets. Requests to an exit begin with other values
/// (`proxy/request.rs`).
pub(in super::super) const TUNNEL: u8 = 3;
/// Bytes before a packet.
pub(super) const PREFIX: usize = 5;
const NEEDS_CHECKSUM: u8 = 1;
/// In place of a packet: the number (8 bytes, big endian) of an echo request, or of the echo.
const ECHO_REQUEST: u8 = 4;
const ECHO_REPLY: u8 = 8;
/// In place of a packet: a message of a speed test.
const SPEEDTEST: u8 = 16;

/// An echo request, or the echo with the number of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Echo {
    pub(in super::super) is_reply: bool,
    pub(in super::super) number: u64,
}

/// What follows a prefix.
#[derive(Debug, PartialEq, Eq)]
pub(in super::super) enum Content<'a> {
    Packet(Offload, &'a mut [u8]),
    Echo(Echo),
    Speedtest(&'a [u8]),
}

/// Bytes that are none of this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Malformed;

/// Encodes a packet, or what takes its place; it has at most 65,535 bytes.
fn encode(flags: u8, segment: u16, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(content.len().saturating_add(PREFIX));
    bytes.push(flags);
    bytes.extend(segment.to_be_bytes());
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend(content);
    bytes
}

/// Encodes a packet of at most [`bats_tun::MAX_PACKET`] bytes.
pub(in super::super) fn packet(offload: Offload, bytes: &[u8]) -> Vec<u8> {
    let flags = if offload.needs_checksum { NEEDS_CHECKSUM } else { 0 };
    encode(flags, offload.segment, bytes)
}

pub(super) fn echo(echo: Echo) -> Vec<u8> {
    let flags = if echo.is_reply { ECHO_REPLY } else { ECHO_REQUEST };
    encode(flags, 0, &echo.number.to_be_bytes())
}

/// Encodes a message of a speed test of at most 65,535 bytes.
pub(super) fn speedtest(content: &[u8]) -> Vec<u8> {
    encode(SPEEDTEST, 0, content)
}

fn length(prefix: [u8; PREFIX]) -> usize {
    let [_, _, _, high, low] = prefix;
    usize::from(u16::from_be_bytes([high, low]))
}

/// Number of packets in encoded ones.
pub(super) fn count(mut bytes: &[u8]) -> u64 {
    let mut packets = 0_u64;
    while let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() {
        packets = packets.saturating_add(1);
        bytes = rest.get(length(*prefix)..).unwrap_or_default();
    }
    packets
}

/// Whether content of this length may follow the prefix.
fn is_known(prefix: [u8; PREFIX]) -> bool {
    let [flags, ..] = prefix;
    match flags {
        0 | NEEDS_CHECKSUM | SPEEDTEST => true,
        ECHO_REQUEST | ECHO_REPLY => length(prefix) == size_of::<u64>(),
        _ => false,
    }
}

/// Parses bytes that are one packet.
pub(in super::super) fn parse(bytes: &mut [u8]) -> Result<Content<'_>, Malformed> {
    let (prefix, content) = bytes.split_first_chunk_mut::<PREFIX>().ok_or(Malformed)?;
    if !is_known(*prefix) || length(*prefix) != content.len() {
        return Err(Malformed);
    }
    let [flags, high, low, ..] = *prefix;
    Ok(match flags {
        ECHO_REQUEST | ECHO_REPLY => {
            let number = u64::from_be_bytes((&*content).try_into().map_err(|_| Malformed)?);
            Content::Echo(Echo { is_reply: flags == ECHO_REPLY, number })
        }
        SPEEDTEST => Content::Speedtest(content),
        _ => {
            let segment = u16::from_be_bytes([high, low]);
            Content::Packet(Offload { needs_checksum: flags == NEEDS_CHECKSUM, segment }, content)
        }
    })
}

/// The packets of a channel, of which bytes arrive in parts.
#[derive(Debug, Default)]
pub(in super::super) struct Parts {
    /// The start of a packet that is not complete: at most a prefix and 65,535 bytes.
    partial: Vec<u8>,
}

impl Parts {
    /// Takes the next bytes and hands over the packets that they complete, but no more than `limit`. Returns the
    /// number of bytes that are left.
    ///
    /// # Errors
    /// The bytes are no packets. Nothing after them can be read.
    pub(in super::super) fn feed(
        &mut self,
        mut bytes: &mut [u8],
        limit: usize,
        mut take: impl FnMut(Content<'_>),
    ) -> Result<usize, Malformed> {
        let mut count = 0_usize;
        let mut take = |content: Content<'_>| {
            count = count.saturating_add(1);
            take(content);
            count < limit
        };
        while !bytes.is_empty() {
            let start = if self.partial.is_empty() { &*bytes } else { &*self.partial };
            let prefix = start.first_chunk::<PREFIX>();
            if prefix.is_some_and(|&prefix| !is_known(prefix)) {
                return Err(Malformed);
            }
            let total = prefix.map_or(PREFIX, |&prefix| length(prefix).saturating_add(PREFIX));
            let is_whole = self.partial.is_empty() && prefix.is_some() && bytes.len() >= total;
            let missing = total.saturating_sub(self.partial.len()).min(bytes.len());
            let all = std::mem::take(&mut bytes);
            let Some((more, rest)) = all.split_at_mut_checked(missing) else { break };
            bytes = rest;
            if is_whole {
                match take(parse(more)?) {
                    true => continue,
                    false => break,
                }
            }
            self.partial.extend_from_slice(more);
            // A prefix that has just become complete says how much follows, unless that is nothing.
            let left = self.partial.split_first_chunk::<PREFIX>();
            if left.is_some_and(|(&prefix, content)| content.len() == length(prefix))
                && !take(parse(&mut std::mem::take(&mut self.partial))?)
            {
                break;
            }
        }
        // Unknown flags are an error at once, not when the next bytes arrive.
        match self.partial.first_chunk::<PREFIX>() {
            Some(&prefix) if !is_known(prefix) => Err(Malformed),
            _ => Ok(bytes.len()),
        }
    }

    /// Bytes of memory.
    #[cfg(test)]
    fn capacity(&self) -> usize {
        self.partial.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFLOAD: Offload = Offload { needs_checksum: true, segment: 1_448 };

    fn bytes(size: usize) -> Vec<u8> {
        (0..size).map(|x| x as u8).collect()
    }

    /// An owned [`Content`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    enum Owned {
        Packet(Offload, Vec<u8>),
        Echo(Echo),
        Speedtest(Vec<u8>),
    }

    impl Owned {
        fn encode(&self) -> Vec<u8> {
            match self {
                Self::Packet(offload, bytes) => packet(*offload, bytes),
                Self::Echo(one) => echo(*one),
                Self::Speedtest(bytes) => speedtest(bytes),
            }
        }
    }

    fn owned(content: Content<'_>) -> Owned {
        match content {
            Content::Packet(offload, bytes) => Owned::Packet(offload, bytes.to_vec()),
            Content::Echo(echo) => Owned::Echo(echo),
            Content::Speedtest(bytes) => Owned::Speedtest(bytes.to_vec()),
        }
    }

    /// Feeds bytes that are cut at these positions.
    fn feed(bytes: &[u8], cuts: &[usize]) -> (Vec<Owned>, Result<(), Malformed>) {
        let (mut parts, mut all, mut from) = (Parts::default(), Vec::new(), 0);
        for &cut in cuts.iter().chain([&bytes.len()]) {
            let mut piece = bytes[from..cut].to_vec();
            match parts.feed(&mut piece, usize::MAX, |content| all.push(owned(content))) {
                Ok(left) => assert_eq!(left, 0),
                Err(error) => return (all, Err(error)),
            }
            from = cut;
        }
        (all, Ok(()))
    }

    fn samples() -> Vec<Owned> {
        vec![
            Owned::Packet(OFFLOAD, bytes(40)),
            Owned::Packet(Offload { needs_checksum: false, segment: 0 }, Vec::new()),
            Owned::Echo(Echo { is_reply: false, number: 7 }),
            Owned::Speedtest(bytes(3)),
            Owned::Echo(Echo { is_reply: true, number: u64::MAX }),
            Owned::Packet(OFFLOAD, bytes(1)),
        ]
    }

    #[test]
    fn packets_come_out_whole_wherever_the_bytes_are_cut() {
        let samples = samples();
        let encoded = samples.iter().flat_map(Owned::encode).collect::<Vec<_>>();
        for cut in 0..=encoded.len() {
            assert_eq!(feed(&encoded, &[cut]), (samples.clone(), Ok(())), "cut at {cut}");
        }
        let all: Vec<usize> = (1..encoded.len()).collect();
        assert_eq!(feed(&encoded, &all), (samples.clone(), Ok(())), "byte by byte");
        for sample in samples {
            assert_eq!(parse(&mut sample.encode()).map(owned), Ok(sample));
        }
    }

    /// The model knows all bytes and parses them from the start.
    fn model(mut bytes: &[u8]) -> (Vec<Owned>, Result<(), Malformed>) {
        let mut all = Vec::new();
        while bytes.len() >= PREFIX {
            let size = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
            let is_known = match bytes[0] {
                0 | 1 | 16 => true,
                4 | 8 => size == 8,
                _ => false,
            };
            if !is_known {
                return (all, Err(Malformed));
            }
            if bytes.len() < PREFIX + size {
                break;
            }
            all.push(owned(parse(&mut bytes[..PREFIX + size].to_vec()).unwrap()));
            bytes = &bytes[PREFIX + size..];
        }
        (all, Ok(()))
    }

    #[test]
    fn parts_agree_with_a_naive_model_for_any_bytes_and_cuts() {
        let mut state = 1u64;
        let mut random = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % limit
        };
        let (mut complete, mut malformed) = (0, 0);
        for _ in 0..20_000 {
            let samples = samples();
            let count = random(6) as usize;
            let mut stream: Vec<u8> = (0..count)
                .flat_map(|_| samples[random(samples.len() as u64) as usize].encode())
                .collect();
            if random(3) == 0 && !stream.is_empty() {
                let at = random(stream.len() as u64) as usize;
                stream[at] = random(256) as u8;
            }
            let mut cuts: Vec<usize> =
                (0..random(5)).map(|_| random(stream.len() as u64 + 1) as usize).collect();
            cuts.sort_unstable();
            let result = feed(&stream, &cuts);
            complete += result.0.len();
            malformed += usize::from(result.1.is_err());
            assert_eq!(result, model(&stream), "{stream:?} cut at {cuts:?}");
        }
        assert!(complete > 20_000 && malformed > 500, "{complete} packets, {malformed} errors");
    }

    #[test]
    fn bytes_that_are_no_packet_are_an_error_as_soon_as_the_prefix_is_there() {
        for hostile in
            [[32, 0, 0, 0, 1], [2, 0, 0, 0, 0], [4, 0, 0, 0, 9], [12, 0, 0, 0, 8], [255; 5]]
        {
            assert_eq!(feed(&hostile, &[]), (vec![], Err(Malformed)), "{hostile:?}");
            assert_eq!(feed(&hostile, &[1, 2, 3, 4]), (vec![], Err(Malformed)), "{hostile:?}");
            let after = [packet(OFFLOAD, &[7]), hostile.to_vec()].concat();
            let first = Owned::Packet(OFFLOAD, vec![7]);
            assert_eq!(feed(&after, &[]), (vec![first], Err(Malformed)));
        }
        let mut whole = packet(OFFLOAD, &bytes(9));
        assert_eq!(parse(&mut whole[..13]), Err(Malformed), "a byte too few");
        whole.push(0);
        assert_eq!(parse(&mut whole), Err(Malformed), "a byte too many");
        assert_eq!(parse(&mut []), Err(Malformed));
    }

    #[test]
    fn a_packet_that_never_ends_takes_the_memory_of_one_packet() {
        let mut parts = Parts::default();
        let mut start = vec![0, 0, 0, 0xff, 0xff];
        start.extend([0; 65_534]);
        for byte in start {
            parts.feed(&mut [byte], 1, |_| panic!("it is not complete")).unwrap();
        }
        assert!(parts.capacity() <= 2 * (PREFIX + 65_535), "{}", parts.capacity());
        let mut count = 0;
        parts.feed(&mut [0, 0], 1, |_| count += 1).unwrap();
        assert_eq!(count, 1);
        assert!(parts.capacity() < 64, "the memory of a packet is freed: {}", parts.capacity());
    }
}
