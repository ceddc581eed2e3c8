//! The configuration file: parsed strictly, with errors that name the line, the key and what to do.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

mod error;
mod first_use;
mod model;
#[cfg(test)]
pub(crate) mod passes;
mod remote;
mod services;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::{Path, PathBuf};

use bats_node::{Hop, NeighbourPolicy, NodeId, Peer, Plan, PlanError};
use ipnet::IpNet;
use openbats::Fingerprint;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use crate::limited_file;
use crate::proxy::allow::AllowList;

pub use error::ConfigError;
pub use first_use::{FirstUse, Known};
pub(crate) use first_use::{default_known_hosts, placeholder};
pub(crate) use remote::{Remote, WANTED as WANTED_REMOTE, listens_at_any_ipv6};
pub use services::{Listener, MAX_LISTENERS, Service};
pub(crate) use share::SERVICE_USER;
pub(crate) use share::new_identity;
pub use share::{generate_identity, share};

/// Default path of the configuration (`--config`).
pub const DEFAULT_PATH: &str = "/etc/bats/batsd.toml";
/// Default path of the identity, also for `batsctl keygen`.
pub const DEFAULT_IDENTITY: &str = "/etc/bats/node.pem";
/// Default port of links (`listen`).
pub const DEFAULT_PORT: u16 = 4900;
/// Largest configuration file: 1,024 peers with 16 prefixes each are 200 KB.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of peers: each has two sessions and two queues.
pub const MAX_PEERS: usize = 1_024;
/// Smallest MTU of IPv6 (RFC 8200 section 5).
const MIN_MTU: u32 = 1_280;

/// The transport mode of each kind of packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TunMode {
    /// TCP in BRTP, the rest in BTP.
    Auto,
    /// Everything in BRTP: reliable, in order.
    Brtp,
    /// Everything in BTP: messages with a deadline.
    Btp,
}

/// The TUN device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunConfig {
    /// Name of the interface.
    pub name: String,
    /// Addresses with the length of their networks.
    pub addresses: Vec<IpNet>,
    /// MTU in bytes.
    pub mtu: u32,
    /// Transport mode.
    pub mode: TunMode,
    /// Whether the kernel may leave segmentation and checksums to the far end.
    pub offload: bool,
    /// Whether neighbours exchange packets with link-local addresses.
    pub link_local: bool,
}

/// User and group of this name in /etc/passwd.
pub(crate) fn find_user(name: &str) -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut lines = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields.first() == Some(&name))?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// The control socket of a daemon whose configuration names none.
#[must_use]
pub fn default_control() -> PathBuf {
    let is_root = rustix::process::geteuid().is_root();
    let run = std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !is_root);
    run.map_or("/run".into(), PathBuf::from).join("bats/control")
}

/// A configuration that was checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// PEM file with the certificate and the key.
    pub identity: PathBuf,
    /// File with the pre-shared key of PSK mode.
    pub preshared_key: Option<PathBuf>,
    /// UDP addresses of links.
    pub listen: Vec<SocketAddr>,
    /// Whether the node forwards packets of neighbours with `transit` to other nodes.
    pub relay: bool,
    /// Path of the control socket.
    pub control: PathBuf,
    /// File with the certificates of neighbours that have no fingerprint in the configuration; `None` if there is no
    /// folder for it.
    pub known_hosts: Option<PathBuf>,
    /// The links of such neighbours. Those that are not known are not in the plan, nor is what needs them.
    pub first_use: Vec<FirstUse>,
    /// User of the worker, if the keeper runs as root.
    pub user: Option<String>,
    /// The TUN device.
    pub tun: Option<TunConfig>,
    /// ID, links, neighbours, peers and routes. The fingerprint is that of the identity, once that
    /// is read.
    pub plan: Plan,
    /// Whether routes of the kernel are routes of the node.
    pub follows_kernel: bool,
    /// Peers that may ask this node for speed tests.
    pub speedtest: BTreeSet<NodeId>,
    /// Listeners for programs: SOCKS5, HTTP CONNECT and forwards.
    pub listeners: Vec<Listener>,
    /// The destinations that this node serves as an exit, if it is one.
    pub exit: Option<AllowList>,
}

