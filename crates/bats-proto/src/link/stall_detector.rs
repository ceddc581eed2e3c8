//! Stall detection: the receiver expects data and gets none.

use core::time::Duration;

use bats_types::Timestamp;

/// Smoothed packet intervals without data after which the flow counts as stalled.
const STALL_INTERVALS: u32 = 8;
/// Least time without data before a stall.
const MIN_STALL: Duration = Duration::from_millis(10);
/// PINGs per stall, at doubling intervals.
const MAX_PINGS: u32 = 4;
/// Full-size packets of one PING.
const PADDED: u32 = 3;
/// Full-size packets of all PINGs of a stall.
const MAX_PADDED: u32 = 6;
/// Packets with data that allow one full-size packet. It limits the cost of stalls to 3 % of the
/// packets in the other direction.
const DATA_PER_PADDED: u32 = 32;

/// Detects on the receiving side that a flow has stalled.
///
/// A pure receiver sends nothing during a stall. If a NAT has dropped its binding, the sender keeps
/// sending to an address that no longer works; a PING shows it the new one. If the sender only
/// paused, the detector costs four small packets.
///
/// Before the sender has validated the new address, it may send three times the bytes received from
/// there (RFC 9000, section 8). So if many packets with data arrived, PINGs come as several packets
/// of full size.
#[derive(Debug, Default)]
pub(super) struct StallDetector {
    last: Option<Timestamp>,
    interval: Duration,
    pings: u32,
    due: Option<Timestamp>,
    /// Packets with data since the last full-size packets, as far as they count.
    data: u32,
}

impl StallDetector {
    /// Data arrived.
    pub(super) fn on_data(&mut self, now: Timestamp, rtt: Duration) {
        if let Some(last) = self.last {
            self.interval = (self.interval * 7 + (now - last).min(rtt)) / 8;
        }
        self.last = Some(now);
        self.pings = 0;
        self.data = (self.data + 1).min(MAX_PADDED * DATA_PER_PADDED);
        self.due = Some(now + (rtt / 4).max(self.interval * STALL_INTERVALS).max(MIN_STALL));
    }

    /// When to call [`StallDetector::is_due`].
    pub(super) fn next_timeout(&self) -> Option<Timestamp> {
        self.due
    }

    /// Number of full-size packets that carry the PING that is sent now; 0 for one small packet.
    pub(super) fn take_padded(&mut self) -> u32 {
        let padded = (self.data / DATA_PER_PADDED).min(PADDED);
        self.data -= padded * DATA_PER_PADDED;
        padded
    }

    /// Whether to send a PING now.
    pub(super) fn is_due(&mut self, now: Timestamp) -> bool {
        let (Some(due), Some(last)) = (self.due, self.last) else { return false };
        if due > now {
            return false;
        }
        self.pings += 1;
        self.due = (self.pings < MAX_PINGS).then(|| now + (now - last));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_flow_causes_four_pings() {
        let rtt = Duration::from_millis(100);
        let mut stalls = StallDetector::default();
        assert!(!stalls.is_due(Timestamp::from_millis(500)), "no stall before the first data");
        for at in 0..100 {
            stalls.on_data(Timestamp::from_millis(at), rtt);
            assert!(!stalls.is_due(Timestamp::from_millis(at)));
        }
        let pings: Vec<u64> =
            (100..2_000).filter(|&at| stalls.is_due(Timestamp::from_millis(at))).collect();
        assert_eq!(pings, [124, 149, 199, 299]);
        stalls.on_data(Timestamp::from_millis(2_000), rtt);
        assert!(stalls.next_timeout().is_some(), "data rearms the detector");
    }

    #[test]
    fn full_size_packets_are_limited_by_the_data_received() {
        let mut stalls = StallDetector::default();
        let receive = |packets, stalls: &mut StallDetector| {
            (0..packets).for_each(|at| stalls.on_data(Timestamp::from_millis(at), Duration::ZERO));
        };
        receive(31, &mut stalls);
        assert_eq!(stalls.take_padded(), 0);
        receive(1, &mut stalls);
        assert_eq!(stalls.take_padded(), 1);
        assert_eq!(stalls.take_padded(), 0, "taken");
        receive(100_000, &mut stalls);
        assert_eq!([(); 3].map(|()| stalls.take_padded()), [3, 3, 0]);
    }
}
