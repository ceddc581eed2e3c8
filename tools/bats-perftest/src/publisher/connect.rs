//! Finds the subscribers and connects to them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use openbats::{ClientOptions, CloseReason, ConnectError, Endpoint, Mode, Wait};
use socket2::SockRef;

use super::peers::{MAX_READ, Subscriber};
use crate::beacon::{INTERVAL, Listener};
use crate::channel::{Channel, transport_config, wait_for_datagram};
use crate::cli::{Common, PublisherOptions, Transport};
use crate::clock::Clock;
use crate::console::print;
use crate::trust::SubscriberTrust;
use crate::wire::{Announcement, Control, Hello};
use crate::{ports, process_number, signals};

/// Time between rounds of connection attempts.
const ROUND: Duration = Duration::from_secs(1);
/// Attempts at once.
const MAX_CONCURRENT: usize = 32;
/// Time for a connection attempt, and for the announcement that follows.
const CONNECT_LIMIT: Duration = Duration::from_millis(1_500);
const ANNOUNCEMENT_LIMIT: Duration = Duration::from_secs(3);
/// Time after which a publisher over raw UDP prints what may be wrong.
const HINT_AFTER: Duration = Duration::from_secs(5);
/// Refusals over raw UDP that are printed.
const MAX_REFUSALS: usize = 16;
/// The name that clients must state. Subscribers are recognized by their address and fingerprint.
const SERVER_NAME: &str = "bats-perftest";
/// Reports of taken messages for each length of the send queue.
const REPORTS_PER_QUEUE: u64 = 4;
/// Size of the socket buffers of raw UDP: that of the original.
const SOCKET_BUFFER: usize = 4 << 20;

/// The channels, and the subscribers by their channels.
pub(super) type Subscribers = (Vec<Channel>, Vec<Subscriber>);
pub(super) type Connected = (Subscribers, Option<Endpoint>);

/// Connects to all subscribers. `None`: the user has ended the test.
///
/// # Errors
/// A socket cannot be opened, or two subscribers have the same id.
pub(super) fn connect(options: &PublisherOptions) -> Result<Option<Connected>> {
    let hello = Hello {
        domain: options.common.domain,
        publisher: options.common.id,
        process: process_number()?,
        data_length: options.common.data_length as u32,
        report_every: options
            .queue_limit()
            .map_or(0, |queue| (queue / REPORTS_PER_QUEUE).clamp(1, u32::MAX.into()) as u32),
        keyed: options.common.keyed,
        instances: options.common.instances,
    };
    match options.common.transport {
        Transport::Session(mode) => {
            let trust = SubscriberTrust::new(&options.trust);
            sessions(&options.common, mode, &trust, hello)
        }
        Transport::Raw => {
            let channels = raw_channels(&options.common)?;
            print("Waiting for subscribers announcement ...");
            let found = raw_announcements(&options.common, &channels, hello)?;
            Ok(found.map(|found| (used_channels(channels, &found), None)))
        }
    }
}

/// The addresses of `-peer`.
fn peer_addresses(options: &Common) -> Result<Vec<SocketAddr>> {
    let mut addresses = BTreeSet::new();
    for peer in &options.peers {
        let ids = match peer.id {
            Some(id) => id..id.saturating_add(1),
            // As many as there can be at one address.
            None => 0..ports::SUBSCRIBERS.min(options.peers_expected as u32),
        };
        for id in ids {
            addresses.insert(SocketAddr::new(peer.ip, ports::subscriber(options.domain, id)?));
        }
    }
    Ok(addresses.into_iter().collect())
}

