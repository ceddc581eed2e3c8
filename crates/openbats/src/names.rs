//! From a host's name to a connection: each of its addresses in turn.

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

/// Addresses of a host that are tried.
const MAX_ADDRESSES: usize = 8;
/// Longest time for one that is not the last: three round trips over a satellite, with a loss.
const MAX_TRY: Duration = Duration::from_secs(3);

/// The addresses of a host, in the order in which they are to be tried: as the system's resolver has
/// them, but the two IP families in turn (RFC 8305, section 4), those without a route last, and no
/// more than 8. Blocks while the resolver does; the text of an address is that address.
///
/// # Errors
/// The resolver has no address of that name.
pub fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses = chosen((host, port).to_socket_addrs()?);
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(addresses)
}

fn chosen(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut addresses = in_turn(found);
    addresses.sort_by_key(|address| !has_route(*address));
    addresses.truncate(MAX_ADDRESSES);
    addresses
}

/// The time for the next of several tries, of which this many are left, if all together have `left`.
#[must_use]
pub fn time_for_one(left: Duration, tries: usize) -> Duration {
    match u32::try_from(tries) {
        Ok(0 | 1) => left,
        Ok(tries) => (left / tries).min(MAX_TRY),
        Err(_) => Duration::ZERO,
    }
}

/// Each address once, the family of the first and the other one in turn.
fn in_turn(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
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

/// Whether the system would know where to send; nothing is sent.
fn has_route(remote: SocketAddr) -> bool {
    let any: SocketAddr = match remote {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    UdpSocket::bind(any).is_ok_and(|socket| socket.connect(remote).is_ok())
}

/// The answer of a resolver's thread, and who waits for it.
#[derive(Default)]
struct Answer {
    found: Option<io::Result<Vec<SocketAddr>>>,
    waiting: Option<Waker>,
}

/// As [`addresses`], on a thread of its own: a resolver may take seconds.
async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let answer = Arc::new(Mutex::new(Answer::default()));
    let (to, host) = (answer.clone(), host.to_owned());
    thread::Builder::new().name("openbats-names".into()).spawn(move || {
        let found = addresses(&host, port);
        let mut answer = to.lock().unwrap_or_else(PoisonError::into_inner);
        answer.found = Some(found);
        let waiting = answer.waiting.take();
        drop(answer);
        if let Some(waker) = waiting {
            waker.wake();
        }
    })?;
    poll_fn(|context| {
        let mut answer = answer.lock().unwrap_or_else(PoisonError::into_inner);
        match answer.found.take() {
            Some(found) => Poll::Ready(found),
            None => {
                answer.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    })
    .await
}

impl Endpoint {
    /// Connects to a host by its name: to its [`addresses`], one after the other, until one answers.
    /// All together have the time of one handshake
    /// ([`TransportConfig::handshake_timeout`](crate::TransportConfig)); with
    /// [`Trust`](crate::Trust) by authorities the certificate must bear the name.
    ///
    /// # Errors
    /// [`ConnectError::Name`] if there is no such name, otherwise why the last address did not
    /// answer. Dropping the future before it is done gives the connection up.
    pub async fn connect_host(
        &self,
        host: &str,
        port: u16,
        options: ClientOptions,
    ) -> Result<Connection, ConnectError> {
        let found = look_up(host, port).await.map_err(|error| ConnectError::Name {
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
        let whole = options.handshake_timeout();
        let mut failed = None;
        for (tried, remote) in addresses.iter().enumerate() {
            let left = whole.saturating_sub(self.now() - begin);
            let time = time_for_one(left, addresses.len() - tried);
            let options = options.clone().with_handshake_timeout(time);
            match self.connect(*remote, name, options).await {
                Ok(connection) => return Ok(connection),
                // Another address changes nothing.
                Err(
                    error @ (ConnectError::Configuration(_)
                    | ConnectError::ServerName(_)
                    | ConnectError::Memory
                    | ConnectError::EndpointClosed),
                ) => return Err(error),
                // Says least of all of why the host is not reached.
                Err(ConnectError::Family { .. }) if failed.is_some() => {}
                Err(error) => {
                    tracing::debug!(%remote, %error, "the next address of the host is tried");
                    failed = Some(error);
                }
            }
        }
        Err(failed.unwrap_or(ConnectError::EndpointClosed))
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
    fn families_take_turns_and_no_address_comes_twice() {
        let found = ["[::1]:1", "[::2]:1", "[::1]:1", "[::3]:1", "127.0.0.1:1", "127.0.0.2:1"];
        let order = in_turn(found.into_iter().map(at));
        let expected = ["[::1]:1", "127.0.0.1:1", "[::2]:1", "127.0.0.2:1", "[::3]:1"];
        assert_eq!(order, expected.map(at));
        assert_eq!(in_turn(std::iter::empty()), []);
        assert_eq!(addresses("127.0.0.3", 7).unwrap(), [at("127.0.0.3:7")]);
        assert!(addresses("no.such.name.invalid", 7).is_err());
    }

    #[test]
    fn no_more_than_eight_addresses_are_tried() {
        let all: Vec<SocketAddr> = (1..=9).map(|host| ([127, 0, 0, host], 7).into()).collect();
        assert_eq!(chosen(all[..8].iter().copied()), all[..8]);
        assert_eq!(chosen(all.iter().copied()), all[..8]);
    }

    #[test]
    fn the_time_is_shared_and_the_last_gets_what_is_left() {
        let s = Duration::from_secs;
        assert_eq!(time_for_one(s(10), 1), s(10));
        assert_eq!(time_for_one(s(2), 2), s(1));
        assert_eq!(time_for_one(s(100), 2), MAX_TRY);
        assert_eq!(time_for_one(Duration::ZERO, 3), Duration::ZERO);
    }

    #[test]
    fn an_address_that_does_not_answer_is_left_for_the_next() {
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
    fn a_host_is_reached_at_whichever_of_its_addresses_it_listens() {
        let identity = Identity::generate(&["localhost"]).unwrap();
        // The first of them, and the last.
        let found = addresses("localhost", 0).unwrap();
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
