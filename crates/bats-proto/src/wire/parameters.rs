//! Transport parameters: what the ends tell each other inside the TLS transcript.
//!
//! ```text
//! | id (varint) | length (varint) | value ...                      |  repeated, any order
//! ```
//!
//! Identifiers below 0x20 mean what they mean in QUIC (RFC 9000, section 18.2; RFC 9368,
//! section 3), those from 0x4270 on are of this protocol. Unknown ones are ignored, and senders
//! add one that nobody knows (31 * N + 27, RFC 9000, section 18.1). Integers are variable-length
//! unless said otherwise.

use core::time::Duration;

use super::short_header::SHORT_OVERHEAD;
use super::varint::{MAX_VARINT, Reader, Writer, varint_len};
use super::version::VERSION;

/// Smallest UDP payload that every path carries (RFC 9000, section 14).
const MIN_UDP_PAYLOAD: u64 = 1_200;
const MAX_UDP_PAYLOAD: u64 = 65_527;
/// Largest message that the field may name; 1 GiB.
const MAX_MESSAGE_SIZE: u64 = 1 << 30;
/// Longest idle time-out that the field may name; a day.
const MAX_IDLE_MS: u64 = 86_400_000;
const MAX_WINDOW: u64 = 4_096;
/// Coding header of a repair packet (`wire/coding.rs`).
const REPAIR_HEADER: usize = 10;
/// Versions that a peer may list; more are not looked at.
const MAX_VERSIONS: usize = 16;

const ORIGINAL_DESTINATION: u64 = 0x00;
const IDLE_TIMEOUT: u64 = 0x01;
const UDP_PAYLOAD: u64 = 0x03;
const INITIAL_SOURCE: u64 = 0x0f;
const RETRY_SOURCE: u64 = 0x10;
const VERSION_INFORMATION: u64 = 0x11;
const MODE: u64 = 0x4270;
const MESSAGE_SIZE: u64 = 0x4271;
const CREDIT: u64 = 0x4272;
const SYMBOL_SIZE: u64 = 0x4273;
const WINDOW_CAP: u64 = 0x4274;
const CODE_SEED: u64 = 0x4275;
/// Order of the bits that remember which ones were seen.
const KNOWN: [u64; 12] = [
    ORIGINAL_DESTINATION,
    IDLE_TIMEOUT,
    UDP_PAYLOAD,
    INITIAL_SOURCE,
    RETRY_SOURCE,
    VERSION_INFORMATION,
    MODE,
    MESSAGE_SIZE,
    CREDIT,
    SYMBOL_SIZE,
    WINDOW_CAP,
    CODE_SEED,
];
const MANDATORY: [u64; 10] = [
    IDLE_TIMEOUT,
    UDP_PAYLOAD,
    INITIAL_SOURCE,
    VERSION_INFORMATION,
    MODE,
    MESSAGE_SIZE,
    CREDIT,
    SYMBOL_SIZE,
    WINDOW_CAP,
    CODE_SEED,
];

/// Octets of a symbol whose repair packets just fit a UDP payload of `max_udp_payload` octets.
pub fn symbol_size_for(max_udp_payload: u16) -> usize {
    usize::from(max_udp_payload).saturating_sub(SHORT_OVERHEAD + REPAIR_HEADER)
}

/// What one end tells the other about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportParameters {
    /// Number of the mode ([`Mode`](crate::Mode)).
    pub mode: u8,
    /// Largest message accepted in bytes, 1 to 2^30.
    pub max_message_size: u64,
    /// Symbols that the peer may send before it is given more credit.
    pub initial_credit: u64,
    /// Largest symbol accepted in octets, 64 to 65,527.
    pub max_symbol_size: u16,
    /// Silence after which this end gives up, 1 ms to a day, whole milliseconds.
    pub idle_timeout: Duration,
    /// Largest UDP payload accepted in octets, 1,200 to 65,527.
    pub max_udp_payload: u16,
    /// Most symbols that a repair packet from the peer may cover, 1 to 4,096.
    pub window_cap: u16,
    /// Seed of the coefficients of the repair packets that this end sends.
    pub code_seed: u64,
    /// Version in use, then all versions spoken (RFC 9368, section 3).
    pub versions: (u32, Vec<u32>),
    /// The connection ID that this end chose for itself (authenticates the one in the packets).
    pub initial_source: [u8; 4],
    /// Server: the destination of the client's very first packet.
    pub original_destination: Option<[u8; 8]>,
    /// Server, after a retry: the connection ID that the retry made the client use.
    pub retry_source: Option<[u8; 8]>,
}

