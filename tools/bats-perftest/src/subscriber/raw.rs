//! Receives over UDP sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use socket2::SockRef;

use super::meter::{Meter, Publisher, lock};
use super::replies::handle;
use crate::beacon::multicast_socket;
use crate::channel::{KEEP_ALIVE, poll_busily, receive_error, wait_to_read};
use crate::cli::{Common, Group};
use crate::clock::Clock;
use crate::console::print;
use crate::ports;
use crate::wire::Control;

/// Longest UDP payload.
const MAX_DATAGRAM: usize = 65_507;
/// Receive buffer of the sockets, as far as net.core.rmem_max allows it.
const SOCKET_BUFFER: usize = 4 << 20;
const RECEIVE_LIMIT: Duration = Duration::from_millis(100);
/// Time in which repeated end marks are answered, as in the original.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes of a group.
const MAX_GROUP: usize = 4 << 20;

/// The receiving threads.
pub(super) struct Receiver {
    threads: Vec<JoinHandle<()>>,
}

impl Receiver {
    /// # Errors
    /// The port of this subscriber is in use.
    pub(super) fn start(options: &Common, meter: Arc<Meter>) -> Result<Self> {
        let port = ports::subscriber(options.domain, options.id)?;
        let socket = UdpSocket::bind((options.bind_ip(), port)).with_context(|| {
            format!("cannot use UDP port {port}: use another -sidMultiSubTest or -domain")
        })?;
        let socket = Arc::new(socket);
        let mut sources = vec![Arc::clone(&socket)];
        if let Some(group) = options.multicast {
            let join = || -> Result<UdpSocket> {
                let port = ports::multicast_samples(options.domain)?;
                let member = multicast_socket(SocketAddr::new(group.into(), port))?;
                let interface = match options.nic {
                    Some(IpAddr::V4(ip)) => ip,
                    _ => Ipv4Addr::LOCALHOST,
                };
                member.join_multicast_v4(&group, &interface)?;
                member.set_nonblocking(false)?;
                Ok(member)
            };
            sources.push(Arc::new(join().context("cannot receive multicast")?));
        }
        let publishers = Arc::default();
        let mut threads = Vec::new();
        for source in sources {
            let _ = SockRef::from(&*source).set_recv_buffer_size(SOCKET_BUFFER);
            source.set_read_timeout(Some(RECEIVE_LIMIT)).context("cannot receive")?;
            let thread = Source {
                source,
                replies: Arc::clone(&socket),
                meter: Arc::clone(&meter),
                publishers: Arc::clone(&publishers),
                group: options.group,
                busy_poll: options.busy_poll,
            };
            let run = move || thread.run();
            threads.push(thread::Builder::new().name("receive".into()).spawn(run)?);
        }
        Ok(Self { threads })
    }

    /// Answers repeated end marks for a while if the test has been completed, and stops.
    pub(super) fn stop(&mut self, is_complete: bool) {
        if is_complete {
            thread::sleep(LINGER);
        }
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

type Publishers = Arc<std::sync::Mutex<BTreeMap<SocketAddr, Publisher>>>;

/// A socket that samples arrive on.
struct Source {
    source: Arc<UdpSocket>,
    /// The socket for answers: publishers know its port.
    replies: Arc<UdpSocket>,
    meter: Arc<Meter>,
    publishers: Publishers,
    group: Option<Group>,
    busy_poll: Duration,
}

impl Source {
    fn run(self) {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut last: Option<(SocketAddr, Publisher)> = None;
        let mut keep_alive = Clock::start();
        let mut over: Option<Clock> = None;
        loop {
            poll_busily(&self.source, self.busy_poll);
            match self.source.recv_from(&mut buffer) {
                Ok((length, from)) => match self.group {
                    None => self.on_datagram(&mut last, from, &buffer[..length]),
                    Some(group) => {
                        let first = (from, buffer[..length].to_vec());
                        for (from, datagram) in self.collect(group, first, &mut buffer) {
                            self.on_datagram(&mut last, from, &datagram);
                        }
                    }
                },
                Err(error) => {
                    if let Err(error) = receive_error(&error) {
                        return self.meter.fail(error.to_string());
                    }
                }
            }
            if keep_alive.elapsed() >= KEEP_ALIVE {
                keep_alive = Clock::start();
                self.send_keep_alives();
            }
            if self.meter.is_over.load(Ordering::Acquire) {
                let over = *over.get_or_insert_with(Clock::start);
                if self.meter.leaves_early.load(Ordering::Acquire) {
                    self.send_keep_alives();
                }
                if over.elapsed() >= LINGER || self.meter.failure().is_some() {
                    return;
                }
            }
        }
    }

    /// Completes a group: waits for it no longer than its delay.
    fn collect(
        &self,
        group: Group,
        first: (SocketAddr, Vec<u8>),
        buffer: &mut [u8],
    ) -> Vec<(SocketAddr, Vec<u8>)> {
        let waiting = Clock::start();
        let mut bytes = first.1.len();
        let mut datagrams = vec![first];
        while datagrams.len() < group.messages && bytes < MAX_GROUP {
            let left = group.delay.saturating_sub(waiting.elapsed());
            if !wait_to_read(&self.source, left) {
                break;
            }
            let Ok((length, from)) = self.source.recv_from(buffer) else { break };
            bytes += length;
            datagrams.push((from, buffer[..length].to_vec()));
        }
        datagrams
    }

    /// Sends a keep-alive to every publisher, or a goodbye.
    fn send_keep_alives(&self) {
        let subscriber = self.meter.announcement.subscriber;
        let message = match self.meter.leaves_early.load(Ordering::Acquire) {
            true => Control::Goodbye { subscriber, early: true },
            false => Control::KeepAlive { subscriber },
        };
        let publishers = self.publishers.lock().unwrap_or_else(|error| error.into_inner());
        for (&address, publisher) in publishers.iter() {
            if !lock(publisher).has_ended() {
                let _ = self.replies.send_to(&message.encode(), address);
            }
        }
    }

    /// Handles a datagram. Only a hello registers a publisher, up to the expected number of publishers, so
    /// datagrams of other senders cost no memory.
    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn on_datagram(
        &self,
        last: &mut Option<(SocketAddr, Publisher)>,
        from: SocketAddr,
        message: &[u8],
    ) {
        if last.as_ref().is_none_or(|(address, _)| *address != from) {
            let mut publishers = self.publishers.lock().unwrap_or_else(|error| error.into_inner());
            let publisher = match publishers.get(&from) {
                Some(publisher) => Publisher::clone(publisher),
                None => {
                    let Some(Control::Hello(hello)) = Control::of_message(message) else {
                        return self.meter.on_malformed();
                    };
                    match self.meter.add(hello, false) {
                        Ok(publisher) => {
                            publishers.insert(from, Publisher::clone(&publisher));
                            publisher
                        }
                        Err(refusal) => {
                            if self.meter.may_print_note() {
                                print(&format!("Note: {from} was refused: {refusal}"));
                            }
                            let answer = Control::Refused(refusal).encode();
                            let _ = self.replies.send_to(&answer, from);
                            return;
                        }
                    }
                }
            };
            *last = Some((from, publisher));
        }
        let Some((_, publisher)) = last else { return };
        let send = |answer: Bytes| drop(self.replies.send_to(&answer, from));
        handle(&self.meter, publisher, message, send);
    }
}
