//! The wire format: hop header, coding header and frames. Each file documents its layout.

pub mod batch_rank;
pub mod coding;
pub mod flow;
pub mod frame;
pub mod long_header;
pub mod message;
pub mod parameters;
pub mod rank;
pub mod short_header;
pub mod varint;
