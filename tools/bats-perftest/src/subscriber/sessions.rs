//! Receives over OpenBATS connections.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use openbats::{Connection, Endpoint, Mode, RecvError, ServerOptions, Wait};

use super::meter::{Meter, Publisher, lock};
use super::replies::handle;
use crate::channel::{close_endpoint, transport_config};
use crate::cli::{Common, Group};
use crate::clock::Clock;
use crate::console::print;
use crate::wire::{Control, ping_target, target};
use crate::{ports, trust};

/// Bytes of a peer that are held unread before its hello.
const UNTRUSTED_BUDGET: usize = 64 << 10;
/// Peers that have not introduced themselves. A further one takes the place of the oldest, so that
/// peers that only connect keep no publisher out.
const MAX_UNKNOWN: usize = 64;
/// Time for the hello message, which is the first message of a peer.
const HELLO_LIMIT: Duration = Duration::from_secs(3);
const RECEIVE_LIMIT: Duration = Duration::from_millis(100);
/// Longest wait for the connection to take an answer that may be lost, or any after the test.
const REPLY_LIMIT: Duration = Duration::from_secs(1);

/// The modes that a subscriber accepts if it is not given one.
const ALL_MODES: [Mode; 6] =
    [Mode::Brtp, Mode::Btp, Mode::Brctp, Mode::Transparent, Mode::Tcp, Mode::Quic];

/// An endpoint whose connections are received from.
pub(super) struct Receiver {
    endpoint: Endpoint,
}

impl Receiver {
    /// # Errors
    /// The port of this subscriber is in use.
    pub(super) fn start(options: &Common, mode: Mode, meter: Arc<Meter>) -> Result<Self> {
        let port = ports::subscriber(options.domain, options.id)?;
        let identity = trust::identity()?;
        let modes: Vec<Mode> = match options.transport_given {
            true => vec![mode],
            false => ALL_MODES.to_vec(),
        };
        let server = ServerOptions::new(identity)
            .transport(transport_config(mode, options.goal))
            .modes(modes)
            // Those that were closed need a place until their last packet.
            .max_connections(options.peers_expected + 4 * MAX_UNKNOWN)
            .untrusted_peer_budget(UNTRUSTED_BUDGET);
        let endpoint = Endpoint::builder()
            .bind(SocketAddr::new(options.bind_ip(), port))
            .busy_poll(options.busy_poll)
            .server(server)
            .start()
            .with_context(|| {
                format!(
                    "cannot receive as subscriber {} of domain {}: is another one running? Use \
                     -sidMultiSubTest or -domain",
                    options.id, options.domain
                )
            })?;
        let (accepting, group) = (endpoint.clone(), options.group);
        thread::Builder::new()
            .name("accept".into())
            .spawn(move || accept(&accepting, &meter, group))
            .context("cannot start a thread")?;
        Ok(Self { endpoint })
    }

    /// Waits until the publishers have closed their connections, at most `linger`, and stops.
    pub(super) fn stop(&mut self, linger: Option<Duration>) {
        if let Some(linger) = linger {
            self.endpoint.stop_accepting();
            let _ = self.endpoint.idle().wait_for(linger);
        }
        close_endpoint(&self.endpoint);
    }
}

/// Connections that have not introduced themselves, the oldest first.
#[derive(Clone, Debug, Default)]
struct Unknown(Arc<Mutex<VecDeque<(u64, Connection)>>>);

impl Unknown {
    fn add(&self, number: u64, connection: &Connection) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_UNKNOWN
            && let Some((_, oldest)) = all.pop_front()
        {
            oldest.close(1, "no hello message, and others wait");
        }
        all.push_back((number, connection.clone()));
    }

    fn remove(&self, number: u64) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(other, _)| *other != number);
    }
}

fn accept(endpoint: &Endpoint, meter: &Arc<Meter>, group: Option<Group>) {
    let unknown = Unknown::default();
    for number in 0.. {
        let connection = loop {
            if meter.is_over.load(Ordering::Acquire) {
                return;
            }
            match endpoint.accept().wait_for(RECEIVE_LIMIT) {
                Err(_) => {}
                Ok(Ok(connection)) => break connection,
                Ok(Err(_)) => return,
            }
        };
        unknown.add(number, &connection);
        let (meter, others) = (Arc::clone(meter), unknown.clone());
        let serve = move || {
            let publisher = introduce(&connection, &meter);
            others.remove(number);
            match publisher {
                Ok(publisher) => receive(&connection, &meter, &publisher, group),
                Err(problem) => connection.close(1, &problem),
            }
        };
        if thread::Builder::new().name("receive".into()).spawn(serve).is_err() {
            unknown.remove(number);
        }
    }
}

