//! Which tests run, and how data connections find theirs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result, bail};
use openbats::{Connection, Endpoint, Wait};

use crate::control::{Gathering, Hello};

/// Tests at a time; more are denied.
const MAX_TESTS: usize = 64;
/// Streams of all tests at a time.
pub(super) const MAX_STREAMS: usize = 1_024;
/// Connections that have not said whose they are.
pub(super) const MAX_STRANGERS: usize = 256;

type Gate = Sender<(u16, Connection)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    tests: Arc<Mutex<BTreeMap<u64, (u16, Gate)>>>,
    strangers: Arc<AtomicUsize>,
}

/// A test's place in the registry; free again when dropped.
#[derive(Debug)]
pub(super) struct Entry {
    registry: Registry,
    pub(super) test: u64,
    streams: Receiver<(u16, Connection)>,
}

impl Registry {
    /// A place for a test with so many streams, `None` if there is none.
    pub(super) fn enter(&self, streams: u16) -> Result<Option<Entry>> {
        let mut random = [0; 8];
        getrandom::fill(&mut random).context("the system gives no random numbers")?;
        let test = u64::from_ne_bytes(random);
        let (sender, receiver) = channel();
        let Ok(mut tests) = self.tests.lock() else { bail!("the registry is broken") };
        let taken: usize = tests.values().map(|(streams, _)| usize::from(*streams)).sum();
        if tests.len() >= MAX_TESTS || taken + usize::from(streams) > MAX_STREAMS {
            return Ok(None);
        }
        tests.insert(test, (streams, sender));
        Ok(Some(Entry { registry: self.clone(), test, streams: receiver }))
    }

    /// Hands data connections to the tests that they name, until the endpoint ends.
    pub(super) fn accept_streams(&self, data: &Endpoint) {
        while let Ok(connection) = data.accept().wait() {
            if self.strangers.fetch_add(1, Ordering::AcqRel) >= MAX_STRANGERS {
                self.strangers.fetch_sub(1, Ordering::AcqRel);
                connection.close(1, "too many connections");
                continue;
            }
            let guard = super::Guard(self.strangers.clone());
            let (registry, stranger) = (self.clone(), connection.clone());
            let started = thread::Builder::new().spawn(move || {
                let _guard = guard;
                registry.introduce(connection);
            });
            if started.is_err() {
                stranger.close(1, "the server is out of threads");
            }
        }
    }

    fn introduce(&self, connection: Connection) {
        let hello = connection.recv().wait_for(super::GREETING);
        let Ok(Ok(Some(hello))) = hello else {
            // Before its time is over, should it have ended by itself.
            connection.close(1, "no hello");
            return;
        };
        let Some(hello) = Hello::decode(&hello) else {
            connection.close(1, "no hello");
            return;
        };
        let test = self.tests.lock().ok().and_then(|tests| Some(tests.get(&hello.test)?.1.clone()));
        match test {
            // Should the test be over meanwhile, the connection is dropped and closed.
            Some(test) => drop(test.send((hello.stream, connection))),
            None => connection.close(1, "no such test"),
        }
    }
}

impl Entry {
    /// All streams of the test, in order.
    pub(super) fn gather(&self, count: u16) -> Result<Vec<Connection>> {
        let mut patience = Gathering::start();
        let mut gathered = BTreeMap::new();
        while gathered.len() < usize::from(count) {
            let (stream, connection) = self
                .streams
                .recv_timeout(patience.left())
                .ok()
                .with_context(|| format!("{} of {count} streams came", gathered.len()))?;
            connection.trust_peer();
            if stream >= count || gathered.insert(stream, connection).is_some() {
                bail!("the client numbers its streams wrongly");
            }
            patience.progress();
        }
        Ok(gathered.into_values().collect())
    }
}

impl Drop for Entry {
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
    fn places_are_limited_and_come_back() {
        let registry = Registry::default();
        let mut entries: Vec<Entry> = std::iter::from_fn(|| registry.enter(1).unwrap()).collect();
        assert_eq!(entries.len(), MAX_TESTS);
        entries.pop();
        assert!(registry.enter(128).unwrap().is_some());
        entries.clear();
        let streams: Vec<Entry> = std::iter::from_fn(|| registry.enter(256).unwrap()).collect();
        assert_eq!(streams.len(), MAX_STREAMS / 256);
        assert!(registry.enter(1).unwrap().is_none());
    }
}
