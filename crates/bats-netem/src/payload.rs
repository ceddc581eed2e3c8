/// A packet as the link sees it.
pub trait Payload: Clone {
    /// Bytes.
    fn len(&self) -> usize;
    /// Changes one byte; `at` is below `len`.
    fn corrupt(&mut self, at: usize, flip: u8);
    /// Sets the ECN-CE mark.
    fn mark(&mut self);
    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The flow that the packet belongs to: its number, or a hash of its addresses and ports. Fair
    /// queueing, policers per flow, delays per flow and counters per flow go by it.
    fn flow(&self) -> u64 {
        0
    }
    /// Whether the packet is of an ECN-capable transport (RFC 3168 section 5): then a discipline may
    /// mark it instead of dropping it.
    fn is_ect(&self) -> bool {
        false
    }
}
