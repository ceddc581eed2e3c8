//! The exit: connects out for peers, to destinations on its list.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bats_node::NodeId;
use openbats::Channel;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::super::Worker;
use super::super::tunnel::lock;
use super::received::received;
use super::relay::{Datagrams, carry};
use super::resolutions::Resolutions;
use super::{NEGOTIATION, RESET, UDP_IDLE};
use crate::proxy::Parsed;
use crate::proxy::allow::AllowList;
use crate::proxy::request::{MAX_PAYLOAD, MAX_REQUEST, Reply, Request, encode_datagram};
use crate::proxy::target::{Host, Target};

/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 4;
/// Destinations of an association that are remembered; then all are forgotten.
const MAX_DESTINATIONS: usize = 64;

/// Serves a channel that a peer has opened, with this first byte.
pub(in super::super) async fn serve(worker: &Worker, peer: NodeId, channel: Channel, first: u8) {
    let permit = worker.services.exits.take(peer, worker.table().lanes.len());
    match permit.filter(|_| !worker.services.is_draining()) {
        Some(_permit) => drop(serve_channel(worker, peer, channel, first).await),
        None => drop(answer(&channel, Reply::Failed).await),
    }
}

/// Gives up a channel without a request.
pub(in super::super) fn abandon(channel: &Channel) {
    channel.reset(RESET);
}

async fn answer(channel: &Channel, reply: Reply) -> Option<()> {
    timeout(NEGOTIATION, channel.write_all(&[reply as u8])).await.ok()?.ok()
}

async fn serve_channel(worker: &Worker, peer: NodeId, channel: Channel, first: u8) -> Option<()> {
    // A node that serves nothing opens no socket for its peers either.
    if allow_list(worker).is_empty() {
        worker.services.counters.denied.fetch_add(1, Relaxed);
        return answer(&channel, Reply::NotAllowed).await;
    }
    let Ok(request) = timeout(NEGOTIATION, read_request(&channel, first)).await else {
        abandon(&channel);
        return None;
    };
    let (request, rest) = match request? {
        Ok(request) => request,
        Err(reply) => return answer(&channel, reply).await,
    };
    let channel = worker.services.channels.list(peer, false, request.clone(), channel);
    let refused = match (request, rest) {
        (Request::Tcp(target), rest) => match connect(worker, peer, &target).await {
            Ok(stream) => {
                answer(&channel, Reply::Succeeded).await?;
                worker.services.counters.served.fetch_add(1, Relaxed);
                carry(stream, &channel, rest, Vec::new()).await;
                return Some(());
            }
            Err(reply) => reply,
        },
        (Request::Udp, rest) if rest.is_empty() => {
            answer(&channel, Reply::Succeeded).await?;
            worker.services.counters.served.fetch_add(1, Relaxed);
            let _ = carry_datagrams(worker, peer, &channel).await;
            return Some(());
        }
        // Datagrams follow the answer.
        (Request::Udp, _) => Reply::Failed,
    };
    if refused == Reply::NotAllowed {
        worker.services.counters.denied.fetch_add(1, Relaxed);
    }
    answer(&channel, refused).await
}

/// The request, and what came after it.
async fn read_request(channel: &Channel, first: u8) -> Option<Result<(Request, Vec<u8>), Reply>> {
    let mut bytes = vec![first];
    loop {
        match Request::decode(&bytes) {
            Ok(Parsed::Complete(request, length)) => {
                return Some(Ok((request, bytes.split_off(length))));
            }
            Ok(Parsed::Incomplete) => {}
            Err(reply) => return Some(Err(reply)),
        }
        let mut buffer = [0; MAX_REQUEST];
        let length = channel.read(&mut buffer).await.ok()?;
        match buffer.get(..length) {
            None | Some([]) => return None,
            Some(read) => bytes.extend(read),
        }
    }
}

