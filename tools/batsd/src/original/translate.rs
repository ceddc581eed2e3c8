//! From the original's file to the text of a configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;

use super::Flags;
use super::identity::NetworkKey;
use super::ini::{Ini, IniError, Value};
use crate::config::{DEFAULT_PORT, Remote, is_interface_name};
use crate::proxy::target::Target;

/// A configuration, and the identity of the node.
#[derive(Debug)]
pub struct Translated {
    /// The text of the configuration.
    pub text: String,
    /// Certificate and key, PEM.
    pub identity: String,
}

/// A link of the file.
struct Link {
    local: SocketAddr,
    remote: Remote,
    /// The neighbour.
    node: Ipv4Addr,
}

/// The place of a node in the network: an IP address, or a host name in lower case. A name and its addresses are not
/// the same: names are resolved later, and may change their addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Address(IpAddr),
    Name(String),
}

impl From<&Remote> for Place {
    fn from(remote: &Remote) -> Self {
        match remote {
            Remote::Address(address) => Self::Address(address.ip()),
            Remote::Host(host) => Self::Name(host.name.clone()),
        }
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        // With a port, it is no place.
        match Remote::from_str(&format!("{text}:{DEFAULT_PORT}"))? {
            Remote::Host(host) => Ok(Self::Name(host.name)),
            Remote::Address(_) => Err(()),
        }
    }
}

/// The nodes: their addresses in the tunnel, which are their IDs, by their places in the network.
struct Nodes(BTreeMap<Place, Ipv4Addr>);

const PLACE: &str = "an IP address or a host name";

fn local(ini: &Ini<'_>, value: &Value<'_>) -> Result<SocketAddr, IniError> {
    match value.text.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, DEFAULT_PORT)),
        Err(_) => ini.parsed(value, "an IP address, with a port or without"),
    }
}

fn remote(ini: &Ini<'_>, value: &Value<'_>) -> Result<Remote, IniError> {
    let wanted = "is not an IP address or a host name, with a port or without";
    Remote::with_port(value.text, DEFAULT_PORT).map_err(|()| ini.error(value, wanted))
}

fn nodes(ini: &Ini<'_>) -> Result<Nodes, IniError> {
    let mut nodes = BTreeMap::new();
    for item in 0..ini.count("tun.mapping")? {
        let value = ini.required("tun.mapping", item, "tun_ip")?;
        let node: Ipv4Addr = ini.parsed(value, "an IPv4 address")?;
        if node.is_unspecified() {
            return Err(ini.error(value, "is no address of a node"));
        }
        let value = ini.required("tun.mapping", item, "net_ip")?;
        let place: Place = ini.parsed(value, PLACE)?;
        if nodes.insert(place, node).is_some_and(|other| other != node) {
            return Err(ini.error(value, "belongs to another tun_ip, too: remove one"));
        }
    }
    Ok(Nodes(nodes))
}

fn links(ini: &Ini<'_>, nodes: &Nodes) -> Result<Vec<Link>, IniError> {
    let mut links = Vec::new();
    for item in 0..ini.count("link")? {
        let local = local(ini, ini.required("link", item, "local")?)?;
        let value = ini.required("link", item, "remote")?;
        let remote = remote(ini, value)?;
        let Some(&node) = nodes.0.get(&Place::from(&remote)) else {
            let text = "is the net_ip of no tun.mapping: add it, because nodes have the names of their tun_ip";
            return Err(ini.error(value, text));
        };
        links.push(Link { local, remote, node });
    }
    Ok(links)
}

