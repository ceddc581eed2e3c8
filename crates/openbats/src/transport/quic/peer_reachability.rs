//! What a connection knows of its peer's reachability: whether ICMP errors quote its packets, and for how long.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::time::Duration;

use bats_proto::Timestamp;

use super::ids::ID_LEN;

/// Data with which the ICMP errors of a connection are compared.
#[derive(Debug, Default)]
pub(super) struct PeerReachability {
    /// First bytes of the destination connection ID in the packets of this end. If the peer's IDs
    /// are shorter, these bytes differ in each packet and most errors are ignored.
    sent_id: Option<[u8; ID_LEN]>,
    /// Time of the first error since the last datagram of the peer, and the number of datagrams
    /// received until then. Boxed, because most connections have none.
    unreachable_since: Option<Box<(Timestamp, u64)>>,
}

impl PeerReachability {
    /// Records the connection ID of a sent datagram, if it has a short header.
    pub(super) fn on_sent(&mut self, datagram: &[u8]) {
        if let [first, id @ ..] = datagram
            && first & 0x80 == 0
        {
            self.sent_id = id.first_chunk().copied();
        }
    }

    /// Whether the error quotes a short-header packet of this end. Others must guess 8 bytes.
    pub(super) fn is_quoted(&self, quoted: &[u8]) -> bool {
        match (quoted, self.sent_id) {
            ([first, after @ ..], Some(id)) => first & 0x80 == 0 && after.starts_with(&id),
            _ => false,
        }
    }

    /// Handles an error that quotes a packet. Returns whether errors have persisted for a probe
    /// timeout without any datagram of the peer: a single one could be short-lived.
    pub(super) fn has_vanished(
        &mut self,
        now: Timestamp,
        received: u64,
        probe_timeout: Duration,
    ) -> bool {
        match self.unreachable_since.as_deref() {
            Some((since, before)) if *before == received => now - *since >= probe_timeout,
            _ => {
                self.unreachable_since = Some(Box::new((now, received)));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_persistent_errors_that_quote_a_packet_show_a_closed_port() {
        let at = |millis| Timestamp::from_millis(millis);
        let timeout = Duration::from_millis(100);
        let mut peer = PeerReachability::default();
        assert!(!peer.is_quoted(&[0x40, 1, 2, 3, 4, 5, 6, 7, 8]), "nothing was sent");
        peer.on_sent(&[0xc0, 9, 9, 9, 9, 9, 9, 9, 9]);
        peer.on_sent(&[0x40, 1, 2, 3, 4, 5, 6, 7, 8, 77]);
        assert!(peer.is_quoted(&[0x61, 1, 2, 3, 4, 5, 6, 7, 8]));
        for forged in
            [&[][..], &[0x40], &[0x40, 1, 2, 3, 4, 5, 6, 7], &[0xc0, 1, 2, 3, 4, 5, 6, 7, 8]]
        {
            assert!(!peer.is_quoted(forged), "{forged:?}");
        }
        assert!(!peer.has_vanished(at(0), 5, timeout), "the first error");
        assert!(!peer.has_vanished(at(99), 5, timeout));
        assert!(peer.has_vanished(at(100), 5, timeout));
        assert!(!peer.has_vanished(at(101), 6, timeout), "the peer has sent something");
        assert!(!peer.has_vanished(at(200), 6, timeout));
        assert!(peer.has_vanished(at(201), 6, timeout));
    }
}