fn sessions(
    options: &Common,
    mode: Mode,
    trust: &SubscriberTrust,
    hello: Hello,
) -> Result<Option<Connected>> {
    let endpoint = Endpoint::builder()
        .bind(SocketAddr::new(options.bind_ip(), 0))
        .busy_poll(options.busy_poll)
        .start()?;
    let mut listener = match options.peers.is_empty() {
        true => Some(Listener::new(options)?),
        false => None,
    };
    let given = peer_addresses(options)?;
    let mut found = Vec::new();
    let mut reported = BTreeSet::new();
    while found.len() < options.peers_expected {
        let round = Clock::start();
        // Connected ones too: the same subscriber can be found on another path.
        let mut candidates = match &mut listener {
            Some(listener) => listener.addresses(MAX_CONCURRENT + found.len()),
            None => given.clone(),
        };
        candidates.retain(|address| found.iter().all(|one: &Found| one.address != *address));
        for group in candidates.chunks(MAX_CONCURRENT) {
            if signals::requested() {
                return Ok(None);
            }
            for (address, result) in attempts(&endpoint, options, mode, trust, hello, group) {
                match result {
                    Ok((channel, announcement)) => {
                        add(&mut found, Found { channel, announcement, address })?;
                    }
                    // Without -peer, anyone can announce a subscriber.
                    Err(error) if listener.is_none() && is_untrusted(&error, trust) => {
                        return Err(error.context(address));
                    }
                    Err(error) => {
                        print_once(&mut reported, address, &error);
                        listener.iter_mut().for_each(|listener| listener.failed(address));
                    }
                }
            }
        }
        found.retain(|one| {
            // Each look can wait until a connection has closed.
            let is_kept = signals::requested() || still_waits(one);
            if !is_kept {
                // One that leaves again and again is tried ever more rarely, as one that does not answer.
                listener.iter_mut().for_each(|listener| listener.failed(one.address));
            }
            is_kept
        });
        let is_complete = found.len() >= options.peers_expected;
        let pause = if listener.is_some() { INTERVAL / 4 } else { ROUND };
        while !is_complete && round.elapsed() < pause && !signals::requested() {
            thread::sleep(Duration::from_millis(10));
        }
        if signals::requested() {
            return Ok(None);
        }
    }
    for surplus in found.drain(options.peers_expected..) {
        let expected = options.peers_expected;
        print(&format!("Note: {} is not needed: -numSubscribers is {expected}", surplus.address));
        surplus.channel.refuse(&format!("the publisher has its {expected} subscribers"));
    }
    print("Waiting for subscribers announcement ...");
    let subscribers = (0..)
        .zip(&found)
        .map(|(channel, one)| Subscriber::new(one.announcement.subscriber, channel))
        .collect();
    let channels = found.into_iter().map(|one| one.channel).collect();
    Ok(Some(((channels, subscribers), Some(endpoint))))
}

/// A subscriber that has announced itself.
struct Found {
    channel: Channel,
    announcement: Announcement,
    address: SocketAddr,
}

/// Whether a subscriber still waits for the test, while the publisher looks for others. Until the test
/// begins, it sends an announcement for each hello, and over raw UDP keep-alives: one that fills a look with
/// messages would keep the publisher from all else.
fn still_waits(one: &Found) -> bool {
    let mut is_flooding = false;
    let problem = 'look: {
        for _ in 0..MAX_READ {
            match one.channel.receive(Duration::ZERO) {
                Ok(None) => return true,
                Ok(Some(message)) => {
                    if let Some(Control::Goodbye { .. }) = Control::of_message(&message) {
                        break 'look "it has ended the test".to_owned();
                    }
                }
                Err(error) => break 'look format!("{error:#}"),
            }
        }
        is_flooding = true;
        "it sends too many messages before the test".to_owned()
    };
    print(&format!("Note: subscriber {} left: {problem}", one.announcement.subscriber));
    match is_flooding {
        true => one.channel.refuse("too many messages before the test"),
        false => one.channel.close(),
    }
    false
}

/// The results of simultaneous attempts.
fn attempts(
    endpoint: &Endpoint,
    options: &Common,
    mode: Mode,
    trust: &SubscriberTrust,
    hello: Hello,
    group: &[SocketAddr],
) -> Vec<(SocketAddr, Result<(Channel, Announcement)>)> {
    let one = |address: SocketAddr| {
        let client =
            ClientOptions::new(trust.of(address)).transport(transport_config(mode, options.goal));
        let is_new = trust.is_new(address);
        let made = attempt(endpoint, client, address, hello)?;
        if is_new && let Channel::Session(connection) = &made.0 {
            trust.report(connection, address);
        }
        Ok(made)
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            group.iter().map(|&address| (address, scope.spawn(move || one(address)))).collect();
        let joined = |attempt: thread::ScopedJoinHandle<'_, _>| {
            attempt.join().unwrap_or_else(|_| bail!("the attempt panicked"))
        };
        running.into_iter().map(|(address, attempt)| (address, joined(attempt))).collect()
    })
}

