//! Follows the kernel's routes: a thread asks the forwarding table (FIB) for the routes to peers and
//! neighbours, and again after each change that the kernel reports. Reading needs no privileges.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bats_netlink::{Change, Monitor, Netlink};
use bats_node::{Fib, FibRoute, MAX_HOSTS, NoRoute, Plan, State, wanted, wanted_interfaces};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tokio::sync::{Notify, watch};

use super::tunnel::lock;

/// Time from a change to the look at the routes: daemons change several at once.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Time to a second look after a change other than of a route: the kernel reports that an interface goes down
/// before it removes the routes over it. The second look lists the host routes again.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// Time to a look without a reported change, and to the next attempt after an error.
const LOOK_ANYWAY: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// What the thread and the worker have in common.
struct Shared {
    wanted: Mutex<Wanted>,
    /// Wakes the thread.
    changed: OwnedFd,
}

#[derive(Default)]
struct Wanted {
    addresses: BTreeSet<IpAddr>,
    interfaces: BTreeSet<String>,
    is_over: bool,
}

/// Routes of the kernel, if the configuration has them as a source.
#[derive(Default)]
pub(super) struct Kernel {
    feed: Mutex<Option<Feed>>,
    /// Completes a wait when the kernel's routes have changed.
    pub(super) changed: Arc<Notify>,
}

impl Kernel {
    /// Starts or ends to follow the kernel.
    pub(super) fn follow(&self, follows: bool) -> io::Result<()> {
        let mut feed = lock(&self.feed);
        if !follows {
            *feed = None;
        } else if feed.is_none() {
            let started = Feed::start()?;
            let (mut fib, changed) = (started.fib.clone(), Arc::clone(&self.changed));
            tokio::spawn(async move {
                while fib.changed().await.is_ok() {
                    changed.notify_one();
                }
            });
            *feed = Some(started);
        }
        Ok(())
    }

    /// The kernel's routes that a plan needs; none if the kernel is not followed.
    pub(super) fn fib(&self, plan: &Plan, state: &State) -> Arc<Fib> {
        match &*lock(&self.feed) {
            Some(feed) => {
                feed.want(wanted(plan, state), wanted_interfaces(plan));
                feed.fib()
            }
            None => Arc::default(),
        }
    }

    /// Whether the kernel is followed.
    pub(super) fn is_followed(&self) -> bool {
        lock(&self.feed).is_some()
    }
}

/// The thread, and what it has seen. It ends when this is dropped.
struct Feed {
    shared: Arc<Shared>,
    fib: watch::Receiver<Arc<Fib>>,
}

impl Feed {
    fn start() -> io::Result<Self> {
        let changed = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { wanted: Mutex::default(), changed });
        let (sender, fib) = watch::channel(Arc::default());
        let thread = Arc::clone(&shared);
        std::thread::Builder::new().name("routes".into()).spawn(move || {
            let mut had_error = false;
            let mut logged = Logged::default();
            while let Err(error) =
                Follower::new().and_then(|mut f| f.follow(&thread, &sender, &mut logged))
            {
                if !std::mem::replace(&mut had_error, true) {
                    eprintln!("batsd: cannot read the kernel's routes: {error}; trying again");
                }
                std::thread::sleep(RETRY);
                if lock(&thread.wanted).is_over {
                    return;
                }
            }
        })?;
        Ok(Self { shared, fib })
    }

    /// Sets the addresses and interfaces that are looked up.
    fn want(&self, addresses: BTreeSet<IpAddr>, interfaces: BTreeSet<String>) {
        let mut wanted = lock(&self.shared.wanted);
        if wanted.addresses != addresses || wanted.interfaces != interfaces {
            (wanted.addresses, wanted.interfaces) = (addresses, interfaces);
            self.shared.wake();
        }
    }

    /// The latest answers.
    fn fib(&self) -> Arc<Fib> {
        Arc::clone(&self.fib.borrow())
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        lock(&self.shared.wanted).is_over = true;
        self.shared.wake();
    }
}

