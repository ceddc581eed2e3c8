//! Several endpoints behind one address: connection IDs name the one that takes a packet.

use core::num::NonZeroU8;

/// The packets that an endpoint takes, of those for its address: the ones whose destination connection ID begins with a
/// byte that is `index` modulo `count`, and packets without one. The driver hands packets to the endpoints accordingly.
/// By default an endpoint takes all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    index: u8,
    count: NonZeroU8,
}

impl Default for Steering {
    fn default() -> Self {
        Self { index: 0, count: NonZeroU8::MIN }
    }
}

impl Steering {
    /// Offset of the first byte of the destination connection ID in a short header.
    pub const SHORT: u8 = 1;
    /// The same in a long header, where it follows the version and the length of the ID.
    pub const LONG: u8 = 6;

    /// The endpoint with this index, from 0 on, of `count`. `None` if there is none.
    pub fn new(index: u8, count: NonZeroU8) -> Option<Self> {
        (index < count.get()).then_some(Self { index, count })
    }

    /// Number of endpoints behind the address.
    pub fn count(self) -> usize {
        usize::from(self.count.get())
    }

    /// Whether this is the endpoint with this index.
    pub fn is(self, index: usize) -> bool {
        usize::from(self.index) == index
    }

    /// Whether this is the first of them.
    pub fn is_first(self) -> bool {
        self.index == 0
    }

    /// Whether this is the last of them.
    pub fn is_last(self) -> bool {
        self.index + 1 == self.count.get()
    }

    /// The index of the endpoint that takes this datagram, if it is another one.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    pub fn other_owner(self, datagram: &[u8]) -> Option<usize> {
        if self.count == NonZeroU8::MIN {
            return None;
        }
        let offset = if datagram.first()? & 0x80 == 0 { Self::SHORT } else { Self::LONG };
        let owner = *datagram.get(usize::from(offset))? % self.count;
        (owner != self.index).then_some(usize::from(owner))
    }

    /// The connection ID nearest to `cid` that this endpoint takes.
    pub(super) fn steer(self, mut cid: [u8; 4]) -> [u8; 4] {
        let base = cid[0] - cid[0] % self.count;
        cid[0] =
            base.checked_add(self.index).unwrap_or_else(|| base - self.count.get() + self.index);
        cid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids_name_their_endpoint() {
        for count in 1..=u8::MAX {
            let count = NonZeroU8::new(count).unwrap();
            for index in [0, count.get() / 2, count.get() - 1] {
                let steering = Steering::new(index, count).unwrap();
                for first in 0..=u8::MAX {
                    let cid = steering.steer([first, 1, 2, 3]);
                    assert_eq!((cid[0] % count, &cid[1..]), (index, &[1, 2, 3][..]), "{count}");
                }
            }
            assert_eq!(Steering::new(count.get(), count), None);
        }
        assert_eq!(Steering::default().steer([7; 4]), [7; 4]);
    }

    #[test]
    fn datagrams_belong_to_the_endpoint_that_their_connection_id_names() {
        let count = NonZeroU8::new(3).unwrap();
        for index in 0..3 {
            let steering = Steering::new(index, count).unwrap();
            for first in 0..=u8::MAX {
                let owner = first % count;
                let expected = (owner != index).then_some(usize::from(owner));
                assert_eq!(steering.other_owner(&[0x40, first, 0, 0, 0]), expected);
                assert_eq!(steering.other_owner(&[0xc0, 9, 9, 9, 9, 8, first]), expected);
                assert_eq!(Steering::default().other_owner(&[0x40, first]), None);
            }
            for short in [&[][..], &[0x40], &[0xc0, 1, 1, 1, 1, 1]] {
                assert_eq!(steering.other_owner(short), None);
            }
        }
    }
}
