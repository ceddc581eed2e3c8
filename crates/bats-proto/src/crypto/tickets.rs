//! Sessions that a server has promised to take up again.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::server::StoresServerSessions;

use super::clock::ToldTime;

/// Sessions kept at once: 3 MiB or so. The oldest make room; their clients shake hands in full.
pub(super) const MAX_SESSIONS: usize = 8_192;
/// Bytes of a session: a key, a name and an application protocol.
pub(super) const MAX_SESSION: usize = 1_024;
/// How long a session can be taken up, as the client is told.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The sessions themselves, kept here under a random name: what the client gets is the name alone. So a
/// session is taken up once, whoever has copied the client's packets, and its key is gone after that.
#[derive(Debug)]
pub(super) struct ServerSessions {
    clock: Arc<ToldTime>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    next: u64,
    /// Sessions that made room for others.
    displaced: u64,
    /// Names in the order of their age.
    names: BTreeMap<u64, Vec<u8>>,
    sessions: BTreeMap<Vec<u8>, Session>,
}

struct Session {
    number: u64,
    since: Duration,
    value: Vec<u8>,
}

impl core::fmt::Debug for Kept {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Kept").field("sessions", &self.sessions.len()).finish()
    }
}

impl ServerSessions {
    pub(super) fn new(clock: Arc<ToldTime>) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// Sessions that made room for others.
    pub(super) fn displaced(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).displaced
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
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let number = kept.next;
        kept.next += 1;
        if let Some(old) = kept.sessions.insert(name.clone(), Session { number, since, value }) {
            kept.names.remove(&old.number);
        }
        kept.names.insert(number, name);
        if kept.names.len() > MAX_SESSIONS
            && let Some((_, oldest)) = kept.names.pop_first()
        {
            kept.sessions.remove(&oldest);
            kept.displaced += 1;
        }
        true
    }

    /// Only TLS 1.2 looks a session up without using it up.
    fn get(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn take(&self, name: &[u8]) -> Option<Vec<u8>> {
        let now = self.now();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let session = kept.sessions.remove(name)?;
        kept.names.remove(&session.number);
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

    fn sessions() -> (ServerSessions, Arc<ToldTime>) {
        let clock = Arc::new(ToldTime::new(Duration::ZERO, Timestamp::ZERO));
        (ServerSessions::new(clock.clone()), clock)
    }

    #[test]
    fn a_session_is_taken_once_and_in_time() {
        let (sessions, clock) = sessions();
        for name in 0..3 {
            assert!(sessions.put(vec![name], vec![name; 100]));
        }
        assert!(sessions.can_cache());
        assert_eq!(sessions.get(&[0]), None);
        assert_eq!(sessions.take(&[0]), Some(vec![0; 100]));
        assert_eq!(sessions.take(&[0]), None, "used up");
        clock.tell(Timestamp::ZERO + (LIFETIME - Duration::from_secs(1)));
        assert_eq!(sessions.take(&[1]), Some(vec![1; 100]));
        assert_eq!(LIFETIME.as_secs(), 86_400);
        clock.tell(Timestamp::ZERO + LIFETIME);
        assert_eq!(sessions.take(&[2]), None, "expired");
    }

    #[test]
    fn the_oldest_make_room_and_what_is_large_is_not_kept() {
        let (sessions, _) = sessions();
        let name = |number: usize| number.to_be_bytes().to_vec();
        for number in 0..MAX_SESSIONS {
            sessions.put(name(number), vec![7]);
        }
        assert_eq!(sessions.kept.lock().unwrap().sessions.len(), MAX_SESSIONS);
        assert_eq!(sessions.displaced(), 0);
        sessions.put(name(MAX_SESSIONS), vec![8]);
        sessions.put(name(MAX_SESSIONS), vec![9]);
        let kept = sessions.kept.lock().unwrap();
        assert_eq!((kept.sessions.len(), kept.names.len()), (MAX_SESSIONS, MAX_SESSIONS));
        drop(kept);
        assert_eq!(sessions.displaced(), 1);
        assert_eq!(sessions.take(&name(0)), None);
        assert_eq!(sessions.take(&name(1)), Some(vec![7]));
        assert_eq!(sessions.take(&name(MAX_SESSIONS)), Some(vec![9]));
        assert!(sessions.put(vec![1], vec![0; MAX_SESSION]));
        assert!(!sessions.put(vec![2], vec![0; MAX_SESSION + 1]));
        // Taking leaves nothing behind.
        for number in 0..=MAX_SESSIONS {
            sessions.take(&name(number));
        }
        sessions.take(&[1]);
        let kept = sessions.kept.lock().unwrap();
        assert!(kept.sessions.is_empty() && kept.names.is_empty());
    }
}
