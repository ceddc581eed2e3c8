//! The owner of connections as they see it: their protocol object, which itself knows the connections.

use std::net::SocketAddr;
use std::sync::Arc;

use openbats::Endpoint;

use crate::config::Config;
use crate::context::Context;
use crate::event::Failure;
use crate::gate::Gate;

/// What a connection and its channels need of their protocol object.
pub(crate) trait Owner: Send + Sync {
    fn context(&self) -> &Arc<Context>;

    /// The gate that callbacks enter.
    fn gate(&self) -> &Gate;

    /// The socket for client connections. It is created for the first connection, and again if the
    /// configured local address has changed.
    fn client_endpoint(&self, config: &Config, remote: SocketAddr) -> Result<Endpoint, Failure>;

    /// A socket for one connection of mode 11. Connections to the same peer could not be
    /// distinguished on a shared socket.
    fn udp_endpoint(&self, config: &Config, remote: SocketAddr) -> Result<Endpoint, Failure>;

    fn remove_session(&self, id: usize);
}
