//! Sessions that a client can take up again.

use core::net::SocketAddr;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::{CertificateDer, ServerName};

use super::clock::ToldTime;
use super::trust::{Basis, Template};
use crate::config::ClientConfig;
use crate::error::ConnectError;

/// Sessions of one server kept at once: it hands out two per connection, and each is used once.
const MAX_PER_SERVER: usize = 4;
/// Kinds of trust remembered at once, each with its certificate authorities; with the oldest go its
/// sessions.
const MAX_BASES: usize = 16;
/// Bytes of certificates kept with a session. Servers with longer chains are greeted in full.
const MAX_CHAIN: usize = 16 << 10;

/// Sessions that a client keeps, to take them up again: the next handshake with the same server, under
/// the same trust, needs no certificate, and its first flight can carry messages.
///
/// A handle: clones share the sessions. They are used once each, the newest first, and last as long as
/// the server says, a week at most. A session is taken up only with the server name, the address,
/// the trust and the identity that it was begun with, and the server's certificate is judged anew.
/// Everything is in memory, and secret.
#[derive(Clone)]
pub struct SessionStore {
    shared: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    limit: usize,
    bases: VecDeque<(Basis, Template)>,
    /// Oldest first.
    sessions: VecDeque<KeptSession>,
}

struct KeptSession {
    key: Key,
    chain: Vec<CertificateDer<'static>>,
    value: Tls13ClientSessionValue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Key {
    basis: Basis,
    server: SocketAddr,
    name: ServerName<'static>,
    alpn: Vec<u8>,
}

impl core::fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SessionStore").field("sessions", &self.len()).finish()
    }
}

impl SessionStore {
    /// Keeps up to `limit` sessions, at most 65,536; each takes a few kilobytes with its certificate.
    /// The oldest make room.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let kept = Kept { limit: limit.min(1 << 16), ..Kept::default() };
        Self { shared: Arc::new(Mutex::new(kept)) }
    }

    /// Sessions kept now, those among them that are too old and were not asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Whether nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut kept = self.lock();
        kept.sessions.clear();
        kept.bases.clear();
    }

    /// What is under the lock is whole between any two statements.
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The TLS for this trust and identity: the same objects as before, as long as they are
    /// remembered.
    pub(super) fn template(
        &self,
        basis: Basis,
        config: &ClientConfig,
    ) -> Result<Template, ConnectError> {
        let mut kept = self.lock();
        if let Some(at) = kept.bases.iter().position(|(known, _)| *known == basis)
            && let Some(found) = kept.bases.remove(at)
        {
            let template = found.1.clone();
            kept.bases.push_back(found);
            return Ok(template);
        }
        let template = Template::new(config)?;
        if kept.bases.len() == MAX_BASES
            && let Some((oldest, _)) = kept.bases.pop_front()
        {
            kept.sessions.retain(|session| session.key.basis != oldest);
        }
        kept.bases.push_back((basis, template.clone()));
        Ok(template)
    }

    /// Keeps a session that was begun under `template`, if that is still the one of its basis: under
    /// another TLS would not take it up.
    fn insert(&self, template: &Template, session: KeptSession) {
        let mut kept = self.lock();
        let is_known = kept.bases.iter().any(|(basis, known)| {
            *basis == session.key.basis && Arc::ptr_eq(&known.verifier, &template.verifier)
        });
        if kept.limit == 0 || !is_known {
            return;
        }
        let of_server = |other: &&KeptSession| other.key == session.key;
        if kept.sessions.iter().filter(of_server).count() >= MAX_PER_SERVER
            && let Some(oldest) = kept.sessions.iter().position(|other| other.key == session.key)
        {
            kept.sessions.remove(oldest);
        }
        while kept.sessions.len() >= kept.limit {
            kept.sessions.pop_front();
        }
        kept.sessions.push_back(session);
    }

    fn take(&self, key: &Key) -> Option<KeptSession> {
        let mut kept = self.lock();
        let newest = kept.sessions.iter().rposition(|session| session.key == *key)?;
        kept.sessions.remove(newest)
    }
}

/// The store as one connection sees it.
pub(super) struct StoreOf {
    store: SessionStore,
    key: Key,
    template: Template,
    clock: Arc<ToldTime>,
    /// The certificates by which the connection's server was believed, once it was.
    chain: Mutex<Vec<CertificateDer<'static>>>,
}

impl core::fmt::Debug for StoreOf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("StoreOf")
    }
}

impl StoreOf {
    pub(super) fn new(
        store: SessionStore,
        (basis, template): (Basis, Template),
        server: SocketAddr,
        name: ServerName<'static>,
        alpn: &[u8],
        clock: Arc<ToldTime>,
    ) -> Self {
        let key = Key { basis, server, name, alpn: alpn.to_vec() };
        Self { store, key, template, clock, chain: Mutex::new(Vec::new()) }
    }

    /// The server was believed by these certificates; sessions that it offers stand on them.
    pub(super) fn set_chain(&self, chain: &[CertificateDer<'static>]) {
        let mut kept = self.chain.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() && chain.iter().map(|one| one.len()).sum::<usize>() <= MAX_CHAIN {
            *kept = chain.to_vec();
        }
    }

    /// Whether the server of a session would be believed now.
    fn is_believed(&self, session: &KeptSession) -> bool {
        let Some((end_entity, intermediates)) = session.chain.split_first() else { return false };
        let (name, now) = (&self.key.name, self.clock.now());
        let judge = &self.template.verifier;
        judge.verify_server_cert(end_entity, intermediates, name, &[], now).is_ok()
    }
}

impl ClientSessionStore for StoreOf {
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
            let session = KeptSession { key: self.key.clone(), chain, value };
            self.store.insert(&self.template, session);
        }
    }

    fn take_tls13_ticket(&self, _: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let session = self.store.take(&self.key)?;
        self.is_believed(&session).then_some(session.value)
    }
}
