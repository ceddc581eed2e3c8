//! Early data: messages that travel with the client's first flight (RFC 9001, section 4.6).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bats_types::Timestamp;
use bytes::Bytes;

use super::ledger::Ledger;
use super::packet::{self, Head};
use crate::crypto::{DirectionalKeys, TAG_LEN};
use crate::session::DatagramQueue;
use crate::wire::long_header::{CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN};
use crate::wire::parameters::TransportParameters;

/// Messages before the handshake is done: the server tells which it has in 32 bits.
pub(crate) const MAX_EARLY_MESSAGES: usize = 32;
/// Bytes of early data that a server takes of one connection, copies included: somewhat more than
/// clients send. They are opened and parsed for an address that is not proved.
pub(crate) const EARLY_LIMIT: u64 = 16 << 10;
/// Bytes of early packets that a client sends, copies included: the window that a connection begins with
/// (RFC 9002, section 7.2), as nothing is known of the path.
const FLIGHT: usize = 14_720;
/// Bytes that an early message counts beside its content.
const MESSAGE_COST: usize = 16;
/// Bytes of an early packet beside its payload.
const OVERHEAD: usize = 1 + 4 + 1 + ORIGINAL_CID_LEN + 1 + CID_LEN + 2 + 4 + TAG_LEN;
/// Bytes of payload below which a packet is not worth while.
const LEAST_PAYLOAD: usize = 32;

/// A message and when it is worth nothing any more.
pub(crate) type Expiring = (Bytes, Timestamp);

/// The client's early data.
#[derive(Debug)]
pub(super) struct EarlySender {
    keys: DirectionalKeys,
    /// What the server said of itself when the session was begun.
    remembered: TransportParameters,
    messages: Vec<Expiring>,
    /// Bytes that messages may still take.
    room: usize,
    /// Bytes of packets that may still be sent.
    budget: usize,
    /// What is left of the repetition at hand.
    unsent: DatagramQueue,
    next_pn: u64,
}

impl EarlySender {
    /// With what is remembered of the server; `None` if it took no early data.
    pub(super) fn new(keys: DirectionalKeys, remembered: TransportParameters) -> Option<Self> {
        let budget = usize::try_from(remembered.early_limit).unwrap_or(usize::MAX).min(FLIGHT);
        (budget > 0).then(|| Self {
            keys,
            remembered,
            messages: Vec::new(),
            // So that each can be sent twice.
            room: budget / 2,
            budget,
            unsent: DatagramQueue::default(),
            next_pn: 0,
        })
    }

    /// Takes a message, or gives it back if there is no room for it, or it is longer than the server
    /// took.
    pub(super) fn push(&mut self, message: Bytes, expires: Timestamp) -> Result<(), Bytes> {
        let cost = message.len() + MESSAGE_COST;
        let too_long = message.len() as u64 > self.remembered.max_message_size;
        if self.messages.len() == MAX_EARLY_MESSAGES || cost > self.room || too_long {
            return Err(message);
        }
        self.room -= cost;
        self.unsent.push(message.clone(), expires);
        self.messages.push((message, expires));
        Ok(())
    }

    pub(super) fn messages(&self) -> &[Expiring] {
        &self.messages
    }

    /// Whether a server that took the data may tell this of itself: not less than it told before
    /// (RFC 9000, section 7.4.1).
    pub(super) fn is_kept_by(&self, told: &TransportParameters) -> bool {
        told.early_limit >= self.remembered.early_limit
            && told.max_message_size >= self.remembered.max_message_size
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() && self.budget >= OVERHEAD + LEAST_PAYLOAD
    }

    /// Begins another repetition.
    pub(super) fn rewind(&mut self) {
        self.unsent = DatagramQueue::default();
        for (message, expires) in &self.messages {
            self.unsent.push(message.clone(), *expires);
        }
    }

