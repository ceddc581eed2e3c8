//! Groups: where the packets of a source to a group come from, and which neighbours they go to.
//!
//! The owner of the node sets the entries, as a multicast routing daemon sets those of a kernel's forwarding cache.
//! Nothing is learned from packets.

use std::collections::{BTreeMap, BTreeSet};

use bats_wire::flow::{FlowKey, NodeId};

use super::link::Links;
use super::link_view::LinkId;
use super::routes::MAX_PATHS;

/// Maximum number of entries of groups.
pub const MAX_GROUP_ENTRIES: usize = 4_096;

/// How the packets of a source to a group pass through this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupEntry {
    /// The links that packets are accepted from: all those with the neighbour that leads to the source, at most
    /// [`MAX_PATHS`]. Empty at the source itself.
    pub incoming: Vec<LinkId>,
    /// The neighbours that packets go to, at most [`MAX_PATHS`]; each by its links in order of preference, at most
    /// [`MAX_PATHS`]. The first responsive link is used. A neighbour with an incoming link is left out.
    pub branches: Vec<Vec<LinkId>>,
}

/// Why an entry of a group cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupEntryError {
    /// The group is not one of 224.0.0.0/4.
    NotAGroup(NodeId),
    /// The source is a group.
    GroupAsSource(NodeId),
    /// This node is the source, so that there are no incoming links; or there are none although it is not.
    Incoming(usize),
    /// More than [`MAX_PATHS`] branches, or links of one neighbour.
    TooMany(usize),
    /// There are [`MAX_GROUP_ENTRIES`] others.
    TooManyEntries,
    /// A link belongs to two branches.
    Shared(LinkId),
    /// A link is not admitted.
    NotAdmitted(LinkId),
    /// This relay does not recode, and only relays that do can repair the branches of a group.
    NotRecoding,
}

impl core::fmt::Display for GroupEntryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NotAGroup(node) => {
                write!(f, "{node} is no group: groups are the IDs of 224.0.0.0/4")
            }
            Self::GroupAsSource(node) => write!(f, "{node} is a group and cannot be a source"),
            Self::Incoming(0) => {
                write!(f, "an entry needs an incoming link unless this node is the source")
            }
            Self::Incoming(links) => {
                write!(f, "this node is the source: its entry has no incoming links, not {links}")
            }
            Self::TooMany(count) => {
                write!(
                    f,
                    "{count} branches or links of a neighbour; at most {MAX_PATHS} are allowed"
                )
            }
            Self::TooManyEntries => {
                write!(f, "there are {MAX_GROUP_ENTRIES} entries of groups; remove one first")
            }
            Self::Shared(link) => write!(f, "link {} belongs to two branches", link.0),
            Self::NotAdmitted(link) => write!(f, "link {} is not admitted", link.0),
            Self::NotRecoding => write!(f, "a relay that does not recode has no groups"),
        }
    }
}

impl core::error::Error for GroupEntryError {}

/// The entries, by group and source, and the groups that this node is a member of.
#[derive(Debug, Default)]
pub(super) struct Groups {
    entries: BTreeMap<(NodeId, NodeId), GroupEntry>,
    members: BTreeSet<NodeId>,
}

impl Groups {
    /// Sets an entry; `node` is this node.
    pub(super) fn set(
        &mut self,
        node: NodeId,
        source: NodeId,
        group: NodeId,
        mut entry: GroupEntry,
        links: &Links,
    ) -> Result<(), GroupEntryError> {
        if !group.is_group() {
            return Err(GroupEntryError::NotAGroup(group));
        }
        if source.is_group() {
            return Err(GroupEntryError::GroupAsSource(source));
        }
        if (source == node) != entry.incoming.is_empty() {
            return Err(GroupEntryError::Incoming(entry.incoming.len()));
        }
        let sizes =
            entry.branches.iter().map(Vec::len).chain([entry.incoming.len(), entry.branches.len()]);
        if let Some(most) = sizes.max().filter(|&most| most > MAX_PATHS) {
            return Err(GroupEntryError::TooMany(most));
        }
        let mut known = BTreeSet::new();
        for &link in entry.branches.iter().flatten() {
            if !known.insert(link) {
                return Err(GroupEntryError::Shared(link));
            }
        }
        if let Some(&link) =
            entry.incoming.iter().chain(&known).find(|link| !links.contains_key(link))
        {
            return Err(GroupEntryError::NotAdmitted(link));
        }
        if self.entries.len() >= MAX_GROUP_ENTRIES && !self.entries.contains_key(&(group, source)) {
            return Err(GroupEntryError::TooManyEntries);
        }
        let GroupEntry { incoming, branches } = &mut entry;
        branches
            .retain(|links| !links.is_empty() && !links.iter().any(|link| incoming.contains(link)));
        self.entries.insert((group, source), entry);
        Ok(())
    }

