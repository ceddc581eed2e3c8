//! The UDP sockets of one endpoint: one for each local address. Packets leave from the socket of
//! the local address that their path has.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

use bats_proto::Transmit;

use super::icmp_errors::UnreachablePort;
use super::parker::Readiness;
use super::socket::{Bursts, ReceiveBuffers, Socket, canonical};
use super::{Interest, Poller};

/// At least one socket.
#[derive(Debug)]
pub(crate) struct Sockets {
    sockets: Vec<(Socket, SocketAddr)>,
    /// Of several sockets: readable while one of them is.
    readiness: Option<Poller>,
    /// The socket to receive from first.
    next: AtomicUsize,
}

impl Sockets {
    pub(crate) fn new(sockets: Vec<Socket>) -> io::Result<Self> {
        let readiness = match sockets.len() {
            0 => return Err(io::ErrorKind::InvalidInput.into()),
            1 => None,
            _ => Some(Poller::new()?),
        };
        for socket in &sockets {
            if let Some(readiness) = &readiness {
                readiness.add(socket, 0, Interest::Read)?;
            }
        }
        let with_address = |socket: Socket| {
            let address = canonical(socket.local_addr()?);
            Ok((socket, address))
        };
        let sockets = sockets.into_iter().map(with_address).collect::<io::Result<_>>()?;
        Ok(Self { sockets, readiness, next: AtomicUsize::new(0) })
    }

    #[cfg(test)]
    pub(super) fn steer_to_first(&self) {
        self.sockets[0].0.steer(1).expect("the sockets share their port");
    }

    /// Ports that were reported as unreachable since the last call.
    pub(super) fn unreachable_ports(&self) -> Vec<UnreachablePort> {
        self.sockets.iter().flat_map(|(socket, _)| socket.unreachable_ports()).collect()
    }

    /// Whether there is something to receive, or an error to read. An error of one of several sockets
    /// shows as something to receive.
    pub(super) fn readiness(&self) -> Option<Readiness> {
        self.sockets.iter().find_map(|(socket, _)| socket.readiness())
    }

    /// Whether the descriptor for waiting is not that of a socket, and shows no errors of its own.
    pub(super) fn has_several(&self) -> bool {
        self.readiness.is_some()
    }

    /// Receives one batch from the next socket that has one; returns `false` if none has.
    pub(super) fn receive(&self, buffers: &mut ReceiveBuffers) -> io::Result<bool> {
        for _ in &self.sockets {
            let next = self.next.fetch_add(1, Ordering::Relaxed) % self.sockets.len();
            if self.sockets[next].0.receive(buffers)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends the bursts; returns `false` if the send buffer of the only socket is full. Of several
    /// sockets a full one drops packets, as a full queue in the network does: it must not hold up
    /// the others.
    pub(super) fn send(&self, bursts: &mut Bursts) -> io::Result<bool> {
        if let [(socket, _)] = &self.sockets[..] {
            return socket.send(bursts);
        }
        while let Some(transmit) = bursts.next_transmit() {
            if !self.socket_for(&transmit).send_next(bursts)? {
                bursts.discard_next();
            }
        }
        Ok(true)
    }

    /// The socket that is bound to the packet's local address, or one that reaches the remote one.
    fn socket_for(&self, transmit: &Transmit) -> &Socket {
        let addresses = self.sockets.iter().map(|(_, address)| *address);
        let index = choose(addresses, transmit.local_ip, transmit.remote);
        &self.sockets[index].0
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.readiness {
            Some(readiness) => readiness.as_fd(),
            None => self.sockets[0].0.as_fd(),
        }
    }
}

/// Index of the best of these bound addresses for a packet from `local_ip` to `remote`.
fn choose(
    addresses: impl Iterator<Item = SocketAddr>,
    local_ip: Option<IpAddr>,
    remote: SocketAddr,
) -> usize {
    let rank = |address: SocketAddr| {
        let ip = address.ip();
        if local_ip == Some(ip) {
            0
        } else if ip.is_unspecified() && (ip.is_ipv6() || remote.is_ipv4()) {
            1
        } else if local_ip.is_none() && ip.is_ipv4() == remote.is_ipv4() {
            2
        } else {
            3
        }
    };
    let ranked = addresses.map(rank).enumerate();
    ranked.min_by_key(|&(_, rank)| rank).map_or(0, |(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_from_the_socket_of_their_local_address() {
        let bound = ["127.0.0.1:1", "127.0.0.2:2", "[::1]:3", "[::]:4"];
        let bound: Vec<SocketAddr> = bound.iter().map(|text| text.parse().unwrap()).collect();
        let chosen = |count: usize, local: Option<&str>, remote: &str| {
            let local = local.map(|ip| ip.parse().unwrap());
            choose(bound[..count].iter().copied(), local, remote.parse().unwrap())
        };
        assert_eq!(chosen(4, Some("127.0.0.2"), "127.0.0.9:1"), 1);
        assert_eq!(chosen(4, Some("127.0.0.1"), "127.0.0.9:1"), 0);
        assert_eq!(chosen(4, Some("127.0.0.3"), "127.0.0.9:1"), 3, "the unspecified address");
        assert_eq!(chosen(4, None, "127.0.0.9:1"), 3);
        assert_eq!(chosen(3, None, "127.0.0.9:1"), 0);
        assert_eq!(chosen(3, None, "[2001:db8::1]:1"), 2);
    }
}