/// Data to compute the position of a value.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// Parses the text, without checks of the values.
    fn file(&self) -> Result<model::File, ConfigError> {
        #[cfg(test)]
        passes::add();
        toml::from_str(self.text)
            .map_err(|error| self.error(error.span(), explain(error.message())))
    }

    /// Parses the text, and checks what will hold whatever certificates neighbours have.
    fn checked_file(&self) -> Result<model::File, ConfigError> {
        let file = self.file()?;
        // What waits for a certificate must not be wrong, either.
        let all = first_use::placeholders(&file);
        if !all.is_empty() {
            Config::of_file(self, file.clone(), &all)?;
        }
        Ok(file)
    }

    fn error(&self, span: Option<Range<usize>>, text: impl fmt::Display) -> ConfigError {
        let before = span.and_then(|span| self.text.get(..span.start));
        ConfigError {
            path: self.path.to_owned(),
            line: before.map(|text| text.split('\n').count()),
            text: text.to_string(),
        }
    }

    /// Parses a string value; `wanted` says what it must be.
    fn parse<T: std::str::FromStr>(
        &self,
        key: &str,
        value: &Spanned<String>,
        wanted: &str,
    ) -> Result<T, ConfigError> {
        let text = value.get_ref();
        text.parse().map_err(|_| {
            self.error(Some(value.span()), format!("{key} = \"{text}\" is not {wanted}"))
        })
    }

    /// The fingerprint of an entry. One without, which has a `remote`, has got a known one or was taken out.
    fn fingerprint(
        &self,
        value: Option<&Spanned<String>>,
        entry: &Spanned<String>,
    ) -> Result<[u8; 32], ConfigError> {
        let Some(value) = value else {
            let text = "has no fingerprint: only a neighbour with remote, to which this node opens the link, can \
                        be asked for it at the first use; `batsd share` on that host prints it";
            return Err(self.error(Some(entry.span()), format!("{} {text}", entry.get_ref())));
        };
        let text = value.get_ref();
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        digits.parse::<Fingerprint>().map(|print| print.0).map_err(|_| {
            let advice = "is not 64 hexadecimal digits after \"sha256:\"; `batsd share` on that host prints it";
            self.error(Some(value.span()), format!("fingerprint = \"{text}\" {advice}"))
        })
    }

    /// Bits per second.
    fn rate(&self, value: &Spanned<String>) -> Result<NonZeroU64, ConfigError> {
        let text = value.get_ref();
        let units = [("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1.0)];
        let bits = units.iter().find_map(|(unit, factor)| {
            let number = text.strip_suffix(unit)?.trim_end().parse::<f64>().ok()?;
            (number.is_finite() && number >= 0.0).then_some(number * factor)
        });
        bits.and_then(|bits| NonZeroU64::new(bits as u64)).ok_or_else(|| {
            let advice = "is no rate above 0, such as \"20 Mbit/s\" or \"500 kbit/s\"";
            self.error(Some(value.span()), format!("rate = \"{text}\" {advice}"))
        })
    }

    fn socket(&self, key: &str, value: &Spanned<String>) -> Result<SocketAddr, ConfigError> {
        self.parse(
            key,
            value,
            "an IP address with a port, such as \"192.0.2.7:4900\" or \"[::]:4900\"",
        )
    }

    fn remote(&self, value: &Spanned<String>) -> Result<Remote, ConfigError> {
        self.parse("remote", value, WANTED_REMOTE)
    }

    fn id(&self, key: &str, value: &Spanned<String>) -> Result<NodeId, ConfigError> {
        let wanted =
            "an IPv4 address, such as \"10.255.0.1\": node IDs are written like router IDs";
        let id: Ipv4Addr = self.parse(key, value, wanted)?;
        if id.is_unspecified() {
            return Err(self.error(Some(value.span()), "0.0.0.0 is no node ID: use another one"));
        }
        if id.is_multicast() {
            let text = format!("{id} is the ID of a group: use one outside of 224.0.0.0/4");
            return Err(self.error(Some(value.span()), &text));
        }
        Ok(NodeId(id))
    }
}

impl Config {
    /// Whether the worker resolves names: as an exit, or those of neighbours.
    pub(crate) fn has_names(&self) -> bool {
        let is_host = |entry: &FirstUse| matches!(entry.remote, Remote::Host(_));
        self.exit.is_some() || !self.plan.hosts.is_empty() || self.first_use.iter().any(is_host)
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not a valid configuration.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(path, &Self::read_text(path)?)
    }

    /// Reads the text of a file for [`parse`](Self::parse).
    ///
    /// # Errors
    /// The file cannot be read, or is longer than 1 MiB.
    pub(crate) fn read_text(path: &Path) -> Result<String, ConfigError> {
        let error = |text: String| ConfigError { path: path.to_owned(), line: None, text };
        limited_file::read_text(path, MAX_FILE)
            .map_err(|cause| error(format!("cannot read it: {cause}")))?
            .ok_or_else(|| {
                error(format!("it is longer than the {MAX_FILE} bytes of a configuration"))
            })
    }

    /// As [`parse`](Self::parse), for a text that was made from options or from a file of the original: the lines of
    /// this text are in no file, so errors have none.
    ///
    /// # Errors
    /// It is not a valid configuration.
    pub(crate) fn parse_translated(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse(path, text).map_err(|error| ConfigError { line: None, ..error })
    }

    /// Checks the text of a file. No neighbour is known by a first use.
    ///
    /// # Errors
    /// It is not a valid configuration.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        Self::parse_with(path, text, &Known::new())
    }

    /// As [`parse`](Self::parse), with the certificates of neighbours that have no fingerprint in the text.
    ///
    /// # Errors
    /// It is not a valid configuration.
    pub fn parse_with(path: &Path, text: &str, known: &Known) -> Result<Self, ConfigError> {
        let source = Source { path, text };
        let file = source.checked_file()?;
        Self::of_file(&source, file, known)
    }

    /// As [`parse_with`](Self::parse_with), with those certificates that the configuration can have, which are returned.
    /// The others are returned with the reason.
    ///
    /// # Errors
    /// It is not a valid configuration, whatever the certificates are.
    pub(crate) fn parse_with_usable(
        path: &Path,
        text: &str,
        mut known: Known,
    ) -> Result<(Self, Known, BTreeMap<String, ConfigError>), ConfigError> {
        let source = Source { path, text };
        let file = source.checked_file()?;
        let refused = first_use::conflicts(&source, &file, &known)?;
        known.retain(|name, _| !refused.contains_key(name));
        match Self::of_file(&source, file.clone(), &known) {
            Ok(config) => Ok((config, known, refused)),
            // A conflict that the search does not know: without the certificates the node starts all the same.
            Err(error) => {
                let config = Self::of_file(&source, file, &Known::new())?;
                let names = known.into_keys().map(|name| (name, error.clone()));
                Ok((config, Known::new(), refused.into_iter().chain(names).collect()))
            }
        }
    }

    fn of_file(
        source: &Source<'_>,
        mut file: model::File,
        known: &Known,
    ) -> Result<Self, ConfigError> {
        #[cfg(test)]
        passes::add();
        let listen = listen(source, &file.node)?;
        let first_use = first_use::resolve(source, &mut file, &listen, known)?;
        let id = source.id("id", &file.node.id)?;
        let mut plan = Plan::new(id, [0; 32]);
        let follows_kernel = follows_kernel(source, &file)?;
        links(source, &file, &listen, &mut plan)?;
        peers(source, &file, &listen, &mut plan, follows_kernel)?;
        plan.check().map_err(|error| {
            let span = match &error {
                PlanError::OwnId(id) | PlanError::SharedCertificate(_, id) => span_of(&file, *id),
                PlanError::Prefix(conflict) => span_of(&file, conflict.nodes.1),
                _ => None,
            };
            source.error(span, error)
        })?;
        let own = Path::new;
        Ok(Self {
            identity: own(file.node.identity.as_deref().unwrap_or(DEFAULT_IDENTITY)).to_owned(),
            preshared_key: file.node.preshared_key.as_deref().map(|path| own(path).to_owned()),
            listen,
            relay: file.node.relay,
            control: file.node.control.as_ref().map_or_else(default_control, PathBuf::from),
            known_hosts: (file.node.known_hosts.as_ref().map(PathBuf::from))
                .or_else(first_use::default_known_hosts),
            first_use,
            user: file.node.user.as_ref().map(|user| user.get_ref().clone()),
            tun: file.tun.as_ref().map(|tun| device(source, tun)).transpose()?,
            speedtest: file
                .peer
                .iter()
                .filter(|peer| peer.speedtest)
                .map(|peer| source.id("id", &peer.id))
                .collect::<Result<_, _>>()?,
            listeners: services::listeners(source, &file, &plan)?,
            exit: file.exit.as_ref().map(|exit| services::exit(source, exit)).transpose()?,
            plan,
            follows_kernel,
        })
    }
}

