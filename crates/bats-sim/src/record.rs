//! What can be written down of a run besides its figures: a hash of everything that happened on
//! the links, and a capture of the datagrams.

use bats_netem::{Fate, Timestamp};

use crate::capture::Capture;
use crate::network::Host;
use crate::trace::Trace;

/// What happened to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It was handed to the link, with this fate.
    Sent(Fate),
    /// It arrived.
    Delivered,
}

/// One event on a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkEvent<'a> {
    /// When.
    pub time: Timestamp,
    /// Who sent the datagram.
    pub from: Host,
    /// What happened to it.
    pub what: What,
    /// Its ECN bits.
    pub ecn: u8,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// Takes down the events of a network; nothing unless told to.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Hash of all events.
    pub trace: Option<Trace>,
    /// The datagrams as they enter the links.
    pub capture: Option<Capture>,
}

impl Recorder {
    /// A recorder that keeps the hash of all events and nothing else.
    pub fn tracing() -> Self {
        Self { trace: Some(Trace::default()), capture: None }
    }

    pub(crate) fn note(&mut self, event: &LinkEvent<'_>) {
        if let Some(trace) = &mut self.trace {
            trace.note(event);
        }
        if let Some(capture) = &mut self.capture {
            capture.note(event);
        }
    }
}
