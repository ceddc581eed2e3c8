//! Requests to the emulator and its answers.

use serde::{Deserialize, Serialize};

use crate::settings::Link;

/// Counters of one direction of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DirectionReport {
    /// Frames received from the sending host.
    pub(crate) frames_in: u64,
    /// Bytes of these frames.
    pub(crate) bytes_in: u64,
    /// Frames delivered to the receiving host.
    pub(crate) frames_out: u64,
    /// Bytes of these frames.
    pub(crate) bytes_out: u64,
    /// Frames dropped by the configured loss, black hole or holes in time.
    pub(crate) lost: u64,
    /// Frames dropped because the queue was full, or by its discipline.
    pub(crate) queue_drops: u64,
    /// Frames dropped by the policer.
    #[serde(default)]
    pub(crate) policed: u64,
    /// Acknowledgements that others replaced.
    #[serde(default)]
    pub(crate) thinned: u64,
    /// Frames marked with ECN-CE.
    #[serde(default)]
    pub(crate) marked: u64,
    /// Frames dropped because they exceed the link's MTU.
    pub(crate) too_large: u64,
    /// Frames duplicated.
    pub(crate) duplicated: u64,
    /// Frames corrupted.
    pub(crate) corrupted: u64,
    /// Frames that the emulator itself lost: its socket was full, or the kernel refused them. Any
    /// value but 0 invalidates the emulation.
    pub(crate) emulator_drops: u64,
    /// Bytes in the queue now.
    pub(crate) queued: u64,
    /// Maximum lateness of a delivery in microseconds.
    pub(crate) latest_us: u64,
    /// Frames delivered more than [`LATE_THRESHOLD`](super::hop::LATE_THRESHOLD) after they were
    /// due.
    pub(crate) frames_late: u64,
}

/// Settings and counters of one link.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HopReport {
    /// The link's settings.
    pub(crate) link: Link,
    /// Direction towards `b`.
    pub(crate) forward: DirectionReport,
    /// Direction towards `a`.
    pub(crate) backward: DirectionReport,
}

/// A request on the emulator's control socket, one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Report all links.
    Report,
    /// Change the settings of a link.
    Set {
        /// Number of the link, from 1.
        hop: u32,
        /// New settings.
        link: Box<Link>,
    },
    /// Reset the maximum lateness.
    ResetLateness,
    /// Let the schedules of all links begin now.
    StartSchedules,
}

/// The emulator's answer, one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Reports of all links, in order from `a` to `b`.
    Report(Vec<HopReport>),
    /// The request was executed.
    Done,
    /// The request failed, with the reason.
    Error(String),
}