fn allow_list(worker: &Worker) -> Arc<AllowList> {
    let allow = &worker.services.allow;
    Arc::clone(&allow.read().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// The permitted addresses of a destination.
async fn resolve(worker: &Worker, peer: NodeId, target: &Target) -> Result<Vec<SocketAddr>, Reply> {
    let allow = allow_list(worker);
    let addresses = match &target.host {
        Host::Ip(ip) => vec![SocketAddr::new(*ip, target.port)],
        Host::Name(_) if !allow.may_resolve(target) => return Err(Reply::NotAllowed),
        Host::Name(name) => {
            let (name, port) = (name.clone(), target.port);
            let resolver =
                move || Ok((name, port).to_socket_addrs()?.take(MAX_ADDRESSES).collect());
            look_up(&worker.services.resolutions, peer, resolver).await?
        }
    };
    let permitted: Vec<SocketAddr> =
        addresses.into_iter().filter(|address| allow.permits(target, address.ip())).collect();
    if permitted.is_empty() { Err(Reply::NotAllowed) } else { Ok(permitted) }
}

/// The addresses that the resolver finds, once there is a place for this resolution of the peer.
async fn look_up(
    resolutions: &Arc<Resolutions>,
    peer: NodeId,
    resolver: impl FnOnce() -> io::Result<Vec<SocketAddr>> + Send + 'static,
) -> Result<Vec<SocketAddr>, Reply> {
    let permit = timeout(NEGOTIATION, resolutions.acquire(peer)).await;
    let permit = permit.ok().and_then(Result::ok).ok_or(Reply::TimedOut)?;
    let asks = tokio::task::spawn_blocking(move || {
        let addresses = resolver();
        // The thread lives as long as the resolver takes, also if nothing waits for it.
        drop(permit);
        addresses
    });
    match timeout(NEGOTIATION, asks).await {
        Ok(Ok(Ok(addresses))) => Ok(addresses),
        Ok(_) => Err(Reply::HostUnreachable),
        Err(_) => Err(Reply::TimedOut),
    }
}

async fn connect(worker: &Worker, peer: NodeId, target: &Target) -> Result<TcpStream, Reply> {
    let addresses = resolve(worker, peer, target).await?;
    match timeout(NEGOTIATION, TcpStream::connect(&*addresses)).await {
        Err(_) => Err(Reply::TimedOut),
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => Reply::Refused,
            io::ErrorKind::NetworkUnreachable => Reply::NetworkUnreachable,
            io::ErrorKind::HostUnreachable => Reply::HostUnreachable,
            io::ErrorKind::TimedOut => Reply::TimedOut,
            _ => Reply::Failed,
        }),
    }
}

/// A socket of each family that the host has.
async fn sockets() -> io::Result<[Option<UdpSocket>; 2]> {
    let ipv4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await;
    let ipv6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await;
    match (ipv4, ipv6) {
        (Err(error), Err(_)) => Err(error),
        (ipv4, ipv6) => Ok([ipv4.ok(), ipv6.ok()]),
    }
}

#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
async fn receive(socket: Option<&UdpSocket>, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
    match socket {
        Some(socket) => socket.recv_from(buffer).await,
        None => std::future::pending().await,
    }
}

/// Destinations of an association. Answers come from these alone, so that an exit opens no port for
/// others.
#[derive(Default)]
struct Destinations {
    addresses: BTreeMap<Target, SocketAddr>,
    sources: BTreeSet<(IpAddr, u16)>,
}

impl Destinations {
    fn insert(&mut self, target: Target, address: SocketAddr) {
        if self.addresses.len() >= MAX_DESTINATIONS {
            *self = Self::default();
        }
        self.addresses.insert(target, address);
        self.sources.insert((address.ip(), address.port()));
    }
}

