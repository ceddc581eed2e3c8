//! The sockets of listeners for programs. The keeper holds them: ports below 1024 need a privilege, and
//! connections wait in the backlog while a worker is started again.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use anyhow::Context;

use crate::config::Config;

/// The open sockets by address, and whether they are of UDP.
#[derive(Default)]
pub(super) struct Listeners(BTreeMap<(SocketAddr, bool), Arc<OwnedFd>>);

impl Listeners {
    /// The sockets that a configuration needs: those that are open, and new ones.
    pub(super) fn opened_for(&self, config: &Config) -> anyhow::Result<Self> {
        let mut sockets = BTreeMap::new();
        for listener in &config.listeners {
            let key = (listener.address, listener.is_udp());
            let socket = match self.0.get(&key) {
                Some(socket) => Arc::clone(socket),
                None => Arc::new(open(key).with_context(|| {
                    let protocol = if key.1 { "UDP" } else { "TCP" };
                    format!("cannot listen at {protocol} {} (key `listen`)", key.0)
                })?),
            };
            sockets.insert(key, socket);
        }
        Ok(Self(sockets))
    }

    /// The sockets in the order of the configuration.
    pub(super) fn in_order<'a>(
        &'a self,
        config: &'a Config,
    ) -> impl Iterator<Item = BorrowedFd<'a>> + 'a {
        let sockets = config
            .listeners
            .iter()
            .filter_map(|listener| self.0.get(&(listener.address, listener.is_udp())));
        sockets.map(|socket| socket.as_fd())
    }
}

fn open((address, is_udp): (SocketAddr, bool)) -> std::io::Result<OwnedFd> {
    if is_udp {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        return Ok(socket.into());
    }
    let socket = TcpListener::bind(address)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
