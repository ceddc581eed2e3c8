//! Transport parameters that the two ends exchange in the handshake, which authenticates them.
//!
//! A sequence of (identifier, length, value). Identifier and length are variable-length integers
//! (RFC 9000, section 16). A value is a big-endian integer of fixed width, a byte string, or empty
//! for a flag: [`TransportParameters::encode`] writes the widths, and times are in milliseconds.
//! Unknown identifiers are ignored, and every sender includes one random unknown one (greasing).

use core::time::Duration;

use super::coding::MAX_CODING_HEADER_LEN;
use super::short_header::SHORT_OVERHEAD;
use super::varint::{Reader, Writer};

/// From this length on, symbols are whole cache lines. It is the symbol length at an MTU of 1500.
const CACHE_LINE_SYMBOL: usize = 1_408;
/// Longest symbol, used with jumbo frames.
const MAX_SYMBOL: usize = 8_896;

/// Symbol size in bytes for this UDP payload, with room for the header of a recoded packet.
#[inline]
pub fn symbol_size_for(udp_payload: u16) -> usize {
    let room = usize::from(udp_payload).saturating_sub(SHORT_OVERHEAD + MAX_CODING_HEADER_LEN);
    let room = if room >= CACHE_LINE_SYMBOL { room & !63 } else { room };
    room.clamp(64, MAX_SYMBOL)
}

/// The transport parameters of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportParameters {
    /// Transport mode.
    pub mode: u8,
    /// Longest message accepted, in bytes.
    pub max_message_size: u64,
    /// Longest symbol accepted, in bytes.
    pub max_symbol_size: u16,
    /// Number of symbols that the peer may send before it gets further credit.
    pub initial_credit: u64,
    /// Idle time-out of this end (RFC 9000, section 10.1).
    pub idle_timeout: Duration,
    /// Maximum number of symbols that a repair may cover.
    pub window_cap: u16,
    /// Seed of the coefficients of this end's repairs.
    pub code_seed: u64,
    /// Longest UDP payload accepted, in bytes.
    pub max_udp_payload: u16,
    /// Connection ID that the peer must put into packets to this end.
    pub connection_id: [u8; 4],
    /// Whether this end sends and accepts batch rank reports of relayed flows.
    pub batch_ranks: bool,
    /// Bits for the layer above; this layer does not interpret them.
    pub application: u8,
    /// Server only: destination connection ID of the client's first packet, which exposes a forged
    /// Retry (RFC 9000, section 7.3).
    pub original_destination: Option<[u8; 8]>,
    /// Server only: bytes of early data accepted on a connection, duplicates included; 0 for none.
    /// The client stores it with the session.
    pub early_limit: u64,
    /// Server only: what ends a stateless reset of this connection.
    pub reset_token: Option<[u8; 16]>,
    /// Increases with each start of this end; 0 if it does not say.
    pub instance: u64,
    /// Set if this end has channels.
    pub channels: Option<ChannelParameters>,
}

/// Initial limits of the peer's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelParameters {
    /// Number of channels that it may open.
    pub channels: u64,
    /// Bytes that it may send on each channel.
    pub channel_credit: u64,
    /// Bytes that it may send on all channels together.
    pub session_credit: u64,
    /// A message may begin while the messages before it have taken fewer bytes.
    pub message_credit: u64,
}

impl ChannelParameters {
    fn fields(&self) -> [u64; 4] {
        [self.channels, self.channel_credit, self.session_credit, self.message_credit]
    }

    fn encode(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (at, field) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.fields()) {
            *at = field.to_be_bytes();
        }
        bytes
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Self> {
        let mut field = || reader.array().map(u64::from_be_bytes);
        let parameters = Self {
            channels: field()?,
            channel_credit: field()?,
            session_credit: field()?,
            message_credit: field()?,
        };
        parameters.fields().iter().all(|&field| field <= MAX_CHANNEL_FIELD).then_some(parameters)
    }
}

/// The largest variable-length integer: credit is announced with these later.
const MAX_CHANNEL_FIELD: u64 = (1 << 62) - 1;