    /// Removes an entry; false if there is none.
    pub(super) fn remove(&mut self, source: NodeId, group: NodeId) -> bool {
        self.entries.remove(&(group, source)).is_some()
    }

    /// Removes a link from all entries.
    pub(super) fn remove_link(&mut self, link: LinkId) {
        for entry in self.entries.values_mut() {
            entry.incoming.retain(|other| *other != link);
            entry.branches.iter_mut().for_each(|links| links.retain(|other| *other != link));
            entry.branches.retain(|links| !links.is_empty());
        }
    }

    /// Sets whether this node is a member of a group.
    pub(super) fn set_member(&mut self, group: NodeId, is_member: bool) {
        match is_member {
            true => self.members.insert(group),
            false => self.members.remove(&group),
        };
    }

    /// Whether this node is a member of a group.
    pub(super) fn is_member(&self, group: NodeId) -> bool {
        self.members.contains(&group)
    }

    fn entry(&self, key: FlowKey) -> Option<&GroupEntry> {
        self.entries.get(&(key.destination, key.source))
    }

    /// Whether packets of a flow are accepted from a link.
    pub(super) fn accepts(&self, key: FlowKey, link: LinkId) -> bool {
        self.entry(key).is_some_and(|entry| entry.incoming.contains(&link))
    }

    /// Whether packets of a flow go to other nodes.
    pub(super) fn has_branches(&self, key: FlowKey) -> bool {
        self.entry(key).is_some_and(|entry| !entry.branches.is_empty())
    }

    /// The link that each branch of a flow uses now.
    pub(super) fn links_of(&self, links: &Links, key: FlowKey) -> Vec<LinkId> {
        let branches = self.entry(key).map_or(&[][..], |entry| &entry.branches);
        branches.iter().filter_map(|branch| current(links, branch)).collect()
    }

    /// The link that the branch with this link uses now.
    pub(super) fn link_instead_of(
        &self,
        links: &Links,
        key: FlowKey,
        link: LinkId,
    ) -> Option<LinkId> {
        let branch = self.entry(key)?.branches.iter().find(|branch| branch.contains(&link))?;
        current(links, branch)
    }

    /// Sources and groups of the entries with a branch over a link.
    pub(super) fn sources_over(&self, link: LinkId) -> Vec<(NodeId, NodeId)> {
        let over = |entry: &GroupEntry| entry.branches.iter().any(|branch| branch.contains(&link));
        let entries = self.entries.iter().filter(|(_, entry)| over(entry));
        entries.map(|(&(group, source), _)| (source, group)).collect()
    }

    /// The links that packets of a source to a group are accepted from.
    pub(super) fn incoming(&self, source: NodeId, group: NodeId) -> &[LinkId] {
        self.entries.get(&(group, source)).map_or(&[], |entry| &entry.incoming)
    }
}

/// The first responsive link of a branch; without one, the first that is admitted.
fn current(links: &Links, branch: &[LinkId]) -> Option<LinkId> {
    let admitted = branch.iter().filter_map(|&link| Some((link, links.get(&link)?.view)));
    let best = admitted.enumerate().min_by_key(|(rank, (_, view))| {
        (!view.alive || view.potentially_failed, !view.alive, *rank)
    });
    best.map(|(_, (link, _))| link)
}
