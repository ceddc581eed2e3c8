//! A controller of `bats-proto` under the TCP model: the same algorithm without coding.

use core::time::Duration;

use bats_proto::CongestionAlgorithm;
use bats_proto::congestion::{self, Controller, LostPacket};
use bats_types::Timestamp;

use super::{Control, Progress, Reduction, SEGMENT};

/// The controller. Bytes are counted in segments of [`SEGMENT`].
#[derive(Debug)]
pub struct Wrapped {
    controller: Box<dyn Controller>,
    timeouts: u32,
}

impl Wrapped {
    /// `algorithm` for a path of `rtt`.
    pub fn new(algorithm: CongestionAlgorithm, rtt: Duration, seed: u64) -> Self {
        Self { controller: congestion::build(algorithm, rtt, SEGMENT as u16, seed), timeouts: 0 }
    }
}

impl Control for Wrapped {
    fn on_ack(&mut self, progress: &Progress) {
        self.timeouts = 0;
        self.controller.on_ack(&progress.sample);
    }

    fn on_lost(&mut self, now: Timestamp, packet: &LostPacket) {
        self.controller.on_lost(now, packet);
    }

    fn on_spurious_loss(&mut self, now: Timestamp, segments: u64) {
        self.controller.on_spurious_loss(now, segments);
    }

    fn on_sent(&mut self, now: Timestamp, in_flight: u64) {
        self.controller.on_sent(now, SEGMENT, in_flight * SEGMENT);
    }

    fn on_cwnd_limited(&mut self) {
        self.controller.on_cwnd_limited();
    }

    fn on_recovery(&mut self, _now: Timestamp, _in_flight: u64) -> Reduction {
        Reduction::OwnWindow
    }

    fn on_timeout(&mut self, now: Timestamp, _in_flight: u64, _is_new: bool) {
        // A retransmission timeout of TCP abandons the packets in flight, as the second probe
        // timeout of the protocol does.
        self.timeouts += 2;
        self.controller.on_probe_timeout(now, 1);
        self.controller.on_probe_timeout(now, self.timeouts);
    }

    fn window(&self) -> u64 {
        (self.controller.window() / SEGMENT).max(1)
    }

    fn pace(&self) -> Option<f64> {
        let rate = self.controller.pacing_rate();
        (rate != u64::MAX).then(|| rate as f64 / SEGMENT as f64)
    }

    fn state(&self) -> &'static str {
        self.controller.state()
    }
}
