//! The destinations that an exit serves. By default none.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ipnet::IpNet;

use super::target::{Host, Target};

/// Most rules: each connection compares with all.
pub const MAX_RULES: usize = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hosts {
    Any,
    Network(IpNet),
    Name(String),
    /// The name after the asterisk, with its dot.
    Below(String),
}

/// A rule: hosts and ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    hosts: Hosts,
    ports: RangeInclusive<u16>,
}

impl FromStr for Rule {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (host, port) = text.rsplit_once(':').ok_or(())?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|&port| port != 0).ok_or(());
        let ports = match port.split_once('-') {
            _ if port == "*" => 1..=u16::MAX,
            Some((first, last)) => number(first)?..=number(last)?,
            None => number(port)?..=number(port)?,
        };
        if ports.is_empty() {
            return Err(());
        }
        let is_bracketed = host.starts_with('[') && host.ends_with(']');
        let inner = host.trim_start_matches('[').trim_end_matches(']');
        let hosts = if host == "*" {
            Hosts::Any
        } else if let Ok(network) = inner.parse::<IpNet>() {
            Hosts::Network(network.trunc())
        } else if let Ok(ip) = inner.parse::<IpAddr>() {
            Hosts::Network(ip.into())
        } else if let Some(name) = host.strip_prefix("*.") {
            match Host::parse(name) {
                Ok(Host::Name(name)) => Hosts::Below(format!(".{name}")),
                _ => return Err(()),
            }
        } else {
            match Host::parse(host) {
                Ok(Host::Name(name)) => Hosts::Name(name),
                _ => return Err(()),
            }
        };
        // Without brackets the last part of an IPv6 address would be read as a port.
        match &hosts {
            Hosts::Network(IpNet::V6(_)) if !is_bracketed => Err(()),
            Hosts::Network(IpNet::V6(_)) => Ok(Self { hosts, ports }),
            _ if is_bracketed => Err(()),
            _ => Ok(Self { hosts, ports }),
        }
    }
}

/// Addresses that are no hosts of a network: link-local ones belong to the exit's own links,
/// among them the metadata services of clouds.
fn is_never_allowed(ip: IpAddr) -> bool {
    ip.is_unspecified()
        || ip.is_multicast()
        || match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
}

/// The rules of an exit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Rule>);

impl AllowList {
    /// A list of these rules.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(rules)
    }

    /// Whether nothing is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a connection for `target` may go to this address of it. Loopback needs a rule that
    /// names an address or network: neither `*` nor a name, whose owner chooses the address, opens
    /// the services of the exit itself.
    #[must_use]
    pub fn permits(&self, target: &Target, address: IpAddr) -> bool {
        let address = address.to_canonical();
        if is_never_allowed(address) {
            return false;
        }
        self.0.iter().filter(|rule| rule.ports.contains(&target.port)).any(|rule| {
            match (&rule.hosts, &target.host) {
                (Hosts::Network(network), _) => network.contains(&address),
                _ if address.is_loopback() => false,
                (Hosts::Any, _) => true,
                (Hosts::Name(allowed), Host::Name(name)) => allowed == name,
                (Hosts::Below(suffix), Host::Name(name)) => name.ends_with(suffix.as_str()),
                _ => false,
            }
        })
    }

    /// Whether resolving the name can lead to a permitted address: an exit asks DNS only for those.
    #[must_use]
    pub fn may_resolve(&self, target: &Target) -> bool {
        self.0.iter().filter(|rule| rule.ports.contains(&target.port)).any(|rule| {
            match (&rule.hosts, &target.host) {
                (Hosts::Any | Hosts::Network(_), _) => true,
                (Hosts::Name(allowed), Host::Name(name)) => allowed == name,
                (Hosts::Below(suffix), Host::Name(name)) => name.ends_with(suffix.as_str()),
                _ => false,
            }
        })
    }
}
