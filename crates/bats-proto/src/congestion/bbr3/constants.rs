//! Constants of draft-ietf-ccwg-bbr-06, each with its section.

use core::time::Duration;

/// StartupPacingGain, section 2.5.
pub(super) const STARTUP_PACING_GAIN: f64 = 2.77;
/// DrainPacingGain, section 2.5.
pub(super) const DRAIN_PACING_GAIN: f64 = 0.5;
/// Pacing gain of ProbeBW_DOWN, section 5.3.3.1.
pub(super) const DOWN_PACING_GAIN: f64 = 0.9;
/// Pacing gain of ProbeBW_UP, section 5.3.3.5.
pub(super) const UP_PACING_GAIN: f64 = 1.25;
/// PacingMarginPercent, section 2.5, as a factor.
pub(super) const PACING_MARGIN: f64 = 0.99;
/// DefaultCwndGain, section 2.6.
pub(super) const DEFAULT_CWND_GAIN: f64 = 2.0;
/// cwnd_gain of ProbeBW_UP, section 5.3.3.5.
pub(super) const UP_CWND_GAIN: f64 = 2.25;
/// LossThresh, section 2.8.
pub(super) const LOSS_THRESH: f64 = 0.02;
/// Beta, section 2.8.
pub(super) const BETA: f64 = 0.7;
/// Headroom, section 2.8.
pub(super) const HEADROOM: f64 = 0.15;
/// MinPipeCwnd in packets, section 2.8.
pub(super) const MIN_PIPE_PACKETS: u64 = 4;
/// InitialCwnd in packets, RFC 9002 section 7.2.
pub(super) const INITIAL_PACKETS: u64 = 10;
/// Growth of the delivery rate that is not a plateau, section 5.3.1.2.
pub(super) const FULL_BW_GROWTH: f64 = 1.25;
/// Rounds of a plateau that fill the pipe, section 5.3.1.2.
pub(super) const FULL_BW_ROUNDS: u32 = 3;
/// BBRStartupFullLossCnt: lost ranges in a round that end Startup, section 5.3.1.3.
pub(super) const STARTUP_FULL_LOSS_COUNT: u32 = 6;
/// Most rounds of Drain, section 5.3.2.
pub(super) const DRAIN_ROUNDS: u64 = 3;
/// Shortest T_bbr; up to a second is added at random, section 5.3.3.8.
pub(super) const PROBE_WAIT: Duration = Duration::from_secs(2);
/// Upper bound of T_reno in rounds, section 5.3.3.8.
pub(super) const RENO_ROUNDS: u64 = 63;
/// ExtraAckedFilterLen in rounds, section 2.12.
pub(super) const EXTRA_ACKED_ROUNDS: u64 = 10;
/// MinRTTFilterLen, section 2.16.1.
pub(super) const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
/// ProbeRTTCwndGain, section 2.16.2.
pub(super) const PROBE_RTT_CWND_GAIN: f64 = 0.5;
/// ProbeRTTDuration, section 2.16.2.
pub(super) const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// ProbeRTTInterval, section 2.16.2.
pub(super) const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
/// Largest send quantum in bytes, section 5.6.3.
pub(super) const MAX_QUANTUM: u64 = 64 << 10;