impl Default for TransportParameters {
    fn default() -> Self {
        Self {
            mode: 1,
            max_message_size: 64 << 20,
            max_symbol_size: CACHE_LINE_SYMBOL as u16,
            initial_credit: 0,
            idle_timeout: Duration::from_secs(30),
            window_cap: 256,
            code_seed: 0,
            max_udp_payload: 1_472,
            connection_id: [0; 4],
            batch_ranks: false,
            application: 0,
            original_destination: None,
            early_limit: 0,
            reset_token: None,
            instance: 0,
            channels: None,
        }
    }
}

/// Longest idle time-out sent or accepted, 35 years: no time-out in practice.
const MAX_IDLE_MILLIS: u64 = 1 << 40;

/// Upper bound of the encoded length of all parameters, in bytes.
const MAX_ENCODED: usize = 256;

impl TransportParameters {
    /// Encodes the parameters; `grease` selects the unknown parameter.
    pub fn encode(&self, grease: u8) -> Vec<u8> {
        let mut buffer = vec![0; MAX_ENCODED];
        let mut writer = Writer::new(&mut buffer);
        let mut put = |id: u64, value: &[u8]| {
            writer.varint(id).and_then(|()| writer.varint(value.len() as u64));
            writer.bytes(value);
        };
        put(1, &[self.mode]);
        put(2, &self.max_message_size.to_be_bytes());
        put(3, &self.max_symbol_size.to_be_bytes());
        put(4, &self.initial_credit.to_be_bytes());
        put(
            5,
            &(self.idle_timeout.as_millis().min(u128::from(MAX_IDLE_MILLIS)) as u64).to_be_bytes(),
        );
        put(6, &self.window_cap.to_be_bytes());
        put(7, &self.code_seed.to_be_bytes());
        put(8, &self.max_udp_payload.to_be_bytes());
        put(9, &self.connection_id);
        if let Some(original) = &self.original_destination {
            put(10, original);
        }
        if self.batch_ranks {
            put(11, &[]);
        }
        if self.early_limit > 0 {
            put(12, &self.early_limit.to_be_bytes());
        }
        if let Some(token) = &self.reset_token {
            put(13, token);
        }
        if let Some(channels) = &self.channels {
            put(14, &channels.encode());
        }
        if self.instance != 0 {
            put(15, &self.instance.to_be_bytes());
        }
        if self.application != 0 {
            put(16, &[self.application]);
        }
        put(1_000 + u64::from(grease), &[grease; 3]);
        let written = writer.written();
        buffer.truncate(written);
        buffer
    }

    /// Reads parameters. Returns `None` if they are malformed or out of range.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut parameters = Self::default();
        while !reader.is_empty() {
            let id = reader.varint()?;
            let len = usize::try_from(reader.varint()?).ok()?;
            let mut value = Reader::new(reader.take(len)?);
            match id {
                1 => parameters.mode = value.u8()?,
                2 => parameters.max_message_size = u64::from_be_bytes(value.array()?),
                3 => parameters.max_symbol_size = value.u16()?,
                4 => parameters.initial_credit = u64::from_be_bytes(value.array()?),
                5 => {
                    let millis = u64::from_be_bytes(value.array()?);
                    parameters.idle_timeout = Duration::from_millis(millis.min(MAX_IDLE_MILLIS));
                }
                6 => parameters.window_cap = value.u16()?,
                7 => parameters.code_seed = u64::from_be_bytes(value.array()?),
                8 => parameters.max_udp_payload = value.u16()?,
                9 => parameters.connection_id = value.array()?,
                10 => parameters.original_destination = Some(value.array()?),
                11 => parameters.batch_ranks = true,
                12 => parameters.early_limit = u64::from_be_bytes(value.array()?),
                13 => parameters.reset_token = Some(value.array()?),
                14 => parameters.channels = Some(ChannelParameters::decode(&mut value)?),
                15 => parameters.instance = u64::from_be_bytes(value.array()?),
                16 => parameters.application = value.u8()?,
                _ => continue,
            }
            if !value.is_empty() {
                return None;
            }
        }
        let in_range = (64..=MAX_SYMBOL).contains(&usize::from(parameters.max_symbol_size))
            && (16..=512).contains(&parameters.window_cap)
            && parameters.max_udp_payload >= 1_200
            && parameters.initial_credit < 1 << 48
            && parameters.idle_timeout >= Duration::from_millis(100)
            && parameters.max_message_size <= 1 << 40;
        in_range.then_some(parameters)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn symbols_fit_their_packets() {
        assert_eq!(symbol_size_for(1_472), 1_408);
        for payload in 1_200..9_000 {
            let packet = symbol_size_for(payload) + SHORT_OVERHEAD + MAX_CODING_HEADER_LEN;
            assert!(packet <= usize::from(payload), "{payload}");
        }
    }

