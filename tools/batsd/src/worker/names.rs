//! Addresses of neighbours that the configuration gives by host names.
//!
//! A name is looked up before its link is opened, and again while the neighbour does not answer: the address may have
//! changed. After an attempt that failed the next one of several addresses is tried. While the neighbour answers the
//! address stays.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bats_node::{HostLink, Plan};
use tokio::net::lookup_host;
use tokio::sync::{Notify, Semaphore};

/// Time from the answer about a name to the next look-up.
const RETRY: Duration = Duration::from_secs(2);
/// Look-ups at a time: each has a thread, as long as the resolver takes.
const LOOKUPS: usize = 16;
/// Addresses of a name that are tried.
const MAX_ADDRESSES: usize = 16;

/// A link to the address of a host, as the library sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It is left to the neighbour, which has opened one itself.
    Left,
    /// It could not be opened.
    NotOpened,
    /// The neighbour answers.
    Up,
    /// It is established, and the neighbour does not answer.
    Silent,
    /// It is dialled.
    Dialling {
        /// Attempts and connections that have ended.
        failures: u64,
    },
}

/// What is known about the host of a link.
#[derive(Debug)]
struct Entry {
    link: HostLink,
    address: Option<SocketAddr>,
    /// Whether the link was up at this address.
    was_up: bool,
    /// Failures of the link when it was last up, its end included: so many say nothing about the address.
    pardoned: u64,
    is_asking: bool,
    answered: Option<Instant>,
    error: Option<String>,
}

/// The names and their addresses.
pub(super) struct Names {
    entries: Mutex<BTreeMap<String, Entry>>,
    lookups: Semaphore,
    /// Whether the sandbox lets this process look up names.
    pub(super) can_look_up: bool,
    families: Families,
    /// An address has changed.
    pub(super) changed: Notify,
}

/// A host without an address.
pub(super) struct Unknown {
    /// Name of the link.
    pub(super) link: String,
    pub(super) host: HostLink,
    pub(super) error: Option<String>,
}

