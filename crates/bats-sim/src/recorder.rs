//! Recording of a run: a hash over all link events, and a capture of the datagrams.

use bats_netem::{Fate, Timestamp};

use crate::capture::Capture;
use crate::network::Host;
use crate::trace::Trace;

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkEventKind {
    /// The datagram entered the link, with this fate.
    Sent(Fate),
    /// The datagram arrived.
    Delivered,
}

/// One event on a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkEvent<'a> {
    /// Virtual time of the event.
    pub time: Timestamp,
    /// The host that sent the datagram.
    pub from: Host,
    /// What happened to the datagram.
    pub kind: LinkEventKind,
    /// ECN bits of the datagram.
    pub ecn: u8,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// Records the events of a network. Records nothing by default.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Hash of all events.
    pub trace: Option<Trace>,
    /// Capture of the datagrams that enter the links.
    pub capture: Option<Capture>,
}

impl Recorder {
    /// A recorder that only computes the hash of all events.
    pub fn tracing() -> Self {
        Self { trace: Some(Trace::default()), capture: None }
    }

    pub(crate) fn record(&mut self, event: &LinkEvent<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.record(event);
        }
        if let Some(capture) = &mut self.capture {
            capture.record(event);
        }
    }
}
