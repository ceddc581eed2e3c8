//! What an emulator tells of itself, and what can be asked of it.

use serde::{Deserialize, Serialize};

use crate::settings::Link;

/// What one direction of a link has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct DirectionReport {
    /// Frames that came from the sending host.
    pub(crate) frames_in: u64,
    /// Bytes of these.
    pub(crate) bytes_in: u64,
    /// Frames handed to the receiving host.
    pub(crate) frames_out: u64,
    /// Bytes of these.
    pub(crate) bytes_out: u64,
    /// Frames lost as asked for, black hole included.
    pub(crate) lost: u64,
    /// Frames that found the queue full.
    pub(crate) queue_drops: u64,
    /// Frames larger than the link takes.
    pub(crate) too_large: u64,
    /// Frames doubled.
    pub(crate) duplicated: u64,
    /// Frames corrupted.
    pub(crate) corrupted: u64,
    /// Frames that the emulator itself lost: its socket was full, or the kernel refused them.
    /// Anything but 0 falsifies the emulation.
    pub(crate) emulator_drops: u64,
    /// Bytes that wait in the queue.
    pub(crate) queued: u64,
    /// The latest delivery, in microseconds behind its time.
    pub(crate) latest_us: u64,
    /// Frames handed over more than [`LATE`](super::hop::LATE) behind their time.
    pub(crate) frames_late: u64,
}

/// What one link is asked to do and has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HopReport {
    /// As asked.
    pub(crate) link: Link,
    /// Towards `b`.
    pub(crate) forward: DirectionReport,
    /// Towards `a`.
    pub(crate) backward: DirectionReport,
}

/// A line to the emulator's control socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Tell what the links do.
    Report,
    /// Change the link of this number, counted from 1.
    Set {
        /// Which.
        hop: u32,
        /// To what.
        link: Box<Link>,
    },
    /// Begin the latest delivery anew.
    ResetLateness,
}

/// The emulator's answer, one line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// What the links do, from `a` to `b`.
    Report(Vec<HopReport>),
    /// Done.
    Done,
    /// Not done, and why.
    Error(String),
}
