//! Store of TLS sessions that a client can resume.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName};

use super::clock::ExternalClock;
use super::trust::{Template, TrustIdentity};
use crate::config::{Identity, PeerTrust};
use crate::error::ConnectError;
use crate::remote::Remote;

/// Limit of sessions per server: a server issues two per connection, and each is used once.
const MAX_PER_SERVER: usize = 4;
/// Limit of remembered trust configurations, each with its certificate authorities. Beyond it the
/// oldest is dropped with its sessions.
const MAX_TRUST_IDENTITIES: usize = 16;
/// Limit in bytes of the certificate chain kept with a session. Servers with longer chains get a
/// full handshake.
const MAX_CHAIN: usize = 16 << 10;

/// Store of TLS sessions for resumption by a client. A resumed handshake needs no certificate, and
/// its first flight can carry early data.
///
/// A handle: clones share the sessions. Each session is used once, the newest first, and lasts as
/// long as the server says, at most a week. A session is resumed only with the same server name,
/// address, trust and identity, and the server's certificate is verified again. Sessions are secret
/// and kept in memory only.
#[derive(Clone)]
pub struct SessionStore {
    shared: Arc<Mutex<StoreState>>,
}

#[derive(Default)]
struct StoreState {
    limit: usize,
    trust_identities: VecDeque<(TrustIdentity, Template)>,
    /// Oldest first.
    sessions: VecDeque<StoredSession>,
}

struct StoredSession {
    key: Key,
    chain: Vec<CertificateDer<'static>>,
    value: Tls13ClientSessionValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    trust_identity: TrustIdentity,
    server: Remote,
    name: ServerName<'static>,
    alpn: Vec<u8>,
}

impl core::fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SessionStore").field("sessions", &self.len()).finish()
    }
}

impl SessionStore {
    /// Creates a store for up to `limit` sessions, at most 65,536. Each takes a few kilobytes with
    /// its certificate. Beyond the limit the oldest are dropped.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let state = StoreState { limit: limit.min(1 << 16), ..StoreState::default() };
        Self { shared: Arc::new(Mutex::new(state)) }
    }

    /// Number of sessions kept, including expired ones.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Whether the store is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes all sessions.
    pub fn clear(&self) {
        let mut state = self.lock();
        state.sessions.clear();
        state.trust_identities.clear();
    }

    /// Locks the state. A poisoned lock is fine: the state is consistent after every statement.
    fn lock(&self) -> MutexGuard<'_, StoreState> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The TLS configuration for this trust and identity: the same objects as before, if they are
    /// still remembered.
    pub(super) fn template(
        &self,
        trust_identity: TrustIdentity,
        trust: &PeerTrust,
        identity: Option<&Identity>,
    ) -> Result<Template, ConnectError> {
        let mut state = self.lock();
        if let Some(at) =
            state.trust_identities.iter().position(|(known, _)| *known == trust_identity)
            && let Some(found) = state.trust_identities.remove(at)
        {
            let template = found.1.clone();
            state.trust_identities.push_back(found);
            return Ok(template);
        }
        let template = Template::new(trust, identity)?;
        if state.trust_identities.len() == MAX_TRUST_IDENTITIES
            && let Some((oldest, _)) = state.trust_identities.pop_front()
        {
            state.sessions.retain(|session| session.key.trust_identity != oldest);
        }
        state.trust_identities.push_back((trust_identity, template.clone()));
        Ok(template)
    }

    /// Keeps a session that was created with `template`, if that is still the current one: TLS
    /// would not resume the session with another.
    fn insert(&self, template: &Template, session: StoredSession) {
        let mut state = self.lock();
        let is_known = state.trust_identities.iter().any(|(trust_identity, known)| {
            *trust_identity == session.key.trust_identity
                && Arc::ptr_eq(&known.verifier, &template.verifier)
        });
        if state.limit == 0 || !is_known {
            return;
        }
        let of_server = |other: &&StoredSession| other.key == session.key;
        if state.sessions.iter().filter(of_server).count() >= MAX_PER_SERVER
            && let Some(oldest) = state.sessions.iter().position(|other| other.key == session.key)
        {
            state.sessions.remove(oldest);
        }
        while state.sessions.len() >= state.limit {
            state.sessions.pop_front();
        }
        state.sessions.push_back(session);
    }

    fn take(&self, key: &Key) -> Option<StoredSession> {
        let mut state = self.lock();
        let newest = state.sessions.iter().rposition(|session| session.key == *key)?;
        state.sessions.remove(newest)
    }
}

/// The store as one connection uses it.
pub(super) struct ConnectionSessionStore {
    store: SessionStore,
    key: Key,
    template: Template,
    clock: Arc<ExternalClock>,
    /// The verified certificate chain of the connection's server, once known.
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

impl core::fmt::Debug for ConnectionSessionStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("StoreOf")
    }
}

impl ConnectionSessionStore {
    pub(super) fn new(
        store: SessionStore,
        (trust_identity, template): (TrustIdentity, Template),
        server: Remote,
        name: ServerName<'static>,
        alpn: &[u8],
        clock: Arc<ExternalClock>,
    ) -> Self {
        let key = Key { trust_identity, server, name, alpn: alpn.to_vec() };
        Self { store, key, template, clock, chain: Mutex::new(Vec::new()) }
    }

    /// Records the verified certificate chain for the sessions that the server issues.
    pub(super) fn set_chain(&self, chain: &[CertificateDer<'static>]) {
        let mut state = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        if state.is_empty() && chain.iter().map(|one| one.len()).sum::<usize>() <= MAX_CHAIN {
            *state = chain.to_vec();
        }
    }

    /// Whether the certificate of a session's server is still valid and trusted.
    fn is_still_trusted(&self, session: &StoredSession) -> bool {
        let Some((end_entity, intermediates)) = session.chain.split_first() else { return false };
        let (name, now) = (&self.key.name, self.clock.now());
        let verifier = &self.template.verifier;
        verifier.verify_server_cert(end_entity, intermediates, name, &[], now).is_ok()
    }
}

impl ClientSessionStore for ConnectionSessionStore {
    fn set_kx_hint(&self, _: ServerName<'static>, _: NamedGroup) {}

    fn kx_hint(&self, _: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _: ServerName<'static>, value: Tls13ClientSessionValue) {
        let chain = self.chain.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if !chain.is_empty() {
            let session = StoredSession { key: self.key.clone(), chain, value };
            self.store.insert(&self.template, session);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let session = self.store.take(&self.key)?;
        self.is_still_trusted(&session).then_some(session.value)
    }
}

#[cfg(test)]
mod tests;
