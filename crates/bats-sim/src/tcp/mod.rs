//! A model of Linux's TCP: a bulk transfer, its sender and its receiver, in virtual time.
//!
//! Modelled: segments of 1,448 bytes; delayed and quick acknowledgements, SACK, DSACK, timestamps and ECN
//! ([`Receiver`]); RACK-TLP (RFC 8985), retransmission timeouts (RFC 6298, Linux's bounds), F-RTO
//! (RFC 5682), proportional rate reduction (RFC 9937), undo of spurious recoveries by DSACK and timestamps
//! ([`Sender`]); pacing in bursts of a millisecond where the controller paces. Controllers: [`reno`],
//! [`cubic`], [`bbr`] (version 1), [`copa`], and those of `bats-proto` ([`wrapped`]).
//!
//! Not modelled: handshake, receive window, segmentation and receive offload, SACK compression,
//! slow start after idle.

mod arrival;
pub mod bbr;
pub mod copa;
pub mod cubic;
mod hystart;
mod loss_reaction;
mod prr;
mod rack;
mod receiver;
mod recovery;
pub mod reno;
mod rtt;
mod scoreboard;
mod sender;
#[cfg(test)]
mod tests;
mod timeouts;
mod timers;
mod wire;
pub mod wrapped;

use core::time::Duration;

use bats_proto::congestion::{AckSample, LostPacket};
use bats_types::Timestamp;

pub use receiver::Receiver;
pub use sender::{Counters, Sender};
pub use wire::{Ack, Segment};

/// Bytes of data in a segment.
pub const SEGMENT: u64 = 1_448;
/// Bytes of a full segment in addition to the Ethernet and IPv4 headers, plus eight, so that its
/// frame is as long as that of a UDP payload of 1,472.
pub const SEGMENT_PAYLOAD: usize = SEGMENT as usize + 24;
/// The same for an acknowledgement.
pub const ACK_PAYLOAD: usize = 24;
/// Segments in the initial window (RFC 6928).
pub const INITIAL_WINDOW: u64 = 10;

/// What an acknowledgement reports to a controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// When it arrived.
    pub now: Timestamp,
    /// Segments newly delivered.
    pub acked: u64,
    /// Segments newly declared lost.
    pub lost: u64,
    /// Whether it starts recovery or the response to an ECN echo.
    pub is_loss_event: bool,
    /// Whether the sender is in fast recovery or in recovery from a timeout.
    pub in_recovery: bool,
    /// Whether a window-based controller may grow: the cumulative number advanced, no reduction is
    /// in progress, and the window was fully used.
    pub may_grow: bool,
    /// RTT of the newest segment that was sent only once.
    pub rtt: Option<Duration>,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Option<Duration>,
    /// Whether the round-trip time may contain the delay of a delayed acknowledgement.
    pub is_ack_delayed: bool,
    /// Segments in flight before the acknowledgement.
    pub prior_in_flight: u64,
    /// Segments in flight after the acknowledgement.
    pub in_flight: u64,
    /// Total segments delivered.
    pub delivered: u64,
    /// Total segments delivered when the newest delivered one was sent.
    pub delivered_before: u64,
    /// Total segments declared lost.
    pub lost_total: u64,
    /// Delivery rate in segments per second.
    pub rate: Option<f64>,
    /// Whether that sample is application-limited.
    pub is_app_limited: bool,
    /// Number of the next new segment.
    pub next: u64,
    /// All segments before this one are acknowledged.
    pub base: u64,
    /// The same for the controllers of `bats-proto`, in bytes, with [`SEGMENT`] bytes per segment.
    pub sample: AckSample,
}

/// How the sender reduces its window when recovery begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// By proportional rate reduction down to this slow start threshold.
    Proportional(u64),
    /// As the controller decides.
    OwnWindow,
}

/// A TCP congestion controller. Windows are in segments, rates in segments per second.
pub trait Control: core::fmt::Debug {
    /// An acknowledgement arrived.
    fn on_ack(&mut self, progress: &Progress);
    /// A segment was declared lost; called before [`Self::on_ack`].
    fn on_lost(&mut self, _now: Timestamp, _packet: &LostPacket) {}
    /// Segments that had been declared lost have arrived. Called before [`Self::on_ack`].
    fn on_spurious_loss(&mut self, _now: Timestamp, _segments: u64) {}
    /// A segment is sent; `in_flight` segments include it.
    fn on_sent(&mut self, _now: Timestamp, _in_flight: u64) {}
    /// Data is sent again after an idle time; `since` is the time of the last transmission.
    fn on_idle_restart(&mut self, _now: Timestamp, _since: Timestamp, _app_limited: bool) {}
    /// Only the window prevented a segment from being sent.
    fn on_cwnd_limited(&mut self) {}
    /// Fast recovery, or the response to an ECN echo, begins.
    fn on_recovery(&mut self, now: Timestamp, in_flight: u64) -> Reduction;
    /// A retransmission timeout; `is_new` if it begins a recovery. `in_flight` is the number of
    /// segments not declared lost.
    fn on_timeout(&mut self, now: Timestamp, in_flight: u64, is_new: bool);
    /// The last reduction was spurious: the window before it is restored.
    fn on_undo(&mut self, _now: Timestamp) {}
    /// Congestion window in segments.
    fn window(&self) -> u64;
    /// Pacing rate in segments per second; `None` for acknowledgement clocking.
    fn pace(&self) -> Option<f64> {
        None
    }
    /// Maximum number of segments of a paced burst. Linux paces in frames of a millisecond and up
    /// to 64 KiB.
    fn max_burst(&self) -> u64 {
        44
    }
    /// Whether rate samples of current packets are too low on purpose (ProbeRTT).
    fn limits_itself(&self) -> bool {
        false
    }
    /// Name of the state.
    fn state(&self) -> &'static str {
        ""
    }
}
