//! The node (`batsd`) as a protocol: a daemon on every host, to whose addresses in the tunnel tools
//! connect, or to ports that the daemon forwards.

use std::fmt::Write as _;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::programs::BATSD;
use crate::interrupt;
use crate::plan::Network;
use crate::topology::{self, End, Shape};

/// Maximum time until all sessions are open.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Default port of batsd.
const PORT: u16 = 4900;

/// The address of a host in the tunnel.
pub(crate) fn address(host: u32) -> Ipv4Addr {
    let [_, _, high, low] = (host + 1).to_be_bytes();
    Ipv4Addr::new(10, 66, high, low)
}

/// The ID of the node on a host.
fn id(host: u32) -> Ipv4Addr {
    let [_, _, high, low] = (host + 1).to_be_bytes();
    Ipv4Addr::new(10, 255, high, low)
}

/// A port of the client's loopback address that leads to the same port of the server.
pub(crate) struct Forward {
    pub(crate) client: u32,
    pub(crate) server: u32,
    pub(crate) port: u16,
}

/// What the daemons do.
pub(crate) struct NodePlan {
    /// Hosts between which flows run; all others are relays.
    pub(crate) ends: Vec<u32>,
    /// Each link of the network is a link of its two hosts, and packets are relayed on all shortest paths at
    /// once. Otherwise there is a link between each pair of `ends`.
    pub(crate) relays: bool,
    /// Whether the ends have addresses in the tunnel.
    pub(crate) has_tun: bool,
    pub(crate) forwards: Vec<Forward>,
}

/// The files of the daemons of all hosts. They hold keys and are deleted with this value.
pub(crate) struct NodeFiles {
    folder: tempfile::TempDir,
    batsctl: PathBuf,
    hosts: u32,
    plan: NodePlan,
}

impl NodeFiles {
    /// Makes an identity and a configuration for each host.
    ///
    /// # Errors
    /// A file cannot be written, or batsctl fails.
    pub(crate) fn write(network: &Network, plan: NodePlan, batsctl: &Path) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a folder for the files of nodes")?;
        let files = Self { folder, batsctl: batsctl.to_owned(), hosts: network.nodes, plan };
        let prints: Vec<String> =
            (0..files.hosts).map(|host| files.make_identity(host)).collect::<Result<_>>()?;
        for host in 0..files.hosts {
            let text = files.configuration(network, host, &prints);
            let path = files.path(host, "toml");
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(files)
    }

    fn path(&self, host: u32, extension: &str) -> PathBuf {
        self.folder.path().join(format!("{host}.{extension}"))
    }

    /// Returns the fingerprint.
    fn make_identity(&self, host: u32) -> Result<String> {
        let mut command = Command::new(&self.batsctl);
        command.arg("keygen").arg(self.path(host, "pem"));
        Ok(run(&mut command)?.trim().to_owned())
    }

