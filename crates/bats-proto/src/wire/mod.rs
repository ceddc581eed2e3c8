//! The wire format: hop header, coding header, frames, each in its file with its picture.

pub mod frame;
pub mod handshake_frame;
pub mod long_header;
pub mod parameters;
pub mod short_header;
pub mod varint;
pub mod version;