impl Shared {
    fn wake(&self) {
        // It fails only if the counter is full, and then the thread wakes up anyway.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }
}

/// The indexes of these interfaces, without those that do not exist.
fn indexes(interfaces: BTreeSet<String>) -> io::Result<BTreeMap<String, u32>> {
    if interfaces.is_empty() {
        return Ok(BTreeMap::new());
    }
    let socket = UnixDatagram::unbound()?;
    let index = |name: String| {
        let index = rustix::net::netdevice::name_to_index(&socket, &name).ok()?;
        Some((name, index))
    };
    Ok(interfaces.into_iter().filter_map(index).collect())
}

/// Which defects of a forwarding table have been logged: each is logged once.
#[derive(Default)]
struct Logged {
    left_out: bool,
    unreadable: bool,
}

impl Logged {
    fn log(&mut self, fib: &Fib) {
        if fib.left_out > 0 && !std::mem::replace(&mut self.left_out, true) {
            eprintln!(
                "batsd: the kernel has more than {MAX_HOSTS} host routes to addresses that are no peers: the others \
                 are left out, so this node relays to those only by static routes"
            );
        }
        if fib.unreadable > 0 && !std::mem::replace(&mut self.unreadable, true) {
            eprintln!(
                "batsd: the kernel's answers about the routes to {} addresses cannot be read: these have no route \
                 of the kernel; `batsctl routes` names those of peers",
                fib.unreadable
            );
        }
    }
}

struct Follower {
    monitor: Monitor,
    netlink: Netlink,
    /// Destinations of host routes.
    hosts: BTreeSet<Ipv4Addr>,
    /// Host routes beyond the limit.
    left_out: usize,
}

/// When to look again.
#[derive(Default)]
struct Due {
    first: Option<Instant>,
    second: Option<Instant>,
    /// Whether host routes are listed again: the kernel reports none that a link or a rule brings back.
    lists: bool,
}

impl Due {
    fn soon(&mut self, now: Instant) {
        self.first.get_or_insert(now + DEBOUNCE);
    }

    fn next(&self) -> Option<Instant> {
        self.first.into_iter().chain(self.second).min()
    }
}

impl Follower {
    fn new() -> io::Result<Self> {
        // The monitor first: what changes during the dump is reported.
        let monitor = Monitor::open()?;
        let netlink = Netlink::open()?;
        Ok(Self { monitor, netlink, hosts: BTreeSet::new(), left_out: 0 })
    }

