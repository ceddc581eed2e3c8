//! Resolves the names of neighbours' hosts. [`HostAddress`] decides when, and which address a link goes to.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bats_node::{HostAddress, HostLink, HostLinkStatus, Link, Plan};
use bats_types::Timestamp;
use openbats::resolve_host;
use tokio::sync::{Notify, Semaphore};

use crate::config::listens_at_any_ipv6;

/// Resolutions at a time: each has a thread, as long as the resolver takes.
pub(super) const RESOLUTIONS: usize = 16;

/// Finds the addresses of a host; may block.
type Resolver = fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// The host of a link.
#[derive(Debug)]
struct Entry {
    link: HostLink,
    address: HostAddress,
    error: Option<String>,
}

/// The names and their addresses.
pub(super) struct Names {
    entries: Mutex<BTreeMap<String, Entry>>,
    started: Instant,
    resolutions: Semaphore,
    resolver: Resolver,
    families: Families,
    /// Whether the sandbox lets this process resolve names.
    pub(super) can_resolve: bool,
    /// There is an answer.
    pub(super) answered: Notify,
}

/// A host of the configuration, for people.
pub(super) struct Named {
    pub(super) link: HostLink,
    pub(super) address: Option<SocketAddr>,
    /// Why the last resolution failed.
    pub(super) error: Option<String>,
}

