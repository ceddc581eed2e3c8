//! Resolves host names and connects to the addresses of a host in turn.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::ConnectError;
use crate::options::ClientOptions;

/// Most addresses of a host that are tried.
const MAX_ADDRESSES: usize = 8;
/// Longest attempt at an address that is not the last: three round trips over a satellite, one loss
/// included.
const MAX_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Resolves a host to at most 8 addresses, in the order in which to try them. The order is the
/// resolver's, except that the two IP families alternate (RFC 8305 section 4) and addresses without
/// a route come last. An IP address in text form resolves to itself. Blocks while the resolver
/// does.
///
/// # Errors
/// The resolver finds no address of that name.
pub fn resolve_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses = select_addresses((host, port).to_socket_addrs()?);
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

fn select_addresses(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = alternate_families(found);
    addresses.sort_by_key(|address| !has_route(*address));
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// Returns the timeout of the next connection attempt, if `tries` attempts remain and may take
/// `left` together.
#[must_use]
pub fn attempt_timeout(left: Duration, tries: usize) -> Duration {
    match u32::try_from(tries) {
        Ok(0 | 1) => left,
        Ok(tries) => (left / tries).min(MAX_ATTEMPT_TIMEOUT),
        Err(_) => Duration::ZERO,
    }
}

/// Removes duplicates and alternates the IP families, beginning with that of the first address.
fn alternate_families(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut once: Vec<SocketAddr> = Vec::new();
    for address in found {
        if !once.contains(&address) {
            once.push(address);
        }
    }
    let is_ipv6 = once.first().is_some_and(SocketAddr::is_ipv6);
    let (first, second): (Vec<_>, Vec<_>) =
        once.into_iter().partition(|address| address.is_ipv6() == is_ipv6);
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    let mut all = Vec::new();
    loop {
        let pair = [first.next(), second.next()];
        if pair == [None, None] {
            return all;
        }
        all.extend(pair.into_iter().flatten());
    }
}

/// Whether the system has a route to `remote`; sends nothing.
fn has_route(remote: SocketAddr) -> bool {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    UdpSocket::bind(any).is_ok_and(|socket| socket.connect(remote).is_ok())
}

/// The result of a resolver thread, and the task that waits for it.
#[derive(Default)]
struct Resolution {
    found: Option<io::Result<Vec<SocketAddr>>>,
    waiting: Option<Waker>,
}

/// Runs [`resolve_host`] on a thread of its own: a resolver may take seconds.
async fn resolve_on_thread(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let resolution = Arc::new(Mutex::new(Resolution::default()));
    let (to, host) = (resolution.clone(), host.to_owned());
    thread::Builder::new().name("openbats-names".into()).spawn(move || {
        let found = resolve_host(&host, port);
        let mut resolution = to.lock().unwrap_or_else(PoisonError::into_inner);
        resolution.found = Some(found);
        let waiting = resolution.waiting.take();
        drop(resolution);
        if let Some(waker) = waiting {
            waker.wake();
        }
    })?;
    poll_fn(|context| {
        let mut resolution = resolution.lock().unwrap_or_else(PoisonError::into_inner);
        match resolution.found.take() {
            Some(found) => Poll::Ready(found),
            None => {
                resolution.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

impl Endpoint {
    /// Connects to a host by its name: tries the addresses of [`resolve_host`] one after the other
    /// until one succeeds. All attempts together have the time of one handshake
    /// ([`TransportConfig::handshake_timeout`](crate::TransportConfig)). With
    /// [`Trust::authorities`](crate::Trust::authorities) the certificate must be valid for the
    /// name.
    ///
    /// # Errors
    /// [`ConnectError::Name`] if the name cannot be resolved, otherwise the error of the last
    /// attempt. Dropping the future before it completes closes the connection.
    pub async fn connect_host(
        &self,
        host: &str,
        port: u16,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let found = resolve_on_thread(host, port).await.map_err(|error| ConnectError::Name {
            name: host.to_owned(),
            problem: error.to_string(),
        })?;
        self.connect_in_turn(&found, host, options).await
    }

    async fn connect_in_turn(
        &self,
        addresses: &[SocketAddr],
        name: &str,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let begin = self.now();
        let total = options.handshake_timeout();
        let mut last_error = None;
        for (attempts, remote) in addresses.iter().enumerate() {
            let left = total.saturating_sub(self.now() - begin);
            let time = attempt_timeout(left, addresses.len() - attempts);
            let options = options.clone().with_handshake_timeout(time);
            match self.connect(*remote, name, options).await {
                Ok(connection) => return Ok(connection),
                // These errors do not depend on the address.
                Err(
                    error @ (ConnectError::Configuration(_)
                    | ConnectError::ServerName(_)
                    | ConnectError::Memory
                    | ConnectError::Trust(_)
                    | ConnectError::EndpointClosed),
                ) => return Err(error),
                // An earlier error says more about why the host is unreachable.
                Err(ConnectError::Family { .. }) if last_error.is_some() => {}
                Err(error) => {
                    tracing::debug!(%remote, %error, "connection attempt failed, trying the host's next address");
                    last_error = Some(error);
                }
            }
        }
        Err(last_error.unwrap_or(ConnectError::EndpointClosed))
    }
}

#[cfg(test)]
mod tests {
    use bats_proto::{CloseReason, Mode, TransportConfig};

    use super::*;
    use crate::{Identity, ServerOptions, Trust, Wait};

    const LIMIT: Duration = Duration::from_secs(20);

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn address_families_alternate_without_duplicates() {
        let found = ["[::1]:1", "[::2]:1", "[::1]:1", "[::3]:1", "127.0.0.1:1", "127.0.0.2:1"];
        let order = alternate_families(found.into_iter().map(at));
        let expected = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1", "[::3]:1"];
        assert_eq!(order, expected.map(at));
        assert_eq!(alternate_families(std::iter::empty()), []);
        assert_eq!(resolve_host("127.0.0.3", 7).unwrap(), [at("127.0.0.3:7")]);
        assert!(resolve_host("no.such.name.invalid", 7).is_err());
    }

    #[test]
    fn at_most_eight_addresses_are_tried() {
        let all: Vec<SocketAddr> = (1..=9).map(|host| ([127, 0, 0, host], 7).into()).collect();
        assert_eq!(select_addresses(all[..8].iter().copied()), all[..8]);
        assert_eq!(select_addresses(all.iter().copied()), all[..8]);
    }

    #[test]
    fn attempts_divide_the_time_and_the_last_gets_the_remainder() {
        let s = Duration::from_secs;
        assert_eq!(attempt_timeout(s(10), 1), s(10));
        assert_eq!(attempt_timeout(s(2), 2), s(1));
        assert_eq!(attempt_timeout(s(100), 2), MAX_ATTEMPT_TIMEOUT);
        assert_eq!(attempt_timeout(Duration::ZERO, 3), Duration::ZERO);
    }

    #[test]
    fn an_unresponsive_address_is_skipped_for_the_next() {
        let identity = Identity::generate(&["localhost"]).unwrap();
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let silent = silent.local_addr().unwrap();
        for mode in [Mode::Brtp, Mode::Quic] {
            let server = Endpoint::builder()
                .bind(at("127.0.0.1:0"))
                .server(ServerOptions::new(identity.clone()).modes([mode]))
                .start()
                .unwrap();
            let client = Endpoint::builder().start().unwrap();
            let config = TransportConfig {
                handshake_timeout: Duration::from_secs(3),
                mode,
                ..TransportConfig::default()
            };
            let trust = Trust::fingerprint(identity.fingerprint());
            let options = ClientOptions::new(trust).transport(config);
            let all = [silent, server.local_addr()];
            let connected = client.connect_in_turn(&all, "localhost", options.clone());
            let connected = connected.wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(connected.remote_addr(), server.local_addr(), "{mode:?}");
            let none = [silent, silent];
            let short = options.with_handshake_timeout(Duration::from_millis(200));
            let refused = client.connect_in_turn(&none, "localhost", short);
            let error = refused.wait_for(LIMIT).unwrap().unwrap_err();
            assert_eq!(error, ConnectError::Closed(CloseReason::HandshakeTimeout), "{mode:?}");
        }
    }

    #[test]
    fn a_host_is_reached_at_any_of_its_addresses() {
        let identity = Identity::generate(&["localhost"]).unwrap();
        // The first and the last one.
        let found = resolve_host("localhost", 0).unwrap();
        for address in [found[0], found[found.len() - 1]] {
            let server = Endpoint::builder()
                .bind(address)
                .server(ServerOptions::new(identity.clone()))
                .start()
                .unwrap();
            let port = server.local_addr().port();
            let client = Endpoint::builder().start().unwrap();
            let options = ClientOptions::new(Trust::fingerprint(identity.fingerprint()));
            let connected = client.connect_host("localhost", port, options.clone());
            let connected = connected.wait_for(LIMIT).unwrap().unwrap();
            assert_eq!(connected.remote_addr(), server.local_addr());
            let nowhere = client.connect_host("no.such.name.invalid", port, options);
            let error = nowhere.wait_for(LIMIT).unwrap().unwrap_err();
            assert!(matches!(error, ConnectError::Name { .. }), "{error:?}");
        }
    }
}