/// Waits for the hello message of a publisher: the first one, because a peer could keep its place with
/// others without end. A publisher sends nothing else before it has an answer.
fn introduce(connection: &Connection, meter: &Meter) -> Result<Publisher, String> {
    let Ok(Ok(Some(message))) = connection.recv().wait_for(HELLO_LIMIT) else {
        return Err("no hello message".to_owned());
    };
    let Some(Control::Hello(hello)) = Control::of_message(&message) else {
        meter.on_malformed();
        return Err("no hello message".to_owned());
    };
    let publisher = meter.add(hello, connection.is_reliable()).map_err(|refusal| {
        if meter.may_print_note() {
            print(&format!("Note: {} was refused: {refusal}", connection.remote_addr()));
        }
        refusal.to_string()
    })?;
    connection.trust_peer();
    handle(meter, &publisher, &message, |answer| reply(connection, meter, &answer));
    Ok(publisher)
}

/// Sends an answer. In a reliable mode the publisher relies on all of them but those to initialization
/// pings: it would wait for an echo, or for room in its queue, without end.
fn reply(connection: &Connection, meter: &Meter, answer: &Bytes) {
    let may_be_lost = !connection.is_reliable() || target(answer) == Some(ping_target(true));
    let waiting = Clock::start();
    loop {
        match connection.send(answer.clone()).wait_for(RECEIVE_LIMIT) {
            Ok(_) => return,
            Err(_) if waiting.elapsed() < REPLY_LIMIT => {}
            Err(_) if may_be_lost || meter.is_over.load(Ordering::Acquire) => return,
            Err(_) => {}
        }
    }
}

fn receive(connection: &Connection, meter: &Meter, publisher: &Publisher, group: Option<Group>) {
    let mut messages = Vec::new();
    loop {
        match connection.recv().wait_for(RECEIVE_LIMIT) {
            Err(_) => {
                if meter.leaves_early.load(Ordering::Acquire) {
                    let own = meter.announcement.subscriber;
                    let goodbye = Control::Goodbye { subscriber: own, early: true };
                    reply(connection, meter, &goodbye.encode().into());
                }
                if meter.is_over.load(Ordering::Acquire) && !lock(publisher).has_ended() {
                    return;
                }
            }
            Ok(Ok(Some(message))) => {
                messages.push(message);
                if let Some(group) = group {
                    collect(connection, group, &mut messages);
                }
                for message in messages.drain(..) {
                    handle(meter, publisher, &message, |answer| reply(connection, meter, &answer));
                }
            }
            Ok(Ok(None)) => return on_closed(meter, publisher, None),
            Ok(Err(RecvError::Closed(reason))) => {
                return on_closed(meter, publisher, Some(reason.to_string()));
            }
            Ok(Err(error)) => return on_closed(meter, publisher, Some(error.to_string())),
        }
    }
}

/// Completes a group of messages.
fn collect(connection: &Connection, group: Group, messages: &mut Vec<Bytes>) {
    let waiting = Clock::start();
    while messages.len() < group.messages {
        if let Some(message) = connection.try_recv() {
            messages.push(message);
            continue;
        }
        let left = group.delay.saturating_sub(waiting.elapsed());
        if left.is_zero() {
            return;
        }
        match connection.recv().wait_for(left) {
            Ok(Ok(Some(message))) => messages.push(message),
            _ => return,
        }
    }
}

/// A publisher that closes its connection before its end mark has died.
fn on_closed(meter: &Meter, publisher: &Publisher, reason: Option<String>) {
    let state = lock(publisher);
    if !state.has_ended() && !meter.is_over.load(Ordering::Acquire) {
        let reason = reason.unwrap_or_else(|| "it has finished without an end mark".into());
        meter.fail(format!("publisher {}: {reason}", state.hello.publisher));
    }
}
