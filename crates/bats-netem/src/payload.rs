/// A packet as a link sees it.
pub trait Payload: Clone {
    /// Size in bytes.
    fn len(&self) -> usize;
    /// Corrupts the byte at `at`, which is below `len`.
    fn corrupt(&mut self, at: usize, flip: u8);
    /// Sets the ECN-CE mark.
    fn mark(&mut self);
    /// Whether the packet is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The flow of the packet: a number, or a hash of addresses and ports. Used by fair queueing,
    /// and by policers, delays and counters per flow.
    fn flow(&self) -> u64 {
        0
    }
    /// Whether the packet is from an ECN-capable transport (RFC 3168 section 5), so that a queue
    /// discipline may mark it instead of dropping it.
    fn is_ect(&self) -> bool {
        false
    }
}