    /// Writes the next packet, if there is room for one; its length.
    pub(super) fn write(
        &mut self,
        now: Timestamp,
        out: &mut [u8],
        destination: &[u8],
        source: &[u8],
        grease: u8,
    ) -> Option<usize> {
        let whole = MIN_INITIAL_DATAGRAM - OVERHEAD;
        let room = out.len().min(self.budget).checked_sub(OVERHEAD)?.min(whole);
        if room < LEAST_PAYLOAD {
            return None;
        }
        self.unsent.expire(now);
        // Behind other packets a message is not cut that fits a datagram of its own: both parts would
        // have to arrive.
        let next = self.unsent.next_bytes()? + MESSAGE_COST;
        if room < whole && next > room && next <= whole {
            return None;
        }
        let mut payload = [0; MIN_INITIAL_DATAGRAM];
        let (len, _) = self.unsent.fill_symbol(&mut payload[..room]);
        if len == 0 {
            return None;
        }
        let head = Head { kind: LongKind::Early, destination, source, token: &[], grease };
        let written = packet::seal(out, &self.keys, &head, self.next_pn, &payload[..len])?;
        self.next_pn += 1;
        self.budget = self.budget.saturating_sub(written);
        Some(written)
    }
}

/// The ledger of all handshakes of a server.
pub(super) type SharedLedger = Arc<Mutex<Ledger>>;

pub(super) fn lock(ledger: &SharedLedger) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The server's end: of a client whose early data are taken, or may have been.
#[derive(Debug)]
pub(super) struct EarlyReceiver {
    ledger: SharedLedger,
    /// SHA-256 of the client's first message of TLS.
    flight: [u8; 32],
    /// There while early data are taken.
    keys: Option<DirectionalKeys>,
    taken: u64,
    /// Packets beyond the limit.
    pub(super) refused: u64,
    waiting: Vec<Vec<u8>>,
    /// Messages that have arrived, a bit each.
    pub(super) arrived: u32,
}

impl EarlyReceiver {
    /// `keys` if TLS has accepted early data.
    pub(super) fn new(
        now: Timestamp,
        ledger: SharedLedger,
        flight: [u8; 32],
        keys: Option<DirectionalKeys>,
    ) -> Self {
        let keys = keys.filter(|_| lock(&ledger).begin(now, flight));
        Self { ledger, flight, keys, taken: 0, refused: 0, waiting: Vec::new(), arrived: 0 }
    }

    /// Whether early data are taken.
    pub(super) fn is_taking(&self) -> bool {
        self.keys.is_some()
    }

    /// Takes a packet; whether it is authentic.
    pub(super) fn receive(&mut self, packet: &mut [u8], number_at: usize) -> bool {
        let Some(keys) = &self.keys else { return false };
        let len = packet.len() as u64;
        if self.taken + len > EARLY_LIMIT {
            self.refused += 1;
            return false;
        }
        let Some(payload) = packet::open(packet, keys, number_at) else { return false };
        self.taken += len;
        self.waiting.push(payload);
        true
    }