async fn carry_datagrams(worker: &Worker, peer: NodeId, channel: &Channel) -> io::Result<()> {
    let [ipv4, ipv6] = sockets().await?;
    let destinations = std::sync::Mutex::new(Destinations::default());
    let up = async {
        let mut datagrams = Datagrams::new(channel);
        loop {
            // Others have their turn even if datagrams arrive faster than they are refused.
            tokio::task::coop::consume_budget().await;
            let (target, payload) = match timeout(UDP_IDLE, datagrams.next()).await {
                Ok(datagram) => datagram?,
                Err(_) => return Err::<(), io::Error>(io::ErrorKind::TimedOut.into()),
            };
            let known = lock(&destinations).addresses.get(&target).copied();
            let address = match known {
                Some(address) => address,
                None => match resolve(worker, peer, &target).await {
                    Ok(addresses) => match addresses.first() {
                        Some(&address) => address,
                        None => continue,
                    },
                    Err(reply) => {
                        let is_denied = u64::from(reply == Reply::NotAllowed);
                        worker.services.counters.denied.fetch_add(is_denied, Relaxed);
                        continue;
                    }
                },
            };
            if known.is_none() {
                lock(&destinations).insert(target, address);
            }
            let socket = if address.is_ipv4() { &ipv4 } else { &ipv6 };
            if let Some(socket) = socket {
                // What the network does not take is lost, as datagrams are.
                let _ = socket.send_to(&payload, address).await;
            }
        }
    };
    let down = async {
        let (mut one, mut other) = (vec![0; MAX_PAYLOAD], vec![0; MAX_PAYLOAD]);
        loop {
            let (result, buffer) = tokio::select! {
                result = receive(ipv4.as_ref(), &mut one) => (result, &one),
                result = receive(ipv6.as_ref(), &mut other) => (result, &other),
            };
            let Some((length, source)) = received(result).await else { continue };
            let key = (source.ip(), source.port());
            if !lock(&destinations).sources.contains(&key) {
                continue;
            }
            let payload = buffer.get(..length).unwrap_or_default();
            if let Some(frame) = encode_datagram(&source.into(), payload) {
                let written = channel.write_all(&frame).await;
                if let Err(error) = written {
                    return Err::<(), io::Error>(error.into());
                }
            }
        }
    };
    tokio::try_join!(up, down).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Services;
    use super::*;

    #[test]
    fn an_association_remembers_64_destinations_and_then_forgets_all() {
        let mut destinations = Destinations::default();
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let mut insert = |port: u16| {
            let target = Target { host: Host::Ip(address(port).ip()), port };
            destinations.insert(target, address(port));
            (destinations.addresses.len(), destinations.sources.len())
        };
        for port in 1..=64 {
            assert_eq!(insert(port), (usize::from(port), usize::from(port)));
        }
        assert_eq!(insert(65), (1, 1));
    }

    fn peer(number: u8) -> NodeId {
        NodeId([10, 0, 0, number].into())
    }

    /// Looks up the text of an address.
    async fn look_up_address(services: &Services, number: u8) -> Result<Vec<SocketAddr>, Reply> {
        let resolver = || Ok(("192.0.2.1", 7).to_socket_addrs()?.collect());
        look_up(&services.resolutions, peer(number), resolver).await
    }

    fn block_on<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test)
    }

    #[test]
    fn resolutions_beyond_32_wait_for_a_place() {
        let services = Services::default();
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        block_on(async {
            // Each peer has one more, of its own.
            let mut others = Vec::new();
            for number in (1..=4).flat_map(|number| [number; 8]).chain([5; 4]) {
                others.push(services.resolutions.acquire(peer(number)).await.unwrap());
            }
            let own = services.resolutions.acquire(peer(6)).await.unwrap();
            assert_eq!(look_up_address(&services, 7).await, Ok(vec![address]));
            let last = services.resolutions.acquire(peer(5)).await.unwrap();
            let another = services.resolutions.acquire(peer(6));
            assert!(timeout(Duration::ZERO, another).await.is_err());
            drop(last);
            assert_eq!(look_up_address(&services, 6).await, Ok(vec![address]));
            drop(own);
        });
    }

    #[test]
    fn names_without_an_answer_keep_only_their_own_peer_waiting_also_when_it_gives_up() {
        let services = Services::default();
        let address = SocketAddr::from(([192, 0, 2, 1], 7));
        let (answer, no_answer) = std::sync::mpsc::channel::<()>();
        let no_answer = Arc::new(std::sync::Mutex::new(no_answer));
        block_on(async {
            let ask = || {
                let (resolutions, no_answer) =
                    (Arc::clone(&services.resolutions), Arc::clone(&no_answer));
                tokio::spawn(async move {
                    let resolver = move || {
                        let _ = lock(&no_answer).recv();
                        Ok(Vec::new())
                    };
                    look_up(&resolutions, peer(1), resolver).await
                })
            };
            let stuck: Vec<_> = (0..108).map(|_| ask()).collect();
            tokio::task::yield_now().await;
            assert_eq!(look_up_address(&services, 2).await, Ok(vec![address]));
            // Nothing waits for the answers any more, but the threads still do.
            for task in stuck {
                task.abort();
                assert!(task.await.unwrap_err().is_cancelled());
            }
            let another = services.resolutions.acquire(peer(1));
            assert!(timeout(Duration::ZERO, another).await.is_err());
            assert_eq!(look_up_address(&services, 2).await, Ok(vec![address]));
            drop(answer);
            assert_eq!(look_up_address(&services, 1).await, Ok(vec![address]));
        });
    }
}
