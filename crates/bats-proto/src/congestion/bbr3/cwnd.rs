//! The congestion window and its last-known good value (draft-ietf-ccwg-bbr-06 section 5.6.4).

/// C.cwnd, in bytes.
#[derive(Debug)]
pub(super) struct Cwnd {
    bytes: u64,
    /// prior_cwnd; 0 before the window was saved.
    prior: u64,
}

impl Cwnd {
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, prior: 0 }
    }

    /// C.cwnd.
    pub(super) fn get(&self) -> u64 {
        self.bytes
    }

    /// Sets the window; its saved value stays.
    pub(super) fn set(&mut self, bytes: u64) {
        self.bytes = bytes;
    }

    /// SaveCwnd, section 5.6.4.4. While the window `is_modulated`, by a recovery or ProbeRTT, the saved value does
    /// not fall.
    pub(super) fn save(&mut self, is_modulated: bool) {
        let floor = if is_modulated { self.prior } else { 0 };
        self.prior = self.bytes.max(floor);
    }

    /// RestoreCwnd, section 5.6.4.4.
    pub(super) fn restore(&mut self) {
        self.bytes = self.bytes.max(self.prior);
    }

    /// Grows by what was acknowledged up to `most`, when the pipe has been full.
    pub(super) fn grow_to(&mut self, newly_acked: u64, most: u64) {
        self.bytes = (self.bytes + newly_acked).min(most);
    }

    /// Grows by what was acknowledged.
    pub(super) fn grow(&mut self, newly_acked: u64) {
        self.bytes += newly_acked;
    }

    /// Raises the window to at least `least`.
    pub(super) fn raise(&mut self, least: u64) {
        self.bytes = self.bytes.max(least);
    }

    /// Reduces the window to at most `most`.
    pub(super) fn bound(&mut self, most: u64) {
        self.bytes = self.bytes.min(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_window_falls_only_while_nothing_modulates_it() {
        let mut cwnd = Cwnd::new(100);
        cwnd.save(false);
        cwnd.set(10);
        cwnd.save(true);
        cwnd.restore();
        assert_eq!(cwnd.get(), 100);
        cwnd.set(10);
        cwnd.save(false);
        cwnd.restore();
        assert_eq!(cwnd.get(), 10);
    }
}
