//! Entries without a fingerprint: trust on first use. The node asks the neighbour at `remote` for its certificate and
//! records it in a file of known servers, as ssh does. Until then the entry is left out, with the routes and the
//! listeners that need it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use bats_node::{NeighbourPolicy, NodeId, PlanError};
use openbats::{Fingerprint, KnownHosts};
use toml::Spanned;

use super::{ConfigError, OTHER_POLICY, Remote, Source, interface, model, policy};

/// Fingerprints of known servers, by `remote`.
pub type Known = BTreeMap<String, [u8; 32]>;

/// A link whose neighbour has no fingerprint in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstUse {
    /// The name of the link.
    pub link: String,
    /// Where the neighbour is.
    pub(crate) remote: Remote,
    /// The local address to leave from.
    pub(crate) local: Option<IpAddr>,
    /// The only interface to leave through.
    pub(crate) interface: Option<String>,
    /// Whether its certificate is known, so that the link is in the plan.
    pub is_known: bool,
}

impl FirstUse {
    /// The name of the neighbour in the file of known servers.
    #[must_use]
    pub fn name(&self) -> String {
        self.remote.to_string()
    }
}

/// The file of known servers of a node that names none.
pub(crate) fn default_known_hosts() -> Option<PathBuf> {
    // systemd separates several folders by colons.
    let of_service = std::env::var("STATE_DIRECTORY").ok();
    let of_service = of_service.as_deref().and_then(|list| list.split(':').next());
    if let Some(folder) = of_service.map(Path::new).filter(|folder| folder.is_absolute()) {
        return Some(folder.join("known_hosts"));
    }
    // Not that of the service, which has another owner.
    if rustix::process::geteuid().is_root() {
        return Some("/etc/bats/known_hosts".into());
    }
    KnownHosts::of_user().map(|known| known.path().to_owned())
}

/// The name of the link to a peer.
pub(super) fn link_to_peer(id: &str) -> String {
    format!("peer-{id}")
}

/// Gives the entries without a fingerprint the known ones, and takes out those whose neighbour is not known, with what
/// depends on them. Returns all of them.
pub(super) fn resolve(
    source: &Source<'_>,
    file: &mut model::File,
    listen: &[SocketAddr],
    known: &Known,
) -> Result<Vec<FirstUse>, ConfigError> {
    let mut entries = Vec::new();
    let mut find =
        |link: String, remote: &Spanned<String>, local: Option<&Spanned<String>>, bound| {
            let remote = source.remote(remote)?;
            let local =
                local.map(|local| source.parse("local", local, "an IP address")).transpose()?;
            let interface = interface(source, bound, &remote, local, listen)?;
            let print = known.get(&remote.to_string()).copied();
            entries.push(FirstUse { link, remote, local, interface, is_known: print.is_some() });
            Ok::<_, ConfigError>(print)
        };
    let text = |print| format!("sha256:{}", Fingerprint(print));
    let mut links = BTreeSet::new();
    for link in &mut file.link {
        let Some(remote) = link.remote.as_ref().filter(|_| link.fingerprint.is_none()) else {
            continue;
        };
        let name = link.name.get_ref().clone();
        match find(name.clone(), remote, link.local.as_ref(), link.interface.as_ref())? {
            Some(print) => link.fingerprint = Some(Spanned::new(link.name.span(), text(print))),
            None => _ = links.insert(name),
        }
    }
    let mut peers = BTreeSet::new();
    for peer in &mut file.peer {
        let Some(remote) = peer.remote.as_ref().filter(|_| peer.fingerprint.is_none()) else {
            continue;
        };
        let id = peer.id.get_ref().clone();
        match find(link_to_peer(&id), remote, None, peer.interface.as_ref())? {
            Some(print) => peer.fingerprint = Some(Spanned::new(peer.id.span(), text(print))),
            None => _ = peers.insert(id),
        }
    }
    file.link.retain(|link| !links.contains(link.name.get_ref()));
    file.peer.retain(|peer| !peers.contains(peer.id.get_ref()));
    file.proxy.retain(|proxy| !peers.contains(proxy.exit.get_ref()));
    file.forward.retain(|forward| !peers.contains(forward.exit.get_ref()));
    for route in &mut file.routes.fixed {
        let via = &mut route.get_mut().via;
        let all = via.len();
        via.retain(|via| !links.contains(via.get_ref()));
        route.get_mut().waits = all > 0 && route.get_ref().via.is_empty();
    }
    Ok(entries)
}

