//! The replay ledger: early data that a server has delivered, by first flight (ADR 0013).

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use bats_types::Timestamp;

/// Limit of remembered first flights, about 2 MiB; beyond it early data is refused.
const MAX_FLIGHTS: usize = 16_384;
/// How long a first flight is remembered: longer than the handshake of the later of two connections
/// can last.
const LIFETIME: Duration = Duration::from_secs(25);

/// Early messages that were delivered, by the first flight that carried them.
///
/// A session is resumed once, so only one of a first flight and its replays has its early data
/// accepted. An attacker can delay the client's packets and replay them from elsewhere: then the
/// replay is accepted, and the client, refused, sends its messages again after its handshake. Both
/// flights are identical to the byte, so the ledger connects them: messages delivered from the
/// replay are not delivered again, and once the client has completed its handshake, nothing more is
/// delivered from the replay.
#[derive(Debug, Default)]
pub(super) struct ReplayLedger {
    flights: BTreeMap<[u8; 32], Entry>,
    ages: VecDeque<(Timestamp, [u8; 32])>,
}

#[derive(Debug)]
struct Entry {
    delivered: u32,
    /// The client itself has completed its handshake.
    closed: bool,
}

impl ReplayLedger {
    fn remove_expired(&mut self, now: Timestamp) {
        while let Some(&(at, flight)) = self.ages.front()
            && at + LIFETIME <= now
        {
            self.ages.pop_front();
            self.flights.remove(&flight);
        }
    }

    /// Whether there is room for another first flight.
    pub(super) fn has_room(&mut self, now: Timestamp) -> bool {
        self.remove_expired(now);
        self.flights.len() < MAX_FLIGHTS
    }

    /// Starts accepting early data of this flight; false if it must be refused.
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

    /// Records messages (a bit mask) as delivered.
    pub(super) fn record(&mut self, flight: &[u8; 32], delivered: u32) {
        if let Some(entry) = self.flights.get_mut(flight) {
            entry.delivered |= delivered;
        }
    }

    /// The client of this flight has completed a handshake without early data. Returns the messages
    /// that replays of the flight have delivered; they deliver nothing more.
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
    fn messages_delivered_from_replays_are_returned_to_the_client() {
        let mut ledger = ReplayLedger::default();
        let now = Timestamp::from_millis(1);
        assert_eq!(ledger.close(&flight(1)), 0);
        assert!(ledger.begin(now, flight(1)));
        assert!(!ledger.begin(now, flight(1)), "once");
        ledger.record(&flight(1), 0b101);
        ledger.record(&flight(1), 0b010);
        assert!(ledger.is_open(&flight(1)) && !ledger.is_open(&flight(2)));
        assert_eq!(ledger.close(&flight(1)), 0b111);
        assert!(!ledger.is_open(&flight(1)));
    }

    #[test]
    fn ledger_is_bounded_in_size_and_time() {
        let mut ledger = ReplayLedger::default();
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
