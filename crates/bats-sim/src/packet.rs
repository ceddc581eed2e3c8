//! Packets on links that are shared by UDP flows and modelled TCP flows.

use bats_netem::Payload;
use bats_proto::Timestamp;

use crate::tcp::{self, Ack};

/// Content of a packet.
#[derive(Clone, Debug)]
pub enum Body {
    /// A UDP datagram.
    Datagram {
        /// Payload.
        bytes: Vec<u8>,
        /// ECN bits.
        ecn: u8,
        /// The link changed a byte; UDP's checksum detects that.
        is_corrupted: bool,
    },
    /// A full segment of the TCP model.
    Segment(tcp::Segment),
    /// An acknowledgement of the TCP model.
    Ack(Ack),
    /// A corrupted segment or acknowledgement of this many bytes; TCP's checksum discards it.
    Corrupted(usize),
}

impl Body {
    /// A datagram that is not corrupted.
    pub fn datagram(bytes: Vec<u8>, ecn: u8) -> Self {
        Self::Datagram { bytes, ecn, is_corrupted: false }
    }
}

impl Payload for Body {
    fn len(&self) -> usize {
        match self {
            Self::Datagram { bytes, .. } => bytes.len(),
            Self::Segment(_) => tcp::SEGMENT_PAYLOAD,
            Self::Ack(_) => tcp::ACK_PAYLOAD,
            Self::Corrupted(len) => *len,
        }
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        if let Self::Datagram { bytes, is_corrupted, .. } = self {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= flip;
                *is_corrupted = true;
            }
        } else {
            *self = Self::Corrupted(self.len());
        }
    }

    fn mark(&mut self) {
        if let Self::Datagram { ecn, .. } | Self::Segment(tcp::Segment { ecn, .. }) = self
            && *ecn != 0
        {
            *ecn = 3;
        }
    }

    fn is_ect(&self) -> bool {
        matches!(self, Self::Datagram { ecn, .. } | Self::Segment(tcp::Segment { ecn, .. }) if *ecn != 0)
    }
}

/// A packet of one of several flows.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Index of the flow.
    pub flow: usize,
    /// Whether it goes in the direction of the flow's data.
    pub is_data: bool,
    /// Number of links of its route that it has entered.
    pub position: usize,
    /// When it was sent.
    pub sent: Timestamp,
    /// Content.
    pub body: Body,
}

impl Payload for Packet {
    fn len(&self) -> usize {
        self.body.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        self.body.corrupt(at, flip);
    }

    fn mark(&mut self) {
        self.body.mark();
    }

    fn is_ect(&self) -> bool {
        self.body.is_ect()
    }

    fn flow(&self) -> u64 {
        self.flow as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corrupted_body_is_flagged_and_keeps_its_length() {
        let mut datagram = Body::datagram(vec![1, 2, 3], 2);
        datagram.corrupt(1, 0x80);
        datagram.mark();
        let Body::Datagram { bytes, ecn: 3, is_corrupted: true } = datagram else {
            panic!("{datagram:?}")
        };
        assert_eq!(bytes, [1, 0x82, 3]);
        for mut body in [Body::Segment(tcp::Segment::default()), Body::Ack(Ack::default())] {
            let len = body.len();
            body.corrupt(0, 1);
            assert!(matches!(body, Body::Corrupted(_)) && body.len() == len, "{body:?}");
        }
        let body = Body::datagram(vec![0], 2);
        let packet = Packet { flow: 7, is_data: true, position: 0, sent: Timestamp::ZERO, body };
        assert!(packet.flow() == 7 && packet.is_ect());
        let mut without_ecn = Body::datagram(vec![0], 0);
        without_ecn.mark();
        assert!(matches!(without_ecn, Body::Datagram { ecn: 0, is_corrupted: false, .. }));
    }
}