/// Stands for the certificates of all neighbours without a fingerprint, so that a configuration can be checked before
/// they are known: one for each address.
pub(super) fn placeholders(file: &model::File) -> Known {
    let of_links = file.link.iter().filter(|link| link.fingerprint.is_none());
    let of_peers = file.peer.iter().filter(|peer| peer.fingerprint.is_none());
    let remotes = of_links.filter_map(|link| link.remote.as_ref());
    let remotes = remotes.chain(of_peers.filter_map(|peer| peer.remote.as_ref()));
    let remotes = remotes.filter_map(|remote| remote.get_ref().parse::<Remote>().ok());
    remotes.map(|remote| (remote.to_string(), placeholder(&remote).0)).collect()
}

/// Why the configuration cannot have some of the recorded certificates, by the names of their neighbours. Those before
/// them in the order of the names have precedence, and the fingerprints of the file have it over all. For each name only
/// what has its certificate is looked at, so the time is linear.
pub(super) fn conflicts(
    source: &Source<'_>,
    file: &model::File,
    known: &Known,
) -> Result<BTreeMap<String, ConfigError>, ConfigError> {
    let mut owners = Owners::default();
    let mut waiting = BTreeMap::<String, Entries<'_>>::new();
    for link in &file.link {
        match (&link.fingerprint, &link.remote) {
            (Some(_), _) => {
                let print = source.fingerprint(link.fingerprint.as_ref(), &link.name)?;
                owners.policies.insert(print, policy(source, link)?);
            }
            (None, Some(remote)) => {
                let name = source.remote(remote)?.to_string();
                waiting.entry(name).or_default().links.push(link);
            }
            (None, None) => {}
        }
    }
    for peer in &file.peer {
        match (&peer.fingerprint, &peer.remote) {
            (Some(_), _) => {
                let print = source.fingerprint(peer.fingerprint.as_ref(), &peer.id)?;
                owners.peers.insert(print, source.id("id", &peer.id)?);
            }
            (None, Some(remote)) => {
                let name = source.remote(remote)?.to_string();
                waiting.entry(name).or_default().peers.push(peer);
            }
            (None, None) => {}
        }
    }
    let mut refused = BTreeMap::new();
    for (name, print) in known {
        let Some(entries) = waiting.get(name) else { continue };
        if let Some(error) = owners.conflict(source, entries, print)? {
            refused.insert(name.clone(), error);
            continue;
        }
        for link in &entries.links {
            owners.policies.insert(*print, policy(source, link)?);
        }
        for peer in &entries.peers {
            owners.peers.insert(*print, source.id("id", &peer.id)?);
        }
    }
    Ok(refused)
}

/// The entries that wait for the certificate of one neighbour.
#[derive(Default)]
struct Entries<'a> {
    links: Vec<&'a model::Link>,
    peers: Vec<&'a model::Peer>,
}

/// What has a certificate: a neighbour has one policy, and a certificate is that of one peer.
#[derive(Default)]
struct Owners {
    policies: BTreeMap<[u8; 32], NeighbourPolicy>,
    peers: BTreeMap<[u8; 32], NodeId>,
}

impl Owners {
    fn conflict(
        &self,
        source: &Source<'_>,
        entries: &Entries<'_>,
        print: &[u8; 32],
    ) -> Result<Option<ConfigError>, ConfigError> {
        if let Some(owner) = self.policies.get(print) {
            for link in &entries.links {
                if policy(source, link)? != *owner {
                    return Ok(Some(source.error(Some(link.name.span()), OTHER_POLICY)));
                }
            }
        }
        if let (Some(&owner), Some(peer)) = (self.peers.get(print), entries.peers.first()) {
            let error = PlanError::SharedCertificate(owner, source.id("id", &peer.id)?);
            return Ok(Some(source.error(Some(peer.id.span()), error)));
        }
        Ok(None)
    }
}

/// The fingerprint of no certificate, for an address.
pub(crate) fn placeholder(remote: &Remote) -> Fingerprint {
    Fingerprint::of(remote.to_string().as_bytes())
}
