//! Several links carry one flow: each takes the rest of a batch at a time, so that a batch stays on
//! one of them and each can repair its own losses.

/// Consecutive symbols that are set aside for a link, and not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    /// `None` if the link that it was for has gone.
    link: Option<u64>,
    next: u64,
    end: u64,
}

/// What is set aside for which link. There are as many shares as links at most, and those of links
/// that have gone.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The link at hand, if there are several.
    link: Option<u64>,
    shares: Vec<Share>,
}

impl Shares {
    pub(super) fn set_link(&mut self, link: Option<u64>) {
        self.link = link;
    }

    /// Whether symbols go by shares: several links carry the flow, or did and left some.
    pub(super) fn is_divided(&self) -> bool {
        self.link.is_some() || !self.shares.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shares.is_empty()
    }

    /// Symbols in all shares.
    pub(super) fn symbols(&self) -> u64 {
        self.shares.iter().map(|share| share.end - share.next).sum()
    }

    pub(super) fn has_share_of(&self, link: u64) -> bool {
        self.shares.iter().any(|share| share.link == Some(link))
    }

    /// Whether there is a share that the link at hand may send.
    pub(super) fn has_any(&self) -> bool {
        self.find().is_some()
    }

    /// The share of the link at hand, or one of a link that has gone. Where there is but one link, all
    /// shares are for it.
    fn find(&self) -> Option<usize> {
        let own = |share: &Share| self.link.is_none() || share.link == self.link;
        let shares = &self.shares;
        shares.iter().position(own).or_else(|| shares.iter().position(|s| s.link.is_none()))
    }

    /// The next symbol for the link at hand.
    pub(super) fn next(&mut self) -> Option<u64> {
        let index = self.find()?;
        let share = &mut self.shares[index];
        share.link = self.link;
        let number = share.next;
        share.next += 1;
        if share.next == share.end {
            self.shares.remove(index);
        }
        Some(number)
    }

    /// Sets symbols aside for the link at hand, at least one.
    pub(super) fn take(&mut self, next: u64, end: u64) {
        if next < end {
            self.shares.push(Share { link: self.link, next, end });
        }
    }

    /// What is set aside for this link is for any other.
    pub(super) fn release(&mut self, link: u64) {
        for share in self.shares.iter_mut().filter(|share| share.link == Some(link)) {
            share.link = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(shares: &mut Shares) -> Vec<u64> {
        core::iter::from_fn(|| shares.next()).collect()
    }

    #[test]
    fn each_link_has_its_own_and_what_is_left_behind_is_for_anybody() {
        let mut shares = Shares::default();
        assert!(!shares.is_divided());
        shares.set_link(Some(1));
        shares.take(0, 3);
        assert_eq!(shares.next(), Some(0));
        shares.set_link(Some(2));
        assert!(!shares.has_any(), "what is set aside for one is not for another");
        shares.take(16, 18);
        assert_eq!((shares.symbols(), shares.has_share_of(1)), (4, true));
        assert_eq!(all(&mut shares), [16, 17]);
        shares.release(1);
        assert_eq!(all(&mut shares), [1, 2]);
        assert!(shares.is_empty());
    }

    #[test]
    fn one_link_takes_what_several_had() {
        let mut shares = Shares::default();
        for link in [1, 2] {
            shares.set_link(Some(link));
            shares.take(16 * link, 16 * link + 2);
        }
        shares.set_link(None);
        assert!(shares.is_divided());
        assert_eq!(all(&mut shares), [16, 17, 32, 33]);
        assert!(!shares.is_divided());
    }
}