    #[test]
    fn large_symbols_are_whole_cache_lines() {
        for (payload, symbol) in [
            (0, 64),
            (115, 64),
            (116, 65),
            (1_458, 1_407),
            (1_459, 1_408),
            (1_522, 1_408),
            (1_523, 1_472),
            (9_000, 8_896),
            (u16::MAX, 8_896),
        ] {
            assert_eq!(symbol_size_for(payload), symbol, "{payload}");
        }
    }

    /// Identifier, length, value. A parameter that is not sent keeps its default.
    #[test]
    fn golden_bytes() {
        let parameters = TransportParameters {
            mode: 2,
            max_message_size: 0x0102,
            max_symbol_size: 0x0304,
            initial_credit: 0x05,
            idle_timeout: Duration::from_millis(0x0607),
            window_cap: 0x0108,
            code_seed: 0x09,
            max_udp_payload: 0x0a0b,
            connection_id: [1, 2, 3, 4],
            batch_ranks: true,
            application: 0x0c,
            original_destination: Some([5; 8]),
            early_limit: 0x0d,
            reset_token: Some([6; 16]),
            instance: 0x0e,
            channels: Some(ChannelParameters {
                channels: 1,
                channel_credit: 2,
                session_credit: 3,
                message_credit: 4,
            }),
        };
        let fields = [1, 2, 3, 4].map(|field| [0, 0, 0, 0, 0, 0, 0, field]).concat();
        let channels = [&[14, 32][..], &fields].concat();
        let optional: [&[u8]; 7] = [
            &[10, 8, 5, 5, 5, 5, 5, 5, 5, 5],
            &[11, 0],
            &[12, 8, 0, 0, 0, 0, 0, 0, 0, 0x0d],
            &[13, 16, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6],
            &channels,
            &[15, 8, 0, 0, 0, 0, 0, 0, 0, 0x0e],
            &[16, 1, 0x0c],
        ];
        let (grease, always): (&[u8], [&[u8]; 9]) = (
            &[0x43, 0xe9, 3, 1, 1, 1],
            [
                &[1, 1, 2],
                &[2, 8, 0, 0, 0, 0, 0, 0, 1, 2],
                &[3, 2, 3, 4],
                &[4, 8, 0, 0, 0, 0, 0, 0, 0, 5],
                &[5, 8, 0, 0, 0, 0, 0, 0, 6, 7],
                &[6, 2, 1, 8],
                &[7, 8, 0, 0, 0, 0, 0, 0, 0, 9],
                &[8, 2, 0x0a, 0x0b],
                &[9, 4, 1, 2, 3, 4],
            ],
        );
        let bytes = [&always.concat()[..], &optional.concat(), grease].concat();
        assert_eq!(parameters.encode(1), bytes);
        assert_eq!(TransportParameters::decode(&bytes), Some(parameters.clone()));
        let without = TransportParameters {
            batch_ranks: false,
            application: 0,
            original_destination: None,
            early_limit: 0,
            reset_token: None,
            instance: 0,
            channels: None,
            ..parameters
        };
        let bytes = [&always.concat()[..], grease].concat();
        assert_eq!(without.encode(1), bytes);
        assert_eq!(TransportParameters::decode(&bytes), Some(without));
        assert_eq!(TransportParameters::decode(&[]), Some(TransportParameters::default()));
    }