/// Whether a subscriber has another certificate than expected. A handshake with required fingerprints
/// that fails will fail again.
fn is_untrusted(error: &anyhow::Error, trust: &SubscriberTrust) -> bool {
    match error.downcast_ref() {
        Some(ConnectError::Trust(_)) => true,
        Some(ConnectError::Closed(CloseReason::Handshake(_))) => {
            matches!(trust, SubscriberTrust::Fingerprints(_))
        }
        _ => false,
    }
}

/// Prints why a connection could not be made, once for each reason, unless the peer has not
/// started yet.
fn print_once(reported: &mut BTreeSet<String>, address: SocketAddr, error: &anyhow::Error) {
    // The system's text for a TCP port at which nothing listens is part of the error.
    let is_refused = error.is::<ConnectError>() && error.to_string().contains("refused");
    let is_expected = error.is::<NoAnswer>() || is_refused;
    let text = format!("{address}: {error:#}");
    if !is_expected && reported.len() < 16 && reported.insert(text.clone()) {
        print(&format!("Note: {text}"));
    }
}

/// No program answers at an address.
#[derive(Debug)]
struct NoAnswer;

impl std::fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no answer")
    }
}

/// Adds a subscriber, unless it is connected already on another path.
fn add(found: &mut Vec<Found>, new: Found) -> Result<()> {
    let id = new.announcement.subscriber;
    match found.iter().find(|known| known.announcement.subscriber == id) {
        None => found.push(new),
        Some(known) if known.announcement.process == new.announcement.process => {
            new.channel.close();
        }
        Some(known) => bail!(
            "the subscribers at {} and {} have the same id {id}: use -sidMultiSubTest",
            known.address,
            new.address
        ),
    }
    Ok(())
}

/// Connects to a subscriber and exchanges hello and announcement.
fn attempt(
    endpoint: &Endpoint,
    options: ClientOptions,
    address: SocketAddr,
    hello: Hello,
) -> Result<(Channel, Announcement)> {
    let connection = endpoint
        .connect(address, SERVER_NAME, options)
        .wait_for(CONNECT_LIMIT)
        .map_err(|_| anyhow::Error::msg(NoAnswer))??;
    let channel = Channel::Session(connection);
    let message = Bytes::from(Control::Hello(hello).encode());
    let waiting = Clock::start();
    while waiting.elapsed() < ANNOUNCEMENT_LIMIT && !signals::requested() {
        channel.send(&message, || ())?;
        let Some(answer) = channel.receive(INTERVAL)? else {
            // In a reliable mode the first hello arrives; a repeated one is answered again.
            continue;
        };
        if let Some(Control::Announcement(announcement)) = Control::of_message(&answer)
            && announcement.domain == hello.domain
        {
            return Ok((channel, announcement));
        }
    }
    channel.close();
    bail!("no announcement")
}

fn raw_channels(options: &Common) -> Result<Vec<Channel>> {
    let open = |remote: Option<SocketAddr>| -> Result<UdpSocket> {
        let socket = UdpSocket::bind((options.bind_ip(), 0))?;
        // The system may give less: its limit is net.core.wmem_max.
        let reference = SockRef::from(&socket);
        let _ = reference.set_send_buffer_size(SOCKET_BUFFER);
        let _ = reference.set_recv_buffer_size(SOCKET_BUFFER);
        if let Some(remote) = remote {
            socket.connect(remote)?;
        }
        Ok(socket)
    };
    let channel = |socket, group| Channel::Datagrams {
        socket,
        group,
        busy_poll: options.busy_poll,
        waits: options.blocking_sockets,
    };
    let context = "cannot open a UDP socket";
    let mut channels = Vec::new();
    if let Some(group) = options.multicast {
        let socket = open(None).context(context)?;
        let reference = SockRef::from(&socket);
        // Like the original's default interface of raw transport.
        let interface = match options.nic {
            Some(std::net::IpAddr::V4(ip)) => ip,
            _ => Ipv4Addr::LOCALHOST,
        };
        reference.set_multicast_if_v4(&interface).context("cannot send multicast")?;
        reference.set_multicast_loop_v4(true).context("cannot send multicast")?;
        let group = SocketAddr::new(group.into(), ports::multicast_samples(options.domain)?);
        channels.push(channel(socket, Some(group)));
    } else {
        for address in peer_addresses(options)? {
            let socket = open(Some(address)).with_context(|| format!("{context} to {address}"))?;
            channels.push(channel(socket, None));
        }
    }
    Ok(channels)
}

