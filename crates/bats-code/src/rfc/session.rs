//! Encoding of the parameters that a decoder needs (RFC 9426, section 2.3.1: M, q, K, T, DD), and
//! of the precode flag, for a message that sets up a session.
//!
//! The RFC does not define the layout; this one is specific to OpenBATS. Integers are big-endian.
//!
//! ```text
//! | flags, 8 | K, 16 | T, 16 | form specific ...
//! flags: bits 0-2 Mq, bit 3 precode, bits 4-5 form of DD, bits 6-7 zero
//! form 0: dense, all weight on degree K
//! form 1: the recommended distribution for M, K and precode
//! form 2: number of pairs, 16; pairs (degree, 16; weight, 32), degrees ascending
//! ```
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use alloc::vec::Vec;

use super::degree::DegreeDistribution;
use super::padding::MAX_PACKET_SIZE;
use super::parameters::{InnerCode, ParameterError};
use super::sampler::OuterCode;

const PRECODE: u8 = 1 << 3;
const FORM_SHIFT: u8 = 4;

/// The parameters that both ends of a session must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionParameters {
    code: OuterCode,
    packet_size: u16,
}

impl SessionParameters {
    /// The parameters of a code with T = `packet_size`.
    ///
    /// # Errors
    /// [`ParameterError::PacketSize`].
    pub fn new(code: OuterCode, packet_size: usize) -> Result<Self, ParameterError> {
        match u16::try_from(packet_size) {
            Ok(size) if size > 0 && packet_size <= MAX_PACKET_SIZE => {
                Ok(Self { code, packet_size: size })
            }
            _ => Err(ParameterError::PacketSize),
        }
    }

    /// K, M, q, DD and precode.
    #[must_use]
    pub fn code(&self) -> &OuterCode {
        &self.code
    }

    /// The code, for a [`BatchCache`](super::BatchCache).
    #[must_use]
    pub fn into_code(self) -> OuterCode {
        self.code
    }

    /// T, in bytes.
    #[must_use]
    pub fn packet_size(&self) -> usize {
        self.packet_size.into()
    }

    /// Appends the encoded parameters: 5 bytes, and for a distribution that is neither dense nor
    /// recommended 2 bytes and 6 for each degree.
    pub fn write(&self, output: &mut Vec<u8>) {
        let code = &self.code;
        let (k, inner, precode) =
            (code.source_packets(), code.inner_code(), code.precode().is_some());
        let degrees = code.degrees();
        let form = if *degrees == DegreeDistribution::dense(k) {
            0
        } else if *degrees == DegreeDistribution::recommended(inner, k, precode) {
            1
        } else {
            2
        };
        output.push(inner.mq() | if precode { PRECODE } else { 0 } | form << FORM_SHIFT);
        output.extend_from_slice(&(k as u16).to_be_bytes());
        output.extend_from_slice(&self.packet_size.to_be_bytes());
        if form == 2 {
            output.extend_from_slice(&(degrees.pairs().len() as u16).to_be_bytes());
            for (degree, weight) in degrees.pairs() {
                output.extend_from_slice(&(degree as u16).to_be_bytes());
                output.extend_from_slice(&weight.to_be_bytes());
            }
        }
    }

    /// Parses parameters. They must fill `bytes`.
    ///
    /// # Errors
    /// [`ParameterError`]: the parameters are malformed or invalid.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParameterError> {
        let (head, rest) = bytes.split_first_chunk::<5>().ok_or(ParameterError::Encoding)?;
        let &[flags, k0, k1, t0, t1] = head;
        let inner = InnerCode::from_mq(flags & 7)?;
        let precode = flags & PRECODE != 0;
        let k = u32::from(u16::from_be_bytes([k0, k1]));
        let (degrees, rest) = match flags >> FORM_SHIFT {
            0 => (DegreeDistribution::dense(k), rest),
            1 => (DegreeDistribution::recommended(inner, k, precode), rest),
            2 => parse_pairs(rest)?,
            _ => return Err(ParameterError::Encoding),
        };
        if !rest.is_empty() {
            return Err(ParameterError::Encoding);
        }
        let code = OuterCode::new(k, inner, degrees)?;
        let code = if precode { code.with_precode() } else { code };
        Self::new(code, u16::from_be_bytes([t0, t1]).into())
    }
}

