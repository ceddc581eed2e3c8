//! Addresses of neighbours: an IP address or a name, with a port.

use std::net::{Ipv6Addr, SocketAddr};

use bats_node::{Fingerprint, HostLink, Link, Plan};

use crate::proxy::target::Host;

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
    /// A name, which has to be looked up, and a port.
    Host(String, u16),
}

impl std::str::FromStr for Remote {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        let (host, port) = text.rsplit_once(':').ok_or(())?;
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|&port: &u16| port != 0 && digits).ok_or(())?;
        match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => is_scoped(host).then(|| Self::Host(host.to_owned(), port)).ok_or(()),
            None => host_name(host).map(|name| Self::Host(name, port)).ok_or(()),
        }
    }
}

/// A host name in lower case. The C library would read `192.0.2` and `192.0.2.300` as addresses of another form, or
/// ask for them, so a name whose last part is a number is none.
pub(crate) fn host_name(text: &str) -> Option<String> {
    let Ok(Host::Name(name)) = Host::parse(text) else { return None };
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    (!is_number).then_some(name)
}

/// Whether this is a link-local address of IPv6 with the name of an interface.
fn is_scoped(text: &str) -> bool {
    text.split_once('%').is_some_and(|(address, interface)| {
        let is_good = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'%';
        address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_unicast_link_local())
            && (1..=MAX_INTERFACE).contains(&interface.len())
            && interface.bytes().all(is_good)
    })
}

impl Remote {
    /// Adds the link to this neighbour to a plan.
    pub(super) fn add_link(
        self,
        plan: &mut Plan,
        name: String,
        local: Option<std::net::IpAddr>,
        fingerprint: Fingerprint,
    ) {
        match self {
            Self::Address(remote) => {
                plan.links.insert(name, Link { remote, local, fingerprint });
            }
            Self::Host(host, port) => {
                plan.hosts.insert(name, HostLink { host, port, local, fingerprint });
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
            assert_eq!(parse(text), Ok(Remote::Host(host.to_owned(), 4_900)), "{text}");
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
}
