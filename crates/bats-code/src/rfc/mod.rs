//! The BATS code of RFC 9426: a source codes blocks of K source packets into any number of batches
//! of M coded packets, and relays recode within a batch.
//!
//! ```text
//! source        K source packets -> Encoder -> batches of M coded packets
//! relay         coded packets of one batch -> Recoder -> recoded packets of the batch
//! destination   packets of any batches -> Decoder -> K source packets
//! ```
//!
//! Both ends must share an [`OuterCode`]: K, M, q and the degree distribution. Relays need only the
//! [`InnerCode`] (M and q) and T. A packet on the wire has the batch ID, the coefficient vector of
//! CO bytes, T bytes of data, and fields of the transport.
//!
//! Some points of the RFC are open or misprinted; `docs/rfc9426.md` states how this module reads
//! them (references such as D1 are to that document). The module does not need the standard
//! library.
//!
//! ```
//! use bats_code::rfc::{
//!     BatchCache, Decoder, Encoder, Field, InnerCode, Limits, OuterCode, Progress, Recoder,
//!     source_packets,
//! };
//!
//! let data = vec![7; 10_000];
//! let packet_size = 100;
//! let inner = InnerCode::new(16, Field::Byte)?;
//! let k = source_packets(data.len() as u64, packet_size)?;
//! let cache = BatchCache::new(OuterCode::recommended(k, inner)?, 1 << 20);
//! let mut encoder = Encoder::new(cache.clone(), &data, packet_size)?;
//! let limits = Limits::for_code(encoder.code(), packet_size);
//! let mut decoder = Decoder::new(cache, packet_size, limits)?;
//!
//! let mut packet = vec![0; encoder.coded_packet_len()];
//! for batch_id in 0.. {
//!     let mut relay = Recoder::new(inner, packet_size, batch_id)?;
//!     for column in 0..16 {
//!         encoder.encode(batch_id, column, &mut [&mut packet])?;
//!         relay.push(&packet)?;
//!     }
//!     for _ in 0..12 {
//!         relay.recode_random(&mut packet)?;
//!         decoder.push(batch_id, &packet)?;
//!     }
//!     if decoder.decode()? == Progress::Complete {
//!         break;
//!     }
//! }
//! let mut received = vec![0; data.len()];
//! assert_eq!(decoder.copy_block(&mut received)?, data.len());
//! assert_eq!(received, data);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod apply;
mod batch;
mod cache;
mod decoder;
mod degree;
mod echelon;
mod encoder;
mod matrix;
mod padding;
mod parameters;
mod precode;
mod recoder;
mod sampler;
mod session;
mod tables;
mod tinymt32;

pub use batch::Batch;
pub use cache::BatchCache;
pub use decoder::{DecodeError, Decoder, DecoderStats, Limits, Progress, Reception};
pub use degree::{DegreeDistribution, MAX_DEGREE, MAX_DENSE};
pub use encoder::{EncodeError, Encoder};
pub use padding::{
    MAX_PACKET_SIZE, MAX_SOURCE_PACKETS, PaddingError, pad, padding_len, source_packets,
};
pub use parameters::{
    Field, InnerCode, MAX_BATCH_SIZE, MAX_SHORT_BATCH_ID, PacketHeader, ParameterError,
};
pub use precode::Precode;
pub use recoder::{RecodeError, Recoder};
pub use sampler::OuterCode;
pub use session::SessionParameters;
pub use tables::Table;
pub use tinymt32::TinyMt32;
