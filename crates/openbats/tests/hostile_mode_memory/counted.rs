//! The server under attack: all that its calls allocate is counted, and the application on it.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::time::Duration;

use bats_proto::{ConnectError, EndpointStats, Event, Input, SendError, ServerConfig, Timestamp};
use bytes::Bytes;
use openbats::bindings::{self, Key, Step};

/// What the application of the server does with messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Application {
    Reads,
    ReadsNothing,
}

/// How the next server is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) budget: usize,
    pub(crate) application: Application,
    pub(crate) retry_threshold: usize,
    /// Clients have the longest chain of certificates.
    pub(crate) has_long_chain: bool,
}

/// More than the idle timeout, with the time in which closed connections linger.
const SECONDS_UNTIL_ALL_END: usize = 60;
/// Bytes that calls may allocate and others free without being counted: what the test itself gives the server.
const UNCOUNTED: i64 = 4 << 10;

thread_local! {
    pub(crate) static SETTINGS: Cell<Settings> = const {
        Cell::new(Settings {
            budget: 0,
            application: Application::Reads,
            retry_threshold: usize::MAX,
            has_long_chain: false,
        })
    };
    /// The servers that were dropped.
    static COUNTS: RefCell<Vec<Count>> = const { RefCell::new(Vec::new()) };
}

/// Memory of a server in bytes, by the allocator's count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    /// The most at any time, also within a call.
    pub(crate) peak: i64,
    /// After the attack.
    pub(crate) held: i64,
    /// When the peers have sent nothing for so long that all connections have ended.
    pub(crate) left: i64,
    /// The most connections that there were after a call.
    pub(crate) connections: usize,
}

/// The counts of the servers that were dropped since the last call.
pub(crate) fn take_counts() -> Vec<Count> {
    COUNTS.take()
}

/// As [`bindings::Bindings`].
pub(crate) struct Bindings {
    server: Option<bindings::Bindings>,
    held: i64,
    peak: i64,
    connections: usize,
    now: Timestamp,
    application: Application,
}

impl Bindings {
    pub(crate) fn new(config: ServerConfig, has_datagrams: bool) -> Result<Self, ConnectError> {
        let application = SETTINGS.get().application;
        let mut server = Self {
            server: None,
            held: 0,
            peak: 0,
            connections: 0,
            now: Timestamp::ZERO,
            application,
        };
        let mut config = Some(config);
        server.count(|server| {
            let new = bindings::Bindings::new(config.take(), [2; 32], has_datagrams)?;
            *server = Some(new);
            Ok::<(), ConnectError>(())
        })?;
        Ok(server)
    }

    /// Counts the memory of a call.
    fn count<T>(&mut self, call: impl FnOnce(&mut Option<bindings::Bindings>) -> T) -> T {
        let mut result = None;
        let counted = allocation_counter::measure(|| result = Some(call(&mut self.server)));
        let before = self.held;
        self.held = before + counted.bytes_current;
        self.peak = self.peak.max(before + counted.bytes_max as i64);
        result.expect("the call was made")
    }

    fn in_server<T>(&mut self, call: impl FnOnce(&mut bindings::Bindings) -> T) -> T {
        self.count(|server| call(server.as_mut().expect("not dropped")))
    }

    fn get(&self) -> &bindings::Bindings {
        self.server.as_ref().expect("not dropped")
    }

    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        self.get().tcp_address()
    }

    pub(crate) fn start(&self) -> Timestamp {
        self.get().start()
    }

    pub(crate) fn connection_count(&self) -> usize {
        self.get().connection_count()
    }

    pub(crate) fn endpoint_stats(&self) -> EndpointStats {
        self.get().endpoint_stats()
    }

    /// Bytes that the calls have allocated and not freed.
    pub(crate) fn held(&self) -> i64 {
        self.held
    }

    pub(crate) fn handle(&mut self, now: Timestamp, input: Input<'_>) {
        self.now = now;
        self.in_server(|server| server.handle(now, input));
        self.connections = self.connections.max(self.get().connection_count());
    }

    pub(crate) fn handle_unreachable_port(
        &mut self,
        now: Timestamp,
        remote: SocketAddr,
        quoted: &[u8],
    ) {
        self.now = now;
        self.in_server(|server| server.handle_unreachable_port(now, remote, quoted));
    }

    pub(crate) fn poll(&mut self, now: Timestamp, buffer: &mut Vec<u8>) -> Step {
        self.in_server(|server| match server.poll(now, buffer) {
            // What the caller gets is its own memory.
            Step::Event(key, event) => Step::Event(key, uncounted(|| Event::clone(&event))),
            step => step,
        })
    }

    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        key: Key,
        message: Bytes,
    ) -> Result<(), SendError> {
        let sent = self.in_server(|server| {
            match server.send(now, key, Bytes::copy_from_slice(&message)) {
                Err(SendError::Blocked(_)) => Err(None),
                sent => sent.map_err(Some),
            }
        });
        sent.map_err(|error| error.unwrap_or(SendError::Blocked(message)))
    }

    /// The next message that the application takes.
    pub(crate) fn recv(&mut self, now: Timestamp, key: Key) -> Option<Bytes> {
        if self.application == Application::ReadsNothing {
            return None;
        }
        self.in_server(|server| {
            let message = server.recv(now, key)?;
            Some(uncounted(|| Bytes::copy_from_slice(&message)))
        })
    }
}

impl Drop for Bindings {
    fn drop(&mut self) {
        if self.server.is_none() || std::thread::panicking() {
            return;
        }
        let (held, peak) = (self.held, self.peak);
        let mut buffer = Vec::with_capacity(65_536);
        for _ in 0..SECONDS_UNTIL_ALL_END {
            self.handle(self.now + Duration::from_secs(1), Input::Timeout);
            while !matches!(self.poll(self.now, &mut buffer), Step::Timeout(_)) {}
        }
        assert_eq!(self.get().connection_count(), 0, "all have ended");
        let (left, connections) = (self.held, self.connections);
        let server = self.server.take();
        let freed = -allocation_counter::measure(|| drop(server)).bytes_current;
        assert!((freed - left).abs() < UNCOUNTED, "{freed} bytes freed, {left} by calls");
        COUNTS.with_borrow_mut(|counts| counts.push(Count { peak, held, left, connections }));
    }
}

fn uncounted<T>(work: impl FnOnce() -> T) -> T {
    let mut result = None;
    allocation_counter::opt_out(|| result = Some(work()));
    result.expect("the work was done")
}