/// The channels of the subscribers found: no program listens at the others.
fn used_channels(channels: Vec<Channel>, found: &[(Announcement, usize)]) -> Subscribers {
    let used: BTreeSet<usize> = found.iter().map(|(_, channel)| *channel).collect();
    let new_index = |index| used.iter().take_while(|&&one| one < index).count();
    let subscribers =
        found.iter().map(|(one, index)| Subscriber::new(one.subscriber, new_index(*index)));
    let subscribers = subscribers.collect();
    let of_subscribers = (0..).zip(channels).filter(|(index, _)| used.contains(index));
    (of_subscribers.map(|(_, channel)| channel).collect(), subscribers)
}

/// Repeats hello until enough subscribers have announced themselves; returns them with their channels.
fn raw_announcements(
    options: &Common,
    channels: &[Channel],
    hello: Hello,
) -> Result<Option<Vec<(Announcement, usize)>>> {
    let message = Bytes::from(Control::Hello(hello).encode());
    let mut found: Vec<(Announcement, usize)> = Vec::new();
    let searching = Clock::start();
    let mut has_hint = false;
    let mut refusals = BTreeSet::new();
    loop {
        if searching.elapsed() > HINT_AFTER && !std::mem::replace(&mut has_hint, true) {
            print(
                "Note: no answer of all subscribers yet. Do they run, with the same -domain, and can UDP \
                 reach them?",
            );
        }
        channels.iter().try_for_each(|channel| channel.send(&message, || ()).map(drop))?;
        let waiting = Clock::start();
        while waiting.elapsed() < INTERVAL {
            if signals::requested() {
                return Ok(None);
            }
            wait_for_datagram(channels, INTERVAL / 4);
            for (index, channel) in channels.iter().enumerate() {
                let Some(answer) = channel.receive(Duration::ZERO)? else { continue };
                let announcement = match Control::of_message(&answer) {
                    Some(Control::Announcement(announcement)) => announcement,
                    // Not authenticated, so the publisher goes on as if nothing had come.
                    Some(Control::Refused(refusal)) => {
                        if refusals.len() < MAX_REFUSALS && refusals.insert((index, refusal)) {
                            print(&format!("Note: {} refuses: {refusal}", channel.destination()));
                        }
                        continue;
                    }
                    _ => continue,
                };
                let is_known =
                    found.iter().any(|(known, _)| known.subscriber == announcement.subscriber);
                if announcement.domain == options.domain && !is_known {
                    found.push((announcement, index));
                }
            }
            if found.len() >= options.peers_expected {
                found.truncate(options.peers_expected);
                return Ok(Some(found));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_without_a_subscriber_are_dropped() {
        let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let sockets: Vec<UdpSocket> = (0..4).map(|_| socket()).collect();
        let ports: Vec<u16> = sockets.iter().map(|one| one.local_addr().unwrap().port()).collect();
        let channels = sockets.into_iter().map(|socket| Channel::Datagrams {
            socket,
            group: None,
            busy_poll: Duration::ZERO,
            waits: true,
        });
        let announcement = |subscriber| Announcement { subscriber, ..Announcement::default() };
        let found = [(announcement(7), 3), (announcement(5), 1)];
        let (channels, subscribers) = used_channels(channels.collect(), &found);
        let left: Vec<u16> = channels
            .iter()
            .filter_map(|channel| match channel {
                Channel::Datagrams { socket, .. } => Some(socket.local_addr().unwrap().port()),
                Channel::Session(_) => None,
            })
            .collect();
        assert_eq!(left, [ports[1], ports[3]]);
        let of: Vec<_> = subscribers.iter().map(|one| (one.id, one.channel)).collect();
        assert_eq!(of, [(7, 1), (5, 0)]);
    }
}
