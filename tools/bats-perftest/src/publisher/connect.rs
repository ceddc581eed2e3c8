//! Finds the subscribers and connects to them.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use openbats::{ClientOptions, CloseReason, ConnectError, Endpoint, Mode, Wait};
use socket2::SockRef;

use super::peers::Subscriber;
use crate::beacon::{INTERVAL, Listener};
use crate::channel::{Channel, transport_config};
use crate::cli::{Common, PublisherOptions, Transport};
use crate::clock::Clock;
use crate::console::print;
use crate::trust::SubscriberTrust;
use crate::wire::{Announcement, Control, Hello};
use crate::{ports, process_number, signals};

/// Time between rounds of connection attempts.
const ROUND: Duration = Duration::from_secs(1);
/// Attempts at once.
const MAX_CONCURRENT: usize = 16;
/// Time for a connection attempt, and for the announcement that follows.
const CONNECT_LIMIT: Duration = Duration::from_millis(1_500);
const ANNOUNCEMENT_LIMIT: Duration = Duration::from_secs(3);
/// The name that clients must state. Subscribers are recognized by their address and fingerprint.
const SERVER_NAME: &str = "bats-perftest";
/// Reports of taken messages for each length of the send queue.
const REPORTS_PER_QUEUE: u64 = 4;
/// Size of the socket buffers of raw UDP: that of the original.
const SOCKET_BUFFER: usize = 4 << 20;

pub(super) type Connected = ((Vec<Channel>, Vec<Subscriber>), Option<Endpoint>);

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
            .send_queue
            .map_or(0, |queue| (queue / REPORTS_PER_QUEUE).clamp(1, u32::MAX.into()) as u32),
        keyed: options.common.keyed,
    };
    match options.common.transport {
        Transport::Session(mode) => {
            let trust = SubscriberTrust::new(&options.trust);
            sessions(&options.common, mode, &trust, hello)
        }
        Transport::Raw => {
            let channels = raw_channels(&options.common)?;
            print("Waiting for subscribers announcement ...");
            let subscribers = raw_announcements(&options.common, &channels, hello)?;
            Ok(subscribers.map(|subscribers| ((channels, subscribers), None)))
        }
    }
}

