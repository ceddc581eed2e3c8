//! The running tests, and the assignment of data connections to them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Endpoint, Wait};

use crate::control::{ConnectTimeout, Hello};

/// Maximum number of concurrent tests; more are denied.
const MAX_TESTS: usize = 64;
/// Maximum number of streams of all tests together.
pub(super) const MAX_STREAMS: usize = 1_024;
/// Maximum number of connections that have not identified their test yet.
pub(super) const MAX_UNIDENTIFIED: usize = 256;

type StreamSender = Sender<(u16, Connection)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    tests: Arc<Mutex<BTreeMap<u64, (u16, StreamSender)>>>,
    unidentified: Arc<AtomicUsize>,
}

/// A test's slot in the registry; released when dropped.
#[derive(Debug)]
pub(super) struct TestSlot {
    registry: Registry,
    pub(super) test: u64,
    streams: Receiver<(u16, Connection)>,
}

impl Registry {
    /// Reserves a slot for a test with this number of streams, `None` if there is none.
    pub(super) fn reserve(&self, streams: u16) -> Result<Option<TestSlot>> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system provides no random numbers")?;
        let test = u64::from_ne_bytes(random);
        let (sender, receiver) = channel();
        let Ok(mut tests) = self.tests.lock() else { bail!("the registry is poisoned by a panic") };
        let taken: usize = tests.values().map(|(streams, _)| usize::from(*streams)).sum();
        if tests.len() >= MAX_TESTS || taken + usize::from(streams) > MAX_STREAMS {
            return Ok(None);
        }
        tests.insert(test, (streams, sender));
        Ok(Some(TestSlot { registry: self.clone(), test, streams: receiver }))
    }

    /// Passes data connections to the tests that they name, until the endpoint shuts down.
    pub(super) fn accept_streams(&self, data: &Endpoint) {
        while let Ok(connection) = data.accept().wait() {
            if self.unidentified.fetch_add(1, Ordering::AcqRel) >= MAX_UNIDENTIFIED {
                self.unidentified.fetch_sub(1, Ordering::AcqRel);
                connection.close(1, "too many connections");
                continue;
            }
            let guard = super::Guard(self.unidentified.clone());
            let (registry, rejected) = (self.clone(), connection.clone());
            let started = thread::Builder::new().spawn(move || {
                let _guard = guard;
                registry.dispatch(connection);
            });
            if started.is_err() {
                rejected.close(1, "the server cannot start a thread");
            }
        }
    }

    fn dispatch(&self, connection: Connection) {
        let hello = connection.recv().wait_for(super::HELLO_TIMEOUT);
        let Ok(Ok(Some(hello))) = hello else {
            // If the connection has ended by itself, this has no effect.
            connection.close(1, "no hello");
            return;
        };
        let Some(hello) = Hello::decode(&hello) else {
            connection.close(1, "no hello");
            return;
        };
        let test = self.tests.lock().ok().and_then(|tests| Some(tests.get(&hello.test)?.1.clone()));
        match test {
            // If the test has ended meanwhile, the connection is dropped and thereby closed.
            Some(test) => drop(test.send((hello.stream, connection))),
            None => connection.close(1, "no such test"),
        }
    }
}

impl TestSlot {
    /// Accepts all streams of the test, in order.
    pub(super) fn accept_all(&self, count: u16, each: Duration) -> Result<Vec<Connection>> {
        let mut timeout = ConnectTimeout::start(each);
        let mut by_number = BTreeMap::new();
        while by_number.len() < usize::from(count) {
            let (stream, connection) =
                self.streams.recv_timeout(timeout.left()).ok().with_context(|| {
                    format!("only {} of {count} streams connected", by_number.len())
                })?;
            connection.trust_peer();
            if stream >= count || by_number.insert(stream, connection).is_some() {
                bail!("the client used an invalid stream number");
            }
            timeout.progress();
        }
        Ok(by_number.into_values().collect())
    }
}

impl Drop for TestSlot {
    fn drop(&mut self) {
        if let Ok(mut tests) = self.registry.tests.lock() {
            tests.remove(&self.test);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_limited_and_released() {
        let registry = Registry::default();
        let mut slots: Vec<TestSlot> =
            std::iter::from_fn(|| registry.reserve(1).unwrap()).collect();
        assert_eq!(slots.len(), MAX_TESTS);
        slots.pop();
        assert!(registry.reserve(128).unwrap().is_some());
        slots.clear();
        let streams: Vec<TestSlot> =
            std::iter::from_fn(|| registry.reserve(256).unwrap()).collect();
        assert_eq!(streams.len(), MAX_STREAMS / 256);
        assert!(registry.reserve(1).unwrap().is_none());
    }
}