/// The links to each node: those to a neighbour, else those of the routes of the lowest metric.
fn routes(
    ini: &Ini<'_>,
    nodes: &Nodes,
    links: &[Link],
) -> Result<BTreeMap<Ipv4Addr, BTreeSet<usize>>, IniError> {
    let mut metrics: BTreeMap<Ipv4Addr, (u32, BTreeSet<usize>)> = BTreeMap::new();
    let over = |node: Ipv4Addr| -> BTreeSet<usize> {
        links.iter().enumerate().filter(|(_, link)| link.node == node).map(|(at, _)| at).collect()
    };
    for item in 0..ini.count("routes")? {
        let to: Place = ini.parsed(ini.required("routes", item, "dst")?, PLACE)?;
        let value = ini.required("routes", item, "gw")?;
        let gateway: Place = ini.parsed(value, PLACE)?;
        if let Some(mask) = ini.get(&format!("routes.item{item}.mask"))
            && !["255.255.255.255", "32", "/32"].contains(&mask.text)
        {
            return Err(ini.error(mask, "is no mask of one address: routes lead to nodes"));
        }
        let metric = match ini.get(&format!("routes.item{item}.metric")) {
            Some(value) => ini.parsed(value, "a number")?,
            None => 1,
        };
        // The kernel of a host needs routes to more than nodes.
        let Some(&node) = nodes.0.get(&to) else { continue };
        let hops = nodes.0.get(&gateway).map(|&node| over(node)).unwrap_or_default();
        if hops.is_empty() {
            return Err(ini.error(value, "is the address of no neighbour: add a link to it"));
        }
        let best = metrics.entry(node).or_insert((metric, BTreeSet::new()));
        if metric < best.0 {
            *best = (metric, hops);
        } else if metric == best.0 {
            best.1.extend(hops);
        }
    }
    let mut routes: BTreeMap<Ipv4Addr, BTreeSet<usize>> =
        metrics.into_iter().map(|(node, (_, hops))| (node, hops)).collect();
    for link in links {
        routes.insert(link.node, over(link.node));
    }
    Ok(routes)
}

/// Listeners of forwarded ports.
fn forwards(ini: &Ini<'_>, nodes: &Nodes, text: &mut String) -> Result<(), IniError> {
    const LIST: &str = "proxies.port_forward.proxy";
    for item in 0..ini.count(LIST)? {
        let port: u16 = ini.parsed(ini.required(LIST, item, "listen_port")?, "a port")?;
        let to: Target = ini.parsed(ini.required(LIST, item, "svr_addr_port")?, "HOST:PORT")?;
        let value = ini.required(LIST, item, "bats_svr_addr")?;
        let place: Place = ini.parsed(value, PLACE)?;
        let by_tunnel = nodes.0.values().find(|&&node| Place::Address(node.into()) == place);
        let Some(exit) = nodes.0.get(&place).or(by_tunnel) else {
            return Err(ini.error(value, "is the net_ip of no tun.mapping: add it"));
        };
        let protocols = ini.get(&format!("{LIST}.item{item}.forward_protocol"));
        for protocol in protocols.map_or("tcp", |value| value.text).split(',').map(str::trim) {
            if let (Some(value), false) = (protocols, ["tcp", "udp"].contains(&protocol)) {
                return Err(ini.error(value, "is not tcp, udp or tcp,udp"));
            }
            let _ = writeln!(
                text,
                "[[forward]]\nlisten = \"0.0.0.0:{port}\"\nprotocol = \"{protocol}\"\nexit = \"{exit}\"\n\
                 to = \"{to}\""
            );
        }
    }
    Ok(())
}

/// Translates a file; the key of the network is in its folder.
///
/// # Errors
/// The file has a wrong value, or the key cannot be read.
pub fn translate(path: &Path, text: &str, flags: &Flags) -> anyhow::Result<Translated> {
    let network = NetworkKey::read(&super::key(path))?;
    let (text, own, notes) = configuration(path, text, flags, &network)?;
    notes.iter().for_each(|note| eprintln!("batsd: {note}"));
    Ok(Translated { text, identity: network.identity(own)?.pem })
}