impl Names {
    /// `listen`: the addresses of the sockets that links leave from.
    pub(super) fn new(can_resolve: bool, listen: &[SocketAddr]) -> Self {
        Self {
            entries: Mutex::default(),
            started: Instant::now(),
            resolutions: Semaphore::new(RESOLUTIONS),
            resolver: resolve_host,
            families: Families::new(listen),
            can_resolve,
            answered: Notify::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.started.elapsed()
    }

    /// Whether the sockets of the node reach the neighbour of a link over its interface.
    pub(super) fn reach_over_interface(&self, link: &Link) -> bool {
        self.families.fit(link.remote, None, link.interface.is_some())
    }

    /// The address of the host of a link.
    pub(super) fn address(&self, link: &str) -> Option<SocketAddr> {
        self.entries().get(link)?.address.current()
    }

    /// The hosts, by the names of their links.
    pub(super) fn list(&self) -> BTreeMap<String, Named> {
        let describe = |(name, entry): (&String, &Entry)| {
            let error = entry.error.as_ref();
            let error =
                error.map(|error| format!("cannot resolve {}: {error}", entry.link.host.name));
            let address = entry.address.current();
            (name.clone(), Named { link: entry.link.clone(), address, error })
        };
        self.entries().iter().map(describe).collect()
    }

    /// Takes over the names of a plan, chooses their addresses, and resolves what is due. `present` is the address of an
    /// open link with this name and neighbour, and `status` what that link does.
    pub(super) fn update(
        self: &Arc<Self>,
        plan: &Plan,
        present: impl Fn(&str, &HostLink) -> Option<SocketAddr>,
        status: impl Fn(&str) -> Option<HostLinkStatus>,
    ) {
        let now = self.now();
        let mut entries = self.entries();
        entries.retain(|name, entry| plan.hosts.get(name) == Some(&entry.link));
        for (name, link) in &plan.hosts {
            let entry = entries.entry(name.clone()).or_insert_with(|| Entry {
                link: link.clone(),
                address: HostAddress::new(present(name, link)),
                error: None,
            });
            if entry.address.observe(now, status(name)) {
                tokio::spawn(Arc::clone(self).resolve(name.clone(), link.clone()));
            }
        }
    }

    async fn resolve(self: Arc<Self>, name: String, link: HostLink) {
        let answer = {
            let _permit = self.resolutions.acquire().await;
            let (resolver, host) = (self.resolver, link.host.clone());
            // `spawn_blocking` panics if the system has no thread for it. The name must be resolved again then.
            let resolves = async move {
                tokio::task::spawn_blocking(move || resolver(&host.name, host.port)).await
            };
            tokio::spawn(resolves).await.flatten()
        };
        let mut addresses = match answer {
            Ok(Ok(addresses)) => Ok(addresses),
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Ok(all) = &mut addresses {
            let is_bound = link.interface.is_some();
            all.retain(|address| self.families.fit(*address, link.local, is_bound));
            if all.is_empty() {
                let what = "it has no address of a family that `listen` and `local` have";
                let more = if is_bound { "; IPv6 over an interface needs [::] there" } else { "" };
                addresses = Err(format!("{what}{more}"));
            }
        }
        let mut entries = self.entries();
        // The configuration may have changed.
        let Some(entry) = entries.get_mut(&name).filter(|entry| entry.link == link) else { return };
        let (addresses, error) = match addresses {
            Ok(addresses) => (addresses, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if let Some(error) = error.as_ref().filter(|_| error != entry.error) {
            eprintln!("batsd: link {name}: cannot resolve {}: {error}", link.host.name);
        }
        entry.error = error;
        entry.address.answer(self.now(), addresses);
        self.answered.notify_one();
    }
}

/// The families that the sockets of a node reach.
#[derive(Clone, Copy, Debug)]
struct Families {
    ipv4: bool,
    ipv6: bool,
    ipv6_over_interface: bool,
}

impl Families {
    fn new(listen: &[SocketAddr]) -> Self {
        // A socket of [::] sends to both.
        let sends_ipv4 = |at: &SocketAddr| at.is_ipv4() || at.ip().is_unspecified();
        Self {
            ipv4: listen.iter().any(sends_ipv4),
            ipv6: listen.iter().any(SocketAddr::is_ipv6),
            ipv6_over_interface: listens_at_any_ipv6(listen),
        }
    }

    /// Whether a link from this local address, if any, and bound to an interface or not, can reach an address.
    fn fit(self, address: SocketAddr, local: Option<IpAddr>, is_bound: bool) -> bool {
        let is_reached = match address.is_ipv4() {
            true => self.ipv4,
            false if is_bound => self.ipv6_over_interface,
            false => self.ipv6,
        };
        is_reached && local.is_none_or(|local| local.is_ipv4() == address.is_ipv4())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::thread::sleep;
    use std::time::Duration;

    use bats_node::{HostName, NodeId};

    use super::*;

    #[test]
    fn sixteen_names_are_resolved_at_a_time_and_in_the_end_all() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        static MAY_ANSWER: AtomicBool = AtomicBool::new(false);
        const NAMES: usize = 100;
        fn resolve(_: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
            ASKED.fetch_add(1, SeqCst);
            while !MAY_ANSWER.load(SeqCst) {
                sleep(Duration::from_millis(1));
            }
            Ok(vec![([192, 0, 2, 7], port).into()])
        }
        let names = Names::new(true, &["0.0.0.0:4900".parse().unwrap()]);
        let names = Arc::new(Names { resolver: resolve, ..names });
        let mut plan = Plan::new(NodeId([10, 255, 0, 1].into()), [1; 32]);
        for number in 0..NAMES {
            let host = HostName { name: format!("host{number}.example"), port: 4900 };
            let link = HostLink { host, local: None, interface: None, fingerprint: [2; 32] };
            plan.hosts.insert(format!("link{number}"), link);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            names.update(&plan, |_, _| None, |_| None);
            let limit = Instant::now() + Duration::from_secs(30);
            let pause = || tokio::time::sleep(Duration::from_millis(5));
            while ASKED.load(SeqCst) < 16 && Instant::now() < limit {
                pause().await;
            }
            // Without the limit the others have threads, too.
            for _ in 0..20 {
                pause().await;
            }
            let asked = ASKED.load(SeqCst);
            // The runtime waits for these threads, also if the test has failed.
            MAY_ANSWER.store(true, SeqCst);
            assert_eq!(asked, 16);
            let is_known = |number| names.address(&format!("link{number}")).is_some();
            while !(0..NAMES).all(is_known) {
                assert!(Instant::now() < limit, "{} were asked", ASKED.load(SeqCst));
                pause().await;
                names.update(&plan, |_, _| None, |_| None);
            }
            assert_eq!(ASKED.load(SeqCst), NAMES);
        });
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
            let fit = [six, four].map(|address| families.fit(address, local, false));
            assert_eq!(fit, expected, "{listen} {local:?}");
            let over_interface = [expected[0] && listen.starts_with("[::]"), expected[1]];
            let fit = [six, four].map(|address| families.fit(address, local, true));
            assert_eq!(fit, over_interface, "{listen} {local:?}");
        }
    }
}
