//! What a server has delivered before a handshake was done.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bats_types::Timestamp;

/// First flights remembered at once, 2 MiB or so; with more, early data are not taken.
const MAX_FLIGHTS: usize = 16_384;
/// How long a flight is remembered: longer than a handshake can last, at whichever of two connections
/// came later.
const LIFETIME: Duration = Duration::from_secs(25);

/// Which early messages were delivered, by the first flight that they came with.
///
/// A session is taken up once, so that of a flight and its copies one has its early data taken. That one
/// need not be the client's: who holds the client's packets back and sends copies from elsewhere has
/// them taken for it, and the client, refused, sends its messages again when its handshake is done. Its
/// first flight is the same, to the byte, and the two find each other here: what the one delivered
/// the other does not, and once the client is there, nothing comes by copies any more.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    flights: BTreeMap<[u8; 32], Entry>,
    ages: VecDeque<(Timestamp, [u8; 32])>,
}

#[derive(Debug)]
struct Entry {
    delivered: u32,
    /// The client itself has finished its handshake.
    closed: bool,
}

impl Ledger {
    fn forget_old(&mut self, now: Timestamp) {
        while let Some(&(at, flight)) = self.ages.front()
            && at + LIFETIME <= now
        {
            self.ages.pop_front();
            self.flights.remove(&flight);
        }
    }

    /// Whether early data of one more flight could be taken.
    pub(super) fn has_room(&mut self, now: Timestamp) -> bool {
        self.forget_old(now);
        self.flights.len() < MAX_FLIGHTS
    }

    /// Early data of this flight are taken from now on; false if they must not be.
    pub(super) fn begin(&mut self, now: Timestamp, flight: [u8; 32]) -> bool {
        if !self.has_room(now) || self.flights.contains_key(&flight) {
            return false;
        }
        self.flights.insert(flight, Entry { delivered: 0, closed: false });
        self.ages.push_back((now, flight));
        true
    }

    /// Whether early data of this flight may still be delivered.
    pub(super) fn is_open(&self, flight: &[u8; 32]) -> bool {
        self.flights.get(flight).is_some_and(|entry| !entry.closed)
    }

    /// These messages were delivered.
    pub(super) fn note(&mut self, flight: &[u8; 32], delivered: u32) {
        if let Some(entry) = self.flights.get_mut(flight) {
            entry.delivered |= delivered;
        }
    }

    /// The client whose flight this is has finished a handshake without early data: what copies of the
    /// flight delivered. They deliver nothing more.
    pub(super) fn close(&mut self, flight: &[u8; 32]) -> u32 {
        self.flights.get_mut(flight).map_or(0, |entry| {
            entry.closed = true;
            entry.delivered
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(number: usize) -> [u8; 32] {
        let mut flight = [0; 32];
        flight[..8].copy_from_slice(&number.to_le_bytes());
        flight
    }

    #[test]
    fn copies_and_the_client_find_each_other() {
        let mut ledger = Ledger::default();
        let now = Timestamp::from_millis(1);
        assert_eq!(ledger.close(&flight(1)), 0);
        assert!(ledger.begin(now, flight(1)));
        assert!(!ledger.begin(now, flight(1)), "once");
        ledger.note(&flight(1), 0b101);
        ledger.note(&flight(1), 0b010);
        assert!(ledger.is_open(&flight(1)) && !ledger.is_open(&flight(2)));
        assert_eq!(ledger.close(&flight(1)), 0b111);
        assert!(!ledger.is_open(&flight(1)));
    }

    #[test]
    fn little_is_remembered_and_not_for_long() {
        let mut ledger = Ledger::default();
        let now = Timestamp::from_millis(1);
        for number in 0..MAX_FLIGHTS {
            assert!(ledger.begin(now, flight(number)));
        }
        assert!(!ledger.has_room(now) && !ledger.begin(now, flight(MAX_FLIGHTS)));
        let later = now + LIFETIME;
        assert!(!ledger.has_room(now + (LIFETIME - Duration::from_millis(1))));
        assert!(ledger.begin(later, flight(MAX_FLIGHTS)));
        assert_eq!((ledger.flights.len(), ledger.ages.len()), (1, 1));
    }
}
