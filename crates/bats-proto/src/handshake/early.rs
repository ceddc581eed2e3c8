//! Early data: messages sent with the client's first flight (RFC 9001, section 4.6).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bats_types::Timestamp;
use bytes::Bytes;

use super::packet::{self, PacketHeader};
use super::replay_ledger::ReplayLedger;
use crate::crypto::{DirectionalKeys, TAG_LEN};
use crate::session::DatagramQueue;
use crate::wire::long_header::{CID_LEN, LongKind, MIN_INITIAL_DATAGRAM, ORIGINAL_CID_LEN};
use crate::wire::parameters::TransportParameters;

/// Limit of early messages: the server acknowledges them with 32 bits.
pub(crate) const MAX_EARLY_MESSAGES: usize = 32;
/// Bytes of early data that a server accepts from one connection, retransmissions included: a
/// little more than clients send. They are opened and parsed for an unvalidated address.
pub(crate) const EARLY_LIMIT: u64 = 16 << 10;
/// Bytes of early packets that a client sends, retransmissions included: the initial congestion
/// window (RFC 9002, section 7.2), because nothing is known about the path.
const MAX_EARLY_FLIGHT: usize = 14_720;
/// Bytes that an early message counts in addition to its content.
const MESSAGE_OVERHEAD: usize = 16;
/// Bytes of an early packet without its payload.
const OVERHEAD: usize = 1 + 4 + 1 + ORIGINAL_CID_LEN + 1 + CID_LEN + 2 + 4 + TAG_LEN;
/// Least payload of an early packet in bytes.
const MIN_PAYLOAD: usize = 32;

/// A message and when it expires.
pub(crate) type ExpiringMessage = (Bytes, Timestamp);

/// The client's early data.
#[derive(Debug)]
pub(super) struct EarlySender {
    keys: DirectionalKeys,
    /// The server's transport parameters from the earlier session.
    remembered: TransportParameters,
    messages: Vec<ExpiringMessage>,
    /// Bytes that are free for further messages.
    room: usize,
    /// Bytes of packets that may still be sent.
    budget: usize,
    /// Messages not yet sent in the current transmission round.
    unsent: DatagramQueue,
    next_pn: u64,
}

impl EarlySender {
    /// Creates a sender from the remembered parameters; `None` if the server accepted no early
    /// data.
    pub(super) fn new(keys: DirectionalKeys, remembered: TransportParameters) -> Option<Self> {
        let budget =
            usize::try_from(remembered.early_limit).unwrap_or(usize::MAX).min(MAX_EARLY_FLIGHT);
        (budget > 0).then(|| Self {
            keys,
            remembered,
            messages: Vec::new(),
            // Half, so that each message can be sent twice.
            room: budget / 2,
            budget,
            unsent: DatagramQueue::default(),
            next_pn: 0,
        })
    }

    /// Accepts a message, or returns it if there is no room or it exceeds the server's message
    /// limit.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn push(&mut self, message: Bytes, expires: Timestamp) -> Result<(), Bytes> {
        let cost = message.len().saturating_add(MESSAGE_OVERHEAD);
        let too_long = message.len() as u64 > self.remembered.max_message_size;
        if self.messages.len() == MAX_EARLY_MESSAGES || cost > self.room || too_long {
            return Err(message);
        }
        self.room = self.room.saturating_sub(cost);
        self.unsent.push(message.clone(), expires);
        self.messages.push((message, expires));
        Ok(())
    }

    pub(super) fn messages(&self) -> &[ExpiringMessage] {
        &self.messages
    }

    /// Whether the advertised limits are valid for a server that accepted early data: not smaller
    /// than the remembered ones (RFC 9000, section 7.4.1).
    pub(super) fn limits_kept_by(&self, advertised: &TransportParameters) -> bool {
        advertised.early_limit >= self.remembered.early_limit
            && advertised.max_message_size >= self.remembered.max_message_size
    }

    pub(super) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty() && self.budget >= OVERHEAD + MIN_PAYLOAD
    }

    /// Begins another transmission round.
    pub(super) fn rewind(&mut self) {
        self.unsent = DatagramQueue::default();
        for (message, expires) in &self.messages {
            self.unsent.push(message.clone(), *expires);
        }
    }

    /// Writes the next packet, if there is room; returns its length.
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
        if room < MIN_PAYLOAD {
            return None;
        }
        self.unsent.expire(now);
        // Do not split a message after other packets if it fits a datagram of its own: both parts
        // would have to arrive.
        let next = self.unsent.next_bytes()? + MESSAGE_OVERHEAD;
        if room < whole && next > room && next <= whole {
            return None;
        }
        let mut payload = [0; MIN_INITIAL_DATAGRAM];
        let (len, _) = self.unsent.fill_symbol(now, &mut payload[..room]);
        if len == 0 {
            return None;
        }
        let head = PacketHeader { kind: LongKind::Early, destination, source, token: &[], grease };
        let written = packet::seal(out, &self.keys, &head, self.next_pn, &payload[..len])?;
        self.next_pn += 1;
        self.budget = self.budget.saturating_sub(written);
        Some(written)
    }
}

