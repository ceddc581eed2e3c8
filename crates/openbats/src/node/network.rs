//! The network of the core of a node.

use std::collections::BTreeMap;

use bats_node::{LinkReport, NeighbourPolicy, Network, Progress, Via};

use super::{LinkId, LinkOptions, LinkPolicy, LinkState, LinkStatus, Node, NodeId, RouteSet};
use crate::fingerprint::Fingerprint;
use crate::options::Trust;

fn own_id(node: bats_node::NodeId) -> NodeId {
    NodeId(node.0.to_bits())
}

fn own_policy(policy: NeighbourPolicy) -> LinkPolicy {
    let own = if policy.transit { LinkPolicy::transit() } else { LinkPolicy::end() };
    match policy.rate {
        Some(rate) => own.rate(rate),
        None => own,
    }
}

fn report(link: &LinkStatus) -> LinkReport {
    LinkReport {
        number: link.id.as_u64(),
        is_opened_here: link.is_opened_here,
        progress: match link.state {
            LinkState::Up => Progress::Up,
            LinkState::Silent => Progress::Silent,
            _ => Progress::Dialling,
        },
        remote: link.remote,
        fingerprint: link.fingerprint.map(|print| print.0),
        failures: link.failures,
    }
}

impl Network for &Node {
    fn links(&self) -> Vec<LinkReport> {
        Node::links(self).list().iter().map(report).collect()
    }

    fn link(&self, number: u64) -> Option<LinkReport> {
        Node::links(self).status(LinkId(number)).as_ref().map(report)
    }

    fn set_peer(&mut self, node: bats_node::NodeId, fingerprint: Option<bats_node::Fingerprint>) {
        Node::set_peer(self, own_id(node), fingerprint.map(Fingerprint));
    }

    fn admit(&mut self, neighbour: bats_node::Fingerprint, policy: NeighbourPolicy) {
        Node::links(self).admit(Fingerprint(neighbour), own_policy(policy));
    }

    fn refuse(&mut self, neighbour: bats_node::Fingerprint) {
        Node::links(self).refuse(Fingerprint(neighbour));
    }

    fn open(&mut self, link: &bats_node::Link, policy: NeighbourPolicy) -> Result<u64, String> {
        let trust = Trust::fingerprint(Fingerprint(link.fingerprint));
        let mut options = LinkOptions::new(link.remote, trust).policy(own_policy(policy));
        if let Some(local) = link.local {
            options = options.local_ip(local);
        }
        if let Some(interface) = &link.interface {
            options = options.interface(interface);
        }
        let opened = Node::links(self).open(options).map_err(|error| error.to_string())?;
        Ok(opened.id().as_u64())
    }

    fn set_policy(&mut self, number: u64, policy: NeighbourPolicy) {
        Node::links(self).set_policy(LinkId(number), own_policy(policy));
    }

    fn close(&mut self, number: u64) {
        Node::links(self).close(LinkId(number));
    }

    fn replace_routes(
        &mut self,
        routes: &BTreeMap<bats_node::NodeId, BTreeMap<Via, u8>>,
    ) -> Result<(), String> {
        let mut set = RouteSet::new();
        for (&to, hops) in routes {
            for (via, &tier) in hops {
                let to = own_id(to);
                match *via {
                    Via::Link(number) => set.add(to, LinkId(number), tier),
                    Via::Neighbour(print) => set.add(to, Fingerprint(print), tier),
                }
            }
        }
        self.routes().replace(set).map_err(|error| error.to_string())
    }
}
