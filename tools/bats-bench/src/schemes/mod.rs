//! The erasure codes under measurement, with a common interface.

use crate::block::Block;

mod raptorq;
mod reed_solomon;
mod rfc9426;
mod rlnc;
mod stream;

/// An erasure code under measurement.
pub trait Scheme {
    fn name(&self) -> &'static str;

    /// Maximum number of source symbols, by the scheme's limits or for a reasonable run time.
    fn largest(&self) -> usize;

    /// Makes `repairs` repair symbols from the block, including the set-up for it. Timed.
    fn encode(&mut self, block: &Block, repairs: usize);

    /// Makes the packets that a receiver with this loss pattern gets. Not timed.
    fn prepare(&mut self, block: &Block, lost: &[usize], repairs: usize);

    /// Receives all source symbols that were not lost, then repairs until the lost ones are
    /// decoded. Writes these to `restored` in order and returns the number of repairs used. Timed.
    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize;

    /// Minimum number of repairs.
    fn min_repairs(&self, _count: usize, lost: usize) -> usize {
        lost
    }
}

/// Creates all schemes for blocks of `count` symbols.
pub fn all(count: usize) -> Vec<Box<dyn Scheme>> {
    vec![
        Box::new(stream::Stream::new()),
        Box::new(rfc9426::Rfc9426::new(count)),
        Box::new(raptorq::RaptorQ::new(count)),
        Box::new(reed_solomon::ReedSolomon::new()),
        Box::new(rlnc::Rlnc::new()),
    ]
}