/// The replay ledger of all handshakes of a server.
pub(super) type SharedReplayLedger = Arc<Mutex<ReplayLedger>>;

pub(super) fn lock(ledger: &SharedReplayLedger) -> MutexGuard<'_, ReplayLedger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Early data of one client at the server, accepted or not.
#[derive(Debug)]
pub(super) struct EarlyReceiver {
    ledger: SharedReplayLedger,
    /// SHA-256 of the ClientHello.
    flight: [u8; 32],
    /// Set while early data is accepted.
    keys: Option<DirectionalKeys>,
    taken: u64,
    /// Packets refused because of the limit.
    pub(super) refused: u64,
    waiting: Vec<Vec<u8>>,
    /// Messages received, as a bit mask.
    pub(super) arrived: u32,
}

impl EarlyReceiver {
    /// Creates a receiver; `keys` is set if TLS has accepted early data.
    pub(super) fn new(
        now: Timestamp,
        ledger: SharedReplayLedger,
        flight: [u8; 32],
        keys: Option<DirectionalKeys>,
    ) -> Self {
        let keys = keys.filter(|_| lock(&ledger).begin(now, flight));
        Self { ledger, flight, keys, taken: 0, refused: 0, waiting: Vec::new(), arrived: 0 }
    }

    /// Whether early data is accepted.
    pub(super) fn accepts_data(&self) -> bool {
        self.keys.is_some()
    }

    /// Takes a packet; returns whether it is authentic.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub(super) fn receive(&mut self, packet: &mut [u8], number_at: usize) -> bool {
        let Some(keys) = &self.keys else { return false };
        let len = packet.len() as u64;
        if self.taken.saturating_add(len) > EARLY_LIMIT {
            self.refused = self.refused.saturating_add(1);
            return false;
        }
        let Some(payload) = packet::open(packet, keys, number_at) else { return false };
        self.taken = self.taken.saturating_add(len);
        self.waiting.push(payload);
        true
    }

    /// Takes the received payloads, if they may be delivered.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        let waiting = core::mem::take(&mut self.waiting);
        if lock(&self.ledger).is_open(&self.flight) { waiting } else { Vec::new() }
    }

    /// Records messages (a bit mask) as delivered.
    pub(super) fn record(&mut self, arrived: u32) {
        self.arrived |= arrived;
        lock(&self.ledger).record(&self.flight, self.arrived);
    }

    /// The handshake is complete: stops accepting early data. If it was refused, returns the
    /// messages that replays of this flight have delivered on other connections.
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

    fn receiver(ledger: &SharedReplayLedger, flight: u8) -> EarlyReceiver {
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
    fn early_sender_respects_the_remembered_limits() {
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
        // Retransmissions stop at the limit.
        let mut bytes = 0;
        for _ in 0..10_000 {
            bytes += packet(&mut large, 1_200).map_or(0, |packet| packet.len());
            large.rewind();
        }
        assert!(
            bytes <= MAX_EARLY_FLIGHT && bytes > MAX_EARLY_FLIGHT - 1_200 && !large.has_unsent()
        );
    }

    #[test]
    fn server_that_accepted_early_data_must_not_reduce_its_limits() {
        let sender = sender(10_000).unwrap();
        assert!(sender.limits_kept_by(&remembered(10_000, 5_000)));
        assert!(sender.limits_kept_by(&remembered(20_000, 6_000)));
        assert!(!sender.limits_kept_by(&remembered(9_999, 5_000)));
        assert!(!sender.limits_kept_by(&remembered(10_000, 4_999)));
    }

    #[test]
    fn message_that_fits_a_datagram_is_not_split_and_expired_one_is_not_sent() {
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
    fn replayed_flight_is_accepted_once_and_closed_flight_never() {
        let ledger = SharedReplayLedger::default();
        let mut sender = sender(10_000).unwrap();
        sender.push(Bytes::from_static(b"hello"), LATER).unwrap();
        let packet = packet(&mut sender, 1_200).unwrap();
        let at = number_at(&packet);
        let mut first = receiver(&ledger, 1);
        let mut copy = receiver(&ledger, 1);
        assert!(first.accepts_data() && !copy.accepts_data());
        assert!(first.receive(&mut packet.clone(), at));
        assert!(!copy.receive(&mut packet.clone(), at));
        assert_eq!(first.take().len(), 1);
        first.record(0b1);
        assert_eq!(copy.finish(), 0b1, "messages delivered on the other connection");
        // The client completed the second handshake, so the first connection was a replay.
        assert!(first.receive(&mut packet.clone(), at));
        assert!(first.take().is_empty());
        assert_eq!(first.finish(), 0);
        assert!(!first.receive(&mut packet.clone(), at), "the handshake is complete");

        let mut forged = packet.clone();
        forged[at + 6] ^= 1;
        let mut other = receiver(&ledger, 2);
        assert!(!other.receive(&mut forged, at));
        assert_eq!((other.taken, other.refused), (0, 0));
    }
}
