//! The routes of a node, as the application sets them.

use std::sync::Arc;

use bats_proto::wire::flow::NodeId;

use super::link::LinkId;
use super::route_error::RouteError;
use super::route_set::RouteSet;
use crate::shared::Shared;

/// The routes of a node; see [`Node::routes`](super::Node::routes).
#[derive(Clone, Debug)]
pub struct Routes {
    shared: Arc<Shared>,
}

impl Routes {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Replaces all routes at once. Traffic to a destination that is in both sets never finds a
    /// moment without a route; what waits for a link that is not used any more takes another one.
    /// Packets to a destination without a route are dropped.
    ///
    /// # Errors
    /// The set is not valid; the routes are unchanged then.
    pub fn replace(&self, routes: RouteSet) -> Result<(), RouteError> {
        self.shared.call(|core, clock| {
            let is_over = core.is_shut_down || core.ended.is_some();
            let Some(node) = core.node.as_mut().filter(|_| !is_over) else {
                return Err(RouteError::Closed);
            };
            routes.check(node.id, |link| node.links.contains(link))?;
            if routes.groups().next().is_some() && !core.endpoint.packets().is_recoding() {
                return Err(RouteError::NotRecoding);
            }
            node.replace_routes(clock.now(), core.endpoint.packets(), routes);
            Ok(())
        })
    }

    /// The current set of routes.
    #[must_use]
    pub fn get(&self) -> RouteSet {
        self.shared.lock().node.as_ref().map(|node| node.routes.clone()).unwrap_or_default()
    }

    /// The established links over which the current routes lead to a node, with their tiers.
    #[must_use]
    pub fn links_to(&self, destination: NodeId) -> Vec<(LinkId, u8)> {
        self.links_to_each(&[destination]).pop().unwrap_or_default()
    }

    /// As [`links_to`](Self::links_to) for each of these nodes, in their order and for one moment.
    #[must_use]
    pub fn links_to_each(&self, destinations: &[NodeId]) -> Vec<Vec<(LinkId, u8)>> {
        let core = self.shared.lock();
        let Some(node) = &core.node else { return vec![Vec::new(); destinations.len()] };
        node.links_to_each(destinations)
    }
}