/// The addresses of the node's sockets.
fn listen(source: &Source<'_>, node: &model::Node) -> Result<Vec<SocketAddr>, ConfigError> {
    let Some(addresses) = &node.listen else {
        return Ok(vec![SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), DEFAULT_PORT)]);
    };
    if addresses.is_empty() {
        let text = "listen = [] names no address: leave the key out or name one";
        return Err(source.error(None, text));
    }
    addresses.iter().map(|address| source.socket("listen", address)).collect()
}

/// The position of the peer with this ID.
fn span_of(file: &model::File, id: NodeId) -> Option<Range<usize>> {
    let text = id.to_string();
    file.peer.iter().find(|peer| *peer.id.get_ref() == text).map(|peer| peer.id.span())
}

/// A TOML string in single quotes, which has no escapes.
///
/// # Errors
/// The text cannot be written as one.
pub(crate) fn quoted(text: &str) -> anyhow::Result<String> {
    if text.chars().any(|c| c.is_control() || c == '\'') {
        anyhow::bail!("{text:?} has a quote or a control character");
    }
    Ok(format!("'{text}'"))
}

/// Adds "did you mean" to the parser's message on an unknown key.
fn explain(message: &str) -> String {
    let mut quoted = message.split('`').skip(1).step_by(2);
    let Some(unknown) = quoted.next().filter(|_| message.starts_with("unknown field")) else {
        return message.to_owned();
    };
    let distance = |known: &&str| strsim::damerau_levenshtein(unknown, known);
    // Two edits change the length by two characters at most. A key may have the size of a file, and
    // the distance takes time and memory for each pair of their characters.
    let is_near = |known: &&str| known.chars().count().abs_diff(unknown.chars().count()) <= 2;
    let nearest = quoted.filter(is_near).min_by_key(distance).filter(|known| distance(known) <= 2);
    let advice = nearest.map_or(String::new(), |known| format!("; did you mean `{known}`?"));
    format!("{}{advice}", message.replace("unknown field", "unknown key"))
}

