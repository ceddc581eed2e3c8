//! How routes name links.

use super::link::LinkId;
use crate::fingerprint::Fingerprint;

/// The next link, or links, on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Via {
    /// This link. A link that this node opened keeps its ID when it is established again.
    Link(LinkId),
    /// All links with the neighbour that has this certificate, whichever end opened them, now and
    /// in future.
    Neighbour(Fingerprint),
}

impl From<LinkId> for Via {
    fn from(link: LinkId) -> Self {
        Self::Link(link)
    }
}

impl From<Fingerprint> for Via {
    fn from(fingerprint: Fingerprint) -> Self {
        Self::Neighbour(fingerprint)
    }
}
