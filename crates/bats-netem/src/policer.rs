use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

use bats_types::Timestamp;

use crate::noise;
use crate::rate::WORK_PER_BYTE;

/// Maximum number of flows with a bucket of their own. All further flows share one bucket.
pub const MAX_POLICED_FLOWS: usize = 65_536;

/// A token bucket that drops without queueing, before the queue (the committed bucket of RFC 2697;
/// `police` of Linux tc).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policer {
    /// Token rate in bit/s of frames.
    pub rate_bps: u64,
    /// Size of the bucket in bytes of frames. The bucket is full at the start. A longer frame never
    /// conforms.
    pub burst_bytes: usize,
    /// Whether each flow has a bucket of its own.
    pub per_flow: bool,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bits times 10^9.
    tokens: u128,
    at: Timestamp,
}

impl Bucket {
    fn full(policer: &Policer, now: Timestamp) -> Self {
        Self { tokens: depth(policer), at: now }
    }

    /// Whether a frame conforms. If so, takes its tokens.
    fn take(&mut self, policer: &Policer, now: Timestamp, bytes: usize) -> bool {
        let elapsed = (now - self.at).as_nanos().min(u64::MAX.into());
        let gained = u128::from(policer.rate_bps).saturating_mul(elapsed);
        self.tokens = self.tokens.saturating_add(gained).min(depth(policer));
        self.at = self.at.max(now);
        let needed = bytes as u128 * WORK_PER_BYTE;
        if needed > self.tokens {
            return false;
        }
        self.tokens -= needed;
        true
    }
}

fn depth(policer: &Policer) -> u128 {
    policer.burst_bytes as u128 * WORK_PER_BYTE
}

/// Hashes flow numbers equally in every run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlowHasher(u64);

impl Hasher for FlowHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = noise::word(self.0, byte.into());
        }
    }

    fn write_u64(&mut self, flow: u64) {
        self.0 = noise::word(self.0, flow);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// The state of a policer.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    shared: Option<Bucket>,
    own: HashMap<u64, Bucket, BuildHasherDefault<FlowHasher>>,
}

impl Buckets {
    /// Whether a frame passes the policer.
    pub(crate) fn admit(
        &mut self,
        policer: &Policer,
        now: Timestamp,
        flow: u64,
        bytes: usize,
    ) -> bool {
        let full = || Bucket::full(policer, now);
        let bucket = if policer.per_flow
            && (self.own.len() < MAX_POLICED_FLOWS || self.own.contains_key(&flow))
        {
            self.own.entry(flow).or_insert_with(full)
        } else {
            self.shared.get_or_insert_with(full)
        };
        bucket.take(policer, now, bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_policer_passes_a_burst_then_its_rate() {
        let policer = Policer { rate_bps: 8_000_000, burst_bytes: 5_000, per_flow: false };
        let mut buckets = Buckets::default();
        let mut admit =
            |micros: u64, bytes| buckets.admit(&policer, Timestamp::from_micros(micros), 0, bytes);
        // The first 5,000 bytes pass at once, then 1,000 bytes per millisecond.
        let passed: Vec<bool> = (0..6).map(|_| admit(10, 1_000)).collect();
        assert_eq!(passed, [true, true, true, true, true, false]);
        assert!(!admit(1_009, 1_000));
        assert!(admit(1_010, 1_000));
        assert!(!admit(1_010, 1));
        // An idle time fills the bucket, but not above its size.
        assert!(!admit(900_000, 5_001));
        assert!(admit(900_000, 5_000));
        assert!(!admit(900_000, 1));
    }

    #[test]
    fn flows_have_separate_buckets_or_share_one() {
        let shared = Policer { rate_bps: 1, burst_bytes: 1_000, per_flow: false };
        let own = Policer { per_flow: true, ..shared };
        let now = Timestamp::from_millis(1);
        let passed = |policer: &Policer| {
            let mut buckets = Buckets::default();
            (0..10).filter(|&flow| buckets.admit(policer, now, flow, 1_000)).count()
        };
        assert_eq!((passed(&shared), passed(&own)), (1, 10));
        let mut buckets = Buckets::default();
        let many = MAX_POLICED_FLOWS as u64 + 10;
        let passed = (0..many).filter(|&flow| buckets.admit(&own, now, flow, 1_000)).count();
        assert_eq!(passed, MAX_POLICED_FLOWS + 1);
    }

    proptest! {
        #[test]
        fn no_interval_passes_more_than_burst_plus_rate(
            rate_bps in 0_u64..100_000_000,
            burst_bytes in 0_usize..20_000,
            packets in prop::collection::vec((0_u64..3_000, 1_usize..3_000), 1..200),
        ) {
            let policer = Policer { rate_bps, burst_bytes, per_flow: false };
            let mut buckets = Buckets::default();
            let (mut micros, mut passed) = (0, Vec::new());
            // The reference model counts tokens since the start, in bits times 10^6.
            let depth = burst_bytes as u128 * 8_000_000;
            let (mut tokens, mut last) = (depth, 0);
            for (gap, bytes) in packets {
                micros += gap;
                tokens = depth.min(tokens + u128::from(rate_bps) * u128::from(micros - last));
                last = micros;
                let needed = bytes as u128 * 8_000_000;
                let conforms = tokens >= needed;
                tokens -= if conforms { needed } else { 0 };
                let is_admitted = buckets.admit(&policer, Timestamp::from_micros(micros), 3, bytes);
                prop_assert_eq!(is_admitted, conforms);
                if conforms {
                    passed.push((micros, bytes));
                }
            }
            for (from, &(start, _)) in passed.iter().enumerate() {
                let mut bytes = 0;
                for &(end, more) in &passed[from..] {
                    bytes += more;
                    let limit = burst_bytes as f64 + rate_bps as f64 * (end - start) as f64 / 8e6;
                    prop_assert!(bytes as f64 <= limit + 1e-3);
                }
            }
        }
    }
}