/// The text of the configuration, the ID of the node, and what the user should know.
pub(crate) fn configuration(
    path: &Path,
    text: &str,
    flags: &Flags,
    network: &NetworkKey,
) -> anyhow::Result<(String, Ipv4Addr, Vec<String>)> {
    let ini = Ini::parse(path, text)?;
    let own = ini.get("tun.ip").with_context(|| {
        format!(
            "{}: tun.ip is missing: it is the address in the tunnel and the node's name",
            path.display()
        )
    })?;
    let own: Ipv4Addr = ini.parsed(own, "an IPv4 address")?;
    let nodes = nodes(&ini)?;
    let links = links(&ini, &nodes)?;
    let routes = routes(&ini, &nodes, &links)?;
    let mode = match (&flags.tun_protocol, ini.get("tun.mode")) {
        (Some(mode), _) => mode.to_lowercase(),
        (None, Some(mode)) if ["BTP", "BRTP"].contains(&mode.text) => mode.text.to_lowercase(),
        (None, Some(mode)) => return Err(ini.error(mode, "is not BTP or BRTP").into()),
        (None, None) => "auto".to_owned(),
    };
    let listen: BTreeSet<SocketAddr> = links.iter().map(|link| link.local).collect();
    let mut output = format!("[node]\nid = \"{own}\"\nrelay = true\n");
    if !listen.is_empty() {
        let listen: Vec<String> = listen.iter().map(|address| format!("\"{address}\"")).collect();
        let _ = writeln!(output, "listen = [{}]", listen.join(", "));
    }
    let name = match ini.get("tun.name") {
        Some(name) if !is_interface_name(name.text) => {
            let text = "is no name of an interface: use 1 to 15 letters, digits, - _ .";
            return Err(ini.error(name, text).into());
        }
        name => name.map_or("tun_session", |name| name.text),
    };
    let _ =
        writeln!(output, "[tun]\nname = \"{name}\"\naddress = [\"{own}/32\"]\nmode = \"{mode}\"");
    for (at, link) in links.iter().enumerate() {
        let print = network.identity(link.node)?.fingerprint;
        let _ = writeln!(
            output,
            "[[link]]\nname = \"link{at}\"\nremote = \"{}\"\nlocal = \"{}\"\n\
             fingerprint = \"sha256:{print}\"\ntransit = true",
            link.remote,
            link.local.ip(),
        );
    }
    let mut unreachable = BTreeSet::new();
    let mut fixed = Vec::new();
    for &node in nodes.0.values().collect::<BTreeSet<_>>() {
        let Some(hops) = routes.get(&node).filter(|_| node != own) else {
            if node != own {
                unreachable.insert(node);
            }
            continue;
        };
        let print = network.identity(node)?.fingerprint;
        let _ = writeln!(
            output,
            "[[peer]]\nid = \"{node}\"\nfingerprint = \"sha256:{print}\"\nprefixes = [\"{node}\"]"
        );
        let via: Vec<String> = hops.iter().map(|at| format!("\"link{at}\"")).collect();
        fixed.push(format!("{{ to = \"{node}\", via = [{}] }}", via.join(", ")));
    }
    let _ = writeln!(output, "[routes]\nstatic = [{}]", fixed.join(", "));
    let reachable =
        Nodes(nodes.0.into_iter().filter(|(_, node)| routes.contains_key(node)).collect());
    forwards(&ini, &reachable, &mut output)?;
    // The servers of this host, which the nodes of the network reach through the tunnel anyway.
    let allow = listen.iter().map(|address| address.ip()).chain([IpAddr::V4(own)]);
    let allow: Vec<String> = allow
        .map(|ip| if ip.is_ipv6() { format!("\"[{ip}]:*\"") } else { format!("\"{ip}:*\"") })
        .collect();
    let _ = writeln!(output, "[exit]\nallow = [{}]", allow.join(", "));
    Ok((output, own, notes(path, &ini, flags, &unreachable)))
}

