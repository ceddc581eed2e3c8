//! Nodes in network namespaces that veth pairs connect, and what the kernel and the nodes say about routes.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use bats_netlink::Netlink;
use serde_json::Value;

use crate::daemon::{Daemon, identity};
use crate::ping::Ping;
use crate::wan::run;

static NUMBER: AtomicU32 = AtomicU32::new(0);
/// Time for links and sessions to be established, and for routing daemons to find each other.
pub(crate) const START: Duration = Duration::from_secs(120);
/// Bound on the time until traffic takes a new route that both nodes have, over links and sessions that are established:
/// some milliseconds, and more on a busy host.
pub(crate) const TRAFFIC: Duration = Duration::from_secs(5);

/// Hosts 0, 1, ... have the IDs 10.255.0.1, 10.255.0.2, ... on their loopback interfaces. Pair number N of hosts
/// is connected by the interfaces "vN" with the addresses 10.1.N.(host + 1), and by a link of that name, which
/// the first host of the pair opens. The hosts do not forward IP packets, so each link has one path.
pub(crate) struct Mesh {
    hosts: Vec<String>,
    pairs: Vec<(usize, usize)>,
    /// Dropped, and so ended, before the namespaces are.
    pub(crate) daemons: Vec<Daemon>,
    pub(crate) folder: tempfile::TempDir,
}

/// The ID of a host.
pub(crate) fn id(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 255, 0, host as u8 + 1)
}

/// The address of a host on a pair of interfaces.
pub(crate) fn address(pair: usize, host: usize) -> String {
    format!("10.1.{pair}.{}", host + 1)
}

/// Waits for a condition. Returns the time.
pub(crate) fn wait_for(what: &str, limit: Duration, mut is_true: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < limit, "after {limit:?}: {what}");
        sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

