//! What crosses links that flows of several kinds share.

use bats_netem::Payload;

use crate::tcp::{self, Ack};

/// A packet, of whichever flow it is.
#[derive(Clone, Debug)]
pub enum Body {
    /// A UDP datagram.
    Datagram {
        /// Payload.
        bytes: Vec<u8>,
        /// ECN bits.
        ecn: u8,
        /// A byte is not as it was sent: UDP's checksum would find it.
        is_changed: bool,
    },
    /// A full segment of the model of TCP, by its number.
    Segment(u64),
    /// An acknowledgement of the model.
    Ack(Ack),
    /// A segment or acknowledgement of so many bytes that TCP's checksum throws away.
    Spoilt(usize),
}

impl Body {
    /// A datagram as it is sent.
    pub fn datagram(bytes: Vec<u8>, ecn: u8) -> Self {
        Self::Datagram { bytes, ecn, is_changed: false }
    }
}

impl Payload for Body {
    fn len(&self) -> usize {
        match self {
            Self::Datagram { bytes, .. } => bytes.len(),
            Self::Segment(_) => tcp::SEGMENT_PAYLOAD,
            Self::Ack(_) => tcp::ACK_PAYLOAD,
            Self::Spoilt(len) => *len,
        }
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        if let Self::Datagram { bytes, is_changed, .. } = self {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= flip;
                *is_changed = true;
            }
        } else {
            *self = Self::Spoilt(self.len());
        }
    }

    fn mark(&mut self) {
        if let Self::Datagram { ecn, .. } = self
            && *ecn != 0
        {
            *ecn = 3;
        }
    }
}

/// A packet of one of several flows. `W` says what a network knows of its way.
#[derive(Clone, Debug)]
pub struct Packet<W = ()> {
    /// The flow's number.
    pub flow: usize,
    /// Where it is on its way.
    pub way: W,
    /// What it carries.
    pub body: Body,
}

impl<W: Clone> Payload for Packet<W> {
    fn len(&self) -> usize {
        self.body.len()
    }

    fn corrupt(&mut self, at: usize, flip: u8) {
        self.body.corrupt(at, flip);
    }

    fn mark(&mut self) {
        self.body.mark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_link_spoils_is_known_by_a_checksum_and_keeps_its_length() {
        let mut datagram = Body::datagram(vec![1, 2, 3], 2);
        datagram.corrupt(1, 0x80);
        datagram.mark();
        let Body::Datagram { bytes, ecn: 3, is_changed: true } = datagram else {
            panic!("{datagram:?}")
        };
        assert_eq!(bytes, [1, 0x82, 3]);
        for mut body in [Body::Segment(7), Body::Ack(Ack { next: 7, ranges: [None; 4] })] {
            let len = body.len();
            body.corrupt(0, 1);
            assert!(matches!(body, Body::Spoilt(_)) && body.len() == len, "{body:?}");
        }
        let mut without_ecn = Body::datagram(vec![0], 0);
        without_ecn.mark();
        assert!(matches!(without_ecn, Body::Datagram { ecn: 0, is_changed: false, .. }));
    }
}