/// The addresses of `-peer`.
fn peer_addresses(options: &Common) -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for peer in &options.peers {
        let ids = match peer.id {
            Some(id) => id..id.saturating_add(1),
            // As many as there can be at one address.
            None => 0..options.peers_expected as u32,
        };
        for id in ids {
            let address = SocketAddr::new(peer.ip, ports::subscriber(options.domain, id)?);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    Ok(addresses)
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
    let endpoint_of_attempts = &endpoint;
    let mut found: Vec<(Channel, Announcement, SocketAddr)> = Vec::new();
    let mut reported = BTreeSet::new();
    while found.len() < options.peers_expected {
        if signals::requested() {
            return Ok(None);
        }
        let round = Clock::start();
        let mut candidates = match &mut listener {
            Some(listener) => listener.addresses(),
            None => given.clone(),
        };
        candidates.retain(|address| found.iter().all(|(_, _, known)| known != address));
        for group in candidates.chunks(MAX_CONCURRENT) {
            let results: Vec<_> = thread::scope(|scope| {
                let attempts: Vec<_> = group
                    .iter()
                    .map(|&address| {
                        scope.spawn(move || {
                            let client = ClientOptions::new(trust.of(address))
                                .transport(transport_config(mode, options.goal));
                            let is_new = trust.is_new(address);
                            let made = attempt(endpoint_of_attempts, client, address, hello)?;
                            if is_new && let Channel::Session(connection) = &made.0 {
                                trust.report(connection, address);
                            }
                            Ok(made)
                        })
                    })
                    .collect();
                attempts.into_iter().map(|attempt| attempt.join()).collect()
            });
            for (&address, result) in group.iter().zip(results) {
                let result = result.unwrap_or_else(|_| bail!("the attempt panicked"));
                match result {
                    Ok((channel, announcement)) => add(&mut found, channel, announcement, address)?,
                    // Without -peer, anyone can announce a subscriber.
                    Err(error) if listener.is_none() && is_untrusted(&error, trust) => {
                        return Err(error.context(address));
                    }
                    Err(error) => {
                        let text = format!("{address}: {error:#}");
                        print_once(&mut reported, &text);
                        if let Some(listener) = &mut listener {
                            listener.forget(address);
                        }
                    }
                }
            }
        }
        let is_complete = found.len() >= options.peers_expected;
        let pause = if listener.is_some() { INTERVAL / 4 } else { ROUND };
        while !is_complete && round.elapsed() < pause && !signals::requested() {
            thread::sleep(Duration::from_millis(10));
        }
    }
    found.truncate(options.peers_expected);
    print("Waiting for subscribers announcement ...");
    let subscribers = (0..)
        .zip(&found)
        .map(|(channel, (_, announcement, _))| Subscriber::new(announcement.subscriber, channel))
        .collect();
    let channels = found.into_iter().map(|(channel, ..)| channel).collect();
    Ok(Some(((channels, subscribers), Some(endpoint))))
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
fn print_once(reported: &mut BTreeSet<String>, text: &str) {
    let is_expected = text.contains("no answer") || text.contains("refused");
    if !is_expected && reported.len() < 16 && reported.insert(text.to_owned()) {
        print(&format!("Note: {text}"));
    }
}

/// Adds a subscriber, unless it is connected already on another path.
fn add(
    found: &mut Vec<(Channel, Announcement, SocketAddr)>,
    channel: Channel,
    announcement: Announcement,
    address: SocketAddr,
) -> Result<()> {
    match found.iter().find(|(_, known, _)| known.subscriber == announcement.subscriber) {
        None => found.push((channel, announcement, address)),
        Some((_, known, _)) if known.process == announcement.process => channel.close(),
        Some((_, known, other)) => bail!(
            "the subscribers at {other} and {address} have the same id {}: use -sidMultiSubTest",
            known.subscriber
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
        .context("no answer")??;
    let channel = Channel::Session(connection);
    let message = Bytes::from(Control::Hello(hello).encode());
    let waiting = Clock::start();
    while waiting.elapsed() < ANNOUNCEMENT_LIMIT && !signals::requested() {
        channel.send(&message)?;
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
        channels.push(Channel::Datagrams {
            socket,
            group: Some(group),
            busy_poll: options.busy_poll,
        });
    } else {
        for address in peer_addresses(options)? {
            let socket = open(Some(address)).with_context(|| format!("{context} to {address}"))?;
            channels.push(Channel::Datagrams { socket, group: None, busy_poll: options.busy_poll });
        }
    }
    if !options.blocking_sockets {
        for channel in &channels {
            if let Channel::Datagrams { socket, .. } = channel {
                socket.set_nonblocking(true).context(context)?;
            }
        }
    }
    Ok(channels)
}

/// Repeats hello until enough subscribers have announced themselves.
fn raw_announcements(
    options: &Common,
    channels: &[Channel],
    hello: Hello,
) -> Result<Option<Vec<Subscriber>>> {
    let message = Bytes::from(Control::Hello(hello).encode());
    let mut found: Vec<(Announcement, usize)> = Vec::new();
    loop {
        if signals::requested() {
            return Ok(None);
        }
        channels.iter().try_for_each(|channel| channel.send(&message).map(drop))?;
        let waiting = Clock::start();
        while waiting.elapsed() < INTERVAL {
            for (index, channel) in channels.iter().enumerate() {
                let limit = Duration::from_millis(5);
                let Some(answer) = channel.receive(limit)? else {
                    // A non-blocking socket does not wait.
                    thread::sleep(Duration::from_millis(1));
                    continue;
                };
                let Some(Control::Announcement(announcement)) = Control::of_message(&answer) else {
                    continue;
                };
                let is_known =
                    found.iter().any(|(known, _)| known.subscriber == announcement.subscriber);
                if announcement.domain == options.domain && !is_known {
                    found.push((announcement, index));
                }
            }
            if found.len() >= options.peers_expected {
                found.truncate(options.peers_expected);
                let subscribers =
                    found.iter().map(|(one, index)| Subscriber::new(one.subscriber, *index));
                return Ok(Some(subscribers.collect()));
            }
        }
    }
}