    fn configuration(&self, network: &Network, host: u32, prints: &[String]) -> String {
        let (mut peers, mut links, mut routes) = (String::new(), String::new(), Vec::new());
        let NodePlan { ends, relays, has_tun, forwards } = &self.plan;
        let relays = *relays;
        let is_end = ends.contains(&host);
        let shape = Shape::mesh(network.nodes, network.edges.clone());
        let print = |other: u32| prints.get(other as usize).map_or("", String::as_str);
        for &other in ends.iter().filter(|&&other| other != host) {
            if is_end {
                let _ = writeln!(
                    peers,
                    "[[peer]]\nid = \"{}\"\nfingerprint = \"{}\"",
                    id(other),
                    print(other)
                );
                if *has_tun {
                    let _ = writeln!(peers, "prefixes = [\"{}\"]", address(other));
                }
                // One of two dials.
                if !relays && host < other {
                    let to = shape.address_of(other);
                    let _ = writeln!(peers, "remote = \"{to}:{PORT}\"");
                }
            }
            let first = network.first_links(host, other);
            if relays && !first.is_empty() {
                let via: Vec<String> = first.iter().map(|edge| format!("\"link{edge}\"")).collect();
                routes.push(format!("{{ to = \"{}\", via = [{}] }}", id(other), via.join(", ")));
            }
        }
        for (edge, &(left, right)) in network.edges.iter().enumerate().filter(|_| relays) {
            let (other, remote) = if left == host {
                let to = topology::address(edge as u32 + 1, End::Right);
                (right, format!("remote = \"{to}:{PORT}\"\n"))
            } else if right == host {
                (left, String::new())
            } else {
                continue;
            };
            let _ = write!(
                links,
                "[[link]]\nname = \"link{edge}\"\nfingerprint = \"{}\"\ntransit = true\n{remote}",
                print(other)
            );
        }
        let folder = self.folder.path().display();
        let mut text = format!(
            "[node]\nid = \"{}\"\nidentity = \"{folder}/{host}.pem\"\n\
             control = \"{folder}/{host}.sock\"\nrelay = {relays}\n",
            id(host)
        );
        if is_end && *has_tun {
            let _ = writeln!(text, "[tun]\naddress = [\"{}/16\"]", address(host));
        }
        let allowed: Vec<String> = forwards
            .iter()
            .filter(|one| one.server == host)
            .map(|one| format!("\"{}:{}\"", Ipv4Addr::LOCALHOST, one.port))
            .collect();
        if !allowed.is_empty() {
            let _ = writeln!(text, "[exit]\nallow = [{}]", allowed.join(", "));
        }
        if !routes.is_empty() {
            let _ = writeln!(text, "[routes]\nstatic = [{}]", routes.join(", "));
        }
        for one in forwards.iter().filter(|one| one.client == host) {
            let (exit, local) = (id(one.server), format!("{}:{}", Ipv4Addr::LOCALHOST, one.port));
            let _ = writeln!(
                peers,
                "[[forward]]\nlisten = \"{local}\"\nexit = \"{exit}\"\nto = \"{local}\""
            );
        }
        text + &links + &peers
    }

    /// The hosts that run a daemon, and its command line.
    pub(crate) fn commands(&self) -> impl Iterator<Item = (u32, Vec<String>)> + '_ {
        (0..self.hosts).map(|host| {
            let config = self.path(host, "toml").to_string_lossy().into_owned();
            (host, vec![BATSD.to_owned(), "--config".to_owned(), config])
        })
    }

    /// Waits until all sessions are open.
    ///
    /// # Errors
    /// They are not in time; the error has the findings of `batsctl doctor`.
    pub(crate) fn wait_until_open(&self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        for &end in &self.plan.ends {
            while !self.is_open(end) {
                if Instant::now() > deadline {
                    bail!("the sessions of node {end} are not open:\n{}", self.findings());
                }
                interrupt::check()?;
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        Ok(())
    }

    fn control(&self, host: u32, words: &[&str]) -> Command {
        let mut command = Command::new(&self.batsctl);
        command.arg("--config").arg(self.path(host, "toml")).args(words);
        command
    }

    #[deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )]
    fn is_open(&self, host: u32) -> bool {
        let Ok(text) = run(&mut self.control(host, &["--json", "peers"])) else { return false };
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let is_open =
            |peer: &serde_json::Value, of: &str| peer.get(of).is_some_and(|is| is == "open");
        answer.get("peers").and_then(serde_json::Value::as_array).is_some_and(|peers| {
            Some(peers.len()) == self.plan.ends.len().checked_sub(1)
                && peers.iter().all(|peer| is_open(peer, "stream") && is_open(peer, "datagram"))
        })
    }

    fn findings(&self) -> String {
        let mut text = String::new();
        for host in 0..self.hosts {
            let output = self.control(host, &["doctor"]).stdin(Stdio::null()).output();
            let found = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
            let _ = writeln!(text, "node {host}:\n{}", found.unwrap_or_default());
        }
        text
    }
}

fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_the_tunnel_differ_for_all_hosts_of_a_large_network() {
        let all: std::collections::BTreeSet<Ipv4Addr> = (0..1_000).map(address).collect();
        assert_eq!(all.len(), 1_000);
        assert_eq!((address(0), address(255)), ([10, 66, 0, 1].into(), [10, 66, 1, 0].into()));
        assert_eq!(id(254), Ipv4Addr::new(10, 255, 0, 255));
    }
}
