//! A node that claims the flow of another node's session.

use bats_types::Timestamp;

use crate::config::ClientConfig;
use crate::endpoint::{ConnectionHandle, Endpoint};
use crate::error::ConnectError;
use crate::wire::flow::FlowKey;

/// The flow that an end-to-end session sends.
pub fn flow_of(endpoint: &Endpoint, session: ConnectionHandle) -> Option<FlowKey> {
    endpoint.flow_key(session)
}

/// As [`Endpoint::connect_across`], but the application chooses the flow.
///
/// # Errors
///
/// A session of the endpoint already sends it, or as [`Endpoint::connect_across`].
pub fn connect_in_flow(
    endpoint: &mut Endpoint,
    now: Timestamp,
    key: FlowKey,
    server_name: &str,
    config: ClientConfig,
) -> Result<ConnectionHandle, ConnectError> {
    endpoint.connect_in_flow(now, key, server_name, config)
}
