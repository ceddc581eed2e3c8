//! Addresses of neighbours: an IP address or a name, with a port.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bats_node::{Fingerprint, HostLink, HostName, Link, Plan};

use crate::proxy::target::{Host, Target};

/// What a `remote` has to be, for errors.
pub(crate) const WANTED: &str = "an IP address or a host name with a port, such as \"192.0.2.7:4900\", \
                                 \"node.example.org:4900\" or \"[fe80::2%eth0]:4900\"";
/// Longest name of an interface (IFNAMSIZ without the final zero).
const MAX_INTERFACE: usize = 15;

/// The address of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Remote {
    /// An IP address.
    Address(SocketAddr),
    /// A name, which has to be resolved.
    Host(HostName),
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Host(host) => host.fmt(f),
        }
    }
}

impl std::str::FromStr for Remote {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let host = match text.contains('%') {
            true => scoped(text),
            false => match text.parse::<Target>() {
                Ok(Target { host: Host::Name(name), port }) if is_name(&name) => {
                    Some(HostName { name, port })
                }
                _ => None,
            },
        };
        host.map(Self::Host).ok_or(())
    }
}

/// Whether this is a host name. The C library reads `192.0.2` and `0x7f000001` as addresses of another form, and
/// `192.0.2.300` is a mistake, so a name whose last part is a number is none.
fn is_name(name: &str) -> bool {
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    !last.bytes().all(|byte| byte.is_ascii_digit()) && !last.starts_with("0x")
}

/// A link-local address of IPv6 with the name of an interface, and a port.
fn scoped(text: &str) -> Option<HostName> {
    let (address, rest) = text.split_once('%')?;
    let (interface, port) = rest.split_once("]:")?;
    let target: Target = format!("{address}]:{port}").parse().ok()?;
    let Host::Ip(IpAddr::V6(ip)) = target.host else { return None };
    (ip.is_unicast_link_local() && is_interface(interface))
        .then(|| HostName { name: format!("{ip}%{interface}"), port: target.port })
}

/// Whether this may be the name of an interface that is there already: Linux takes almost any.
fn is_interface(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_graphic() && !b"/:%".contains(&byte);
    (1..=MAX_INTERFACE).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(is_good)
}

/// Whether links over an interface reach IPv6 addresses at a node that listens at these: Linux keeps to the
/// interface only if it may choose the local address.
pub(crate) fn listens_at_any_ipv6(listen: &[SocketAddr]) -> bool {
    listen.iter().any(|at| at.is_ipv6() && at.ip().is_unspecified())
}

impl Remote {
    /// Reads an address or a name whose port may be left out.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn with_port(text: &str, port: u16) -> Result<Self, ()> {
        let bare = match text.contains(':') && !text.contains('[') {
            true => format!("[{text}]:{port}"),
            false => format!("{text}:{port}"),
        };
        text.parse().or_else(|()| bare.parse())
    }

    /// Checks the name of the only interface for a link to this neighbour from a local address.
    ///
    /// # Errors
    /// There cannot be such a link; in words.
    pub(crate) fn check_interface(&self, name: &str, local: Option<IpAddr>) -> Result<(), String> {
        if !is_interface(name) {
            return Err(format!(
                "'{name}' is no name of an interface: use 1 to 15 characters as `ip link` shows them, without \
                 / : % and spaces"
            ));
        }
        if local.is_some_and(|local| local.is_ipv6()) {
            let text = "a link with an interface has no local address of IPv6, because Linux keeps to the \
                        interface only if it chooses the address: leave `local` out";
            return Err(text.to_owned());
        }
        let scope = match self {
            Self::Host(host) => host.name.split_once('%').map(|(_, scope)| scope),
            Self::Address(_) => None,
        };
        match scope.filter(|scope| *scope != name) {
            Some(scope) => Err(format!(
                "the address of the neighbour is of the interface {scope}, and the link of {name}: \
                 name one of them"
            )),
            None => Ok(()),
        }
    }

    /// Adds the link to this neighbour to a plan.
    pub(super) fn add_link(
        self,
        plan: &mut Plan,
        name: String,
        (local, interface): (Option<IpAddr>, Option<String>),
        fingerprint: Fingerprint,
    ) {
        match self {
            Self::Address(remote) => {
                plan.links.insert(name, Link { remote, local, interface, fingerprint });
            }
            Self::Host(host) => {
                plan.hosts.insert(name, HostLink { host, local, interface, fingerprint });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_with_ports_are_read_and_nothing_else() {
        let parse = |text: &str| text.parse::<Remote>();
        for text in ["192.0.2.7:4900", "[2001:db8::7]:4900", "[fe80::2%3]:4900"] {
            assert_eq!(parse(text), Ok(Remote::Address(text.parse().unwrap())));
        }
        for (text, host) in [
            ("Node.Example.org:4900", "node.example.org"),
            ("localhost:4900", "localhost"),
            ("node_7.example.org.:4900", "node_7.example.org."),
            ("[fe80::2%eth0]:4900", "fe80::2%eth0"),
            ("[fe80::2%br-lan.7@x]:4900", "fe80::2%br-lan.7@x"),
        ] {
            assert_eq!(
                parse(text),
                Ok(Remote::Host(HostName { name: host.to_owned(), port: 4_900 })),
                "{text}"
            );
        }
        for text in [
            "",
            ":4900",
            "node.example.org",
            "node.example.org:",
            "node.example.org:0",
            "node.example.org:+1",
            "node.example.org:65536",
            "192.0.2.300:4900",
            "192.0.2:4900",
            "0x7f000001:4900",
            "fe80::2%eth0:4900",
            "[2001:db8::7%eth0]:4900",
            "[fe80::2%]:4900",
            "[fe80::2%a/b]:4900",
            "[fe80::2%0123456789abcdef]:4900",
            "[node.example.org]:4900",
            "a b:4900",
            "node.example.org\0:4900",
        ] {
            assert_eq!(parse(text), Err(()), "{text}");
        }
    }
    #[test]
    fn a_port_may_be_left_out_where_there_is_a_default() {
        for (text, expected) in [
            ("192.0.2.7", "192.0.2.7:4900"),
            ("192.0.2.7:7", "192.0.2.7:7"),
            ("2001:db8::7", "[2001:db8::7]:4900"),
            ("[2001:db8::7]", "[2001:db8::7]:4900"),
            ("[2001:db8::7]:7", "[2001:db8::7]:7"),
            ("node.example.org", "node.example.org:4900"),
            ("node.example.org:7", "node.example.org:7"),
            ("fe80::2%eth0", "[fe80::2%eth0]:4900"),
            ("[fe80::2%eth0]:7", "[fe80::2%eth0]:7"),
        ] {
            let remote = Remote::with_port(text, 4_900).map(|remote| remote.to_string());
            assert_eq!(remote.as_deref(), Ok(expected), "{text}");
        }
        for text in ["", ":4900", "192.0.2", "a b", "node.example.org:x", "a:b:c"] {
            assert_eq!(Remote::with_port(text, 4_900), Err(()), "{text}");
        }
    }
}
