//! A frame in the queue of a link.

use core::time::Duration;
use std::collections::VecDeque;

use bats_types::Timestamp;

use crate::Payload;
use crate::flight::Route;
use crate::stats::{Reason, Tally};

/// Random decisions about a packet that is not lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RandomDecisions {
    /// Time from the end of the transmission to the arrival.
    pub(crate) lag: Duration,
    /// The same for a duplicate, if there is one.
    pub(crate) duplicate_lag: Option<Duration>,
    pub(crate) route: Route,
}

#[derive(Debug)]
pub(crate) struct Frame<P> {
    /// `None` if the packet was lost on entry. Its frame still uses link capacity.
    pub(crate) packet: Option<P>,
    /// Frame size in bytes.
    pub(crate) bytes: usize,
    pub(crate) flow: u64,
    pub(crate) is_ect: bool,
    pub(crate) entered: Timestamp,
    /// `None` if the random decisions are made at the end of the transmission.
    pub(crate) drawn: Option<RandomDecisions>,
}

impl<P: Payload> Frame<P> {
    /// Drops the frame from the queue.
    pub(crate) fn drop_from(self, reason: Reason, tally: &mut Tally<'_>) {
        tally.backlog.remove(tally.now, self.bytes, tally.stats);
        // A packet that was lost on entry has been counted already.
        if self.packet.is_some() {
            tally.count(self.flow, reason);
            // The duplicate that was decided on entry is not sent either.
            let has_duplicate = self.drawn.is_some_and(|drawn| drawn.duplicate_lag.is_some());
            tally.stats.duplicated = tally.stats.duplicated.saturating_sub(has_duplicate.into());
        }
    }

    /// Sets the ECN-CE mark.
    pub(crate) fn mark(&mut self, tally: &mut Tally<'_>) {
        if let Some(packet) = &mut self.packet {
            packet.mark();
            tally.stats.marked_aqm += 1;
            tally.flows.of(self.flow).marked += 1;
        }
    }
}

/// Frames in order, and the sum of their sizes in bytes.
#[derive(Debug)]
pub(crate) struct FrameQueue<P> {
    frames: VecDeque<Frame<P>>,
    pub(crate) bytes: usize,
}

impl<P> Default for FrameQueue<P> {
    fn default() -> Self {
        Self { frames: VecDeque::new(), bytes: 0 }
    }
}

impl<P> FrameQueue<P> {
    pub(crate) fn push(&mut self, frame: Frame<P>) {
        self.bytes = self.bytes.saturating_add(frame.bytes);
        self.frames.push_back(frame);
    }

    pub(crate) fn pop(&mut self) -> Option<Frame<P>> {
        let frame = self.frames.pop_front()?;
        self.bytes = self.bytes.saturating_sub(frame.bytes);
        Some(frame)
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}