impl Names {
    /// `listen`: the addresses of the sockets that links leave from.
    pub(super) fn new(can_look_up: bool, listen: &[SocketAddr]) -> Self {
        Self {
            entries: Mutex::default(),
            lookups: Semaphore::new(LOOKUPS),
            can_look_up,
            families: Families::new(listen),
            changed: Notify::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of the host of a link.
    pub(super) fn address(&self, link: &str) -> Option<SocketAddr> {
        self.entries().get(link)?.address
    }

    /// The hosts whose addresses are not known.
    pub(super) fn unknown(&self) -> Vec<Unknown> {
        let entries = self.entries();
        let unknown = entries.iter().filter(|(_, entry)| entry.address.is_none());
        let describe = |(name, entry): (&String, &Entry)| Unknown {
            link: name.clone(),
            host: entry.link.clone(),
            error: entry.error.clone(),
        };
        unknown.map(describe).collect()
    }

    /// Takes over the names of a plan, and looks up those of links whose neighbours do not answer. `progress` is asked
    /// about links whose addresses are known.
    pub(super) fn update(
        self: &Arc<Self>,
        plan: &Plan,
        progress: impl Fn(&str, &HostLink) -> Progress,
    ) {
        let mut entries = self.entries();
        entries.retain(|name, entry| plan.hosts.get(name) == Some(&entry.link));
        for (name, link) in &plan.hosts {
            let entry = entries.entry(name.clone()).or_insert_with(|| Entry::new(link.clone()));
            let failed = match entry.address {
                None => Some(None),
                Some(address) => entry
                    .needs_answer(progress(name, link))
                    .map(|has_failed| has_failed.then_some(address)),
            };
            let is_early = entry.answered.is_some_and(|at| at.elapsed() < RETRY);
            if let Some(failed) = failed.filter(|_| !entry.is_asking && !is_early) {
                entry.is_asking = true;
                tokio::spawn(Arc::clone(self).look_up(name.clone(), link.clone(), failed));
            }
        }
    }

    /// Looks up a host. `failed`: the address that did not work.
    async fn look_up(self: Arc<Self>, name: String, link: HostLink, failed: Option<SocketAddr>) {
        let answer = {
            let _permit = self.lookups.acquire().await;
            lookup_host((link.host.as_str(), link.port)).await
        };
        let mut entries = self.entries();
        // The configuration may have changed.
        let Some(entry) = entries.get_mut(&name).filter(|entry| entry.link == link) else { return };
        let error = match answer {
            Ok(addresses) => {
                let usable = |address: &SocketAddr| self.families.fit(*address, link.local);
                let addresses: Vec<_> = addresses.filter(usable).take(MAX_ADDRESSES).collect();
                match choose(&addresses, entry.address, failed) {
                    Some(address) => {
                        if entry.address.replace(address) != Some(address) {
                            (entry.was_up, entry.pardoned) = (false, 0);
                            self.changed.notify_one();
                        }
                        None
                    }
                    None => Some(
                        "it has no address of a family that `listen` and `local` have".to_owned(),
                    ),
                }
            }
            // The address of before may still be right.
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = error.as_ref().filter(|_| error != entry.error) {
            eprintln!(
                "batsd: link {name}: cannot look up {}: {error}; it is tried again",
                link.host
            );
        }
        entry.error = error;
        entry.is_asking = false;
        entry.answered = Some(Instant::now());
    }
}

impl Entry {
    fn new(link: HostLink) -> Self {
        Self {
            link,
            address: None,
            was_up: false,
            pardoned: 0,
            is_asking: false,
            answered: None,
            error: None,
        }
    }

    /// Whether the name has to be looked up, and then, whether its address has failed.
    fn needs_answer(&mut self, progress: Progress) -> Option<bool> {
        match progress {
            Progress::Left => None,
            Progress::NotOpened => Some(true),
            Progress::Up => {
                self.was_up = true;
                None
            }
            Progress::Silent => Some(false),
            Progress::Dialling { failures } => {
                if std::mem::take(&mut self.was_up) {
                    self.pardoned = failures;
                }
                (failures > 0).then_some(failures > self.pardoned)
            }
        }
    }
}

/// The address for the next attempt: that of now, unless it is gone or has failed; then the one after it, or the
/// first.
fn choose(
    addresses: &[SocketAddr],
    now: Option<SocketAddr>,
    failed: Option<SocketAddr>,
) -> Option<SocketAddr> {
    let at = now.and_then(|now| addresses.iter().position(|address| *address == now));
    let next = at.and_then(|at| addresses.get(if failed == now { at + 1 } else { at }));
    next.or(addresses.first()).copied()
}

/// The families that the sockets of a node reach.
#[derive(Clone, Copy, Debug)]
struct Families {
    ipv4: bool,
    ipv6: bool,
}

impl Families {
    fn new(listen: &[SocketAddr]) -> Self {
        // A socket of [::] sends to both.
        let sends_ipv4 = |at: &SocketAddr| at.is_ipv4() || at.ip().is_unspecified();
        Self { ipv4: listen.iter().any(sends_ipv4), ipv6: listen.iter().any(SocketAddr::is_ipv6) }
    }

    /// Whether a link from this local address, if any, can reach an address.
    fn fit(self, address: SocketAddr, local: Option<IpAddr>) -> bool {
        let is_reached = if address.is_ipv4() { self.ipv4 } else { self.ipv6 };
        is_reached && local.is_none_or(|local| local.is_ipv4() == address.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_tried_one_after_the_other() {
        let all = ["[2001:db8::7]:4900", "192.0.2.7:4900", "192.0.2.8:4900"]
            .map(|address| address.parse().unwrap());
        let [six, seven, eight] = all;
        let after = |failed| choose(&all, failed, failed);
        assert_eq!(
            [None, Some(six), Some(seven), Some(eight)].map(after),
            [six, seven, eight, six].map(Some)
        );
        // One that did not fail stays, if it is not gone.
        assert_eq!(choose(&all, Some(eight), None), Some(eight));
        assert_eq!(choose(&all, Some("192.0.2.1:4900".parse().unwrap()), None), Some(six));
        assert_eq!(choose(&[], Some(six), Some(six)), None);
    }

    #[test]
    fn addresses_of_families_without_a_socket_are_left_out() {
        let [six, four] = ["[2001:db8::7]:4900", "192.0.2.7:4900"].map(|at| at.parse().unwrap());
        let local = Some("192.0.2.100".parse().unwrap());
        for (listen, local, expected) in [
            ("[::]:4900", None, [true, true]),
            ("[::]:4900", local, [false, true]),
            ("0.0.0.0:4900", None, [false, true]),
            ("192.0.2.100:4900", local, [false, true]),
            ("[2001:db8::1]:4900", None, [true, false]),
            ("[2001:db8::1]:4900", local, [false, false]),
        ] {
            let families = Families::new(&[listen.parse().unwrap()]);
            let fit = [six, four].map(|address| families.fit(address, local));
            assert_eq!(fit, expected, "{listen} {local:?}");
        }
    }

    #[test]
    fn an_address_that_was_up_gets_an_attempt_before_the_next_one() {
        let host = "node.example.org".to_owned();
        let mut entry =
            Entry::new(HostLink { host, port: 4_900, local: None, fingerprint: [7; 32] });
        let dialling = |failures| Progress::Dialling { failures };
        let steps = [
            (dialling(0), None),
            (dialling(1), Some(true)),
            (Progress::Up, None),
            (Progress::Silent, Some(false)),
            // Its own end, then an attempt.
            (dialling(2), Some(false)),
            (dialling(2), Some(false)),
            (dialling(3), Some(true)),
            (Progress::Left, None),
            (Progress::NotOpened, Some(true)),
        ];
        for (progress, expected) in steps {
            assert_eq!(entry.needs_answer(progress), expected, "{progress:?}");
        }
    }
}