/// Whether this is a good name of a link.
pub(crate) fn is_link_name(name: &str) -> bool {
    (1..=32).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// Whether this is a good name of an interface (IFNAMSIZ without the final zero).
pub(crate) fn is_interface_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

const OTHER_POLICY: &str =
    "two links with this neighbour disagree about transit or rate: a neighbour has one policy";

/// What the node forwards for the neighbour of a link.
fn policy(source: &Source<'_>, link: &model::Link) -> Result<NeighbourPolicy, ConfigError> {
    let rate = link.rate.as_ref().map(|rate| source.rate(rate)).transpose()?;
    Ok(NeighbourPolicy { transit: link.transit, rate })
}

fn links(
    source: &Source<'_>,
    file: &model::File,
    listen: &[SocketAddr],
    plan: &mut Plan,
) -> Result<(), ConfigError> {
    let mut names = BTreeSet::new();
    for link in &file.link {
        let name = link.name.get_ref();
        if !is_link_name(name) {
            let text = format!(
                "name = \"{name}\" is no name of a link: use 1 to 32 letters, digits, - _ ."
            );
            return Err(source.error(Some(link.name.span()), text));
        }
        if !names.insert(name) {
            let text = format!("there are two links of the name \"{name}\": rename one");
            return Err(source.error(Some(link.name.span()), text));
        }
        let fingerprint = source.fingerprint(link.fingerprint.as_ref(), &link.name)?;
        let wanted = policy(source, link)?;
        if let Some(rate) = link.rate.as_ref().filter(|_| !link.transit) {
            let text = "rate limits what is forwarded for the neighbour: it needs transit = true";
            return Err(source.error(Some(rate.span()), text));
        }
        if *plan.neighbours.entry(fingerprint).or_insert(wanted) != wanted {
            return Err(source.error(Some(link.name.span()), OTHER_POLICY));
        }
        if link.transit && !file.node.relay {
            let text = "transit = true needs relay = true in [node]";
            return Err(source.error(Some(link.name.span()), text));
        }
        let local = link
            .local
            .as_ref()
            .map(|local| source.parse::<IpAddr>("local", local, "an IP address"));
        let local = local.transpose()?;
        match &link.remote {
            Some(remote) => {
                let remote = source.remote(remote)?;
                let interface = interface(source, link.interface.as_ref(), &remote, local, listen)?;
                remote.add_link(plan, name.clone(), (local, interface), fingerprint);
            }
            None if local.is_some() || link.interface.is_some() => {
                let key = if local.is_some() { "local" } else { "interface" };
                let text = format!(
                    "{key} has a meaning only for a link with remote, which this node opens"
                );
                return Err(source.error(Some(link.name.span()), text));
            }
            None => {}
        }
    }
    let by_name = file.link.iter().map(|link| (link.name.get_ref().as_str(), link)).collect();
    for route in file.routes.fixed.iter().filter(|route| !route.get_ref().waits) {
        static_route(source, &by_name, plan, route.get_ref())?;
    }
    Ok(())
}

/// The only interface of a link, if it has one.
fn interface(
    source: &Source<'_>,
    interface: Option<&Spanned<String>>,
    remote: &Remote,
    local: Option<IpAddr>,
    listen: &[SocketAddr],
) -> Result<Option<String>, ConfigError> {
    let Some(interface) = interface else { return Ok(None) };
    let error = |text: String| source.error(Some(interface.span()), text);
    let name = interface.get_ref();
    remote.check_interface(name, local).map_err(error)?;
    let is_ipv6 = matches!(remote, Remote::Address(remote) if remote.is_ipv6());
    if is_ipv6 && !listens_at_any_ipv6(listen) {
        return Err(error(format!(
            "a link to {remote} over an interface needs \"[::]:{DEFAULT_PORT}\", or another port, in listen"
        )));
    }
    Ok(Some(name.clone()))
}

fn static_route(
    source: &Source<'_>,
    links: &BTreeMap<&str, &model::Link>,
    plan: &mut Plan,
    route: &model::Route,
) -> Result<(), ConfigError> {
    let to = source.id("to", &route.to)?;
    if to == plan.id {
        return Err(source.error(Some(route.to.span()), PlanError::OwnRoute(to)));
    }
    if route.via.is_empty() {
        return Err(source.error(Some(route.to.span()), "via = [] names no link: name one or more"));
    }
    for via in &route.via {
        let name = via.get_ref();
        let Some(link) = links.get(name.as_str()) else {
            let error = PlanError::UnknownLink(to, name.clone());
            return Err(source.error(Some(via.span()), format!("{error}: add a [[link]]")));
        };
        let hop = match plan.opens(name) {
            true => Hop::Link(name.clone()),
            false => Hop::Neighbour(source.fingerprint(link.fingerprint.as_ref(), &link.name)?),
        };
        let hops = plan.routes.entry(to).or_default();
        hops.insert(hop, link.tier);
        if hops.len() > openbats::node::MAX_PATHS {
            let text =
                format!("the route to {to} has more than {} links", openbats::node::MAX_PATHS);
            return Err(source.error(Some(via.span()), text));
        }
    }
    Ok(())
}

/// Whether the sources of routes include the kernel. Static routes are always used.
fn follows_kernel(source: &Source<'_>, file: &model::File) -> Result<bool, ConfigError> {
    if file.routes.source.as_ref().is_some_and(Vec::is_empty) {
        let text = "source = [] names no source: leave the key out or name one";
        return Err(source.error(None, text));
    }
    let mut follows = false;
    for name in file.routes.source.iter().flatten() {
        match name.get_ref().as_str() {
            "static" => {}
            "kernel" => follows = true,
            other => {
                let text = format!("source = \"{other}\" is not \"static\" or \"kernel\"");
                return Err(source.error(Some(name.span()), text));
            }
        }
    }
    let names = || file.routes.source.iter().flatten().map(|name| name.get_ref().as_str());
    let without_static = file.routes.source.is_some() && !names().any(|name| name == "static");
    match file.routes.fixed.first().filter(|_| without_static) {
        Some(route) => {
            let text = "there is a static route, but \"static\" is not in source: add it, or remove the route";
            Err(source.error(Some(route.span()), text))
        }
        None => Ok(follows),
    }
}

/// Peers. One with `remote`, or without a static route, is a neighbour, too. The route to a neighbour is its
/// link, unless the kernel gives the routes.
fn peers(
    source: &Source<'_>,
    file: &model::File,
    listen: &[SocketAddr],
    plan: &mut Plan,
    follows_kernel: bool,
) -> Result<(), ConfigError> {
    if file.peer.len() > MAX_PEERS {
        return Err(source.error(None, format!("more than {MAX_PEERS} peers")));
    }
    let waiting: BTreeSet<&str> = file
        .routes
        .fixed
        .iter()
        .filter(|route| route.get_ref().waits)
        .map(|route| route.get_ref().to.get_ref().as_str())
        .collect();
    for peer in &file.peer {
        let id = source.id("id", &peer.id)?;
        let fingerprint = source.fingerprint(peer.fingerprint.as_ref(), &peer.id)?;
        let mut prefixes = BTreeSet::new();
        for prefix in &peer.prefixes {
            prefixes.insert(network(source, "prefixes", prefix)?.trunc());
        }
        if plan.peers.insert(id, Peer { fingerprint, prefixes }).is_some() {
            let text = format!("there are two peers with the ID {id}: one node has one entry");
            return Err(source.error(Some(peer.id.span()), text));
        }
        if let (Some(interface), None) = (&peer.interface, &peer.remote) {
            let text = "interface has a meaning only for a peer with remote, to which this node opens a link";
            return Err(source.error(Some(interface.span()), text));
        }
        if plan.routes.contains_key(&id) {
            if let Some(remote) = &peer.remote {
                let text = format!(
                    "{id} has a static route and a remote: keep one of them, or make a [[link]]"
                );
                return Err(source.error(Some(remote.span()), text));
            }
            continue;
        }
        // It is no neighbour: its route follows.
        if waiting.contains(peer.id.get_ref().as_str()) {
            continue;
        }
        plan.neighbours.entry(fingerprint).or_insert(false.into());
        let hop = match &peer.remote {
            Some(remote) => {
                let name = first_use::link_to_peer(&id.to_string());
                if plan.opens(&name) {
                    let text = format!(
                        "the link to {remote} gets the name \"{name}\", which a [[link]] has: rename that one",
                        remote = remote.get_ref()
                    );
                    return Err(source.error(Some(remote.span()), text));
                }
                let remote = source.remote(remote)?;
                let interface = interface(source, peer.interface.as_ref(), &remote, None, listen)?;
                remote.add_link(plan, name.clone(), (None, interface), fingerprint);
                Hop::Link(name)
            }
            None => Hop::Neighbour(fingerprint),
        };
        if !follows_kernel {
            plan.routes.insert(id, [(hop, 0)].into());
        }
    }
    Ok(())
}

/// A network, or a single address.
fn network(source: &Source<'_>, key: &str, value: &Spanned<String>) -> Result<IpNet, ConfigError> {
    if let Ok(address) = value.get_ref().parse::<IpAddr>() {
        return Ok(address.into());
    }
    source.parse(key, value, "an address with the length of its network, such as \"10.66.1.1/24\"")
}

fn device(source: &Source<'_>, tun: &model::Tun) -> Result<TunConfig, ConfigError> {
    let name = tun.name.as_ref().map_or("bats0", |name| name.get_ref()).to_owned();
    if !is_interface_name(&name) {
        let text =
            format!("name = \"{name}\" is no interface name: use 1 to 15 letters, digits, - _ .");
        return Err(source.error(tun.name.as_ref().map(Spanned::span), text));
    }
    let mut addresses = Vec::new();
    for address in &tun.address {
        addresses.push(network(source, "address", address)?);
    }
    let mtu = tun.mtu.as_ref().map_or(1_500, |mtu| *mtu.get_ref());
    if !(MIN_MTU..=65_535).contains(&mtu) {
        let text = format!("mtu = {mtu} is not from {MIN_MTU} to 65535");
        return Err(source.error(tun.mtu.as_ref().map(Spanned::span), text));
    }
    let mode = match tun.mode.as_ref().map(|mode| mode.get_ref().as_str()) {
        None | Some("auto") => TunMode::Auto,
        Some("brtp") => TunMode::Brtp,
        Some("btp") => TunMode::Btp,
        Some(other) => {
            let text = format!("mode = \"{other}\" is not \"auto\", \"brtp\" or \"btp\"");
            return Err(source.error(tun.mode.as_ref().map(Spanned::span), text));
        }
    };
    let offload = tun.offload.unwrap_or(true);
    let link_local = tun.link_local.unwrap_or(true);
    Ok(TunConfig { name, addresses, mtu, mode, offload, link_local })
}
