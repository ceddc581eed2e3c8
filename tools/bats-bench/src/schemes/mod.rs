//! The codes that are measured, behind one interface.

use crate::measure::Block;

mod raptorq;
mod reed_solomon;
mod rfc9426;
mod rlnc;
mod stream;

/// An erasure code under measurement.
pub trait Scheme {
    fn name(&self) -> &'static str;

    /// Most source symbols that are possible, or worth the time unless the scheme is asked for.
    fn largest(&self) -> usize;

    /// Makes `repairs` repair symbols from the block, including what has to be set up for it. Timed.
    fn encode(&mut self, block: &Block, repairs: usize);

    /// Makes what the receiver of this pattern of loss may get. Not timed.
    fn prepare(&mut self, block: &Block, lost: &[usize], repairs: usize);

    /// Receives all sources that were not lost, then repairs until the lost ones are restored;
    /// writes those to `restored` in order and returns how many repairs it took. Timed.
    fn decode(&mut self, block: &Block, lost: &[usize], restored: &mut [Vec<u8>]) -> usize;

    /// Repairs without which it cannot be done.
    fn least(&self, _count: usize, lost: usize) -> usize {
        lost
    }
}

/// All schemes, new, for blocks of `count` symbols.
pub fn all(count: usize) -> Vec<Box<dyn Scheme>> {
    vec![
        Box::new(stream::Stream::new()),
        Box::new(rfc9426::Rfc9426::new(count)),
        Box::new(raptorq::RaptorQ::new(count)),
        Box::new(reed_solomon::ReedSolomon::new()),
        Box::new(rlnc::Rlnc::new()),
    ]
}