    /// Lists the host routes. Those to peers are looked up anyway.
    fn list(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<()> {
        let is_known = |host| addresses.contains(&IpAddr::V4(host));
        let listed = self.netlink.host_routes(MAX_HOSTS, is_known)?;
        (self.hosts, self.left_out) = (listed.addresses, listed.left_out);
        Ok(())
    }

    /// Ends without an error when the feed is dropped.
    fn follow(
        &mut self,
        shared: &Shared,
        sender: &watch::Sender<Arc<Fib>>,
        logged: &mut Logged,
    ) -> io::Result<()> {
        let mut due = Due { lists: true, ..Due::default() };
        loop {
            let (addresses, interfaces) = {
                let wanted = lock(&shared.wanted);
                if wanted.is_over {
                    return Ok(());
                }
                (wanted.addresses.clone(), wanted.interfaces.clone())
            };
            let began = Instant::now();
            if std::mem::take(&mut due.lists) {
                self.list(&addresses)?;
            }
            let fib = Fib { interfaces: indexes(interfaces)?, ..self.look(&addresses)? };
            // Without an address the peers are not known yet.
            if !addresses.is_empty() {
                logged.log(&fib);
            }
            sender.send_if_modified(|last| {
                let is_new = **last != fib;
                if is_new {
                    *last = Arc::new(fib);
                }
                is_new
            });
            // However many changes the kernel reports, at least half of the time is not spent here.
            std::thread::sleep(began.elapsed().min(RETRY));
            due.first = None;
            self.wait(shared, &addresses, &mut due)?;
        }
    }

    /// Asks for all addresses.
    fn look(&mut self, addresses: &BTreeSet<IpAddr>) -> io::Result<Fib> {
        let mut fib = Fib { left_out: self.left_out, ..Fib::default() };
        for &address in addresses {
            let answer = self.netlink.route_to(address)?;
            fib.unreadable += usize::from(answer == Err(NoRoute::Unreadable));
            fib.answers.insert(address, answer);
        }
        let mut hosts = BTreeMap::new();
        let mut unreadable = BTreeSet::new();
        for &host in self.hosts.iter().filter(|host| !addresses.contains(&IpAddr::V4(**host))) {
            // A host route that is gone leaves a route of a shorter prefix, or none.
            match self.netlink.route_to(host.into())? {
                Ok(route @ FibRoute { prefix_length: 32, .. }) => {
                    hosts.insert(host, route);
                }
                Err(NoRoute::Unreadable) => {
                    unreadable.insert(host);
                }
                _ => {}
            }
        }
        self.hosts.retain(|host| {
            hosts.contains_key(host)
                || unreadable.contains(host)
                || addresses.contains(&IpAddr::V4(*host))
        });
        fib.unreadable += unreadable.len();
        fib.hosts = hosts;
        Ok(fib)
    }

    /// Waits until it is time for another look.
    fn wait(
        &mut self,
        shared: &Shared,
        addresses: &BTreeSet<IpAddr>,
        due: &mut Due,
    ) -> io::Result<()> {
        let anyway = Instant::now() + LOOK_ANYWAY;
        loop {
            let now = Instant::now();
            if due.second.is_some_and(|at| at <= now) {
                due.second = None;
                due.lists = true;
                return Ok(());
            }
            if anyway <= now {
                // Some that were left out may have room now.
                due.lists |= self.left_out > 0;
                return Ok(());
            }
            if due.first.is_some_and(|at| at <= now) {
                return Ok(());
            }
            let end = due.next().unwrap_or(anyway).min(anyway);
            let timeout = Timespec::try_from(end - now).map_err(io::Error::other)?;
            let mut ready = [
                PollFd::from_borrowed_fd(self.monitor.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(shared.changed.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !ready[1].revents().is_empty() {
                let _ = rustix::io::read(&shared.changed, &mut [0; 8]);
                due.lists |= self.left_out > 0;
                return Ok(());
            }
            for change in self.monitor.read()? {
                self.take(change, addresses, due);
            }
        }
    }

    /// Takes a change: most on a busy router concern other destinations.
    fn take(&mut self, change: Change, addresses: &BTreeSet<IpAddr>, due: &mut Due) {
        let now = Instant::now();
        match change {
            Change::HostRoute(host) => {
                // At most as many as a listing has, which also counts those that are left out.
                if self.hosts.len() < MAX_HOSTS + addresses.len() {
                    self.hosts.insert(host);
                } else if !self.hosts.contains(&host) {
                    self.left_out = self.left_out.max(1);
                }
                due.soon(now);
            }
            Change::Route(net) => {
                let within = net.network()..=net.broadcast();
                let is_host = match (net.network(), net.broadcast()) {
                    (IpAddr::V4(first), IpAddr::V4(last)) => {
                        self.hosts.range(first..=last).next().is_some()
                    }
                    _ => false,
                };
                if is_host || addresses.range(within).next().is_some() {
                    due.soon(now);
                }
            }
            Change::Link | Change::Other => {
                due.soon(now);
                due.second = Some(now + SECOND_LOOK);
            }
            Change::Lost => {
                due.lists = true;
                due.soon(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_within_five_milliseconds_cause_one_look() {
        let (mut due, start) = (Due::default(), Instant::now());
        assert_eq!(due.next(), None);
        for millis in 0..5 {
            due.soon(start + Duration::from_millis(millis));
            assert_eq!(due.next(), Some(start + Duration::from_millis(5)));
        }
        due.first = None;
        due.soon(start + Duration::from_millis(5));
        assert_eq!(due.next(), Some(start + Duration::from_millis(10)));
    }
}
