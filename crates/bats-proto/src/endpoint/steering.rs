//! Several endpoints behind one address: connection IDs name the one that takes a packet.

use core::num::NonZeroU8;

/// The packets that an endpoint takes, of those for its address: the ones whose destination connection ID begins with a
/// byte that is `index` modulo `count`. The driver hands packets to the endpoints accordingly. By default an endpoint
/// takes all.
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
    /// The endpoint with this index, from 0 on, of `count`. `None` if there is none.
    pub fn new(index: u8, count: NonZeroU8) -> Option<Self> {
        (index < count.get()).then_some(Self { index, count })
    }

    /// Number of endpoints behind the address.
    pub fn count(self) -> usize {
        usize::from(self.count.get())
    }

    /// Whether this is the last of them.
    pub fn is_last(self) -> bool {
        self.index + 1 == self.count.get()
    }

    /// The connection ID nearest to `cid` that names this endpoint.
    pub(super) fn name(self, mut cid: [u8; 4]) -> [u8; 4] {
        let base = cid[0] - cid[0] % self.count;
        cid[0] = base.checked_add(self.index).unwrap_or(base - self.count.get() + self.index);
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
                    let cid = steering.name([first, 1, 2, 3]);
                    assert_eq!((cid[0] % count, &cid[1..]), (index, &[1, 2, 3][..]), "{count}");
                }
            }
            assert_eq!(Steering::new(count.get(), count), None);
        }
        assert_eq!(Steering::default().name([7; 4]), [7; 4]);
    }
}
