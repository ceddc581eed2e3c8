//! Store of TLS sessions that a server can resume.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::StoresServerSessions;

use super::clock::ExternalClock;

/// Limit of sessions, about 3 MiB. Beyond it the oldest are evicted; their clients get a full
/// handshake.
pub(super) const MAX_SESSIONS: usize = 8_192;
/// Limit in bytes of one session: a key, a name and an application protocol.
pub(super) const MAX_SESSION: usize = 1_024;
/// Lifetime of a session, as advertised to the client.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Server-side sessions under random names; the client gets only the name. A session is therefore
/// resumed at most once, even if the client's packets are replayed, and its key is deleted then.
#[derive(Debug)]
pub(super) struct ServerSessions {
    clock: Arc<ExternalClock>,
    state: Mutex<StoreState>,
}

#[derive(Default)]
struct StoreState {
    next: u64,
    /// Sessions evicted for newer ones.
    displaced: u64,
    /// Names by age, the oldest first.
    names: BTreeMap<u64, Vec<u8>>,
    sessions: BTreeMap<Vec<u8>, Session>,
}

struct Session {
    number: u64,
    since: Duration,
    value: Vec<u8>,
}

impl core::fmt::Debug for StoreState {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kept").field("sessions", &self.sessions.len()).finish()
    }
}

impl ServerSessions {
    pub(super) fn new(clock: Arc<ExternalClock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Sessions evicted for newer ones.
    pub(super) fn displaced(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).displaced
    }

    fn now(&self) -> Duration {
        Duration::from_secs(self.clock.now().as_secs())
    }
}

impl StoresServerSessions for ServerSessions {
    fn put(&self, name: Vec<u8>, value: Vec<u8>) -> bool {
        if value.len() > MAX_SESSION {
            return false;
        }
        let since = self.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        if let Some(old) = state.sessions.insert(name.clone(), Session { number, since, value }) {
            state.names.remove(&old.number);
        }
        state.names.insert(number, name);
        if state.names.len() > MAX_SESSIONS
            && let Some((_, oldest)) = state.names.pop_first()
        {
            state.sessions.remove(&oldest);
            state.displaced += 1;
        }
        true
    }

    /// Only TLS 1.2 looks up a session without consuming it.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        let now = self.now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let session = state.sessions.remove(name)?;
        state.names.remove(&session.number);
        (now < session.since + LIFETIME).then_some(session.value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use bats_types::Timestamp;

    use super::*;

    fn sessions() -> (ServerSessions, Arc<ExternalClock>) {
        let clock = Arc::new(ExternalClock::new(Duration::ZERO, Timestamp::ZERO));
        (ServerSessions::new(clock.clone()), clock)
    }

    #[test]
    fn session_is_resumed_once_and_within_its_lifetime() {
        let (sessions, clock) = sessions();
        for name in 0..3 {
            assert!(sessions.put(vec![name], vec![name; 100]));
        }
        assert!(sessions.can_cache());
        assert_eq!(sessions.get(&[0]), None);
        assert_eq!(sessions.take(&[0]), Some(vec![0; 100]));
        assert_eq!(sessions.take(&[0]), None, "used up");
        clock.set(Timestamp::ZERO + (LIFETIME - Duration::from_secs(1)));
        assert_eq!(sessions.take(&[1]), Some(vec![1; 100]));
        assert_eq!(LIFETIME.as_secs(), 86_400);
        clock.set(Timestamp::ZERO + LIFETIME);
        assert_eq!(sessions.take(&[2]), None, "expired");
    }

    #[test]
    fn oldest_sessions_are_evicted_and_large_ones_are_refused() {
        let (sessions, _) = sessions();
        let name = |number: usize| number.to_be_bytes().to_vec();
        for number in 0..MAX_SESSIONS {
            sessions.put(name(number), vec![7]);
        }
        assert_eq!(sessions.state.lock().unwrap().sessions.len(), MAX_SESSIONS);
        assert_eq!(sessions.displaced(), 0);
        sessions.put(name(MAX_SESSIONS), vec![8]);
        sessions.put(name(MAX_SESSIONS), vec![9]);
        let state = sessions.state.lock().unwrap();
        assert_eq!((state.sessions.len(), state.names.len()), (MAX_SESSIONS, MAX_SESSIONS));
        drop(state);
        assert_eq!(sessions.displaced(), 1);
        assert_eq!(sessions.take(&name(0)), None);
        assert_eq!(sessions.take(&name(1)), Some(vec![7]));
        assert_eq!(sessions.take(&name(MAX_SESSIONS)), Some(vec![9]));
        assert!(sessions.put(vec![1], vec![0; MAX_SESSION]));
        assert!(!sessions.put(vec![2], vec![0; MAX_SESSION + 1]));
        // Taking a session removes its name, too.
        for number in 0..=MAX_SESSIONS {
            sessions.take(&name(number));
        }
        sessions.take(&[1]);
        let state = sessions.state.lock().unwrap();
        assert!(state.sessions.is_empty() && state.names.is_empty());
    }
}