impl Default for TransportParameters {
    fn default() -> Self {
        Self {
            mode: 1,
            max_message_size: 64 << 20,
            initial_credit: 0,
            max_symbol_size: symbol_size_for(1_472) as u16,
            idle_timeout: Duration::from_secs(30),
            max_udp_payload: 1_472,
            window_cap: 256,
            code_seed: 0,
            versions: (VERSION, vec![VERSION]),
            initial_source: [0; 4],
            original_destination: None,
            retry_source: None,
        }
    }
}

/// Parameters that break the rules; the text names the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("transport parameters: {0}")]
pub struct ParameterError(pub &'static str);

impl TransportParameters {
    /// The parameters as they travel. Values outside their ranges are moved to the nearest end.
    /// `grease` makes an unknown parameter of up to 7 octets.
    pub fn encode(&self, grease: u64) -> Vec<u8> {
        let idle = u64::try_from(self.idle_timeout.as_millis()).unwrap_or(u64::MAX);
        let mut out = Vec::with_capacity(160);
        integer(&mut out, MODE, self.mode.into());
        integer(&mut out, MESSAGE_SIZE, self.max_message_size.clamp(1, MAX_MESSAGE_SIZE));
        integer(&mut out, CREDIT, self.initial_credit.min(MAX_VARINT));
        integer(&mut out, SYMBOL_SIZE, u64::from(self.max_symbol_size).clamp(64, MAX_UDP_PAYLOAD));
        integer(&mut out, IDLE_TIMEOUT, idle.clamp(1, MAX_IDLE_MS));
        let payload = u64::from(self.max_udp_payload).clamp(MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD);
        integer(&mut out, UDP_PAYLOAD, payload);
        integer(&mut out, WINDOW_CAP, u64::from(self.window_cap).clamp(1, MAX_WINDOW));
        octets(&mut out, CODE_SEED, &self.code_seed.to_be_bytes());
        octets(&mut out, INITIAL_SOURCE, &self.initial_source);
        if let Some(cid) = &self.original_destination {
            octets(&mut out, ORIGINAL_DESTINATION, cid);
        }
        if let Some(cid) = &self.retry_source {
            octets(&mut out, RETRY_SOURCE, cid);
        }
        let mut versions = self.versions.0.to_be_bytes().to_vec();
        for version in self.versions.1.iter().take(MAX_VERSIONS) {
            versions.extend_from_slice(&version.to_be_bytes());
        }
        octets(&mut out, VERSION_INFORMATION, &versions);
        let len = (grease >> 56) as usize % 8;
        octets(&mut out, 27 + 31 * (grease & 0xffff), &grease.to_be_bytes()[1..1 + len.min(7)]);
        out
    }

    /// Reads what a peer sent. Strict: every known value in its range, none twice, none missing.
    pub fn decode(encoded: &[u8]) -> Result<Self, ParameterError> {
        let mut reader = Reader::new(encoded);
        let mut parameters = Self { versions: (0, Vec::new()), ..Self::default() };
        let mut seen = 0_u32;
        while !reader.is_empty() {
            let id = reader.varint().ok_or(ParameterError("truncated id"))?;
            let len = reader.varint().ok_or(ParameterError("truncated length"))?;
            let len = usize::try_from(len).map_err(|_| ParameterError("length"))?;
            let value = reader.take(len).ok_or(ParameterError("truncated value"))?;
            let Some(bit) = KNOWN.iter().position(|&known| known == id) else { continue };
            if seen & 1 << bit != 0 {
                return Err(ParameterError("one stands twice"));
            }
            seen |= 1 << bit;
            parameters.set(id, value)?;
        }
        let missing =
            |id: &u64| KNOWN.iter().position(|k| k == id).is_some_and(|b| seen >> b & 1 == 0);
        if MANDATORY.iter().any(missing) {
            return Err(ParameterError("one is missing"));
        }
        Ok(parameters)
    }

    fn set(&mut self, id: u64, value: &[u8]) -> Result<(), ParameterError> {
        let within = |name, least, most| {
            let mut reader = Reader::new(value);
            match reader.varint() {
                Some(v) if reader.is_empty() && (least..=most).contains(&v) => Ok(v),
                _ => Err(ParameterError(name)),
            }
        };
        match id {
            MODE => self.mode = within("mode", 0, 255)? as u8,
            MESSAGE_SIZE => {
                self.max_message_size = within("max_message_size", 1, MAX_MESSAGE_SIZE)?;
            }
            CREDIT => self.initial_credit = within("initial_credit", 0, MAX_VARINT)?,
            SYMBOL_SIZE => {
                self.max_symbol_size = within("max_symbol_size", 64, MAX_UDP_PAYLOAD)? as u16;
            }
            IDLE_TIMEOUT => {
                self.idle_timeout = Duration::from_millis(within("idle_timeout", 1, MAX_IDLE_MS)?);
            }
            UDP_PAYLOAD => {
                self.max_udp_payload =
                    within("max_udp_payload", MIN_UDP_PAYLOAD, MAX_UDP_PAYLOAD)? as u16;
            }
            WINDOW_CAP => self.window_cap = within("window_cap", 1, MAX_WINDOW)? as u16,
            CODE_SEED => self.code_seed = u64::from_be_bytes(fixed(value, "code_seed")?),
            INITIAL_SOURCE => self.initial_source = fixed(value, "initial_source")?,
            ORIGINAL_DESTINATION => {
                self.original_destination = Some(fixed(value, "original_destination")?);
            }
            RETRY_SOURCE => self.retry_source = Some(fixed(value, "retry_source")?),
            _ => {
                let (words, rest) = value.as_chunks::<4>();
                let [chosen, spoken @ ..] = words else {
                    return Err(ParameterError("version_information"));
                };
                let spoken = spoken.iter().take(MAX_VERSIONS).map(|w| u32::from_be_bytes(*w));
                self.versions = (u32::from_be_bytes(*chosen), spoken.collect());
                if !rest.is_empty() || self.versions.0 == 0 || self.versions.1.contains(&0) {
                    return Err(ParameterError("version_information"));
                }
            }
        }
        Ok(())
    }
}

fn fixed<const N: usize>(value: &[u8], name: &'static str) -> Result<[u8; N], ParameterError> {
    value.try_into().map_err(|_| ParameterError(name))
}

fn varint(out: &mut Vec<u8>, value: u64) {
    let mut buffer = [0; 8];
    let mut writer = Writer::new(&mut buffer);
    // Callers stay below 2^62, so this always fits.
    if writer.varint(value).is_some() {
        let written = writer.written();
        out.extend_from_slice(&buffer[..written]);
    }
}

fn integer(out: &mut Vec<u8>, id: u64, value: u64) {
    varint(out, id);
    varint(out, varint_len(value) as u64);
    varint(out, value);
}

fn octets(out: &mut Vec<u8>, id: u64, value: &[u8]) {
    varint(out, id);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> TransportParameters {
        TransportParameters {
            initial_credit: 1000,
            code_seed: 0x0102_0304_0506_0708,
            initial_source: [9, 8, 7, 6],
            ..TransportParameters::default()
        }
    }

    /// The encoding of the default parameters must not change by accident.
    #[test]
    fn golden_octets() {
        let expected = [
            0x80, 0x00, 0x42, 0x70, 0x01, 0x01, // mode
        ];
        let encoded = sample().encode(0);
        // 0x4270 needs the four-octet form: the two-octet form ends at 0x3fff.
        assert_eq!(encoded[..6], expected);
        assert_eq!(encoded[6..15], [0x80, 0, 0x42, 0x71, 4, 0x84, 0, 0, 0]);
        assert_eq!(encoded[15..22], [0x80, 0, 0x42, 0x72, 2, 0x43, 0xe8]);
        assert_eq!(encoded[22..29], [0x80, 0, 0x42, 0x73, 2, 0x45, 0x9d]);
        assert_eq!(encoded[29..35], [0x01, 4, 0x80, 0, 0x75, 0x30]);
        assert_eq!(encoded[35..39], [0x03, 2, 0x45, 0xc0]);
        assert_eq!(encoded[39..46], [0x80, 0, 0x42, 0x74, 2, 0x41, 0]);
        assert_eq!(encoded[46..59], [0x80, 0, 0x42, 0x75, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(encoded[59..65], [0x0f, 4, 9, 8, 7, 6]);
        assert_eq!(encoded[65..75], [0x11, 8, 0x0b, 0xa7, 0x50, 1, 0x0b, 0xa7, 0x50, 1]);
        assert_eq!(encoded[75..], [27, 0]);
    }

    #[test]
    fn ranges_are_enforced_at_both_ends() {
        let cases: [(u64, u64, bool); 12] = [
            (MESSAGE_SIZE, 0, false),
            (MESSAGE_SIZE, 1, true),
            (MESSAGE_SIZE, MAX_MESSAGE_SIZE, true),
            (MESSAGE_SIZE, MAX_MESSAGE_SIZE + 1, false),
            (SYMBOL_SIZE, 63, false),
            (SYMBOL_SIZE, 64, true),
            (UDP_PAYLOAD, 1_199, false),
            (UDP_PAYLOAD, 65_528, false),
            (IDLE_TIMEOUT, 0, false),
            (WINDOW_CAP, 0, false),
            (WINDOW_CAP, MAX_WINDOW, true),
            (WINDOW_CAP, MAX_WINDOW + 1, false),
        ];
        for (id, value, good) in cases {
            let mut one = Vec::new();
            varint(&mut one, value);
            assert_eq!(sample().set(id, &one).is_ok(), good, "{id:#x} {value}");
        }
    }

    #[test]
    fn missing_and_repeated_ones_are_refused() {
        let encoded = sample().encode(0);
        assert_eq!(
            TransportParameters::decode(&encoded[6..]),
            Err(ParameterError("one is missing"))
        );
        let mut twice = encoded.clone();
        twice.extend_from_slice(&encoded[..6]);
        assert_eq!(TransportParameters::decode(&twice), Err(ParameterError("one stands twice")));
        for len in 0..encoded.len() - 2 {
            assert!(TransportParameters::decode(&encoded[..len]).is_err(), "cut at {len}");
        }
    }

    #[test]
    fn symbols_fit_the_path() {
        assert_eq!(symbol_size_for(1_472) + SHORT_OVERHEAD + REPAIR_HEADER, 1_472);
        assert_eq!(symbol_size_for(0), 0);
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(mode: u8, message in 1..=MAX_MESSAGE_SIZE, credit in 0..=MAX_VARINT,
            symbol in 64_u16..=65_527, idle in 1..=MAX_IDLE_MS, payload in 1_200_u16..=65_527,
            window in 1_u16..=4_096, code_seed: u64, initial_source: [u8; 4],
            original_destination: Option<[u8; 8]>, retry_source: Option<[u8; 8]>, grease: u64) {
            let parameters = TransportParameters {
                mode, max_message_size: message, initial_credit: credit, max_symbol_size: symbol,
                idle_timeout: Duration::from_millis(idle), max_udp_payload: payload,
                window_cap: window, code_seed, initial_source, original_destination, retry_source,
                ..TransportParameters::default()
            };
            prop_assert_eq!(TransportParameters::decode(&parameters.encode(grease)), Ok(parameters));
        }

        #[test]
        fn garbage_never_panics(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = TransportParameters::decode(&octets);
        }
    }
}