    /// What has come and may be delivered.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        let waiting = core::mem::take(&mut self.waiting);
        if lock(&self.ledger).is_open(&self.flight) { waiting } else { Vec::new() }
    }

    /// These messages were delivered.
    pub(super) fn note(&mut self, arrived: u32) {
        self.arrived |= arrived;
        lock(&self.ledger).note(&self.flight, self.arrived);
    }

    /// The handshake is done: nothing is taken any more. Messages that copies of this flight have
    /// delivered elsewhere, if it was refused.
    pub(super) fn finish(&mut self) -> u32 {
        self.waiting.clear();
        match self.keys.take() {
            Some(_) => 0,
            None => lock(&self.ledger).close(&self.flight),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::plain_keys;

    const NOW: Timestamp = Timestamp::from_millis(5);
    const LATER: Timestamp = Timestamp::from_millis(900);

    fn remembered(early_limit: u64, max_message_size: u64) -> TransportParameters {
        TransportParameters { early_limit, max_message_size, ..TransportParameters::default() }
    }

    fn sender(early_limit: u64) -> Option<EarlySender> {
        EarlySender::new(plain_keys(9, true).local, remembered(early_limit, 5_000))
    }

    fn receiver(ledger: &SharedLedger, flight: u8) -> EarlyReceiver {
        let keys = plain_keys(9, false).remote;
        EarlyReceiver::new(NOW, ledger.clone(), [flight; 32], Some(keys))
    }

    fn packet(sender: &mut EarlySender, room: usize) -> Option<Vec<u8>> {
        let mut out = vec![0; room];
        let len = sender.write(NOW, &mut out, b"original", b"mine", 3)?;
        out.truncate(len);
        Some(out)
    }

    fn number_at(packet: &[u8]) -> usize {
        crate::wire::long_header::decode(packet).unwrap().number_at
    }

    #[test]
    fn a_sender_takes_what_the_server_took_and_no_more() {
        assert!(sender(0).is_none());
        let mut small = sender(1_000).unwrap();
        assert!(small.push(Bytes::from(vec![0; 480]), LATER).is_ok());
        assert!(small.push(Bytes::from_static(b"no room"), LATER).is_err());
        let mut large = sender(u64::MAX).unwrap();
        assert!(large.push(Bytes::from(vec![0; 5_001]), LATER).is_err(), "too long");
        for _ in 0..MAX_EARLY_MESSAGES {
            assert!(large.push(Bytes::new(), LATER).is_ok());
        }
        assert!(large.push(Bytes::new(), LATER).is_err(), "too many");
        // Sent again and again, it ends.
        let mut bytes = 0;
        for _ in 0..10_000 {
            bytes += packet(&mut large, 1_200).map_or(0, |packet| packet.len());
            large.rewind();
        }
        assert!(bytes <= FLIGHT && bytes > FLIGHT - 1_200 && !large.has_unsent());
    }

    #[test]
    fn a_server_that_takes_early_data_keeps_its_word() {
        let sender = sender(10_000).unwrap();
        assert!(sender.is_kept_by(&remembered(10_000, 5_000)));
        assert!(sender.is_kept_by(&remembered(20_000, 6_000)));
        assert!(!sender.is_kept_by(&remembered(9_999, 5_000)));
        assert!(!sender.is_kept_by(&remembered(10_000, 4_999)));
    }

    #[test]
    fn a_message_that_fits_a_datagram_is_not_cut_and_one_too_old_is_not_sent() {
        let mut sender = sender(10_000).unwrap();
        sender.push(Bytes::from(vec![7; 512]), LATER).unwrap();
        assert_eq!(packet(&mut sender, 500), None);
        assert!(sender.has_unsent());
        assert!(packet(&mut sender, 700).is_some() && !sender.has_unsent());
        sender.rewind();
        let mut out = [0; 1_200];
        let late = LATER + core::time::Duration::from_millis(1);
        assert_eq!(sender.write(late, &mut out, b"original", b"mine", 3), None);
        assert!(!sender.has_unsent());
    }

    #[test]
    fn copies_of_a_flight_are_taken_once_and_a_closed_flight_not_at_all() {
        let ledger = SharedLedger::default();
        let mut sender = sender(10_000).unwrap();
        sender.push(Bytes::from_static(b"hello"), LATER).unwrap();
        let packet = packet(&mut sender, 1_200).unwrap();
        let at = number_at(&packet);
        let mut first = receiver(&ledger, 1);
        let mut copy = receiver(&ledger, 1);
        assert!(first.is_taking() && !copy.is_taking());
        assert!(first.receive(&mut packet.clone(), at));
        assert!(!copy.receive(&mut packet.clone(), at));
        assert_eq!(first.take().len(), 1);
        first.note(0b1);
        assert_eq!(copy.finish(), 0b1, "what the other has delivered");
        // The copy's client is there: the first connection was somebody else's.
        assert!(first.receive(&mut packet.clone(), at));
        assert!(first.take().is_empty());
        assert_eq!(first.finish(), 0);
        assert!(!first.receive(&mut packet.clone(), at), "the handshake is done");

        let mut forged = packet.clone();
        forged[at + 6] ^= 1;
        let mut other = receiver(&ledger, 2);
        assert!(!other.receive(&mut forged, at));
        assert_eq!((other.taken, other.refused), (0, 0));
    }
}