/// Names once what has no meaning here.
fn notes(
    path: &Path,
    ini: &Ini<'_>,
    flags: &Flags,
    unreachable: &BTreeSet<Ipv4Addr>,
) -> Vec<String> {
    let path = path.display();
    let mut notes = Vec::new();
    if !ini.ignored.is_empty() {
        // A key is any text of the file.
        let keys: Vec<String> =
            ini.ignored.iter().map(|key| key.escape_debug().to_string()).collect();
        notes.push(format!("{path}: without a meaning here: {}", keys.join(", ")));
    }
    if !flags.ignored.is_empty() {
        let flags = flags.ignored.join(" ");
        notes.push(format!(
            "without a meaning here: {flags}: links and routes are those of the file"
        ));
    }
    for node in unreachable {
        notes.push(format!("{path}: no link or route leads to the node {node} of tun.mapping"));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, TunMode};

    const CHAIN: &str = "\
[protocol]
core.link_seq_set_num_bit = 5
core.relay_flow_expire_seconds = 300
[network]
link.cnt = 1
link.item0.local = 10.0.0.1
link.item0.remote = 10.0.0.2
routes.cnt = 2
routes.item0.src = 10.0.0.1
routes.item0.dst = 10.0.1.2
routes.item0.mask = 255.255.255.255
routes.item0.gw = 10.0.0.2
routes.item0.metric = 1
routes.item1.dst = 10.9.9.9
routes.item1.gw = 10.0.0.2
[tun]
name = tun_session
ip = 1.0.0.1
mode = BTP
tun.max_flow_per_session = 1
mapping.cnt = 4
mapping.item0.tun_ip = 1.0.0.2
mapping.item0.net_ip = 10.0.0.2
mapping.item1.tun_ip = 1.0.0.2
mapping.item1.net_ip = 10.0.1.1
mapping.item2.tun_ip = 1.0.0.3
mapping.item2.net_ip = 10.0.1.2
mapping.item3.tun_ip = 1.0.0.1
mapping.item3.net_ip = 10.0.0.1
[proxies]
tcp.proxy.cnt = 1
tcp.proxy.item0.ip_capture_range = 10.0.1.2/32
tcp.exclude_ports = 10100
port_forward.proxy.cnt = 1
port_forward.proxy.item0.listen_port = 5201
port_forward.proxy.item0.svr_addr_port = 10.0.1.2:5201
port_forward.proxy.item0.bats_svr_addr = 10.0.1.2
port_forward.proxy.item0.forward_protocol = tcp,udp
";

    fn network() -> NetworkKey {
        let key = pem::encode(&pem::Pem::new("PRIVATE KEY", vec![7; 40]));
        NetworkKey::from_pem(key.as_bytes()).unwrap()
    }

    fn configured(text: &str, flags: &Flags) -> anyhow::Result<Config> {
        let path = Path::new("x.ini");
        let (text, ..) = configuration(path, text, flags, &network())?;
        Ok(Config::parse_translated(path, &text)?)
    }

    #[test]
    fn a_file_of_the_original_is_a_node() {
        let config = configured(CHAIN, &Flags::default()).unwrap();
        let tun = config.tun.unwrap();
        assert_eq!((tun.name.as_str(), tun.mode), ("tun_session", TunMode::Btp));
        assert_eq!(config.plan.id.to_string(), "1.0.0.1");
        assert!(config.relay);
        assert_eq!(config.listen, ["10.0.0.1:4900".parse().unwrap()]);
        assert_eq!(config.plan.links["link0"].remote, "10.0.0.2:4900".parse().unwrap());
        let peers: Vec<String> = config.plan.peers.keys().map(ToString::to_string).collect();
        assert_eq!(peers, ["1.0.0.2", "1.0.0.3"]);
        // The far node is behind the neighbour.
        assert_eq!(config.plan.routes.len(), 2);
        assert!(config.plan.routes.values().all(|hops| hops.len() == 1));
        assert_eq!(config.listeners.len(), 2);
        assert!(config.exit.is_some());
        let flags = Flags { tun_protocol: Some("BRTP".to_owned()), ..Flags::default() };
        assert_eq!(configured(CHAIN, &flags).unwrap().tun.unwrap().mode, TunMode::Brtp);
    }

    #[test]
    fn neighbours_and_nodes_have_addresses_or_host_names() {
        let named = CHAIN
            .replace("item0.remote = 10.0.0.2", "item0.remote = Relay.Example:4950")
            .replace("gw = 10.0.0.2", "gw = relay.example")
            .replace("net_ip = 10.0.0.2", "net_ip = relay.example")
            .replace("dst = 10.0.1.2", "dst = far.example")
            .replace("bats_svr_addr = 10.0.1.2", "bats_svr_addr = far.example")
            .replace("net_ip = 10.0.1.2", "net_ip = far.example");
        let config = configured(&named, &Flags::default()).unwrap();
        assert_eq!(config.plan.hosts["link0"].host.to_string(), "relay.example:4950");
        assert_eq!((config.plan.links.len(), config.listeners.len()), (0, 2));
        let by_address = configured(CHAIN, &Flags::default()).unwrap();
        assert_eq!(config.plan.routes, by_address.plan.routes);
        let bare = named.replace(":4950", "");
        let config = configured(&bare, &Flags::default()).unwrap();
        assert_eq!(config.plan.hosts["link0"].host.to_string(), "relay.example:4900");
        for (from, to, error) in [
            (
                "net_ip = relay.example",
                "net_ip = relay.example:1",
                "is not an IP address or a host",
            ),
            ("net_ip = relay.example", "net_ip = 10.0.0.300", "is not an IP address or a host"),
            ("net_ip = relay.example", "net_ip = other.example", "is the net_ip of no tun.mapping"),
            ("local = 10.0.0.1", "local = own.example", "is not an IP address, with a port"),
        ] {
            let error_of = configured(&named.replace(from, to), &Flags::default()).unwrap_err();
            assert!(error_of.to_string().contains(error), "{to}: {error_of}");
        }
    }

    #[test]
    fn keys_without_a_meaning_are_known() {
        let text = CHAIN.replace("core.link_seq_set_num_bit", "\x1b[31m");
        let notes = configuration(Path::new("x.ini"), &text, &Flags::default(), &network());
        let notes = notes.unwrap().2.join("\n");
        assert!(
            notes.contains("\\u{1b}[31m, core.relay_flow") && !notes.contains('\x1b'),
            "{notes}"
        );
        let ini = Ini::parse(Path::new("x.ini"), CHAIN).unwrap();
        let ignored: Vec<&str> = ini.ignored.iter().map(String::as_str).collect();
        assert_eq!(
            ignored,
            [
                "core.link_seq_set_num_bit",
                "core.relay_flow_expire_seconds",
                "tcp.exclude_ports",
                "tcp.proxy.cnt",
                "tcp.proxy.item*.ip_capture_range",
                "tun.max_flow_per_session",
            ]
        );
    }

    #[test]
    fn wrong_files_are_errors_with_line_and_key() {
        for (from, to, error) in [
            ("ip = 1.0.0.1", "ip = one", "x.ini:18: tun.ip = one is not an IPv4 address"),
            ("ip = 1.0.0.1", "", "tun.ip is missing"),
            ("mode = BTP", "mode = TCP", "tun.mode = TCP is not BTP or BRTP"),
            ("remote = 10.0.0.2", "remote = 10.0.0.9", "is the net_ip of no tun.mapping"),
            ("item0.gw = 10.0.0.2", "item0.gw = 10.0.1.2", "is the address of no neighbour"),
            ("mask = 255.255.255.255", "mask = 255.0.0.0", "is no mask of one address"),
            ("link.cnt = 1", "link.cnt = 2", "link.item1.local is missing"),
            ("link.cnt = 1", "link.cnt = 5000", "is more than 1024"),
            ("item2.net_ip = 10.0.1.2", "item2.net_ip = 10.0.0.2", "belongs to another tun_ip"),
            ("tcp,udp", "sctp", "is not tcp, udp"),
            // Its line in the translation is none of the file.
            ("tcp,udp", "tcp,tcp", "x.ini: two listeners have the address 0.0.0.0:5201"),
            ("svr_addr_port = 10.0.1.2:5201", "svr_addr_port = 10.0.1.2", "is not HOST:PORT"),
            ("bats_svr_addr = 10.0.1.2", "bats_svr_addr = 10.0.7.7", "is the net_ip of no"),
            ("[tun]", "[tun", "is no section"),
            ("name = tun_session", "name", "is not KEY = VALUE"),
            ("name = tun_session", "name = a\"b", "is no name of an interface"),
            ("name = tun_session", "name = a\tb", "x.ini:17: tun.name = a\tb is no name of"),
            ("name = tun_session", "name = longer_than_it_may_be", "is no name of an interface"),
            ("ip = 1.0.0.1", "ip = 1.0.0.1\nip = 1.0.0.2", "stands there twice"),
        ] {
            assert!(CHAIN.contains(from), "{from}");
            let text = CHAIN.replacen(from, to, 1);
            let found = configured(&text, &Flags::default()).unwrap_err().to_string();
            assert!(found.contains(error), "{from} -> {to}: {found}");
        }
    }
}