    #[test]
    fn parameter_values_are_accepted_up_to_their_limits() {
        let read = |parameters: TransportParameters| {
            TransportParameters::decode(&parameters.encode(0)) == Some(parameters)
        };
        let default = TransportParameters::default;
        for (symbol, taken) in [(63, false), (64, true), (8_896, true), (8_897, false)] {
            assert_eq!(read(TransportParameters { max_symbol_size: symbol, ..default() }), taken);
        }
        for (window_cap, taken) in [(15, false), (16, true), (512, true), (513, false)] {
            assert_eq!(read(TransportParameters { window_cap, ..default() }), taken);
        }
        for (max_udp_payload, taken) in [(1_199, false), (1_200, true), (u16::MAX, true)] {
            assert_eq!(read(TransportParameters { max_udp_payload, ..default() }), taken);
        }
        for (initial_credit, taken) in [((1 << 48) - 1, true), (1 << 48, false)] {
            assert_eq!(read(TransportParameters { initial_credit, ..default() }), taken);
        }
        for (millis, taken) in
            [(99, false), (100, true), (MAX_IDLE_MILLIS, true), (MAX_IDLE_MILLIS + 1, false)]
        {
            let idle_timeout = Duration::from_millis(millis);
            assert_eq!(read(TransportParameters { idle_timeout, ..default() }), taken, "{millis}");
        }
        for (max_message_size, taken) in [(1 << 40, true), ((1 << 40) + 1, false)] {
            assert_eq!(read(TransportParameters { max_message_size, ..default() }), taken);
        }
        for (message_credit, taken) in [((1 << 62) - 1, true), (1 << 62, false)] {
            let (channels, channel_credit, session_credit) = (1, 2, 3);
            let channels = Some(ChannelParameters {
                channels,
                channel_credit,
                session_credit,
                message_credit,
            });
            assert_eq!(read(TransportParameters { channels, ..default() }), taken);
        }
        // Values that are longer or shorter than their type.
        assert_eq!(TransportParameters::decode(&[1, 2, 0, 0]), None);
        assert_eq!(TransportParameters::decode(&[3, 1, 9]), None);
        assert_eq!(TransportParameters::decode(&[3, 2, 9]), None);
    }

    /// Longer times are clamped, not wrapped.
    #[test]
    fn long_idle_timeouts_are_clamped() {
        let parameters =
            TransportParameters { idle_timeout: Duration::MAX, ..TransportParameters::default() };
        let read = TransportParameters::decode(&parameters.encode(0)).unwrap();
        assert_eq!(read.idle_timeout, Duration::from_millis(1 << 40));
        let mut bytes = vec![5, 8];
        bytes.extend(u64::MAX.to_be_bytes());
        assert_eq!(TransportParameters::decode(&bytes), Some(read));
    }

    proptest! {
        #[test]
        fn decoding_inverts_encoding(mode: u8, message in 0_u64..1 << 40, symbol in 64_u16..8896,
                credit in 0_u64..1 << 40, idle in 100_u64..1 << 30, cap in 16_u16..512, seed: u64,
                cid: [u8; 4], original: Option<[u8; 8]>, batch_ranks: bool,
                application: u8, early_limit: u64,
                reset_token: Option<[u8; 16]>, instance: u64, grease: u8) {
            let parameters = TransportParameters {
                mode, max_message_size: message, max_symbol_size: symbol, initial_credit: credit,
                idle_timeout: Duration::from_millis(idle), window_cap: cap, code_seed: seed,
                max_udp_payload: 1_472, connection_id: cid, batch_ranks,
                application, original_destination: original, early_limit, reset_token,
                instance,
                channels: None,
            };
            prop_assert_eq!(TransportParameters::decode(&parameters.encode(grease)), Some(parameters));
        }

        #[test]
        fn decoded_parameters_encode_to_the_same_values(idle: u64) {
            let mut bytes = vec![5, 8];
            bytes.extend_from_slice(&idle.max(100).to_be_bytes());
            let parameters = TransportParameters::decode(&bytes).unwrap();
            prop_assert_eq!(TransportParameters::decode(&parameters.encode(7)), Some(parameters));
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = TransportParameters::decode(&bytes);
        }
    }
}