impl Mesh {
    /// Makes the namespaces and interfaces, without nodes.
    pub(crate) fn new(count: usize, pairs: &[(usize, usize)]) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("batsr-{}-{number}-{host}", std::process::id());
        let hosts: Vec<String> = (0..count).map(name).collect();
        let folder = tempfile::tempdir().unwrap();
        let mesh = Self { hosts, pairs: pairs.to_vec(), daemons: Vec::new(), folder };
        for (number, name) in mesh.hosts.iter().enumerate() {
            assert!(run(Command::new("ip").args(["netns", "add", name])).status.success());
            mesh.must(number, "ip link set lo up");
            mesh.must(number, &format!("ip addr add {}/32 dev lo", id(number)));
        }
        (0..pairs.len()).for_each(|pair| mesh.connect(pair));
        mesh
    }

    /// Makes the interfaces of a pair of hosts.
    pub(crate) fn connect(&self, pair: usize) {
        let (one, other) = self.pairs[pair];
        let add = format!(
            "ip link add v{pair} netns {} type veth peer name v{pair} netns {}",
            self.hosts[one], self.hosts[other]
        );
        let output = run(Command::new("sh").args(["-c", &add]));
        assert!(output.status.success(), "{add}: {output:?}");
        for end in [one, other] {
            self.must(end, &format!("ip addr add {}/24 dev v{pair}", address(pair, end)));
            self.must(end, &format!("ip link set v{pair} up"));
        }
    }

    /// Starts a node on each host; the kernel's routes are their routes. `more` are lines of the configuration
    /// of a host, which begin in `[routes]`.
    pub(crate) fn start_nodes(&mut self, more: impl Fn(&Self, usize, &[String]) -> String) {
        let path = |host: usize, what: &str| self.folder.path().join(format!("{host}.{what}"));
        let hosts = 0..self.hosts.len();
        let prints: Vec<String> = hosts.clone().map(|host| identity(&path(host, "pem"))).collect();
        let mut daemons = Vec::new();
        for host in hosts.clone() {
            let mut text = format!(
                "[node]\nid = \"{}\"\nidentity = \"{}\"\ncontrol = \"{}\"\nrelay = true\n\
                 [tun]\naddress = [\"10.66.0.{own}/24\", \"fd66::{own}/64\"]\n",
                id(host),
                path(host, "pem").display(),
                path(host, "sock").display(),
                own = host + 1,
            );
            for (pair, &(one, other)) in self.pairs.iter().enumerate() {
                if host != one && host != other {
                    continue;
                }
                let far = one + other - host;
                text += &format!(
                    "[[link]]\nname = \"v{pair}\"\nfingerprint = \"{}\"\ntransit = true\n",
                    prints[far]
                );
                if host == one {
                    text += &format!("remote = \"{}:4900\"\n", address(pair, far));
                }
            }
            for far in hosts.clone().filter(|far| *far != host) {
                text += &format!(
                    "[[peer]]\nid = \"{}\"\nfingerprint = \"{}\"\n\
                     prefixes = [\"10.66.0.{number}\", \"fd66::{number}\"]\n",
                    id(far),
                    prints[far],
                    number = far + 1,
                );
            }
            text += "[routes]\nsource = [\"static\", \"kernel\"]\n";
            text += &more(self, host, &prints);
            std::fs::write(path(host, "toml"), text).unwrap();
            daemons.push(Daemon::start_by(
                self.command(host),
                path(host, "toml"),
                &[env!("CARGO_BIN_EXE_batsd")],
            ));
        }
        self.daemons = daemons;
        for host in hosts {
            let own = self.pairs.iter().filter(|pair| pair.0 == host || pair.1 == host).count();
            wait_for(&format!("the links of node {host}"), START, || self.links_up(host) >= own);
        }
    }

    fn links_up(&self, host: usize) -> usize {
        let socket = self.folder.path().join(format!("{host}.sock"));
        let links = batsd::control::call(&socket, "Links").unwrap();
        links["links"].as_array().unwrap().iter().filter(|link| link["state"] == "up").count()
    }

    /// Runs a command on a host.
    pub(crate) fn on(&self, host: usize, command: &str) -> Output {
        run(self.command(host).args(command.split_whitespace()))
    }

    /// Runs a command on a host, which must succeed.
    pub(crate) fn must(&self, host: usize, command: &str) {
        let output = self.on(host, command);
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// A command on a host; its program is the first argument.
    pub(crate) fn command(&self, host: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.hosts[host]]);
        command
    }

    /// The network namespace of a host.
    pub(crate) fn namespace(&self, host: usize) -> File {
        File::open(format!("/run/netns/{}", self.hosts[host])).unwrap()
    }

    /// A socket for look-ups in the routes of a host.
    pub(crate) fn netlink(&self, host: usize) -> Netlink {
        let namespace = self.namespace(host);
        let open = move || {
            rustix::thread::move_into_link_name_space(namespace.as_fd(), None).unwrap();
            Netlink::open().unwrap()
        };
        thread::spawn(open).join().unwrap()
    }

    /// The routes of a node.
    pub(crate) fn routes(&self, host: usize) -> Value {
        let socket = self.folder.path().join(format!("{host}.sock"));
        batsd::control::call(&socket, "Routes").unwrap()
    }

    /// The links over which a node sends to another one, sorted: names, or addresses of links that
    /// neighbours have opened.
    pub(crate) fn in_use(&self, host: usize, to: usize) -> Vec<String> {
        let routes = self.routes(host);
        let to = id(to).to_string();
        let route = routes["routes"].as_array().unwrap().iter().find(|route| route["to"] == to);
        let links = route.and_then(|route| route["in_use"].as_array()).cloned().unwrap_or_default();
        let name = |link: &Value| {
            let text = link.as_str().unwrap();
            text.split_once(":4").map_or(text, |(address, _)| address).to_owned()
        };
        let mut links: Vec<String> = links.iter().map(name).collect();
        links.sort();
        links
    }

    /// The reasons why a node does not use the kernel's route to another one.
    pub(crate) fn ignored(&self, host: usize, to: usize) -> Vec<Value> {
        let to = id(to).to_string();
        let routes = self.routes(host);
        let ignored = routes["ignored"].as_array().unwrap();
        ignored.iter().filter(|entry| entry["to"] == to).cloned().collect()
    }

    pub(crate) fn wait_for_links(&self, host: usize, to: usize, links: &[&str]) -> Duration {
        let what = format!("node {host} sends to node {to} over {links:?}");
        wait_for(&what, START, || self.in_use(host, to) == links)
    }

    pub(crate) fn answers(&self, host: usize, to: usize) -> bool {
        Ping::new(&format!("10.66.0.{}", to + 1)).count(self.namespace(host)) == 1
    }

    pub(crate) fn wait_for_ping(&self, host: usize, to: usize) -> Duration {
        let start = Instant::now();
        while !self.answers(host, to) {
            let state = || {
                let all = 0..self.hosts.len();
                all.map(|host| format!("{}\n", self.routes(host))).collect::<String>()
            };
            assert!(start.elapsed() < START, "no ping from {host} to {to}: {}", state());
            sleep(Duration::from_millis(10));
        }
        start.elapsed()
    }

    /// Does something, and waits until the kernel's next hop to another node is this gateway, and until the node
    /// sends over this link alone. Prints the times, and asserts that the second one is within a second; returns how
    /// long after it a ping is answered.
    pub(crate) fn moves(
        &self,
        what: &str,
        (host, to): (usize, usize),
        gateway: &str,
        link: &str,
        act: impl FnOnce(),
    ) -> Duration {
        let mut netlink = self.netlink(host);
        let gateway: IpAddr = gateway.parse().unwrap();
        let start = Instant::now();
        act();
        wait_for(&format!("{what}: the kernel's route is via {gateway}"), START, || {
            netlink.route_to(id(to).into()).unwrap().is_ok_and(|route| {
                route.hops.iter().all(|hop| hop.is_up && hop.gateway == Some(gateway))
            })
        });
        let kernel = start.elapsed();
        // The kernel has the new route for at most a millisecond.
        let event = Instant::now();
        while self.in_use(host, to) != [link] {
            let after = event.elapsed();
            let limit = Duration::from_secs(1);
            assert!(after < limit, "{what}: node {host}: {}", self.routes(host));
        }
        let node = event.elapsed();
        let ping = self.wait_for_ping(host, to);
        eprintln!(
            "{what}: the kernel's route of host {host} changed after {:.1} ms, that of the node {:.1} ms \
             later; a ping is answered after another {:.0} ms",
            kernel.as_secs_f64() * 1e3,
            node.as_secs_f64() * 1e3,
            ping.as_secs_f64() * 1e3,
        );
        ping
    }

    /// Packets that a node has forwarded.
    pub(crate) fn forwarded(&self, host: usize) -> u64 {
        let status = self.daemons[host].ctl("status").unwrap();
        status["status"]["relay"]["forwarded"].as_u64().unwrap()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.daemons.clear();
        for host in &self.hosts {
            run(Command::new("ip").args(["netns", "del", host]));
        }
    }
}
