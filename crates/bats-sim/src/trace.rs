//! A hash over all link events. Two runs have the same hash if and only if all events are equal.

use bats_netem::{Fate, Timestamp};

use crate::host::Host;
use crate::link_event::{LinkEvent, LinkEventKind};

/// Bytes collected before they are hashed. BLAKE3 is several times faster on long inputs than on
/// single packets.
const BLOCK: usize = 128 << 10;

/// The hash of all events so far.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
    events: u64,
}

impl Trace {
    /// Adds an event: its time, both hosts, kind, ECN bits, length and bytes.
    pub fn record(&mut self, event: &LinkEvent<'_>) {
        let from = u8::from(event.from == Host::Server);
        self.add(event.time, [from, 1 - from], event.kind, event.ecn, event.payload);
    }

    /// Adds an event on a link that two bytes identify.
    pub(crate) fn add(
        &mut self,
        time: Timestamp,
        ends: [u8; 2],
        kind: LinkEventKind,
        ecn: u8,
        payload: &[u8],
    ) {
        let code = match kind {
            LinkEventKind::Delivered => 0,
            LinkEventKind::Sent(Fate::Carried) => 1,
            LinkEventKind::Sent(Fate::QueueFull) => 2,
            LinkEventKind::Sent(Fate::Lost) => 3,
            LinkEventKind::Sent(Fate::TooLong) => 4,
            LinkEventKind::Sent(Fate::BlackHole) => 5,
            LinkEventKind::Sent(Fate::Policed) => 6,
            LinkEventKind::Sent(Fate::Early) => 7,
        };
        self.pending.extend_from_slice(&time.as_nanos().to_le_bytes());
        self.pending.extend_from_slice(&[ends[0], ends[1], code, ecn]);
        self.pending.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        self.pending.extend_from_slice(payload);
        self.events += 1;
        if self.pending.len() >= BLOCK {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// The hash of all events so far.
    pub fn hash(&self) -> blake3::Hash {
        self.hasher.clone().update(&self.pending).finalize()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(events: &[LinkEvent<'_>]) -> blake3::Hash {
        let mut trace = Trace::default();
        events.iter().for_each(|event| trace.record(event));
        assert_eq!(trace.events(), events.len() as u64);
        trace.hash()
    }

    #[test]
    fn every_field_of_an_event_changes_the_hash() {
        let event = LinkEvent {
            time: Timestamp::from_millis(1),
            from: Host::Client,
            kind: LinkEventKind::Delivered,
            ecn: 0,
            payload: b"bytes",
        };
        let others = [
            LinkEvent { time: Timestamp::from_millis(2), ..event },
            LinkEvent { from: Host::Server, ..event },
            LinkEvent { kind: LinkEventKind::Sent(Fate::Carried), ..event },
            LinkEvent { kind: LinkEventKind::Sent(Fate::Lost), ..event },
            LinkEvent { kind: LinkEventKind::Sent(Fate::QueueFull), ..event },
            LinkEvent { ecn: 2, ..event },
            LinkEvent { payload: b"Bytes", ..event },
            LinkEvent { payload: b"byte", ..event },
        ];
        let mut hashes: Vec<_> = others.iter().map(|other| hash(&[*other])).collect();
        hashes.extend([hash(&[]), hash(&[event]), hash(&[event, event])]);
        let distinct: std::collections::BTreeSet<_> =
            hashes.iter().map(|hash| *hash.as_bytes()).collect();
        assert_eq!(distinct.len(), hashes.len());
        assert_eq!(hash(&[event]), hash(&[event]));
    }
}
