//! max_bw, the windowed maximum of the delivery rate (draft-ietf-ccwg-bbr-06 sections 5.5.2 to 5.5.6).

use super::windowed_filter::WindowedMax;
use crate::congestion::RateSample;

/// MaxBwFilterLen in ProbeBW cycles, section 2.11.
const FILTER_CYCLES: u64 = 2;

/// The filter and its virtual time.
#[derive(Debug, Default)]
pub(super) struct MaxBw {
    filter: WindowedMax,
    cycle: u64,
}

impl MaxBw {
    /// max_bw in bytes per second; 0 before the first sample.
    pub(super) fn get(&self) -> u64 {
        self.filter.max()
    }

    /// UpdateMaxBw.
    pub(super) fn update(&mut self, rs: &RateSample) {
        if rs.delivery_rate > 0 && (rs.delivery_rate >= self.get() || !rs.is_app_limited) {
            self.filter.update(rs.delivery_rate, self.cycle, FILTER_CYCLES);
        }
    }

    /// Takes a rate in bytes per second that is known otherwise.
    pub(super) fn raise(&mut self, rate: u64) {
        self.filter.update(rate, self.cycle, FILTER_CYCLES);
    }

    /// AdvanceMaxBwFilter.
    pub(super) fn advance(&mut self) {
        self.cycle += 1;
    }
}
