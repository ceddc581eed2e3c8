//! What transports a session: a link of its own, or the links of the relay.

use core::time::Duration;

use bats_types::Timestamp;

use super::end_to_end::EndToEnd;
use crate::crypto::SymbolKey;
use crate::flow::PathView;
use crate::link::{LinkCapacity, LinkRtt};
use crate::wire::flow::FlowKey;

/// Bytes acknowledged after which the path counts as measured.
const MEASURED_PATH_BYTES: u64 = 64 << 10;

/// What transports a session.
#[derive(Debug)]
pub(super) enum SessionTransport {
    /// A link to the peer.
    Link,
    /// The links of the relay, end to end.
    Relays(Box<EndToEnd>),
}

impl SessionTransport {
    /// For an end-to-end session: the flow that it sends, and whether this node's relay recodes.
    pub(super) fn new(end_to_end: Option<(FlowKey, bool)>) -> Self {
        match end_to_end {
            None => Self::Link,
            Some((key, recoded)) => Self::Relays(Box::new(EndToEnd::new(key, recoded))),
        }
    }

    /// The state of an end-to-end session.
    pub(super) fn end_to_end(&self) -> Option<&EndToEnd> {
        match self {
            Self::Link => None,
            Self::Relays(end_to_end) => Some(end_to_end),
        }
    }

    /// As [`Self::end_to_end`].
    pub(super) fn end_to_end_mut(&mut self) -> Option<&mut EndToEnd> {
        match self {
            Self::Link => None,
            Self::Relays(end_to_end) => Some(end_to_end),
        }
    }

    /// Whether relays may have changed what arrives, so that the peer is not to blame. There are none between the ends
    /// of a direct session.
    pub(super) fn may_pollute(&self) -> bool {
        self.end_to_end().is_some_and(EndToEnd::seals_symbols)
    }

    /// Whether the links of the relay transport the session.
    pub(super) fn is_relays(&self) -> bool {
        matches!(self, Self::Relays(_))
    }

    /// The path's properties for the flow, from those of the link.
    pub(super) fn view(&self, link: &PathView) -> PathView {
        match self {
            Self::Link => *link,
            Self::Relays(end_to_end) => end_to_end.view(link),
        }
    }

    /// The round trip of data and its feedback.
    pub(super) fn round_trip(&self, smoothed: Duration) -> Duration {
        match self {
            Self::Link => smoothed,
            Self::Relays(end_to_end) => end_to_end.round_trip(smoothed),
        }
    }

    /// The RTT that sets how often ranks are reported. Over relays the minimum RTT is not
    /// representative, and frequent reports could fill a slow link.
    pub(super) fn report_rtt(&self, rtt: LinkRtt) -> Duration {
        match self {
            Self::Link => rtt.min,
            Self::Relays(end_to_end) => end_to_end.round_trip(rtt.smoothed),
        }
    }

    /// Bytes that the path takes, about two BDP: the congestion window, or, over relays, the bytes that
    /// the first links send until the peer's feedback arrives.
    pub(super) fn path_window(&self, link: &LinkCapacity) -> u64 {
        match self {
            Self::Link => link.window,
            Self::Relays(end_to_end) => {
                end_to_end.path_window(end_to_end.round_trip(link.smoothed_rtt))
            }
        }
    }

    /// Whether the path is measured, so that the window shows what it takes. Over relays the ends
    /// acknowledge almost nothing, so the first link's rate counts.
    pub(super) fn is_measured(&self, link: &LinkCapacity) -> bool {
        link.bytes_acked >= MEASURED_PATH_BYTES || self.end_to_end().is_some_and(EndToEnd::has_rate)
    }

    /// Bytes that are sent in `time`, if the transport alone limits the rate and it is known.
    pub(super) fn bytes_in(&self, time: Duration) -> Option<u64> {
        self.end_to_end().filter(|relays| relays.has_rate()).map(|relays| relays.bytes_in(time))
    }

    /// Opens symbols that are sealed end to end.
    pub(super) fn opener(&mut self) -> Option<&mut SymbolKey> {
        self.end_to_end_mut().and_then(EndToEnd::opener)
    }

    /// The peer reports that it has received this number of coded packets.
    pub(super) fn on_report(&mut self, now: Timestamp, received: u64, rtt: Duration) {
        if let Self::Relays(end_to_end) = self {
            end_to_end.on_report(now, received, rtt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::flow::NodeId;

    #[test]
    fn window_of_a_link_counts_and_that_of_end_to_end_packets_does_not() {
        let link = LinkCapacity {
            window: 7,
            smoothed_rtt: Duration::from_millis(10),
            bytes_acked: 0,
            record_bytes: 0,
        };
        let own = SessionTransport::new(None);
        assert_eq!((own.path_window(&link), own.is_measured(&link)), (7, false));
        let measured = LinkCapacity { bytes_acked: MEASURED_PATH_BYTES, ..link };
        assert!(own.is_measured(&measured) && own.bytes_in(link.smoothed_rtt).is_none());
        let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 0 };
        let relays = SessionTransport::new(Some((key, true)));
        assert_eq!((relays.path_window(&link), relays.is_measured(&link)), (0, false));
        assert!(relays.is_relays() && relays.bytes_in(link.smoothed_rtt).is_none());
    }

    #[test]
    fn ranks_are_reported_by_the_least_round_trip_of_a_link_only() {
        let rtt = LinkRtt { smoothed: Duration::from_millis(30), min: Duration::from_millis(20) };
        assert_eq!(SessionTransport::Link.report_rtt(rtt), rtt.min);
        let key = FlowKey { destination: NodeId(2), source: NodeId(1), flow: 0 };
        assert_eq!(SessionTransport::new(Some((key, true))).report_rtt(rtt), rtt.smoothed);
    }
}