fn parse_pairs(bytes: &[u8]) -> Result<(DegreeDistribution, &[u8]), ParameterError> {
    let (count, rest) = bytes.split_first_chunk::<2>().ok_or(ParameterError::Encoding)?;
    let count = usize::from(u16::from_be_bytes(*count));
    let (pairs, rest) = rest.split_at_checked(6 * count).ok_or(ParameterError::Encoding)?;
    let mut last = 0;
    let mut parsed = Vec::with_capacity(count);
    for pair in pairs.chunks_exact(6) {
        let &[d0, d1, w0, w1, w2, w3] = pair else { return Err(ParameterError::Encoding) };
        let degree = u32::from(u16::from_be_bytes([d0, d1]));
        let weight = u32::from_be_bytes([w0, w1, w2, w3]);
        // Each distribution has exactly one encoding.
        if degree <= last || weight == 0 {
            return Err(ParameterError::Degrees);
        }
        last = degree;
        parsed.push((degree, weight));
    }
    Ok((DegreeDistribution::from_pairs(parsed)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rfc::{Field, Table};

    fn inner() -> InnerCode {
        InnerCode::new(32, Field::Byte).unwrap()
    }

    fn parameters(degrees: DegreeDistribution, precode: bool) -> SessionParameters {
        let code = OuterCode::new(2500, inner(), degrees).unwrap();
        let code = if precode { code.with_precode() } else { code };
        SessionParameters::new(code, 1408).unwrap()
    }

    fn bytes(parameters: &SessionParameters) -> Vec<u8> {
        let mut bytes = Vec::new();
        parameters.write(&mut bytes);
        bytes
    }

    #[test]
    fn encoding_matches_golden_bytes() {
        let dense = parameters(DegreeDistribution::dense(2500), false);
        assert_eq!(bytes(&dense), [0x07, 0x09, 0xc4, 0x05, 0x80]);
        let recommended = DegreeDistribution::recommended(inner(), 2500, true);
        assert_eq!(bytes(&parameters(recommended, true)), [0x1f, 0x09, 0xc4, 0x05, 0x80]);
        let own = DegreeDistribution::from_pairs([(3, 7), (40, 258)]).unwrap();
        assert_eq!(
            bytes(&parameters(own, false)),
            [0x27, 0x09, 0xc4, 0x05, 0x80, 0, 2, 0, 3, 0, 0, 0, 7, 0, 40, 0, 0, 1, 2]
        );
    }

    #[test]
    fn parameters_survive_a_round_trip() {
        for precode in [false, true] {
            for degrees in [
                DegreeDistribution::dense(2500),
                DegreeDistribution::recommended(inner(), 2500, precode),
                DegreeDistribution::table(Table::M16FourHops),
                DegreeDistribution::from_pairs([(65_535, u32::MAX)]).unwrap(),
            ] {
                let parameters = parameters(degrees, precode);
                assert_eq!(SessionParameters::parse(&bytes(&parameters)), Ok(parameters));
            }
        }
    }

    #[test]
    fn malformed_parameters_are_errors() {
        let valid = bytes(&parameters(DegreeDistribution::table(Table::M8OneHop), false));
        for len in 0..valid.len() {
            let result = SessionParameters::parse(&valid[..len]);
            assert_eq!(result, Err(ParameterError::Encoding));
        }
        let parse = |bytes: &[u8]| SessionParameters::parse(bytes).unwrap_err();
        assert_eq!(parse(&[valid, alloc::vec![0]].concat()), ParameterError::Encoding);
        assert_eq!(parse(&[0x30, 0, 1, 0, 1]), ParameterError::Encoding);
        assert_eq!(parse(&[0x40, 0, 1, 0, 1]), ParameterError::Encoding);
        assert_eq!(parse(&[0, 0, 0, 0, 1]), ParameterError::SourcePackets);
        assert_eq!(parse(&[0, 0, 1, 0, 0]), ParameterError::PacketSize);
        assert_eq!(parse(&[0, 0, 1, 0xff, 0xff]), ParameterError::PacketSize);
        assert_eq!(parse(&[0x20, 0, 1, 0, 1, 0, 0]), ParameterError::Degrees);
        let twice = [0x20, 0, 1, 0, 1, 0, 2, 0, 3, 0, 0, 0, 1, 0, 3, 0, 0, 0, 1];
        assert_eq!(parse(&twice), ParameterError::Degrees);
    }
}
