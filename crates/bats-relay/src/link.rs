//! What a relay knows of a link: what it may do, its measurements, and the flows that wait for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bats_wire::batch_rank::BatchRank;
use bats_wire::flow::FlowKey;

use super::link_view::{LinkId, LinkView};
use super::opaque::OpaqueQueue;
use super::policy::LinkPolicy;

/// The admitted links.
pub(super) type Links = BTreeMap<LinkId, Link>;

/// An admitted link.
#[derive(Debug)]
pub(super) struct Link {
    /// Whether both ends report ranks to each other.
    pub(super) feedback: bool,
    pub(super) policy: LinkPolicy,
    pub(super) view: LinkView,
    pub(super) opaque: OpaqueQueue,
    /// Whether the next packet comes from a flow, because the last one was an end-to-end packet.
    pub(super) coded_turn: bool,
    /// Flows that may have packets for the link, in round-robin order.
    pub(super) active: VecDeque<FlowKey>,
    is_active: BTreeSet<FlowKey>,
    /// Flows whose packets wait for the next node's credit.
    blocked: BTreeSet<FlowKey>,
    /// Reports to be written.
    pub(super) reports: VecDeque<BatchRank>,
    /// Flows whose reports are due.
    pub(super) reporting: BTreeSet<FlowKey>,
    pub(super) received: u64,
    pub(super) non_innovative: u64,
    pub(super) event_sent: bool,
    /// Whether most packets from the link are non-innovative.
    pub(super) demoted: bool,
    /// Whether each node that the link leads to has another usable link, after so many changes of routes.
    pub(super) has_alternatives: Option<(u64, bool)>,
}

impl Link {
    pub(super) fn new(feedback: bool) -> Self {
        Self {
            feedback,
            policy: LinkPolicy::default(),
            view: LinkView::default(),
            opaque: OpaqueQueue::default(),
            coded_turn: false,
            active: VecDeque::new(),
            is_active: BTreeSet::new(),
            blocked: BTreeSet::new(),
            reports: VecDeque::new(),
            reporting: BTreeSet::new(),
            received: 0,
            non_innovative: 0,
            event_sent: false,
            demoted: false,
            has_alternatives: None,
        }
    }

    /// Marks a flow as active: it may have packets for the link.
    pub(super) fn activate(&mut self, key: FlowKey) {
        self.blocked.remove(&key);
        if self.is_active.insert(key) {
            self.active.push_back(key);
        }
    }

    /// The first active flow has no packet to send now.
    pub(super) fn deactivate_first(&mut self) {
        if let Some(key) = self.active.pop_front() {
            self.is_active.remove(&key);
        }
    }

    /// The packets of a flow wait for the next node's credit.
    pub(super) fn block(&mut self, key: FlowKey) {
        self.blocked.insert(key);
    }

    /// Whether flows wait for the link or for the next node's credit.
    pub(super) fn has_backlog(&self) -> bool {
        !self.blocked.is_empty() || !self.active.is_empty()
    }

    /// Number of flows that wait for the link or for the next node's credit.
    pub(super) fn waiting_flows(&self) -> usize {
        self.active.len() + self.blocked.len()
    }

    /// A flow was removed.
    pub(super) fn forget(&mut self, key: FlowKey) {
        self.opaque.forget(key);
        self.reporting.remove(&key);
        self.blocked.remove(&key);
    }
}

/// Whether a link is admitted and responsive.
pub(super) fn is_alive(links: &Links, link: LinkId) -> bool {
    links.get(&link).is_some_and(|state| state.view.alive)
}
