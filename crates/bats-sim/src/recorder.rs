//! Recording of a run: a hash over all link events, and a capture of the datagrams.

use crate::capture::Capture;
use crate::trace::Trace;

pub use crate::link_event::{LinkEvent, LinkEventKind};

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
