//! The neighbours whose certificates are those of their first use: reports about them to the owner of the node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use openbats::CloseReason;

use crate::config::{Config, FirstUse};

/// A neighbour without a fingerprint in the configuration.
struct Entry {
    link: FirstUse,
    /// The problem that was reported last.
    reported: Option<String>,
}

#[derive(Default)]
struct State {
    path: PathBuf,
    entries: BTreeMap<String, Entry>,
}

/// The neighbours without a fingerprint in the configuration, by the names of their links.
#[derive(Default)]
pub(super) struct Recorded(Mutex<State>);

impl Recorded {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, config: &Config) {
        let mut state = self.lock();
        let mut old = std::mem::take(&mut state.entries);
        state.path = config.known_hosts.clone().unwrap_or_default();
        for link in &config.first_use {
            let known = old.remove(&link.link).filter(|entry| entry.link == *link);
            let entry = known.unwrap_or_else(|| Entry { link: link.clone(), reported: None });
            state.entries.insert(link.link.clone(), entry);
        }
    }

    /// Whether the fingerprint of a link is that of the first use.
    pub(super) fn has(&self, link: &str) -> bool {
        self.lock().entries.contains_key(link)
    }

    /// What to do about the failed handshake of a link, if its certificate may have changed.
    pub(super) fn advice(&self, link: &str, reason: &CloseReason) -> Option<String> {
        let state = self.lock();
        let entry = state.entries.get(link)?;
        // As `describe_tls_error` says it of this end.
        let is_other = matches!(reason, CloseReason::Handshake(text)
            if text.starts_with("the client does not trust the certificate of this server"));
        is_other.then(|| {
            format!(
                "the certificate has changed since the first use: either someone intercepts the link, or the \
                 neighbour has a new one. If batsd there prints it, remove the line of {} from {} and reload",
                entry.link.name(),
                state.path.display()
            )
        })
    }

    /// Reports a problem of a link once.
    pub(super) fn report(&self, link: &str, reason: &CloseReason) {
        let Some(advice) = self.advice(link, reason) else { return };
        let advice = format!("{reason}; {advice}");
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(link) else { return };
        if entry.reported.as_ref() != Some(&advice) {
            eprintln!("batsd: link {link}: {advice}");
            entry.reported = Some(advice);
        }
    }

    /// The links that wait for a certificate.
    pub(super) fn waiting(&self) -> Vec<FirstUse> {
        let state = self.lock();
        let entries = state.entries.values().map(|entry| &entry.link);
        entries.filter(|link| !link.is_known).cloned().collect()
    }
}
